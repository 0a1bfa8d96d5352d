"""A partition on Postgres that tests share. It is emptied after each test.

Creating and opening a partition takes 0.14 to 0.2 s, mostly for its tables and indexes, which is longer than most tests
of the contract. Opening an existing partition takes 0.05 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs] (it ships none)

from store import open_store
from store.testing import ManualClock
from tests import postgres

_LOCK_SECONDS = 30


class EmptiedPartition:
    """A partition that is emptied after each test. Its triggers, indexes and tables must stay as they are.

    Attributes:
        url: the URL of the partition.
    """

    def __init__(self, server_url: str) -> None:
        self.url = postgres.with_partition(server_url)
        self._schema = f"rollbook_{parse_qs(urlsplit(self.url).query)['partition'][0]}"
        self._loop = asyncio.new_event_loop()
        self._connection, self._emptying = self._loop.run_until_complete(self._make(server_url))

    async def _make(self, server_url: str) -> tuple[Any, str]:
        async with await open_store(self.url, clock=ManualClock()):
            pass
        connection: Any = await cast("Any", asyncpg).connect(server_url)
        # If a test leaves a transaction open, emptying fails after this time instead of waiting forever. The role
        # `replica` turns off foreign keys and ordinary triggers.
        await connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'; SET session_replication_role = replica")
        statements: list[str] = []
        for name in await self._names(connection, "r"):
            statements.append(f"DELETE FROM {name}")
            # The rows that a new store contains are saved and inserted again.
            if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {name})"):
                kept = f"initial_rows_{len(statements)}"
                await connection.execute(f"CREATE TEMPORARY TABLE {kept} AS TABLE {name}")
                statements.append(f"INSERT INTO {name} SELECT * FROM {kept}")
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

    def empty(self) -> None:
        """Delete all rows that tests wrote, and restart the sequences."""
        self._loop.run_until_complete(self._connection.execute(self._emptying))

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


@contextmanager
def emptied_partition(server_url: str) -> Generator[EmptiedPartition]:
    """Create a partition for all tests of a process."""
    partition = EmptiedPartition(server_url)
    try:
        yield partition
    finally:
        partition.close()
