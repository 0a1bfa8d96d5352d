"""Functions that read and write the table `backup_seal`, which contains the seal of a backup or an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from store.db.dialect import ReadSession, Sql, WriteSession
from store.errors import Corrupt, Incompatible
from store.operations.reports import BackupSeal

_TABLE: Final = Sql("SELECT name FROM sqlite_master WHERE name = 'backup_seal'", (), {})
_READ: Final = Sql("SELECT seal FROM backup_seal", (), {})
_MAKE: Final = Sql("CREATE TABLE IF NOT EXISTS backup_seal (seal TEXT NOT NULL)", (), {})
_CLEAR: Final = Sql("DELETE FROM backup_seal", (), {})
_WRITE: Final = Sql("INSERT INTO backup_seal (seal) VALUES (?)", ("seal",), {})


async def has_seal_table(session: ReadSession) -> bool:
    """Return whether a SQLite file has the table. In an unfinished file, the table may be empty."""
    return bool(await session.fetch(_TABLE, {}))


async def has_seal(session: ReadSession) -> bool:
    """Return whether a SQLite file has a seal."""
    return await has_seal_table(session) and bool(await session.fetch(_READ, {}))


async def read_seal(session: ReadSession, path: Path) -> BackupSeal:
    """Return the seal in a SQLite file.

    Raises:
        Incompatible: the file has no table for a seal.
        Corrupt: the table does not contain one seal.
    """
    if not await has_seal_table(session):
        raise Incompatible(
            f"{path} contains no seal, so neither `rollbook backup` nor `archive` wrote it",
            "to copy a store, use `rollbook copy`",
        )
    rows = await session.fetch(_READ, {})
    try:
        ((text,),) = rows
        return BackupSeal.model_validate_json(text)
    except (ValueError, TypeError) as error:  # a `ValidationError` is a ValueError
        raise Corrupt(f"the seal of the backup {path}", f"{len(rows)} rows ({error})", "one seal") from None


async def make_seal_table(writer: WriteSession) -> None:
    """Create the table, unless it exists."""
    await writer.begin()
    await writer.fetch(_MAKE, {})
    await writer.commit()


async def store_seal(writer: WriteSession, seal: BackupSeal) -> None:
    """Store a seal in the file, and replace an earlier seal."""
    await make_seal_table(writer)
    await writer.begin()
    for statement in (_CLEAR, _WRITE):
        await writer.fetch(statement, {"seal": seal.model_dump_json()})
    await writer.commit()
