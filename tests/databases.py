"""Access to a partition independent of the tested code: SQL on the driver, on both databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from store.db.url import parse


class Database(Protocol):
    """An open partition."""

    kind: str
    """`sqlite` or `postgresql`."""

    async def execute(self, script: str) -> None:
        """Run statements, separated by semicolons, as one transaction."""
        ...

    async def rows(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query, its parameters written as the driver has it."""
        ...

    async def close(self) -> None:
        """End the session."""
        ...


class SQLiteDatabase:
    """A file."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    async def execute(self, script: str) -> None:
        self._connection.executescript(f"BEGIN; {script}; COMMIT" if ";" in script else script)

    async def rows(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, args).fetchall()

    async def close(self) -> None:
        self._connection.close()


class PostgresDatabase:
    """A schema, first in the search path."""

    kind = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, script: str) -> None:
        await self._connection.execute(script)

    async def rows(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        records: Sequence[Sequence[Any]] = await self._connection.fetch(query, *args)
        return [tuple(row) for row in records]

    async def close(self) -> None:
        await self._connection.close()


async def connect(url: str) -> Database:
    """Open the partition of a store's URL."""
    parsed = parse(url)
    if parsed.path is not None:
        return SQLiteDatabase(parsed.path)
    asyncpg: Any = import_module("asyncpg")
    settings = {"search_path": f"rollbook_{parsed.partition}"}
    return PostgresDatabase(await asyncpg.connect(parsed.dsn, server_settings=settings))


async def prepare(url: str) -> None:
    """Create the partition of a store's URL, without opening a store."""
    from store.db.schema import prepare_postgres, prepare_sqlite

    parsed = parse(url)
    if parsed.path is not None:
        prepare_sqlite(parsed.path, create=True, read_only=False)
    else:
        assert parsed.dsn is not None
        await prepare_postgres(parsed.dsn, f"rollbook_{parsed.partition}", create=True, read_only=False)


async def fill_log(database: Database) -> None:
    """Write one commit of three events, two of them with a body."""
    before = "x'" if database.kind == "sqlite" else "'\\x"
    chain, body, digest = (f"{before}{digits}'" for digits in ("11" * 32, "7b7d", "22" * 32))
    columns = "position, commit_id, stream, version, command, type, shape, at, data, body_hash"
    await database.execute(
        "INSERT INTO commits (commit_id, batch_key, first_position, last_position, recorded_at, writer, chain_hash,"
        " events, rollouts, attempts, spans, resources, workers, body_bytes)"
        f" VALUES (1, 'key', 1, 3, 1000, 'test', {chain}, 3, 1, 0, 0, 0, 0, 4);"
        f"INSERT INTO events ({columns}) VALUES"
        f" (1, 1, 'rollout/a', 1, 0, 'rollout.enqueued', 1, 1000, '{{}}', {digest}),"
        f" (2, 1, 'rollout/a', 2, 1, 'rollout.amended', 1, 1000, '{{}}', {digest}),"
        " (3, 1, 'store', 1, 2, 'body.dropped', 1, 1000, '{}', NULL);"
        f"INSERT INTO bodies (position, codec, raw_len, body) VALUES (1, 0, 2, {body}), (2, 0, 2, {body})"
    )


async def fill_blobs(database: Database) -> None:
    """Write a blob."""
    body = "x'7b7d'" if database.kind == "sqlite" else "'\\x7b7d'"
    await database.execute(f"INSERT INTO blobs (hash, codec, raw_len, body) VALUES ('{'33' * 32}', 0, 2, {body})")


async def fill_dictionaries(database: Database) -> None:
    """Write two dictionaries, and store the second body of `fill_log` as if it was compressed with the first."""
    before = "x'" if database.kind == "sqlite" else "'\\x"
    digest, content = f"{before}{'44' * 32}'", f"{before}7b7d'"
    await database.execute(
        "INSERT INTO dictionaries (codec, type, hash, trained_at, samples, content) VALUES"
        f" (16, 'rollout.amended', {digest}, 1000, {content}, {content}),"
        f" (17, 'rollout.enqueued', {digest}, 1000, {content}, {content});"
        "UPDATE bodies SET codec = 16 WHERE position = 2"
    )


async def fill_blocks(database: Database) -> None:
    """Write a block for the first two events of `fill_log`. No event refers to it."""
    body = "x'7b7d'" if database.kind == "sqlite" else "'\\x7b7d'"
    await database.execute(f"INSERT INTO data_blocks (first_position, last_position, body) VALUES (1, 2, {body})")


async def read_log(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of the log."""
    keys = {"commits": "commit_id", "events": "position", "bodies": "position", "dropped": "position"}
    return {table: await database.rows(f"SELECT * FROM {table} ORDER BY {key}") for table, key in keys.items()}
