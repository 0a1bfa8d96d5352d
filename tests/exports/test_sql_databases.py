"""Exports to SQLite files and to schemas of Postgres, which replace an earlier export completely or not at all."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs] - asyncpg has no type hints
import pytest

from store import open_store
from store.errors import AlreadyExists, Conflict, Invalid, Unavailable
from store.exports import export_postgres, export_sqlite, query_sql
from store.exports.databases import temporary
from store.exports.manifest import UNFINISHED
from store.interface.store import Store
from store.models.queries import RolloutQuery
from tests.exports.agents import span
from tests.faults import processes

_driver: Any = asyncpg


def is_unfinished(directory: Path) -> bool:
    """Whether the directory contains a file that is being written."""
    return any(path.name.endswith(UNFINISHED) for path in directory.iterdir())


def positions(path: Path) -> list[Any]:
    """The positions of an exported file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT position, (SELECT count(*) FROM rollouts) FROM export_origin").fetchall()


async def test_a_file_is_replaced_only_if_an_export_wrote_it(store: Store, sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    await export_sqlite(store, path, query=RolloutQuery(as_at=0))
    with pytest.raises(AlreadyExists, match="overwrite an export with --overwrite"):
        await export_sqlite(store, path)
    report = await export_sqlite(store, path, overwrite=True, tables=["rollouts"], redact=["input"])
    assert (positions(path), report.rows) == ([(report.position, 8)], {"rollouts": 8})
    labelled = "SELECT labels->>'$[0]', step FROM rollouts WHERE labels <> '[]'"
    assert (await query_sql(store, labelled)).rows == [("good, mostly", 0)]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(labelled).fetchall() == [("good, mostly", 0)]
        assert connection.execute("SELECT count(input), count(step) FROM rollouts").fetchall() == [(0, 8)]
    (tmp_path / "notes.txt").write_text("mine")
    for other in (sqlite_url.removeprefix("sqlite:///"), tmp_path / "notes.txt"):
        content = await asyncio.to_thread(Path(other).read_bytes)
        with pytest.raises(AlreadyExists, match="export to another file"):
            await export_sqlite(store, other, overwrite=True)
        assert await asyncio.to_thread(Path(other).read_bytes) == content
    assert not is_unfinished(tmp_path)


async def test_a_file_with_changes_in_its_write_ahead_log_is_not_replaced(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    await export_sqlite(store, path, query=RolloutQuery(as_at=0))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE notes (note)")
        with pytest.raises(Conflict, match=r"has changes of .*views\.db in views\.db-wal"):
            await export_sqlite(store, path, overwrite=True)
        assert connection.execute("SELECT count(*) FROM notes").fetchall() == [(0,)]
    assert positions(path) == [(0, 0)]
    assert not is_unfinished(tmp_path)
    await export_sqlite(store, path, overwrite=True)
    assert positions(path)[0][1] == 8


async def test_a_file_that_is_being_written_is_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    refused: list[Exception] = []

    def export_again(_: Any) -> None:
        async def again() -> None:
            async with await open_store("memory://") as other:
                await export_sqlite(other, path)

        with pytest.raises(Conflict, match="another process is exporting") as conflict:
            asyncio.run(again())
        refused.append(conflict.value)

    def in_thread(progress: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(export_again, progress).result()

    await export_sqlite(store, path, on_progress=in_thread)
    assert refused
    assert positions(path)[0][1] == 8


async def export_killed(url: str, path: str) -> None:
    """Export a store, and be killed in the middle."""

    def kill(_: Any) -> None:
        os.kill(os.getpid(), 9)

    async with await open_store(url, read_only=True) as store:
        await export_sqlite(store, path, overwrite=True, on_progress=kill)


async def export_until_full(url: str, path: str) -> None:
    """Export a store to a disk with too little space."""
    async with await open_store(url, read_only=True) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
        with pytest.raises(Unavailable, match="free some space and repeat the command"):
            await export_sqlite(store, path, overwrite=True)
        temporary._CACHE_KIB = 16  # pyright: ignore[reportPrivateUsage] - more goes to the disk
        large = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT * FROM n"
        with pytest.raises(Unavailable, match="free some space on the disk of temporary files"):
            await query_sql(store, f"{large} ORDER BY hex(randomblob(100))", limit=-1)


async def test_a_stopped_export_leaves_the_earlier_file(sqlite_url: str, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    await export_sqlite(store, path, query=RolloutQuery(as_at=0))
    with processes.running(export_killed, (sqlite_url, str(path))) as killed:
        assert await asyncio.to_thread(processes.leave, killed) == [-9]
    assert positions(path) == [(0, 0)]
    assert is_unfinished(tmp_path)
    with processes.running(export_until_full, (sqlite_url, str(path))) as stopped:
        assert await asyncio.to_thread(processes.leave, stopped) == [0]
    assert positions(path) == [(0, 0)]
    assert not is_unfinished(tmp_path)
    await export_sqlite(store, path, overwrite=True)
    assert positions(path)[0][1] == 8


async def test_a_value_that_sqlite_cannot_store_is_named(tmp_path: Path) -> None:
    async with await open_store("memory://") as store:
        rollout = await store.start_rollout({})
        await store.add_span(span(rollout.attempt, 1, {}, span_id="ab", end_time=1e300))
        named = r"spans\.end_time: 1e\+300 of rollout_id ro-\S+, span_id ab .* redact"
        with pytest.raises(Invalid, match=named):
            await query_sql(store, "SELECT end_time FROM spans")
        assert (await query_sql(store, "SELECT name FROM spans")).rows == [("agentlightning.virtual",)]
        with pytest.raises(Invalid, match=named):
            await export_sqlite(store, tmp_path / "views.db")
        await export_sqlite(store, tmp_path / "views.db", redact=["spans.end_time"])


@pytest.fixture
async def connection(postgres_server: str) -> AsyncIterator[Any]:
    """A connection to a database without the schema `exported`, which is dropped later."""
    connection: Any = await _driver.connect(postgres_server)
    yield connection
    await connection.execute("DROP SCHEMA IF EXISTS exported CASCADE; DROP SCHEMA IF EXISTS other CASCADE")
    await connection.close()


async def exported(connection: Any) -> list[Any]:
    """The position of the exported schema, with its number of rollouts."""
    statement = "SELECT position, (SELECT count(*) FROM exported.rollouts) FROM exported.export_origin"
    return [tuple(row) for row in await connection.fetch(statement)]


@pytest.mark.postgres
async def test_a_schema_is_replaced_only_if_an_export_wrote_it(
    store: Store, connection: Any, postgres_server: str
) -> None:
    await export_postgres(store, postgres_server, query=RolloutQuery(as_at=0))
    with pytest.raises(AlreadyExists, match="overwrite an export with --overwrite"):
        await export_postgres(store, postgres_server)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await export_postgres(store, postgres_server, overwrite=True, on_progress=stop)
    assert await exported(connection) == [(0, 0)]
    report = await export_postgres(store, postgres_server, overwrite=True, tables=["rollouts"])
    assert await exported(connection) == [(report.position, 8)]
    labelled = "SELECT step FROM exported.rollouts WHERE labels @> ARRAY['reviewed']"
    assert [tuple(row) for row in await connection.fetch(labelled)] == [(0,)]
    await connection.execute("CREATE SCHEMA other")
    with pytest.raises(AlreadyExists, match=r"schema that no export wrote .* export to another schema"):
        await export_postgres(store, postgres_server, schema="other", overwrite=True)


@pytest.mark.postgres
async def test_a_value_that_postgres_cannot_store_is_named(connection: Any, postgres_server: str) -> None:
    async with await open_store("memory://") as store:
        rollout = await store.start_rollout({})
        prompt = r'[{"role": "user", "parts": [{"type": "text", "content": "a\u0000b"}]}]'
        await store.add_span(
            span(rollout.attempt, 1, {"gen_ai.operation.name": "chat", "gen_ai.input.messages": prompt}, name="chat")
        )
        with pytest.raises(Invalid, match=r"messages\.content: 'a\\x00b' .*U\+0000.* redact messages\.content"):
            await export_postgres(store, postgres_server)
        await export_postgres(store, postgres_server, redact=["messages.content"])
        await store.add_span(span(rollout.attempt, 2, {}, span_id="ab", start_time=1e300))
        with pytest.raises(Invalid, match=r"spans\.start_time: 1e\+300 of rollout_id ro-\S+, span_id ab"):
            await export_postgres(store, postgres_server, overwrite=True)
    assert await connection.fetchval("SELECT count(*) FROM exported.messages WHERE content IS NULL") == 1


async def test_a_database_that_cannot_be_reached_or_a_wrong_url_is_an_error(store: Store) -> None:
    with pytest.raises(Unavailable, match=r"the export to postgresql://u:\*\*\*@127\.0\.0\.1:1/x stopped"):
        await export_postgres(store, "postgresql://u:secret@127.0.0.1:1/x")
    with pytest.raises(Invalid, match="is not the URL of a Postgres database"):
        await export_postgres(store, "sqlite:///views.db")
    with pytest.raises(Invalid, match="a partition is a store"):
        await export_postgres(store, "postgresql://127.0.0.1:1/x?partition=a")
    with pytest.raises(Invalid, match="cannot begin with rollbook_"):
        await export_postgres(store, "postgresql://127.0.0.1:1/x", schema="rollbook_default")
