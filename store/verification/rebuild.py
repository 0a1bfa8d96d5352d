"""Rebuild: repair of the projections while the store is in use. Only rows that differ from the log are written.

First, all streams are folded and compared with the tables, without the write lock of the database. Then each repair
takes the lock for a few rows: it folds the events that were recorded since the comparison, compares these rows again,
and writes the correct rows in the same transaction. If the process is killed at any moment, each row is either
unchanged or correct. Tables, names and indexes never change, and readers see each row change at most once.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any

from sqlalchemy import Table

from store.db.dialect import Changes, Dialect, ReadSession, Row, TypeFaults, WriteSession
from store.db.queries import log as log_queries
from store.db.queries import scan
from store.db.tables import core as core_tables
from store.domain.events import MetricsLogged, SpanRecorded
from store.domain.rollout import RolloutState
from store.errors import Closed, Corrupt, Unavailable
from store.models import RebuildReport
from store.projections import rollouts as row_of
from store.runtime.progress import OnProgress, ProgressReporter, ignore
from store.verification import pool
from store.verification.compare import Calls, no_calls
from store.verification.differences import Differences
from store.verification.fold import (
    Finding,
    Live,
    PageResult,
    Stream,
    correct_counter,
    differing,
    fold,
    key_of,
    rows_of,
)
from store.verification.state_hash import state_hash
from store.verification.verify import Proof, wrong_epochs
from store.verification.watch import WrongCheck, wrong_checks

ROWS_AT_ONCE = 500
"""The number of rows after which the next repair begins. A large commit of callers writes about as many rows."""

_STREAMS_AT_ONCE = 200
_KINDS = ("rollout/", "thread/", "worker/", "resources/")
# Each row of these tables is computed from one event and never changes. Each row of the other projections is computed
# from all events of a stream.
_OF_EVENTS = (core_tables.spans, core_tables.rewards, core_tables.run_events, core_tables.metrics)

# The index of the position in the key.
_POSITION = {core_tables.rewards: 1, core_tables.metrics: 2}

# The tables whose rows a rebuild can compute, and the tables of heartbeats, whose rows the next heartbeats replace.
_COMPUTED = (
    *core_tables.PROJECTIONS,
    core_tables.span_counters,
    core_tables.watch,
    core_tables.attempt_signals,
    core_tables.worker_signals,
)

Job = Callable[[Callable[[WriteSession], Awaitable[Any]]], Awaitable[Any]]
"""Function that calls another function with the session that writes, between two commits of the writer."""


@dataclass(slots=True)
class _Slice:
    """The rows to repair in one transaction."""

    streams: dict[str, Stream] = field(default_factory=dict[str, Stream])
    """The streams whose rows have to be compared again. A stream is folded up to `position`, or not at all."""
    findings: list[Finding] = field(default_factory=list[Finding])
    """The differences that were found without the lock."""
    position: int = 0
    """The last position of the log at the time of the comparison."""


async def rebuild(
    dialect: Dialect, store_id: str, job: Job, calls: Calls = no_calls, on_progress: OnProgress = ignore
) -> RebuildReport:
    """Compare every projection with the log, repair the rows that differ, and return a report.

    Args:
        dialect: the database.
        store_id: the id of the store.
        job: calls a function with the session that writes, between two commits of the writer.
        calls: returns the number of calls that the writer has finished, which shows whether the store is in use.
        on_progress: receives the number of compared events.

    A row with a value that cannot be read is deleted in one transaction. A later transaction writes the correct row.

    Raises:
        Corrupt: a stream of the log cannot be folded. Rows that were already repaired are correct.
    """
    started = time.monotonic()
    differences = Differences()
    written: Counter[str] = Counter()
    reporter = ProgressReporter(on_progress)
    async with dialect.read(snapshot=True) as session:
        if await dialect.has_type_faults(session, (core_tables.events, core_tables.commits), texts=False):
            _refuse_faults_of_log(await dialect.hide_type_faults(session))
    try:
        proof = await _repair(dialect, store_id, job, calls, reporter, differences, written)
    except (Closed, Corrupt, Unavailable):
        raise
    except Exception:
        # A value whose type is not the type of its column may raise any error.
        if reporter.has_failed:
            raise
        deleted = await _delete_type_faults(dialect, job, differences)
        if not deleted:
            raise
        written.update(deleted)
        proof = await _repair(dialect, store_id, job, calls, reporter, differences, written)
    final_hash = proof.state_hash
    if written:
        async with dialect.read(snapshot=True) as session:
            final_hash = await state_hash(session)
    return RebuildReport(
        events=proof.events,
        streams=proof.streams,
        rows=proof.rows,
        written=dict(written),
        differences=differences.first,
        state_hash=final_hash,
        seconds=time.monotonic() - started,
    )


async def _repair(
    dialect: Dialect,
    store_id: str,
    job: Job,
    calls: Calls,
    on_progress: OnProgress,
    differences: Differences,
    written: Counter[str],
) -> Proof:
    """Compare all tables with the log and repair them.

    Add the differences to `differences`, and the numbers of repaired rows to `written`.
    """
    async with dialect.read() as session:
        length = await _last_position(session)
        epochs = [epoch async for epoch in wrong_epochs(session)]
    if epochs:
        for epoch in epochs:
            differences.add("queue_epoch", epoch.key, None, epoch.expected, epoch.actual)
        extra: list[Row] = [(epoch.actual["id"],) for epoch in epochs if epoch.actual is not None]
        await job(partial(_repair_epochs, extra))
        written["queue_epoch"] += len(epochs)
    async with pool.team(dialect, store_id, length) as team, pool.same_state(dialect, team) as session:
        position = await _last_position(session)
        proof = Proof(session, team, calls, on_progress)
        await proof.begin()
        async for page in proof.run():
            _check_sound(page)
            for finding in chain.from_iterable(page.findings.values()):
                differences.add_row(finding)
            for part in _slices(page, position):
                repair = _SliceRepair(dialect, part)
                written.update(await job(repair.run))
                for wrong in repair.wrong_checks:
                    differences.add("watch", wrong.rollout_id, "check_at", wrong.expected, wrong.actual)
    return proof


async def _delete_type_faults(dialect: Dialect, job: Job, differences: Differences) -> dict[str, int]:
    """Delete rows with a value whose type is not the type of its column; return the number of rows by table name.

    Raises:
        Corrupt: an event or a commit has such a value, so the rows cannot be computed from the log.
    """
    async with dialect.read(snapshot=True) as session:
        faults = await dialect.hide_type_faults(session)
    _refuse_faults_of_log(faults)
    for fault in faults.first:
        differences.add_type_fault(fault)

    async def delete(session: WriteSession) -> dict[str, int]:
        await session.begin()
        deleted = await dialect.delete_type_faults(session, _COMPUTED)
        await session.commit()
        return deleted

    return await job(delete)


def _refuse_faults_of_log(faults: TypeFaults) -> None:
    # Without this check, rows that follow from an unreadable event would be deleted.
    for fault in faults.first:
        if fault.table in (core_tables.events, core_tables.commits):
            raise Corrupt(f"the row {fault.key} of {fault.table.name}, {fault.column}", fault.actual, fault.expected)


async def _repair_epochs(extra: list[Row], session: WriteSession) -> None:
    """Delete the rows of `queue_epoch` with other ids than 1. The call of `begin` restores the row with the id 1."""
    await session.begin()
    if extra:
        await session.write(Changes({}, {}, {core_tables.queue_epoch: extra}))
    await session.commit()


async def _last_position(session: ReadSession) -> int:
    last = await log_queries.last_event(session)
    return 0 if last is None else last.position


def _check_sound(page: PageResult) -> None:
    for stream in page.streams:
        if stream.fault is not None:
            raise Corrupt(
                f"{stream.name}, event {stream.fault_at}",
                stream.fault,
                "an event that follows from the events before it",
            )


def _slices(page: PageResult, position: int) -> Iterable[_Slice]:
    by_name = {stream.name: stream for stream in page.streams}
    names = dict.fromkeys((*page.findings, *page.unwatched))
    current = _Slice(position=position)
    for name in names:
        findings = page.findings.get(name, [])
        of_stream = [finding for finding in findings if finding.table not in _OF_EVENTS]
        if of_stream or name in page.unwatched:
            # A large rollout is compared in parts, so the result may not contain its stream yet. Then the stream is
            # folded from its first event under the lock.
            current.streams[name] = by_name.get(name) or _unfolded(name)
            current.findings.extend(of_stream)
        of_events = iter(finding for finding in findings if finding.table in _OF_EVENTS)
        while some := list(islice(of_events, ROWS_AT_ONCE)):
            current.findings.extend(some)
            if len(current.findings) >= ROWS_AT_ONCE:
                yield current
                current = _Slice(position=position)
        if len(current.streams) >= _STREAMS_AT_ONCE:
            yield current
            current = _Slice(position=position)
    if current.streams or current.findings:
        yield current


def _unfolded(name: str) -> Stream:
    kind, _, key = name.partition("/")
    return Stream(f"{kind}/{key}", key)


class _SliceRepair:
    """The repair of one slice, in one transaction with the write lock."""

    def __init__(self, dialect: Dialect, part: _Slice) -> None:
        self._dialect = dialect
        self._part = part
        self._deletes: dict[Table, dict[tuple[Any, ...], None]] = {}
        self._inserts: dict[Table, dict[tuple[Any, ...], Row]] = {}
        self._upserts: dict[Table, list[Row]] = {}
        self.wrong_checks: list[WrongCheck] = []
        """The wrong times of the watchdog's next checks that were repaired."""

    async def run(self, session: WriteSession) -> Counter[str]:
        """Repair the rows and commit. Return the number of written or deleted rows by projection."""
        tail = await session.begin()
        streams = self._part.streams
        # Events were appended since the comparison, and some streams were not folded before.
        await self._fold([name for name in streams if streams[name].state is not None], self._part.position, session)
        await self._fold([name for name in streams if streams[name].state is None], 0, session)
        await self._find_holders(session)
        await self._repair_states(session)
        await self._repair_signals(session)
        await self._repair_event_rows(session, tail.next_position)
        written = await self._write(session, tail.queue_epoch)
        await session.commit()
        return written

    async def _fold(self, names: Sequence[str], after: int, session: ReadSession) -> None:
        if not names:
            return
        streams = self._part.streams
        async for rows in scan.events_since(session, names, after):
            for kind in _KINDS:
                of_kind = [row for row in rows if row.stream.startswith(kind)]
                for name, of_stream in groupby(of_kind, attrgetter("stream")):
                    fold(kind, of_stream, streams[name])
                    # Rows that are computed from one event are repaired in `_repair_event_rows`.
                    streams[name].spans, streams[name].rewards, streams[name].run.run_events = [], [], []
        _check_sound(PageResult([streams[name] for name in names]))

    async def _find_holders(self, session: ReadSession) -> None:
        """Add the rollouts whose rows contain a plan key that the correct row of another rollout contains.

        A plan key is a caller's key for a rollout. It is unique in the table, so the wrong row must be repaired too.
        """
        streams = self._part.streams
        while True:
            states = [stream.state for stream in streams.values()]
            keys = [state.plan_key for state in states if isinstance(state, RolloutState) and state.plan_key]
            if not keys:
                return
            holders = await scan.rows_with(session, core_tables.rollouts.c.plan_key, keys)
            others = [name for row in holders if (name := f"rollout/{row.rollout_id}") not in streams]
            if not others:
                return
            streams.update({name: _unfolded(name) for name in others})
            await self._fold(others, 0, session)

    async def _repair_states(self, session: ReadSession) -> None:
        streams = self._part.streams
        expected: dict[Table, list[Row]] = {}
        for stream in streams.values():
            for table, rows in rows_of(stream).items():
                expected.setdefault(table, []).extend(rows)
        live = await self._live(session, expected.get(core_tables.queue, []))
        for table, stored in live.items():
            for finding in differing(table, expected.get(table, []), stored):
                self._replace(finding)

    async def _live(self, session: ReadSession, queued: Sequence[Row]) -> Live:
        streams = self._part.streams
        ids = {kind: [stream.key for name, stream in streams.items() if name.startswith(kind)] for kind in _KINDS}
        live: Live = {}
        for kind, table in (
            ("rollout/", core_tables.rollouts),
            ("rollout/", core_tables.attempts),
            *(("rollout/", table) for table in core_tables.RUNS if table is not core_tables.run_events),
            *(("rollout/", table) for table in (*core_tables.ANNOTATIONS, *core_tables.SCORES)),
            *(("thread/", table) for table in core_tables.THREADS),
            ("worker/", core_tables.workers),
            ("resources/", core_tables.resources),
        ):
            if ids[kind]:
                key = next(iter(table.primary_key))
                live[table] = await scan.rows_with(session, key, ids[kind])
        wrong = {finding.key[0] for finding in self._part.findings if finding.table is core_tables.queue}
        places = {key_of(core_tables.queue, row)[0] for row in queued}
        queue_rows = await scan.queue_at(session, sorted(wrong | places))
        # A found row may belong to a rollout outside of this slice. Such a row is left out, unless the log gives its
        # place in the queue to a rollout of this slice.
        live[core_tables.queue] = [
            row for row in queue_rows if row.position in places or f"rollout/{row.rollout_id}" in streams
        ]
        return live

    async def _repair_signals(self, session: ReadSession) -> None:
        """Repair counters of span numbers, and the times of the watchdog's next checks.

        A counter that is too low is raised at least to the greatest number in the log. The watchdog ends attempts that
        have exceeded a time limit.
        """
        rollouts = {stream.key: stream for name, stream in self._part.streams.items() if name.startswith("rollout/")}
        if not rollouts:
            return
        ids = list(rollouts)
        counter_rows = await scan.rows_with(session, core_tables.span_counters.c.rollout_id, ids)
        counters = {row.rollout_id: row for row in counter_rows}
        for key, stream in rollouts.items():
            counter = correct_counter(stream, counters.get(key))
            if counter is not None:
                self._upserts.setdefault(core_tables.span_counters, []).append(counter)
        states = {key: stream.state for key, stream in rollouts.items() if isinstance(stream.state, RolloutState)}
        for wrong in await wrong_checks(session, states):
            if wrong.expected is None:
                self._deletes.setdefault(core_tables.watch, {})[wrong.rollout_id,] = None
            else:
                self._upserts.setdefault(core_tables.watch, []).append((wrong.rollout_id, wrong.expected))
            self.wrong_checks.append(wrong)

    async def _repair_event_rows(self, session: ReadSession, next_position: int) -> None:
        """Repair rows that are computed from one event.

        The correct row never changes, so it is written without another comparison. A row that should not exist is
        compared again before it is deleted.
        """
        findings = [finding for finding in self._part.findings if finding.table in _OF_EVENTS]
        for finding in findings:
            if finding.expected is not None:
                self._replace(finding)
        extra = [finding for finding in findings if finding.expected is None]
        spans = [finding for finding in extra if finding.table is core_tables.spans]
        if spans:
            keys: list[Any] = [finding.key for finding in spans]
            still = {key_of(core_tables.spans, row): row for row in await scan.spans_with(session, keys)}
            for finding in spans:
                if finding.actual == still.get(finding.key):
                    self._replace(finding)
        await self._replace_run_events(session, extra)
        by_position = [finding for finding in extra if finding.table in (core_tables.rewards, core_tables.metrics)]
        positions = {finding.key[_POSITION[finding.table]] for finding in by_position}
        in_log = await self._keys_in_log(session, sorted(at for at in positions if at < next_position))
        for finding in by_position:
            if (finding.table, finding.key) not in in_log:
                self._replace(finding)

    async def _replace_run_events(self, session: ReadSession, extra: Sequence[Finding]) -> None:
        for finding in extra:
            if finding.table is core_tables.run_events:
                rollout_id, version = finding.key
                now = await scan.run_events_between(session, rollout_id, version - 1, version)
                if [finding.actual] == list(now):
                    self._replace(finding)

    async def _keys_in_log(self, session: ReadSession, positions: Sequence[int]) -> set[tuple[Table, tuple[Any, ...]]]:
        """Return the keys of the rows of all rewards and metrics in the events at some positions."""
        keys_in_log: set[tuple[Table, tuple[Any, ...]]] = set()
        for row in await scan.events_at(session, positions):
            event = log_queries.event_of(row)
            if isinstance(event.fact, SpanRecorded):
                rewards = row_of.rewards(event.stream.removeprefix("rollout/"), event, event.fact)
                keys_in_log.update((core_tables.rewards, key_of(core_tables.rewards, reward)) for reward in rewards)
            elif isinstance(event.fact, MetricsLogged):
                rows = row_of.metrics(event, event.fact)
                keys_in_log.update((core_tables.metrics, key_of(core_tables.metrics, logged)) for logged in rows)
        return keys_in_log

    def _replace(self, finding: Finding) -> None:
        if finding.actual is not None:
            self._deletes.setdefault(finding.table, {})[finding.key] = None
        if finding.expected is not None:
            self._inserts.setdefault(finding.table, {})[finding.key] = finding.expected

    async def _write(self, session: WriteSession, queue_epoch: int) -> Counter[str]:
        # All deletes come before all inserts, because a new row may need a unique value of a row that is deleted.
        deletes: dict[Table, list[Row]] = {table: list(keys) for table, keys in self._deletes.items()}
        if deletes:
            await session.write(Changes({}, {}, deletes))
        inserts: dict[Table, list[Row]] = {table: list(rows.values()) for table, rows in self._inserts.items()}
        if any(table is core_tables.queue for table in inserts):
            # Processes remember up to which place they have read the queue. The new row may be before this place, and a
            # new epoch makes the processes read the queue again from its beginning.
            self._upserts[core_tables.queue_epoch] = [(1, queue_epoch + 1)]
        if inserts or self._upserts:
            await session.write(Changes(inserts, self._upserts, {}))
        written: Counter[str] = Counter()
        for table in core_tables.PROJECTIONS:
            count = len(self._deletes.get(table, {}).keys() | self._inserts.get(table, {}).keys())
            if count:
                written[table.name] = count
        if core_tables.span_counters in self._upserts:
            written["span_counters"] = len(self._upserts[core_tables.span_counters])
        if self.wrong_checks:
            written["watch"] = len(self.wrong_checks)
        return written
