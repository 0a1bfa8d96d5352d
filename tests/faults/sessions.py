"""Writing sessions on which things go wrong: what `Dialect.writer` returns, wrapped."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Select

from store.db.dialect import Changes, Params, Row, Sql, Tail, WriteSession, register
from store.db.drivers.postgres import Postgres
from store.db.drivers.sqlite import SQLite


class Wrapped(WriteSession):
    """A session that hands everything on."""

    def __init__(self, inner: WriteSession) -> None:
        self.inner = inner

    async def begin(self) -> Tail:
        return await self.inner.begin()

    async def load(self, queries: Mapping[str, Select[Any]], params: Params) -> dict[str, Sequence[Row]]:
        return await self.inner.load(queries, params)

    async def fetch(self, sql: Sql, params: Params) -> Sequence[Row]:
        return await self.inner.fetch(sql, params)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[Row]]:
        async for rows in self.inner.stream(sql, params, batch=batch):
            yield rows

    async def draw(self, positions: int) -> tuple[int, int]:
        return await self.inner.draw(positions)

    async def write(self, changes: Changes) -> None:
        await self.inner.write(changes)

    async def commit(self) -> None:
        await self.inner.commit()

    async def rollback(self) -> None:
        await self.inner.rollback()

    async def close(self) -> None:
        await self.inner.close()


@contextlib.contextmanager
def wrapped(wrap: Callable[[WriteSession], WriteSession]) -> Iterator[None]:
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
