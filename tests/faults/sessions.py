"""Writing sessions with faults, wrapped around the result of `Dialect.writer`."""

# A test of a part may look inside that part.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Select

from store.db.dialect import Changes, NamedRow, Params, Sql, Tail, WriteSession, register
from store.db.drivers.postgres.dialect import Postgres
from store.db.drivers.sqlite.dialect import SQLite
from store.opening import open_store
from store.sql.store import SQLStore

T = TypeVar("T")


class Wrapped(WriteSession):
    """A session that hands everything on."""

    def __init__(self, inner: WriteSession) -> None:
        self.inner, self.dialect = inner, inner.dialect

    async def begin(self) -> Tail:
        return await self.inner.begin()

    async def load(self, queries: Sequence[Select[Any]], params: Params) -> Sequence[Sequence[NamedRow]]:
        return await self.inner.load(queries, params)

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        return await self.inner.fetch(sql, params)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        async for rows in self.inner.stream(sql, params, batch=batch):
            yield rows

    async def write(self, changes: Changes) -> None:
        await self.inner.write(changes)

    async def commit(self) -> None:
        await self.inner.commit()

    async def rollback(self) -> None:
        await self.inner.rollback()

    async def rest(self) -> None:
        await self.inner.rest()

    async def close(self) -> None:
        await self.inner.close()


class Unreliable(Wrapped):
    """A session that does what a test tells it to at one of its steps."""

    def __init__(self, inner: WriteSession, trouble: Trouble) -> None:
        super().__init__(inner)
        self._trouble = trouble

    async def begin(self) -> Tail:
        while self._trouble.holds:
            self._trouble.is_holding = True
            await asyncio.sleep(0.001)
        self._trouble.is_holding = False
        self._trouble.before_begin()
        return await super().begin()

    async def write(self, changes: Changes) -> None:
        self._trouble.before_write(changes)
        await super().write(changes)

    async def commit(self) -> None:
        self._trouble.before_commit()
        await super().commit()
        self._trouble.after_commit()


class Trouble:
    """What happens at each step; nothing, until a test says otherwise."""

    def __init__(self) -> None:
        self.holds = False
        """Whether the writer, which has taken a batch, has to wait before it begins."""
        self.is_holding = False
        self.before_begin: Callable[[], None] = lambda: None
        self.before_write: Callable[[Changes], None] = lambda _: None
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None


@contextlib.contextmanager
def wrapped(wrap: Callable[[WriteSession], WriteSession]) -> Generator[None]:
    """Let every store that is opened meanwhile write through a wrapper."""

    class OnSQLite(SQLite):
        async def writer(self) -> WriteSession:
            return wrap(await super().writer())

    class OnPostgres(Postgres):
        async def writer(self) -> WriteSession:
            return wrap(await super().writer())

    register("memory", OnSQLite)
    register("sqlite", OnSQLite)
    register("postgresql", OnPostgres)
    try:
        yield
    finally:
        register("memory", SQLite)
        register("sqlite", SQLite)
        register("postgresql", Postgres)


async def troubled_store(url: str, trouble: Trouble) -> SQLStore:
    """Open a store whose writer meets the trouble."""
    with wrapped(lambda session: Unreliable(session, trouble)):
        store = await open_store(url)
    assert isinstance(store, SQLStore)
    return store


async def until(is_so: Callable[[], bool]) -> None:
    """Return once something is so, which no event tells."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.001)


async def taken(trouble: Trouble, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Send a call and let the writer hold on once it has taken it."""
    trouble.holds = True
    task = asyncio.create_task(call)
    await until(lambda: trouble.is_holding)
    return task


async def parked(store: SQLStore, *, claimers: int = 0, finishers: int = 0) -> None:
    """Return once so many calls wait for rollouts to claim and to end, and the store listens for notifications."""
    calls: Any = store.core.waiting

    def is_so() -> bool:
        # A call is registered before it reads the database a last time. Then it waits for its future or event.
        claiming = sum(bool(waiter.future._callbacks) for waiter in list(calls._claimers))
        finishing = sum(
            bool(waiter.event._waiters) for waiters in list(calls._finishers.values()) for waiter in waiters
        )
        listens = getattr(calls._wakeups, "_line", calls) is not None
        return (claiming, finishing, listens) == (claimers, finishers, True)

    await until(is_so)


async def waiting(store: SQLStore, *calls: Coroutine[Any, Any, T]) -> list[asyncio.Task[T]]:
    """Send calls and return once they wait in the inbox of a writer that holds on."""
    tasks = [asyncio.create_task(call) for call in calls]
    await until(lambda: store.core.writer.waiting == len(tasks))
    return tasks
