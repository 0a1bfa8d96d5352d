"""Only `demo` and `migrate` create a store; other commands name the command that creates one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from tests.cli.conftest import COMMAND, ON_BOTH, Filled, Rollbook, execute, runner

READING = [
    ("ls", "rollouts"),
    ("ls", "attempts", "ro-1"),
    ("ls", "spans", "ro-1"),
    ("ls", "resources"),
    ("ls", "workers"),
    ("show", "ro-1"),
    ("history", "ro-1"),
    ("tail",),
    ("stats",),
    ("verify",),
    ("rebuild",),
    ("seal", "never.seal"),
]


@pytest.fixture
def at_revision(filled: Filled) -> Iterator[Callable[[str], None]]:
    """A function that makes the filled store look like that of another version, until the test is over."""
    (revision,) = execute(filled.url, "SELECT version_num FROM alembic_version")

    def change(other: str) -> None:
        execute(filled.url, f"UPDATE alembic_version SET version_num = '{other}'")

    yield change
    # Its neighbours in the database are migrated by other tests, and it with them.
    execute(filled.url, f"UPDATE alembic_version SET version_num = '{revision}'")


@pytest.mark.new_partition
@ON_BOTH
def test_reading_never_creates_a_store_and_says_how_to(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rollbook = runner(durable_url, monkeypatch)
    for command in READING:
        printed = rollbook(*command)
        assert (printed.code, printed.out) == (5, ""), command
        assert "rollbook migrate" in printed.err
    assert list(tmp_path.iterdir()) == []
    assert rollbook("stats").code == 5


@pytest.mark.new_partition
@ON_BOTH
def test_migrate_makes_an_empty_store_and_leaves_one_alone(durable_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rollbook = runner(durable_url, monkeypatch)
    result = rollbook("migrate", "--json").json
    assert (result[0]["before"], result[0]["copy"]) == (None, None)
    again = rollbook("migrate")
    assert again.code == 0
    assert f"already at revision {result[0]['after']}" in again.out
    assert rollbook("stats", "--json").json["events"] == 0
    assert rollbook("ls", "rollouts").table == []
    assert rollbook("tail").table == []
    assert rollbook("verify").code == 0


@pytest.mark.slow
def test_the_default_is_a_file_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "ROLLBOOK_DB"}
    done = subprocess.run(
        [*COMMAND, "migrate"],
        check=True,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert "created" in done.stdout
    assert (tmp_path / "rollbook.db").exists()


def test_a_role_is_for_postgres_only(make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = runner(make_url("a.db"), monkeypatch)("migrate", "--app-role", "app")
    assert printed.code == 2
    assert "app_role" in printed.err


@pytest.mark.postgres
def test_a_role_that_does_not_exist_is_not_found(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = runner(postgres_url, monkeypatch)("migrate", "--app-role", "nobody_of_this_name")
    assert printed.code == 5
    assert "nobody_of_this_name" in printed.err


@pytest.mark.new_partition
@pytest.mark.postgres
def test_a_role_is_let_in_but_not_to_change_the_log(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rollbook = runner(postgres_url, monkeypatch)
    role = f"role_{uuid4().hex[:8]}"
    execute(postgres_url, f"CREATE ROLE {role}")
    assert rollbook("migrate", "--app-role", role).code == 0

    def may(table: str, right: str) -> bool:
        return execute(postgres_url, f"SELECT has_table_privilege('{role}', '{table}', '{right}')") == ["t"]

    assert may("events", "INSERT")
    assert not may("events", "UPDATE")
    assert may("rollouts", "UPDATE")


@ON_BOTH
def test_a_store_that_is_behind_is_left_as_it_is_and_the_cure_named(
    *,
    rollbook: Rollbook,
    filled: Filled,
    at_revision: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    at_revision("0000")
    files = set(tmp_path.iterdir())
    for command in READING:
        printed = rollbook(*command)
        assert (printed.code, printed.out) == (1, ""), command
        assert "rollbook migrate --db" in printed.err
    assert execute(filled.url, "SELECT version_num FROM alembic_version") == ["0000"]
    assert set(tmp_path.iterdir()) <= files | {Path(f"{path}{side}") for path in files for side in ("-wal", "-shm")}


def test_a_store_that_is_ahead_asks_for_a_newer_rollbook(
    rollbook: Rollbook, at_revision: Callable[[str], None]
) -> None:
    at_revision("9999")
    printed = rollbook("ls", "rollouts")
    assert (printed.code, printed.out) == (1, "")
    assert "pip install --upgrade rollbook" in printed.err


@pytest.mark.slow
def test_the_demo_runs_on_the_database_and_with_the_runners_named(
    make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # The documents are parsed once, for all tests and test runs.
    pytest_cache: pytest.Cache = request.config.cache  # pyright: ignore[reportAssignmentType]  None only without plugin
    cache = pytest_cache.mkdir("doc-search")
    url = make_url("demo.db")
    arguments = ["demo", "--db", url, "--runners", "2", "--seed", "5"]
    demo = subprocess.Popen(
        [*COMMAND, *arguments],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        rollbook = runner(url, monkeypatch)
        deadline = time.monotonic() + 250
        # Two runners, and what multiprocessing tidies up with.
        while len(psutil.Process(demo.pid).children()) < 3:
            assert demo.poll() is None, demo.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(demo.pid, signal.SIGINT)
        _, said = demo.communicate(timeout=250)
        assert demo.returncode == 130
        assert "Traceback" not in said
        assert "interrupted: finished rollouts are kept" in said
        assert rollbook("verify").code == 0
    finally:
        demo.kill()
        demo.wait()
