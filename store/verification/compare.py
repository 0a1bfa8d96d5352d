"""Comparison of the streams of the log with all tables, in one snapshot of the database and in limited memory.

The name of a stream is its kind, a slash, and its key, which is the id of the rollout, worker, thread or set of
resources. Events are read stream by stream. For each page of events, the table rows of the same streams are read and
compared with the folded rows. A rollout with very many spans is compared in parts.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from sqlalchemy import Table

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import scan
from store.db.queries.log import BATCH, event_of
from store.db.tables import core as core_tables
from store.domain.events import SpanRecorded
from store.models.enums import Frozen
from store.verification.fold import Finding, Live, PageResult, Stream, compare, differing, fold, key_of
from store.verification.state_hash import StateHash

LARGE = 20_000
"""The number of rows of spans and run events from which a rollout is compared in parts."""

Calls = Callable[[], int]
"""Function that returns the number of calls that the writer of this process has finished since it started."""


def no_calls() -> int:
    """Return 0, for a process without a writer."""
    return 0


_KEYS_AT_ONCE = 2000
# The writer counts as busy if it finishes more calls than this during the comparison of one page (about 50 ms).
_AT_WORK = 2
_TABLES: dict[str, tuple[Table, ...]] = {
    "resources/": (core_tables.resources,),
    "rollout/": (
        core_tables.rollouts,
        core_tables.attempts,
        core_tables.spans,
        core_tables.rewards,
        *core_tables.RUNS,
        *core_tables.ANNOTATIONS,
        *core_tables.SCORES,
        core_tables.span_counters,
        core_tables.watch,
    ),
    "store": core_tables.METRICS,
    "thread/": core_tables.THREADS,
    "worker/": (core_tables.workers,),
    "": (),
}
_PIECEWISE = (core_tables.spans, core_tables.rewards, core_tables.run_events)
_LAST_VERSION = 2**63 - 1


class StreamRange(Frozen):
    """A range of streams in the order of their names. All streams have the same kind, or all have an unknown kind."""

    prefix: str
    """The kind of the streams and a slash.

    It is empty for streams without tables, which are of kinds that this version of the program does not know. For the
    stream of the store itself, it is the name of the stream.
    """
    first: str
    """The lower bound of the names, included."""
    before: str | None
    """The upper bound of the names, excluded; None if there is no upper bound."""
    after: str | None = None
    """The lower bound of the keys, excluded; None if there is no bound. The empty string is a bound too."""
    until: str | None = None
    """The upper bound of the keys, included; None if there is no bound."""

    @property
    def place(self) -> tuple[str, int]:
        """The name of a stream and a version. The events of the range come after this place."""
        return (self.first, 0) if self.after is None else (self.prefix + self.after, _LAST_VERSION)

    @property
    def last(self) -> str | None:
        """The greatest possible name in the range, if `until` gives a bound; otherwise None."""
        return None if self.until is None else self.prefix + self.until


STRETCHES = (
    StreamRange(prefix="", first="", before="resources/"),
    StreamRange(prefix="resources/", first="resources/", before="resources0"),
    StreamRange(prefix="", first="resources0", before="rollout/"),
    StreamRange(prefix="rollout/", first="rollout/", before="rollout0"),
    StreamRange(prefix="", first="rollout0", before="store"),
    StreamRange(prefix="store", first="store", before="store "),
    StreamRange(prefix="", first="store ", before="thread/"),
    StreamRange(prefix="thread/", first="thread/", before="thread0"),
    StreamRange(prefix="", first="thread0", before="worker/"),
    StreamRange(prefix="worker/", first="worker/", before="worker0"),
    StreamRange(prefix="", first="worker0", before=None),
)
"""Ranges that together contain every possible stream."""


class Comparison:
    """One comparison of streams with the tables. It counts the compared streams and events."""

    def __init__(self, session: ReadSession, calls: Calls, state_hash: StateHash) -> None:
        """Begin before the first stream.

        Args:
            session: a session that reads a snapshot of the database.
            calls: returns the number of calls that the writer has finished, which shows whether the store is in use.
            state_hash: a hash over all table rows. The comparison adds every row that it reads, except queue rows.
        """
        self._session = session
        self._calls = calls
        self._calls_before = calls()
        self._is_polite = False
        self._hash = state_hash
        self._queue = _Queue(session, STRETCHES[0])
        self.events = 0
        self.streams = 0

    async def of(self, stretch: StreamRange) -> AsyncGenerator[PageResult]:
        """Compare a range of streams page by page, and yield the result for each page."""
        prefix, place, after = stretch.prefix, stretch.place, stretch.after
        self._queue = _Queue(self._session, stretch)
        unfinished: Stream | None = None
        while True:
            rows = await scan.events_between(self._session, place, stretch.before, stretch.last, limit=BATCH)
            self._choose_pace()
            streams = await asyncio.to_thread(fold, prefix, rows, unfinished, is_polite=self._is_polite)
            is_last = len(rows) < BATCH
            unfinished = None if is_last or not streams else streams.pop()
            if rows:
                place = (rows[-1].stream, rows[-1].version)
                self.events += len(rows)
            if streams and streams[0].is_in_parts:
                large = streams.pop(0)
                yield await self._rest_of_large(large, after, prefix)
                after = large.key
            if streams or is_last:
                until = stretch.until if is_last else streams[-1].key
                yield await self._compare_page(prefix, streams, after, until)
                after = after if until is None else until
            if is_last:
                return
            if unfinished is not None and unfinished.held >= LARGE:
                findings = await self._part_of_large(unfinished)
                if findings:
                    yield PageResult(findings={unfinished.name: findings})

    def _choose_pace(self) -> None:
        """Decide whether the comparison of the next page is polite, which means that it lets other threads run often.

        The comparison is polite while the writer of this process is busy. The writer releases the interpreter lock at
        each step of a statement. If the comparison does not release the lock, the writer waits for it until the switch
        interval of 5 ms has passed. A polite rebuild takes three times as long, but the slowest percent of calls take 8
        ms instead of 32.
        """
        calls = self._calls()
        self._is_polite = calls > self._calls_before + _AT_WORK
        self._calls_before = calls

    async def _compare_page(
        self, prefix: str, streams: Sequence[Stream], after: str | None, until: str | None
    ) -> PageResult:
        live: Live = {}
        for table in _TABLES[prefix]:
            live[table] = await scan.rows_between(self._session, table, after, until)
        if prefix == "rollout/":
            live[core_tables.queue] = await self._queue.take(until)
        return await asyncio.to_thread(self._compare, prefix, streams, live)

    def _compare(self, prefix: str, streams: Sequence[Stream], live: Live) -> PageResult:
        self.streams += len(streams)
        for table, rows in live.items():
            # The rows of the queue are hashed in the order of the queue. Here they are in the order of rollouts, so
            # they are read again elsewhere.
            if table.info["family"] == "projection" and table is not core_tables.queue:
                self._hash.update(table, rows)
        return compare(prefix, streams, live, is_polite=self._is_polite)

    async def _part_of_large(self, stream: Stream) -> list[Finding]:
        """Compare the collected rows of spans, rewards and run events with the tables, and drop the collected rows."""
        if stream.fault is not None:
            return []
        findings: list[Finding] = []
        for start in range(0, len(stream.spans), _KEYS_AT_ONCE):
            expected = stream.spans[start : start + _KEYS_AT_ONCE]
            keys = [key_of(core_tables.spans, row) for row in expected]
            rows = await scan.spans_with(self._session, keys)
            findings.extend(differing(core_tables.spans, expected, rows))
        stream.missing_spans += sum(1 for finding in findings if finding.actual is None)
        stream.wrong_spans.update(finding.key[1:] for finding in findings)
        rewards = await scan.rewards_between(self._session, stream.key, stream.compared_until, stream.last_position)
        findings.extend(differing(core_tables.rewards, stream.rewards, rewards))
        findings.extend(await self._run_events_of_large(stream))
        stream.compared_spans += len(stream.spans)
        stream.compared_until = stream.last_position
        stream.spans, stream.rewards = [], []
        return findings

    async def _run_events_of_large(self, stream: Stream) -> list[Finding]:
        until = stream.compared_version if stream.state is None else stream.state.stream_version
        rows = await scan.run_events_between(self._session, stream.key, stream.compared_version, until)
        findings = differing(core_tables.run_events, stream.run.run_events, rows)
        stream.compared_version, stream.run.run_events = until, []
        return findings

    async def _rest_of_large(self, stream: Stream, after: str | None, prefix: str) -> PageResult:
        """Compare the rest of a large rollout, and the table rows with ids after `after` and before this rollout."""
        session = self._session
        live: Live = {
            table: await scan.rows_between(session, table, after, stream.key, inclusive=table not in _PIECEWISE)
            for table in _TABLES[prefix]
        }
        live[core_tables.queue] = await self._queue.take(stream.key)
        findings = await self._part_of_large(stream)
        page = await asyncio.to_thread(self._compare, prefix, [stream], live)
        span_rows = 0
        for table in _PIECEWISE:
            async for rows in scan.rows_of(session, table, stream.key):
                span_rows += len(rows) if table is core_tables.spans else 0
                await asyncio.to_thread(self._hash.update, table, rows)
        if stream.fault is not None:
            return page
        beyond = await scan.rewards_between(session, stream.key, stream.compared_until, None)
        before = await scan.rewards_between(session, stream.key, -(2**63), 0)
        findings.extend(Finding(core_tables.rewards, None, row) for row in (*before, *beyond))
        for first, last in ((-(2**63), 0), (stream.compared_version, None)):
            extra = await scan.run_events_between(session, stream.key, first, last)
            findings.extend(Finding(core_tables.run_events, None, row) for row in extra)
        if span_rows != stream.compared_spans - stream.missing_spans:
            findings.extend(await self._extra_spans(stream))
        if findings:
            page.findings.setdefault(stream.name, []).extend(findings)
        return page

    async def _extra_spans(self, stream: Stream) -> list[Finding]:
        """Return the rows of spans that do not belong to an event of the stream."""
        extra: list[Finding] = []
        async for rows in scan.rows_of(self._session, core_tables.spans, stream.key):
            events = await scan.events_at(self._session, [row.position for row in rows])
            claimed: set[tuple[Any, ...]] = set()
            for event in (event_of(row) for row in events if row.stream == stream.name):
                if isinstance(event.fact, SpanRecorded):
                    claimed.add((event.fact.attempt_id, event.fact.span_id))
            claimed |= stream.wrong_spans
            extra.extend(
                Finding(core_tables.spans, None, row) for row in rows if (row.attempt_id, row.span_id) not in claimed
            )
        return extra


class _Queue:
    """Reader of the rows of the queue in the order of rollout ids, for the rollouts of a range."""

    def __init__(self, session: ReadSession, stretch: StreamRange) -> None:
        self._batches = scan.queue_between(session, stretch.after, stretch.until)
        self._ahead: Sequence[NamedRow] = []
        self._at = 0
        self._ended = False

    async def take(self, until: str | None) -> list[NamedRow]:
        """Return the next rows: up to the rollout with the id `until`, or all remaining rows if it is None."""
        taken: list[NamedRow] = []
        while True:
            while self._at < len(self._ahead):
                row = self._ahead[self._at]
                if until is not None and row.rollout_id > until:
                    return taken
                taken.append(row)
                self._at += 1
            if self._ended:
                return taken
            try:
                self._ahead, self._at = list(await anext(self._batches)), 0
            except StopAsyncIteration:
                self._ended = True
