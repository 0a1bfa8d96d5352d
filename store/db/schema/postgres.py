"""Opening, creation and upgrade of a partition on Postgres.

To open a partition means to recognise its schema or to create the schema. Only `migrate` upgrades an existing schema.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from store.db.schema import ddl, history
from store.db.schema.history import MARKS, DatabaseInfo, read_info, refuse_behind
from store.db.tables.core import LOG, metadata
from store.db.url import StoreURL
from store.errors import Conflict, Incompatible, Invalid, NotFound, ReadOnly, StoreError, Unavailable
from store.runtime.clock import Clock, system_clock
from store.runtime.urls import DEFAULT_PARTITION

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

logger = logging.getLogger("store.db.schema")

PREFIX = "rollbook_"
"""The prefix of the schema of every partition."""
UNFINISHED = "partial_"
"""The prefix of the schema that a copy fills, before the name of the partition's schema."""
OLDEST = 14
"""The oldest supported major version of Postgres."""

MALFORMED = (AttributeError, LookupError, ValueError, BufferError, ArithmeticError, AssertionError)
"""The errors that asyncpg's own code may raise if a server sends a message that violates the protocol."""

POOLER_REMEDY = (
    "if the URL leads to a connection pooler such as pgbouncer, give the address of the database server as ?direct=URL"
)

_LISTED = "`rollbook partitions ls` shows the partitions"
_CONNECT_SECONDS = 10
_CLOSE_SECONDS = 5
# Postgres ends each statement of `connected` before this time. This limit is for a server that does not answer.
_ANSWER_SECONDS = 65
# The wait for another process that makes the same copy, in seconds, and the time between two attempts.
_COPY_LOCK_SECONDS = 5.0
_COPY_LOCK_PAUSE = 0.05
# Prefixes of the SQLSTATE of temporary errors: connection, resources, shutdown, conflict, and locks. The same call may
# succeed later.
_TRANSIENT = ("08", "53", "57P", "40001", "40P01", "55P03", "57014", "25P03")
_TABLES = (
    "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')"
)


class AsyncpgConnection(Protocol):
    """The methods of asyncpg's connection that this module uses."""

    async def execute(self, query: str) -> str:
        """Run a script."""
        ...

    async def fetch(self, query: str, *args: object) -> list[Any]:
        """Return all rows of a statement."""
        ...

    def get_server_pid(self) -> int:
        """Return the process id of the session, as the server or a connection pooler reported it."""
        ...

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 (the name is asyncpg's)
        """End the session. Raise `TimeoutError` if the server does not answer within `timeout` seconds."""
        ...


def lock_key(schema: str) -> int:
    """Return the key of the advisory lock that a session must hold to write to a partition or to change its schema."""
    return int.from_bytes(hashlib.sha256(schema.encode()).digest()[:8], "big", signed=True)


def use_key(schema: str) -> int:
    """Return the key of the advisory lock that sessions share while they listen to the commits of a partition."""
    return lock_key(f"use of {schema}")


async def prepare_postgres(
    dsn: str, schema: str, *, create: bool, read_only: bool, clock: Clock = system_clock
) -> DatabaseInfo:
    """Check that this program can use a partition, and return its description.

    A missing partition is created if `create` is True and `read_only` is False. If several processes create a partition
    at the same time, it is created once. The connection is closed afterwards.

    Raises:
        NotFound: the partition does not exist and may not be created, or the database does not exist.
        Incompatible: Postgres is too old or not in UTF-8; the partition is older or newer than this program; the role
            lacks a permission.
        Invalid: the URL or its password is wrong.
        ReadOnly: the server accepts no writes.
        Unavailable: the server cannot be reached, or cannot answer now.
    """
    with_partition = shown(dsn, schema)
    async with connected(dsn) as connection:
        info = await inspect_postgres(connection, schema, with_partition)
        if info is None and (read_only or not create):
            text = (
                f"there is no store at {with_partition}; `rollbook migrate --db URL` and open_store(url)"
                " create an empty one"
            )
            raise NotFound("store", with_partition, text)
        if info is None:
            info, _ = await create_postgres(connection, schema, with_partition, DatabaseInfo.new(clock))
    return refuse_behind(info, with_partition)


async def inspect_postgres(connection: AsyncpgConnection, schema: str, name: str) -> DatabaseInfo | None:
    """Return the description of a partition; None if its schema is missing or has no tables."""
    tables = {name for (name,) in await connection.fetch(_TABLES, schema)}
    if not tables:
        return None
    if not tables >= MARKS:
        raise Incompatible(
            f"the schema {schema} contains tables that are not a Rollbook store", "choose another partition"
        )
    # One statement reads all values, because a migration may commit at any moment and change some of them.
    ((revisions, *infos),) = await connection.fetch(
        f'SELECT ARRAY(SELECT version_num::text FROM "{schema}".alembic_version),'  # noqa: S608 (a checked name)
        f' ARRAY(SELECT store_id FROM "{schema}".store_info), ARRAY(SELECT created_at FROM "{schema}".store_info),'
        f' ARRAY(SELECT log_format FROM "{schema}".store_info)'
    )
    return read_info(revisions, list(zip(*infos, strict=True)), name)


async def create_postgres(
    connection: AsyncpgConnection, schema: str, name: str, info: DatabaseInfo | None = None
) -> tuple[DatabaseInfo, bool]:
    """Create a partition if it is missing. Return its description, and whether this call created the partition.

    `info` is the description of a new partition; with None, a new partition gets a new id.
    """
    # The isolation is explicit because a database may default to repeatable read. The transaction would then not see a
    # partition that another process committed while this process waited for the lock.
    await connection.execute(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '30s';"
        f" SELECT pg_advisory_xact_lock({lock_key(schema)})"
    )
    existing = await inspect_postgres(connection, schema, name)
    if existing is not None:
        await connection.execute("ROLLBACK")
        return existing, False
    info = info or DatabaseInfo.new(system_clock)
    # The schema may exist and be empty: an owner may have created it for a role that may not create schemas.
    exists = await connection.fetch("SELECT FROM pg_namespace WHERE nspname = $1", schema)
    script = (
        *(() if exists else (f'CREATE SCHEMA "{schema}"',)),
        f'SET LOCAL search_path TO "{schema}"',
        *ddl.creation("postgresql"),
    )
    await connection.execute(";\n".join(script))
    await connection.fetch(
        "INSERT INTO store_info (store_id, created_at, log_format) VALUES ($1, $2, $3)",
        *(info.store_id, info.created_at, info.log_format),
    )
    await connection.execute("COMMIT")
    logger.info("created store %s in %s", info.store_id, name)
    return info, True


@asynccontextmanager
async def copy_lock(dsn: str, schema: str) -> AsyncGenerator[AsyncpgConnection]:
    """Let no other call fill the unfinished copy of the partition `schema` during the block.

    The yielded session holds the lock. If this session breaks, the lock is lost: see `check_copy_lock`.

    Raises:
        Unavailable: another call fills the copy.
        StoreError: the errors of `prepare_postgres`.
    """
    async with store_errors(dsn):
        connection = await _connect(dsn, command_timeout=_ANSWER_SECONDS)
    try:
        async with store_errors(dsn):
            # The session is idle until the copy is complete.
            await connection.execute("SET idle_session_timeout = 0")
            await _lock_copy(connection, schema)
        yield connection
    finally:
        with suppress(Exception):
            await connection.close(timeout=_CLOSE_SECONDS)


async def _lock_copy(connection: AsyncpgConnection, schema: str) -> None:
    key = lock_key(f"copy to {schema}")
    deadline = time.monotonic() + _COPY_LOCK_SECONDS
    while not await _value_of(connection, "SELECT pg_try_advisory_lock($1)", key):
        if time.monotonic() > deadline:
            raise history.refuse_reserved(schema)
        await asyncio.sleep(_COPY_LOCK_PAUSE)


async def check_copy_lock(connection: AsyncpgConnection, dsn: str) -> None:
    """Raise `Unavailable` if the session that `copy_lock` yielded is gone."""
    async with store_errors(dsn):
        await connection.execute("SELECT 1")


async def prepare_unfinished(dsn: str, schema: str, info: DatabaseInfo) -> None:
    """Create the unfinished copy that becomes the partition `schema`, unless an earlier run has created it.

    The unfinished copy is the schema `partial_<schema>`, which is not the schema of any partition.

    Args:
        dsn: the address of the database.
        schema: the schema of the partition. It must not exist.
        info: the description of the store that is copied.

    Raises:
        AlreadyExists: the schema of the partition exists.
        Incompatible: the unfinished copy belongs to another store, or an older version of this program created it.
        StoreError: the errors of `prepare_postgres`.
    """
    partial = UNFINISHED + schema
    async with connected(dsn) as connection:
        await _refuse_existing(connection, schema)
        copy, created = await create_postgres(connection, partial, f"the schema {partial}", info)
    if not created:
        history.refuse_foreign(copy, info, f"the schema {partial}", f"drop it: DROP SCHEMA {partial} CASCADE")


async def publish(dsn: str, schema: str, receipt: str | None) -> None:
    """Rename the complete copy to `schema`, and store its receipt as the comment of the schema.

    Raises:
        AlreadyExists: the schema exists now.
    """
    async with connected(dsn) as connection:
        # Processes that create a partition hold the same lock, so the schema does not appear before the renaming.
        await connection.execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '30s';"
            f" SELECT pg_advisory_xact_lock({lock_key(schema)})"
        )
        await _refuse_existing(connection, schema)
        # A comment cannot be a parameter.
        ((comment,),) = await connection.fetch("SELECT quote_nullable($1::text)", receipt)
        await connection.execute(
            f'ALTER SCHEMA "{UNFINISHED}{schema}" RENAME TO "{schema}";'
            f' COMMENT ON SCHEMA "{schema}" IS {comment}; COMMIT'
        )


async def receipt(dsn: str, schema: str) -> str | None:
    """Return the receipt of a published copy; None if the schema has none."""
    async with connected(dsn) as connection:
        query = "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = $1"
        rows = await connection.fetch(query, schema)
    return next((text for (text,) in rows), None)


async def acknowledge(dsn: str, schema: str) -> None:
    """Remove the receipt of a published copy."""
    async with connected(dsn) as connection:
        await connection.execute(f'COMMENT ON SCHEMA "{schema}" IS NULL')


async def discard(dsn: str, schema: str) -> None:
    """Delete the unfinished copy of the partition `schema`."""
    async with connected(dsn) as connection:
        await connection.execute(
            f'SET client_min_messages = warning; DROP SCHEMA IF EXISTS "{UNFINISHED}{schema}" CASCADE'
        )


async def _refuse_existing(connection: AsyncpgConnection, schema: str) -> None:
    if await connection.fetch("SELECT FROM pg_namespace WHERE nspname = $1", schema):
        raise history.refuse_existing("schema", schema)


async def partitions(connection: AsyncpgConnection) -> list[str]:
    """Return the schemas of all partitions in a database, sorted."""
    rows = await connection.fetch(
        "SELECT n.nspname::text FROM pg_namespace n WHERE starts_with(n.nspname, $1)"
        " AND 2 = (SELECT count(*) FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = ANY($2::text[]))"
        " ORDER BY 1",
        PREFIX,
        sorted(MARKS),
    )
    return [name for (name,) in rows]


async def drop(dsn: str, schema: str) -> list[str]:
    """Drop a partition and revoke the keys that are valid only for it, in one transaction; return the ids of the keys.

    Raises:
        NotFound: the partition does not exist.
        Incompatible: the schema is not a store, or the role does not own it.
        Conflict: another session uses the partition.
        Unavailable: the server does not answer.
    """
    async with connected(dsn) as connection:
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '2s'")
        for key in (use_key(schema), lock_key(schema)):
            if not await _value_of(connection, "SELECT pg_try_advisory_xact_lock($1)", key):
                raise _in_use(schema, await _holders(connection, key))
        tables = {name for (name,) in await connection.fetch(_TABLES, schema)}
        if not tables:
            raise NotFound("partition", schema, f"there is no partition {schema.removeprefix(PREFIX)}; {_LISTED}")
        if not tables >= MARKS:
            raise Incompatible(f"the schema {schema} contains tables that are not a Rollbook store", _LISTED)
        revoked = await _revoke_keys(connection, schema.removeprefix(PREFIX))
        try:
            await connection.execute(f'SET LOCAL client_min_messages = warning; DROP SCHEMA "{schema}" CASCADE; COMMIT')
        except Exception as error:
            state = getattr(error, "sqlstate", None)
            if state in {"55P03", "40P01"}:
                raise _in_use(schema, []) from error
            if state == "42501":
                raise Incompatible(f"the role may not drop the schema ({error})", "use the URL of its owner") from error
            raise
    return revoked


def _in_use(partition: str, holders: Sequence[str]) -> Conflict:
    """Return the error for a partition that other processes use; `holders` describes known processes."""
    names = f" ({', '.join(holders)})" if holders else ""
    return Conflict(f"other processes use {partition}{names}", "stop them, and drop the partition again")


async def _holders(connection: AsyncpgConnection, key: int) -> list[str]:
    """Return descriptions of the sessions that hold an advisory lock."""
    rows = await connection.fetch(
        "SELECT concat_ws(' ', 'pid', l.pid::text, a.usename::text, coalesce(host(a.client_addr), 'local'),"
        " nullif(a.application_name, '')) FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.classid::bigint << 32 | l.objid::bigint = $1 ORDER BY 1",
        key,
    )
    return [description for (description,) in rows]


async def _revoke_keys(connection: AsyncpgConnection, partition: str) -> list[str]:
    table = f'"{PREFIX}{DEFAULT_PARTITION}".keys'
    if not await _value_of(connection, "SELECT to_regclass($1) IS NOT NULL", table):
        return []
    rows = await connection.fetch(
        f"UPDATE {table} SET revoked_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"  # noqa: S608 (a fixed name)
        " WHERE partition = $1 AND revoked_at IS NULL RETURNING key_id",
        partition,
    )
    return sorted(key_id for (key_id,) in rows)


async def upgrade_postgres(dsn: str, schema: str) -> None:
    """Upgrade a partition to the newest revision, in one transaction."""
    async with migrating_postgres(dsn, schema) as connection, history.turn_in_loop():
        await connection.run_sync(history.run_migrations)


@asynccontextmanager
async def migrating_postgres(dsn: str, schema: str) -> AsyncGenerator["AsyncConnection"]:
    """Open a connection for alembic that holds the lock of a partition, so that no other session writes.

    Commit at the end.
    """
    from sqlalchemy import NullPool, text
    from sqlalchemy.ext.asyncio import create_async_engine

    # The search path contains only the schema of the partition, so alembic can use names without a schema.
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: _connect(dsn, search_path=f'"{schema}"'), poolclass=NullPool
    )
    try:
        async with engine.connect() as connection:
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
            await connection.execute(text("SET LOCAL lock_timeout = '30s'"))
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock_key(schema)})
            yield connection
            await connection.commit()
    finally:
        await engine.dispose()


async def grant(connection: AsyncpgConnection, schema: str, role: str) -> None:
    """Grant a role the rights to use a partition. The role may read the log and append to it, but not change its rows.

    Raises:
        NotFound: the role does not exist.
    """
    if not await connection.fetch("SELECT FROM pg_roles WHERE rolname = $1", role):
        raise NotFound("role", role, f"role {role!r} does not exist; create it first: CREATE ROLE … LOGIN")
    quoted = '"' + role.replace('"', '""') + '"'
    log = {table.name for table in LOG}
    grants = {
        "SELECT, INSERT": sorted(log),
        "SELECT": sorted(MARKS),
        "SELECT, INSERT, UPDATE, DELETE": sorted(metadata.tables.keys() - log - MARKS),
    }
    statements = [f"GRANT USAGE ON SCHEMA {schema}", f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema}"]
    for rights, names in grants.items():
        statements.append(f"GRANT {rights} ON {', '.join(f'{schema}.{name}' for name in names)}")
    await connection.execute(";\n".join(f"{statement} TO {quoted}" for statement in statements))


def shown(dsn: str, schema: str) -> str:
    """Return the URL of a partition without the password."""
    partition = f"{'&' if '?' in dsn else '?'}partition={schema.removeprefix(PREFIX)}"
    return StoreURL("postgresql", dsn + partition).shown


@asynccontextmanager
async def connected(dsn: str) -> AsyncGenerator[AsyncpgConnection]:
    """Open a connection for the duration of the block.

    Errors of Postgres in the block are raised as errors of the store.
    """
    async with store_errors(dsn):
        connection = await _connect(dsn, command_timeout=_ANSWER_SECONDS)
        try:
            yield connection
        finally:
            # If the server does not answer when the session ends, that error must not hide the result or the error of
            # the block.
            with suppress(Exception):
                await connection.close(timeout=_CLOSE_SECONDS)


@asynccontextmanager
async def store_errors(dsn: str) -> AsyncGenerator[None]:
    """Convert errors of the network and of asyncpg to errors of the store, also if SQLAlchemy wraps them."""
    asyncpg: Any = import_module("asyncpg")
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        # An error of SQLAlchemy has the error of its adapter in `orig`. The cause of the adapter's error is the error
        # of asyncpg.
        adapted: BaseException = getattr(error, "orig", None) or error
        cause = (adapted.__cause__ or adapted) if adapted is not error else error
        name = StoreURL("postgresql", dsn).shown
        if isinstance(cause, asyncpg.exceptions.ClientConfigurationError):
            raise Invalid("url", f"{cause}; write postgresql://user@host/database") from error
        if isinstance(cause, (OSError, TimeoutError, asyncpg.InterfaceError)):
            reason = str(cause) or type(cause).__name__
            raise Unavailable(f"Postgres at {name} cannot be reached ({reason})") from error
        if isinstance(cause, asyncpg.InternalClientError) or is_malformed(cause):
            raise Unavailable(malformed(cause, f"the server at {name}")) from error
        state: str | None = getattr(cause, "sqlstate", None)
        if state is None:
            raise
        raise _translated(state, str(adapted), dsn) from error


def is_malformed(error: BaseException) -> bool:
    """Return whether asyncpg's own code failed, which happens if a message of the server violates the protocol.

    asyncpg raises `InternalClientError` for most of these messages. For the other messages, its code fails with a
    built-in exception. A bug in this program may raise the same exception types, but outside asyncpg's code.
    """
    if not isinstance(error, MALFORMED) or error.__traceback__ is None:
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    return "asyncpg" in Path(last.tb_frame.f_code.co_filename).parts


def malformed(error: BaseException, server: str) -> str:
    """Return the text of the error `Unavailable` for a message of the server that asyncpg cannot read."""
    cause = f"{type(error).__name__}: {error}"
    return (
        f"{server} sent a message that is not of the Postgres protocol ({cause});"
        " check that host and port are those of Postgres, and any proxy between it and this program"
    )


async def _connect(dsn: str, *, command_timeout: float | None = None, **settings: str) -> AsyncpgConnection:
    asyncpg: Any = import_module("asyncpg")
    # Programs that use only SQLite do not import the driver.
    from store.db.schema.postgres_types import TypesConnection

    connection = await asyncpg.connect(
        dsn,
        timeout=_CONNECT_SECONDS,
        command_timeout=command_timeout,
        server_settings=settings,
        connection_class=TypesConnection,
    )
    try:
        _refuse_unsupported(connection.get_server_version().major, connection.get_settings().server_encoding)
    except Incompatible:
        await connection.close()
        raise
    return connection


def _refuse_unsupported(version: int, encoding: str) -> None:
    if version < OLDEST:
        raise Incompatible(
            f"this is Postgres {version}; the oldest supported version is {OLDEST}", "upgrade the server"
        )
    if encoding != "UTF8":
        reason = f"the database's encoding is {encoding}, which cannot store all text"
        raise Incompatible(reason, "create a database with ENCODING 'UTF8'")


def _translated(state: str, message: str, dsn: str) -> StoreError:
    if state.startswith(_TRANSIENT):
        return Unavailable(f"Postgres cannot answer at the moment ({message})")
    match state:
        case "3D000":
            return NotFound("database", StoreURL("postgresql", dsn).shown, f"{message}; make it first: createdb")
        case "28000" | "28P01":
            return Invalid("url", f"{message}; give the right user and password")
        case "25006":
            error = ReadOnly("creating the store")
            # The default message of `ReadOnly` names the option `read_only` as the cause. Here the cause is the server.
            error.args = (
                f"the server does not accept writes ({message}); use the primary, or open with read_only=True",
            )
            return error
        case "42501":
            return Incompatible(
                f"the role may not do this ({message})",
                "let the owner run: rollbook migrate --db URL --app-role ROLE",
            )
        case "26000" | "42P05":
            return pooled_statement(state)
        case _:
            return Incompatible(f"Postgres refused a statement ({message})", "check the server's log")


def pooled_statement(state: str) -> Incompatible:
    """Return the error for a prepared statement that the session does not know, or that another client prepared."""
    reason = "another client prepared one with the same name" if state == "42P05" else "the session does not know it"
    return Incompatible(f"Postgres refused a prepared statement, because {reason}", POOLER_REMEDY)


async def _value_of(connection: AsyncpgConnection, query: str, *params: Any) -> Any:
    """Return the only value of a query's only row."""
    ((value,),) = await connection.fetch(query, *params)
    return value
