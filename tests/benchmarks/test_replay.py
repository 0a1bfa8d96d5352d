"""Replay of recorded rollouts to an algorithm, beside reading the same rollouts and spans from the same store.

ROLLBOOK_BENCH_ROLLOUTS sets the number of rollouts.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from store import Span, open_store
from store.interface.store import Store
from store.replaying import ReplayStore
from store.training import Plan
from tests.benchmarks.conftest import IS_QUICK, load
from tests.benchmarks.report import TIMES, Report, Target
from tests.benchmarks.texts import words

pytestmark = pytest.mark.benchmark

ROLLOUTS = int(os.environ.get("ROLLBOOK_BENCH_ROLLOUTS", "2000" if IS_QUICK else "20000"))
CALLS = 5
ROUNDS = 3
BATCH = 500
_DICE = random.Random(7)

TARGETS = {
    f"{database}.replay": Target(f"{name}: rollouts/s of a replay ÷ reading rollouts and spans", TIMES, 0.5, 0.8)
    for database, name in (("sqlite", "SQLite"), ("postgres", "Postgres"))
}


@pytest.fixture(scope="module")
def figures() -> Iterator[Report]:
    print()
    report = Report(TARGETS, "bench-replay")
    report.fact("load average before", load())
    report.fact("size", f"{ROLLOUTS:,} rollouts with {CALLS} calls, in batches of {BATCH}")
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


def test_sqlite(sqlite_url: Callable[[], str], figures: Report) -> None:
    asyncio.run(_measure("sqlite", "SQLite", sqlite_url(), figures))


def test_postgres(postgres_url: Callable[[], str], figures: Report) -> None:
    asyncio.run(_measure("postgres", "Postgres", postgres_url(), figures))


async def _measure(database: str, name: str, url: str, figures: Report) -> None:
    async with await open_store(url) as store:
        for step in range(ROLLOUTS // BATCH):
            await _record(store, step)
    async with await open_store(url, read_only=True) as store:
        # A machine that changes its speed changes both sides of a round.
        rounds = [(await _replay(ReplayStore(store)), await _read(store)) for _ in range(ROUNDS)]
    replayed, plain = (statistics.median(side) for side in zip(*rounds, strict=True))
    figures.fact(f"{name}: rollouts/s", f"{replayed:,.0f} replayed, {plain:,.0f} read")
    figures.figure(f"{database}.replay", statistics.median(ours / theirs for ours, theirs in rounds))


async def _replay(store: Store) -> float:
    """Return the rollouts per second of an algorithm that enqueues batches, and reads the spans of ended rollouts."""
    began, spans = time.perf_counter(), 0
    plan = Plan("bench")
    for step in range(ROLLOUTS // BATCH):
        rollouts = await plan.enqueue(store, range(step * BATCH, (step + 1) * BATCH), epoch=step)
        ended = [rollout.rollout_id async for rollout in plan.finished(store, rollouts)]
        spans += len(await store.query_spans(ended, "latest"))
    assert spans == ROLLOUTS * CALLS
    return ROLLOUTS / (time.perf_counter() - began)


async def _read(store: Store) -> float:
    """Return the rollouts per second of a program that reads rollouts and spans."""
    began, spans = time.perf_counter(), 0
    for step in range(ROLLOUTS // BATCH):
        rollouts = await store.query_rollouts(limit=BATCH, offset=step * BATCH)
        spans += len(await store.query_spans([rollout.rollout_id for rollout in rollouts], "latest"))
    assert spans == ROLLOUTS * CALLS
    return ROLLOUTS / (time.perf_counter() - began)


async def _record(store: Store, step: int) -> None:
    plan = Plan("bench")
    await plan.enqueue(store, range(step * BATCH, (step + 1) * BATCH), epoch=step)
    claimed = await store.dequeue_many_rollouts(BATCH, "worker-1")
    spans: list[Span] = []
    for rollout in claimed:
        ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        for number in range(1, CALLS + 1):
            texts = {"gen_ai.prompt.0.content": words(_DICE, 400), "gen_ai.completion.0.content": words(_DICE, 200)}
            spans.append(Span.from_attributes(**ids, sequence_id=number, name="call", attributes=texts))
    await store.add_many_spans(spans)
    ends = [store.update_attempt(rollout.rollout_id, "latest", "succeeded") for rollout in claimed]
    await asyncio.gather(*ends)
