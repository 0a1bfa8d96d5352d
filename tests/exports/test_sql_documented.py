"""docs/sql.md: its commands and examples run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from store.cli.app import app

PAGE = Path(__file__).parents[2] / "docs/sql.md"


def test_the_commands_and_examples_of_the_page_run(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    shutil.copy(sqlite_url.removeprefix("sqlite:///"), tmp_path / "run.db")
    (tmp_path / "statement.sql").write_text("SELECT count(*) AS spans FROM spans")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLBOOK_DB", "sqlite:///run.db")
    blocks = re.findall(r"^```(py|console)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    commands = [line for kind, text in blocks if kind == "console" for line in text.splitlines()]
    printed: list[str] = []
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command.removeprefix("$ rollbook ")))
        assert done.exit_code == 0, done.stderr
        printed.append(done.stdout)
    assert (printed[0].count("train"), printed[1].count("What is")) == (2, 3)
    assert printed[3] == '[{"spans":0}]\n'  # ten minutes ago
    capsys.readouterr()
    for example in [text for kind, text in blocks if kind == "py"]:
        exec(example, {})
    query, duckdb = capsys.readouterr().out.split("\n", 1)
    assert "('openai.chat.completion', 0.5)" in query
    assert "double" in duckdb
