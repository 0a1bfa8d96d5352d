"""Sources of copies: the interface through which a copy reads a log, and the source for databases.

A source yields its log in chunks of whole commits. A chunk of a database contains the commits, their events, the blocks
with the data of these events, their bodies, the dictionaries with which the bodies are compressed, the blobs to which
the events refer, and the removals of bodies that the events ordered. All rows keep their ids and positions. Decisions
61, 96 and 97.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Table, select

from store.db.data_blocks import first_of
from store.db.dialect import Changes, Dialect, NamedRow, ReadSession, Row, WriteSession, existing_store
from store.db.queries import blobs, data_blocks, dictionaries, scan
from store.db.queries import log as log_queries
from store.db.tables import core as core_tables
from store.domain.body import FIRST_DICTIONARY_CODEC
from store.domain.events import BodyDropped, StoreBodiesDropped
from store.journal.log_rows import GENESIS
from store.operations import beside_log
from store.operations.reports import CopyReport, PartContents
from store.verification.log_scan import REFERRING, names_of_blobs

COMMITS_AT_ONCE, EVENTS_AT_ONCE, BYTES_AT_ONCE = 1000, 5000, 16 * 1024 * 1024
"""The most commits, events and uncompressed bytes of a chunk, unless a single commit has more."""
ORDERS = frozenset({BodyDropped.type, StoreBodiesDropped.type})
"""The types of events that order the removal of bodies."""
_event_of: Callable[[NamedRow], tuple[Any, ...]] = attrgetter(*core_tables.events.c.keys())
_body_of: Callable[[NamedRow], tuple[Any, ...]] = attrgetter(*core_tables.bodies.c.keys())
ALL = 2**31
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


class StoreIdentity(NamedTuple):
    """The row of `store_info` that a copy gets."""

    store_id: str
    created_at: int
    """The time of the creation in µs since the epoch."""
    log_format: int
    """The version of the format of the log."""


class LogChunk(ABC):
    """Some commits of a source, which one transaction writes to the copy."""

    reached: EndOfLog
    """The last commit of the chunk."""
    dropped: Sequence[int] = ()
    """The positions of the events whose payload is removed by events of the chunk."""
    needed: int = 0
    """The position up to which the log must be copied; 0 if the chunk sets no such position.

    The event at this position ordered the removal of a body that the chunk lacks.
    """

    @abstractmethod
    async def rows(self, writer: WriteSession) -> Mapping[Table, Sequence[Row]]:
        """Return the rows that the copy lacks, by table. Write the blobs that the copy lacks.

        `writer` is the session that writes to the copy. It has begun the transaction, so it holds the write lock.
        """


class LogSource(ABC):
    """A log with the tables beside it, from which a copy is made."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The text by which a receipt recognises the source."""

    @property
    def contents(self) -> PartContents | None:
        """The selected rollouts, if the source is a part of a store. They are known after the source was opened."""
        return None

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[StoreIdentity]:
        """Return a context manager that opens the source, and yields the identity of the copy."""

    @abstractmethod
    async def copy_tables(self, writer: WriteSession) -> EndOfLog:
        """Copy the tables beside the log, and return the last commit of the log at the same moment."""

    @abstractmethod
    async def end(self, until: int) -> EndOfLog:
        """Return the last commit whose id is at most `until`; `BEGINNING` if there is none."""

    @abstractmethod
    def chunk(self, after: EndOfLog, until: EndOfLog) -> AbstractAsyncContextManager[LogChunk | None]:
        """Return a context manager that yields the next chunk; None if no commit follows `after`.

        The chunk contains as many commits as one transaction writes, up to the commit `until`.
        """

    @abstractmethod
    async def has_made(self, report: CopyReport) -> bool:
        """Return whether a finished copy with this report is a copy of this source. The source is not open."""


async def end_of(session: ReadSession, until: int | None = None) -> EndOfLog:
    """Return the last commit whose id is at most `until`, or of the whole log; `BEGINNING` if there is none."""
    commit = await log_queries.last_commit(session, until)
    return BEGINNING if commit is None else end_at(commit)


def end_at(commit: NamedRow) -> EndOfLog:
    """Return the end of a log whose last commit is in this row of `commits`."""
    chain_hash = bytes(commit.chain_hash)
    return EndOfLog(commit.commit_id, commit.last_position, chain_hash, commit.events, commit.body_bytes)


def fits(end: EndOfLog, after: EndOfLog) -> bool:
    """Return whether one transaction may write all commits after the commit `after` up to the commit `end`."""
    return end.events <= after.events + EVENTS_AT_ONCE and end.body_bytes <= after.body_bytes + BYTES_AT_ONCE


def fitting(commits: Sequence[NamedRow], after: EndOfLog) -> Sequence[NamedRow]:
    """Return the first commits: at least one, and as many as one transaction writes after the commit `after`."""
    some = takewhile(lambda end: fits(end, after), map(end_at, commits[1:]))
    return commits[: 1 + sum(1 for _ in some)]


class DatabaseSource(LogSource):
    """A store in a database, which other processes may use meanwhile.

    Args:
        dialect: the database. It must not be open.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @property
    def name(self) -> str:
        url = self._dialect.url
        return url.shown if url.path is None else str(url.path.absolute())

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[StoreIdentity]:
        async with existing_store(self._dialect) as store_id:
            columns = core_tables.store_info.c
            async with self._dialect.read() as session:
                statement = self._dialect.sql(select(columns.created_at, columns.log_format))
                (info,) = await session.fetch(statement, {})
            yield StoreIdentity(store_id, info.created_at, info.log_format)

    async def has_made(self, report: CopyReport) -> bool:
        # The database is closed. It must be opened again before it can be read.
        async with existing_store(self._dialect) as store_id:
            return store_id == report.store_id

    async def copy_tables(self, writer: WriteSession) -> EndOfLog:
        async with self._dialect.read(snapshot=True) as session:
            await beside_log.copy(session, writer)
            return await end_of(session)

    async def end(self, until: int) -> EndOfLog:
        async with self._dialect.read() as session:
            return await end_of(session, until)

    @asynccontextmanager
    async def chunk(self, after: EndOfLog, until: EndOfLog) -> AsyncGenerator[LogChunk | None]:
        async with self._dialect.read() as session:
            commits = await log_queries.commits(
                session, after=after.commit_id, until=until.commit_id, limit=COMMITS_AT_ONCE
            )
        if not commits:
            yield None
            return
        # All reads see the same state, so that each body is copied with its dictionary.
        async with self._dialect.read(snapshot=True) as session:
            yield await _DatabaseChunk.read(session, fitting(commits, after), after)


class _DatabaseChunk(LogChunk):
    """Some commits of a database.

    Args:
        session: a snapshot of the database, which is open while the chunk is used.
        commits: the rows of the commits.
        rows: the rows of their events, with the bodies as they are stored.
        drops: the rows of `dropped` that belong to the events.
    """

    def __init__(
        self, session: ReadSession, commits: Sequence[NamedRow], rows: Sequence[NamedRow], drops: Sequence[NamedRow]
    ) -> None:
        self._session, self._commits, self._rows, self._drops = session, commits, rows, drops
        self.reached = end_at(commits[-1])
        self.dropped = [row.position for row in drops]

    @classmethod
    async def read(cls, session: ReadSession, commits: Sequence[NamedRow], after: EndOfLog) -> LogChunk:
        """Read the events of some commits. `after` is the end of the commit before them."""
        until = commits[-1].last_position
        rows = await scan.events_and_bodies(session, after=after.position, until=until, limit=ALL, as_stored=True)
        orders = [row.position for row in rows if row.type in ORDERS]
        lacking = [row.position for row in rows if row.body_hash is not None and row.body is None]
        ordered = await scan.drops_ordered_at(session, orders)
        gone = await scan.drops_at(session, lacking)
        drops = {row.position: row for row in (*ordered, *gone) if after.position < row.event_position <= until}
        chunk = cls(session, commits, rows, list(drops.values()))
        # If a later event removed the payload of one of these events, the copy continues up to the later event.
        chunk.needed = max((row.event_position for row in gone), default=0)
        return chunk

    async def rows(self, writer: WriteSession) -> Mapping[Table, Sequence[Row]]:
        await copy_blobs(self._session, writer, blobs_of(self._rows))
        codec = await dictionaries.last_codec(writer) or FIRST_DICTIONARY_CODEC - 1
        # SQLite does not enforce the types of columns, so the codec of a body may not be an integer.
        is_trained = any(isinstance(row.codec, int) and row.codec > codec for row in self._rows)
        last = await data_blocks.last_block_start(writer)
        firsts = {first for row in self._rows if (first := first_of(row.data)) is not None and first > last}
        return {
            core_tables.dictionaries: await dictionaries.rows(self._session, codec) if is_trained else (),
            core_tables.data_blocks: await data_blocks.rows_at(self._session, sorted(firsts)),
            core_tables.commits: self._commits,
            core_tables.events: [_event_of(row) for row in self._rows],
            core_tables.bodies: [_body_of(row) for row in self._rows if row.body is not None],
            core_tables.dropped: self._drops,
        }


def blobs_of(rows: Sequence[NamedRow]) -> set[str]:
    """Return the names of the blobs to which some events refer."""
    return {name for row in rows if row.type in REFERRING for name in names_of_blobs(row) if "\0" not in name}


async def copy_blobs(session: ReadSession, writer: WriteSession, names: set[str]) -> None:
    """Copy the blobs with these names that the copy lacks, in the open transaction of `writer`."""
    lacking = names - await blobs.existing(writer, sorted(names)) if names else names
    async for group in blob_groups(session, lacking):
        await writer.write(Changes({core_tables.blobs: [*group]}, {}, {}))


class BlobRow(NamedTuple):
    """A row of `blobs`."""

    name: str
    codec: int
    raw_len: int
    body: bytes


async def blob_groups(session: ReadSession, names: set[str]) -> AsyncGenerator[list[BlobRow]]:
    """Yield the rows of some blobs in the order of their names, a few megabytes at a time. Leave out missing blobs."""
    sizes = await blobs.sizes(session, sorted(names)) if names else {}
    group, group_bytes = list[str](), 0
    for name, size in sorted(sizes.items()):
        if group and group_bytes + size > BYTES_AT_ONCE:
            yield await _blob_rows(session, group)
            group, group_bytes = [], 0
        group.append(name)
        group_bytes += size
    if group:
        yield await _blob_rows(session, group)


async def _blob_rows(session: ReadSession, names: Sequence[str]) -> list[BlobRow]:
    contents = await blobs.blobs_named(session, names)
    return [BlobRow(name, *contents[name]) for name in names if name in contents]
