"""The measured store, in its own process."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from store.db.dialect import Changes, Row, WriteSession, register
from store.db.drivers.postgres.dialect import Postgres
from store.db.drivers.sqlite.dialect import SQLite
from store.journal import writer as group_commit
from store.models import EnqueueRolloutRequest, Span
from store.opening import open_store
from store.sql.store import SQLStore
from tests.benchmarks.protocol import serve
from tests.benchmarks.workload import INPUT, Workload, cpu_seconds, max_rss_mib, span_fields

Written = list[tuple[str, str, list[Row]]]
"""What a transaction wrote: verb, table and rows of each statement, in their order."""

_FILL_ROLLOUTS = 128
_FILL_CALLERS = 3


class ObservedSession:
    """A writing session that keeps what it writes, and when it committed."""

    def __init__(self, session: WriteSession, transactions: list[Written], committed: list[float]) -> None:
        self._session = session
        self._transactions = transactions
        self._committed = committed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def write(self, changes: Changes) -> None:
        families = (("delete", changes.deletes), ("insert", changes.inserts), ("upsert", changes.upserts))
        self._transactions.append(
            [(verb, table.name, list(rows)) for verb, tables in families for table, rows in tables.items()]
        )
        await self._session.write(changes)

    async def commit(self) -> None:
        await self._session.commit()
        self._committed.append(time.perf_counter())


class Rollbook:
    """Commands on the store that was opened last."""

    def __init__(self) -> None:
        self._store: SQLStore | None = None
        self._work = Workload(None, Span)
        self._transactions: list[Written] = []
        self._committed: list[float] = []

    async def open(self, url: str, observed: bool = False) -> None:
        await self.close()
        self._transactions.clear()
        self._committed.clear()
        self._observe(observed)
        opened = await open_store(url)
        assert isinstance(opened, SQLStore)
        self._store = opened
        self._work = Workload(opened, Span)

    def _observe(self, observed: bool) -> None:
        transactions, committed = self._transactions, self._committed

        class ObservedSQLite(SQLite):
            async def writer(self) -> WriteSession:
                return cast("WriteSession", ObservedSession(await super().writer(), transactions, committed))

        class ObservedPostgres(Postgres):
            async def writer(self) -> WriteSession:
                return cast("WriteSession", ObservedSession(await super().writer(), transactions, committed))

        register("sqlite", ObservedSQLite if observed else SQLite)
        register("postgresql", ObservedPostgres if observed else Postgres)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()
            self._store = None

    def limit_batches(self, calls: int) -> None:
        """Set how many calls one commit may carry: with 1 there is no group commit."""
        group_commit.MAX_BATCH_CALLS = calls

    # The same work as the peer's, with the commits it took.

    async def lifecycles(self, **arguments: Any) -> Any:
        return await self._counting(self._work.lifecycles(**arguments))

    async def open_loop(self, **arguments: Any) -> Any:
        return await self._counting(self._work.open_loop(**arguments))

    async def prepare_traces(self, **arguments: Any) -> Any:
        return await self._work.prepare_traces(**arguments)

    async def record_traces(self, **arguments: Any) -> Any:
        return await self._counting(self._work.record_traces(**arguments))

    async def _counting(self, work: Any) -> Any:
        statistics, begun = self._live.core.writer_statistics, time.perf_counter()
        calls, commits = statistics.calls, statistics.commits
        measured = await work
        took = time.perf_counter() - begun
        commits = statistics.commits - commits
        return {
            **measured,
            "calls_per_commit": (statistics.calls - calls) / max(commits, 1),
            "commits_per_second": commits / took,
        }

    # What the driver's limit is given.

    def transactions(self) -> int:
        """Return how many transactions the observed store has written."""
        return len(self._transactions)

    def keep_rows(self, path: str, after: int) -> None:
        """Save what the observed store's transactions wrote: the first `after` of them, and the others."""
        Path(path).write_bytes(pickle.dumps((self._transactions[:after], self._transactions[after:])))

    # Waking.

    async def wake(self, count: int) -> dict[str, Any]:
        """As the workload's, with the instants of the commits."""
        self._committed.clear()
        called, woken = await self._work.wake(count)
        return {"called": called, "committed": self._committed[-count:], "woken": woken}

    async def claim(self, count: int) -> list[tuple[str, str]]:
        return await self._work.claim(count)

    async def await_ends(self, rollout_ids: list[str]) -> list[float]:
        return await self._work.await_ends(rollout_ids)

    async def end_in_turn(self, claimed: list[tuple[str, str]]) -> dict[str, Any]:
        called = await self._work.end_in_turn(claimed)
        return {"called": called, "committed": self._committed[-len(claimed) :]}

    # A long log, and what proves and rebuilds it.

    async def fill(self, name: str, events: int, spans: int) -> int:
        """Run lifecycles of so many spans, in large calls, until this process has written so many events."""
        await asyncio.gather(*(self._fill(f"{name}-{number}", events, spans) for number in range(_FILL_CALLERS)))
        return self._live.core.writer_statistics.events

    async def _fill(self, worker: str, events: int, spans: int) -> None:
        store = self._live
        requests = [EnqueueRolloutRequest(input=INPUT) for _ in range(_FILL_ROLLOUTS)]
        while store.core.writer_statistics.events < events:
            await store.enqueue_many_rollouts(requests)
            claimed = await store.dequeue_many_rollouts(_FILL_ROLLOUTS, worker)
            if spans:
                await store.add_many_spans(_trace(claimed, spans))
            await asyncio.gather(
                *(store.update_attempt(one.rollout_id, one.attempt.attempt_id, status="succeeded") for one in claimed)
            )

    async def verify(self) -> dict[str, float]:
        """Verify; return events, seconds, those of CPU, and the process's memory before and at its highest, in MiB."""
        before, cpu = max_rss_mib(), cpu_seconds()
        report = await self._live.log.verify()
        assert report.ok, report.differences
        return _proved(report.events, report.seconds, before, cpu)

    async def rebuild(self) -> dict[str, float]:
        """Rebuild; as `verify`."""
        before, cpu = max_rss_mib(), cpu_seconds()
        report = await self._live.log.rebuild()
        assert not report.written, report.written
        return _proved(report.events, report.seconds, before, cpu)

    @property
    def _live(self) -> SQLStore:
        assert self._store is not None  # opened
        return self._store


def _proved(events: int, seconds: float, before: float, cpu: float) -> dict[str, float]:
    return {
        "events": events,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds() - cpu,
        "before": before,
        "highest": max_rss_mib(),
    }


def _trace(claimed: Sequence[Any], spans: int) -> list[Span]:
    return [
        Span(**span_fields(one.rollout_id, one.attempt.attempt_id, number, 1000 * index + number))
        for index, one in enumerate(claimed)
        for number in range(1, spans + 1)
    ]


if __name__ == "__main__":
    serve(Rollbook())
