"""`rollbook stats`: counts, the queue and the size on disk."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import STYLES, byte_size, is_terminal, json_document, line, note
from store.cli.output.times import ago, duration, local, utc
from store.cli.store_context import dialect_of, run_reading
from store.domain.statuses import RolloutStatus, WorkerStatus
from store.runtime.clock import system_clock, to_seconds

if TYPE_CHECKING:
    from sqlalchemy import Column
    from sqlalchemy.sql import ClauseElement

    from store.db.dialect import NamedRow, ReadSession
    from store.interface.store import Store

app = typer.Typer()

_FAR_AHEAD_SECONDS: Final = 1.0
_WAITING: Final = ("queuing", "requeuing")


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """The counts of a store. Fields that a server does not provide are None for the store of a server."""

    store_id: str
    rollouts: Mapping[str, int]
    """The number of rollouts by status."""
    workers: Mapping[str, int]
    """The number of workers by status."""
    attempts: int
    spans: int
    resources: int
    """The number of resources ids. Several versions of the same id count once."""
    queued: int
    """The number of rollouts that wait for a claim."""
    events: int | None = None
    commits: int | None = None
    last_position: int | None = None
    """The position of the last event; 0 for an empty log."""
    last_commit_time: float | None = None
    """The time of the last commit, in seconds since the epoch."""
    payload_bytes: int | None = None
    """The size of all payloads before compression."""
    disk_bytes: int | None = None

    @property
    def bytes_per_event(self) -> int | None:
        """The size on disk divided by the number of events."""
        return round(self.disk_bytes / self.events) if self.events and self.disk_bytes is not None else None


@app.command(rich_help_panel="Look")
def stats(db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """Show counts, the queue, and the size on disk. A server provides no counts of the log and no sizes."""
    is_served = db.startswith(("http://", "https://"))
    counts = run_reading(db, _count_remote) if is_served else asyncio.run(_count(db))
    if json:
        json_document(asdict(counts) | {"bytes_per_event": counts.bytes_per_event})
        return
    _print(counts)
    ahead = (counts.last_commit_time or 0.0) - to_seconds(system_clock())
    if ahead > _FAR_AHEAD_SECONDS:
        note(
            f"the last commit is {duration(ahead)} ahead of this machine's clock; until the clock has caught up, new "
            "events get times right after that commit"
        )


def _print(counts: StoreCounts) -> None:
    _print_statuses("rollouts", counts.rollouts)
    for name in ("queued", "attempts", "spans", "resources"):
        _print_fact(name, _number(getattr(counts, name)))
    _print_statuses("workers", counts.workers)
    if counts.events is not None and counts.commits is not None:
        _print_fact("events", _number(counts.events))
        _print_fact("commits", _number(counts.commits))
    last = counts.last_commit_time
    if last is not None:
        _print_fact("last commit", f"{local(last)} ({ago(last, time.time())})" if is_terminal() else utc(last))
    for name, size in (
        ("payload", counts.payload_bytes),
        ("on disk", counts.disk_bytes),
        ("per event", counts.bytes_per_event),
    ):
        if size is not None:
            _print_fact(name, byte_size(size) if is_terminal() else str(size))


async def _count_remote(store: Store) -> StoreCounts:
    """Return the counts of the store of a server.

    The counts are read with several calls, so the store may change between them.
    """
    rollouts = {
        status: (await store.query_rollouts(status_in=[status], limit=1)).total for status in get_args(RolloutStatus)
    }
    workers = Counter(worker.status for worker in await store.query_workers())
    counted = await store.statistics()
    return StoreCounts(
        store_id=getattr(store, "store_id", ""),
        rollouts=rollouts,
        workers={status: workers[status] for status in get_args(WorkerStatus)},
        attempts=counted.get("total_attempts", 0),
        spans=counted.get("total_spans", 0),
        resources=counted.get("total_resources", 0),
        queued=sum(rollouts[status] for status in _WAITING),
    )


async def _count(db: str) -> StoreCounts:
    from store.db.dialect import existing_store

    dialect = dialect_of(db)
    async with existing_store(dialect) as store_id, dialect.read(snapshot=True) as session:
        return await _counts(session, store_id)


async def _counts(session: ReadSession, store_id: str) -> StoreCounts:
    from sqlalchemy import func, select

    # The modules of `store.db.queries` import the models, which would double the time of this command.
    from store.db.tables import core as core_tables

    async def rows(statement: ClauseElement) -> Iterable[NamedRow]:
        return await session.fetch(session.dialect.sql(statement), {})

    async def by_status(column: Column[Any], statuses: Iterable[str]) -> dict[str, int]:
        statement = select(column, func.count().label("total")).group_by(column)
        numbers: dict[str, int] = {row.status: row.total for row in await rows(statement)}
        return {status: numbers.get(status, 0) for status in statuses}

    commit = core_tables.commits.c
    (commits,) = await rows(
        select(
            func.count().label("total"),
            func.max(commit.last_position).label("last_position"),
            func.max(commit.recorded_at).label("recorded_at"),
        ).select_from(core_tables.commits)
    )
    sums = [commit.events, commit.attempts, commit.spans, commit.resources, commit.body_bytes]
    newest = await rows(select(*sums).order_by(commit.commit_id.desc()).limit(1))
    totals = Counter({column.name: getattr(row, column.name) for row in newest for column in sums})
    (queue,) = await rows(select(func.count().label("total")).select_from(core_tables.queue))
    return StoreCounts(
        store_id=store_id,
        rollouts=await by_status(core_tables.rollouts.c.status, get_args(RolloutStatus)),
        workers=await by_status(core_tables.workers.c.status, get_args(WorkerStatus)),
        attempts=totals["attempts"],
        spans=totals["spans"],
        resources=totals["resources"],
        queued=queue.total,
        events=totals["events"],
        commits=commits.total,
        last_position=commits.last_position or 0,
        last_commit_time=None if commits.recorded_at is None else to_seconds(commits.recorded_at),
        payload_bytes=totals["body_bytes"],
        disk_bytes=await session.dialect.size_bytes(),
    )


def _print_statuses(kind: str, counts: Mapping[str, int]) -> None:
    _print_fact(kind, _number(sum(counts.values())))
    for status, count in counts.items():
        if count or not is_terminal():
            _print_fact(f"  {status}" if is_terminal() else f"{kind} {status}", _number(count), style=STYLES[status])


def _print_fact(name: str, value: str, style: str | None = None) -> None:
    if not is_terminal():
        line(f"{name}\t{value}")
        return
    line(f"{name:<14} {value:>12}", style)


def _number(value: int) -> str:
    return f"{value:,}" if is_terminal() else str(value)
