"""Metrics that are measured when Prometheus reads them: the partitions, their writers and the streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, get_args

from store.db.queries import operation_runs, pages
from store.db.queries.counts import Counts
from store.db.queries.operation_runs import OperationRun
from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptStatus, RolloutStatus, WorkerStatus
from store.runtime.clock import MICROSECONDS, system_clock
from store.runtime.metrics_text import Family
from store.server.partitions import Partitions
from store.server.pending import OpenStream
from store.server.quotas import Kind, PartitionQuota
from store.sql.database import database_of

_FRESH_SECONDS: Final = 2.0
_UNUSED_FRESH_SECONDS: Final = 60.0
"""How long the values of a partition that is not open stay fresh. Measuring such a partition requires opening it."""
_OPENED_AT_ONCE: Final = 8
"""The maximum number of partitions that one scrape opens."""
_SCRAPE_SECONDS: Final = 5.0
"""The time after which a scrape measures no further partition. The same time limit applies to each partition."""
# Counting scans tables. Its result is cached so long that counting takes at most this share of the time.
_COUNTING_SHARE: Final = 0.02


@dataclass(frozen=True, slots=True)
class _Database:
    """The metrics of one partition's database."""

    counts: Counts | None
    """None if this process has not opened the database."""
    size_bytes: int
    events: int
    """The number of events in the log."""
    operations: Mapping[str, OperationRun]
    """The last run of each operation."""


class Measured:
    """Metrics of the databases of all partitions, cached for a short time."""

    def __init__(self) -> None:
        self._results: dict[str, tuple[float, _Database | None]] = {}
        """For each partition, two values: the time until which the latest result is fresh, and this result.

        The result is None if the database did not answer.
        """
        self._names: tuple[float, list[str]] = (0.0, [])
        self.heads: dict[str, int] = {}
        """The last position of each partition's log at the time of the latest count."""

    async def families(self, partitions: Partitions) -> list[Family]:
        """Return the metrics of all partitions, open or closed.

        A partition that does not answer has only `rollbook_partition_up` 0. One call opens a limited number of
        partitions and takes a limited time. A partition that is not measured in this call keeps its previous values.
        """
        families = _DatabaseFamilies()
        names = await self._names_of(partitions)
        families.partitions.set(len(names))
        for name in names:
            families.set_limits(name, partitions.quotas.limits(name))
        self._results = {name: result for name, result in self._results.items() if name in names}
        self.heads = {name: head for name, head in self.heads.items() if name in names}
        opening, deadline = _OPENED_AT_ONCE, time.monotonic() + _SCRAPE_SECONDS
        for name in names:
            result = self._results.get(name)
            if result is None or result[0] < time.monotonic() < deadline:
                is_open = partitions.opened(name) is not None
                if is_open or opening:
                    opening -= not is_open
                    await self._measure(partitions, name, is_open=is_open)
            if name in self._results:
                families.set(name, self._results[name][1], partitions.quotas.limits(name))
        return families.all

    async def _names_of(self, partitions: Partitions) -> list[str]:
        fresh_until, names = self._names
        if time.monotonic() < fresh_until:
            return names
        try:
            async with asyncio.timeout(_SCRAPE_SECONDS):
                names = await partitions.names()
        except (StoreError, TimeoutError):
            names = names or [name for name, _ in partitions.open_stores()]
        self._names = time.monotonic() + _FRESH_SECONDS, names
        return names

    async def _measure(self, partitions: Partitions, name: str, *, is_open: bool) -> None:
        began = time.monotonic()
        measures: _Database | None = None
        try:
            async with asyncio.timeout(_SCRAPE_SECONDS):
                if (store := partitions.opened(name)) is not None:
                    measures = await _measured(store)
                else:
                    async with partitions.use(name) as store:
                        measures = await _measured(store)
        except (StoreError, TimeoutError):
            pass
        took = time.monotonic() - began
        fresh_seconds = _FRESH_SECONDS if is_open else _UNUSED_FRESH_SECONDS
        self._results[name] = began + max(fresh_seconds, took / _COUNTING_SHARE), measures
        if measures is not None and measures.counts is not None:
            self.heads[name] = measures.counts.head


async def _measured(store: Store) -> _Database:
    database = database_of(store)
    if database is None:
        await store.statistics()
        return _Database(None, 0, 0, {})
    core = database.core
    runs = await core.look(operation_runs.all_runs)
    totals = await core.look(pages.totals)
    events = totals[pages.TOTALS.index("events")]
    return _Database(await core.counts(), await core.size_bytes(), events, runs)


_WORKER_STATES: Final[tuple[str, ...]] = (*get_args(WorkerStatus), "stopped", "lost")


class _DatabaseFamilies:
    """The metrics of the databases."""

    def __init__(self) -> None:
        self.partitions = Family("rollbook_partitions", "Partitions of the database, open or not.")
        self._up = Family("rollbook_partition_up", "Whether the partition's database answers.")
        self._depth = Family("rollbook_queue_depth", "Rollouts that wait for a claim.")
        self._oldest = Family(
            "rollbook_oldest_waiting_seconds", "How long the oldest waiting rollout has waited; 0 if none waits."
        )
        self._rollouts = Family("rollbook_rollouts", "Rollouts by status.")
        self._attempts = Family("rollbook_attempts", "Attempts by status.")
        self._workers = Family("rollbook_workers", "Workers with a heartbeat within the last day, by state.")
        self._rewarded = Family("rollbook_rewarded_rollouts", "Rollouts with a reward.")
        self._reward = Family("rollbook_mean_reward", "Mean of the last rewards of all rollouts with a reward.")
        self._size = Family("rollbook_database_bytes", "Size of the partition in the database.")
        self._verified = Family(
            "rollbook_last_verify_age_seconds",
            "Seconds since the last verification of the whole store; absent before the first.",
        )
        self._differences = Family(
            "rollbook_last_verify_differences",
            "Differences that the last verification of the whole store found; absent before the first.",
        )
        self._done_at = Family(
            "rollbook_operation_success_timestamp_seconds",
            "End of the last run of an operation that ended normally, in seconds since the epoch.",
        )
        self._duration = Family(
            "rollbook_operation_duration_seconds", "Duration of the last run of an operation that ended normally."
        )
        self._found = Family(
            "rollbook_operation_differences", "Differences that the last verification of each kind found."
        )
        self._failed = Family(
            "rollbook_operation_failed", "Whether the last run of an operation ended with an error or was interrupted."
        )
        self._runs = Family("rollbook_operation_runs_total", "Runs of an operation that ended.", "counter")
        self._failures = Family(
            "rollbook_operation_failures_total", "Runs of an operation that ended with an error.", "counter"
        )
        self._head = Family(
            "rollbook_log_position", "The last position of the log; its rate of increase is events per second."
        )

        self._limit = Family("rollbook_quota_limit", "Limits of the partition's quota; calls are per second.")
        self._used = Family("rollbook_quota_used", "What the partition has of the events and bytes of its quota.")

    @property
    def all(self) -> list[Family]:
        """All metrics, each with the values that were set."""
        return [
            *(self.partitions, self._up, self._depth, self._oldest, self._rollouts, self._attempts),
            *(self._workers, self._rewarded, self._reward, self._size, self._head),
            *(self._verified, self._differences, self._done_at, self._duration, self._found),
            *(self._failed, self._runs, self._failures, self._limit, self._used),
        ]

    def set_limits(self, partition: str, limits: Mapping[Kind, int]) -> None:
        """Set the limits of a partition's quota."""
        for kind, limit in limits.items():
            self._limit.set(limit, partition=partition, quota=kind)

    def set(self, partition: str, measures: _Database | None, limits: Mapping[Kind, int]) -> None:
        """Set the values of a partition. `measures` is None if its database does not answer."""
        self._up.set(int(measures is not None), partition=partition)
        if measures is None or measures.counts is None:
            return
        counts = measures.counts
        self._depth.set(counts.waiting, partition=partition)
        since = counts.oldest_waiting_at
        self._oldest.set(0.0 if since is None else max(0.0, time.time() - since / 1e6), partition=partition)
        for status in get_args(RolloutStatus):
            self._rollouts.set(counts.rollouts.get(status, 0), partition=partition, status=status)
        for status in get_args(AttemptStatus):
            self._attempts.set(counts.attempts.get(status, 0), partition=partition, status=status)
        for state in _WORKER_STATES:
            self._workers.set(counts.workers.get(state, 0), partition=partition, state=state)
        self._rewarded.set(counts.rewarded, partition=partition)
        if counts.rewarded:
            self._reward.set(counts.reward_sum / counts.rewarded, partition=partition)
        self._size.set(measures.size_bytes, partition=partition)
        self._head.set(counts.head, partition=partition)
        if "events" in limits:
            self._used.set(measures.events, partition=partition, quota="events")
        if "bytes" in limits:
            self._used.set(measures.size_bytes, partition=partition, quota="bytes")
        for name, run in measures.operations.items():
            self._set_operation(partition, name, run)

    def _set_operation(self, partition: str, name: str, run: OperationRun) -> None:
        labels = {"partition": partition, "operation": name}
        now = system_clock()
        if run.ended_at is not None:
            self._done_at.set(run.ended_at / MICROSECONDS, **labels)
            self._duration.set((run.ended_at - (run.started_at or run.ended_at)) / MICROSECONDS, **labels)
            if run.differences is not None:
                self._found.set(run.differences, **labels)
            if name == "verify":
                self._verified.set(max(0.0, (now - run.ended_at) / MICROSECONDS), partition=partition)
                self._differences.set(run.differences or 0, partition=partition)
        self._failed.set(int(run.state(now) in {"failed", "interrupted"}), **labels)
        self._runs.set(run.runs, **labels)
        self._failures.set(run.failures, **labels)


def writers(stores: Iterable[tuple[str, Store]]) -> list[Family]:
    """Return the counters of the writers of this process, and the number and size of the calls that wait."""
    commits = Family("rollbook_commits_total", "Group commits.", "counter")
    events = Family("rollbook_written_events_total", "Events appended by group commits.", "counter")
    retries = Family("rollbook_commit_retries_total", "Retries of group commits.", "counter")
    conflicts = Family(
        "rollbook_span_conflicts_total",
        "Spans that were not stored because a stored span has their id and other content.",
        "counter",
    )
    calls = Family("rollbook_commit_calls", "Calls per group commit.", "histogram")
    seconds = Family(
        "rollbook_commit_seconds", "Seconds from the start of a group commit to the answers to its calls.", "histogram"
    )
    empty = Family("rollbook_empty_polls_total", "Claims that found no rollout.", "counter")
    waiting = Family("rollbook_inbox_calls", "Calls that wait for the writer.")
    waiting_bytes = Family("rollbook_inbox_bytes", "Size of the calls that wait for the writer.")
    for partition, store in stores:
        if (database := database_of(store)) is None:
            continue
        done = database.core.writer_statistics
        commits.set(done.commits, partition=partition)
        events.set(done.events, partition=partition)
        retries.set(done.retries, partition=partition)
        conflicts.set(done.span_conflicts, partition=partition)
        calls.observed(done.commit_calls, partition=partition)
        seconds.observed(done.commit_seconds, partition=partition)
        empty.set(database.queue.empty_polls, partition=partition)
        waiting.set(database.core.inbox[0], partition=partition)
        waiting_bytes.set(database.core.inbox[1], partition=partition)
    return [commits, events, retries, conflicts, calls, seconds, empty, waiting, waiting_bytes]


def quotas(partitions: Iterable[PartitionQuota]) -> list[Family]:
    """Return how many calls the quotas admitted and refused in this process."""
    calls = Family("rollbook_quota_calls_total", "Calls of partitions with a limit on calls.", "counter")
    refused = Family("rollbook_quota_refusals_total", "Calls that were refused because of a quota.", "counter")
    unavailable = Family(
        "rollbook_quota_unavailable_total",
        "Calls beyond the limit on calls that were refused with status 503.",
        "counter",
    )
    for quota in partitions:
        if quota.quota.calls is not None:
            calls.set(quota.calls, partition=quota.partition)
            unavailable.set(quota.refused_unavailable, partition=quota.partition)
        for kind, count in quota.refused.items():
            refused.set(count, partition=quota.partition, quota=kind)
    return [calls, refused, unavailable]


def streams(feeds: Iterable[OpenStream], heads: Mapping[str, int]) -> list[Family]:
    """Return the number of readers that follow the log, and the lag of the slowest.

    Args:
        feeds: the streams of this process.
        heads: the last known position of each partition's log.
    """
    open_now = Family("rollbook_streams", "Readers that follow the log.")
    positions = Family(
        "rollbook_stream_lag_positions", "Positions by which the slowest reader is behind the end of the log."
    )
    seconds = Family("rollbook_stream_lag_seconds", "Age of the oldest event that a reader has not yet received.")
    by_partition: dict[str, list[OpenStream]] = {}
    for feed in feeds:
        by_partition.setdefault(feed.partition, []).append(feed)
    now = time.time()
    for partition, readers in by_partition.items():
        open_now.set(len(readers), partition=partition)
        waiting = [event for feed in readers if (event := feed.untaken) is not None]
        behind = [heads.get(partition, 0) - event.position + 1 for event in waiting]
        positions.set(max([0, *behind]), partition=partition)
        seconds.set(max([0.0, *(now - event.at for event in waiting)]), partition=partition)
    return [open_now, positions, seconds]
