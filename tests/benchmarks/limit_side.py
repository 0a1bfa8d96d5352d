"""The limits of disk and drivers: the same rows in the same transactions, without a store."""

from __future__ import annotations

import os
import pickle
import sqlite3
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import Table, select

from store.db.schema import prepare_postgres, prepare_sqlite
from store.db.tables import core as core_tables
from store.db.url import parse
from tests.benchmarks.protocol import serve
from tests.benchmarks.workload import percentiles

_COPIED_ROWS = 20_000

asyncpg: Any = import_module("asyncpg")


class Limit:
    """Commands without a store."""

    def fsync(self, directory: str, writes: int) -> dict[str, float]:
        """Append 4 KiB to a file and make it durable, again and again; how long each takes, in milliseconds."""
        path, block, taken = Path(directory) / "fsync", os.urandom(4096), list[float]()
        with path.open("wb", buffering=0) as file:
            for _ in range(writes):
                begun = time.perf_counter()
                file.write(block)
                os.fdatasync(file.fileno())
                taken.append(time.perf_counter() - begun)
        path.unlink()
        return percentiles(taken)

    # SQLite.

    def sqlite_commits(self, path: str, seconds: float) -> dict[str, float]:
        """Return the commits per second of one narrow row each."""
        connection = _connect(path)
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT)")
        begun, count = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO t (value) VALUES ('x')")
            connection.execute("COMMIT")
            count += 1
        took = time.perf_counter() - begun
        connection.close()
        return {"per_second": count / took}

    def sqlite_rows(self, path: str, rows: str, units: int) -> dict[str, float]:
        """Write recorded rows by executemany to an empty store's tables, less the triggers that guard the log.

        The rates are of what the rows make up: so many spans, or lifecycles.
        """
        before, measured = _recorded(rows)
        prepare_sqlite(Path(path), create=True, read_only=False)
        connection = _connect(path)
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        _write(connection, _compiled(before))
        statements = _compiled(measured)
        begun, cpu = time.perf_counter(), time.process_time()
        _write(connection, statements)
        took = time.perf_counter() - begun
        connection.close()
        return {"per_second": units / took, "cpu_us": (time.process_time() - cpu) * 1e6 / units}

    def sqlite_payload(self, path: str) -> tuple[int, int, int]:
        """Return a closed store's size, the bytes of its bodies as stored, and its events."""
        connection = sqlite3.connect(path)
        bodies = connection.execute("SELECT coalesce(sum(length(body)), 0) FROM bodies").fetchone()[0]
        events = connection.execute("SELECT count(*) FROM events").fetchone()[0]
        connection.close()
        return Path(path).stat().st_size, bodies, events

    # Postgres.

    async def postgres_version(self, url: str) -> str:
        connection = await asyncpg.connect(parse(url).dsn)
        version: str = await connection.fetchval("SHOW server_version")
        settings = [f"{name} {await connection.fetchval(f'SHOW {name}')}" for name in ("fsync", "synchronous_commit")]
        await connection.close()
        return ", ".join([version, *settings])

    async def postgres_commits(self, url: str, seconds: float) -> dict[str, float]:
        """As `sqlite_commits`, each row in a transaction of its own, on one connection."""
        connection = await asyncpg.connect(parse(url).dsn)
        await connection.execute("DROP TABLE IF EXISTS bench_t; CREATE TABLE bench_t (id bigserial, value text)")
        begun, count = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds:
            await connection.execute("INSERT INTO bench_t (value) VALUES ('x')")
            count += 1
        took = time.perf_counter() - begun
        await connection.execute("DROP TABLE bench_t")
        await connection.close()
        return {"per_second": count / took}

    async def postgres_analyze(self, url: str) -> None:
        """Let the planner count the rows, as autovacuum does within a minute."""
        connection = await asyncpg.connect(parse(url).dsn)
        await connection.execute("ANALYZE")
        await connection.close()

    async def postgres_rows(self, url: str, rows: str, units: int) -> dict[str, float]:
        """Write recorded rows by COPY to an empty store's tables.

        COPY cannot replace: rows that do go to copies of their tables without keys, which is less work.
        """
        before, measured = _recorded(rows)
        connection, schema = await _prepared(url)
        for table in core_tables.PROJECTIONS + core_tables.SIGNALS:
            await connection.execute(f'CREATE TABLE "{schema}".replaced_{table.name} (LIKE "{schema}".{table.name})')
        await _copy(connection, schema, before)
        begun, cpu = time.perf_counter(), time.process_time()
        await _copy(connection, schema, measured)
        took = time.perf_counter() - begun
        await connection.close()
        return {"per_second": units / took, "cpu_us": (time.process_time() - cpu) * 1e6 / units}

    async def copy_store(self, path: str, url: str) -> int:
        """Copy a closed SQLite store's tables into an empty Postgres partition: rows are the same on both."""
        connection, schema = await _prepared(url)
        source = sqlite3.connect(path)
        async with connection.transaction():
            for table in core_tables.metadata.sorted_tables:
                await connection.execute(f'DELETE FROM "{schema}".{table.name}') if table in _SEEDED else None
                cursor = source.execute(str(select(table)))
                while rows := cursor.fetchmany(_COPIED_ROWS):
                    await connection.copy_records_to_table(table.name, schema_name=schema, records=rows)
            for sequence, column, table in (
                ("event_seq", "position", "events"),
                ("commit_seq", "commit_id", "commits"),
            ):
                last = f'SELECT max({column}) FROM "{schema}".{table}'
                await connection.execute(f"SELECT setval('\"{schema}\".{sequence}', ({last}))")
        source.close()
        await connection.execute(f'ANALYZE "{schema}".events')
        events: int = await connection.fetchval(f'SELECT count(*) FROM "{schema}".events')
        await connection.close()
        return events


_SEEDED = (core_tables.store_info, core_tables.queue_epoch)


def _recorded(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -65536", "wal_autocheckpoint = 4000"):
        connection.execute(f"PRAGMA {setting}").fetchall()
    return connection


def _compiled(transactions: Any) -> list[list[tuple[str, list[Any]]]]:
    named = core_tables.metadata.tables
    return [[(_sqlite_statement(verb, named[name]), rows) for verb, name, rows in written] for written in transactions]


def _sqlite_statement(verb: str, table: Table) -> str:
    keys = [column.name for column in table.primary_key]
    if verb == "delete":
        return f"DELETE FROM {table.name} WHERE {' AND '.join(f'{key} = ?' for key in keys)}"
    insert = f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})"
    if verb == "insert":
        return insert
    rest = ", ".join(f"{column.name} = excluded.{column.name}" for column in table.columns if column.name not in keys)
    return f"{insert} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {rest}"


def _write(connection: sqlite3.Connection, transactions: list[list[tuple[str, list[Any]]]]) -> None:
    for written in transactions:
        connection.execute("BEGIN IMMEDIATE")
        for statement, rows in written:
            connection.executemany(statement, rows)
        connection.execute("COMMIT")


async def _prepared(url: str) -> tuple[Any, str]:
    parsed = parse(url)
    assert parsed.dsn is not None
    schema = f"rollbook_{parsed.partition}"
    await prepare_postgres(parsed.dsn, schema, create=True, read_only=False)
    return await asyncpg.connect(parsed.dsn), schema


async def _copy(connection: Any, schema: str, transactions: Any) -> None:
    for written in transactions:
        async with connection.transaction():
            for verb, name, rows in written:
                if verb == "delete":
                    await connection.executemany(_delete(schema, core_tables.metadata.tables[name]), rows)
                else:
                    target = name if verb == "insert" else f"replaced_{name}"
                    await connection.copy_records_to_table(target, schema_name=schema, records=rows)


def _delete(schema: str, table: Table) -> str:
    keys = " AND ".join(f"{column.name} = ${number}" for number, column in enumerate(table.primary_key, 1))
    return f'DELETE FROM "{schema}".{table.name} WHERE {keys}'


if __name__ == "__main__":
    serve(Limit())
