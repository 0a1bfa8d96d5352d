"""Removal of payload from a store in short transactions, while other processes write. Decision 62.

Each transaction appends an event of the stream `store` that names the policy, and deletes bodies or blobs. So the log
names all removed payload, even if a removal is stopped at any moment. The same call continues a removal that was
stopped.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Table

from store.db.dialect import Changes, Dialect, NamedRow, ReadSession, Row, Tail, Wakeups, WriteSession, dialect_for
from store.db.queries import log as log_queries
from store.db.queries import removal as removal_queries
from store.db.queries.removal import Payload
from store.db.schema.sealed import refuse_sealed
from store.db.tables import core as core_tables
from store.db.url import parse
from store.domain.events import StoreBlobsDropped, StoreBodiesDropped, StoreEvent
from store.domain.working_set import WorkingSet
from store.errors import Invalid
from store.indexing.registry import follow_removals
from store.journal.log_rows import STORE_STREAM, PositionsHash, log_rows
from store.operations.pace import Pace
from store.runtime.clock import Clock
from store.verification.log_scan import REFERRING, names_of_blobs

_MOST_BYTES = 1024 * 1024


@dataclass(slots=True)
class Removed:
    """The counts and sizes of the removed payload."""

    rollouts: set[str] = field(default_factory=set[str])
    events: int = 0
    """The number of events that lost payload."""
    bodies: int = 0
    body_bytes: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    transactions: int = 0
    longest_seconds: float = 0.0
    """The longest time that one transaction held the write lock."""


@dataclass(frozen=True, slots=True)
class BlobsWithoutEvent:
    """The blobs that can be removed, as of a position of the log."""

    sizes: Mapping[str, int]
    """The stored sizes in bytes, by hash."""
    until: int
    """The position of the last event that was searched for references."""


def database(url: str, clock: Clock | None = None, *, read_only: bool = False) -> Dialect:
    """Return the database at a URL. It is not open yet.

    Raises:
        Invalid: the URL does not name a SQLite file or a Postgres database.
    """
    parsed = parse(url)
    if parsed.path is None and parsed.dsn is None:
        reason = f"{parsed.shown} is not a database; give the URL of a SQLite file or a Postgres database"
        raise Invalid("url", reason)
    return dialect_for(parsed)(parsed, clock, read_only=read_only)


def chunks(payload: Sequence[Payload], rows: int) -> list[Sequence[Payload]]:
    """Return consecutive parts of a list with at most `rows` items and about 1 MB of bodies each."""
    parts: list[Sequence[Payload]] = []
    start = size = 0
    for end, event in enumerate(payload):
        if end > start and (end - start >= rows or size + (event.body_bytes or 0) > _MOST_BYTES):
            parts.append(payload[start:end])
            start, size = end, 0
        size += event.body_bytes or 0
    return [*parts, payload[start:]] if payload[start:] else parts


class Remover:
    """Deletes payload in transactions of limited length, and waits between them for other writers.

    Args:
        session: a session that writes to the database.
        wakeups: announces commits to other processes.
        policy: the policy that orders the removal, in words.
        actor: the name of the user who ordered the removal.
        reason: the reason for the removal, or None.
        keep_unfinished: whether to skip rollouts that are not finished.
        pace: the size of the transactions and the pauses between them; None for a new `Pace`.
    """

    def __init__(
        self,
        session: WriteSession,
        wakeups: Wakeups,
        policy: str,
        *,
        actor: str | None,
        reason: str | None = None,
        keep_unfinished: bool = True,
        pace: Pace | None = None,
    ) -> None:
        self._session, self._wakeups = session, wakeups
        self._policy, self._actor, self._reason = policy, actor, reason
        self._keep_unfinished = keep_unfinished
        self._pace = pace or Pace()
        self.removed = Removed()

    async def remove(self, payload: Sequence[Payload]) -> None:
        """Remove the bodies of events, and mark all these events as events whose payload was removed.

        Rollouts that are no longer finished, and payload that another process has removed, are skipped.
        """
        rest = payload
        while rest:
            part = chunks(rest, self._pace.rows)[0]
            rest = rest[len(part) :]
            await self._in_transaction(partial(self._remove_bodies, part))

    async def remove_blobs(self, blobs: BlobsWithoutEvent) -> None:
        """Remove blobs, except blobs to which a new event refers that was appended after the search for references."""
        names = sorted(blobs.sizes)
        until = blobs.until
        while names:
            part: list[str] = []
            size = 0
            for name in names[: self._pace.rows]:
                if part and size + blobs.sizes[name] > _MOST_BYTES:
                    break
                part.append(name)
                size += blobs.sizes[name]
            names = names[len(part) :]
            async with self._session.dialect.read() as session:
                # Most of the new events are read without the lock.
                references, until = await _references(session, until)
            names = [name for name in names if name not in references]
            sizes = {name: blobs.sizes[name] for name in part if name not in references}
            await self._in_transaction(partial(self._remove_blobs, sizes, until))

    async def _in_transaction(self, work: Callable[[Tail], Awaitable[int | None]]) -> None:
        tail = await self._session.begin()
        began = time.monotonic()
        try:
            commit_id = await work(tail)
            if commit_id is None:
                await self._session.rollback()
                return
            await self._session.commit()
        except BaseException:
            await self._session.rollback()
            raise
        seconds = time.monotonic() - began
        self._wakeups.announce(commit_id)
        self.removed.transactions += 1
        await self._pace.pause(seconds)
        self.removed.longest_seconds = self._pace.longest_seconds
        await self._session.rest()

    async def _remove_bodies(self, part: Sequence[Payload], tail: Tail) -> int | None:
        """Remove bodies in the open transaction. Return the id of the commit; None if there is no body to remove."""
        session = self._session
        gone = await removal_queries.removed_among(session, [event.position for event in part])
        left = [event for event in part if event.position not in gone]
        if self._keep_unfinished:
            finished = await removal_queries.still_finished(session, {event.rollout_id for event in left})
            left = [event for event in left if event.rollout_id in finished]
        if not left:
            return None
        left.sort(key=lambda event: event.position)
        digest = PositionsHash()
        for event in left:
            digest.add(event.position)
        sizes = [event.body_bytes for event in left if event.body_bytes is not None]
        fact = StoreBodiesDropped(
            policy=self._policy,
            count=len(left),
            bytes=sum(sizes),
            first=left[0].position,
            last=left[-1].position,
            sha256=digest.hexdigest(),
            reason=self._reason,
        )
        await append_fact(
            session,
            tail,
            fact,
            {core_tables.dropped: [(event.position, tail.next_position) for event in left]},
            actor=self._actor,
        )
        bodies: list[Row] = [(event.position,) for event in left if event.body_bytes is not None]
        if bodies:
            await session.write(Changes({}, {}, {core_tables.bodies: bodies}))
        self.removed.rollouts |= {event.rollout_id for event in left}
        self.removed.events += len(left)
        self.removed.bodies += len(bodies)
        self.removed.body_bytes += sum(sizes)
        return tail.next_commit_id

    async def _remove_blobs(self, sizes: Mapping[str, int], until: int, tail: Tail) -> int | None:
        references, _ = await _references(self._session, until)
        stored_sizes = await removal_queries.blob_sizes(
            self._session, sorted(name for name in sizes if name not in references)
        )
        if not stored_sizes:
            return None
        names = sorted(stored_sizes)
        fact = StoreBlobsDropped(
            policy=self._policy,
            count=len(names),
            bytes=sum(stored_sizes.values()),
            sha256=hashlib.sha256(b"".join(map(bytes.fromhex, names))).hexdigest(),
            reason=self._reason,
        )
        await append_fact(self._session, tail, fact, {}, actor=self._actor)
        await self._session.write(Changes({}, {}, {core_tables.blobs: [(name,) for name in names]}))
        self.removed.blobs += len(names)
        self.removed.blob_bytes += sum(stored_sizes.values())
        return tail.next_commit_id


async def append_fact(
    session: WriteSession, tail: Tail, fact: StoreEvent, rows: dict[Table, list[Row]], *, actor: str | None
) -> None:
    """Append an event of the store in the open transaction, and insert the rows that belong to it.

    Both must be written before payload is deleted, because the triggers of the log require this order.
    """
    version = await removal_queries.last_version(session, STORE_STREAM)
    working_set = WorkingSet(now=tail.now, last_stamp=tail.recorded_at, next_position=tail.next_position)
    working_set.begin(0)
    working_set.record_store(fact, version, actor=actor)
    appended = log_rows(working_set, tail, tail.next_commit_id, os.urandom(16).hex(), f"removal:{os.getpid()}")
    await session.write(Changes({**appended, **rows}, {}, {}))


@asynccontextmanager
async def remover(
    dialect: Dialect,
    policy: str,
    *,
    actor: str | None,
    reason: str | None = None,
    overwrite: bool = False,
    keep_unfinished: bool = True,
) -> AsyncGenerator[Remover]:
    """Open a session that writes, and yield a remover that uses it. With `overwrite`, deleted bytes are overwritten.

    Raises:
        Incompatible: the database is a backup or an archive.
    """
    await refuse_sealed(dialect.url)
    session = await dialect.writer()
    wakeups = dialect.wakeups()
    try:
        if overwrite:
            await dialect.overwrite_deleted(session)
        yield Remover(session, wakeups, policy, actor=actor, reason=reason, keep_unfinished=keep_unfinished)
    finally:
        await wakeups.close()
        await session.close()
        # Also after an error: some of the payload may have been removed.
        await follow_removals(dialect)


async def blobs_without_event(
    session: ReadSession, also_removed: Collection[int] = (), only: Collection[int] | None = None
) -> BlobsWithoutEvent:
    """Return the blobs of removed payload to which no other event refers. This reads all events that refer to blobs.

    Args:
        session: a session that reads a snapshot.
        also_removed: positions of events whose payload counts as removed too.
        only: positions of events; only blobs to which at least one of these events refers are returned. None for all
            blobs.
    """
    end = await log_queries.last_event(session)
    until = 0 if end is None else int(end.position)
    if not await removal_queries.has_blobs(session):
        return BlobsWithoutEvent({}, until)
    removed: set[str] = set()
    names: set[str] = set()
    after = 0
    while rows := await _referring(session, after):
        after = rows[-1].position
        gone = await removal_queries.removed_between(session, rows[0].position, after)
        for row in rows:
            position = row.position
            if position not in gone and position not in also_removed:
                names.update(names_of_blobs(row))
            elif only is None or position in only:
                removed.update(names_of_blobs(row))
    return BlobsWithoutEvent(await removal_queries.blob_sizes(session, sorted(removed - names)), until)


async def _references(session: ReadSession, after: int) -> tuple[set[str], int]:
    """Return the blobs to which events after a position refer, and the position of the last of these events."""
    names: set[str] = set()
    while rows := await _referring(session, after):
        after = rows[-1].position
        names.update(name for row in rows for name in names_of_blobs(row))
    return names, after


async def _referring(session: ReadSession, after: int) -> Sequence[NamedRow]:
    return await log_queries.events(session, after=after, types=sorted(REFERRING))
