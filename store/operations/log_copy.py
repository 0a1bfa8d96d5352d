"""Copy of a log to another database, in chunks of whole commits.

Each chunk is one transaction. A chunk contains the commits, their events, the blocks with the data of these events,
their bodies, the dictionaries with which the bodies are compressed, the blobs to which the events refer, and the
removals of bodies that the events ordered. All rows keep their ids and positions.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Table

from store.db.data_blocks import first_of
from store.db.dialect import Changes, Dialect, NamedRow, ReadSession, Row, Unfinished, WriteSession
from store.db.queries import blobs, data_blocks, dictionaries, scan
from store.db.queries import log as log_queries
from store.db.tables import core as core_tables
from store.domain.body import FIRST_DICTIONARY_CODEC
from store.domain.events import BodyDropped, StoreBodiesDropped
from store.errors import Incompatible
from store.journal.log_rows import GENESIS
from store.runtime.progress import OnProgress, OperationProgress
from store.verification.log_scan import REFERRING, names_of_blobs

_COMMITS, _EVENTS, _BYTES = 1000, 5000, 16 * 1024 * 1024
"""The most commits, events and uncompressed bytes of a chunk, unless a single commit has more."""
_event_of: Callable[[NamedRow], tuple[Any, ...]] = attrgetter(*core_tables.events.c.keys())
_body_of: Callable[[NamedRow], tuple[Any, ...]] = attrgetter(*core_tables.bodies.c.keys())
# The types of events that order the removal of bodies.
_ORDERS = frozenset({BodyDropped.type, StoreBodiesDropped.type})
_ALL = 2**31
"""A limit of rows that no chunk reaches."""


class EndOfLog(NamedTuple):
    """The last commit of a log, or of a part of a log."""

    commit_id: int
    position: int
    """The position of the last event of the commit."""
    chain_hash: bytes
    events: int
    """The number of events up to this commit."""
    body_bytes: int
    """The number of uncompressed bytes of all bodies up to this commit."""


BEGINNING = EndOfLog(0, 0, GENESIS, 0, 0)


async def end_of(session: ReadSession, until: int | None = None) -> EndOfLog:
    """Return the last commit, or the last commit up to an id; `BEGINNING` if there is none."""
    commit = await log_queries.last_commit(session, until)
    return BEGINNING if commit is None else _end(commit)


def _end(commit: NamedRow) -> EndOfLog:
    chain_hash = bytes(commit.chain_hash)
    return EndOfLog(commit.commit_id, commit.last_position, chain_hash, commit.events, commit.body_bytes)


class LogCopy:
    """The copy of a log. It begins after the commits that the target already contains."""

    def __init__(self, source: Dialect, target: Unfinished, writer: WriteSession, on_progress: OnProgress) -> None:
        self._source = source
        self._target = target
        self._writer = writer
        self._on_progress = on_progress
        self.end = BEGINNING
        """The last commit that was copied."""
        self.needed = 0
        """The position up to which the log must be copied, because an event there ordered the removal of a body."""

    async def resume(self) -> None:
        """Find the last commit of the target, and check that the source contains it.

        Raises:
            Incompatible: the source does not contain the commit, so the target is a copy of another log.
        """
        async with self._target.read() as session:
            reached = await end_of(session)
        async with self._source.read() as session:
            commit = await end_of(session, reached.commit_id)
        if commit != reached:
            raise Incompatible(
                f"the source does not contain commit {reached.commit_id} of the unfinished copy, whose hash is"
                f" {reached.chain_hash.hex()}: its commit {commit.commit_id} has the hash {commit.chain_hash.hex()}",
                "delete the unfinished copy, or give the source from which it was made",
            )
        self.end = reached

    async def run(self, end: EndOfLog) -> None:
        """Copy the log up to a commit of the source."""
        self._report(end)
        while commits := await self._next(end):
            await self._copy(commits)
            self._report(end)
            await self._writer.rest()

    def _report(self, end: EndOfLog) -> None:
        self._on_progress(OperationProgress("copying the log", self.end.events, end.events))

    async def _next(self, end: EndOfLog) -> Sequence[NamedRow]:
        """Return the next commits up to `end`, as many as one transaction copies."""
        async with self._source.read() as session:
            commits = await log_queries.commits(session, after=self.end.commit_id, until=end.commit_id, limit=_COMMITS)
        most_events, most_bytes = self.end.events + _EVENTS, self.end.body_bytes + _BYTES
        ends = map(_end, commits[1:])
        fitting = takewhile(
            lambda end_of_commit: end_of_commit.events <= most_events and end_of_commit.body_bytes <= most_bytes, ends
        )
        return commits[: 1 + sum(1 for _ in fitting)]

    async def _copy(self, commits: Sequence[NamedRow]) -> None:
        """Copy some commits with all rows that belong to them, in one transaction."""
        reached, writer = _end(commits[-1]), self._writer
        # All reads see the same state, so that each body is copied with its dictionary.
        async with self._source.read(snapshot=True) as session:
            rows = await scan.events_and_bodies(
                session, after=self.end.position, until=reached.position, limit=_ALL, as_stored=True
            )
            drops = await self._drops(session, rows, reached)
            tail = await writer.begin()
            if tail.commit_id != self.end.commit_id:
                raise Incompatible("another process continues the same copy", "wait until it ends")
            await self._copy_blobs(session, rows)
            trained = await self._dictionaries(session, rows)
            last = await data_blocks.last_block_start(self._writer)
            firsts = {first for row in rows if (first := first_of(row.data)) is not None and first > last}
            blocks = await data_blocks.rows_at(session, sorted(firsts))
        written: dict[Table, Sequence[Row]] = {
            core_tables.dictionaries: trained,
            core_tables.data_blocks: blocks,
            core_tables.commits: commits,
            core_tables.events: [_event_of(row) for row in rows],
            core_tables.bodies: [_body_of(row) for row in rows if row.body is not None],
            core_tables.dropped: drops,
        }
        present = {table: some for table, some in written.items() if some}
        await self._target.append(writer, present, reached.commit_id, reached.position)
        if drops:
            # A body may have been copied before the source removed it.
            await writer.write(Changes({}, {}, {core_tables.bodies: [(row.position,) for row in drops]}))
        await writer.commit()
        self.end = reached

    async def _drops(self, session: ReadSession, rows: Sequence[NamedRow], reached: EndOfLog) -> list[NamedRow]:
        """Return the rows of `dropped` that belong to the events in `rows`.

        If one of these events has no payload any more because of a later event, let the copy continue up to that event.
        """
        orders = [row.position for row in rows if row.type in _ORDERS]
        lacking = [row.position for row in rows if row.body_hash is not None and row.body is None]
        ordered = await scan.drops_ordered_at(session, orders)
        gone = await scan.drops_at(session, lacking)
        self.needed = max([self.needed, *(row.event_position for row in gone)])
        drops = {row.position: row for row in (*ordered, *gone)}
        return [row for row in drops.values() if self.end.position < row.event_position <= reached.position]

    async def _dictionaries(self, session: ReadSession, rows: Sequence[NamedRow]) -> Sequence[NamedRow]:
        """Return the dictionaries that the copy lacks; empty if the copy has all dictionaries that `rows` need."""
        last = await dictionaries.last_codec(self._writer) or FIRST_DICTIONARY_CODEC - 1
        # SQLite does not enforce the types of columns, so the value may not be an integer.
        if not any(isinstance(row.codec, int) and row.codec > last for row in rows):
            return ()
        return await dictionaries.rows(session, last)

    async def _copy_blobs(self, session: ReadSession, rows: Sequence[NamedRow]) -> None:
        named = {name for row in rows if row.type in REFERRING for name in names_of_blobs(row) if "\0" not in name}
        if not named:
            return
        lacking = named - await blobs.existing(self._writer, sorted(named))
        sizes = await blobs.sizes(session, sorted(lacking))
        group, group_bytes = list[str](), 0
        for name, size in sizes.items():
            if group and group_bytes + size > _BYTES:
                await self._copy_group(session, group)
                group, group_bytes = [], 0
            group.append(name)
            group_bytes += size
        if group:
            await self._copy_group(session, group)

    async def _copy_group(self, session: ReadSession, names: Sequence[str]) -> None:
        contents = await blobs.blobs_named(session, names)
        await self._writer.write(
            Changes({core_tables.blobs: [(name, *blob) for name, blob in contents.items()]}, {}, {})
        )
