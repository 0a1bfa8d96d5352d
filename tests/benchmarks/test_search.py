"""Search over conversations: time of a page, size of the index, speed of recording beside the follower, and its lag.

ROLLBOOK_BENCH_ROLLOUTS sets the number of rollouts. Each has ten spans: five calls that repeat the conversation so far,
and five calls of a tool.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from store import Span, open_store
from store.indexing.background import IndexThread
from store.indexing.following import IndexFollower
from store.indexing.reading import catch_up, lag_of
from store.indexing.search.index import SearchIndex
from store.models import AttemptedRollout, EnqueueRolloutRequest, TraceStatus
from store.models.queries import RolloutQuery
from store.sql.store import SQLStore
from tests.benchmarks.conftest import IS_QUICK, load, stored_before
from tests.benchmarks.report import TIMES, Report, Target, at_most
from tests.benchmarks.texts import words

pytestmark = pytest.mark.benchmark

ROLLOUTS: Final = int(os.environ.get("ROLLBOOK_BENCH_ROLLOUTS", "1000" if IS_QUICK else "100000"))
TURNS: Final = 5
AT_ONCE: Final = 100
BURST: Final = 2 if IS_QUICK else 20
"""The number of calls of `_record` whose speed is measured together."""
ROUNDS: Final = 2 if IS_QUICK else 6
SEARCHES: Final = 200
_DICE: Final = random.Random(7)
# A few words are frequent and most are rare, as in natural language.
_WORDS: Final = words(_DICE, 40_000).split()[:4_000]
_WEIGHTS: Final = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(_WORDS))))
_RARE: Final = [f"term{number}" for number in range(20_000)]

TARGETS = {
    f"{database}.{key}": target
    for database, name in (("sqlite", "SQLite"), ("postgres", "Postgres"))
    for key, target in {
        "p50": at_most(f"{name}: first page of a search, p50", "ms", 150, 50),
        "p99": at_most(f"{name}: first page of a search, p99", "ms", 600, 200),
        "size": at_most(f"{name}: index ÷ recorded text", TIMES, 0.35, 0.2),
        "recording": Target(f"{name}: spans/s with the follower ÷ without", TIMES, 0.97, 1.0),
    }.items()
}


@pytest.fixture(scope="module")
def figures() -> Iterator[Report]:
    print()
    report = Report(TARGETS, "bench-search")
    report.fact("load average before", load())
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
    async with await open_store(stored_before(url) or url) as store:
        assert isinstance(store, SQLStore)
        figures.figure(f"{database}.recording", await _recorded_beside(store))
        figures.fact(f"{name}: lag after a burst", await _lag(store))
        before = total = int((await store.statistics()).get("total_rollouts", 0))
        characters = 0
        while total < max(ROLLOUTS, before + AT_ONCE):
            characters += await _record(store, AT_ONCE)
            total += AT_ONCE
        began, first = time.perf_counter(), await store.core.read(lambda session: lag_of(session, SearchIndex()))
        lag = await catch_up(store.core.dialect, SearchIndex(), None)
        added = lag.position - (0 if first is None else first.position)
        figures.fact(f"{name}: adding to the index", f"{added:,} events in {time.perf_counter() - began:.1f} s")
        size = await _size(store)
        share = characters * total / max(total - before, AT_ONCE)
        figures.figure(f"{database}.size", size / share)
        figures.fact(f"{name}: rollouts with {2 * TURNS} spans each", f"{total:,}")
        figures.fact(f"{name}: index and text", f"{size / 1e6:,.1f} MB and {share / 1e6:,.1f} MB")
        await _search(database, name, store, figures)


async def _recorded_beside(store: SQLStore) -> float:
    """Return the speed of recording beside a follower ÷ the speed without.

    The order of the two measurements alternates. Each lasts several checkpoints of the database, because the speed
    without a follower varies by a tenth over shorter times.
    """
    ratios: list[float] = []
    await _speed(store)
    for number in range(ROUNDS):
        speeds: dict[bool, float] = {}
        for is_followed in (True, False) if number % 2 else (False, True):
            thread = IndexThread([SearchIndex()] if is_followed else [])
            thread.follow("main", store.core.dialect)
            await asyncio.sleep(0.5)
            speeds[is_followed] = await _speed(store)
            await asyncio.to_thread(thread.close)
        ratios.append(speeds[True] / speeds[False])
    return statistics.median(ratios)


async def _lag(store: SQLStore) -> str:
    """Return the number of events that a follower is behind after a burst, and the time to read them."""
    thread = IndexThread([SearchIndex()])
    await catch_up(store.core.dialect, SearchIndex(), None)
    thread.follow("main", store.core.dialect)
    for _ in range(2):
        await _record(store, AT_ONCE)
    began, behind = time.perf_counter(), list[int]()
    while not behind or behind[-1]:
        lag = await store.core.read(lambda session: lag_of(session, SearchIndex()))
        behind.append(0 if lag is None else lag.events_behind)
        await asyncio.sleep(0.05)
    await asyncio.to_thread(thread.close)
    return f"{behind[0]:,} events, which took {time.perf_counter() - began:.1f} s"


async def _speed(store: SQLStore) -> float:
    began = time.perf_counter()
    for _ in range(BURST):
        await _record(store, AT_ONCE)
    return BURST * AT_ONCE * 2 * TURNS / (time.perf_counter() - began)


async def _size(store: SQLStore) -> int:
    follower = IndexFollower(store.core.dialect, store.store_id, SearchIndex())
    reading = follower.place.size_bytes(follower.index.table_names)
    return await (store.core.thread.run(reading) if store.core.dialect.loop_bound else reading)


async def _search(database: str, name: str, store: SQLStore, figures: Report) -> None:
    queries: list[tuple[str, RolloutQuery | None]] = []
    for number in range(SEARCHES):
        common, rare = _DICE.choice(_WORDS), _DICE.choice(_RARE)
        queries.append(
            (
                (common, None),
                (rare, None),
                (f"{common} {_DICE.choice(_WORDS)} {rare}", None),
                (f'"{common} {_DICE.choice(_WORDS)}"', None),
                (f"{common[:3]}*", None),
                (f"tool:bash:{common} -{rare}", None),
                (f"role:user:{common} role:assistant:{_DICE.choice(_WORDS)}", None),
                (common, RolloutQuery(status_in=["succeeded"], step_in=[_DICE.randrange(ROLLOUTS // 64 + 1)])),
            )[number % 8]
        )
    times: list[tuple[float, str]] = []
    for query, rollouts in queries:
        began = time.perf_counter()
        await store.log.search(query, rollouts=rollouts)
        times.append((1000 * (time.perf_counter() - began), query))
    ordered = sorted(times)
    figures.figure(f"{database}.p50", ordered[len(ordered) // 2][0])
    figures.figure(f"{database}.p99", ordered[int(len(ordered) * 0.99)][0])
    slowest = "; ".join(f"{query} {milliseconds:.0f} ms" for milliseconds, query in ordered[-3:])
    figures.fact(f"{name}: slowest searches", slowest)


async def _record(store: SQLStore, count: int) -> int:
    """Record rollouts; return the number of characters of their texts."""
    first = int((await store.statistics()).get("total_rollouts", 0))
    await store.enqueue_many_rollouts(
        [
            EnqueueRolloutRequest(input={"question": _text(20)}, metadata={"rollbook.step": (first + number) // 64})
            for number in range(count)
        ]
    )
    claimed = await store.dequeue_many_rollouts(count, "worker")
    spans: list[Span] = []
    characters = 0
    for rollout in claimed:
        more, length = _spans(rollout)
        spans += more
        characters += length
    await store.add_many_spans(spans)
    for rollout in claimed:
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    return characters


def _text(count: int) -> str:
    chosen = _DICE.choices(_WORDS, cum_weights=_WEIGHTS, k=count)
    if _DICE.random() < 0.3:
        chosen[_DICE.randrange(count)] = _DICE.choice(_RARE)
    return " ".join(chosen)


def _spans(rollout: AttemptedRollout) -> tuple[list[Span], int]:
    messages = [("system", _text(150)), ("user", _text(80))]
    spans: list[Span] = []
    characters = 0
    for turn in range(TURNS):
        answer, arguments, result = _text(60), f'{{"command": "{_text(12)}"}}', _text(150)
        attributes: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.response.model": "model"}
        for index, (role, content) in enumerate(messages):
            attributes |= {f"gen_ai.prompt.{index}.role": role, f"gen_ai.prompt.{index}.content": content}
        attributes |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": answer}
        tool = {"gen_ai.tool.name": "bash", "gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": result}
        characters += sum(len(content) for _, content in messages) + len(answer) + len(arguments) + len(result)
        messages += [("assistant", answer), ("user", result)]
        spans += [_span(rollout, 2 * turn + 1, "chat", attributes), _span(rollout, 2 * turn + 2, "bash", tool)]
    return spans, characters


def _span(rollout: AttemptedRollout, number: int, name: str, attributes: dict[str, Any]) -> Span:
    return Span.from_attributes(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        trace_id=f"{1:032x}",
        span_id=f"{number:016x}",
        parent_id=None,
        name=name,
        status=TraceStatus(status_code="OK"),
        attributes=attributes,
        start_time=1_700_000_000.0 + number,
        end_time=1_700_000_000.5 + number,
    )
