"""Metrics that are measured when Prometheus reads them: open partitions, their writers, and this process."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, get_args

from store.db.queries.counts import Counts
from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptStatus, RolloutStatus
from store.server.metrics.requests import Family
from store.server.pending import OpenStream
from store.sql.store import SQLStore

_FRESH_SECONDS: Final = 2.0
# Counting scans tables. Its result is cached so long that counting takes at most this share of the time.
_COUNTING_SHARE: Final = 0.02


class Measured:
    """Metrics of the databases of open partitions, cached for a moment. All worker processes report the same values."""

    def __init__(self) -> None:
        self._known: dict[Store, tuple[float, Counts]] = {}
        self.heads: dict[str, int] = {}
        """The last position of each partition's log at the time of the latest count."""

    async def families(self, stores: Iterable[tuple[str, Store]]) -> list[Family]:
        """Return the metrics of partitions. A partition that does not answer has only `rollbook_partition_up` 0."""
        up = Family("rollbook_partition_up", "Whether the partition's database answers.")
        depth = Family("rollbook_queue_depth", "Rollouts that wait for a claim.")
        oldest = Family(
            "rollbook_oldest_waiting_seconds", "How long the oldest waiting rollout has waited; 0 if none waits."
        )
        rollouts = Family("rollbook_rollouts", "Rollouts by status.")
        attempts = Family("rollbook_attempts", "Attempts by status.")
        head = Family(
            "rollbook_log_position", "The last position of the log; its rate of increase is events per second."
        )
        known, self._known = self._known, {}
        for partition, store in stores:
            try:
                if not isinstance(store, SQLStore):
                    await store.statistics()
                    up.set(1, partition=partition)
                    continue
                found = await self._counts(store, known)
            except StoreError:
                up.set(0, partition=partition)
                continue
            up.set(1, partition=partition)
            depth.set(found.waiting, partition=partition)
            since = found.oldest_waiting_at
            oldest.set(0.0 if since is None else max(0.0, time.time() - since / 1e6), partition=partition)
            for status in get_args(RolloutStatus):
                rollouts.set(found.rollouts.get(status, 0), partition=partition, status=status)
            for status in get_args(AttemptStatus):
                attempts.set(found.attempts.get(status, 0), partition=partition, status=status)
            head.set(found.head, partition=partition)
            self.heads[partition] = found.head
        return [up, depth, oldest, rollouts, attempts, head]

    async def _counts(self, store: SQLStore, known: dict[Store, tuple[float, Counts]]) -> Counts:
        began = time.monotonic()
        kept = known.get(store)
        if kept is None or kept[0] < began:
            counted = await store.core.counts()
            took = time.monotonic() - began
            kept = (began + max(_FRESH_SECONDS, took / _COUNTING_SHARE), counted)
        self._known[store] = kept
        return kept[1]


def writers(stores: Iterable[tuple[str, Store]]) -> list[Family]:
    """Return the counters of the writers of this process, and the number and size of the calls that wait."""
    commits = Family("rollbook_commits_total", "Group commits.", "counter")
    events = Family("rollbook_written_events_total", "Events appended by group commits.", "counter")
    retries = Family("rollbook_commit_retries_total", "Retries of group commits.", "counter")
    calls = Family("rollbook_commit_calls", "Calls per group commit.", "histogram")
    seconds = Family(
        "rollbook_commit_seconds", "Seconds from the start of a group commit to the answers to its calls.", "histogram"
    )
    empty = Family("rollbook_empty_polls_total", "Claims that found no rollout.", "counter")
    waiting = Family("rollbook_inbox_calls", "Calls that wait for the writer.")
    waiting_bytes = Family("rollbook_inbox_bytes", "Size of the calls that wait for the writer.")
    for partition, store in stores:
        if not isinstance(store, SQLStore):
            continue
        done = store.core.writer_statistics
        commits.set(done.commits, partition=partition)
        events.set(done.events, partition=partition)
        retries.set(done.retries, partition=partition)
        calls.observed(done.commit_calls, partition=partition)
        seconds.observed(done.commit_seconds, partition=partition)
        empty.set(store.queue.empty_polls, partition=partition)
        waiting.set(store.core.inbox[0], partition=partition)
        waiting_bytes.set(store.core.inbox[1], partition=partition)
    return [commits, events, retries, calls, seconds, empty, waiting, waiting_bytes]


def streams(feeds: Iterable[OpenStream], heads: dict[str, int]) -> list[Family]:
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
    for partition, those in by_partition.items():
        open_now.set(len(those), partition=partition)
        waiting = [event for feed in those if (event := feed.untaken) is not None]
        behind = [heads.get(partition, 0) - event.position + 1 for event in waiting]
        positions.set(max([0, *behind]), partition=partition)
        seconds.set(max([0.0, *(now - event.at for event in waiting)]), partition=partition)
    return [open_now, positions, seconds]


def process() -> list[Family]:
    """Return the resources that this process uses, under the metric names of the official Prometheus clients."""
    times = os.times()
    families = [
        Family("process_cpu_seconds_total", "Processor time, user and system.", "counter").set(
            times.user + times.system
        ),
        Family("process_start_time_seconds", "Start time of the process in seconds since the epoch.").set(_STARTED),
        Family("process_max_fds", "Maximum number of open files and sockets.").set(
            resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        ),
        Family("process_resident_memory_bytes", "Memory in use.").set(_resident_bytes()),
    ]
    descriptors = Path("/dev/fd")
    if descriptors.is_dir():
        # The listing itself opens a descriptor.
        open_now = sum(1 for _ in descriptors.iterdir()) - 1
        families.append(Family("process_open_fds", "Files and sockets that are open.").set(open_now))
    return families


_STARTED: Final = time.time()


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        # Systems without /proc report only the peak: macOS in bytes, others in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
