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

from store.db.schema.history import LOG_FORMAT
from store.db.schema.postgres import PREFIX, created_schema, migrating_postgres
from store.db.schema.sqlite import migrating_sqlite
from store.db.tables.core import metadata
from store.db.url import StoreURL, parse


def run(connection: Connection) -> None:
    """Run the command of alembic inside the transaction of the connection."""
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


def run_and_describe(connection: Connection) -> None:
    """Run the command of alembic.

    If it has created a store, insert the description of the store, as `open_store` does.
    """
    run(connection)
    if inspect(connection).has_table("store_info"):
        description = {"id": secrets.token_hex(8), "at": time.time_ns() // 1000, "format": LOG_FORMAT}
        insert = (
            "INSERT INTO store_info (store_id, created_at, log_format) SELECT :id, :at, :format"
            " WHERE NOT EXISTS (SELECT 1 FROM store_info)"
        )
        connection.execute(text(insert), description)


async def on_postgres(dsn: str, schema: str, *, creates: bool) -> None:
    """Run the command of alembic on a partition, which is one store in its own schema.

    If `creates` is True and the schema is missing, create the schema first.
    """
    if creates:
        await created_schema(dsn, schema)
    async with migrating_postgres(dsn, schema) as connection:
        await connection.run_sync(run_and_describe)


def on_sqlite(url: StoreURL, *, creates: bool) -> None:
    """Run the command of alembic on a file. If `creates` is True and the file is missing, create the file first."""
    assert url.path is not None  # the URL of a file has a path
    if creates:
        with closing(sqlite3.connect(url.path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    elif not url.path.exists():
        raise CommandError(f"there is no store at {url.shown}; create it: alembic -x db={url.shown} upgrade head")
    with migrating_sqlite(url.path) as connection:
        run_and_describe(connection)


def from_command_line() -> None:
    """Run the command of alembic on the database that `-x db=URL` or the environment variable `ROLLBOOK_DB` names."""
    given = context.get_x_argument(as_dictionary=True).get("db") or os.environ.get("ROLLBOOK_DB")
    if given is None:
        raise CommandError("no database is given; write alembic -x db=sqlite:///run.db …, or set ROLLBOOK_DB")
    url = parse(given)
    creates = context.config.cmd_opts is not None and context.config.cmd_opts.cmd[0].__name__ == "upgrade"
    if url.dsn is not None:
        asyncio.run(on_postgres(url.dsn, PREFIX + url.partition, creates=creates))
    elif url.path is not None:
        on_sqlite(url, creates=creates)
    else:
        raise CommandError(f"{url.shown} has no schema to migrate; write sqlite:///… or postgresql://…")


if isinstance(prepared := context.config.attributes.get("connection"), Connection):
    run(prepared)
else:
    from_command_line()
