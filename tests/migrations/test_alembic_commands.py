"""Alembic's command line creates, describes, upgrades and downgrades stores that every command accepts."""

from __future__ import annotations

import asyncio
import io
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from alembic.config import CommandLine
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from store.db.schema.history import HEAD
from tests import databases, postgres

ROOT = Path(__file__).parents[2]
BEFORE_HEAD = f"{int(HEAD) - 1:04}"
pytestmark = [pytest.mark.slow, pytest.mark.new_partition]


@pytest.fixture
def ini(tmp_path: Path) -> str:
    """A copy of the configuration and the revisions, to which a test may add one."""
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    return str(shutil.copy(ROOT / "alembic.ini", tmp_path))


def run(ini: str, url: str | None, *arguments: str) -> str:
    """Run an alembic command on a database; return what it prints, with FAILED in it if it fails."""
    printed = io.StringIO()
    with redirect_stderr(printed), redirect_stdout(printed), suppress(SystemExit):
        CommandLine().main(["-c", ini, *([] if url is None else ["-x", f"db={url}"]), *arguments])
    return printed.getvalue()


def current(ini: str, url: str) -> str:
    """Return the revision that alembic prints, in a process as a user starts it."""
    command = [sys.executable, "-m", "alembic", "-c", ini, "-x", f"db={url}", "current"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


async def revision_of(url: str) -> str:
    database = await databases.connect(url)
    try:
        ((revision,),) = await database.rows("SELECT version_num FROM alembic_version")
        return revision
    finally:
        await database.close()


def accepts(url: str) -> bool:
    """Return whether Rollbook's commands accept a store."""
    commands: list[list[str]] = [["stats"], ["verify"], ["ls", "rollouts"]]
    return [CliRunner().invoke(app, [*command, "--db", url]).exit_code for command in commands] == [0, 0, 0]


async def draw(url: str) -> None:
    """Record an event that only the newest revision can read."""
    async with await open_store(url) as store:
        rollout = await store.enqueue_rollout("task")
        assert await store.get_next_span_sequence_id(rollout.rollout_id, "any") == 1


async def annotate(url: str) -> None:
    """Record an event for which revision 0006 added a table."""
    async with await open_store(url) as store:
        rollout = await store.enqueue_rollout("task")
        await store.annotations.annotate(rollout.rollout_id, add_labels=["odd"])


def test_a_new_store_is_accepted_by_every_command_and_may_be_downgraded(durable_url: str, ini: str) -> None:
    run(ini, durable_url, "upgrade", "head")
    assert asyncio.run(revision_of(durable_url)) == HEAD
    assert accepts(durable_url)

    # Each revision has a downgrade.
    assert "FAILED" not in run(ini, durable_url, "downgrade", "base")
    run(ini, durable_url, "upgrade", "head")
    run(ini, durable_url, "downgrade", "-1")
    assert asyncio.run(revision_of(durable_url)) == BEFORE_HEAD
    run(ini, durable_url, "upgrade", "head")
    asyncio.run(draw(durable_url))
    assert "FAILED" not in run(ini, durable_url, "downgrade", "0007")
    refused = run(ini, durable_url, "downgrade", "-1")
    assert "FAILED: the log contains 1 events that revision 0006 cannot read" in refused
    run(ini, durable_url, "upgrade", "head")
    assert accepts(durable_url)


def test_a_store_with_annotations_may_be_downgraded_to_the_revision_that_added_them(durable_url: str, ini: str) -> None:
    asyncio.run(annotate(durable_url))
    assert "FAILED" not in run(ini, durable_url, "downgrade", "0006")
    refused = run(ini, durable_url, "downgrade", "-1")
    assert "FAILED: the log contains 1 events that revision 0005 cannot read" in refused
    run(ini, durable_url, "upgrade", "head")
    assert accepts(durable_url)


def test_a_store_of_rollbook_needs_no_revision(durable_url: str, ini: str, tmp_path: Path) -> None:
    asyncio.run(annotate(durable_url))
    run(ini, durable_url, "upgrade", "head")
    run(ini, durable_url, "revision", "--autogenerate", "-m", "nothing", "--rev-id", "9999")
    script = (tmp_path / "migrations" / "versions" / "9999_nothing.py").read_text()
    assert "op.add" not in script
    assert "op.create" not in script
    assert script.count("    pass\n") == 2


def test_the_environment_names_the_database(tmp_path: Path, ini: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    monkeypatch.setenv("ROLLBOOK_DB", url)
    run(ini, None, "upgrade", "head")
    assert accepts(url)
    assert current(ini, url) == f"{HEAD} (head)"


def test_commands_at_the_same_time_create_one_store(durable_url: str, ini: str) -> None:
    command = [sys.executable, "-m", "alembic", "-c", ini, "-x", f"db={durable_url}", "upgrade", "head"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
    outputs = [process.communicate()[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * 2, outputs
    assert accepts(durable_url)


def test_sql_of_a_new_store_is_printed(durable_url: str, ini: str, tmp_path: Path) -> None:
    script = run(ini, durable_url, "upgrade", "head", "--sql")
    if durable_url.startswith("sqlite"):
        assert not (tmp_path / "rollbook.db").exists()
        with closing(sqlite3.connect(tmp_path / "rollbook.db")) as connection:
            connection.executescript(script)
    else:
        postgres.execute(durable_url, script)
    assert accepts(durable_url)
    assert "FAILED: --sql can only print the creation" in run(ini, durable_url, "upgrade", "0001:head", "--sql")
    assert "FAILED: --sql can only print the creation" in run(ini, durable_url, "downgrade", "head:0001", "--sql")


def test_malformed_url_is_refused_in_one_line(ini: str) -> None:
    refused = run(ini, "postgresql://u:S3cret#1@h/db", "upgrade", "head")
    assert "FAILED: url: the URL of Postgres is invalid" in refused
    assert "S3cret" not in refused


def test_errors_name_the_missing_database(tmp_path: Path, ini: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLBOOK_DB", raising=False)
    assert "FAILED: no database is given; write alembic -x db=sqlite:///run.db" in run(ini, None, "current")
    missing = f"sqlite:///{tmp_path / 'none.db'}"
    assert f"FAILED: there is no store at {missing}; create it: alembic -x db=" in run(ini, missing, "current")
    assert not (tmp_path / "none.db").exists()
    assert "FAILED: memory:// has no schema to migrate" in run(ini, "memory://", "upgrade", "head")
