"""Tables of an index in the schema of a partition. Decision 108."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from sqlalchemy import MetaData, Table
from sqlalchemy.schema import CreateTable

from store.db.dialect import Dialect, NamedRow, Params, ReadSession, Row, Sql
from store.db.drivers.postgres.column_types import column_types
from store.db.drivers.postgres.pool import Connections
from store.db.index_place import IndexPlace, IndexSession, OnConflict, conflict_clause, index_states
from store.db.schema import lock_key

_LOCK_SECONDS = 10
_STATEMENT_SECONDS = 60


class IndexTables(IndexPlace):
    """Tables in the schema of the partition, and an advisory lock for each index."""

    def __init__(
        self,
        dialect: Dialect,
        name: str,
        connections: Connections,
        translated: Callable[[], AbstractContextManager[None]],
        vacuum: Callable[..., Awaitable[bool]],
    ) -> None:
        super().__init__(dialect, name)
        self._connections, self._translated, self._vacuum = connections, translated, vacuum
        self._schema = f'"{dialect.schema}"'
        self._key = lock_key(f"{name} index of {dialect.schema}")

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[IndexSession]:
        with self._translated():
            async with self._connections.reader() as connection, connection.transaction():
                await connection.execute(
                    f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s';"
                    f" SET LOCAL statement_timeout = '{_STATEMENT_SECONDS}s'; SET LOCAL jit = off;"
                    # The index is made again from the log if the last transactions are lost.
                    " SET LOCAL synchronous_commit = off;"
                    f" SET LOCAL search_path = {self._schema}, pg_catalog"
                )
                await connection.execute(f"SELECT pg_advisory_xact_lock({self._key})")
                if not await self._has_states(connection):
                    await connection.execute(f"SELECT pg_advisory_xact_lock({lock_key(f'indexes of {self._schema}')})")
                    created = CreateTable(index_states, if_not_exists=True)
                    await connection.execute(str(created.compile(dialect=self.dialect.compiler)))
                yield IndexTablesSession(self.dialect, connection)

    async def _has_states(self, connection: Any) -> bool:
        return await connection.fetchval(f"SELECT to_regclass('{self._schema}.{index_states.name}') IS NOT NULL")

    @asynccontextmanager
    async def visible(self, session: ReadSession) -> AsyncGenerator[bool]:
        text = f"SELECT to_regclass('{self._schema}.{index_states.name}') IS NOT NULL AS is_there"
        rows = await session.fetch(Sql(text, (), {}), {})
        yield bool(rows[0][0])

    async def exists(self) -> bool:
        async with self._connections.reader() as connection:
            if not await self._has_states(connection):
                return False
            text = f"SELECT count(*) FROM {self._schema}.{index_states.name} WHERE name = $1"
            return bool(await connection.fetchval(text, self.name))

    async def drop(self, tables: Sequence[str]) -> None:
        async with self.transaction() as session:
            for table in tables:
                await session.execute(f"DROP TABLE IF EXISTS {self._schema}.{table}")
            await session.delete(index_states, "name", [self.name])

    async def erase(self, tables: Sequence[str]) -> bool:
        return await self._vacuum([Table(name, MetaData()) for name in tables], rewrite=False)

    async def size_bytes(self, tables: Sequence[str]) -> int:
        text = "SELECT coalesce(sum(pg_total_relation_size(to_regclass(t))), 0)::bigint FROM unnest($1::text[]) t"
        with self._translated():
            async with self._connections.reader() as connection:
                return await connection.fetchval(text, [f"{self._schema}.{table}" for table in tables])

    async def close(self) -> None:
        """Do nothing: the connections belong to the dialect."""


class IndexTablesSession(IndexSession):
    """A transaction on the tables of an index, whose search path is the schema of the partition."""

    def __init__(self, dialect: Dialect, connection: Any) -> None:
        self.dialect = dialect
        self.connection = connection

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        return sql.named(await self.connection.fetch(sql.text, *sql.args(params)))

    async def execute(self, text: str, rows: Sequence[Row] | None = None) -> None:
        if rows is None:
            await self.connection.execute(text)
        else:
            await self.connection.executemany(text, rows)

    async def run(self, sql: Sql, params: Params) -> None:
        await self.connection.execute(sql.text, *sql.args(params))

    async def write(self, table: Table, rows: Sequence[Row], on_conflict: OnConflict | None = None) -> None:
        if not rows:
            return
        names = [column.name for column in table.columns]
        types = column_types(table)
        lists = ", ".join(f"${number}::{types[name]}[]" for number, name in enumerate(names, 1))
        columns = ", ".join(names)
        # A column may name the type of Postgres into which its texts are converted.
        values = ", ".join(
            f"{name}::{kind}" if (kind := table.c[name].info.get("postgresql")) else name for name in names
        )
        text = f"INSERT INTO {table.name} ({columns}) SELECT {values} FROM unnest({lists}) AS rows({columns})"
        await self.connection.execute(text + conflict_clause(table, on_conflict), *zip(*rows, strict=True))
