"""`rollbook export`: options select rollouts and tables, and errors state the remedy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import orjson
import pytest

from store.cli.errors import FAILED, NOT_FOUND, USAGE
from tests.atif.foreign import TRAJECTORY
from tests.cli.conftest import Filled, Rollbook


def test_an_export_prints_its_position_and_the_rows_of_its_tables(
    rollbook: Rollbook, filled: Filled, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    done = rollbook("export", "jsonl", out, "--tables", "rollouts, spans", "--id", filled.retried)
    assert done.code == 0
    first, *tables = done.out.splitlines()
    assert first.startswith(f"exported to {out}: 1 rollouts at position ")
    assert [line.split()[:2] for line in tables] == [["rollouts", "1"], ["spans", tables[1].split()[1]]]
    lines = (tmp_path / "out" / "rollouts" / "part-00000.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["rollout_id"] for line in lines] == [filled.retried]
    refused = rollbook("export", "jsonl", out, "--tables", "rollouts,spans", "--id", filled.retried)
    assert (refused.code, "overwrite it with --overwrite" in refused.err) == (FAILED, True)
    again = rollbook("export", "sft", out, "--overwrite", "--json").json
    assert (again["format"], again["rows"].keys()) == ("sft", {"conversations"})


def test_splits_and_redactions_are_options(rollbook: Rollbook, filled: Filled, tmp_path: Path) -> None:
    del filled
    options = ("--split", "train=0.5", "--split", "val=0.5", "--redact", "input", "--redact", "metadata")
    done = rollbook("export", "jsonl", str(tmp_path / "out"), *options, "--as-at", "3", "--json")
    assert (done.code, done.json["position"] <= 3) == (0, True)
    rows = [
        orjson.loads(line)
        for file in (tmp_path / "out" / "rollouts").iterdir()
        for line in file.read_bytes().splitlines()
    ]
    assert rows
    assert all(row["input"] is None for row in rows)


@pytest.mark.parametrize(
    "options,problem",
    [
        (["--split", "train"], "'train' is not NAME=FRACTION"),
        (["--tables", "nothing"], "tables: 'nothing' is not a table; the tables are rollouts, attempts"),
        (["--split-by", "status"], "split_by: 'status' is not one of group, step, mode"),
        (["--redact", "nothing"], "redact: 'nothing' is no field"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_option_is_a_usage_error(
    options: list[str], problem: str, rollbook: Rollbook, filled: Filled, tmp_path: Path
) -> None:
    del filled
    failed = rollbook("export", "jsonl", str(tmp_path / "out"), *options)
    assert failed.code == USAGE
    assert problem in " ".join(failed.err.replace("│", " ").split())


def test_an_export_to_parquet_without_pyarrow_names_the_extra(
    rollbook: Rollbook, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del filled
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    failed = rollbook("export", "parquet", str(tmp_path / "out"))
    assert (failed.code, "pip install 'rollbook[export]'" in failed.err) == (USAGE, True)


def test_log_is_exported_and_imported(rollbook: Rollbook, filled: Filled, tmp_path: Path) -> None:
    out, target = str(tmp_path / "out"), f"sqlite:///{tmp_path / 'new.db'}"
    proof = rollbook("verify", "--json").json
    exported = rollbook("export", "log", out)
    first, *lines = exported.out.splitlines()
    assert (exported.code, lines) == (0, [f"store id    {proof['store_id']}", f"chain head  {proof['chain_head']}"])
    assert first.startswith(
        f"exported to {out}: {proof['events']} events up to position {proof['last_position']}, commit"
        f" {proof['commits']}; 2 files with "
    )
    refused = rollbook("export", "log", out)
    assert (refused.code, "overwrite it with --overwrite" in refused.err) == (FAILED, True)
    assert rollbook("export", "log", out, "--overwrite", "--json").json["chain_head"] == proof["chain_head"]
    imported = rollbook("import", "log", out, db=target)
    assert imported.code == 0, imported.err
    assert imported.out.startswith(f"imported to {target}: {proof['events']} events up to position ")
    assert imported.out.splitlines()[1:] == [
        *lines,
        f"state hash  {proof['state_hash']}",
        "verified: the log is intact, and every table matches it",
    ]
    assert rollbook("show", filled.retried, db=target).code == 0
    assert rollbook("import", "log", out, db=target).code == FAILED


def test_the_commands_of_the_page_about_atif_export_and_import_documents(
    rollbook: Rollbook, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs/atif.md"
    exporting, importing = (
        [filled.url if word == "sqlite:///run.db" else word for word in shlex.split(line)]
        for line in re.findall(r"^\$ rollbook (.*)$", page.read_text(), re.MULTILINE)
    )
    exported = rollbook(*exporting, "--status", "succeeded", "--rows-per-file", "1", "--json").json
    assert (exported["rollouts"], exported["rows"]) == (1, {"trajectories": 2})
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "trajectory.json").write_bytes(orjson.dumps(TRAJECTORY))
    assert rollbook("migrate", db=importing[-1]).code == 0
    dry = rollbook(*importing, "--dry-run", "--json").json
    done = rollbook(*importing, "--json").json
    assert (dry["imported"], done["imported"], done["spans"]) == (2, 2, dry["spans"])
    (jobs / "broken.json").write_text('{"schema_version": "ATIF-v1.7"}')
    again = rollbook(*importing)
    assert (again.code, "2 unchanged, 1 skipped" in again.out) == (FAILED, True)
    assert "jobs/broken.json: document: agent: Field required" in again.err
    missing = rollbook("import", "atif", "nowhere")
    assert (missing.code, "nowhere" in missing.err) == (NOT_FOUND, True)
