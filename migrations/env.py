"""What alembic runs: on a connection that Rollbook gives it, or, from alembic's own command line, on `-x db=URL`."""

import asyncio

from alembic import context
from sqlalchemy import Connection

from store.db.schema.postgres import PREFIX, migrating_postgres
from store.db.schema.sqlite import migrating_sqlite
from store.db.tables.core import metadata
from store.db.url import parse


def run(connection: Connection) -> None:
    """Run the command inside the transaction of the connection."""
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


async def on_postgres(dsn: str, schema: str) -> None:
    """Run the command on a partition."""
    async with migrating_postgres(dsn, schema) as connection:
        await connection.run_sync(run)


def from_command_line() -> None:
    """Run the command on the database that `-x db=URL` names."""
    given = context.get_x_argument(as_dictionary=True).get("db")
    if given is None:
        raise SystemExit("say which database, as in: alembic -x db=sqlite:///scratch.db check")
    url = parse(given)
    if url.dsn is not None:
        asyncio.run(on_postgres(url.dsn, PREFIX + url.partition))
    elif url.path is not None:
        url.path.touch()
        with migrating_sqlite(url.path) as connection:
            run(connection)


if isinstance(prepared := context.config.attributes.get("connection"), Connection):
    run(prepared)
else:
    from_command_line()
