"""Interface for everything that differs between databases. All other code builds its SQL with SQLAlchemy Core.

To add another SQL database, subclass `Dialect` and `register` it under a URL scheme.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pkgutil import resolve_name
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from sqlalchemy import ColumnElement, Select, Table, func
from sqlalchemy.engine import Dialect as Compiler
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import Compiled, SQLCompiler
from sqlalchemy.sql.selectable import SelectBase

from store.db.stored_forms import Places, StoredForms, places_in
from store.db.url import StoreURL
from store.domain.rows import NamedRow, row_maker
from store.errors import Invalid, Unsupported
from store.runtime.clock import Clock, elapsed_of

logger = logging.getLogger("store.db")

_MOST_COMPILATIONS: Final = 512
"""The maximum number of statements whose compiled form is cached; a further one empties the cache."""

Params = Mapping[str, Any]
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Sql:
    """A statement compiled for one database: its text, and the names of its parameters in order."""

    text: str
    names: tuple[str, ...]
    fixed: Mapping[str, Any]
    """Values of parameters that are fixed by the statement, by parameter name."""
    places: Places | None = None
    """The columns whose values may be stored in another form. A session converts these values."""
    make_row: Callable[[Iterable[Any]], NamedRow] | None = None
    """Function that names the values of a row; None for a statement without named columns."""

    def args(self, params: Params) -> tuple[Any, ...]:
        """Return the values of the statement's parameters in order. A value in `params` replaces a fixed value."""
        fixed = self.fixed
        return tuple(params[name] if name in params else fixed[name] for name in self.names)

    def named(self, rows: Iterable[Row]) -> list[NamedRow]:
        """Return rows of the statement whose values have names. Every session calls this for the rows that it reads."""
        return list(map(self.make_row or NamedRow, rows))


@dataclass(frozen=True, slots=True, eq=False)
class TablePart:
    """The columns of an UPDATE: the key columns of a table, and the columns to set."""

    table: Table
    sets: tuple[str, ...]
    """The names of the columns to set."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify the row."""
        return tuple(column.name for column in self.table.primary_key)


@dataclass(slots=True)
class Changes:
    """The rows that one commit writes.

    The rows of a table or `TablePart` are written together, so no list may be empty.
    """

    inserts: dict[Table, list[Row]]
    """Rows that must not exist yet, in the order of the table's columns."""
    upserts: dict[Table, list[Row]]
    """Complete rows, in the order of the table's columns. A row is inserted, or replaces the row with the same key.

    The old and the new row must be equal in the columns that `settable` in `store.db.tables.core` does not return.
    """
    deletes: dict[Table, list[Row]]
    """Keys of rows to delete."""
    updates: dict[TablePart, list[Row]] = field(default_factory=dict[TablePart, list[Row]])
    """Keys of existing rows, each followed by the new values of the part's columns."""


@dataclass(slots=True)
class Tail:
    """The end of the log, read while the transaction holds the write lock."""

    commit_id: int
    """The id of the last commit; 0 in an empty log."""
    recorded_at: int
    """The time of the last commit, in µs since the epoch; 0 in an empty log."""
    chain_hash: bytes
    """The hash of the last commit; 32 zero bytes in an empty log."""
    totals: tuple[int, ...]
    """The totals up to the last commit: events, rollouts, attempts, spans, resources, workers, body_bytes."""
    next_position: int
    """The position of the next event."""
    next_commit_id: int
    """The id of the next commit."""
    now: int
    """The time, in µs since the epoch, read after the lock was taken."""
    queue_epoch: int
    """The epoch of the queue. With a new epoch, every process reads the queue again from its beginning."""
    is_ours: bool = False
    """Whether no other session can have written since this session's last commit."""


class Guard(NamedTuple):
    """A trigger, a rewrite rule, a set of columns that must be unique, or an index."""

    kind: str
    """`trigger`, `unique` or `index`. Postgres also has `rule`: a rule that rewrites statements."""
    table: str
    name: str
    """The name of the trigger or rule, or the columns, comma-separated, with the condition of a partial index."""
    definition: str
    """The SQL text of the trigger or rule; empty for other kinds."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The triggers and unique keys that protect the log, and the indexes."""

    expected: Sequence[Guard]
    """The guards of an intact database."""
    in_place: Sql
    """Statement that reads the existing guards. Its rows contain the fields of `Guard`."""


class LastNumbers(NamedTuple):
    """The sequences for commit ids and for positions."""

    names: tuple[str, str]
    """The names of the two sequences, for messages."""
    statement: Sql
    """Statement whose row contains the last numbers that the sequences returned, in the same order."""


class TypeFault(NamedTuple):
    """A stored value whose type is not the type of its column, or text that is not UTF-8."""

    table: Table
    key: str
    """The primary key of the row. The values of several columns are joined by slashes."""
    column: str
    expected: str
    """The expected type with its article, for example `an integer`."""
    actual: str
    """The actual type and the first bytes of the value."""


@dataclass(slots=True)
class TypeFaults:
    """The values of a database whose type is not the type of their column."""

    first: list[TypeFault] = field(default_factory=list[TypeFault])
    """The first such values, at most `SHOWN`."""
    counts: Counter[str] = field(default_factory=Counter[str])
    """The number of all such values in each table, by table name."""

    SHOWN: ClassVar[int] = 20

    def add(self, fault: TypeFault) -> None:
        """Count a value, and keep it if it is one of the first."""
        self.counts[fault.table.name] += 1
        if len(self.first) < self.SHOWN:
            self.first.append(fault)


class ReadSession(Protocol):
    """A connection for reading."""

    dialect: "Dialect"
    """The database."""

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        """Return all rows of a statement. Values that are stored in another form are converted. See `Sql.named`."""
        ...

    async def fetch_then(
        self, sql: Sql, params: Params, follow: Callable[[int], Sql | None]
    ) -> tuple[Sequence[NamedRow], Sequence[NamedRow] | None]:
        """Return the rows of a statement, and the rows of a second statement or None.

        `follow` is called with the number of rows of the first statement. It returns the second statement, which gets
        the same parameters, or None if no second statement is needed.
        """
        rows = await self.fetch(sql, params)
        following = follow(len(rows))
        return rows, None if following is None else await self.fetch(following, params)

    def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        """Yield the rows of a statement in batches, in limited memory."""
        ...


class WriteSession(ReadSession, Protocol):
    """The only session of this process that writes.

    Only one task may use the session, in the event loop that opened the session.

    A batch is a group of calls that one transaction executes.
    """

    async def begin(self) -> Tail:
        """Begin a transaction, take the lock, and read the end of the log. Decision 4."""
        ...

    async def load(self, queries: Sequence[Select[*tuple[Any, ...]]], params: Params) -> Sequence[Sequence[NamedRow]]:
        """Return the rows of several queries, if possible in one round trip.

        The caller must build the queries once and pass the same objects each time, because compiled queries are cached
        by the identity of the objects.
        """
        ...

    async def write(self, changes: Changes) -> None:
        """Write the rows of one commit.

        The commit id and the positions in the rows must start at `next_commit_id` and `next_position` of the tail that
        `begin` returned. If the database has sequences, this call advances them. It fails if the sequences return
        numbers that differ from the numbers in the rows.
        """
        ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def rest(self) -> None:
        """Run maintenance that is due.

        The store calls this between two batches, after the callers of the last batch have got their results.
        """

    async def close(self) -> None: ...


class Wakeups(Protocol):
    """Notifications of commits between processes.

    A notification is only a hint: a waiting caller must read the tables.
    """

    def announce(self, commit_id: int) -> None:
        """Notify other processes of a commit, after a short delay."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Wait until another process may have committed since the last call; return False after `seconds`."""
        ...

    async def close(self) -> None: ...


class Dialect(ABC):
    """One partition of a database, and the features of this kind of database."""

    loop_bound: bool
    """Whether a connection works only in the event loop that opened it."""
    compiler: Compiler
    schema: str | None = None
    """The schema of the tables; None if statements name no schema."""
    batches_need_snapshot: bool = False
    """Whether `stream` returns all rows at once outside of a snapshot."""
    max_batch_bytes: int = 8 * 1024 * 1024
    """A batch takes no further call when its calls have this size in bytes."""

    def __init__(self, url: StoreURL, clock: Clock | None, *, read_only: bool = False) -> None:
        self.url = url
        self.clock = clock
        self.elapsed = elapsed_of(clock)
        """Function that returns the elapsed time in nanoseconds, normally of the monotonic clock."""
        self.read_only = read_only
        self.stored_forms = StoredForms(self)

    def sql(self, statement: ClauseElement) -> Sql:
        """Compile a statement. Statements that differ only in values are compiled once, see decision 121."""
        # This is the key by which SQLAlchemy caches statements that it executes itself; None for DDL.
        key = statement._generate_cache_key()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        entry = None if key is None else self._compilations.get(key.key)
        if entry is None:
            options: dict[str, Any] = {"dialect": self.compiler, "cache_key": key}
            if self.schema:
                options |= {"schema_translate_map": {None: self.schema}, "render_schema_translate": True}
            compiled = statement.compile(**options)
            names = tuple(getattr(compiled, "positiontup", None) or ())
            is_select = isinstance(statement, SelectBase)
            make_row = row_maker(tuple(statement.selected_columns.keys())) if is_select else None
            entry = compiled, Sql(str(compiled), names, {}, places_in(statement), make_row)
            if key is not None:
                if len(self._compilations) >= _MOST_COMPILATIONS:
                    self._compilations.clear()
                self._compilations[key.key] = entry
        compiled, sql = entry
        if key is not None and isinstance(compiled, SQLCompiler):
            values = compiled.construct_params(extracted_parameters=key.bindparams, _check=False)
        else:
            values = compiled.params or {}
        return replace(sql, fixed={name: value for name, value in values.items() if value is not None})

    @cached_property
    def _compilations(self) -> dict[Hashable, tuple[Compiled, Sql]]:
        return {} if self.schema else _compilations.setdefault(type(self), {})

    def prepared(self, statement: ClauseElement) -> Sql:
        """Compile a statement and cache the result. Only a statement that is built once may be passed.

        The cache keeps the statement and the result until the process ends.
        """
        entry = self._prepared.get(id(statement))
        if entry is None:
            entry = self._prepared[id(statement)] = (statement, self.sql(statement))
        return entry[1]

    @cached_property
    def _prepared(self) -> dict[int, tuple[ClauseElement, Sql]]:
        return {} if self.schema else _prepared.setdefault(type(self), {})

    @cached_property
    def compiled(self) -> dict[Hashable, Sql]:
        """A cache of compiled statements. The key is the shape of the statement: all that determines its SQL text.

        All databases of a kind share the cache, unless the statements contain the name of a schema.
        """
        return {} if self.schema else _compiled.setdefault(type(self), {})

    def qualified(self, table: Table) -> str:
        """Return the name of a table for raw SQL."""
        return f'"{self.schema}".{table.name}' if self.schema else table.name

    @abstractmethod
    def any_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Return the condition that a text or integer column has one of the values in the list parameter `name`."""

    @abstractmethod
    def any_key(self, columns: Sequence[ColumnElement[Any]], name: str) -> ColumnElement[bool]:
        """Return the condition that the values of text columns together are one of the keys in the parameter `name`."""

    @abstractmethod
    def list_param(self, values: Sequence[Any]) -> Any:
        """Return a list in the form that the driver needs for a parameter of `any_of`."""

    @abstractmethod
    def keys_param(self, keys: Sequence[Sequence[Any]]) -> Any:
        """Return a list of keys in the form that the driver needs for a parameter of `any_key`."""

    @abstractmethod
    def contains(self, column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
        """Return the condition that a text column contains the given text. Upper and lower case are different."""

    def json_number(self, column: ColumnElement[Any], key: str) -> ColumnElement[Any]:
        """Return an expression for a number in the JSON object in a text column; null if the object lacks the key."""
        return func.json_extract(column, f"$.{key}")

    def greatest(self, columns: Sequence[ColumnElement[int]]) -> ColumnElement[int]:
        """Return an expression for the greatest of several columns, which must not be null."""
        return func.max(*columns)

    def hex(self, column: ColumnElement[Any]) -> ColumnElement[str]:
        """Return an expression for the bytes of a column as lower-case hex digits."""
        return func.lower(func.hex(column))

    def share(self, other: "Dialect") -> bool:
        """Use the connections and the event loop of another partition from now on; return whether that is possible.

        This must be called before `open`.
        """
        del other
        return False

    @abstractmethod
    async def open(self, *, create: bool) -> str:
        """Connect, and return the id of the store. With `create`, a missing store is created first."""

    def unfinished(self) -> "Unfinished":
        """Return the place in which a copy of a store is made, before it becomes this partition.

        Raises:
            Unsupported: this kind of database cannot be the target of a copy.
        """
        raise Unsupported("copy", type(self).__name__)

    @abstractmethod
    def guards(self) -> Guards:
        """Return the triggers, unique keys and indexes that `verify` checks."""

    def last_numbers(self) -> LastNumbers | None:
        """Return a statement that reads the last commit id and the last position that the sequences have returned.

        With these numbers, `verify` finds a sequence that is behind the log. Return None if the database has no
        sequences to check.
        """
        return None

    async def has_type_faults(self, session: ReadSession, tables: Sequence[Table], *, texts: bool) -> bool:
        """Return whether one of the tables contains a value that `hide_type_faults` would report.

        Texts that are not UTF-8 count only if `texts` is true, because a search for them takes longer.
        """
        del session, tables, texts
        return False

    async def hide_type_faults(self, session: ReadSession) -> TypeFaults:
        """Return all values whose type is not the type of their column, and hide their rows from the session.

        The session must read a snapshot. The rows are hidden until the snapshot ends. The default implementation is for
        databases that reject such values.
        """
        del session
        return TypeFaults()

    async def delete_type_faults(self, session: WriteSession, tables: Sequence[Table]) -> dict[str, int]:
        """Delete the rows that `hide_type_faults` would hide; return the number of deleted rows by table name.

        The session must have begun a transaction.
        """
        del session, tables
        return {}

    @abstractmethod
    async def writer(self) -> WriteSession:
        """Return the session that writes. This must be called in the event loop that will use the session."""

    @abstractmethod
    def read(self, *, snapshot: bool = False) -> AbstractAsyncContextManager[ReadSession]:
        """Return a session for reading. With `snapshot`, all statements of the session see the same state."""

    @abstractmethod
    def wakeups(self) -> Wakeups:
        """Return the notifications of commits. Only the event loop that calls this method may use them."""

    def state(self) -> tuple[Hashable, Hashable] | None:
        """Return the identity of the database, and a value that changes with every commit of any process.

        Return None if no such value can be read much faster than the data itself. The call may block for a few
        microseconds.
        """
        return None

    async def watched_partitions(self) -> list[str]:
        """Return the names of the partitions of this database that have active attempts with a time limit.

        The other partitions need not be open. The call is cheap enough to be made every few seconds. The default
        implementation is for databases without partitions.
        """
        return []

    async def overwrite_deleted(self, session: WriteSession) -> None:
        """Let the session overwrite the bytes that it deletes from now on, instead of only marking them as free.

        The default implementation is for databases without such a setting, on which only `erase` removes the bytes.
        """
        del session

    async def vacuum(self) -> None:
        """Free the space of deleted bodies and blobs at once.

        The default implementation rewrites the database, and writers wait meanwhile.
        """
        await self.erase(rewrite=True, remains=())

    async def compact(self, *, rewrite: bool) -> bool:
        """Free the space of deleted rows of all tables; return whether this succeeded.

        If a transaction still reads an old state, some of the space may not be free, and the result is False. The
        default implementation rewrites the database in any case, and writers wait meanwhile.

        Args:
            rewrite: whether to rewrite the tables, which returns all free space to the operating system.
        """
        del rewrite
        return await self.erase(rewrite=True, remains=())

    async def erase(self, *, rewrite: bool, remains: Sequence[bytes] | None) -> bool:
        """Remove deleted rows of bodies and blobs from the files; return whether this succeeded.

        If a transaction still reads an old state, the files may keep deleted rows, and the result is False. The default
        implementation is for databases that remove deleted rows by themselves.

        Args:
            rewrite: whether to rewrite the database, or these tables. This blocks writers.
            remains: parts of deleted rows. If the database is a file that still contains one of them, the file is
                rewritten. None means that the parts are not known; the file is then always rewritten.
        """
        del rewrite, remains
        return True

    @abstractmethod
    async def size_bytes(self) -> int:
        """Return the size of the partition on disk in bytes."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""


class Unfinished(Dialect):
    """The place in which a copy of a store is made. The copy is not a partition until it is published.

    Each subclass is also a subclass of the dialect of its database.
    """

    @abstractmethod
    def reserved(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager for a block in which no other call makes the same copy, in any process.

        If the process dies, the next call can make the copy.

        Raises:
            Unavailable: another call makes the copy, and did not end within a few seconds.
        """

    @abstractmethod
    async def prepare(self, store_id: str, created_at: int, log_format: int, *, is_single_file: bool) -> None:
        """Create the place with the identity of the store that is copied, unless an earlier run has created it.

        This must be called before `open`.

        Args:
            store_id: the id of the store.
            created_at: the time of its creation, in µs since the epoch.
            log_format: the version of its log's format.
            is_single_file: whether the copy is a backup or an archive. On SQLite, only this user may read the file.

        Raises:
            AlreadyExists: the partition exists.
            Incompatible: the unfinished copy is a copy of another store, or of an older version of this program.
        """

    @abstractmethod
    async def append(
        self, session: WriteSession, rows: Mapping[Table, Sequence[Row]], commit_id: int, position: int
    ) -> None:
        """Insert rows of the log that is copied.

        The rows keep their numbers, and the sequences continue after these numbers.

        Args:
            session: the session that writes, which has begun a transaction.
            rows: the rows by table.
            commit_id: the id of the last commit after this call.
            position: the position of the last event after this call.
        """

    @abstractmethod
    async def publish(self, *, is_single_file: bool, receipt: str | None) -> None:
        """Make the complete copy the partition, in one step. This must be called after `close`.

        Args:
            is_single_file: whether the copy is a backup or an archive. SQLite then creates no files beside the copy
                while programs only read it.
            receipt: a text that `receipt` returns until `acknowledge` is called.

        Raises:
            AlreadyExists: the partition exists now.
            Unavailable: the reservation of the copy was lost, so another call may have changed the copy.
        """

    @abstractmethod
    async def receipt(self) -> str | None:
        """Return the receipt of the partition, if it is a published copy; None if there is none."""

    @abstractmethod
    async def acknowledge(self) -> None:
        """Remove the receipt."""

    @abstractmethod
    async def discard(self) -> None:
        """Delete the unfinished copy. This must be called after `close`."""


def report_lost_queue_epoch() -> None:
    """Log that the table `queue_epoch` had no valid row, and that a session has written a new row."""
    logger.warning("queue_epoch had no valid row and got a new one; the queue is read again from its beginning")


_prepared: dict[type[Dialect], dict[int, tuple[ClauseElement, Sql]]] = {}
_compilations: dict[type[Dialect], dict[Hashable, tuple[Compiled, Sql]]] = {}
_compiled: dict[type[Dialect], dict[Hashable, Sql]] = {}
_DIALECTS: dict[str, type[Dialect] | str] = {}


def register(scheme: str, dialect: type[Dialect] | str) -> None:
    """Register a dialect for URLs that begin with `scheme://`.

    The dialect is a class, or the name of a class as `module:class`. A named class is imported when the first such URL
    is used: the import of the driver for Postgres takes a tenth of the start of a command.
    """
    _DIALECTS[scheme] = dialect


def dialect_for(url: StoreURL) -> type[Dialect]:
    """Return the dialect for the scheme of a URL.

    Raises:
        Invalid: no dialect is registered for the scheme.
    """
    dialect = _DIALECTS.get(url.scheme)
    if dialect is None:
        raise Invalid("url", f"{url.scheme}:// is not one of {', '.join(sorted(_DIALECTS))}")
    return resolve_name(dialect) if isinstance(dialect, str) else dialect


register("memory", "store.db.drivers.sqlite.dialect:SQLite")
register("sqlite", "store.db.drivers.sqlite.dialect:SQLite")
register("postgresql", "store.db.drivers.postgres.dialect:Postgres")


@asynccontextmanager
async def existing_store(dialect: Dialect) -> AsyncGenerator[str]:
    """Open the database of an existing store during the block, and yield the id of the store."""
    store_id = await dialect.open(create=False)
    try:
        yield store_id
    finally:
        await dialect.close()
