"""Operations on a large store: retention under load, compaction, backup, restoration and copies; on both databases.

ROLLBOOK_BENCH_SPANS sets the number of spans.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from store import open_store
from store.models import EnqueueRolloutRequest, Span
from store.operations import RetentionPolicy, backup_store, compact, copy_store, remove_payload, restore_store
from store.operations.removal import database
from tests.benchmarks.conftest import IS_QUICK, load
from tests.benchmarks.report import TIMES, Report, Target, at_most
from tests.benchmarks.texts import words

pytestmark = pytest.mark.benchmark

SPANS = int(os.environ.get("ROLLBOOK_BENCH_SPANS", "20000" if IS_QUICK else "1000000"))
SPANS_PER_ROLLOUT = 100
AT_ONCE = 500
TEXT_BYTES = 1_000
UNDISTURBED_SECONDS = 10

TARGETS = {
    f"{database}.{key}": target
    for database, name in (("sqlite", "SQLite"), ("postgres", "Postgres"))
    for key, target in {
        "retention.transaction": at_most(f"{name}: retention, longest transaction", "ms", 100, 20),
        "retention.write": at_most(f"{name}: longest write of another process meanwhile", "ms", 100, 20),
        "retention.returned": Target(f"{name}: bytes returned by a rewrite ÷ removed bytes", TIMES, 0.9, 1),
        "compaction.transaction": at_most(f"{name}: compression, longest transaction", "ms", 100, 20),
        "verify": Target(f"{name}: verify of the restored store", "k events/s", 60, 150),
    }.items()
}


@pytest.fixture(scope="module")
def figures() -> Iterator[Report]:
    print()
    report = Report(TARGETS, "bench-operations")
    report.fact("load average before", load())
    report.fact("size", f"{SPANS:,} spans with {TEXT_BYTES:,} bytes of text, {SPANS_PER_ROLLOUT} for each rollout")
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


def test_sqlite(
    sqlite_url: Callable[[], str], postgres_url: Callable[[], str], directory: Path, figures: Report
) -> None:
    measured = _Operations("sqlite", "SQLite", sqlite_url(), figures)
    asyncio.run(measured.fill())
    asyncio.run(measured.remove_half())
    hashes = asyncio.run(measured.back_up(directory / "store.backup", sqlite_url()))
    url = measured.url
    for name, target in (("SQLite to Postgres", postgres_url()), ("Postgres to SQLite", sqlite_url())):
        report = asyncio.run(copy_store(url, target))
        assert (report.chain_head, report.state_hash) == hashes
        figures.fact(f"copy from {name}, verified", f"{report.seconds:.0f} s, {report.size_bytes / 1e6:,.0f} MB")
        url = target


def test_postgres(
    postgres_url: Callable[[], str], sqlite_url: Callable[[], str], directory: Path, figures: Report
) -> None:
    measured = _Operations("postgres", "Postgres", postgres_url(), figures)
    asyncio.run(measured.fill())
    asyncio.run(measured.remove_half())
    asyncio.run(measured.back_up(directory / "store.backup", sqlite_url()))


class _Operations:
    """The operations on one store, in the order of their measurement.

    Args:
        key: the first part of the keys of the figures.
        name: the name of the database in the facts.
        url: the URL of a store that does not exist yet.
        figures: receives the measurements.
    """

    def __init__(self, key: str, name: str, url: str, figures: Report) -> None:
        self._key, self._name, self.url, self._figures = key, name, url, figures

    async def fill(self) -> None:
        """Make finished rollouts; half of them have the mode `train`."""
        dice = random.Random(1)
        begun = time.perf_counter()
        async with await open_store(self.url) as store:
            for first in range(0, SPANS // SPANS_PER_ROLLOUT, 100):
                requests = [
                    EnqueueRolloutRequest(input={"task": number}, mode="train" if number % 2 else "val")
                    for number in range(first, min(first + 100, SPANS // SPANS_PER_ROLLOUT))
                ]
                await store.enqueue_many_rollouts(requests)
                claimed = await store.dequeue_many_rollouts(limit=len(requests))
                spans = [
                    Span.from_attributes(
                        name="call",
                        attributes={"gen_ai.completion": words(dice, TEXT_BYTES)},
                        sequence_id=number,
                        rollout_id=rollout.rollout_id,
                        attempt_id=rollout.attempt.attempt_id,
                    )
                    for rollout in claimed
                    for number in range(1, SPANS_PER_ROLLOUT + 1)
                ]
                for at in range(0, len(spans), AT_ONCE):
                    await store.add_many_spans(spans[at : at + AT_ONCE])
                for rollout in claimed:
                    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        seconds = time.perf_counter() - begun
        self._figures.fact(f"{self._name}, filling", f"{seconds:.0f} s, {SPANS / seconds:,.0f} spans/s")

    async def remove_half(self) -> None:
        """Remove the payload of half of the rollouts while another process writes, and free the space."""
        here, there = multiprocessing.Pipe()
        writer = multiprocessing.get_context("spawn").Process(target=_write, args=(self.url, there), daemon=True)
        writer.start()
        try:
            await asyncio.to_thread(here.recv)
            await asyncio.sleep(UNDISTURBED_SECONDS)
            before = await _worst(here)
            removed = await remove_payload(self.url, RetentionPolicy.of(modes=("train",)), apply=True)
            during = await _worst(here)
            here.send("stop")
        finally:
            await asyncio.to_thread(writer.join)
        dialect = database(self.url)
        await dialect.open(create=False)
        begun = time.perf_counter()
        await dialect.compact(rewrite=True)
        seconds, size = time.perf_counter() - begun, await dialect.size_bytes()
        await dialect.close()
        share = (removed.size_after - size) / (removed.body_bytes + removed.blob_bytes)
        figures, key, name = self._figures, self._key, self._name
        figures.figure(f"{key}.retention.transaction", removed.longest_seconds * 1000)
        figures.figure(f"{key}.retention.write", during * 1000, f"{before * 1000:.0f} ms before")
        figures.figure(f"{key}.retention.returned", share)
        figures.fact(
            f"{name}, retention of half of the payload",
            f"{removed.seconds:.0f} s; longest write of another process before it {before * 1000:.0f} ms;"
            f" rewriting the database {seconds:.0f} s, {removed.size_after / 1e6:,.0f} to {size / 1e6:,.0f} MB",
        )
        compacted = await compact(self.url, rewrite=True)
        figures.figure(f"{key}.compaction.transaction", compacted.longest_seconds * 1000)
        figures.fact(
            f"{name}, compaction of the rest",
            f"{compacted.seconds:.0f} s, {compacted.size_before / 1e6:,.0f} to {compacted.size_after / 1e6:,.0f} MB",
        )

    async def back_up(self, file: Path, target: str) -> tuple[str, str]:
        """Back up and restore the store, verify it, and return the hashes of the log and of the state."""
        saved = await backup_store(self.url, file, verify=False)
        restored = await restore_store(file, target)
        async with await open_store(target, read_only=True) as store:
            report = await store.log.verify()
        assert report.ok
        assert (restored.chain_head, restored.state_hash) == (saved.chain_head, saved.state_hash)
        assert (report.chain_head, report.state_hash) == (saved.chain_head, saved.state_hash)
        self._figures.figure(f"{self._key}.verify", report.events / report.seconds / 1000, f"{report.seconds:.0f} s")
        self._figures.fact(
            f"{self._name}, backup without verification, and restoration with it",
            f"{saved.seconds:.0f} s and {restored.seconds:.0f} s, {saved.size_bytes / 1e6:,.0f} MB",
        )
        await asyncio.to_thread(file.unlink)
        return saved.chain_head, saved.state_hash


async def _worst(writer: Connection) -> float:
    writer.send("worst")
    return await asyncio.to_thread(writer.recv)


def _write(url: str, orders: Connection) -> None:
    """Write a span every few milliseconds, and report the longest duration of a write since the last request."""
    asyncio.run(_write_spans(url, orders))


async def _write_spans(url: str, orders: Connection) -> None:
    longest, number = 0.0, 0
    async with await open_store(url) as store:
        attempt = (await store.start_rollout("meanwhile", mode="val")).attempt
        orders.send("ready")
        while True:
            number += 1
            span = Span.from_attributes(
                name="call",
                attributes={"gen_ai.completion": "text " * 200},
                sequence_id=number,
                rollout_id=attempt.rollout_id,
                attempt_id=attempt.attempt_id,
            )
            begun = time.perf_counter()
            await store.add_span(span)
            longest = max(longest, time.perf_counter() - begun)
            await asyncio.sleep(0.003)
            if orders.poll():
                if orders.recv() == "stop":
                    return
                orders.send(longest)
                longest = 0.0
