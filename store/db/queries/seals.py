"""The table `backup_seal`, which backups and archives have and other stores do not have."""

from __future__ import annotations

from typing import Final

from store.db.dialect import Dialect, ReadSession, Sql
from store.errors import Incompatible

_HAS_TABLE: Final = Sql("SELECT count(*) FROM sqlite_master WHERE name = 'backup_seal'", (), {})


async def has_seal_table(session: ReadSession) -> bool:
    """Return whether a SQLite file has the table. In an unfinished file, the table may be empty."""
    return bool((await session.fetch(_HAS_TABLE, {}))[0][0])


async def refuse_sealed(dialect: Dialect) -> None:
    """Raise an error if the database is a backup or an archive. It could not be restored after a change of its log.

    Raises:
        Incompatible: the open database is a backup or an archive.
    """
    if dialect.url.path is None:
        return
    async with dialect.read() as session:
        if await has_seal_table(session):
            raise Incompatible(
                f"{dialect.url.shown} is a backup or an archive, which could not be restored after a change of its log",
                "open it with read_only=True (`rollbook serve --read-only`), or restore it and use the new store",
            )
