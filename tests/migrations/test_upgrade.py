"""Upgrades of a database from one revision to the next, with a revision that exists only in these tests."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from store.db.schema import HEAD, lock_key, migrate, prepare_postgres, prepare_sqlite
from store.db.schema import history as schema_history
from store.db.schema.postgres import PREFIX
from store.db.url import parse
from store.errors import Incompatible, Invalid, NotFound
from tests import databases, postgres
from tests.client.server_process import ServerProcess

NEXT = f"{int(HEAD) + 1:04}"
ADDS_A_COLUMN = 'op.add_column("rollouts", sa.Column("colour", sa.Text()))'
FAILS_HALF_WAY = f'{ADDS_A_COLUMN}; op.execute("SELECT * FROM no_such_table")'

Next = Callable[[str], None]


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Next:
    """A function that makes this program one revision newer, given what the new revision does."""
    directory = tmp_path / "migrations"
    shutil.copytree(schema_history.MIGRATIONS, directory, ignore=shutil.ignore_patterns("__pycache__"))

    def release(upgrade: str) -> None:
        (directory / "versions" / f"{NEXT}_next.py").write_text(
            f'import sqlalchemy as sa\nfrom alembic import op\nrevision = "{NEXT}"\ndown_revision = "{HEAD}"\n'
            f"def upgrade() -> None:\n    {upgrade}\n"
        )
        monkeypatch.setattr(schema_history, "MIGRATIONS", directory)
        monkeypatch.setattr(schema_history, "HEAD", NEXT)

    return release


def revision_of(path: Path) -> str:
    connection = sqlite3.connect(path)
    (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    connection.close()
    return revision


def files_in(directory: Path) -> set[Path]:
    return {path for path in directory.iterdir() if path.is_file()}


async def columns_of(url: str) -> set[str]:
    database = await databases.connect(url)
    if database.kind == "sqlite":
        rows = await database.rows("SELECT name FROM pragma_table_info('rollouts')")
    else:
        rows = await database.rows("SELECT attname::text FROM pg_attribute WHERE attrelid = 'rollouts'::regclass")
    await database.close()
    return {name for (name,) in rows}


async def test_a_writer_upgrades_a_file_and_keeps_a_copy_from_before(
    tmp_path: Path, next_revision: Next, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.db"
    info = prepare_sqlite(path, create=True, read_only=False)
    database = await databases.connect(f"sqlite:///{path}")
    await databases.fill_log(database)
    log = await databases.read_log(database)
    await database.close()
    next_revision(ADDS_A_COLUMN)
    with caplog.at_level(logging.WARNING, "store.db.schema"):
        upgraded = prepare_sqlite(path, create=False, read_only=False)
    assert (upgraded.store_id, upgraded.created_at, upgraded.revision) == (info.store_id, info.created_at, NEXT)
    assert "colour" in await columns_of(f"sqlite:///{path}")
    (copy,) = files_in(tmp_path) - {path}
    assert copy.name.startswith(f"run.db.before-{NEXT}-")
    assert str(copy) in caplog.text
    assert copy.stat().st_mode & 0o777 == 0o600
    assert revision_of(copy) == HEAD
    original = databases.SQLiteDatabase(copy)
    assert await databases.read_log(original) == log
    await original.close()


def test_eight_concurrent_writers_upgrade_an_old_file_once(tmp_path: Path, next_revision: Next) -> None:
    path = tmp_path / "run.db"
    prepare_sqlite(path, create=True, read_only=False)
    next_revision(ADDS_A_COLUMN)

    def prepare(_: int) -> str:
        return prepare_sqlite(path, create=True, read_only=False).revision

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(prepare, range(8))) == {NEXT}
    assert len(list(tmp_path.glob("run.db.before-*"))) == 1
    assert not (tmp_path / "run.db.lock").exists()


def test_a_reader_leaves_an_old_file_alone_and_names_the_command(tmp_path: Path, next_revision: Next) -> None:
    path = tmp_path / "run.db"
    prepare_sqlite(path, create=True, read_only=False)
    next_revision(ADDS_A_COLUMN)
    with pytest.raises(Incompatible, match=f"rollbook migrate --db 'sqlite:///{path}'"):
        prepare_sqlite(path, create=True, read_only=True)
    assert revision_of(path) == HEAD


async def test_a_failed_upgrade_leaves_the_file_as_it_was(tmp_path: Path, next_revision: Next) -> None:
    path = tmp_path / "run.db"
    prepare_sqlite(path, create=True, read_only=False)
    columns = await columns_of(f"sqlite:///{path}")
    next_revision(FAILS_HALF_WAY)
    with pytest.raises(Incompatible, match="no_such_table"):
        prepare_sqlite(path, create=True, read_only=False)
    assert files_in(tmp_path) == {path}
    assert revision_of(path) == HEAD
    assert await columns_of(f"sqlite:///{path}") == columns


async def test_migrate_upgrades_every_partition_of_a_file(tmp_path: Path, next_revision: Next) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    for partition in ("default", "blue", "red"):
        await databases.prepare(f"{url}?partition={partition}")
    (tmp_path / "run.notes.db").write_text("not a database, but it has a partition's name" * 30)
    (tmp_path / "running.db").write_text("of another program")
    next_revision(ADDS_A_COLUMN)
    done = await migrate(f"{url}?partition=red")
    assert [(one.partition, one.before, one.after) for one in done] == [
        (partition, HEAD, NEXT) for partition in ("red", "default", "blue")
    ]
    assert all(one.is_changed and one.copy is not None and one.copy.exists() for one in done)
    assert not any(one.is_changed or one.copy for one in await migrate(url))


async def test_migrate_creates_the_partition_that_is_missing(isolated_url: str) -> None:
    (done,) = await migrate(isolated_url)
    assert (done.before, done.after, done.is_changed) == (None, HEAD, True)
    database = await databases.connect(isolated_url)
    assert len(await database.rows("SELECT store_id FROM store_info")) == 1
    await database.close()


async def test_a_writer_on_postgres_refuses_an_old_partition_and_names_the_command(
    postgres_url: str, next_revision: Next
) -> None:
    await databases.prepare(postgres_url)
    next_revision(ADDS_A_COLUMN)
    with pytest.raises(Incompatible) as refused:
        await databases.prepare(postgres_url)
    assert f"rollbook migrate --db '{postgres_url}'" in str(refused.value)
    assert "colour" not in await columns_of(postgres_url)


async def test_migrate_upgrades_every_partition_of_a_database(
    postgres_database: Callable[..., str], next_revision: Next
) -> None:
    server = postgres_database()
    for partition in ("default", "blue", "red"):
        await databases.prepare(postgres.with_partition(server, partition))
    postgres.execute(server, "CREATE SCHEMA rollbook_notes; CREATE TABLE rollbook_notes.alembic_version (x text);")
    next_revision(ADDS_A_COLUMN)
    done = await migrate(postgres.with_partition(server, "red"))
    assert [(one.partition, one.before, one.after) for one in done] == [
        (partition, HEAD, NEXT) for partition in ("red", "blue", "default")
    ]
    for partition in ("default", "blue", "red"):
        assert "colour" in await columns_of(postgres.with_partition(server, partition))
        await databases.prepare(postgres.with_partition(server, partition))


async def test_a_failed_upgrade_leaves_the_partition_as_it_was(
    postgres_database: Callable[..., str], next_revision: Next
) -> None:
    url = postgres.with_partition(postgres_database(), "default")
    await databases.prepare(url)
    columns = await columns_of(url)
    next_revision(FAILS_HALF_WAY)
    with pytest.raises(Incompatible, match="no_such_table"):
        await migrate(url)
    assert await columns_of(url) == columns
    database = await databases.connect(url)
    assert await database.rows("SELECT version_num FROM alembic_version") == [(HEAD,)]
    await database.close()


async def test_upgrades_in_one_process_take_turns(
    tmp_path: Path, postgres_database: Callable[..., str], next_revision: Next
) -> None:
    urls = [postgres.with_partition(postgres_database(), "default") for _ in range(2)]
    urls += [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]
    for url in urls:
        await databases.prepare(url)
    next_revision(ADDS_A_COLUMN)
    await asyncio.gather(*(migrate(url) for url in (*urls, *urls)))
    for url in urls:
        assert "colour" in await columns_of(url)


async def test_an_upgrade_waits_until_no_writer_is_half_way(
    postgres_database: Callable[..., str], next_revision: Next
) -> None:
    url = postgres.with_partition(postgres_database(), "default")
    await databases.prepare(url)
    writer = await databases.connect(url)
    await writer.execute(f"BEGIN; SELECT pg_advisory_xact_lock({lock_key(PREFIX + 'default')})")
    next_revision(ADDS_A_COLUMN)
    upgrade = asyncio.create_task(migrate(url))
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while await writer.rows(waiting) == [(0,)]:
        assert not upgrade.done()
        await asyncio.sleep(0.01)
    assert "colour" not in await columns_of(url)
    await writer.execute("COMMIT")
    await upgrade
    assert "colour" in await columns_of(url)
    await writer.close()


@pytest.fixture
async def app_role(postgres_database: Callable[..., str]) -> Any:
    """The URL of a migrated partition, and of the same as a role that owns nothing."""
    url = postgres.with_partition(postgres_database(), "default")
    role = f"app_{parse(url).text.split('/')[-1][:8]}"
    postgres.execute(url, f"CREATE ROLE {role} LOGIN")
    yield url, url.replace("postgres@", f"{role}@"), role
    postgres.execute(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_an_app_role_adds_to_the_log_and_cannot_change_it(app_role: tuple[str, str, str]) -> None:
    owner_url, app_url, role = app_role
    await migrate(owner_url, app_role=role)
    await databases.prepare(app_url)
    app = await databases.connect(app_url)
    await databases.fill_log(app)
    assert await app.rows("SELECT nextval('event_seq'), nextval('commit_seq')") == [(1, 1)]
    await app.execute("UPDATE queue_epoch SET epoch = 1")
    await app.execute("INSERT INTO queue VALUES (1, 'ro'); DELETE FROM queue")
    for table in ("commits", "events", "bodies", "dropped"):
        for statement in (f"DELETE FROM {table}", f"TRUNCATE {table}", f"ALTER TABLE {table} DISABLE TRIGGER ALL"):
            with pytest.raises(Exception, match=r"permission denied|must be owner"):
                await app.execute(statement)
    with pytest.raises(Exception, match="permission denied"):
        await app.execute("UPDATE events SET data = ''")
    with pytest.raises(Exception, match="permission denied"):
        await app.execute("UPDATE store_info SET store_id = ''")
    await app.close()


async def test_app_role_is_refused_with_the_command_that_creates_partitions(app_role: tuple[str, str, str]) -> None:
    _, app_url, role = app_role
    with pytest.raises(Incompatible, match=r"permission denied.*rollbook migrate --db URL --app-role"):
        await databases.prepare(app_url)
    parsed = parse(app_url)
    assert parsed.dsn is not None
    with pytest.raises(NotFound):
        await prepare_postgres(parsed.dsn, "rollbook_default", create=False, read_only=False)
    assert role in app_url


async def test_a_role_that_does_not_exist_is_named(postgres_database: Callable[..., str]) -> None:
    url = postgres.with_partition(postgres_database(), "default")
    with pytest.raises(NotFound, match="nobody_knows"):
        await migrate(url, app_role="nobody_knows")


async def test_migration_of_memory_or_of_roles_on_sqlite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="sqlite:///… or postgresql://…"):
        await migrate("memory://")
    with pytest.raises(Invalid, match="no roles"):
        await migrate(f"sqlite:///{tmp_path / 'run.db'}", app_role="app")


@pytest.mark.slow
async def test_a_server_of_the_old_version_works_during_and_after_the_upgrade(
    isolated_url: str, next_revision: Next, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upgrade in the order of docs/production.md. The server's process does not know the next revision."""
    await migrate(isolated_url)
    server = ServerProcess(isolated_url)
    await asyncio.to_thread(server.start)
    try:
        async with await open_store(server.url) as client:
            await client.enqueue_rollout("before")
            stop = asyncio.Event()

            async def use_the_server() -> int:
                done = 0
                while not stop.is_set():
                    await client.enqueue_rollout(f"during {done}")
                    done += 1
                return done

            using = asyncio.create_task(use_the_server())
            next_revision(ADDS_A_COLUMN)
            await migrate(isolated_url)
            async with await open_store(isolated_url) as new:
                claimed = await client.dequeue_rollout("old")
                assert claimed is not None
                assert claimed.input == "before"
                await new.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
                assert [
                    rollout.status for rollout in await client.wait_for_rollouts([claimed.rollout_id], timeout=30)
                ] == ["succeeded"]
                stop.set()
                enqueued = await using
                assert (await new.query_rollouts(status_in=["queuing"], limit=0)).total == enqueued
                assert (await new.log.verify()).ok
            assert (await client.query_rollouts(status_in=["queuing"], limit=0)).total == enqueued
    finally:
        await asyncio.to_thread(server.kill)
    # From here on, this program does not know the next revision either.
    monkeypatch.undo()
    refused = await asyncio.to_thread(CliRunner().invoke, app, ["stats", "--db", isolated_url])
    assert (refused.exit_code, NEXT in refused.stderr) == (1, True), refused.output
