"""Run folders on the command line: import, export, mirror, and errors."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Filled, Rollbook
from tests.run_folders.folder_samples import FLOW, RUN, Written, lines, tree
from tests.run_folders.foreign import COMPLETE


def test_a_folder_goes_in_once_and_out_as_it_was(rollbook: Rollbook, tmp_path: Path) -> None:
    folder = Written().write(tmp_path / "in")
    first = rollbook("import-runs", str(tmp_path / "in")).table
    assert [(row["run"], row["outcome"], row["events"], row["checkpoints"]) for row in first] == [
        (RUN, "imported", "6", "4")
    ]
    (again,) = rollbook("import-runs", str(tmp_path / "in"), "--json").json
    assert (again["outcome"], again["rollout_id"]) == ("unchanged", first[0]["rollout"])
    out = rollbook("export-run", first[0]["rollout"], str(tmp_path / "out")).out.strip()
    assert tree(Path(out)) == tree(folder)


def test_imported_run_is_named_by_its_flow(rollbook: Rollbook, tmp_path: Path) -> None:
    COMPLETE.write(tmp_path)
    rollbook("import-runs", str(tmp_path))
    done = rollbook("rerun", FLOW, "--node", "Portfolio Manager", "--scope", "TSDD", "--plan")
    assert (done.code, "runs again  risk; then portfolio" in done.out) == (0, True)


def test_a_rewritten_folder_comes_in_again_when_asked(rollbook: Rollbook, tmp_path: Path) -> None:
    Written(files={}).write(tmp_path)
    rollbook("import-runs", str(tmp_path))
    Written(files={}, events=lines([{"type": "log"}])).write(tmp_path)
    assert [row["outcome"] for row in rollbook("import-runs", str(tmp_path)).table] == ["skipped"]
    assert [row["outcome"] for row in rollbook("import-runs", str(tmp_path), "--again").table] == ["imported"]


def test_damaged_lines_are_warnings_and_refused_folders_an_exit_code(rollbook: Rollbook, tmp_path: Path) -> None:
    folder = Written(events=b'{"type": "log"}\n{"ty').write(tmp_path)
    done = rollbook("import-runs", str(tmp_path))
    assert done.code == 0
    assert f"{folder}: run_events.jsonl:2: is cut off" in done.err
    (folder / "run_meta.json").write_text("{")
    refused = rollbook("import-runs", str(tmp_path))
    assert refused.code == 1
    assert "\trefused\t" in refused.out


def test_import_from_a_directory_without_runs_gives_a_notice(rollbook: Rollbook, tmp_path: Path) -> None:
    done = rollbook("import-runs", str(tmp_path), "--json")
    assert (done.code, done.json) == (0, [])
    assert "contains no run" in done.err


def test_any_rollout_can_be_exported(rollbook: Rollbook, filled: Filled, tmp_path: Path) -> None:
    out = Path(rollbook("export-run", filled.retried, str(tmp_path)).out.strip())
    meta = json.loads((out / "run_meta.json").read_text())
    assert (meta["id"], meta["flow_id"], meta["status"]) == (filled.retried, "night", "completed")


def test_mirror_catches_up_and_prints_the_folders_it_wrote(rollbook: Rollbook, tmp_path: Path) -> None:
    Written().write(tmp_path / "in")
    rollbook("import-runs", str(tmp_path / "in"))
    written = rollbook("mirror", str(tmp_path / "out"), "--once")
    assert (written.code, written.out.count("\n")) == (0, 1)
    assert written.out.strip().endswith(FLOW)
    assert rollbook("mirror", str(tmp_path / "out"), "--once").out == ""
    (tmp_path / "blocked").write_text("a file")
    assert rollbook("mirror", str(tmp_path / "blocked"), "--once").code == 2


def test_a_view_that_is_none_is_usage(rollbook: Rollbook, filled: Filled, tmp_path: Path) -> None:
    done = rollbook("export-run", filled.retried, str(tmp_path), "--view", "first")
    assert done.code == 2
    assert "view" in done.err
