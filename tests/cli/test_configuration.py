"""Options from a configuration file, from the environment and from secret files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Filled, Printed, Rollbook, runner


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rollbook:
    """The command line without ROLLBOOK_DB, unless the test names a store."""

    def run(*arguments: str, db: str | None = None, terminal: bool = False) -> Printed:
        # An empty variable is no variable for the program.
        return runner("", monkeypatch)(*arguments, db=db, terminal=terminal)

    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file that the environment names."""
    path = tmp_path / "rollbook.toml"
    monkeypatch.setenv("ROLLBOOK_CONFIG", str(path))
    return path


def test_a_file_names_the_store_and_sets_options(bare: Rollbook, filled: Filled, file: Path) -> None:
    file.write_text(f'db = "{filled.url}"\n[ls.rollouts]\nlimit = 1\nstatus = ["queuing"]\ndesc = true\n')
    (row,) = bare("ls", "rollouts").table
    assert row["status"] == "queuing"
    assert len(bare("ls", "rollouts", "--limit", "-1").table) == len(filled.waiting)
    # The option `db` of other commands is not affected by the tables of theirs.
    assert bare("stats").code == 0


def test_the_store_may_be_named_before_the_command(
    bare: Rollbook, filled: Filled, make_url: Callable[[str], str]
) -> None:
    table = bare("ls", "rollouts", "--db", filled.url).table
    assert bare("--db", filled.url, "ls", "rollouts").table == table
    assert bare("--db", filled.url, "stats").code == 0
    # The option of the command goes before it.
    assert bare("--db", make_url("missing.db"), "ls", "rollouts", "--db", filled.url).table == table
    assert os.environ["ROLLBOOK_DB"] == ""
    refused = bare("--db", filled.url, "copy", "a", "b")
    assert refused.code == 2
    assert "copy has no option --db" in refused.err


def test_the_environment_goes_before_the_file_and_the_command_line_before_both(
    bare: Rollbook, filled: Filled, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(f'db = "{filled.url}"\n[ls.rollouts]\nlimit = 3\n')
    assert len(bare("ls", "rollouts").table) == 3
    monkeypatch.setenv("ROLLBOOK_LS_ROLLOUTS_LIMIT", "2")
    assert len(bare("ls", "rollouts").table) == 2
    assert len(bare("ls", "rollouts", "--limit", "1").table) == 1
    assert bare("ls", "rollouts", db="sqlite:////nowhere/run.db").code == 5


@pytest.mark.parametrize(
    "text,problem",
    [
        ("prot = 1", "prot is not known"),
        ("[serv]\nport = 1", "serv is not known"),
        ("[stats]\nprot = 1", "[stats] has no option 'prot' (known: db"),
        ("stats = 1", "stats must be a table"),
        ("[ls.rollouts]\nlimti = 1", "[ls.rollouts] has no option 'limti'"),
        ("[ls]\nlimit = 1", "[ls] has no option 'limit' (known: attempts"),
        ("not TOML", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_reported(bare: Rollbook, file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    printed = bare("ls" if "ls" in text else "stats", *(["rollouts"] if "ls" in text else []))
    assert printed.code == 2
    # The frame around the message breaks lines.
    assert problem in " ".join(printed.err.replace("│", " ").split())


def test_a_value_of_a_wrong_type_is_reported(bare: Rollbook, file: Path) -> None:
    file.write_text('[serve]\nport = "many"\n')
    assert bare("serve").code == 2
    file.unlink()
    assert "cannot be read" in bare("stats").err


def test_a_secret_comes_from_a_file(
    bare: Rollbook, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "db"
    secret.write_text(f"{filled.url}\n")
    monkeypatch.setenv("ROLLBOOK_DB_FILE", str(secret))
    assert bare("stats").code == 0
    monkeypatch.setenv("ROLLBOOK_DB_FILE", str(secret))
    assert "both set" in bare("stats", db=filled.url).err
    for content, problem in ((None, "cannot be read"), ("", "is empty")):
        monkeypatch.setenv("ROLLBOOK_DB_FILE", str(secret))
        secret.unlink()
        if content is not None:
            secret.write_text(content)
        printed = bare("stats")
        assert (printed.code, problem in printed.err) == (2, True)
        secret.touch()


@pytest.mark.parametrize("name", ["serve", "runner", "mirror"])
def test_the_help_leaves_out_the_variables_of_options(bare: Rollbook, name: str) -> None:
    text = bare(name, "--help").out
    assert f"ROLLBOOK_{name.upper()}_" not in text
