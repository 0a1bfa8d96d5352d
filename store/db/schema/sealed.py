"""Check whether a SQLite file is a backup or an archive. A store opens such a file only for reading.

Such a file has the table `backup_seal`, which other stores do not have.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from store.db.schema.sqlite_files import read_only_uri
from store.db.url import StoreURL
from store.errors import Incompatible


async def is_sealed(url: StoreURL) -> bool:
    """Return whether a URL names a backup or an archive. A file that is missing or cannot be read is neither."""
    return url.path is not None and await asyncio.to_thread(_has_table, url.path)


async def refuse_sealed(url: StoreURL) -> None:
    """Raise an error if a URL names a backup or an archive, because a changed backup or archive cannot be restored.

    Raises:
        Incompatible: the URL names a backup or an archive.
    """
    if await is_sealed(url):
        raise Incompatible(
            f"{url.shown} is a backup or an archive, which cannot be restored after a change",
            "to read it, use read_only=True (`rollbook serve --read-only`); to use its data, make a new store with"
            " `rollbook restore` or `rollbook copy`",
        )


def _has_table(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(read_only_uri(path), uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'backup_seal'").fetchone()
    except sqlite3.Error:
        # For example, a writer was killed. A store checks the file again after it has opened it.
        return False
    return bool(count)
