"""Steps by which an index follows the log. Decision 108.

A step is one transaction on the tables of the index: it takes the lock of the index, reads some events after the
index's position, and writes their rows together with the new position. Two processes that follow the same log therefore
take turns, and none of them folds an event twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from store.db.dialect import Dialect, NamedRow, ReadSession
from store.db.index_place import IndexPlace, IndexSession, index_states, indexable
from store.db.queries import indexing as queries
from store.db.queries import log as log_queries
from store.indexing.index import LARGEST_BODY, Index, IndexedEvent

EVENTS_AT_ONCE = 200
BYTES_AT_ONCE = 1024 * 1024
_CHAIN_BYTES = 8


@dataclass(frozen=True, slots=True)
class IndexLag:
    """The place of an index in the log."""

    position: int
    """The position of the last event that the index contains; 0 if there is none."""
    end: int
    """The position of the last event of the log."""

    @property
    def events_behind(self) -> int:
        """The number of events that the index does not contain yet."""
        return max(self.end - self.position, 0)


class IndexFollower:
    """Follows the log with one index of an open partition.

    A follower belongs to one event loop, and its steps block this loop.

    Args:
        dialect: the open partition. It must have places for indexes.
        store_id: the id of the store.
        index: the index.
    """

    def __init__(self, dialect: Dialect, store_id: str, index: Index) -> None:
        self.index = index
        self.place: IndexPlace = indexable(dialect).index_place(index.name)
        self._dialect, self._store_id = dialect, store_id

    async def step(self) -> IndexLag:
        """Fold the next events of the log, or follow a removal of payload. Return the place after the step."""
        async with self.place.transaction() as session:
            state, end = await self._begin(session)
            if await self._follow_removal(session, state):
                return IndexLag(state.position, end)
            async with self._dialect.read(snapshot=True) as log:
                events, position, commit = await next_events(log, self.index.types, state.position)
            if commit is None:
                return IndexLag(state.position, end)
            await self.index.fold(session, events)
            chain = bytes(commit.chain_hash[:_CHAIN_BYTES]).hex()
            await self._save(session, state, position=position, commit_id=commit.commit_id, chain=chain)
        return IndexLag(position, max(end, position))

    async def catch_up(self, seconds: float | None = None) -> IndexLag:
        """Make steps until the index contains all events or `seconds` have passed. Return the place of the index."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            lag = await self.step()
            if not lag.events_behind or (until is not None and time.monotonic() >= until):
                return lag

    async def follow_removals(self) -> None:
        """Remove from the index and its files the payload that was removed from the store.

        An index that does not exist is not created.
        """
        if not await self.place.exists():
            return
        is_changed = False
        while True:
            async with self.place.transaction() as session:
                state, _ = await self._begin(session)
                if not await self._follow_removal(session, state):
                    break
                is_changed = True
        if is_changed:
            async with self.place.transaction() as session:
                await self.index.purge(session)
            await self.place.erase([table.name for table in self.index.tables])

    async def make_again(self) -> IndexLag:
        """Drop the index, and fold the whole log."""
        await self.drop()
        return await self.catch_up()

    async def drop(self) -> None:
        """Drop the index. The next step makes it again."""
        await self.place.drop(self.index.table_names)

    async def close(self) -> None:
        await self.place.close()

    async def _begin(self, session: IndexSession) -> tuple[NamedRow, int]:
        """Return the state of the index and the end of the log. If the index does not belong to the log, empty it."""
        # This session holds the lock of the index. A removal that begins later waits for this lock before it ends, and
        # then follows the removal in the index itself. So no removal is missed.
        async with self._dialect.read(snapshot=True) as log:
            state = await read_state(session, self.index)
            last = await log_queries.last_commit(log)
            end = 0 if last is None else int(last.last_position)
            if state is None or not await self._belongs(log, state):
                removed = await queries.last_removal(log)
                await self.index.clear(session)
                await self.index.create(session)
                state = await self._save(session, None, removed_position=removed)
        return state, end

    async def _belongs(self, log: ReadSession, state: NamedRow) -> bool:
        """Return whether this version of the index wrote the state, and the log still contains the state's commit."""
        if (state.version, state.store_id) != (self.index.version, self._store_id):
            return False
        if not state.commit_id:
            return True
        commit = await log_queries.last_commit(log, state.commit_id)
        return (
            commit is not None
            and commit.commit_id == state.commit_id
            and bytes(commit.chain_hash[:_CHAIN_BYTES]).hex() == state.chain
        )

    async def _save(self, session: IndexSession, state: NamedRow | None, **fields: int | str) -> NamedRow:
        empty = {"position": 0, "commit_id": 0, "chain": "", "removed_position": 0}
        values = {name: getattr(state, name) for name in empty} if state is not None else empty
        values |= {"name": self.index.name, "version": self.index.version, "store_id": self._store_id, **fields}
        row = tuple(values[column.name] for column in index_states.columns)
        await session.write(index_states, [row], "replace")
        saved = await read_state(session, self.index)
        assert saved is not None  # it was written in this transaction
        return saved

    async def _follow_removal(self, session: IndexSession, state: NamedRow) -> bool:
        """Remove from the index the rollouts that lost payload, and fold their remaining events again.

        If it takes less time to make the whole index again, empty the index instead. Return whether payload was
        removed since the last call. Callers repeat the call until it returns False.
        """
        async with self._dialect.read(snapshot=True) as log:
            last = await queries.last_removal(log)
            if last <= state.removed_position:
                return False
            streams = await queries.streams_without_payload(log, after=state.removed_position, until=state.position)
        rollouts = [stream for stream in streams if stream.startswith("rollout/")]
        if await self.index.remove(session, [stream.removeprefix("rollout/") for stream in rollouts]):
            for stream in rollouts:
                await self._fold_again(session, stream, state.position)
            await self._save(session, state, removed_position=last)
        else:
            await self.index.clear(session)
            await self.index.create(session)
            await self._save(session, None, removed_position=last)
        return True

    async def _fold_again(self, session: IndexSession, stream: str, until: int) -> None:
        after = 0
        while after < until:
            async with self._dialect.read(snapshot=True) as log:
                events, after, _ = await next_events(log, self.index.types, after, until, stream)
            await self.index.fold(session, events)


async def read_state(session: IndexSession | ReadSession, index: Index) -> NamedRow | None:
    """Return the row of an index in `index_states`; None if there is none."""
    statement = select(*index_states.columns).where(index_states.c.name == index.name)
    rows: Sequence[NamedRow] = await session.fetch(session.dialect.sql(statement), {})
    return rows[0] if rows else None


async def next_events(
    log: ReadSession, types: Sequence[str], after: int, until: int | None = None, stream: str | None = None
) -> tuple[list[IndexedEvent], int, NamedRow | None]:
    """Return the next events to fold, the position after which the next call continues, and its commit.

    The commit is None if the log has no event after `after`.
    """
    last = await log_queries.last_commit(log)
    if last is None or last.last_position <= after:
        return [], after, None
    end = last.last_position if until is None else until
    sizes = await queries.body_sizes(log, types, after=after, until=end, limit=EVENTS_AT_ONCE, stream=stream)
    positions: list[int] = []
    size, position = 0, end
    for row in sizes:
        length = row.raw_len or 0
        length = 0 if length > LARGEST_BODY else length
        if positions and size + length > BYTES_AT_ONCE:
            position = positions[-1]
            break
        positions.append(row.position)
        size += length
    else:
        if len(sizes) == EVENTS_AT_ONCE:
            position = positions[-1]
    oversized = {row.position for row in sizes if (row.raw_len or 0) > LARGEST_BODY}
    rows: Sequence[NamedRow] = ()
    if positions:
        rows = await queries.events_with_bodies(log, positions, LARGEST_BODY)
    events = [IndexedEvent(row, row.position in oversized) for row in rows]
    if position < last.last_position:
        commits = {row.position: row.commit_id for row in sizes}
        last = await log_queries.last_commit(log, commits.get(position, last.commit_id))
    return events, position, last
