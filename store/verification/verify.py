"""Check, in one snapshot of the database, that the log is complete and that the tables agree with it.

For a long log, other processes (the team) compare ranges of streams, and check ranges of the log. If another process
finds a difference in a range of streams, this process compares the range again and reports the difference. If another
process finds a difference in the log, this process checks the whole log again.

SQLite accepts a value of any type in nearly every column. A value of the wrong type nearly always causes an error or a
difference in a comparison. `verify` searches for such values only after an error or a difference, because the search
takes a tenth of the time of a verification. It then reports the rows with such values, leaves these rows out, and
compares the other rows again. Tables that are not compared with the log are always searched.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select

from store.db.dialect import Dialect, ReadSession
from store.db.queries import log as log_queries
from store.db.queries import scan
from store.db.schema import triggers
from store.db.schema.history import LOG_FORMAT
from store.db.tables import core as core_tables
from store.domain.rollout import RolloutState
from store.errors import Closed, Unavailable
from store.models import Seal, VerifyReport
from store.runtime.progress import OnProgress, OperationProgress, ProgressReporter, ignore
from store.verification import log_scan, pool, state_hash
from store.verification.compare import STRETCHES, Calls, Comparison, StreamRange, no_calls
from store.verification.differences import Differences
from store.verification.fold import PageResult
from store.verification.pool import CheckRest, Compare, SoundRest, StreamsResult, Team, Walk
from store.verification.sequences import check_sequences
from store.verification.watch import wrong_checks

# All other tables are compared with the log value by value, and a value never equals a value of another type.
_NOT_COMPARED = (
    core_tables.store_info,
    core_tables.queue_epoch,
    core_tables.commits,
    core_tables.data_blocks,
    core_tables.dictionaries,
    core_tables.dropped,
    core_tables.attempt_signals,
    core_tables.worker_signals,
    core_tables.watch,
    core_tables.span_counters,
    core_tables.model_calls,
    core_tables.batches,
    core_tables.idempotency,
    core_tables.keys,
    core_tables.key_policy,
    core_tables.operation_runs,
    core_tables.saved_views,
    core_tables.webhooks,
    core_tables.webhook_deliveries,
    core_tables.verifications,
)

_RANGES = 4
"""The number of ranges of the log for each process. With several ranges, all processes end at about the same time."""


class Proof:
    """One comparison of all streams with all tables. Its attributes are complete when `run` has ended."""

    def __init__(self, session: ReadSession, team: Team, calls: Calls, on_progress: OnProgress) -> None:
        """Begin before the first stream.

        Args:
            session: a session that reads a snapshot. The processes of the team must read the same state.
            team: the processes that do a part of the work.
            calls: returns the number of calls that the writer has finished, which shows whether the store is in use.
            on_progress: receives the number of compared events.
        """
        self._session = session
        self._team = team
        self._calls = calls
        self._on_progress = on_progress
        self._total = 0
        self._cuts: list[str] = []
        self._tasks: dict[StreamRange, asyncio.Task[StreamsResult | None]] = {}
        self.events = 0
        self.streams = 0
        self.rows: dict[str, int] = {}
        """The number of rows of each projection."""
        self.state_hash = ""
        """A hash over all rows of the projections."""

    async def begin(self) -> None:
        """Give the ranges of streams to the team. `run` yields the results."""
        self._total = await log_scan.event_count(self._session)
        self._cuts = await state_hash.cuts(self._session)
        stretches = _ranges_between(self._cuts) if len(self._team) else STRETCHES
        # Only the range of rollouts is divided. The other ranges may take longest, so they are tasks first.
        first = sorted(stretches, key=lambda stretch: stretch.prefix == "rollout/")
        tasks = {stretch: self._team.begin(Compare(stretch=stretch, cuts=self._cuts)) for stretch in first}
        self._tasks = {stretch: tasks[stretch] for stretch in stretches}

    async def run(self) -> AsyncIterator[PageResult]:
        """Compare all streams, and yield results in the order of the streams. Call `begin` first.

        For a range that the team has compared without a difference, nothing is yielded.
        """
        self._report(0)
        total_hash = state_hash.StateHash(self._cuts)
        async for rows in scan.all_rows(self._session, core_tables.queue):
            total_hash.update(core_tables.queue, rows)
        for stretch, task in self._tasks.items():
            sound = await task
            if sound is not None:
                self._count(sound.events, sound.streams)
                total_hash.take(sound.hashes)
                continue
            comparison = Comparison(self._session, self._calls, total_hash)
            async for page in comparison.of(stretch):
                self._report(comparison.events)
                yield page
            self._count(comparison.events, comparison.streams)
        self.rows = total_hash.part_hashes().rows
        self.state_hash = total_hash.hexdigest()

    def _count(self, events: int, streams: int) -> None:
        self.events += events
        self.streams += streams
        self._report(0)

    def _report(self, more: int) -> None:
        # Events that do not belong to a commit are compared too, but the total does not include them.
        done = min(self.events + more, self._total)
        self._on_progress(OperationProgress("comparing the tables", done, self._total))


class LogWalk:
    """One check of the log itself."""

    def __init__(self, session: ReadSession, team: Team, until: log_scan.Bounds, on_progress: OnProgress) -> None:
        """Begin before the first commit.

        Args:
            session: a session that reads a snapshot. The processes of the team must read the same state.
            team: the processes that check ranges of the log.
            until: the end of the log in the snapshot.
            on_progress: receives the number of checked events.
        """
        self._session = session
        self._team = team
        self._until = until
        self._on_progress = on_progress
        self._ranges: list[tuple[log_scan.LogRange, asyncio.Task[log_scan.SoundRange | None]]] = []
        self._rest: asyncio.Task[SoundRest | None] | None = None

    def begin_rest(self) -> None:
        """Give the check of blobs to the team. The check is one job, so it should begin early."""
        if len(self._team):
            self._rest = self._team.begin(CheckRest())

    async def begin(self) -> None:
        """Give ranges of the log to the team. `run` returns the result."""
        if len(self._team):
            ranges = await log_scan.ranges(self._session, self._until, _RANGES * len(self._team))
            self._ranges = [(part, self._team.begin(Walk(part=part))) for part in ranges]

    async def run(self) -> log_scan.LogResult:
        """Return the result of the check. If there is a difference, this process checks the whole log again."""
        self._on_progress(OperationProgress("checking the log"))
        return await self._team_result() or await log_scan.walk(self._session, self._until, self._on_progress)

    async def _team_result(self) -> log_scan.LogResult | None:
        """Return the result of the team; None if there is no team, or if there is a difference.

        If a process of the team failed, this process does that part of the check.
        """
        if self._rest is None or not self._ranges:
            return None
        total = await log_scan.event_count(self._session)
        ranges: list[log_scan.SoundRange] = []
        events = 0
        for part, task in self._ranges:
            sound = await task or await log_scan.walk_range(self._session, part)
            if sound is None:
                return None
            ranges.append(sound)
            events += sound.events
            self._on_progress(OperationProgress("checking the log", min(events, total), total))
        differences, bodies = Differences(), sum(part.bodies for part in ranges)
        await log_scan.check_unclaimed(self._session, bodies, differences, self._until)
        if await self._rest is None:
            await log_scan.check_beside_commits(self._session, differences)
        if differences.count:
            return None
        return log_scan.LogResult(
            commits=sum(part.commits for part in ranges),
            events=events,
            last_position=ranges[-1].last_position,
            head=ranges[-1].head,
            differences=[],
            difference_count=0,
        )


def _ranges_between(cuts: Sequence[str]) -> list[StreamRange]:
    """Return ranges that together contain every stream. The rollouts are divided into several ranges."""
    ranges: list[StreamRange] = []
    for stretch in STRETCHES:
        range_cuts = cuts if stretch.prefix == "rollout/" else ()
        for after, until in zip([None, *range_cuts], [*range_cuts, None], strict=True):
            ranges.append(stretch.model_copy(update={"after": after, "until": until}))
    return ranges


async def verify(
    dialect: Dialect, store_id: str, seal: Seal | None = None, calls: Calls = no_calls, on_progress: OnProgress = ignore
) -> VerifyReport:
    """Verify the whole store in one snapshot of the database, and return a report.

    While the snapshot is open, SQLite cannot shorten its write-ahead log, so this file grows with each write.

    Args:
        dialect: the database.
        store_id: the id of the store.
        seal: the end of the log at an earlier moment. Verification checks that the log still contains its commit.
        calls: returns the number of calls that the writer has finished, which shows whether the store is in use.
        on_progress: called with the progress of each step. If a value of the wrong type is found, the steps are
            repeated, and their numbers start again at 0.
    """
    started = time.monotonic()
    report = None
    reporter = ProgressReporter(on_progress)
    try:
        async with dialect.read() as session:
            length = (await log_scan.bounds(session)).position
        async with pool.team(dialect, store_id, length) as team, pool.same_state(dialect, team) as session:
            if not await dialect.has_type_faults(session, _NOT_COMPARED, texts=True):
                report = await _verify(session, team, store_id, seal, calls, Differences(), reporter)
    except (Closed, Unavailable):
        raise
    except Exception:
        # A value of the wrong type may raise any error.
        if reporter.has_failed:
            raise
        report = None
    if report is None or not report.ok:
        report = await _without_type_faults(dialect, store_id, seal, calls, on_progress, report)
    return report.model_copy(update={"seconds": time.monotonic() - started})


async def _without_type_faults(
    dialect: Dialect,
    store_id: str,
    seal: Seal | None,
    calls: Calls,
    on_progress: OnProgress,
    report: VerifyReport | None,
) -> VerifyReport:
    """Report the rows that have a value of the wrong type, and verify the other rows.

    If no row has such a value, return the given report, unless it is None.
    """
    async with dialect.read(snapshot=True) as session:
        faults = await dialect.hide_type_faults(session)
        if report is not None and not faults.first:
            return report
        differences = Differences()
        for fault in faults.first:
            differences.add_type_fault(fault)
        differences.count = faults.counts.total()
        return await _verify(session, pool.Team(()), store_id, seal, calls, differences, on_progress)


async def _verify(
    session: ReadSession,
    team: pool.Team,
    store_id: str,
    seal: Seal | None,
    calls: Calls,
    differences: Differences,
    on_progress: OnProgress,
) -> VerifyReport:
    # A block that was read before the snapshot would hide later damage.
    session.dialect.stored_forms.forget()
    await check_store(session, store_id, differences)
    bounds = await log_scan.bounds(session)
    log_walk = LogWalk(session, team, bounds, on_progress)
    proof = Proof(session, team, calls, on_progress)
    log_walk.begin_rest()
    await proof.begin()
    await log_walk.begin()
    table_differences = await differences_in(session, proof.run())
    walked = await log_walk.run()
    differences.join(walked.differences, walked.difference_count)
    await check_sequences(session, bounds.commit_id, walked.last_position, differences)
    if seal is not None:
        await _check_seal(session, store_id, seal, differences)
    differences.join(table_differences.first, table_differences.count)
    return VerifyReport(
        store_id=store_id,
        commits=walked.commits,
        events=proof.events,
        streams=proof.streams,
        rows=proof.rows,
        last_position=walked.last_position,
        chain_head=walked.head,
        state_hash=proof.state_hash,
        seal_checked=seal is not None,
        differences=differences.first,
        difference_count=differences.count,
        seconds=0,
    )


async def check_store(session: ReadSession, store_id: str, differences: Differences) -> None:
    """Report missing or foreign triggers and indexes, and wrong rows of the tables that describe the store."""
    await check_guards(session, differences)
    await _check_store_info(session, store_id, differences)
    async for epoch in wrong_epochs(session):
        differences.add("queue_epoch", epoch.key, None, epoch.expected, epoch.actual)


async def check_guards(session: ReadSession, differences: Differences) -> None:
    """Report missing, changed and unexpected triggers, unique keys and indexes of the database."""
    guards = session.dialect.guards()
    rows = await session.fetch(guards.in_place, {})
    for sentence in triggers.missing(guards, rows):
        differences.add("guards", sentence, None, "in place", None)
    for guard in triggers.foreign(guards, rows):
        sentence = f"table {guard.table}: {guard.kind} {guard.name} is not part of the store"
        differences.add("guards", sentence, None, None, guard.definition)


async def _check_store_info(session: ReadSession, store_id: str, differences: Differences) -> None:
    """Report a store id that changed since the store was opened, and an unexpected log format."""
    columns = core_tables.store_info.c
    statement = select(columns.store_id, columns.log_format)
    rows = await session.fetch(session.dialect.sql(statement), {})
    if len(rows) != 1:
        differences.add("store_info", "store", None, "one row", f"{len(rows)} rows")
        return
    for name, expected in (("store_id", store_id), ("log_format", LOG_FORMAT)):
        actual = getattr(rows[0], name)
        if actual != expected:
            differences.add("store_info", "store", name, expected, actual)


class WrongEpoch(NamedTuple):
    """A missing or unexpected row of `queue_epoch`."""

    key: str
    """The id of the row."""
    expected: str | None
    actual: dict[str, Any] | None


async def wrong_epochs(session: ReadSession) -> AsyncIterator[WrongEpoch]:
    """Yield the differences in `queue_epoch`, which must have exactly one row, with the id 1."""
    rows = await session.fetch(session.dialect.sql(core_tables.queue_epoch.select()), {})
    epochs = {row.id: row.epoch for row in rows}
    if not isinstance(epochs.pop(1, None), int):
        yield WrongEpoch("1", "one row", None)
    for number, epoch in epochs.items():
        yield WrongEpoch(str(number), None, {"id": number, "epoch": epoch})


async def _check_seal(session: ReadSession, store_id: str, seal: Seal, differences: Differences) -> None:
    if seal.store_id != store_id:
        differences.add("seal", "store", "store_id", seal.store_id, store_id)
        return
    if not seal.commit_id:
        return
    commit = await log_queries.last_commit(session, seal.commit_id)
    key = f"commit {seal.commit_id}"
    if commit is None or commit.commit_id != seal.commit_id:
        end = await log_queries.last_commit(session)
        problem = None
        if end is None:
            problem = "an empty log"
        elif end.commit_id < seal.commit_id:
            problem = f"the log ends at commit {end.commit_id}: later commits are missing"
        differences.add("seal", key, None, seal.chain_head, problem)
        return
    if bytes(commit.chain_hash).hex() != seal.chain_head:
        differences.add("seal", key, "chain_hash", seal.chain_head, bytes(commit.chain_hash))
    if commit.last_position != seal.position:
        differences.add("seal", key, "last_position", seal.position, commit.last_position)


async def differences_in(session: ReadSession, results: AsyncIterator[PageResult]) -> Differences:
    """Return the differences in the results of comparisons of streams, which are computed in the given session."""
    differences = Differences()
    async for page in results:
        unwatched = set(page.unwatched)
        states = {
            stream.key: stream.state
            for stream in page.streams
            if stream.name in unwatched and isinstance(stream.state, RolloutState)
        }
        for wrong in await wrong_checks(session, states):
            differences.add("watch", wrong.rollout_id, "check_at", wrong.expected, wrong.actual)
        for stream in page.streams:
            if stream.fault is not None:
                key = f"{stream.name}, event {stream.fault_at}"
                differences.add("events", key, None, "an event that follows from the events before it", stream.fault)
        for findings in page.findings.values():
            for finding in findings:
                differences.add_row(finding)
    return differences
