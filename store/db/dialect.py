"""Interface for everything that differs between databases. The code above it is plain SQLAlchemy Core.

To add another SQL database, subclass `Dialect` and `register` it under a URL scheme.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, Select, Table, func
from sqlalchemy.engine import Dialect as Compiler
from sqlalchemy.sql import ClauseElement

from store.db.url import StoreURL
from store.errors import Invalid
from store.runtime.clock import Clock

Params = Mapping[str, Any]
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Sql:
    """A statement compiled for one database: its text, and the names of its parameters in order."""

    text: str
    names: tuple[str, ...]
    fixed: Mapping[str, Any]
    """Values that are part of the statement."""

    def args(self, params: Params) -> tuple[Any, ...]:
        """Return the values of the parameters in order."""
        fixed = self.fixed
        return tuple(params[name] if name in params else fixed[name] for name in self.names)


@dataclass(frozen=True, slots=True, eq=False)
class TablePart:
    """The key columns of a table, and the columns to set."""

    table: Table
    sets: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify the row."""
        return tuple(column.name for column in self.table.primary_key)


@dataclass(slots=True)
class Changes:
    """The rows that one commit writes, with one statement per table or `TablePart`. No list is empty."""

    inserts: dict[Table, list[Row]]
    """Rows that must not exist yet, in the order of the table's columns."""
    upserts: dict[Table, list[Row]]
    """Whole rows, in the order of the table's columns, that replace rows with the same key.

    Columns outside of `tables.settable` never change, so they are equal in the old and the new row.
    """
    deletes: dict[Table, list[Row]]
    """Keys of rows to delete."""
    updates: dict[TablePart, list[Row]] = field(default_factory=dict[TablePart, list[Row]])
    """Keys of rows that exist, each followed by the new values of the part's columns."""


@dataclass(slots=True)
class Tail:
    """The end of the log, read under the lock."""

    commit_id: int
    """The id of the last commit; 0 in an empty log."""
    recorded_at: int
    chain_hash: bytes
    totals: tuple[int, ...]
    """The running totals: events, rollouts, attempts, spans, resources, workers, body_bytes."""
    next_position: int
    next_commit_id: int
    now: int
    """The clock, in µs, read after the lock was taken."""
    queue_epoch: int
    is_ours: bool = False
    """Whether no other session can have written since this session's last commit."""


class Guard(NamedTuple):
    """A trigger, or a set of columns that must be unique, found in a database."""

    kind: str
    """`trigger` or `unique`."""
    table: str
    name: str
    """The name of the trigger, or the columns, comma-separated."""
    definition: str
    """The text of the trigger; empty for unique columns."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The triggers and unique keys that protect the log."""

    expected: Sequence[Guard]
    """The guards of an intact database."""
    in_place: Sql
    """Statement that reads the existing guards. Its rows contain the fields of `Guard`."""


class ReadSession(Protocol):
    """A connection for reading."""

    async def fetch(self, sql: Sql, params: Params) -> Sequence[Row]:
        """Return all rows of a statement."""
        ...

    async def fetch_then(
        self, sql: Sql, params: Params, follow: Callable[[int], Sql | None]
    ) -> tuple[Sequence[Row], Sequence[Row] | None]:
        """Return the rows of a statement, and those of a second one, which `follow` may return for their number."""
        rows = await self.fetch(sql, params)
        following = follow(len(rows))
        return rows, None if following is None else await self.fetch(following, params)

    def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[Row]]:
        """Yield the rows of a statement in batches, in limited memory."""
        ...


class WriteSession(ReadSession, Protocol):
    """The only connection that writes, and its transaction. Only one task uses it, in the loop that opened it."""

    async def begin(self) -> Tail:
        """Begin a transaction, take the lock, and read the end of the log."""
        ...

    async def load(self, queries: Sequence[Select[*tuple[Any, ...]]], params: Params) -> Sequence[Sequence[Row]]:
        """Return the rows of several queries in one round trip. The caller builds the queries once and reuses them."""
        ...

    async def write(self, changes: Changes) -> None:
        """Write the rows of one commit.

        Their commit id and positions start at `next_commit_id` and `next_position` of the tail that `begin` returned. A
        database with sequences takes the numbers from the sequences here and refuses rows with other numbers.
        """
        ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def rest(self) -> None:
        """Run due maintenance. Called between two batches, after the callers of the last batch have their results."""

    async def close(self) -> None: ...


class Wakeups(Protocol):
    """Notifications of commits, by this process and by others. They are hints, so a waiter reads the tables."""

    def announce(self, commit_id: int) -> None:
        """Notify other processes of a commit, after a short delay."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Wait until another process may have committed since the last call; return False after `seconds`."""
        ...

    async def close(self) -> None: ...


class Dialect(ABC):
    """One database, opened for one partition."""

    loop_bound: bool
    """Whether its connections work only in the loop that opened them."""
    has_dense_positions: bool = False
    """Whether a rolled-back transaction leaves no gap in the positions of the log."""
    compiler: Compiler
    schema: str | None = None
    batches_need_snapshot: bool = False
    """Whether `stream` returns all rows at once outside of a snapshot."""
    max_batch_bytes: int = 8 * 1024 * 1024

    def __init__(self, url: StoreURL, clock: Clock | None, *, read_only: bool = False) -> None:
        self.url = url
        self.clock = clock
        self.read_only = read_only

    def sql(self, statement: ClauseElement) -> Sql:
        """Compile a statement without caching it."""
        if self.schema:
            compiled = statement.compile(
                dialect=self.compiler, schema_translate_map={None: self.schema}, render_schema_translate=True
            )
        else:
            compiled = statement.compile(dialect=self.compiler)
        fixed = {name: value for name, value in (compiled.params or {}).items() if value is not None}
        return Sql(str(compiled), tuple(getattr(compiled, "positiontup", None) or ()), fixed)

    def prepared(self, statement: ClauseElement) -> Sql:
        """Compile a statement and cache the result. The statement must exist as long as the process."""
        known = self._prepared.get(id(statement))
        if known is None:
            known = self._prepared[id(statement)] = (statement, self.sql(statement))
        return known[1]

    @cached_property
    def _prepared(self) -> dict[int, tuple[ClauseElement, Sql]]:
        return {} if self.schema else _prepared.setdefault(type(self), {})

    @cached_property
    def compiled(self) -> dict[Hashable, Sql]:
        """Compiled statements by shape. All databases of a kind share them, unless the statements contain a schema."""
        return {} if self.schema else _compiled.setdefault(type(self), {})

    def qualified(self, table: Table) -> str:
        """Return the name of a table for raw SQL."""
        return f'"{self.schema}".{table.name}' if self.schema else table.name

    @abstractmethod
    def any_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Return the condition that a text column is one of the values of the list parameter `name`."""

    @abstractmethod
    def any_key(self, columns: Sequence[ColumnElement[Any]], name: str) -> ColumnElement[bool]:
        """Return the condition that text columns together are one of the keys of the list parameter `name`."""

    @abstractmethod
    def list_param(self, values: Sequence[Any]) -> Any:
        """Return a list in the driver's form for `any_of`."""

    @abstractmethod
    def keys_param(self, keys: Sequence[Sequence[Any]]) -> Any:
        """Return a list of keys in the driver's form for `any_key`."""

    @abstractmethod
    def contains(self, column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
        """Return the condition that a text column contains a text; case matters."""

    def hex(self, column: ColumnElement[Any]) -> ColumnElement[str]:
        """Return an expression for the bytes of a column as lower-case hex digits."""
        return func.lower(func.hex(column))

    def share(self, other: "Dialect") -> bool:
        """Share the connections and the loop of another partition, before `open`; return whether that is possible."""
        del other
        return False

    @abstractmethod
    async def open(self, *, create: bool) -> str:
        """Connect, create or upgrade the database if requested, and return the store's id."""

    @abstractmethod
    def guards(self) -> Guards:
        """Return the triggers and unique keys that `verify` checks."""

    def last_numbers(self) -> Sql | None:
        """Return a statement that reads the last commit id and the last position that the sequences have returned.

        `verify` reports a sequence that is behind the log. None if the database has no sequences to check.
        """
        return None

    @abstractmethod
    async def writer(self) -> WriteSession:
        """Return the session that writes. Call it in the loop that will use the session."""

    @abstractmethod
    def read(self, *, snapshot: bool = False) -> AbstractAsyncContextManager[ReadSession]:
        """Return a session for reading; with `snapshot`, all of its statements see the same state."""

    @abstractmethod
    def wakeups(self) -> Wakeups:
        """Return the notifications of commits. Call it in the store's loop, which also uses them."""

    def state(self) -> tuple[Hashable, Hashable] | None:
        """Return the identity of the database and a mark that every commit of any process changes.

        Return None if reading the mark takes as long as reading a page. The call blocks for a few microseconds.
        """
        return None

    @abstractmethod
    async def size_bytes(self) -> int:
        """Return the size of the partition on disk in bytes."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""


_prepared: dict[type[Dialect], dict[int, tuple[ClauseElement, Sql]]] = {}
_compiled: dict[type[Dialect], dict[Hashable, Sql]] = {}
_DIALECTS: dict[str, type[Dialect]] = {}


def register(scheme: str, dialect: type[Dialect]) -> None:
    """Register a dialect for `scheme://…` URLs."""
    _DIALECTS[scheme] = dialect


def dialect_for(url: StoreURL) -> type[Dialect]:
    """Return the dialect of a URL's scheme.

    Raises:
        Invalid: no dialect is registered for the scheme.
    """
    known = _DIALECTS.get(url.scheme)
    if known is None:
        raise Invalid("url", f"{url.scheme}:// is not one of {', '.join(sorted(_DIALECTS))}")
    return known
