"""Fold of the log: the rows of each stream are computed from the events of the stream.

The functions that compute the rows are those with which the store writes them. This module does no I/O: the caller
reads the events and the table rows. `compare` compares the computed rows with the rows of the tables.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from time import sleep
from typing import Any

from orjson import JSONDecodeError, loads
from sqlalchemy import Table

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, Row
from store.db.tables import core as core_tables
from store.domain import resources as resources_stream
from store.domain import retry
from store.domain import rollout as rollout_stream
from store.domain import thread as thread_stream
from store.domain import worker as worker_stream
from store.domain.events import FACTS, Event, MetricsLogged, SpanNumbersReserved, SpanRecorded, decode, upcast
from store.domain.resources import ResourcesState
from store.domain.rollout import RolloutState
from store.domain.thread import ThreadState
from store.domain.worker import WorkerState
from store.errors import StoreError
from store.projections import rollouts as row_of
from store.projections import threads as thread_projection
from store.projections.runs import RunRows, has_run_rows
from store.verification.state_hash import values_at

State = RolloutState | WorkerState | ResourcesState | ThreadState

_stream_of = attrgetter("stream")
_SHAPES = {type_: fact.shape for type_, fact in FACTS.items()}


@dataclass(slots=True)
class Stream:
    """One stream, and the rows that follow from the events that were folded so far."""

    name: str
    key: str
    """The name of the stream without its kind, which is the id of the rollout, worker, resources or thread."""
    state: State | None = None
    events: int = 0
    spans: list[Row] = field(default_factory=list[Row])
    """The rows of the rollout's spans, in the order of the log, without the dropped rows."""
    rewards: list[Row] = field(default_factory=list[Row])
    metrics: list[Row] = field(default_factory=list[Row])
    """The rows of the metrics of trainers, in any order."""
    run: RunRows = field(default_factory=RunRows)
    """The rows of the tables of runs."""
    last_number: int = 0
    """The greatest number of a span in the stream."""
    drawn: int = 0
    """The first number of the last block of span numbers that an event reserved. This number was drawn at once."""
    reserved: int = 0
    """The last number of this block. The log does not show which other numbers of the block were drawn."""
    last_position: int = 0
    """The position of the last event."""
    fault: str | None = None
    """The reason why an event could not be folded; None if there is no such event. Later events are not folded."""
    fault_at: int = 0
    """The version of the event that could not be folded."""
    compared_spans: int = 0
    """The number of spans whose rows were compared with the table and then dropped from `spans`."""
    missing_spans: int = 0
    """The number of compared spans that the table does not contain."""
    wrong_spans: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])
    """Compared spans whose table rows are missing or wrong, as (attempt id, span id)."""
    compared_until: int = 0
    """The position up to which rewards were compared and dropped."""
    compared_version: int = 0
    """The version up to which run events were compared and dropped."""

    @property
    def held(self) -> int:
        """The number of collected rows of spans and run events."""
        return len(self.spans) + len(self.run.run_events)

    @property
    def is_in_parts(self) -> bool:
        """Whether rows of spans or run events were already compared and dropped."""
        return bool(self.compared_spans or self.compared_version)


def fold(
    prefix: str, rows: Iterable[NamedRow], unfinished: Stream | None = None, *, is_polite: bool = False
) -> list[Stream]:
    """Fold events and return their streams. The last stream may be incomplete.

    Args:
        prefix: the kind of the streams and a slash. With an unknown kind, the events are only decoded.
        rows: the columns `scan.FOLDED` of the events, which must be sorted by stream and version.
        unfinished: the last stream of the call before. The events in `rows` may continue this stream. It is the first
            stream of the result.
        is_polite: whether to let other threads run after each stream.
    """
    evolve = _EVOLVE.get(prefix)
    streams = [] if unfinished is None else [unfinished]
    for name, of_stream in groupby(rows, _stream_of):
        if is_polite:
            sleep(0)
        if unfinished is None or unfinished.name != name:
            unfinished = Stream(name, name.removeprefix(prefix))
            streams.append(unfinished)
        if unfinished.fault is not None:
            unfinished.events += sum(1 for _ in of_stream)
        elif evolve is rollout_stream.evolve:
            _carry_rollout(unfinished, of_stream)
        else:
            _carry(unfinished, of_stream, evolve)
    return streams


def _carry_rollout(stream: Stream, rows: Iterable[NamedRow]) -> None:
    state: Any = stream.state
    rollout_id, spans, evolve, span_row = stream.key, stream.spans, rollout_stream.evolve, row_of.span
    run, last = stream.run, stream.last_number
    row: NamedRow | None = None
    events = iter(rows)
    try:
        for row in events:
            event = _event(row)
            state = evolve(state, event)
            fact = event.fact
            if isinstance(fact, SpanRecorded):
                spans.append(span_row(rollout_id, event, fact))
                if fact.rewards:
                    stream.rewards.extend(row_of.rewards(rollout_id, event, fact))
                if fact.sequence_id > last:  # noqa: PLR1730 (for every event: half the time of max)
                    last = fact.sequence_id
            elif isinstance(fact, SpanNumbersReserved):
                stream.drawn, stream.reserved = fact.first, fact.until
            if has_run_rows(fact):
                run.add(event, fact, state)
            stream.events += 1
    except Exception as refused:  # noqa: BLE001 (events that another program wrote may raise any error)
        _set_fault(stream, row, refused, events)
    stream.state = state
    stream.last_number = last
    stream.last_position = stream.last_position if row is None else row.position


def _carry(stream: Stream, rows: Iterable[NamedRow], evolve: Callable[[Any, Any], Any] | None) -> None:
    row: NamedRow | None = None
    events = iter(rows)
    try:
        for row in events:
            event = _event(row)
            if evolve is not None:
                stream.state = evolve(stream.state, event)
            elif isinstance(event.fact, MetricsLogged):
                stream.metrics.extend(row_of.metrics(event, event.fact))
            stream.events += 1
    except Exception as refused:  # noqa: BLE001 (events that another program wrote may raise any error)
        _set_fault(stream, row, refused, events)
    stream.last_position = stream.last_position if row is None else row.position


def _event(row: NamedRow) -> Event:
    type_, shape, data = row.type, row.shape, row.data
    try:
        content = loads(data)
    except JSONDecodeError:
        content = json_of(data)  # its error describes a missing block
    fact = decode(type_, content) if _SHAPES.get(type_) == shape else upcast(type_, shape, content)
    # Rows do not depend on the actor and the cause of an event, so both are left out.
    return Event(row.position, row.stream, row.version, 0, row.at, None, None, fact)


def _reason_of(refused: Exception) -> str:
    return str(refused) if isinstance(refused, StoreError) else f"{type(refused).__name__}: {refused}"


def _set_fault(stream: Stream, row: NamedRow | None, refused: Exception, rest: Iterable[NamedRow]) -> None:
    stream.fault = _reason_of(refused)
    stream.fault_at = stream.fault_at if row is None else row.version
    stream.events += 1 + sum(1 for _ in rest)


_EVOLVE: dict[str, Callable[[Any, Any], Any]] = {
    "rollout/": rollout_stream.evolve,
    "worker/": worker_stream.evolve,
    "resources/": resources_stream.evolve,
    "thread/": thread_stream.evolve,
}


@dataclass(slots=True)
class Finding:
    """A difference between a row of a table and the row that follows from the log."""

    table: Table
    expected: Row | None
    """The row that follows from the log; None if there should be no row."""
    actual: Row | None
    """The row of the table; None if the table has no such row."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The row's primary key."""
        return key_of(self.table, self.expected or self.actual or ())


@dataclass(slots=True)
class PageResult:
    """Result of the comparison of some streams with the tables."""

    streams: list[Stream] = field(default_factory=list[Stream])
    findings: dict[str, list[Finding]] = field(default_factory=dict[str, list[Finding]])
    """The differences, by the name of the stream."""
    unwatched: list[str] = field(default_factory=list[str])
    """Names of the streams of rollouts whose times of a check, in the table `watch`, are wrong.

    The watchdog, which ends attempts that have exceeded a time limit, would check them too late or without need.
    """

    @property
    def is_sound(self) -> bool:
        """Whether every stream could be folded and every compared row is correct."""
        return not (self.findings or self.unwatched or any(stream.fault is not None for stream in self.streams))


Live = dict[Table, Sequence[NamedRow]]
"""The rows that were read from tables. The rows of each table are in the order of its primary key."""


def key_of(table: Table, row: Row) -> tuple[Any, ...]:
    """Return the primary key in a row of a table."""
    return _KEYS[table](row)


_KEYS = {
    table: values_at([index for index, column in enumerate(table.columns) if column.primary_key])
    for table in (*core_tables.PROJECTIONS, core_tables.span_counters, core_tables.watch)
}


def rows_of(stream: Stream) -> dict[Table, list[Row]]:
    """Return the rows that follow from a stream, by table, in the order of the table's primary key.

    Rows of spans, rewards and run events are not included.
    """
    match stream.state:
        case RolloutState() as state:
            queued = row_of.queued(state)
            return {
                core_tables.rollouts: [row_of.rollout(state)],
                core_tables.attempts: [
                    row_of.attempt(state.attempts[attempt_id]) for attempt_id in sorted(state.attempts)
                ],
                core_tables.queue: [] if queued is None else [queued],
                core_tables.forks: stream.run.forks,
                core_tables.fork_masks: stream.run.fork_masks,
                core_tables.checkpoints: stream.run.checkpoints,
                core_tables.artifacts: list(stream.run.artifacts.values()),
                core_tables.run_keys: [stream.run.run_keys[key] for key in sorted(stream.run.run_keys)],
                core_tables.labels: [*row_of.labels(state)],
                core_tables.notes: stream.run.notes,
                core_tables.scores: stream.run.scores,
                core_tables.scans: stream.run.scans,
            }
        case WorkerState() as state:
            return {core_tables.workers: [row_of.worker(state)]}
        case ResourcesState() as state:
            return {core_tables.resources: [row_of.resources(state)]}
        case ThreadState() as state:
            return thread_projection.every(state)
        case None:
            return {core_tables.metrics: sorted(stream.metrics, key=_KEYS[core_tables.metrics])}


def compare(prefix: str, streams: Sequence[Stream], live: Live, *, is_polite: bool = False) -> PageResult:
    """Compare streams with table rows, and return the differences.

    A stream that could not be folded is not compared. Rows that a stream has dropped were compared earlier.

    Args:
        prefix: the kind of the streams and a slash.
        streams: all streams with keys in some range.
        live: all table rows that belong to keys in this range.
        is_polite: whether to let other threads run after each stream.
    """
    page = PageResult(list(streams))
    by_key = {table: _by_stream(table, rows) for table, rows in live.items()}
    is_of_rollouts = prefix == "rollout/"
    for stream in streams:
        if is_polite:
            sleep(0)
        live_rows = {table: groups.pop(stream.key, _NONE) for table, groups in by_key.items()}
        if stream.fault is not None:
            continue
        try:
            expected = rows_of(stream)
            check_at = retry.check_at(stream.state) if isinstance(stream.state, RolloutState) else None
            stream.spans.sort(key=_KEYS[core_tables.spans])
        except Exception as refused:  # noqa: BLE001 (events that another program wrote may contain any values)
            stream.fault, stream.fault_at = _reason_of(refused), stream.events
            continue
        if is_of_rollouts and stream.state is not None:
            expected[core_tables.spans] = stream.spans
            expected[core_tables.rewards] = stream.rewards
            expected[core_tables.run_events] = stream.run.run_events
        findings = [
            finding
            for table, rows in live_rows.items()
            if table in expected and expected[table] != rows
            for finding in differing(table, expected[table], rows)
        ]
        if is_of_rollouts:
            counter = next(iter(live_rows[core_tables.span_counters]), None)
            correct = correct_counter(stream, counter)
            if correct is not None:
                findings.append(Finding(core_tables.span_counters, correct, counter))
            if not is_watched(check_at, next((row.check_at for row in live_rows[core_tables.watch]), None)):
                page.unwatched.append(stream.name)
        if findings:
            page.findings[stream.name] = findings
    _add_extra(page, prefix, by_key)
    return page


def _add_extra(page: PageResult, prefix: str, left: Mapping[Table, Mapping[str, Sequence[NamedRow]]]) -> None:
    """Add a difference for each table row that does not belong to a stream."""
    for table, groups in left.items():
        if table is core_tables.span_counters or table is core_tables.watch:
            continue  # these rows are not computed from the log: a rollout with a counter, for example, need not exist
        for key, rows in groups.items():
            extra = [Finding(table, None, row) for row in rows]
            page.findings.setdefault(prefix + key, []).extend(extra)


def differing(table: Table, expected: Sequence[Row], actual: Sequence[Row]) -> list[Finding]:
    """Return the differences between expected and found rows of a table. Rows with the same key are compared."""
    # Drivers may return rows of their own type. Such a row is equal to a tuple of the same values.
    if list(expected) == list(actual):
        return []
    expected_by_key = {key_of(table, row): row for row in expected}
    actual_by_key = {key_of(table, row): row for row in actual}
    return [
        Finding(table, expected_by_key.get(key), actual_by_key.get(key))
        for key in {**expected_by_key, **actual_by_key}
        if not expected_by_key.get(key) == actual_by_key.get(key)  # noqa: SIM201 (rows of drivers define `==` but not `!=`)
    ]


_NONE: Sequence[NamedRow] = []


def _by_stream(table: Table, rows: Sequence[NamedRow]) -> dict[str, Sequence[NamedRow]]:
    if table is core_tables.metrics:
        return {"": rows} if rows else {}
    column = core_tables.queue.c.rollout_id if table is core_tables.queue else next(iter(table.primary_key))
    return {key: list(group) for key, group in groupby(rows, attrgetter(column.name))}


def correct_counter(stream: Stream, counter: NamedRow | None) -> Row | None:
    """Return the row to write instead of a wrong or missing row of a span counter; None if the row is correct.

    The counter contains the greatest span number that was drawn or recorded. It may be ahead of the log, because most
    draws append no event. If the row is wrong, it is unknown which of the reserved numbers were drawn, so the new value
    is at least the last reserved number. The new value is never less than the old value.
    """
    value, reserved = (0, None) if counter is None else (counter.value, counter.reserved)
    if value >= max(stream.last_number, stream.drawn) and (reserved or 0) == stream.reserved:
        return None
    is_unsearched = reserved is None and stream.reserved == 0
    return stream.key, max(value, stream.last_number, stream.reserved), None if is_unsearched else stream.reserved


def is_watched(check_at: int | None, stored_at: int | None) -> bool:
    """Return whether the time of a rollout's next check is correct.

    Args:
        check_at: the latest correct time of the watchdog's next check; None if the rollout has no time limit.
        found: the time in the table `watch`; None if there is no row for the rollout. An earlier check is harmless.
    """
    return stored_at is None if check_at is None else stored_at is not None and stored_at <= check_at
