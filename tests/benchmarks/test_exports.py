"""Export of spans to Parquet, against pyarrow's writing of the same rows in the same process; on both databases.

ROLLBOOK_BENCH_SPANS sets the number of spans.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.models import EnqueueRolloutRequest, Span
from tests.benchmarks.conftest import IS_QUICK, load
from tests.benchmarks.protocol import ROOT
from tests.benchmarks.report import TIMES, Report, Target, at_most
from tests.benchmarks.texts import words

pytestmark = pytest.mark.benchmark

SPANS = int(os.environ.get("ROLLBOOK_BENCH_SPANS", "20000" if IS_QUICK else "100000"))
SPANS_PER_ROLLOUT = 100
AT_ONCE = 500
TEXT_BYTES = 900

TARGETS = {
    f"{database}.{key}": target
    for database, name in (("sqlite", "SQLite"), ("postgres", "Postgres"))
    for key, target in {
        "export.rows": Target(f"{name}: spans to Parquet, rows/s ÷ pyarrow alone", TIMES, 0.3, 0.6),
        "export.memory": at_most(f"{name}: memory of this export", "MB", 500, 250),
    }.items()
}


@pytest.fixture(scope="module")
def figures() -> Iterator[Report]:
    print()
    report = Report(TARGETS, "bench-exports")
    report.fact("load average before", load())
    report.fact("size", f"{SPANS:,} spans with {TEXT_BYTES:,} bytes of text, {SPANS_PER_ROLLOUT} for each rollout")
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


def test_sqlite(sqlite_url: Callable[[], str], directory: Path, figures: Report) -> None:
    _measure("sqlite", "SQLite", sqlite_url(), directory, figures)


def test_postgres(postgres_url: Callable[[], str], directory: Path, figures: Report) -> None:
    _measure("postgres", "Postgres", postgres_url(), directory, figures)


def _measure(key: str, name: str, url: str, directory: Path, figures: Report) -> None:
    asyncio.run(_fill(url))
    exported, alone = directory / f"{key} export", directory / f"{key} alone"
    alone.mkdir()
    command = [sys.executable, "-m", "tests.benchmarks.exports_side", url, str(exported), str(alone)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    measured: dict[str, Any] = json.loads(printed)
    assert measured["rows"] == SPANS
    figures.figure(f"{key}.export.rows", measured["alone"] / measured["seconds"])
    figures.figure(f"{key}.export.memory", measured["peak"] / 1e6)
    figures.fact(
        f"{name}, export",
        f"{measured['seconds']:.1f} s, {SPANS / measured['seconds']:,.0f} rows/s, {measured['size'] / 1e6:,.0f} MB;"
        f" processor time {measured['cpu']:.1f} s, pyarrow alone {measured['alone_cpu']:.1f} s",
    )


async def _fill(url: str) -> None:
    dice = random.Random(1)
    rollouts = SPANS // SPANS_PER_ROLLOUT
    async with await open_store(url) as store:
        for first in range(0, rollouts, 100):
            numbers = range(first, min(first + 100, rollouts))
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={"task": number}) for number in numbers])
            spans = [
                Span.from_attributes(
                    name="openai.chat.completion",
                    attributes={
                        "gen_ai.request.model": "a model",
                        "gen_ai.prompt.0.role": "user",
                        "gen_ai.prompt.0.content": words(dice, TEXT_BYTES // 2),
                        "gen_ai.completion.0.role": "assistant",
                        "gen_ai.completion.0.content": words(dice, TEXT_BYTES // 2),
                        "gen_ai.usage.prompt_tokens": 123,
                    },
                    sequence_id=number,
                    rollout_id=rollout.rollout_id,
                    attempt_id=rollout.attempt.attempt_id,
                    start_time=1_790_000_000.0 + number,
                    end_time=1_790_000_000.5 + number,
                )
                for rollout in await store.dequeue_many_rollouts(limit=len(numbers))
                for number in range(1, SPANS_PER_ROLLOUT + 1)
            ]
            for at in range(0, len(spans), AT_ONCE):
                await store.add_many_spans(spans[at : at + AT_ONCE])
