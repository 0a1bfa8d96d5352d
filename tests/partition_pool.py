"""Partitions on Postgres that tests use one after the other. Each is emptied in between.

Creating and opening a partition takes 0.2 s, mostly for its tables and indexes, which is longer than most tests.
Opening an existing partition takes 0.05 s, and emptying one a few milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] (it ships none)

from store import open_store
from store.testing import ManualClock
from tests import postgres

_LOCK_SECONDS = 30
_LEAVE_SECONDS = 2.0
"""Sessions end a moment after their connection was closed. A partition whose sessions remain is dropped."""

_SCHEMA = """
    SELECT md5(string_agg(line, E'\\n' ORDER BY line)) FROM (
        SELECT format('schema %s %s', nspname, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'
        UNION ALL SELECT format('class %s %s %s %s %s', oid, relname, relkind, relacl, reloptions) FROM pg_class
            WHERE relnamespace::regnamespace::text LIKE 'rollbook_%'
        UNION ALL SELECT format('column %s %s %s %s %s', attrelid, attname, atttypid, attnotnull, attstattarget)
            FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
            WHERE relnamespace::regnamespace::text LIKE 'rollbook_%'
        UNION ALL SELECT format('trigger %s %s %s', tgrelid, tgname, tgenabled) FROM pg_trigger
        UNION ALL SELECT format('constraint %s %s', conrelid, conname) FROM pg_constraint
        UNION ALL SELECT format('function %s %s', proname, md5(prosrc)) FROM pg_proc
            WHERE pronamespace::regnamespace::text LIKE 'rollbook_%'
        UNION ALL SELECT format('setting %s %s', setdatabase, setconfig) FROM pg_db_role_setting
    ) AS lines (line)
"""
"""A digest of what `PooledPartition.empty` does not restore."""


class PooledPartition:
    """A partition in a database of its own.

    Attributes:
        url: the URL of the partition.
    """

    def __init__(self, server_url: str) -> None:
        self._database = postgres.create_database(server_url)
        self.url = postgres.with_partition(self._database)
        self._schema = f"rollbook_{self.url.rpartition('partition=')[2]}"
        self._loop = asyncio.new_event_loop()
        self._connection, self._statements = self._run(self._prepare())
        self._digest = self._value(_SCHEMA)

    async def _prepare(self) -> tuple[Any, str]:
        async with await open_store(self.url, clock=ManualClock()):
            pass
        connection: Any = await cast("Any", asyncpg).connect(self._database)
        # If a test leaves a transaction open, emptying fails after this time instead of waiting forever. The role
        # `replica` turns off foreign keys and ordinary triggers.
        await connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'; SET session_replication_role = replica")
        statements: list[str] = []
        for name in await self._names(connection, "r"):
            statements.append(f"DELETE FROM {name}")
            # The rows that a new store contains are saved and inserted again.
            if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {name})"):
                rows = f"initial_rows_{len(statements)}"
                await connection.execute(f"CREATE TEMPORARY TABLE {rows} AS TABLE {name}")
                statements.append(f"INSERT INTO {name} SELECT * FROM {rows}")
        statements += [f"ALTER SEQUENCE {name} RESTART" for name in await self._names(connection, "S")]
        guards = await self._guards(connection)
        off = [f"ALTER TABLE {table} DISABLE TRIGGER {trigger}" for table, trigger in guards]
        on = [f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}" for table, trigger in guards]
        # Postgres executes the statements of one string in one transaction.
        return connection, "; ".join(off + statements + on)

    async def _names(self, connection: Any, kind: str) -> list[str]:
        """Return the qualified names of the tables (kind `r`) or sequences (kind `S`) of the partition."""
        query = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = $2"
        return [row[0] for row in await connection.fetch(query, self._schema, kind.encode())]

    async def _guards(self, connection: Any) -> list[tuple[str, str]]:
        """Return the table and the name of each trigger that also fires with the role `replica`."""
        query = (
            "SELECT tgrelid::regclass::text, quote_ident(tgname)"
            " FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
            " WHERE relnamespace = $1::regnamespace AND tgenabled = 'A' AND NOT tgisinternal"
        )
        return [(row[0], row[1]) for row in await connection.fetch(query, self._schema)]

    def _value(self, query: str) -> Any:
        return self._run(self._connection.fetchval(query))

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run a call on the loop of the partition, in another thread if a loop runs in this one."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(call)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._loop.run_until_complete, call).result()

    def _is_unused(self) -> bool:
        """Whether all sessions of the test have ended."""
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._value(f"{others} AND backend_type = 'client backend'"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def empty(self) -> bool:
        """Delete all rows that a test wrote, and restart the sequences.

        Returns:
            False if the partition cannot be used again: it is still in use, or its schema has changed.
        """
        try:
            if not self._is_unused() or self._value(_SCHEMA) != self._digest:
                return False
            self._run(self._connection.execute(self._statements))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            # The test has ended our session too.
            return False
        return True

    def close(self) -> None:
        """End our own session."""
        self._connection.terminate()
        self._run(asyncio.sleep(0))
        self._loop.close()

    def drop(self) -> None:
        """Drop the database of the partition."""
        self.close()
        postgres.drop_database(self._database)


class PartitionPool:
    """The partitions of a process of pytest."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._free: list[PooledPartition] = []

    def take(self) -> PooledPartition:
        """Return an empty partition, which nothing uses."""
        return self._free.pop() if self._free else PooledPartition(self._server_url)

    def put_back(self, partition: PooledPartition) -> None:
        """Empty a partition for the next test, or drop it."""
        if partition.empty():
            self._free.append(partition)
        else:
            partition.drop()

    def close(self) -> None:
        """End our own sessions."""
        for partition in self._free:
            partition.close()
