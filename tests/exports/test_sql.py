"""Statements in SQL over a store: equal for every store, in exported databases and in DuckDB, and only reading."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs] - asyncpg has no type hints
import pytest

from store import open_store, open_sync
from store.errors import Invalid
from store.exports import export_postgres, export_sqlite, export_store, query_sql
from store.exports.databases import temporary
from store.exports.databases.functions import add_functions
from store.interface.store import Store
from store.models.queries import RolloutQuery
from store.operations import compact
from tests.exports.agents import fill

_driver: Any = asyncpg

STATEMENTS = (
    "SELECT * FROM curves ORDER BY step, mode",
    "SELECT rollout_id, step, mode, status, reward, input->>'question' AS question FROM rollouts ORDER BY rollout_id",
    """
    SELECT name, count(*) AS spans, max(attributes->>'gen_ai.request.model') AS model
    FROM spans GROUP BY name ORDER BY name
    """,
    """
    SELECT m.role, m.content, c.completion_tokens, r.reward
    FROM messages m JOIN model_calls c USING (rollout_id, attempt_id, call) JOIN rollouts r USING (rollout_id)
    ORDER BY rollout_id, m.attempt_id, call, place
    """,
    """
    SELECT name, reward_version, sum(value) AS total
    FROM rewards GROUP BY name, reward_version ORDER BY name, reward_version
    """,
    """
    SELECT t.agent_name, count(*) AS calls
    FROM triplets t JOIN attempts a USING (rollout_id, attempt_id) GROUP BY t.agent_name
    """,
)
"""Statements that SQLite, Postgres and DuckDB understand."""


@pytest.fixture(scope="session")
def results(sqlite_url: str) -> list[list[tuple[Any, ...]]]:
    """The rows of the statements over the store on SQLite."""
    with open_sync(sqlite_url, read_only=True) as store:
        rows = [query_sql(store, statement).rows for statement in STATEMENTS]
    assert [len(of_statement) for of_statement in rows] == [4, 8, 3, 59, 6, 1]
    return rows


async def test_a_statement_returns_the_same_rows_from_every_store(
    any_store: Store, results: list[list[tuple[Any, ...]]]
) -> None:
    assert [(await query_sql(any_store, statement)).rows for statement in STATEMENTS] == results


async def test_a_statement_returns_the_same_rows_in_duckdb_over_an_export(
    store: Store, results: list[list[tuple[Any, ...]]], tmp_path: Path
) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    await export_store(store, "parquet", tmp_path / "out")
    with duckdb.connect() as connection:
        connection.execute(f"SET file_search_path = '{tmp_path / 'out'}'")
        connection.execute((tmp_path / "out" / "views.sql").read_text())
        assert [connection.sql(statement).fetchall() for statement in STATEMENTS] == results


async def test_a_statement_returns_the_same_rows_in_an_exported_file(
    store: Store, results: list[list[tuple[Any, ...]]], tmp_path: Path
) -> None:
    report = await export_sqlite(store, tmp_path / "views.db")
    assert (report.rollouts, report.rows["rollouts"]) == (8, 8)
    with closing(sqlite3.connect(tmp_path / "views.db")) as connection:
        add_functions(connection)  # newer versions of SQLite need none for these statements
        assert [connection.execute(statement).fetchall() for statement in STATEMENTS] == results
        assert connection.execute("SELECT position FROM export_origin").fetchall() == [(report.position,)]


@pytest.mark.postgres
async def test_a_statement_returns_the_same_rows_in_an_exported_schema(
    store: Store, results: list[list[tuple[Any, ...]]], postgres_server: str
) -> None:
    await export_postgres(store, postgres_server, schema="views")
    connection: Any = await _driver.connect(postgres_server)
    try:
        await connection.execute("SET search_path TO views")
        rows = [[tuple(row) for row in await connection.fetch(statement)] for statement in STATEMENTS]
        assert rows == results
        seconds = "SELECT max(extract(epoch FROM end_time - start_time)) FROM spans"
        assert float(await connection.fetchval(seconds)) == 0.5
        assert await connection.fetchval("SELECT obj_description('rollouts'::regclass)") == "One row for each rollout."
    finally:
        await connection.execute("DROP SCHEMA views CASCADE")
        await connection.close()


async def test_statements_see_the_data_of_a_compacted_store(durable_url: str) -> None:
    for _ in range(4):
        await fill(durable_url)
    statements = [*STATEMENTS, "SELECT position, data, body FROM events ORDER BY position"]

    async def rows() -> list[Any]:
        async with await open_store(durable_url, read_only=True) as store:
            return [(await query_sql(store, statement)).rows for statement in statements]

    before = await rows()
    report = await compact(durable_url)
    assert report.events > 0
    assert await rows() == before
    assert all(data.startswith("{") for _, data, _ in before[-1])


@pytest.mark.parametrize(
    "statement,reason",
    [
        ("DELETE FROM rollouts", "it would change tables or settings"),
        ("WITH a AS (SELECT 1) INSERT INTO rollouts (step) SELECT * FROM a", "it would change tables or settings"),
        ("ATTACH '/tmp/other.db' AS other", "it would change tables or settings"),
        ("PRAGMA journal_mode = WAL", "it would change tables or settings"),
        ("VACUUM INTO '/tmp/copy.db'", "it would change tables or settings"),
        ("BEGIN", "it would change tables or settings"),
        ("SELECT load_extension('x')", "not authorized"),
        ("SELECT 1; SELECT 2", "it contains several statements; give one"),
        (" ;\n", "is empty; write for example: SELECT"),
        ("SELECT", "incomplete input"),
        ("SELECT ?", "Incorrect number of bindings"),
        ("SELECT 'a\0b'", "null character"),
        ("SELECT * FROM rolouts", "no such table: rolouts; the tables are rollouts, attempts, spans"),
        ("SELECT missing FROM curves", "no such column: missing; the columns of curves are step, mode"),
        ("SELECT epoch(name) FROM spans", "user-defined function raised exception"),
        ("SELECT length(zeroblob(900000000))", "too big"),
        ("SELECT length(replace(hex(zeroblob(500000)), '0', hex(zeroblob(500000))))", "too big"),
    ],
)
async def test_a_statement_that_fails_or_does_not_only_read_is_refused(
    statement: str, reason: str, store: Store
) -> None:
    with pytest.raises(Invalid) as refused:
        await query_sql(store, statement)
    assert (refused.value.field, reason in str(refused.value)) == ("statement", True), str(refused.value)


async def test_a_statement_ends_after_its_time(store: Store) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    began = time.monotonic()
    with pytest.raises(Invalid, match=r"has no result after 0\.2 s; choose fewer rollouts"):
        await query_sql(store, endless, seconds=0.2)
    with pytest.raises(Invalid, match=r"has no result after 1e-06 s"):
        await query_sql(store, "SELECT count(*) FROM spans", seconds=1e-6)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(query_sql(store, endless), 0.2)
    assert time.monotonic() - began < 30  # of 60 s by default


async def test_a_result_has_at_most_the_limited_number_of_rows(store: Store) -> None:
    result = await query_sql(store, "SELECT rollout_id FROM rollouts", limit=3)
    assert (result.columns, len(result.rows), result.is_truncated, result.rollouts) == (["rollout_id"], 3, True, 8)
    assert not (await query_sql(store, "SELECT 1", limit=1)).is_truncated
    assert len((await query_sql(store, "SELECT rollout_id FROM rollouts", limit=-1)).rows) == 8
    for limit, seconds in ((-2, 1.0), (1, 0.0)):
        with pytest.raises(Invalid, match="is not a number"):
            await query_sql(store, "SELECT 1", limit=limit, seconds=seconds)


async def test_a_result_has_at_most_the_limited_number_of_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_RESULT_BYTES", 100)
    numbers = "SELECT hex(zeroblob(25)) FROM rollouts"
    assert len((await query_sql(store, numbers, limit=1)).rows) == 1
    for limit in (2, -1):
        with pytest.raises(Invalid, match="has a result of more than 100 bytes; select fewer columns or rows"):
            await query_sql(store, numbers, limit=limit)


async def test_conditions_and_a_position_choose_the_rollouts_of_a_statement(store: Store) -> None:
    statement = "SELECT count(*) FROM rollouts"
    assert (await query_sql(store, statement, RolloutQuery.of(mode_in=["val"]))).rows == [(2,)]
    assert (await query_sql(store, statement, RolloutQuery(as_at=0))).rows == [(0,)]


async def test_functions_describe_columns_and_compute_figures(store: Store) -> None:
    statement = (
        "SELECT median(epoch(end_time) - epoch(start_time)), round(stddev(sequence_id), 3), epoch(NULL) FROM spans"
    )
    assert (await query_sql(store, statement)).rows == [(0.5, 1.152, None)]
    empty = "SELECT median(reward), stddev(reward) FROM rollouts WHERE step = 99"
    assert (await query_sql(store, empty)).rows == [(None, None)]
    described = await query_sql(store, "SELECT name, type FROM pragma_table_info('rewards')")
    assert described.rows[0] == ("rollout_id", "TEXT")
    assert (await query_sql(store, "SELECT value FROM json_each('[1, 2]')")).rows == [(1,), (2,)]


def test_search_and_replacement_in_values_are_those_of_sqlite() -> None:
    texts = ["banana", "an", "äöa", "0", ""]
    values = [*texts, *(text.encode() for text in texts), 1020, 0, 1.5, 2.0, 1e20, float("-inf"), None]
    with closing(sqlite3.connect(":memory:")) as plain, closing(sqlite3.connect(":memory:")) as extended:
        add_functions(extended)
        for triple in itertools.product(values, repeat=3):
            statement = "SELECT instr(?1, ?2), CAST(replace(?1, ?2, ?3) AS TEXT)"
            expected = plain.execute(statement, triple).fetchone()
            assert (triple, extended.execute(statement, triple).fetchone()) == (triple, expected)


@pytest.mark.parametrize("join", ["NATURAL JOIN model_calls", 'JOIN "model_calls" USING (rollout_id, [span_id])'])
async def test_columns_that_only_join_are_read(join: str, store: Store) -> None:
    assert (await query_sql(store, f"SELECT count(*) FROM messages {join}")).rows == [(59,)]
