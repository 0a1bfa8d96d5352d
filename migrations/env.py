"""Environment in which alembic runs its commands.

If Rollbook calls alembic, it passes a connection. On alembic's own command line, `-x db=URL` selects the database.
"""

import asyncio
import os
import secrets
import sqlite3
import time
from contextlib import closing

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection, inspect, text

from store.db.schema import ddl
from store.db.schema.history import HEAD, LOG_FORMAT
from store.db.schema.postgres import PREFIX, migrating_postgres
from store.db.schema.postgres import store_errors as postgres_errors
from store.db.schema.sqlite import migrating_sqlite
from store.db.schema.sqlite_files import file_lock
from store.db.schema.sqlite_files import store_errors as sqlite_errors
from store.db.tables.core import metadata
from store.db.url import StoreURL, parse
from store.errors import StoreError

# Only some files of SQLite have these tables, and no migration changes them.
_BESIDE = frozenset({"partition_file", "backup_seal"})


def is_migrated(name: str | None, kind: str, _: object) -> bool:
    """Return whether migrations create and change an object of the database."""
    return kind != "table" or name not in _BESIDE


def run(connection: Connection) -> None:
    """Run the command of alembic inside the transaction of the connection."""
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True, include_name=is_migrated)
    with context.begin_transaction():
        context.run_migrations()


def run_and_describe(connection: Connection) -> None:
    """Run the command of alembic.

    If it has created a store, insert the description of the store, as `open_store` does.
    """
    run(connection)
    if inspect(connection).has_table("store_info"):
        insert = (
            "INSERT INTO store_info (store_id, created_at, log_format) SELECT :id, :at, :format"
            " WHERE NOT EXISTS (SELECT 1 FROM store_info)"
        )
        connection.execute(text(insert), description())


def description() -> dict[str, str | int]:
    """Return the description of a new store."""
    return {"id": secrets.token_hex(8), "at": time.time_ns() // 1000, "format": LOG_FORMAT}


async def on_postgres(dsn: str, schema: str, *, creates: bool) -> None:
    """Run the command of alembic on a partition, which is one store in its own schema.

    If `creates` is True and the schema is missing, create the schema first.
    """
    async with postgres_errors(dsn), migrating_postgres(dsn, schema) as connection:
        if creates:
            # The connection holds the lock of the partition, so commands that run at the same time wait.
            await connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
        await connection.run_sync(run_and_describe)


def on_sqlite(url: StoreURL, *, creates: bool) -> None:
    """Run the command of alembic on a file. If `creates` is True and the file is missing, create the file first."""
    assert url.path is not None  # the URL of a file has a path
    if not creates and not url.path.exists():
        raise CommandError(f"there is no store at {url.shown}; create it: alembic -x db={url.shown} upgrade head")
    # Commands that run at the same time wait for the lock. SQLite itself does not wait when the journal mode changes.
    with sqlite_errors(url.path), file_lock(url.path):
        if creates:
            with closing(sqlite3.connect(url.path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        with migrating_sqlite(url.path) as connection:
            run_and_describe(connection)


def print_sql(url: StoreURL) -> None:
    """Print the statements that create a store.

    Raises:
        CommandError: the command is not `upgrade head` from the beginning. The revisions read and convert rows, so no
            list of statements can upgrade a store.
    """
    if context.get_starting_revision_argument() is not None or context.get_revision_argument() != HEAD:
        raise CommandError("--sql can only print the creation of a store: upgrade head --sql; upgrade without --sql")
    values = description()
    kind = "sqlite" if url.dsn is None else "postgresql"
    schema = f'"{PREFIX}{url.partition}"'
    begin = (
        ("PRAGMA journal_mode = WAL", "BEGIN IMMEDIATE")
        if kind == "sqlite"
        else ("BEGIN", f"CREATE SCHEMA IF NOT EXISTS {schema}", f"SET LOCAL search_path TO {schema}")
    )
    insert = (
        "INSERT INTO store_info (store_id, created_at, log_format)"  # noqa: S608 (values of this module)
        f" VALUES ('{values['id']}', {values['at']}, {values['format']})"
    )
    context.configure(dialect_name=kind)
    for statement in (*begin, *ddl.creation(kind), insert, "COMMIT"):
        context.static_output(f"{statement};")


def from_command_line() -> None:
    """Run the command of alembic on the database that `-x db=URL` or the environment variable `ROLLBOOK_DB` names."""
    given = context.get_x_argument(as_dictionary=True).get("db") or os.environ.get("ROLLBOOK_DB")
    if given is None:
        raise CommandError("no database is given; write alembic -x db=sqlite:///run.db …, or set ROLLBOOK_DB")
    try:
        run_on(parse(given))
    except StoreError as error:
        raise CommandError(str(error)) from None


def run_on(url: StoreURL) -> None:
    """Run the command of alembic on a database, or print its statements."""
    creates = context.config.cmd_opts is not None and context.config.cmd_opts.cmd[0].__name__ == "upgrade"
    if url.dsn is None and url.path is None:
        raise CommandError(f"{url.shown} has no schema to migrate; write sqlite:///… or postgresql://…")
    if context.is_offline_mode():
        print_sql(url)
    elif url.dsn is not None:
        asyncio.run(on_postgres(url.options.get("direct", url.dsn), PREFIX + url.partition, creates=creates))
    else:
        on_sqlite(url, creates=creates)


if isinstance(prepared := context.config.attributes.get("connection"), Connection):
    run(prepared)
else:
    from_command_line()
