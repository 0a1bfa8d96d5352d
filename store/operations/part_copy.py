"""Copy of some rollouts of a store to a new store, with an id and a log of its own. Decision 97.

The log of the new store begins with an event that names the source and the end of the source's log. The copies of the
events follow in the order of the originals. A commit contains the copies of events of one commit. A copied event has
the stream, version, command, type, time, actor, data and payload of its original. Its position differs, and positions
in its fields become the positions of copies.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import orjson
from sqlalchemy import Table

from store.db.data_blocks import json_of
from store.db.dialect import Dialect, NamedRow, ReadSession, Row, Unfinished, WriteSession, existing_store
from store.db.queries import log as log_queries
from store.db.queries import scan
from store.db.queries.bodies import raw_json
from store.db.schema.history import LOG_FORMAT
from store.db.tables import core as core_tables
from store.domain.events import ClaimReleased, StoreBodiesDropped, StoreCopiedFrom, encode
from store.errors import Incompatible, NotFound
from store.journal.log_rows import (
    STORE_STREAM,
    EventRow,
    PositionsHash,
    event_digest,
    link,
    totals_after,
)
from store.models.queries import RolloutQuery
from store.operations import beside_log, log_source
from store.operations.copying import database, fill_reserved, refuse_same
from store.operations.damage import store_damage_reported
from store.operations.log_source import (
    BEGINNING,
    DatabaseSource,
    EndOfLog,
    LogChunk,
    LogSource,
    StoreIdentity,
    blobs_of,
    copy_blobs,
)
from store.operations.part_selection import STREAMS_AT_ONCE, PartSelection, conditions_of, select_part
from store.operations.removal import append_fact
from store.operations.reports import CopyReport, PartContents
from store.runtime.clock import system_clock
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, ProgressReporter, ignore
from store.validation.json_limits import encode_body
from store.verification.log_scan import REFERRING

_EVENTS_PER_READ: Final = 250
_SIGNALS: Final = (core_tables.span_counters, core_tables.model_calls, core_tables.attempt_signals)
"""The tables beside the log from which the rows of the rollouts are copied."""
_NOTHING: Final = (0, 0, 0, 0, 0, 0, 0)
"""The totals before the first commit."""


async def count_rollouts(source_url: str, query: RolloutQuery) -> PartContents:
    """Return the contents of the copy that `copy_rollouts` would make now.

    Raises:
        NotFound: the store does not exist, or no rollout matches.
        StoreError: the errors of `copy_rollouts` for the source.
    """
    dialect = database(source_url)

    async def count() -> PartContents:
        async with existing_store(dialect) as store_id, dialect.read(snapshot=True) as session:
            return (await select_part(session, store_id, query)).contents

    async with store_damage_reported(source_url):
        return await run_in_thread("rollbook copy", count())


async def copy_rollouts(
    source_url: str,
    target_url: str,
    query: RolloutQuery,
    *,
    verify: bool = True,
    actor: str | None = None,
    on_progress: OnProgress = ignore,
) -> CopyReport:
    """Copy the rollouts that a query matches to a new store, with everything that belongs to them.

    The new store has an id and a hash chain of its own. It contains all events of the rollouts (attempts, spans,
    annotations, scores, checkpoints, artifacts), and all versions of the resources that these rollouts were given.
    Events keep their times and actors. The new store contains no workers, threads of LangGraph, idempotency keys or API
    keys. Its first event names the source and the end of the source's log. Everything is read in one snapshot. The
    target gets its name in one step when the copy is complete. A call that was stopped leaves no store at the target;
    the same call begins again.

    Args:
        source_url: the URL of the store. It is opened read-only.
        target_url: the URL of the new store. There must be no store and no file.
        query: the conditions on rollouts. The order, the limit and the offset are ignored.
        verify: whether to verify the new store before it gets its name.
        actor: the name of the user who copies; the first event contains it.
        on_progress: called with the progress of the copy, in another thread.

    Raises:
        NotFound: the source does not exist, or no rollout matches.
        Invalid: a URL or a condition is invalid.
        StoreError: the errors of `copy_store`.
    """
    dialect, target = database(source_url), database(target_url)
    refuse_same(dialect, target)
    source = PartSource(dialect, query, actor)
    reporter = ProgressReporter(on_progress)

    unfinished = target.unfinished()

    async def copy() -> CopyReport:
        async with unfinished.reserved():
            await _discard_earlier(database(target_url).unfinished())
            return await fill_reserved(
                source, unfinished, is_verified=verify, on_progress=reporter, finish=source.record_removals
            )

    async with store_damage_reported(source_url, reporter):
        return await run_in_thread("rollbook copy", copy())


async def _discard_earlier(target: Unfinished) -> None:
    """Delete an unfinished copy of some rollouts, which a stopped call has left. A copy of a whole log stays."""
    try:
        await target.open(create=False)
    except (NotFound, Incompatible):  # `fill_reserved` reports an older version
        return
    try:
        async with target.read() as session:
            events = await log_queries.events(session, limit=1)
    finally:
        await target.close()
    if all(event.type == StoreCopiedFrom.type for event in events):
        await target.discard()


class PartSource(LogSource):
    """The log of a copy of some rollouts. It is computed while it is read.

    Args:
        dialect: the database of the store. It must not be open.
        query: the conditions on rollouts.
        actor: the actor of the first event.
    """

    def __init__(self, dialect: Dialect, query: RolloutQuery, actor: str | None) -> None:
        self._dialect, self._query, self._actor = dialect, query, actor
        self._conditions = conditions_of(query)
        self._reading: _PartReader | None = None

    @property
    def name(self) -> str:
        return f"{DatabaseSource(self._dialect).name} where {self._conditions}"

    async def has_made(self, report: CopyReport) -> bool:
        async with existing_store(self._dialect) as store_id:
            return report.part is not None and report.part.origin.store_id == store_id

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[StoreIdentity]:
        clock = self._dialect.clock or system_clock
        async with existing_store(self._dialect) as store_id, self._dialect.read(snapshot=True) as session:
            part = await select_part(session, store_id, self._query)
            self._reading = _PartReader(session, part, self._actor, clock())
            yield StoreIdentity(os.urandom(8).hex(), clock(), LOG_FORMAT)

    @property
    def contents(self) -> PartContents:
        """The contents of the copy. They are known after the source was opened."""
        return self._reader.part.contents

    @property
    def _reader(self) -> _PartReader:
        assert self._reading is not None  # opened
        return self._reading

    async def copy_tables(self, writer: WriteSession) -> EndOfLog:
        return await self._reader.copy_signals(writer)

    async def end(self, until: int) -> EndOfLog:
        del until  # a copy always begins with the first commit
        return BEGINNING

    @asynccontextmanager
    async def chunk(self, after: EndOfLog, until: EndOfLog) -> AsyncGenerator[LogChunk | None]:
        del until
        yield await (self._reader.reference() if after == BEGINNING else self._reader.next_chunk())

    async def record_removals(self, target: Unfinished, writer: WriteSession, store_id: str) -> None:
        """Append an event to the complete copy for each event of the source that removed payload of the part."""
        del target, store_id
        await self._reader.record_removals(writer)


class _PartReader:
    """Reader of a part, in one snapshot of the database.

    Args:
        session: the snapshot.
        part: the part.
        actor: the actor of the first event.
        now: the time of the copy, in µs since the epoch.
    """

    def __init__(self, session: ReadSession, part: PartSelection, actor: str | None, now: int) -> None:
        self._session, self.part, self._actor, self._now = session, part, actor, now
        self._end = BEGINNING
        """The last commit of the copy."""
        self._totals = _NOTHING
        self._read = 0
        """The number of events that were read."""
        self._waiting: list[NamedRow] = []
        """The events of the last commit that was read, if not all of its events were read."""
        self._removals: dict[int, list[int]] = defaultdict(list)
        """The positions, in the copy, of the events whose payload was removed.

        The key is the position, in the source, of the event that ordered the removal.
        """

    async def copy_signals(self, writer: WriteSession) -> EndOfLog:
        """Copy the tables beside the log. Return the position and the number of events at the end of the copy."""
        ids = self.part.rollout_ids
        for table in _SIGNALS:
            for start in range(0, len(ids), STREAMS_AT_ONCE):
                some = ids[start : start + STREAMS_AT_ONCE]
                if rows := await scan.rows_with(self._session, table.c.rollout_id, some):
                    await beside_log.insert(writer, table, rows)
        events = len(self.part.positions) + 1
        return BEGINNING._replace(position=events, events=events)

    async def reference(self) -> LogChunk:
        """Return the chunk with the first event, which names the store."""
        (first,) = await scan.events_and_bodies_at(self._session, self.part.positions[:1])
        origin = self.part.contents.origin
        fact = StoreCopiedFrom(
            store_id=origin.store_id,
            commit_id=origin.commit_id,
            position=origin.position,
            chain_head=origin.chain_head,
            conditions=self.part.contents.conditions,
            rollouts=self.part.contents.rollouts,
            copied_at=self._now,
        )
        event = EventRow(
            position=1,
            commit_id=1,
            stream=STORE_STREAM,
            version=1,
            command=0,
            type=fact.type,
            shape=fact.shape,
            at=first.at - 1,  # times never descend, so this cannot be the time of the copy
            actor=self._actor,
            cause=None,
            data=encode(fact),
            body_hash=None,
        )
        return _PartChunk(self._session, [self._commit([event], [0])], [event], [], set(), self._end)

    async def next_chunk(self) -> LogChunk | None:
        """Return the chunk with the copies of the next events; None after the last event."""
        rows = await self._next_rows()
        if not rows:
            return None
        with_payload = [row.position for row in rows if row.body_hash is not None or row.type in REFERRING]
        orders = {row.position: row.event_position for row in await scan.drops_at(self._session, with_payload)}
        names = blobs_of([row for row in rows if row.position not in orders])
        commits: list[Row] = []
        events: list[EventRow] = []
        bodies: list[Row] = []
        for _, group in groupby(rows, attrgetter("commit_id")):
            copies: list[EventRow] = []
            sizes: list[int] = []
            for position, row in enumerate(group, self._end.position + 1):
                copies.append(self._event(row, position))
                sizes.append(0 if row.body is None else row.raw_len)
                if row.body is not None:
                    # The body may be compressed with a dictionary, which the copy lacks.
                    body = encode_body(raw_json(row.codec, row.body))
                    bodies.append((position, body.codec, body.raw_len, body.stored))
                if row.position in orders:
                    self._removals[orders[row.position]].append(position)
            commits.append(self._commit(copies, sizes))
            events += copies
        return _PartChunk(self._session, commits, events, bodies, names, self._end)

    async def _next_rows(self) -> list[NamedRow]:
        """Return the next events of the part with their bodies. All events of a commit are in one result."""
        rows, positions = self._waiting, self.part.positions
        size = 0
        while self._read < len(positions):
            is_enough = len(rows) >= log_source.EVENTS_AT_ONCE or size >= log_source.BYTES_AT_ONCE
            if is_enough and rows[0].commit_id != rows[-1].commit_id:
                break
            some = await scan.events_and_bodies_at(self._session, positions[self._read : self._read + _EVENTS_PER_READ])
            self._read += len(some)
            size += sum(len(row.body) for row in some if row.body is not None)
            rows = [*rows, *some]
        if self._read == len(positions):
            self._waiting = []
            return rows
        last = rows[-1].commit_id
        self._waiting = [row for row in rows if row.commit_id == last]
        return rows[: -len(self._waiting)]

    def _event(self, row: NamedRow, position: int) -> EventRow:
        """Return the copy of an event. `position` is the position of the copy."""
        data = row.data
        if row.type == ClaimReleased.type:
            fields: dict[str, Any] = json_of(data)
            fields["queued_at"] = self.part.position_in_copy(fields["queued_at"])
            data = orjson.dumps(fields).decode()
        return EventRow(
            position=position,
            commit_id=self._end.commit_id + 1,
            stream=row.stream,
            version=row.version,
            command=row.command,
            type=row.type,
            shape=row.shape,
            at=row.at,
            actor=row.actor,
            cause=self.part.position_in_copy(row.cause),
            data=data,
            body_hash=None if row.body_hash is None else bytes(row.body_hash),
        )

    def _commit(self, events: Sequence[EventRow], sizes: Sequence[int]) -> Row:
        """Return the row of the next commit. `sizes` has the number of uncompressed bytes of each event's body."""
        commit_id, first, last = self._end.commit_id + 1, events[0].position, events[-1].position
        recorded_at = events[-1].at
        digests = map(event_digest, events)
        chain_hash = link(self._end.chain_hash, commit_id, first, last, recorded_at, digests)
        counted = [(event.type, size) for event, size in zip(events, sizes, strict=True)]
        self._totals = totals_after(self._totals, counted)
        events_before, *_, body_bytes = self._totals
        self._end = EndOfLog(commit_id, last, chain_hash, events_before, body_bytes)
        batch_key, writer = os.urandom(16).hex(), f"copy:{os.getpid()}"
        return commit_id, batch_key, first, last, recorded_at, writer, chain_hash, *self._totals

    async def record_removals(self, writer: WriteSession) -> None:
        """Append an event to the copy for each event of the source that removed payload of the part.

        So the copy states why this payload is missing.
        """
        orders = sorted(self._removals)
        for row in await scan.events_and_bodies_at(self._session, orders) if orders else ():
            positions = sorted(self._removals[row.position])
            digest = PositionsHash()
            for position in positions:
                digest.add(position)
            fields: dict[str, Any] = json_of(row.data)
            fact = StoreBodiesDropped(
                policy=f"removed before the copy: {fields['policy']}",
                count=len(positions),
                bytes=0,
                first=positions[0],
                last=positions[-1],
                sha256=digest.hexdigest(),
                reason=fields.get("reason"),
            )
            tail = await writer.begin()
            dropped: list[Row] = [(position, tail.next_position) for position in positions]
            await append_fact(writer, tail, fact, {core_tables.dropped: dropped}, actor=row.actor)
            await writer.commit()


class _PartChunk(LogChunk):
    """Some commits of a copy of some rollouts."""

    def __init__(
        self,
        session: ReadSession,
        commits: Sequence[Row],
        events: Sequence[EventRow],
        bodies: Sequence[Row],
        blob_names: set[str],
        reached: EndOfLog,
    ) -> None:
        self._session, self._blob_names, self.reached = session, blob_names, reached
        self._rows: dict[Table, Sequence[Row]] = {
            core_tables.commits: commits,
            core_tables.events: events,
            core_tables.bodies: bodies,
        }

    async def rows(self, writer: WriteSession) -> Mapping[Table, Sequence[Row]]:
        await copy_blobs(self._session, writer, self._blob_names)
        return self._rows
