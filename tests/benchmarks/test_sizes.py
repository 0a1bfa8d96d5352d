"""Measurements for docs/production.md (disk, memory and time, on both databases) and for docs/clusters.md."""

from __future__ import annotations

import asyncio
import base64
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import pytest

from store import Store, open_store
from store.models import AttemptedRollout, EnqueueRolloutRequest, Span
from store.operations import compact
from store.sql.store import SQLStore
from tests.benchmarks import http_servers, trainers
from tests.benchmarks.conftest import IS_QUICK, load
from tests.benchmarks.protocol import ROOT
from tests.benchmarks.publish import replace
from tests.benchmarks.report import machine
from tests.benchmarks.texts import words
from tests.postgres import PostgresServer

pytestmark = pytest.mark.benchmark

ROLLOUTS = 300 if IS_QUICK else 3_000
SPANS_PER_ROLLOUT = 10
TEXT_BYTES = 1_000
CALLERS = 32
AT_ONCE = 100
REQUESTS = 500
COST_SECONDS = 3 if IS_QUICK else 15

ROWS = {
    "rollout": "disk for a rollout that was enqueued, claimed and completed",
    "span": "disk for a span with 1 KB of random base64 text",
    "text": "disk for a span with 1 KB of words",
    "compacted": "the same after `rollbook compact --full`",
    "rollouts": f"completed rollouts, {CALLERS} callers in one process",
    "spans": f"spans of this kind, in calls of {AT_ONCE}",
    "verify": "`rollbook verify`, scaled to 1,000,000 events",
    "server": f"memory of `rollbook serve` after {REQUESTS:,} requests",
}


def test_sizes(sqlite_url: Callable[[], str], postgres_url: Callable[[], str]) -> None:
    before = load()
    measured = [
        asyncio.run(_measure(make_url())) | asyncio.run(_measure_words(make_url()))
        for make_url in (sqlite_url, postgres_url)
    ]
    lines = [
        f"Measured by `make bench-sizes` on {machine()}.",
        f"Load average before the measurement: {before}.",
        "",
        "| | SQLite | Postgres |",
        "|---|---|---|",
        *(f"| {text} | {measured[0][name]} | {measured[1][name]} |" for name, text in ROWS.items()),
    ]
    print("\n" + "\n".join(lines))
    replace(ROOT / "docs/production.md", "sizes", "\n".join(lines) + "\n")
    trainers.publish()


def test_costs_of_rollouts_alone_and_together(postgres_url: Callable[[], str]) -> None:
    before = load()
    rows = [asyncio.run(_cost(postgres_url(), callers)) for callers in (1, CALLERS)]
    lines = [
        f"Measured by `make bench-sizes` on {machine()}.",
        f"Load average before the measurement: {before}.",
        "",
        "| | server process | Postgres |",
        "|---|---|---|",
        *rows,
    ]
    print("\n" + "\n".join(lines))
    replace(trainers.PAGE, "costs", "\n".join(lines) + "\n")
    trainers.publish()


async def _measure(url: str) -> dict[str, str]:
    async with await open_store(url) as store:
        assert isinstance(store, SQLStore)
        empty = await store.core.size_bytes()
        rollouts_per_second = await _complete(store)
        with_rollouts = await store.core.size_bytes()
        spans_per_second = await _add_spans(store)
        with_spans = await store.core.size_bytes()
        report = await store.log.verify()
        assert report.ok
    return {
        "rollout": f"{(with_rollouts - empty) / ROLLOUTS / 1e3:.1f} KB",
        "span": f"{(with_spans - with_rollouts) / ROLLOUTS / SPANS_PER_ROLLOUT / 1e3:.1f} KB",
        "rollouts": f"{rollouts_per_second:,.0f} per second",
        "spans": f"{spans_per_second:,.0f} per second",
        "verify": f"{report.seconds / report.events * 1e6:.0f} s",
        "server": f"{await asyncio.to_thread(_server_memory, url) / 1e6:.0f} MB",
    }


async def _measure_words(url: str) -> dict[str, str]:
    """Return the sizes of spans with words, without those of their rollouts, before and after a compaction."""
    async with await open_store(url) as store:
        assert isinstance(store, SQLStore)
        await _complete(store)
    await compact(url, rewrite=True)
    empty = await _closed_size(url)
    async with await open_store(url) as store:
        assert isinstance(store, SQLStore)
        await _add_spans(store, partial(words, size=TEXT_BYTES))
    before = await _closed_size(url)
    await compact(url, rewrite=True)
    after = await _closed_size(url)
    spans = ROLLOUTS * SPANS_PER_ROLLOUT
    return {
        "text": f"{(before - empty) / spans / 1e3:.2f} KB",
        "compacted": f"{(after - empty) / spans / 1e3:.2f} KB",
    }


async def _closed_size(url: str) -> int:
    """Return the size of a store that no process writes to, so that SQLite's write-ahead log is empty."""
    async with await open_store(url, read_only=True) as store:
        assert isinstance(store, SQLStore)
        return await store.core.size_bytes()


async def _complete(store: SQLStore) -> float:
    """Complete all rollouts with concurrent callers, and return the number per second."""

    async def call(number: int) -> None:
        for index in range(number, ROLLOUTS, CALLERS):
            await store.enqueue_rollout({"question": index})
            claimed = await store.dequeue_rollout(f"worker-{number}")
            assert claimed is not None
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")

    begun = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    return ROLLOUTS / (time.perf_counter() - begun)


def _base64(dice: random.Random) -> str:
    return base64.b64encode(dice.randbytes(TEXT_BYTES * 3 // 4)).decode()


async def _add_spans(store: SQLStore, text: Callable[[random.Random], str] = _base64) -> float:
    """Add the spans of all rollouts, and return the number per second."""
    dice = random.Random(1)
    rollouts = await store.query_rollouts()
    attempts = [rollout.attempt for rollout in rollouts if isinstance(rollout, AttemptedRollout)]
    spans = [
        Span.from_attributes(
            name="call",
            attributes={"gen_ai.completion": text(dice)},
            sequence_id=number,
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
        )
        for attempt in attempts
        for number in range(1, SPANS_PER_ROLLOUT + 1)
    ]
    begun = time.perf_counter()
    for first in range(0, len(spans), AT_ONCE):
        await store.add_many_spans(spans[first : first + AT_ONCE])
    return len(spans) / (time.perf_counter() - begun)


async def _cost(url: str, callers: int) -> str:
    """Return a row with the processor time of a rollout with spans, of the server process and of Postgres."""
    dice = random.Random(1)
    texts = [words(dice, TEXT_BYTES) for _ in range(ROLLOUTS)]

    async def call(store: Store, number: int, until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            await store.enqueue_rollout({"question": number})
            claimed = await store.dequeue_rollout(f"worker-{number}")
            assert claimed is not None
            rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
            spans = [
                Span.from_attributes(
                    name="call",
                    attributes={"gen_ai.completion": dice.choice(texts)},
                    sequence_id=index,
                    rollout_id=rollout_id,
                    attempt_id=attempt_id,
                )
                for index in range(1, trainers.SPANS_PER_ROLLOUT + 1)
            ]
            await store.add_many_spans(spans)
            await store.update_attempt(rollout_id, attempt_id, status="succeeded")
            done += 1
        return done

    with http_servers.rollbook(url) as server:
        async with await open_store(server.url) as store:
            process = psutil.Process(server.pid)
            await asyncio.gather(*(call(store, number, time.perf_counter() + 1) for number in range(callers)))
            until = time.perf_counter() + COST_SECONDS
            before = [_processor_seconds([process]), _processor_seconds(_sessions())]
            rollouts = sum(await asyncio.gather(*(call(store, number, until) for number in range(callers))))
            after = [_processor_seconds([process]), _processor_seconds(_sessions())]
    server_ms, postgres_ms = ((end - begin) * 1000 / rollouts for begin, end in zip(before, after, strict=True))
    print(f"{callers} callers: {rollouts / COST_SECONDS:.0f} rollouts/s")
    name = trainers.ALONE if callers == 1 else f"{callers} callers"
    return f"| {name} | {server_ms:.1f} ms | {postgres_ms:.1f} ms |"


def _sessions() -> list[psutil.Process]:
    """Return all processes of the Postgres that this process started."""
    (server,) = PostgresServer.running
    return [psutil.Process(pid) for pid in server.pids()]


def _processor_seconds(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def _server_memory(url: str) -> int:
    """Return the resident memory of a server that has answered requests."""
    command = [sys.executable, "-c", "from store.cli import main; main()", "serve", "--db", url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            endpoint = re.search(r"http://\S+", server.stdout.readline())
            assert endpoint is not None
            asyncio.run(_request(endpoint[0]))
            return psutil.Process(server.pid).memory_info().rss
        finally:
            server.terminate()


async def _request(endpoint: str) -> None:
    async with await open_store(endpoint) as client:
        for number in range(REQUESTS):
            requests: list[Any] = [EnqueueRolloutRequest(input=number)]
            await client.enqueue_many_rollouts(requests)
