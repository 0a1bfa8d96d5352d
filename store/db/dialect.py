"""The interface for everything that differs between databases; the code above it is plain SQLAlchemy Core.

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
    """A statement compiled for one database: its text, and the names of its parameters in their order."""

    text: str
    names: tuple[str, ...]
    fixed: Mapping[str, Any]
    """Values that were part of the statement."""

    def args(self, params: Params) -> tuple[Any, ...]:
        """Return the values to run it with."""
        fixed = self.fixed
        return tuple(params[name] if name in params else fixed[name] for name in self.names)


@dataclass(frozen=True, slots=True, eq=False)
class TablePart:
    """Some columns of a table: those of its key, and those to be set."""

    table: Table
    sets: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that find the row."""
        return tuple(column.name for column in self.table.primary_key)


@dataclass(slots=True)
class Changes:
    """The rows that one commit writes: one statement per table or part, whatever their number; no list is empty."""

    inserts: dict[Table, list[Row]]
    """Rows that must not exist yet, in the order of the table's columns."""
    upserts: dict[Table, list[Row]]
    """Whole rows, in the order of the table's columns, that replace those with the same key: but for the columns that
    are never set again (`tables.settable`), in which the two are equal."""
    deletes: dict[Table, list[Row]]
    """Keys of rows to delete."""
    updates: dict[TablePart, list[Row]] = field(default_factory=dict[TablePart, list[Row]])
    """Keys of rows that exist, each followed by the new values of the part's columns."""


@dataclass(slots=True)
class Tail:
    """Where the log ends, read under the lock."""

    commit_id: int
    """Of the last commit; 0 in an empty log."""
    recorded_at: int
    chain_hash: bytes
    totals: tuple[int, ...]
    """events, rollouts, attempts, spans, resources, workers, body_bytes."""
    next_position: int
    next_commit_id: int
    now: int
    """The clock, in µs, read after the lock was taken."""
    queue_epoch: int
    is_ours: bool = False
    """No other session can have written since this session's last commit."""


class Guard(NamedTuple):
    """A trigger, or a set of columns that must be unique, found in a database."""

    kind: str
    """`trigger` or `unique`."""
    table: str
    name: str
    """Of the trigger, or the columns, comma-separated."""
    definition: str
    """What the trigger does; empty for unique columns."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The triggers and unique keys that protect the log."""

    expected: Sequence[Guard]
    """Those of a sound database."""
    in_place: Sql
    """Reads those that exist, as rows of `Guard`'s fields."""


class ReadSession(Protocol):
    """A connection for reading."""

    async def fetch(self, sql: Sql, params: Params) -> Sequence[Row]:
        """Return all rows of a statement."""
        ...

    async def fetch_then(
        self, sql: Sql, params: Params, follow: Callable[[int], Sql | None]
    ) -> tuple[Sequence[Row], Sequence[Row] | None]:
        """Return all rows of a statement, and those of the one that follows from their number, if one does."""
        rows = await self.fetch(sql, params)
        following = follow(len(rows))
        return rows, None if following is None else await self.fetch(following, params)

    def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[Row]]:
        """Yield the rows of a statement in batches, in bounded memory."""
        ...


class WriteSession(ReadSession, Protocol):
    """The one connection that writes, and the transaction on it. Used by one task, in the loop that opened it."""

    async def begin(self) -> Tail:
        """Begin a transaction, take the lock, and read where the log ends."""
        ...

    async def load(self, queries: Sequence[Select[*tuple[Any, ...]]], params: Params) -> Sequence[Sequence[Row]]:
        """Return the rows of several queries, built once and kept by the caller, in one round trip."""
        ...

    async def write(self, changes: Changes) -> None:
        """Write the rows of one commit.

        The commit id and the positions in them are those that `begin` returned as the next ones. A database with
        sequences draws the numbers here and refuses to write others.
        """
        ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def rest(self) -> None:
        """Do what is due and belongs to no batch; called between two of them, when nobody waits for the last."""

    async def close(self) -> None: ...


class Wakeups(Protocol):
    """News of commits, from this process and from others. Hints: a waiter reads before it believes."""

    def announce(self, commit_id: int) -> None:
        """Notify other processes soon that something was committed."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Return True when another process may have committed since the last call, False after `seconds`."""
        ...

    async def close(self) -> None: ...


class Dialect(ABC):
    """One database, opened for one partition."""

    loop_bound: bool
    """Its connections work only in the loop that opened them."""
    has_dense_positions: bool = False
    """A rolled-back transaction leaves no gap in the positions of the log."""
    compiler: Compiler
    schema: str | None = None
    batches_need_snapshot: bool = False
    """Outside of a snapshot a session's `stream` gives all rows at once."""
    max_batch_bytes: int = 8 * 1024 * 1024

    def __init__(self, url: StoreURL, clock: Clock | None, *, read_only: bool = False) -> None:
        self.url = url
        self.clock = clock
        self.read_only = read_only

    def sql(self, statement: ClauseElement) -> Sql:
        """Compile a statement, not keeping it."""
        if self.schema:
            compiled = statement.compile(
                dialect=self.compiler, schema_translate_map={None: self.schema}, render_schema_translate=True
            )
        else:
            compiled = statement.compile(dialect=self.compiler)
        fixed = {name: value for name, value in (compiled.params or {}).items() if value is not None}
        return Sql(str(compiled), tuple(getattr(compiled, "positiontup", None) or ()), fixed)

    def prepared(self, statement: ClauseElement) -> Sql:
        """Compile a statement once; for statements that are built once and live as long as the process."""
        known = self._prepared.get(id(statement))
        if known is None:
            known = self._prepared[id(statement)] = (statement, self.sql(statement))
        return known[1]

    @cached_property
    def _prepared(self) -> dict[int, tuple[ClauseElement, Sql]]:
        return {} if self.schema else _prepared.setdefault(type(self), {})

    @cached_property
    def compiled(self) -> dict[Hashable, Sql]:
        """Compiled statements by shape. All databases of the kind share them, unless they name a schema."""
        return {} if self.schema else _compiled.setdefault(type(self), {})

    def qualified(self, table: Table) -> str:
        """Return the name of a table as raw SQL needs it."""
        return f'"{self.schema}".{table.name}' if self.schema else table.name

    @abstractmethod
    def any_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Return the condition that a text column is one of the values of the list parameter `name`."""

    @abstractmethod
    def any_key(self, columns: Sequence[ColumnElement[Any]], name: str) -> ColumnElement[bool]:
        """Return the condition that text columns together are one of the keys of the list parameter `name`."""

    @abstractmethod
    def list_param(self, values: Sequence[Any]) -> Any:
        """Return a list as the driver takes it for `any_of`."""

    @abstractmethod
    def keys_param(self, keys: Sequence[Sequence[Any]]) -> Any:
        """Return a list of keys as the driver takes it for `any_key`."""

    @abstractmethod
    def contains(self, column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
        """Return the condition that a text column contains a text, case and all."""

    def hex(self, column: ColumnElement[Any]) -> ColumnElement[str]:
        """Return the bytes of a column as lower-case hex digits."""
        return func.lower(func.hex(column))

    def share(self, other: "Dialect") -> bool:
        """Use the connections of another partition, and so its loop; return whether that is possible. Before `open`."""
        del other
        return False

    @abstractmethod
    async def open(self, *, create: bool) -> str:
        """Connect, create or upgrade where that is asked for, and return the store's id."""

    @abstractmethod
    def guards(self) -> Guards:
        """Return the triggers and unique keys that `verify` checks."""

    @abstractmethod
    async def writer(self) -> WriteSession:
        """Return the session that writes, made in the loop that will use it."""

    @abstractmethod
    def read(self, *, snapshot: bool = False) -> AbstractAsyncContextManager[ReadSession]:
        """Return a session for reading; with `snapshot`, all its statements see one state."""

    @abstractmethod
    def wakeups(self) -> Wakeups:
        """Return the news of commits; made and used in the store's own loop."""

    def state(self) -> tuple[Hashable, Hashable] | None:
        """Return which database this is and a mark that is another one after any commit, of this process or another.

        None where asking takes as long as reading. It blocks, for a few microseconds.
        """
        return None

    @abstractmethod
    async def size_bytes(self) -> int:
        """Return the bytes that the partition takes on disk."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""


_prepared: dict[type[Dialect], dict[int, tuple[ClauseElement, Sql]]] = {}
_compiled: dict[type[Dialect], dict[Hashable, Sql]] = {}
_DIALECTS: dict[str, type[Dialect]] = {}


def register(scheme: str, dialect: type[Dialect]) -> None:
    """Let `scheme://…` URLs open a database of this kind."""
    _DIALECTS[scheme] = dialect


def dialect_for(url: StoreURL) -> type[Dialect]:
    """Return the dialect of a URL's scheme.

    Raises:
        Invalid: no dialect is registered for it.
    """
    known = _DIALECTS.get(url.scheme)
    if known is None:
        raise Invalid("url", f"{url.scheme}:// is not one of {', '.join(sorted(_DIALECTS))}")
    return known
