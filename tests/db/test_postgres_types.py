"""Connections to Postgres read the descriptions of built-in types once per process."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs] (it ships none)
import pytest

from store.db.schema.postgres_types import TypesConnection


async def _statements(url: str, query: str, *values: object) -> list[str]:
    """Run a query that returns its arguments on a new connection; return all statements that the server gets."""
    dsn = urlunsplit(urlsplit(url)._replace(query=""))
    connection: Any = await cast("Any", asyncpg).connect(dsn, connection_class=TypesConnection)
    statements: list[str] = []

    def note(record: Any) -> None:
        statements.append(record.query)

    connection.add_query_logger(note)
    try:
        assert list(await connection.fetchrow(query, *values)) == list(values)
    finally:
        await connection.close()
    return statements


_EMPTY: list[object] = []
_BUILT_IN: list[tuple[str, list[object]]] = [
    ("SELECT $1::inet[], $2::time[]", [_EMPTY, _EMPTY]),
    ("SELECT $1::float4[]", [[1.5, 2.0]]),
]


@pytest.mark.parametrize("query,values", _BUILT_IN)
async def test_connections_read_a_built_in_type_once_per_process(
    postgres_url: str, query: str, values: list[object]
) -> None:
    first, second = [await _statements(postgres_url, query, *values) for _ in range(2)]
    assert (len(first) > 1, second) == (True, [query])


async def test_each_connection_reads_the_types_of_its_database(postgres_url: str) -> None:
    name = "mood_of_a_test"
    dsn = urlunsplit(urlsplit(postgres_url)._replace(query=""))
    connection: Any = await cast("Any", asyncpg).connect(dsn)
    await connection.execute(f"CREATE TYPE {name} AS ENUM ('calm')")
    try:
        query = f"SELECT $1::{name}[]"
        first, second = [await _statements(postgres_url, query, ["calm"]) for _ in range(2)]
        assert len(first) == len(second) > 1
    finally:
        await connection.execute(f"DROP TYPE {name}")
        await connection.close()
