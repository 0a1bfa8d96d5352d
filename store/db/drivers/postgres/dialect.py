"""Dialect for Postgres 14 and newer, with asyncpg. Decision 53.

Each partition has its own schema, an advisory lock for its writer, and a channel for NOTIFY.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs] (asyncpg has no type hints)
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    func,
    select,
    tuple_,
)
from sqlalchemy import any_ as sql_any
from sqlalchemy.dialects.postgresql import ARRAY, JSON
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.sql.functions import Function

from store.db.dialect import (
    Changes,
    Dialect,
    Guards,
    LastNumbers,
    NamedRow,
    Params,
    ReadSession,
    Row,
    Sql,
    TablePart,
    Tail,
    Unfinished,
    Wakeups,
    WriteSession,
    report_lost_queue_epoch,
)
from store.db.drivers.postgres.column_types import column_types
from store.db.drivers.postgres.connection import PooledConnection, PostgresConnection
from store.db.drivers.postgres.index_tables import IndexTables
from store.db.drivers.postgres.pool import Connections, Listener
from store.db.index_place import IndexPlace
from store.db.schema import HEAD, DatabaseInfo, lock_key, prepare_postgres, triggers
from store.db.schema import postgres as schemas
from store.db.schema.postgres import MALFORMED, PREFIX, UNFINISHED, is_malformed, malformed
from store.db.tables import core as core_tables
from store.db.tables.core import metadata, settable
from store.db.url import StoreURL
from store.errors import Closed, Incompatible, ReadOnly, StoreError, Unavailable
from store.runtime.clock import Clock

# asyncpg has no type hints.
_driver: Any = asyncpg
# Errors that are raised if the connection breaks during a call.
_BROKEN = (OSError, TimeoutError, asyncpg.InternalClientError)
# At least this many new rows of a table are written with COPY. COPY costs one more round trip, but takes only half as
# much work per row.
_COPIED_FROM = 200
_LOCK_SECONDS = 30
_STATEMENT_SECONDS = 60
# If the network fails, the server cannot report that a statement exceeded its time limit. The writer therefore has its
# own limit, which is slightly longer.
_ANSWER_SECONDS = _STATEMENT_SECONDS + 5
# The writer closes its connection after this many seconds without a write.
_IDLE_SECONDS = 300.0
_CLOSE_SECONDS = 5.0
# The settings of each transaction if the URL leads to a connection pooler.
_POOLED_SETTINGS = " SET LOCAL jit = off;"
_cursors = count()
_SCHEMAS_AT_ONCE = 100
# Prefixes of the SQLSTATE of temporary errors: connection, resources, shutdown, conflict, and locks.
_TRANSIENT = ("08", "53", "57P0", "40001", "40P01", "55P03", "57014", "25P03")

_OWNS = (
    "SELECT bool_and(pg_has_role(c.relowner, 'USAGE')) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = $1 AND c.relname = ANY($2)"
)


class Postgres(Dialect):
    """Dialect for Postgres. Each partition has its own schema."""

    loop_bound = True
    batches_need_snapshot = True
    compiler = PGDialect_asyncpg()
    prefix = PREFIX
    """The beginning of the name of the schema, before the name of the partition."""

    def __init__(self, url: StoreURL, clock: Clock | None, *, read_only: bool = False) -> None:
        super().__init__(url, clock, read_only=read_only)
        assert url.dsn is not None  # the parser guarantees it
        self.dsn = url.dsn
        self.direct = url.options.get("direct", url.dsn)
        self.is_pooled = self.direct != self.dsn
        """Whether the URL leads to a connection pooler, which may run each transaction in a different session."""
        self.schema = self.channel = schema = f"{self.prefix}{url.partition}"
        self.lock_key = lock_key(schema)
        self.connect_options: dict[str, Any] = {"connection_class": PostgresConnection}
        """Arguments that asyncpg gets for each connection to the URL."""
        if self.is_pooled:
            # Without a cache, asyncpg uses unnamed prepared statements. A named one would stay in a session that the
            # pooler may give to another client.
            self.connect_options = {"statement_cache_size": 0, "connection_class": PooledConnection}
        self.connections = Connections(
            self.dsn,
            self.direct,
            statement_seconds=_STATEMENT_SECONDS,
            prepare=self.settle,
            options=self.connect_options,
        )
        self._is_open = False

    def share(self, other: Dialect) -> bool:
        if isinstance(other, Postgres) and other.connections.address == self.connections.address:
            self.connections = other.connections
            return True
        return False

    def any_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        kind = Text if isinstance(column.type, Text) else BigInteger
        return column == sql_any(bindparam(name, type_=ARRAY(kind)))

    def any_key(self, columns: Sequence[ColumnElement[Any]], name: str) -> ColumnElement[bool]:
        lists = [bindparam(f"{name}_{index}", type_=ARRAY(Text)) for index in range(len(columns))]
        names = [f"k{index}" for index in range(len(columns))]
        keys = func.unnest(*lists).table_valued(*names, name=f"keys_{name}").render_derived()
        return tuple_(*columns).in_(select(*(keys.c[part] for part in names)))

    def list_param(self, values: Sequence[Any]) -> Any:
        return list(values)

    def keys_param(self, keys: Sequence[Sequence[Any]]) -> Any:
        return list(keys)

    def contains(self, column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
        return func.strpos(column, value) > 0

    def json_number(self, column: ColumnElement[Any], key: str) -> ColumnElement[Any]:
        return cast(cast(column, JSON)[key].astext, Double)

    def greatest(self, columns: Sequence[ColumnElement[int]]) -> ColumnElement[int]:
        return func.greatest(*columns)

    def hex(self, column: ColumnElement[Any]) -> ColumnElement[str]:
        return func.encode(column, "hex")

    async def open(self, *, create: bool) -> str:
        with _translated():
            info = await prepare_postgres(self.direct, self.channel, create=create, read_only=self.read_only)
            await self.connections.open()
            self._is_open = True
        return info.store_id

    def unfinished(self) -> Unfinished:
        return UnfinishedPostgres(self.url, self.clock)

    def guards(self) -> Guards:
        return triggers.guards("postgresql", self.schema)

    def last_numbers(self) -> LastNumbers:
        last = "CASE WHEN is_called THEN last_value ELSE last_value - 1 END"
        names = (f"{self.schema}.commit_seq", f"{self.schema}.event_seq")
        statement = Sql(f"SELECT {', '.join(f'(SELECT {last} FROM {name})' for name in names)}", (), {})
        return LastNumbers(names, statement)

    async def writer(self) -> WriteSession:
        return PostgresWriter(self)

    @asynccontextmanager
    async def read(self, *, snapshot: bool = False) -> AsyncGenerator[ReadSession]:
        if not self._is_open:
            raise Closed("a read")
        try:
            with _translated():
                async with self.connections.reader() as connection:
                    session = PostgresReader(connection, self)
                    if snapshot or self.is_pooled:
                        isolation = "repeatable_read" if snapshot else "read_committed"
                        async with connection.transaction(isolation=isolation, readonly=True):
                            if self.is_pooled:
                                await connection.execute(_POOLED_SETTINGS)
                            yield session
                    else:
                        yield session
        except (Unavailable, asyncpg.InterfaceError) as error:
            if self._is_open:
                raise
            raise Closed("a read") from error

    async def settle(self, connection: Any) -> None:
        """Apply the settings of a new connection to the URL.

        A connection pooler may give its sessions to other clients. With a pooler, each transaction therefore applies
        the settings itself.
        """
        if not self.is_pooled:
            # No other setting is needed: texts are compared as bytes, and no query uses the time zone or the search
            # path.
            await connection.execute("SET client_encoding = 'UTF8'; SET jit = off")
            await self.connections.monitor.add(connection)

    def wakeups(self) -> Wakeups:
        return Listener(self.connections, self.channel)

    async def watched_partitions(self) -> list[str]:
        readable = (
            "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relname = 'watch' AND c.relkind = 'r' AND starts_with(n.nspname, $1)"
            " AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')"
        )
        async with self.read() as session:
            schemas = [row[0] for row in await session.fetch(Sql(readable, ("prefix",), {}), {"prefix": PREFIX})]
            watched: list[str] = []
            for start in range(0, len(schemas), _SCHEMAS_AT_ONCE):
                asked = schemas[start : start + _SCHEMAS_AT_ONCE]
                quoted = [(schema.replace("'", "''"), schema.replace('"', '""')) for schema in asked]
                selects = (f"SELECT '{text}' WHERE EXISTS (SELECT 1 FROM \"{name}\".watch)" for text, name in quoted)
                watched += [row[0] for row in await session.fetch(Sql(" UNION ALL ".join(selects), (), {}), {})]
        return [schema.removeprefix(PREFIX) for schema in watched]

    async def vacuum(self) -> None:
        await self.erase(rewrite=False, remains=())

    async def erase(self, *, rewrite: bool, remains: Sequence[bytes] | None) -> bool:
        del remains
        tables = [core_tables.bodies, core_tables.blobs, core_tables.dictionaries]
        return await self._vacuum(tables, rewrite=rewrite)

    async def compact(self, *, rewrite: bool) -> bool:
        return await self._vacuum(metadata.sorted_tables, rewrite=rewrite)

    async def _vacuum(self, tables: Sequence[Table], *, rewrite: bool) -> bool:
        options = "FULL, ANALYZE" if rewrite else "ANALYZE"
        names = ", ".join(map(self.qualified, tables))
        with _translated():
            # VACUUM refuses to run in a transaction, and the connections of the pool have a time limit.
            connection = await _driver.connect(self.direct, timeout=10, connection_class=PostgresConnection)
            try:
                if not await connection.fetchval(_OWNS, self.schema, [table.name for table in tables]):
                    raise Incompatible(
                        "this database role does not own the tables, so Postgres leaves them out of VACUUM",
                        "run the same command with the owner of the tables",
                    )
                await connection.execute(f"VACUUM ({options}) {names}")
                # An older transaction may still see the rows, and VACUUM then keeps them.
                oldest = await connection.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND backend_type = 'client backend' AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
                )
            finally:
                await _close(connection)
        return not oldest

    def index_place(self, name: str) -> IndexPlace:
        return IndexTables(self, name, self.connections, _translated, self._vacuum)

    def reopened(self) -> "Postgres":
        return Postgres(self.url, self.clock, read_only=True)

    async def size_bytes(self) -> int:
        text = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'"
        )
        async with self.read() as session:
            rows = await session.fetch(Sql(text, ("schema",), {}), {"schema": self.schema})
        return rows[0][0]

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self.connections.close()


class UnfinishedPostgres(Postgres, Unfinished):
    """The schema `partial_<schema>`, which a copy fills before it is renamed to `<schema>`."""

    prefix = UNFINISHED + PREFIX
    _lock: schemas.AsyncpgConnection | None = None
    """The session that holds the lock of `reserved`."""

    @asynccontextmanager
    async def reserved(self) -> AsyncGenerator[None]:
        async with schemas.copy_lock(self.direct, self._final) as lock:
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None

    async def prepare(self, store_id: str, created_at: int, log_format: int, *, is_single_file: bool) -> None:
        del is_single_file
        info = DatabaseInfo(store_id, created_at, HEAD, log_format)
        await schemas.prepare_unfinished(self.direct, self._final, info)

    async def append(
        self, session: WriteSession, rows: Mapping[Table, Sequence[Row]], commit_id: int, position: int
    ) -> None:
        assert isinstance(session, PostgresWriter)
        await session.append(rows, commit_id, position)

    async def publish(self, *, is_single_file: bool, receipt: str | None) -> None:
        del is_single_file
        if self._lock is not None:
            await schemas.check_copy_lock(self._lock, self.direct)
        await schemas.publish(self.direct, self._final, receipt)

    async def receipt(self) -> str | None:
        return await schemas.receipt(self.direct, self._final)

    async def acknowledge(self) -> None:
        await schemas.acknowledge(self.direct, self._final)

    async def discard(self) -> None:
        await schemas.discard(self.direct, self._final)

    @property
    def _final(self) -> str:
        return f"{PREFIX}{self.url.partition}"


class PostgresWriter(WriteSession):
    """The session that writes. If its connection breaks, the next batch opens a new connection."""

    def __init__(self, dialect: Postgres) -> None:
        self.dialect = self._dialect = dialect
        self._connection: Any = None
        schema = dialect.schema
        # One message begins the transaction, sets its limits, and takes the lock before any read. The isolation is
        # explicit because a database may default to repeatable read, whose snapshot would be older than the lock.
        self._begin = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
            f" SET LOCAL lock_timeout = '{_LOCK_SECONDS}s';"
            f" SET LOCAL statement_timeout = '{_STATEMENT_SECONDS}s';"
            " SET LOCAL idle_in_transaction_session_timeout = '60s';"
            f"{_POOLED_SETTINGS if dialect.is_pooled else ''}"
            f" SELECT pg_advisory_xact_lock({dialect.lock_key})"
        )
        self._tail = (  # the names of schema and columns do not come from callers
            "(SELECT c FROM (SELECT commit_id, recorded_at, chain_hash, events, rollouts, attempts, spans, resources,"
            f' workers, body_bytes, last_position FROM "{schema}".commits ORDER BY commit_id DESC LIMIT 1) c) AS tail,'
            f' (SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END FROM "{schema}".event_seq),'
            f' (SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END FROM "{schema}".commit_seq),'
            " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,"
            " pg_current_xact_id()::text::bigint,"
            f' (SELECT epoch FROM "{schema}".queue_epoch WHERE id = 1)'
        )
        self._loads: dict[tuple[int, ...], tuple[Sql, Sequence[Sql]]] = {}
        self._writes: dict[tuple[Any, ...], str] = {}
        self._predicted = (0, 0)
        self._transaction = -1
        self._is_busy = False
        self._used_at = 0.0
        self._idle: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def begin(self) -> Tail:
        self._is_busy = True
        with _translated():
            if self._connection is None or self._connection.is_closed():
                self._connection = await _driver.connect(
                    self._dialect.dsn, timeout=10, command_timeout=_ANSWER_SECONDS, **self._dialect.connect_options
                )
                await self._dialect.settle(self._connection)
            await self._connection.execute(self._begin)
            row = await self._connection.fetchrow(f"SELECT {self._tail}")
            assert row is not None  # a SELECT without FROM always returns a row
        tail = self._read_tail(row)
        if row[-1] is None:
            await self._restore_queue_epoch(tail)
        return tail

    async def _restore_queue_epoch(self, tail: Tail) -> None:
        # The row was deleted. A new epoch makes every process read the queue again from its beginning.
        report_lost_queue_epoch()
        tail.queue_epoch = tail.now
        with _translated():
            await self._connection.execute(
                f'INSERT INTO "{self._dialect.schema}".queue_epoch (id, epoch) VALUES (1, {tail.now})'
            )

    def _read_tail(self, row: Row) -> Tail:
        last, next_position, next_commit, now, transaction, epoch = row
        # Postgres numbers writing transactions consecutively. If the number of this transaction directly follows the
        # number of the last transaction of this session, no other session wrote in between.
        is_ours, self._transaction = transaction == self._transaction + 1, transaction
        self._predicted = (next_commit, next_position)
        commit_id, recorded_at, chain, *totals, position = last or (0, 0, bytes(32), 0, 0, 0, 0, 0, 0, 0, 0)
        if next_commit <= commit_id or next_position <= position:
            raise self._behind((commit_id, position), (next_commit - 1, next_position - 1))
        clock = self._dialect.clock
        return Tail(
            commit_id=commit_id,
            recorded_at=recorded_at,
            chain_hash=bytes(chain),
            totals=tuple(totals),
            next_position=next_position,
            next_commit_id=next_commit,
            now=now if clock is None else clock(),
            queue_epoch=epoch,
            is_ours=is_ours,
        )

    def _behind(self, log: tuple[int, int], sequences: tuple[int, int]) -> Incompatible:
        """Return the error for sequences whose next number is already in the log."""
        names = self._dialect.last_numbers().names
        behind = [(name, end, last) for name, end, last in zip(names, log, sequences, strict=True) if last < end]
        calls = ", ".join(f"setval('{name}', {end})" for name, end, _ in behind)
        return Incompatible(
            " and ".join(f"the sequence {name} is at {last}, and the log is at {end}" for name, end, last in behind),
            f"as its owner, run: SELECT {calls}",
        )

    async def load(self, queries: Sequence[Select[*tuple[Any, ...]]], params: Params) -> Sequence[Sequence[NamedRow]]:
        names = tuple(map(id, queries))
        statement = self._loads.get(names)
        if statement is None:
            parts = [self._dialect.sql(query) for query in queries]
            statement = self._loads[names] = (self._dialect.sql(_together(queries)), parts)
        sql, parts = statement
        with _translated():
            row = await self._live.fetchrow(sql.text, *sql.args(_split(params)))
        assert row is not None  # a SELECT without FROM always returns a row
        return [await self._converted(part, params, rows) for part, rows in zip(parts, row, strict=True)]

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        with _translated():
            rows = await self._live.fetch(sql.text, *sql.args(_split(params)))
        return await self._converted(sql, params, rows)

    async def _converted(self, sql: Sql, params: Params, rows: Sequence[Row]) -> Sequence[NamedRow]:
        if sql.places is not None:
            rows = await self._dialect.stored_forms.converted(self, sql, sql.places, params, rows)
        return sql.named(rows)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        async for rows in PostgresReader(self._live, self._dialect).stream(sql, params, batch=batch):
            yield rows

    async def write(self, changes: Changes) -> None:
        await self._write_together(changes)
        for table, rows in changes.inserts.items():
            if len(rows) >= _COPIED_FROM:
                await self._copy(table, rows)

    async def _copy(self, table: Table, rows: Sequence[Row]) -> None:
        names = [column.name for column in table.columns]
        with _translated():
            await self._live.copy_records_to_table(
                table.name, records=rows, columns=names, schema_name=self._dialect.schema
            )

    async def append(self, rows: Mapping[Table, Sequence[Row]], commit_id: int, position: int) -> None:
        """Insert rows of a log that is copied, with their numbers, and set the sequences to the last numbers."""
        for table, some in rows.items():
            await self._copy(table, some)
        schema = self._dialect.schema
        with _translated():
            await self._live.execute(
                f"SELECT setval('\"{schema}\".commit_seq', {commit_id}), setval('\"{schema}\".event_seq', {position})"
            )

    async def _write_together(self, changes: Changes) -> None:
        """Write all changes except long lists of new rows, and advance the sequences, in one statement."""
        few = {table: rows for table, rows in changes.inserts.items() if len(rows) < _COPIED_FROM}
        steps: list[tuple[str, Table | TablePart, Sequence[Row]]] = [
            *(("delete", table, rows) for table, rows in changes.deletes.items()),
            *(("insert", table, rows) for table, rows in few.items()),
            *(("upsert", table, rows) for table, rows in changes.upserts.items()),
            *(("update", part, rows) for part, rows in changes.updates.items()),
        ]
        # The rows contain the numbers that `begin` predicted, because the sequences return these numbers while the lock
        # is held. The sequences can therefore be advanced in the same statement, which saves a round trip.
        positions = len(changes.inserts.get(core_tables.events, ()))
        if not (steps or positions):
            return
        shape = (bool(positions), *((verb, what) for verb, what, _ in steps))
        text = self._writes.get(shape)
        if text is None:
            plain = [(verb, what) for verb, what, _ in steps]
            text = self._writes[shape] = _write_sql(plain, self._dialect, draws=bool(positions))
        args: list[Any] = []
        for _, _, rows in steps:
            args.extend(zip(*rows, strict=True))
        if positions:
            args.append(positions)
        with _translated():
            drawn = await self._live.fetchrow(text, *args)
        if positions:
            self._check_drawn(positions, *drawn)

    def _check_drawn(self, positions: int, commit_id: int, first: int, last: int) -> None:
        if (commit_id, first) != self._predicted or last != first + positions - 1:
            raise Incompatible(
                f"the sequences returned commit {commit_id} and positions {first} to {last}; expected were commit "
                f"{self._predicted[0]} and position {self._predicted[1]}",
                "check that no other program uses these sequences, and that their CACHE is 1",
            )

    async def commit(self) -> None:
        with _translated():
            await self._live.execute("COMMIT")
        self._used()

    async def rollback(self) -> None:
        self._used()
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        try:
            async with asyncio.timeout(5):
                await connection.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 (a broken connection may raise any error; the next batch opens another)
            connection.terminate()
        else:
            self._connection = connection

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._closing is not None:
            await asyncio.wait((self._closing,))
        if self._connection is not None and not self._connection.is_closed():
            await _close(self._connection)

    def _used(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_busy = False
        self._used_at = loop.time()
        if self._idle is None:
            self._idle = loop.call_later(_IDLE_SECONDS, self._let_go_if_idle, loop)

    def _let_go_if_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        until = self._used_at + _IDLE_SECONDS
        self._idle = None
        if self._is_busy:
            return  # the end of the batch starts the timer again
        if loop.time() < until:
            self._idle = loop.call_at(until, self._let_go_if_idle, loop)
            return
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            self._closing = loop.create_task(_close(connection))

    @property
    def _live(self) -> Any:
        if self._connection is None:
            raise Unavailable("the connection to Postgres is gone")
        return self._connection


async def _close(connection: Any) -> None:
    """Close a connection. If Postgres does not answer in time, only this end is closed, which loses nothing."""
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        await connection.close(timeout=_CLOSE_SECONDS)


class PostgresReader(ReadSession):
    """A session that reads, on a connection of the pool or of the writer."""

    def __init__(self, connection: Any, dialect: Postgres) -> None:
        self._connection = connection
        self.dialect = self._dialect = dialect

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        rows = await self._connection.fetch(sql.text, *sql.args(_split(params)))
        return await self._converted(sql, params, rows, can_repeat=True)

    async def _converted(
        self, sql: Sql, params: Params, rows: Sequence[Row], *, can_repeat: bool = False
    ) -> Sequence[NamedRow]:
        if sql.places is not None:
            forms = self._dialect.stored_forms
            rows = await forms.converted(self, sql, sql.places, params, rows, can_repeat=can_repeat)
        return sql.named(rows)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        """Yield rows in batches.

        Outside of a transaction, there is a single batch, because a cursor needs a transaction.
        """
        if not self._connection.is_in_transaction():
            yield await self.fetch(sql, params)
            return
        if self._dialect.is_pooled:
            # The cursors of asyncpg need named prepared statements.
            name = f"rollbook_{next(_cursors)}"
            await self._connection.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {sql.text}", *sql.args(_split(params)))
            while rows := await self._connection.fetch(f"FETCH {batch} FROM {name}"):
                yield await self._converted(sql, params, rows)
            await self._connection.execute(f"CLOSE {name}")
            return
        cursor = await self._connection.cursor(sql.text, *sql.args(_split(params)))
        while rows := await self._fetch_more(cursor, batch):
            yield await self._converted(sql, params, rows)

    async def _fetch_more(self, cursor: Any, batch: int) -> Sequence[Row]:
        with self._connection.observed():
            return await cursor.fetch(batch)


@contextlib.contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except (*_BROKEN, asyncpg.PostgresError, asyncpg.InterfaceError, *MALFORMED) as error:
        if isinstance(error, StoreError) or _is_ours(error):
            raise
        raise translate(error) from error


def _is_ours(error: Exception) -> bool:
    """Return whether a bug in this program, and not the database, caused an error."""
    if isinstance(error, asyncpg.InterfaceError):
        return "connection" not in str(error)
    return isinstance(error, MALFORMED) and not is_malformed(error)


def translate(error: Exception) -> StoreError:
    """Return the error of the store that corresponds to an error of asyncpg."""
    code = getattr(error, "sqlstate", None) or ""
    text = str(error) or type(error).__name__
    if isinstance(error, (asyncpg.InternalClientError, *MALFORMED)) and not isinstance(error, asyncpg.InterfaceError):
        return Unavailable(malformed(error, "the server of the database"))
    if code == "53100" and getattr(error, "severity", None) not in {"FATAL", "PANIC"}:
        # After a PANIC, the server restarts, and it is not known whether a COMMIT took effect.
        return Unavailable.disk_full(f"{text} (on the server of the database)")
    if isinstance(error, (*_BROKEN, asyncpg.InterfaceError)) or code.startswith(_TRANSIENT):
        return Unavailable(f"Postgres cannot answer: {text}")
    if code in {"42501", "25006"}:
        return ReadOnly(f"write ({text})")
    if code in {"3D000", "28000", "28P01"}:
        return Incompatible(f"Postgres refuses the connection: {text}", "correct the URL")
    if code in {"26000", "42P05"}:
        return schemas.pooled_statement(code)
    return Incompatible(f"Postgres refused a statement: {text}", "run `rollbook verify`")


# The parameters that are lists of keys, with the number of columns of each key.
_KEYS = {"spans": 3, "model_calls": 3, "scores": 4, "scans": 4}


def _split(params: Params) -> Params:
    """Return parameters with one more list for each column of keys, because `unnest` needs columns."""
    spread = dict(params)
    for name, width in _KEYS.items():
        if name in params:
            columns = list(zip(*params[name], strict=True)) or [()] * width
            spread.update({f"{name}_{index}": list(column) for index, column in enumerate(columns)})
    return spread


def _together(queries: Any) -> Select[Any]:
    arrays: list[Function[Any]] = []
    for query in queries:
        row = func.row(*query.selected_columns)
        arrays.append(func.array(query.with_only_columns(row, maintain_column_froms=True).scalar_subquery()))
    return select(*arrays)


def _written(verb: str, what: Table | TablePart) -> list[str]:
    if isinstance(what, TablePart):
        return [*what.keys, *what.sets]
    return [column.name for column in (what.primary_key if verb == "delete" else what.columns)]


def _step_sql(verb: str, what: Table | TablePart, target: str, names: Sequence[str], rows: str) -> str:
    table = what.table if isinstance(what, TablePart) else what
    keys = [column.name for column in table.primary_key]
    match = " AND ".join(f"t.{key} = rows.{key}" for key in keys)
    if verb == "delete":
        return f"DELETE FROM {target} t USING {rows} WHERE {match}"
    if isinstance(what, TablePart):
        sets = ", ".join(f"{name} = rows.{name}" for name in what.sets)
        return f"UPDATE {target} t SET {sets} FROM {rows} WHERE {match}"
    columns = ", ".join(names)
    text = f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {rows}"
    if verb == "upsert":
        sets = ", ".join(f"{name} = excluded.{name}" for name in settable(table))
        text += f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sets}"
    return text


def _write_sql(steps: Sequence[tuple[str, Table | TablePart]], dialect: Postgres, *, draws: bool) -> str:
    """Return one statement that executes all steps.

    With `draws`, the statement also advances the sequences of the log.
    """
    parts: list[str] = []
    number = 1
    for index, (verb, what) in enumerate(steps):
        table = what.table if isinstance(what, TablePart) else what
        names = _written(verb, what)
        types = column_types(table)
        lists = ", ".join(f"${number + offset}::{types[name]}[]" for offset, name in enumerate(names))
        number += len(names)
        rows = f"unnest({lists}) AS rows({', '.join(names)})"
        parts.append(f"w{index} AS ({_step_sql(verb, what, dialect.qualified(table), names, rows)})")
    if not draws:
        return f"WITH {', '.join(parts)} SELECT 1"
    schema = dialect.schema
    parts.append(f"drawn AS (SELECT nextval('\"{schema}\".event_seq') AS p FROM generate_series(1, ${number}::int))")
    return f"WITH {', '.join(parts)} SELECT nextval('\"{schema}\".commit_seq'), min(p), max(p) FROM drawn"
