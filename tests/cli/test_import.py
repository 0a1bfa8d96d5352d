"""`rollbook import`: the report, the exit codes and errors that state the remedy."""

from __future__ import annotations

from pathlib import Path

import orjson

from store.cli.errors import FAILED, NOT_FOUND, USAGE
from tests.cli.conftest import Rollbook
from tests.imports.samples import trace_line


def test_an_import_prints_its_report_and_fails_if_something_was_skipped(rollbook: Rollbook, tmp_path: Path) -> None:
    rollbook("enqueue", "1")
    file = tmp_path / "run" / "traces.jsonl"
    file.parent.mkdir()
    file.write_bytes(trace_line("a") + trace_line("b"))
    dry = rollbook("import", "traces", str(tmp_path), "--dry-run")
    assert (dry.code, dry.out.startswith("would import 2 rollouts, 6 spans; 0 unchanged, 0 skipped; ")) == (0, True)
    done = rollbook("import", "traces", str(tmp_path))
    assert (done.code, done.out.startswith("imported 2 rollouts, 6 spans; 0 unchanged, 0 skipped; ")) == (0, True)
    with file.open("ab") as lines:
        lines.write(b"\n" + trace_line("c")[:40])
    again = rollbook("import", "traces", str(file))
    assert again.code == FAILED
    assert again.out.startswith("imported 0 rollouts, 0 spans; 2 unchanged, 1 skipped; ")
    assert again.err == f"skipped {file}:4: the line is not complete\n"
    report = rollbook("import", "traces", str(file), "--json")
    assert report.code == FAILED
    assert orjson.loads(report.out)["skips"] == [{"place": f"{file}:4", "reason": "the line is not complete"}]


def test_an_import_of_something_else_is_refused_with_the_remedy(rollbook: Rollbook, tmp_path: Path) -> None:
    rollbook("enqueue", "1")
    other = tmp_path / "notes.txt"
    other.write_text("Not a trace.\n")
    refused = rollbook("import", "traces", str(other))
    assert (refused.code, "has no episode and no trace" in refused.err) == (USAGE, True)
    refused = rollbook("import", "traces", str(tmp_path))
    assert (refused.code, "is named traces.jsonl" in refused.err) == (USAGE, True)
    assert rollbook("import", "traces", str(tmp_path / "missing")).code == USAGE
    other.write_bytes(trace_line("a"))
    missing = rollbook("import", "traces", str(other), "--db", f"sqlite:///{tmp_path / 'none.db'}")
    assert missing.code == NOT_FOUND
