"""`diagnose`: each check detects its problem, names a remedy, and changes nothing."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from resource import RLIM_INFINITY
from typing import Any

import pytest

from store import Invalid, open_store
from store.db.schema import migrate, sqlite_place
from store.db.url import parse
from store.models import RolloutConfig
from store.operations import CheckResult, Diagnosis, diagnose
from store.operations.doctor.machine import clocks, open_files
from store.operations.doctor.postgres import free_connections
from store.operations.doctor.run import CHECKS
from store.operations.doctor.sqlite import disk_space, version
from store.runtime.clock import MICROSECONDS, system_clock
from store.server.auth.keyring import KeyRing
from store.sql.api_keys import Keys
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.wire import probe
from tests import databases, postgres
from tests.client.served import Served
from tests.journal.database_helpers import run_sql
from tests.server.test_fast_path import serving


@pytest.fixture
def port() -> int:
    """A port on which no program listens."""
    return postgres.free_port()


@pytest.fixture
async def small(durable_url: str) -> str:
    """The URL of a store with one rollout and one worker, on each durable database."""
    async with await open_store(durable_url) as store:
        await store.enqueue_rollout("first")
        await store.update_worker("w1", {"load": 0.5})
    return durable_url


async def checked(url: str, name: str, **options: Any) -> CheckResult:
    """Return the result of one check."""
    return results(await diagnose(url, **options))[name]


def results(diagnosis: Diagnosis) -> dict[str, CheckResult]:
    by_name = {check.name: check for check in diagnosis.checks}
    assert len(by_name) == len(diagnosis.checks)
    assert all((check.outcome in {"warning", "problem"}) == bool(check.remedy) for check in diagnosis.checks)
    assert all((check.outcome == "problem") == bool(check.problem) for check in diagnosis.checks)
    return by_name


async def test_a_sound_store_has_no_problem_and_is_not_changed(small: str, port: int) -> None:
    database = await databases.connect(small)
    before = await databases.read_log(database)
    diagnosis = await diagnose(small, port=port)
    assert await databases.read_log(database) == before
    await database.close()
    assert diagnosis.problems == []
    # The suite's Postgres does not wait for the disk.
    assert {check.name for check in diagnosis.checks if check.outcome != "ok"} <= {"durability"}
    kind = parse(small).scheme
    assert list(results(diagnosis)) == [check.name for check in CHECKS if check.kind in {None, kind, "database"}]
    assert "rollbook verify --db" in results(diagnosis)["log and tables"].found


@pytest.mark.new_partition
async def test_a_missing_store_is_a_problem_and_is_not_created(durable_url: str) -> None:
    for _ in range(2):
        diagnosis = await diagnose(durable_url)
        assert {problem.problem for problem in diagnosis.problems} == {"missing"}
        assert len(diagnosis.problems) == 1
        assert str(diagnosis.problems[0].remedy).startswith("rollbook migrate --db ")
        assert results(diagnosis)["guards"].outcome == "skipped"
        assert results(diagnosis)["open files"].outcome != "skipped"
    path = parse(durable_url).path
    assert path is None or list(path.parent.iterdir()) == []


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    check = await checked(f"sqlite:///{tmp_path}/none/run.db", "file")
    assert (check.problem, check.remedy) == ("missing", f"make it first: mkdir -p '{tmp_path}/none'")


# `migrate` in other tests upgrades all partitions of the database, so a damaged one needs a database of its own.
@pytest.mark.own_database
@pytest.mark.parametrize(
    "revision,remedy", [("0001", "run: rollbook migrate --db"), ("9999", "upgrade Rollbook: pip install --upgrade")]
)
async def test_another_revision_of_the_schema_is_a_problem(small: str, revision: str, remedy: str) -> None:
    await run_sql(small, f"UPDATE alembic_version SET version_num = '{revision}'")
    check = await checked(small, "schema")
    assert (check.outcome, check.problem) == ("problem", "other")
    assert revision in check.found
    assert str(check.remedy).startswith(remedy)


async def test_a_missing_trigger_is_damage(small: str) -> None:
    is_sqlite = parse(small).path is not None
    trigger = "events_refuse_update" if is_sqlite else "refuse_change ON events"
    if not is_sqlite:
        names = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'events'::regclass AND NOT tgisinternal LIMIT 1"
        database = await databases.connect(small)
        ((name,),) = await database.rows(names)
        await database.close()
        trigger = f"{name} ON events"
    await run_sql(small, f"DROP TRIGGER {trigger}")
    check = await checked(small, "guards")
    assert check.problem == "damage"
    assert "table events: trigger" in check.found
    assert "is missing" in check.found


async def test_a_sequence_behind_the_log_is_damage(small: str) -> None:
    behind = (
        "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'events'"
        if parse(small).path is not None
        else "SELECT setval('event_seq', 1, false)"
    )
    await run_sql(small, behind)
    check = await checked(small, "sequences")
    is_sqlite = parse(small).path is not None
    name = "sqlite_sequence events" if is_sqlite else f"rollbook_{parse(small).partition}.event_seq"
    assert (check.problem, check.found) == ("damage", f"the sequence {name} is at 0, and the log is at 2")
    assert check.remedy == (
        "the next write repairs it" if is_sqlite else f"as its owner, run: SELECT setval('{name}', 2)"
    )


async def test_a_row_that_is_missing_is_damage(small: str) -> None:
    await run_sql(small, "DELETE FROM workers")
    check = await checked(small, "log and tables")
    assert (check.problem, check.found) == ("damage", "the table workers has 0 rows, but the log counts 1")
    assert "rollbook rebuild --db" in str(check.remedy)


VERIFIED = (
    "INSERT INTO operation_runs (operation, attempted_at, runs, failures, started_at, ended_at, commit_id, differences)"
    " VALUES ('verify', 1, 1, 0, 1, {}, 2, 3)"
)


async def test_a_failed_verification_stays_a_problem(small: str) -> None:
    await run_sql(small, VERIFIED.format(1_750_000_000 * MICROSECONDS))
    check = await checked(small, "last verification")
    assert check.problem == "damage"
    assert check.found == "the store was last verified at 2025-06-15T15:06:40Z, and 3 differences were found"


@pytest.mark.own_database
async def test_a_check_that_fails_is_a_problem_and_the_others_are_made(small: str) -> None:
    await run_sql(small, "ALTER TABLE operation_runs RENAME TO renamed")
    checks = results(await diagnose(small))
    assert checks["last verification"].outcome == "problem"
    assert "operation_runs" in checks["last verification"].found
    assert [name for name, check in checks.items() if check.outcome == "skipped"] == []
    if parse(small).path is not None:
        await run_sql(small, "ALTER TABLE renamed RENAME TO operation_runs")
        await run_sql(small, VERIFIED.format("'yesterday'"))
        wrong = await checked(small, "last verification")
        assert wrong.found.startswith("the check failed with TypeError: ")


async def test_overdue_attempts_and_a_queue_without_workers_are_found(durable_url: str) -> None:
    clock = ManualClock()
    async with await open_store(durable_url, clock=clock) as store:
        for number in range(3):
            await store.enqueue_rollout(number, config=RolloutConfig(timeout_seconds=5))
        await store.dequeue_rollout("w1")
    checks = results(await diagnose(durable_url))
    assert checks["running attempts"].outcome == "warning"
    assert checks["running attempts"].found == "1 rollout has an attempt that has been overdue for more than a minute"
    assert str(checks["running attempts"].remedy).endswith(f"rollbook serve {option(durable_url)}")
    assert checks["queue"].outcome == "warning"
    assert checks["queue"].found.startswith("2 rollouts wait, the first for ")
    assert str(checks["queue"].remedy) == f"rollbook runner AGENT {option(durable_url)}"


@pytest.mark.parametrize("ago", [120, 200_000])
async def test_an_attempt_of_a_lost_worker_is_found(durable_url: str, ago: int) -> None:
    clock = ManualClock(system_clock() - ago * MICROSECONDS)
    async with await open_store(durable_url, clock=clock) as store:
        await store.enqueue_rollout(1)
        await store.dequeue_rollout("w1")
        await store.update_worker("w1", {"heartbeat_interval": 1})
    check = await checked(durable_url, "running attempts")
    assert (check.outcome, check.found) == ("warning", "1 attempt belongs to a worker without a heartbeat")


async def test_missing_heartbeats_of_workers_are_reported(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await store.update_worker("beats")
        await store.dequeue_rollout("polls")
        await store.enqueue_rollout("first")
        assert await store.dequeue_rollout("claims") is not None
        # These workers never sent a heartbeat.
        await store.start_rollout("second", worker_id="starts")
        third = await store.start_rollout("third")
        await store.update_attempt(third.rollout_id, third.attempt.attempt_id, worker_id="ends", status="succeeded")
    assert (await checked(durable_url, "heartbeats")).outcome == "ok"
    await run_sql(durable_url, "DELETE FROM worker_signals")
    async with await open_store(durable_url) as store:
        assert (await store.log.verify()).ok
    result = await checked(durable_url, "heartbeats")
    assert result.outcome == "warning"
    assert result.found == "3 workers lack their rows in worker_signals: beats, claims, polls"


async def test_a_log_from_the_future_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ahead.db'}"
    async with await open_store(url, clock=ManualClock(system_clock() + 3600 * MICROSECONDS)) as store:
        await store.enqueue_rollout(1)
    check = await checked(url, "time of the log")
    assert check.outcome == "warning"
    assert "s in the future" in check.found


def option(url: str) -> str:
    return f"--db {url}" if "?" not in url else f"--db '{url}'"


async def test_a_file_that_is_no_database_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("these are my notes, and they are long enough to be a page" * 100)
    checks = results(await diagnose(f"sqlite:///{path}"))
    assert (checks["file"].problem, checks["schema"].outcome) == ("other", "skipped")
    assert checks["file"].found == f"{path} is not a SQLite database"


async def test_second_hard_link_of_a_file_is_a_problem(full: str) -> None:
    path = Path(full.removeprefix("sqlite:///"))
    path.with_name("second.db").hardlink_to(path)
    file = await checked(full, "file")
    assert (file.outcome, file.problem) == ("problem", "other")
    assert file.found.startswith(f"the file {path} has 2 names (hard links), so commits may be lost")
    assert "find / -xdev -samefile" in str(file.remedy)


async def test_a_network_file_system_is_a_problem(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_text(f"/dev/sda / ext4 rw 0 0\nhost:/ {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(sqlite_place, "MOUNTS", tmp_path / "mounts")
    checks = results(await diagnose(full))
    assert checks["file system"].outcome == "problem"
    assert "a network file system (nfs4)" in checks["file system"].found
    assert checks["schema"].outcome == "skipped"


async def test_the_journal_mode_and_a_long_log_are_found(full: str) -> None:
    path = parse(full).path
    assert path is not None
    log = path.with_name(f"{path.name}-wal")
    log.touch()
    os.truncate(log, 70_000_000)
    check = await checked(full, "write-ahead log")
    assert (check.outcome, "has 70.0 MB" in check.found) == ("warning", True)
    assert "wal_checkpoint(TRUNCATE)" in str(check.remedy)
    log.unlink()
    await run_sql(full, "PRAGMA journal_mode = DELETE")
    check = await checked(full, "write-ahead log")
    assert (check.outcome, "the journal mode is delete" in check.found) == ("warning", True)


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Without it, permissions do not apply to a suite that runs as root."""
    if os.geteuid() != 0:
        yield
        return
    # Only the real user matters to `access`; the effective user can return to what it was.
    os.setreuid(pwd.getpwnam("nobody").pw_uid, 0)
    yield
    os.setreuid(0, 0)


@pytest.mark.usefixtures("ordinary_user")
async def test_a_file_that_cannot_be_written_is_a_problem(full: str) -> None:
    path = parse(full).path
    assert path is not None
    path.chmod(0o444)
    check = await checked(full, "permission")
    assert check.found == f"the file {path} is read-only for this user"
    assert (check.outcome, check.remedy) == ("problem", f"chmod u+w {path} {path.parent}")


@pytest.mark.parametrize(
    "check,outcome",
    [
        (disk_space(10**12, 10**9), "ok"),
        (disk_space(10**9, 10**10), "warning"),
        (disk_space(10**6, 10**5), "problem"),
        (version((3, 34, 1)), "problem"),
        (version((3, 35, 0)), "ok"),
        (open_files(20_000, RLIM_INFINITY), "ok"),
        (open_files(1024, 4096), "ok"),
        (open_files(256, 65_536), "warning"),
        (open_files(1024, 1024), "warning"),
        (free_connections(100, 90), "ok"),
        (free_connections(100, 91), "warning"),
        (clocks(10.0, 9.0, 11.0, 1.0), "ok"),
        (clocks(12.0, 9.0, 11.0, 1.0), "ok"),
        (clocks(12.1, 9.0, 11.0, 1.0), "warning"),
        (clocks(7.9, 9.0, 11.0, 1.0), "warning"),
    ],
)
def test_the_limits_between_outcomes(check: Any, outcome: str) -> None:
    assert check.outcome == outcome
    assert (check.remedy is None) == (outcome == "ok")


async def test_harmful_settings_are_found(postgres_database: Callable[..., str]) -> None:
    url = postgres_database(synchronous_commit="off", statement_timeout="5s", idle_session_timeout="10s")
    async with await open_store(url):
        pass
    checks = results(await diagnose(url))
    assert checks["timeouts"].outcome == "warning"
    assert "idle_session_timeout = 10000 ms, statement_timeout = 5000 ms" in checks["timeouts"].found
    assert 'ALTER ROLE "postgres" SET idle_session_timeout = 0' in str(checks["timeouts"].remedy)
    assert checks["durability"].outcome == "warning"
    assert "synchronous_commit" in checks["durability"].found


async def test_the_rights_of_roles(postgres_database: Callable[..., str]) -> None:
    url = postgres.with_partition(postgres_database(), "default")
    async with await open_store(url):
        pass
    role = f"app_{parse(url).text.split('/')[-1][:8]}"
    as_role = url.replace("postgres@", f"{role}@")
    usage = f"GRANT USAGE ON SCHEMA rollbook_default TO {role}"
    postgres.execute(
        url,
        f"CREATE ROLE {role} LOGIN; {usage}; GRANT SELECT ON ALL TABLES IN SCHEMA rollbook_default"
        f" TO {role}; GRANT SELECT ON ALL SEQUENCES IN SCHEMA rollbook_default TO {role}",
    )
    try:
        reader = await checked(as_role, "role")
        assert reader.problem == "other"
        assert str(reader.remedy).endswith(f"--app-role '{role}'")
        await migrate(url, app_role=role)
        app = await checked(as_role, "role")
        assert (app.outcome, app.found) == ("ok", f"the role {role} can append to the log, and cannot change it")
        postgres.execute(url, f"GRANT UPDATE ON rollbook_default.events TO {role}")
        assert (await checked(as_role, "role")).outcome == "warning"
        assert "owns the log" in (await checked(url, "role")).found
    finally:
        postgres.execute(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_replica_is_examined_too() -> None:
    with postgres.PostgresServer.start(wal_level="replica", max_wal_senders="2") as primary:
        async with await open_store(primary.url) as store:
            await store.enqueue_rollout(1)
        with primary.replica() as replica:
            diagnosis = await diagnose(replica.url)
    assert diagnosis.problems == []
    assert "is a replica" in results(diagnosis)["Postgres server"].found


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://rollbook:s3cret@127.0.0.1:1/none",
        "postgresql://rollbook@127.0.0.1:1/none?password=s3cret",
        "postgresql://rollbook@127.0.0.1:1/none?direct=postgresql%3A%2F%2Fu%3As3cret%40127.0.0.1%3A1%2Fnone",
    ],
)
async def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_shown(url: str) -> None:
    diagnosis = await diagnose(url)
    assert [(problem.name, problem.problem) for problem in diagnosis.problems] == [("connection", "unavailable")]
    assert str(diagnosis.problems[0].remedy).endswith("pg_isready -h 127.0.0.1 -p 1")
    assert "s3cret" not in diagnosis.model_dump_json()


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """The URL of a server that requires a key, and a key."""
    url = f"sqlite:///{tmp_path / 'keyed.db'}"
    async with await SQLStore.open(url) as store:
        keys = await Keys.open(url, create=True)
        _, key = await keys.create("reader")
        await keys.enforce()
        await keys.close()
        ring = await KeyRing.open(url)
        async with serving(store, ring=ring) as served:
            host, number = served.address
            yield f"http://{host}:{number}", key
        await ring.close()


async def test_a_server_is_examined_with_and_without_a_key(keyed: tuple[str, str]) -> None:
    url, key = keyed
    diagnosis = await diagnose(url, api_key=key)
    assert {check.outcome for check in diagnosis.checks} == {"ok"}
    assert list(results(diagnosis)) == ["server", "server database", "access", "version", "clock", "open files"]
    for wrong in (None, "rbk_0123456789_secret"):
        refused = results(await diagnose(url, api_key=wrong))
        assert (refused["access"].problem, refused["version"].outcome) == ("other", "skipped")
        assert "ROLLBOOK_API_KEY" in str(refused["access"].remedy)
        assert "secret" not in refused["access"].found


async def test_a_partition_or_a_server_that_is_not_there() -> None:
    with Served() as served:
        missing = await checked(f"{served.url}/p/none", "server")
        assert (missing.problem, missing.found) == ("missing", f"the server at {served.url} has no partition none")
        assert missing.remedy == f"rollbook partitions create none --db {served.url}"
        elsewhere = await checked(f"{served.url}/somewhere", "server")
        assert (elsewhere.problem, "not a Rollbook server" in elsewhere.found) == ("missing", True)
    gone = await diagnose(served.url)
    assert [(problem.name, problem.problem) for problem in gone.problems] == [("server", "unavailable")]


async def test_the_program_that_holds_the_port_is_named(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        number = listener.getsockname()[1]
        check = await checked(full, "port", port=number)
        assert check.outcome == "warning"
        assert f"a program that does not speak HTTP listens on port {number}" in check.found
        assert f"process {os.getpid()}" in check.found
        assert str(check.remedy).endswith(f"rollbook serve --port {number + 1}")
    monkeypatch.setattr(probe, "_PROBE_SECONDS", 60.0)
    with Served() as served:
        number = int(served.url.rpartition(":")[2])
        assert (await checked(full, "port", port=number)).outcome == "ok"
    assert "port" not in [row.name for row in (await diagnose(full, port=None)).checks]


@pytest.mark.parametrize("url", ["memory://", "mysql://host/db", "rollbook.db", "sqlite:///a.db?durable=yes"])
async def test_a_url_that_is_not_that_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        await diagnose(url)
