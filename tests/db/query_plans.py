"""The plans that databases choose for the statements of the most frequent calls.

`python -m tests.db.query_plans` records them. The plans belong to the versions of the databases that the files name;
another version may choose others.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Select

from store.db.dialect import Dialect, NamedRow, Params, ReadSession, Sql, WriteSession
from store.models import AttemptedRollout
from store.models.queries import RolloutQuery, SpanQuery
from store.opening import open_store
from store.sql.json_pages import JSONPages
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.databases import connect
from tests.faults.sessions import Wrapped, wrapped
from tests.postgres import PostgresServer, with_partition

_RANDOM_ID = re.compile(r"\b(ro|at|rs)-[0-9a-f]+")

Plans = dict[str, list[list[str]]]
"""By call the plans of its statements, each as lines."""


@dataclass
class Statements:
    """The statements of one call with their parameters, each text once."""

    by_text: dict[str, tuple[Sql, Params]] = field(default_factory=dict[str, tuple[Sql, Params]])
    dialect: Dialect | None = None

    def add(self, sql: Sql, params: Params) -> None:
        """Record a statement, unless its text is that of an earlier one."""
        if sql.text.startswith(("SELECT", "WITH")):
            self.by_text.setdefault(sql.text, (sql, params))


class Reading(ReadSession):
    """A session that records its statements."""

    def __init__(self, inner: ReadSession, statements: Statements) -> None:
        self.inner, self.dialect, self.statements = inner, inner.dialect, statements

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        self.statements.add(sql, params)
        return await self.inner.fetch(sql, params)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        self.statements.add(sql, params)
        async for rows in self.inner.stream(sql, params, batch=batch):
            yield rows


class Loading(Wrapped):
    """A writing session that records the statements by which it loads rows."""

    def __init__(self, inner: WriteSession, statements: Statements) -> None:
        super().__init__(inner)
        self.statements = statements

    async def load(self, queries: Sequence[Select[Any]], params: Params) -> Sequence[Sequence[NamedRow]]:
        if self.statements.dialect is not None:
            for query in queries:
                self.statements.add(self.statements.dialect.sql(query), params)
        return await super().load(queries, params)


async def plans_of(url: str) -> Plans:
    """Return the plans of the most frequent calls on a new partition."""
    statements = Statements()
    with wrapped(lambda session: Loading(session, statements)):
        store = await open_store(url, clock=ManualClock(), scan_debounce_seconds=3600)
    assert isinstance(store, SQLStore)
    dialect = store.core.dialect
    statements.dialect, read = dialect, dialect.read

    @asynccontextmanager
    async def recording(*, snapshot: bool = False) -> AsyncGenerator[ReadSession]:
        async with read(snapshot=snapshot) as session:
            yield Reading(session, statements)

    async def explain(session: ReadSession) -> list[list[str]]:
        assert isinstance(session, Reading)
        recorded = list(statements.by_text.values())
        return [await _plan(session.inner, dialect, sql, params) for sql, params in recorded]

    plans: Plans = {}
    try:
        await _fill(store)
        dialect.read = recording
        for name, call in _calls(store).items():
            statements.by_text.clear()
            await call()
            plans[name] = await store.core.read(explain, snapshot=True)
    finally:
        await store.close()
    return plans


async def _fill(store: SQLStore) -> None:
    await store.add_resources({})
    for number in range(3):
        await store.enqueue_rollout({"question": number})
    started = await store.start_rollout({"question": 3}, worker_id="worker-1")
    await store.add_span(make_span(started.attempt, 1))


def _calls(store: SQLStore) -> dict[str, Callable[[], Awaitable[object]]]:
    pages = JSONPages(store.core)
    running: list[AttemptedRollout] = []

    async def claim() -> None:
        rollout = await store.dequeue_rollout("worker-2")
        assert rollout is not None
        running.append(rollout)

    def beat() -> Awaitable[object]:
        attempt = running[0].attempt
        return store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="running")

    def newest() -> Awaitable[object]:
        return store.query_rollouts(status_in=["running"], sort_by="start_time", sort_order="desc", limit=1)

    return {
        "dequeue_rollout": claim,
        "add_span": lambda: store.add_span(make_span(running[0].attempt, 1)),
        "update_attempt": beat,
        "get_rollout_by_id": lambda: store.get_rollout_by_id(running[0].rollout_id),
        "get_rollout_by_id in the past": lambda: store.get_rollout_by_id(running[0].rollout_id, as_at=2),
        "query_rollouts": newest,
        "query_rollouts as JSON": lambda: pages.write_rollouts(len, RolloutQuery(limit=1)),
        "query_attempts": lambda: store.query_attempts(running[0].rollout_id),
        "get_latest_attempt": lambda: store.get_latest_attempt(running[0].rollout_id),
        "query_spans": lambda: store.query_spans(running[0].rollout_id, "latest", sort_by="sequence_id", limit=1),
        "query_spans as JSON": lambda: pages.write_spans(len, SpanQuery(rollout_id=running[0].rollout_id)),
        "get_latest_resources": store.get_latest_resources,
        "query_workers": store.query_workers,
        "wait_for_rollouts": lambda: store.wait_for_rollouts([running[0].rollout_id], timeout=0),
        "statistics": store.statistics,
    }


async def _plan(session: ReadSession, dialect: Dialect, sql: Sql, params: Params) -> list[str]:
    if dialect.schema is None:
        explained = replace(sql, text=f"EXPLAIN QUERY PLAN {sql.text}", places=None, make_row=None)
        depths = {0: 0}
        lines: list[str] = []
        for number, parent, _, detail in await session.fetch(explained, params):
            depths[number] = depths[parent] + 1
            lines.append("  " * depths[parent] + detail)
        return lines
    # Small tables would be read whole, whatever indexes there are.
    await session.fetch(Sql("SELECT set_config('enable_seqscan', 'off', true)", (), {}), {})
    explained = replace(sql, text=f"EXPLAIN (COSTS OFF) {sql.text}", places=None, make_row=None)
    return [_RANDOM_ID.sub(r"\1-…", line) for (line,) in await session.fetch(explained, params)]


async def version_of(url: str) -> str:
    """Return the version of the database that chooses the plans: of Postgres the major version."""
    if url.startswith("sqlite"):
        return sqlite3.sqlite_version
    database = await connect(url)
    try:
        ((number,),) = await database.rows("SHOW server_version_num")
        return number[:-4]
    finally:
        await database.close()


async def _record() -> None:
    with tempfile.TemporaryDirectory() as directory, PostgresServer.start() as server:
        for url in (f"sqlite:///{directory}/plans.db", with_partition(server.url)):
            content = {"version": await version_of(url), "plans": await plans_of(url)}
            snapshot(url).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def snapshot(url: str) -> Path:
    """Return the file with the plans of the kind of database at a URL."""
    kind = url.partition(":")[0]
    return Path(__file__).parents[1] / f"snapshots/query_plans_{kind}.json"


if __name__ == "__main__":
    asyncio.run(_record())
