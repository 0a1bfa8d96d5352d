"""Checks of the store in a database: its schema, its log, its attempts and its queue. They work with every dialect."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from store.db.dialect import ReadSession
from store.db.queries import counts, lost_workers, operation_runs, pages, scan
from store.db.queries import log as log_queries
from store.db.schema.history import HEAD
from store.db.tables import core as core_tables
from store.domain.events import AttemptStarted, WorkerStatusChanged
from store.operations.doctor.results import Verdict, ok, problem, warning
from store.operations.doctor.target import Target
from store.runtime.clock import MICROSECONDS, system_clock, to_seconds
from store.verification import log_scan
from store.verification.differences import Differences
from store.verification.sequences import check_sequences as compare_sequences
from store.verification.sequences import remedy
from store.verification.verify import check_guards as compare_guards

_AHEAD_SECONDS: Final = 1.0
_OVERDUE_SECONDS: Final = 60.0
"""An open store ends overdue attempts within seconds. After this time, no process has the store open."""
_WAITING_SECONDS: Final = 60.0
_MOST_COUNTED: Final = 2_000_000
"""The rows of a table are counted only up to this number, because a count reads the whole index."""
_MOST_WORKERS: Final = 1000
_DAY: Final = 86_400 * MICROSECONDS
_GONE: Final = frozenset({"lost", "stopped"})


async def check_schema(target: Target) -> Verdict:
    """Open the store for reading, which checks the revision of its schema."""
    dialect = target.dialect
    store_id = await dialect.open(create=False)
    target.opened.push_async_callback(dialect.close)
    return ok(f"the store {store_id} has schema revision {HEAD}, which this program needs")


async def check_guards(target: Target) -> Verdict:
    """Check the triggers, unique keys and indexes that protect the log and the tables."""
    differences = Differences()
    async with target.dialect.read() as session:
        await compare_guards(session, differences)
    if not differences.count:
        return ok(f"all {len(target.dialect.guards().expected)} triggers, unique keys and indexes are in place")
    more = f", and {differences.count - 1} more" if differences.count > 1 else ""
    return problem(
        f"{differences.first[0].key}{more}",
        f"restore those of a new store of this version, then run: rollbook verify {target.option}",
        "damage",
    )


async def check_sequences(target: Target) -> Verdict:
    """Check that the sequences for commit ids and positions are not behind the log."""
    dialect = target.dialect
    differences = Differences()
    async with dialect.read(snapshot=True) as session:
        bounds = await log_scan.bounds(session)
        await compare_sequences(session, bounds.commit_id, bounds.position, differences)
    if not differences.count:
        return ok(f"the sequences continue after commit {bounds.commit_id} and position {bounds.position}")
    text = "; ".join(
        f"the sequence {difference.key} is at {difference.found}, and the log is at {difference.expected}"
        for difference in differences.first
    )
    return problem(text, remedy(differences.first), "damage")


async def check_counts(target: Target) -> Verdict:
    """Compare the last commit with the last event, and the totals of the log with the numbers of rows in two tables."""
    dialect = target.dialect
    async with dialect.read(snapshot=True) as session:
        commit = await log_queries.last_commit(session)
        bounds = await log_scan.bounds(session)
        totals = dict(zip(pages.TOTALS, await pages.totals(session), strict=True))
        counted = {
            table.name: await scan.count(session, table)
            for table in (core_tables.rollouts, core_tables.workers)
            if totals[table.name] <= _MOST_COUNTED
        }
    last_position = 0 if commit is None else commit.last_position
    differences = [
        f"the table {name} has {rows} rows, but the log counts {totals[name]}"
        for name, rows in counted.items()
        if rows != totals[name]
    ]
    if bounds.position != last_position:
        differences.append(f"the last event is {bounds.position}, and the last commit ends at {last_position}")
    if differences:
        remedy = f"rollbook verify {target.option}; if the log is intact: rollbook rebuild {target.option}"
        return problem("; ".join(differences), remedy, "damage")
    return ok(
        f"the log ends at position {last_position}, and {' and '.join(counted) or 'nothing'} have as many rows as the"
        f" log says; the full proof is: rollbook verify {target.option}"
    )


async def check_last_verification(target: Target) -> Verdict:
    """Check the stored result of the last verification."""
    async with target.dialect.read() as session:
        run = (await operation_runs.all_runs(session)).get("verify")
    if run is None or run.ended_at is None:
        return ok("the store was never verified")
    ended_at = datetime.fromtimestamp(to_seconds(run.ended_at), UTC).isoformat(timespec="seconds")
    when = f"the store was last verified at {ended_at.replace('+00:00', 'Z')}"
    if run.differences:
        text = f"{when}, and {run.differences} differences were found"
        return problem(text, f"rollbook verify {target.option}", "damage")
    upto = "" if run.commit_id is None else f", up to commit {run.commit_id}"
    return ok(f"{when}{upto}, and was intact")


async def check_time(target: Target) -> Verdict:
    """Check that the last event is not in the future, because later events get times after it."""
    async with target.dialect.read() as session:
        recorded_at, _ = await pages.last_times(session)
    ahead = (recorded_at - system_clock()) / MICROSECONDS
    if ahead > _AHEAD_SECONDS:
        text = f"the last commit is {ahead:.1f} s in the future, and new events get times after it"
        return warning(text, "set the clock of the machine of the database: timedatectl set-ntp true")
    return ok("the last commit is not in the future")


async def check_attempts(target: Target) -> Verdict:
    """Search for attempts that should have been ended, and for attempts of workers that send no heartbeats any more."""
    dialect, now = target.dialect, system_clock()
    before = now - round(_OVERDUE_SECONDS * MICROSECONDS)
    async with dialect.read(snapshot=True) as session:
        overdue = await counts.overdue_checks(session, before)
        attempts = await lost_workers.open_attempts(session)
        states = await counts.worker_states(session, now)
        silent = await lost_workers.silent_since(session, now - _DAY)
    if overdue:
        text = (
            f"{_many(overdue, 'rollout has', 'rollouts have')} an attempt that has been overdue for more than a minute"
        )
        return warning(text, f"start a process that ends overdue attempts: rollbook serve {target.option}")
    lost = [attempt for _, attempt, worker in attempts if states.get(worker) in _GONE or worker in silent]
    if lost:
        text = f"{_many(len(lost), 'attempt belongs to a worker', 'attempts belong to workers')} without a heartbeat"
        return warning(text, f"rollbook ls workers {target.option}; restart them, and their attempts are retried")
    return ok(f"{_many(len(attempts), 'active attempt', 'active attempts')}, and none is overdue")


async def check_heartbeats(target: Target) -> Verdict:
    """Search for workers whose heartbeats are missing. No event records heartbeats, so a verification ignores them."""
    dialect = target.dialect
    async with dialect.read(snapshot=True) as session:
        suspects = await lost_workers.without_heartbeats(session, _MOST_WORKERS)
        missing = [worker for worker in suspects if await _has_sent_heartbeat(session, worker)]
    if not missing:
        return ok("every worker that sent a heartbeat or claimed a rollout has a row of heartbeats")
    names = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
    text = f"{_many(len(missing), 'worker lacks its row', 'workers lack their rows')} in worker_signals: {names}"
    return warning(text, "the next heartbeat writes the row again; restore a backup if you need the statistics")


async def _has_sent_heartbeat(session: ReadSession, worker_id: str) -> bool:
    """Return whether the first call of a worker was a heartbeat or a claim. Both store a row of `worker_signals`."""
    stream = f"worker/{worker_id}"
    rows = await log_queries.events(session, stream=stream, limit=2)
    events = [log_queries.event_of(row) for row in rows]
    if not events:
        return False
    if len(events) == 1 or any(getattr(rows[0], name) != getattr(rows[1], name) for name in ("commit_id", "command")):
        return True  # only a heartbeat records a new worker without a status
    fact, cause = events[1].fact, events[1].cause
    if cause is None:
        return isinstance(fact, WorkerStatusChanged) and fact.to == "idle"
    started = [log_queries.event_of(row).fact for row in await scan.events_at(session, [cause])]
    return any(isinstance(event, AttemptStarted) and event.via == "dequeue" for event in started)


async def check_queue(target: Target) -> Verdict:
    """Check that a worker is alive while rollouts wait in the queue."""
    dialect, now = target.dialect, system_clock()
    async with dialect.read(snapshot=True) as session:
        waiting = await pages.queue_depth(session)
        oldest = await counts.oldest_waiting_at(session)
        states = await counts.worker_states(session, now)
    alive = sum(state not in _GONE for state in states.values())
    if not waiting or oldest is None:
        return ok(f"no rollout waits, and {_many(alive, 'worker is', 'workers are')} active")
    seconds = (now - oldest) / MICROSECONDS
    text = f"{_many(waiting, 'rollout waits', 'rollouts wait')}, the first for {max(0, seconds):.0f} s"
    if not alive and seconds > _WAITING_SECONDS:
        return warning(f"{text}, and no worker has sent a heartbeat recently", f"rollbook runner AGENT {target.option}")
    return ok(f"{text}, and {_many(alive, 'worker is', 'workers are')} active")


def _many(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"
