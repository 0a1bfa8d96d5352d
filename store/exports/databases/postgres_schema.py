"""Export to a schema of a Postgres database, in one transaction."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from store.errors import AlreadyExists, Invalid, StoreError, Unavailable
from store.exports.databases.report import DatabaseReport
from store.exports.databases.rows import TableRows
from store.exports.databases.sqlite_tables import ORIGIN
from store.exports.formats.base import ExportOrigin, refused
from store.exports.formats.jsonl import timestamp_of
from store.exports.frames import for_both_stores
from store.exports.redaction import FieldRedaction
from store.exports.schema import SCHEMA_VERSION, Kind, Row, Table, TableColumn
from store.exports.tables import tables_of
from store.exports.views import ExportedView, views_of
from store.interface.store import Store
from store.models.missing_rewards import MissingReward
from store.models.queries import RolloutQuery
from store.runtime import postgres_url
from store.runtime.progress import OnProgress, ignore
from store.runtime.urls import PARTITION, without_passwords

SCHEMA: Final = "exported"

_TYPES: Final[Mapping[Kind, str]] = {
    "text": "text",
    "int64": "bigint",
    "float64": "double precision",
    "bool": "boolean",
    "timestamp": "timestamptz",
    # The type jsonb refuses the character U+0000, which texts of models may contain.
    "json": "json",
    "int64s": "bigint[]",
    "texts": "text[]",
}
_PARTITIONS: Final = "rollbook_"
"""The beginning of the names of schemas that contain stores."""
_CURE: Final = "export to another schema, or overwrite an export with --overwrite"
_INT64: Final = range(-(2**63), 2**63)


@for_both_stores
async def export_postgres(
    store: Store,
    url: str,
    *,
    schema: str = SCHEMA,
    query: RolloutQuery | None = None,
    tables: Sequence[str] | None = None,
    redact: Sequence[str] = (),
    unrewarded: str = "out",
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> DatabaseReport:
    """Export tables and views to a schema of a Postgres database.

    Everything is written in one transaction. Until the transaction is committed, other sessions see the earlier state
    of the schema. If the call is stopped, the schema stays unchanged.

    Args:
        store: the store. With a blocking store, the function returns the report itself and not a coroutine.
        url: the URL of the database.
        schema: the name of the schema.
        query: the conditions on rollouts, `as_at` and `reward_version`; None for all rollouts at the end of the log.
        tables: the names of the tables; None for all.
        redact: the fields to leave out; see `FieldRedaction`.
        unrewarded: see `export_store`. The table `export_origin` has the choice.
        overwrite: whether to replace the schema of an earlier export.
        on_progress: called with the number of listed rollouts.

    Raises:
        AlreadyExists: the schema exists, and `overwrite` is false or the schema was not written by an export.
        Invalid: an argument is invalid, or Postgres cannot store a value.
        Unavailable: the database cannot be reached, or refused a statement.
        Unsupported: the store has no log.
    """
    import asyncpg  # pyright: ignore[reportMissingTypeStubs] - asyncpg has no type hints

    driver: Any = asyncpg
    begun = time.perf_counter()
    query = RolloutQuery() if query is None else query
    chosen = tables_of(tables)
    dsn = _address(url)
    if not PARTITION.fullmatch(schema) or schema.startswith(_PARTITIONS):
        raise Invalid("schema", f"{schema!r} must match [a-z][a-z0-9_]{{0,39}}, and cannot begin with {_PARTITIONS}")
    moment = await store.log.position(query.as_at)
    missing = MissingReward.parse(unrewarded)
    origin = ExportOrigin(moment.store_id, moment.position, str(missing))
    redaction = FieldRedaction(redact)
    rows = TableRows(
        store, query, moment.position, chosen, redaction=redaction, missing=missing, on_progress=on_progress
    )
    counts = Counter[str]()
    try:
        connection = await driver.connect(dsn)
        try:
            async with connection.transaction():
                await _create(connection, schema, rows.tables, overwrite=overwrite)
                async for batch in rows.batches():
                    for table in rows.tables:
                        await _insert(connection, schema, table, batch[table.name])
                        counts[table.name] += len(batch[table.name])
                await _finish(connection, schema, rows.tables, origin)
        finally:
            await connection.close()
    except StoreError:
        raise
    except (driver.PostgresError, driver.InterfaceError, OSError) as error:
        raise Unavailable(f"the export to {without_passwords(url)} stopped: {error}; repeat the command") from error
    return DatabaseReport(
        database=without_passwords(url),
        store_id=origin.store_id,
        position=origin.position,
        rollouts=rows.rollouts,
        rows={table.name: counts[table.name] for table in chosen},
        seconds=time.perf_counter() - begun,
    )


def _address(url: str) -> str:
    """Return the address of the database for the driver."""
    if url.partition("://")[0] not in postgres_url.SCHEMES:
        raise Invalid(
            "url", f"{without_passwords(url)!r} is not the URL of a Postgres database: postgresql://host/name"
        )
    address = postgres_url.split(url)
    options = postgres_url.checked_options(address)
    if "partition" in options:
        raise Invalid("url", "a partition is a store; leave it out, and name the schema of the export")
    return postgres_url.driver_address(address, options)


async def _create(connection: Any, schema: str, tables: Sequence[Table], *, overwrite: bool) -> None:
    if await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema):
        if not overwrite:
            raise AlreadyExists("schema", schema, _CURE)
        if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.{ORIGIN}") is None:
            raise AlreadyExists("schema that no export wrote", schema, "export to another schema")
        await connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
    await connection.execute(f'CREATE SCHEMA "{schema}"')
    await connection.execute(f'SET LOCAL search_path TO "{schema}"')
    for table in tables:
        columns = ", ".join(
            f"{column.name} {_TYPES[column.kind]}{'' if column.is_nullable else ' NOT NULL'}"
            for column in table.columns
        )
        await connection.execute(f"CREATE TABLE {table.name} ({columns})")
        await _describe(connection, "TABLE", table)
    for view in views_of(tables):
        await connection.execute(view.statement)
        await _describe(connection, "VIEW", view)


async def _describe(connection: Any, kind: str, source: Table | ExportedView) -> None:
    """Store the descriptions of a table or view and of its columns as comments, which clients show."""
    comments = [
        f"COMMENT ON {kind} {source.name} IS {_literal(source.description)}",
        *(
            f"COMMENT ON COLUMN {source.name}.{column.name} IS {_literal(column.description)}"
            for column in source.columns
        ),
    ]
    await connection.execute(";".join(comments))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def _insert(connection: Any, schema: str, table: Table, rows: Sequence[Row]) -> None:
    if not rows:
        return
    converters = [_conversion(column) for column in table.columns]
    records: list[list[Any]] = []
    for row in rows:
        try:
            records.append(
                [
                    value if convert is None or value is None else convert(value)
                    for value, convert in zip(row, converters, strict=True)
                ]
            )
        except (OverflowError, ValueError):
            raise _refused(table, row) from None
    await connection.copy_records_to_table(table.name, schema_name=schema, records=records)


def _refused(table: Table, row: Row) -> Exception:
    """Return the error for the first value of a row that Postgres cannot store."""
    for column, value in zip(table.columns, row, strict=True):
        convert = _conversion(column)
        try:
            if convert is not None and value is not None:
                convert(value)
        except (OverflowError, ValueError) as reason:
            return refused(table, column, row, value, str(reason))
    raise AssertionError(table.name)


def _conversion(column: TableColumn) -> Callable[[Any], Any] | None:
    """Return a function that converts the values of a column for the driver; None if they need no conversion."""
    match column.kind:
        case "json":
            return bytes.decode
        case "timestamp":
            return timestamp_of
        case "text":
            return _text
        case "int64":
            return _integer
        case _:
            return None


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError("Postgres has no texts with U+0000")
    value.encode()
    return value


def _integer(value: int) -> int:
    if value not in _INT64:
        raise OverflowError("it needs more than 64 bits")
    return value


async def _finish(connection: Any, schema: str, tables: Sequence[Table], origin: ExportOrigin) -> None:
    for table in tables:
        await connection.execute(f"CREATE INDEX {table.name}_rollout_id ON {table.name} (rollout_id)")
        await connection.execute(f"ANALYZE {table.name}")
    columns = "store_id text, position bigint, schema_version bigint, unrewarded text"
    await connection.execute(f"CREATE TABLE {ORIGIN} ({columns})")
    row = (origin.store_id, origin.position, SCHEMA_VERSION, origin.unrewarded)
    await connection.copy_records_to_table(ORIGIN, schema_name=schema, records=[row])
