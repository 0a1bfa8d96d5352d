"""A store with rows of every kind, and direct changes of its database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from store.db.schema import triggers
from store.db.tables import core as core_tables
from store.db.url import StoreURL, parse
from store.errors import NotFound
from store.interface.store import Store
from store.models import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig
from store.testing import ManualClock
from store.testing.samples import make_prompt, make_span
from tests import postgres

REWARD = {"agentlightning.reward.0.name": "score", "agentlightning.reward.0.value": 0.25}

SPAN = "(rollout_id, attempt_id, span_id, sequence_id, trace_id, name, status_code, position)"
"""The columns that every row of `spans` has a value in."""


_END = "-- end of the rows --"
"""The line that marks the end of the rows of a query."""


async def fill(store: Store, clock: ManualClock) -> AttemptedRollout:
    """Make rows in every table: rollouts queuing, requeued, running and ended, a reward, a timeout, resources twice."""
    await store.add_resources(make_prompt())
    latest = await store.add_resources(make_prompt())
    await store.update_resources(latest.resources_id, make_prompt("Say {word}"))
    requests = [
        EnqueueRolloutRequest(
            input={"number": number},
            metadata={"rollbook.group": "g1", "rollbook.step": 7, "rollbook.key": f"k{number}"},
        )
        for number in range(4)
    ]
    await store.enqueue_many_rollouts(requests)
    first = await claimed(store, "w1")
    await store.add_many_spans([make_span(first.attempt, number, attributes=REWARD) for number in (1, 2, 3)])
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
    running = await claimed(store, "w2")
    await store.add_span(make_span(running.attempt, name="thinking"))
    config = RolloutConfig(timeout_seconds=5, max_attempts=2, retry_condition=["timeout"])
    late = await store.start_rollout({"late": True}, config=config)
    clock.advance(6)
    await store.query_rollouts()
    assert (await store.get_latest_attempt(late.rollout_id) or late.attempt).status == "timeout"
    await store.update_rollout(late.rollout_id, metadata={"note": "again"})
    return first


async def claimed(store: Store, worker_id: str | None = None) -> AttemptedRollout:
    """Claim the head of the queue, which is not empty."""
    rollout = await store.dequeue_rollout(worker_id)
    assert rollout is not None
    return rollout


async def untouched(store: Store) -> None:
    """Demand that the store is what its log says."""
    report = await store.log.verify()
    assert report.differences == []


async def is_there(store: Store, rollout_id: str) -> bool:
    """Say whether a rollout has a history."""
    try:
        return bool(await store.log.history(rollout_id))
    except NotFound:
        return False


async def tamper(url: str, *statements: str) -> None:
    """Run SQL with the guards of the log out of the way, and put them back; names of tables need no schema."""
    await asyncio.to_thread(_run, parse(url), statements, guarded=False)


async def run_sql(url: str, *statements: str) -> None:
    """Run SQL on the store's database from outside; names of tables need no schema."""
    await asyncio.to_thread(_run, parse(url), statements, guarded=True)


async def ask(url: str, query: str) -> list[list[str]]:
    """Return the rows of a query as texts."""
    (rows,) = await asyncio.to_thread(_ask_many, parse(url), [query])
    return rows


async def contents(url: str, tables: Iterable[str]) -> dict[str, list[list[str]]]:
    """Return the sorted rows of each table as texts."""
    names = list(tables)
    contents_by_table = await asyncio.to_thread(_ask_many, parse(url), [f"SELECT * FROM {name}" for name in names])
    return {name: sorted(rows) for name, rows in zip(names, contents_by_table, strict=True)}


def blob(value: bytes, url: str) -> str:
    """Return bytes as a literal of the URL's database."""
    return f"X'{value.hex()}'" if parse(url).scheme == "sqlite" else f"'\\x{value.hex()}'::bytea"


def _run(url: StoreURL, statements: tuple[str, ...], *, guarded: bool) -> None:
    if url.path is not None:
        with closing(sqlite3.connect(url.path, isolation_level=None)) as connection:
            before = [] if guarded else [f"DROP TRIGGER {name}" for name in triggers.trigger_names("sqlite")]
            after = () if guarded else triggers.statements("sqlite")
            for statement in (*before, *statements, *after):
                connection.execute(statement)
        return
    lines = list(statements)
    if not guarded:
        lines[:0] = [f"ALTER TABLE {table.name} DISABLE TRIGGER ALL" for table in core_tables.LOG]
        guards = [guard for guard in triggers.expected("postgresql") if guard.kind == "trigger"]
        lines += [f"ALTER TABLE {guard.table} ENABLE ALWAYS TRIGGER {guard.name}" for guard in guards]
    path = f"SET search_path = rollbook_{url.partition}"
    postgres.execute(url.text, ";\n".join([path, *lines, ""]))


def _ask_many(url: StoreURL, queries: Sequence[str]) -> list[list[list[Any]]]:
    if url.path is not None:
        with closing(sqlite3.connect(url.path)) as connection:
            return [[[str(value) for value in row] for row in connection.execute(query)] for query in queries]
    # One psql runs all queries, because its start takes longer than the queries.
    script = "".join(f"{query};\n\\echo {_END}\n" for query in queries)
    answers: list[list[list[Any]]] = [[]]
    for line in postgres.execute(url.text, f"SET search_path = rollbook_{url.partition};\n{script}").splitlines():
        if line == _END:
            answers.append([])
        else:
            answers[-1].append(line.split("|"))
    return answers[:-1]
