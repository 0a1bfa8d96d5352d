"""`rollbook sql` and exports to databases: formats, sources of the statement, and errors in one line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from store.cli.app import app
from store.cli.errors import FAILED, USAGE
from tests.cli.conftest import Filled, Rollbook

STATEMENT = "SELECT rollout_id, reward, x'ff' AS bytes, NULL AS missing FROM rollouts ORDER BY start_time"


def test_rows_are_printed_as_a_table_csv_or_json(rollbook: Rollbook, filled: Filled) -> None:
    row = rollbook("sql", STATEMENT, "--id", filled.retried).table[0]
    assert row == {"rollout_id": filled.retried, "reward": row["reward"], "bytes": "ff", "missing": ""}
    csv = rollbook("sql", STATEMENT, "--format", "csv", "--id", filled.retried).out.splitlines()
    assert csv == ["rollout_id,reward,bytes,missing", f"{filled.retried},{row['reward']},ff,"]
    (document,) = rollbook("sql", STATEMENT, "--format", "json", "--id", filled.retried).json
    assert (document["rollout_id"], document["bytes"], document["missing"]) == (filled.retried, "ff", None)
    assert rollbook("sql", STATEMENT, "--json", "--id", filled.retried).json == [document]
    assert "rollout_id" in rollbook("sql", STATEMENT, terminal=True).out


def test_a_table_that_is_cut_off_says_so(rollbook: Rollbook, filled: Filled) -> None:
    del filled
    cut = rollbook("sql", STATEMENT, "-n", "1")
    assert (len(cut.table), cut.err) == (1, "Only the first 1 rows are printed; --limit -1 prints all.\n")
    assert rollbook("sql", STATEMENT, "-n", "-1").err == ""


def test_a_statement_is_read_from_a_file_or_standard_input(rollbook: Rollbook, filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "one.sql").write_text("-- a comment\nSELECT 1 AS one;\n")
    assert rollbook("sql", str(tmp_path / "one.sql")).table == [{"one": "1"}]
    typed = CliRunner().invoke(app, ["sql", "-", "--db", filled.url], input="SELECT 2 AS two")
    assert (typed.exit_code, typed.stdout) == (0, "two\n2\n")
    (tmp_path / "latin").write_bytes(b"SELECT '\xe9'")
    for name, reason in (("latin", "is not UTF-8"), ("missing", "No such file or directory")):
        failed = rollbook("sql", str(tmp_path / name))
        assert (failed.code, reason in failed.err) == (USAGE, True)


@pytest.mark.parametrize(
    "arguments,reason",
    [
        (["DROP TABLE rollouts"], "statement: it would change tables or settings; write a statement that only reads"),
        (["SELECT 1 AS a, 2 AS a", "--format", "json"], "statement: several columns have one name; name them with AS"),
        (["SELECT count(*) FROM spans", "--timeout", "0.001"], "has no result after 0.001 s; choose fewer rollouts"),
        (["SELEC 1"], 'statement: near "SELEC": syntax error'),
    ],
)
def test_an_error_of_a_statement_is_one_line(
    arguments: list[str], reason: str, rollbook: Rollbook, filled: Filled
) -> None:
    del filled
    failed = rollbook("sql", *arguments)
    assert (failed.code, failed.err.count("\n"), failed.out) == (USAGE, 1, "")
    assert reason in failed.err


def test_tables_are_exported_to_a_sqlite_file(rollbook: Rollbook, filled: Filled, tmp_path: Path) -> None:
    path = str(tmp_path / "views.db")
    arguments = ("export", "sqlite", path, "--tables", "rollouts, attempts", "--id", filled.retried)
    lines = rollbook(*arguments).out.splitlines()
    assert lines[0].startswith(f"exported to {path}: 1 rollouts at position ")
    assert [line.split()[:2] for line in lines[1:]] == [["rollouts", "1"], ["attempts", "2"]]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT rollout_id FROM rollouts").fetchall() == [(filled.retried,)]
    refused = rollbook(*arguments)
    assert (refused.code, "overwrite an export with --overwrite" in refused.err) == (FAILED, True)
    assert rollbook(*arguments, "--overwrite", "--json").json["rows"] == {"rollouts": 1, "attempts": 2}
    wrong = rollbook("export", "postgres", "postgresql://host/database", "--schema", "rollbook_default")
    assert (wrong.code, "cannot begin with rollbook_" in wrong.err) == (USAGE, True)
