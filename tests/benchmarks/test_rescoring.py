"""Rescoring of past rollouts, beside the bare function over the same inputs from a file of JSON lines.

ROLLBOOK_BENCH_ROLLOUTS sets the number of rollouts.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store import Span, open_store, rescore
from store.interface.store import Store
from store.models import EnqueueRolloutRequest
from tests.benchmarks.conftest import IS_QUICK, load
from tests.benchmarks.report import TIMES, Report, Target
from tests.benchmarks.reward_side import PROCESSES, bare
from tests.benchmarks.texts import words

pytestmark = pytest.mark.benchmark

ROLLOUTS = int(os.environ.get("ROLLBOOK_BENCH_ROLLOUTS", "4000" if IS_QUICK else "100000"))
CALLS = 5
ROUNDS = 1
"""The number of rounds. A round of 100,000 rollouts takes minutes, so it averages over the speed of the machine."""
AT_ONCE = 200
_DICE = random.Random(7)

TARGETS = {
    f"{database}.similarity": Target(f"{name}: rescoring ÷ the bare function, similarity of texts", TIMES, 0.5, 0.8)
    for database, name in (("sqlite", "SQLite"), ("postgres", "Postgres"))
}


@pytest.fixture(scope="module")
def figures() -> Iterator[Report]:
    print()
    report = Report(TARGETS, "bench-rescoring")
    report.fact("load average before", load())
    report.fact("size", f"{ROLLOUTS:,} rollouts with {CALLS} calls and a reward, {PROCESSES} processes")
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


def test_sqlite(sqlite_url: Callable[[], str], directory: Path, figures: Report) -> None:
    _measure("sqlite", "SQLite", sqlite_url(), directory / "inputs.jsonl", figures)


def test_postgres(postgres_url: Callable[[], str], directory: Path, figures: Report) -> None:
    _measure("postgres", "Postgres", postgres_url(), directory / "inputs.jsonl", figures)


def _measure(database: str, name: str, url: str, file: Path, figures: Report) -> None:
    asyncio.run(_fill(url, file))
    for function in ("similarity", "trivial"):
        # A machine that changes its speed changes both sides of a round.
        rounds = [(_rescored(url, function, number), bare(file, function)) for number in range(ROUNDS)]
        ratio = statistics.median(ours / plain for ours, plain in rounds)
        ours, plain = (statistics.median(side) for side in zip(*rounds, strict=True))
        figures.fact(f"{name}: rollouts/s, {function}", f"{ours:,.0f}; the bare function {plain:,.0f}")
        if function == "similarity":
            figures.figure(f"{database}.similarity", ratio)
        else:
            figures.fact(f"{name}: rescoring ÷ the bare function, a function that does nothing", f"{ratio:.2f}")


def _rescored(url: str, function: str, number: int) -> float:
    """Return the rollouts per second of a rescoring."""
    began = time.perf_counter()
    reward = f"tests.benchmarks.reward_side:{function}@v{number}"
    report = asyncio.run(rescore(url, reward, processes=PROCESSES, sample_twice=0))
    assert report.scored == ROLLOUTS
    return ROLLOUTS / (time.perf_counter() - began)


async def _fill(url: str, file: Path) -> None:
    with file.open("wb") as lines:
        async with await open_store(url) as store:
            for start in range(0, ROLLOUTS, AT_ONCE):
                ids = await _add(store, range(start, min(start + AT_ONCE, ROLLOUTS)))
                spans: dict[str, list[bytes]] = {}
                for span in await store.query_spans(ids):
                    spans.setdefault(span.rollout_id, []).append(span.model_dump_json().encode())
                for rollout in await store.query_rollouts(rollout_id_in=ids):
                    of_rollout = b",".join(spans[rollout.rollout_id])
                    lines.write(b'{"rollout":%s,"spans":[%s]}\n' % (rollout.model_dump_json().encode(), of_rollout))


async def _add(store: Store, numbers: range) -> list[str]:
    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input={"n": number, "answer": words(_DICE, 200)}) for number in numbers]
    )
    claimed = await store.dequeue_many_rollouts(len(numbers), "worker-1")
    spans: list[Span] = []
    for rollout in claimed:
        ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        for number in range(1, CALLS + 1):
            texts = {"gen_ai.prompt.0.content": words(_DICE, 400), "gen_ai.completion.0.content": words(_DICE, 200)}
            spans.append(
                Span.from_attributes(**ids, sequence_id=number, name="openai.chat.completion", attributes=texts)
            )
        reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}
        spans.append(
            Span.from_attributes(**ids, sequence_id=CALLS + 1, name="agentlightning.annotation", attributes=reward)
        )
    await store.add_many_spans(spans)
    await asyncio.gather(
        *(
            store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
            for rollout in claimed
        )
    )
    return [rollout.rollout_id for rollout in claimed]
