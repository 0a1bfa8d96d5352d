"""What is measured at the moment Prometheus asks: queues, rollouts and writers of every partition that is open."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, get_args

from store.errors import StoreError
from store.interface import Store
from store.models import RolloutStatus
from store.server.metrics import Gauge
from store.sql_store import SQLStore

_WAITING: Final[tuple[RolloutStatus, ...]] = ("queuing", "requeuing")


async def measure(stores: Iterable[tuple[str, Store]]) -> list[Gauge]:
    """Return the gauges of partitions, given by name and store; of one that does not answer only that it does not."""
    up = Gauge("partition_up", "Whether the partition's database answers.")
    rollouts = Gauge("rollouts", "Rollouts by status; queuing and requeuing are the depth of the queue.")
    oldest = Gauge("oldest_waiting_seconds", "Age of the oldest rollout in the queue; 0 if it is empty.")
    commits = Gauge("commits_total", "Group commits of this server.", "counter")
    calls = Gauge("written_calls_total", "Calls these commits carried; by commits, their mean size.", "counter")
    events = Gauge("written_events_total", "Events these commits appended.", "counter")
    largest = Gauge("largest_batch_calls", "The most calls that one commit carried.")
    retries = Gauge("commit_retries_total", "Commits tried again.", "counter")
    for partition, store in stores:
        try:
            for status in get_args(RolloutStatus):
                page = await store.query_rollouts(status_in=[status], limit=0)
                rollouts.set(page.total, partition=partition, status=status)
            oldest.set(await _oldest(store), partition=partition)
        except StoreError:
            up.set(0, partition=partition)
            continue
        up.set(1, partition=partition)
        if isinstance(store, SQLStore):
            done = store.writer_statistics
            commits.set(done.commits, partition=partition)
            calls.set(done.calls, partition=partition)
            events.set(done.events, partition=partition)
            largest.set(done.largest_batch, partition=partition)
            retries.set(done.retries, partition=partition)
    return [up, rollouts, oldest, commits, calls, events, largest, retries]


async def _oldest(store: Store) -> float:
    page = await store.query_rollouts(status_in=_WAITING, sort_by="start_time", limit=1)
    return max(0.0, time.time() - page[0].start_time) if page else 0.0
