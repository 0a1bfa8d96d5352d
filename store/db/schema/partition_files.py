"""Membership of SQLite files in a database. Each file states to which partition of which database it belongs.

The name of a file does not show this: `run.old.db` may be the partition `old` of `run.db`, or a copy of `run.db`
(decision 78). Files of older versions have no such statement until they are opened for writing.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from store.db.schema.history import MARKS
from store.db.url import partition_file
from store.runtime.urls import DEFAULT_PARTITION, PARTITION

_TABLES = "SELECT name FROM sqlite_master WHERE name IN ('partition_file', 'backup_seal', ?, ?)"
_CREATE = "CREATE TABLE partition_file (partition TEXT NOT NULL, database_id TEXT NOT NULL, main TEXT NOT NULL)"
_READ = "SELECT partition, database_id, main FROM partition_file"
_WRITE = "INSERT INTO partition_file (partition, database_id, main) VALUES (?, ?, ?)"


class Membership(NamedTuple):
    """The statement of a file about the partition and the database to which the file belongs."""

    partition: str
    database_id: str
    """An id that all files of a database share."""
    main: str
    """The name of the file of the default partition at the time when this file was created."""


class StoreFile(NamedTuple):
    """A file that contains a store."""

    store_id: str
    membership: Membership | None
    """None if an older version created the file, and no process has opened it for writing since."""
    is_sealed: bool = False
    """Whether the file is a backup or an archive."""

    @property
    def database_id(self) -> str:
        """The id of the database of which the file is the default partition."""
        return self.store_id if self.membership is None else self.membership.database_id


class PartitionPlace(NamedTuple):
    """A partition of the database whose default partition is in the file `main`."""

    main: Path
    partition: str = DEFAULT_PARTITION

    @property
    def path(self) -> Path:
        """The file of the partition."""
        return partition_file(self.main, self.partition)

    def holds(self, file: StoreFile, main: StoreFile | None) -> bool:
        """Return whether the file at this place contains the partition.

        Args:
            file: the file of the partition.
            main: the file of the default partition; None if it does not exist.
        """
        if self.partition == DEFAULT_PARTITION:
            return True
        if file.is_sealed:
            return False
        if file.membership is None:
            # A copy of the default partition has the same store id.
            return main is None or main.store_id != file.store_id
        if file.membership.partition != self.partition:
            return False
        if main is None:
            return file.membership.main == self.main.name
        return file.membership.database_id == main.database_id


def candidates(main: Path) -> list[PartitionPlace]:
    """Return the partitions of a database for which a file exists. Not every such file contains the partition."""
    places = [PartitionPlace(main)] if main.is_file() else []
    prefix = f"{main.name.removesuffix('.db')}."
    for path in sorted(main.parent.iterdir()):
        name = path.name.removeprefix(prefix).removesuffix(".db")
        if path.name == f"{prefix}{name}.db" and PARTITION.fullmatch(name) and path != main and path.is_file():
            places.append(PartitionPlace(main, name))
    return places


def place_like(path: Path) -> PartitionPlace | None:
    """Return the partition whose file has this name, of a database in the same directory; None if there is none."""
    stem, _, name = path.name.removesuffix(".db").rpartition(".")
    if path.suffix != ".db" or not stem or not PARTITION.fullmatch(name):
        return None
    mains = (path.with_name(main) for main in (f"{stem}.db", stem))
    return next((PartitionPlace(main, name) for main in mains if main.is_file()), None)


def read(connection: sqlite3.Connection) -> StoreFile | None:
    """Return the description of a file; None if it contains no store."""
    with closing(connection.execute(_TABLES, tuple(MARKS))) as rows:
        tables = {name for (name,) in rows}
    if not tables >= MARKS:
        return None
    ids = [store_id for (store_id,) in connection.execute("SELECT store_id FROM store_info")]
    membership = connection.execute(_READ).fetchone() if "partition_file" in tables else None
    return StoreFile(
        ids[0] if ids else "", Membership(*membership) if membership else None, is_sealed="backup_seal" in tables
    )


def write(connection: sqlite3.Connection, membership: Membership) -> None:
    """Store the membership of a file, in the current transaction of the connection."""
    connection.execute(_CREATE)
    connection.execute(_WRITE, membership)
