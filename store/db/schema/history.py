"""Revisions of the schema: the revision that this program needs, and upgrades of older databases to this revision.

Alembic is imported only for an upgrade. The revision of a database is read with plain SQL.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from store.errors import AlreadyExists, Corrupt, Incompatible, Unavailable
from store.runtime.clock import Clock

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

LOG_FORMAT = 1
"""The version of the log's format. Migrations never change this format."""

_PACKAGE = Path(__file__).parents[2]
MIGRATIONS = next(place / "migrations" for place in (_PACKAGE, _PACKAGE.parent) if (place / "migrations").is_dir())
"""The directory of the migrations: inside the installed package, or beside the package in a checkout."""
HEAD = max(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
"""The revision that this program reads and writes. A newer revision has a greater number."""

MARKS = frozenset({"alembic_version", "store_info"})
"""The tables by which a store is recognised. A schema or file without them is not a store."""

# This lock lets a process run only one upgrade at a time, because alembic keeps its state in module globals.
_alembic = Lock()


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """The description of a store, read from the tables `store_info` and `alembic_version`."""

    store_id: str
    """16 random hex digits, generated when the store was created. A copy of the database has the same id."""
    created_at: int
    """The time at which the store was created, in microseconds since the epoch."""
    revision: str
    """The revision of the schema."""
    log_format: int = LOG_FORMAT
    """The version of the format of the log."""

    @classmethod
    def new(cls, clock: Clock) -> "DatabaseInfo":
        """Return the description of a store that does not exist yet."""
        return cls(os.urandom(8).hex(), clock(), HEAD)

    @property
    def is_behind(self) -> bool:
        """Whether the database must be upgraded before this program can use it."""
        return self.revision < HEAD


def read_info(revisions: list[str], infos: list[tuple[str, int, int]], name: str) -> DatabaseInfo:
    """Return the description of a store, given all rows of `alembic_version` and `store_info`.

    Args:
        revisions: the values of `version_num`.
        infos: the values of store_id, created_at and log_format.
        name: the URL of the store, for error messages.

    Raises:
        Corrupt: one of the tables does not have exactly one row.
        Incompatible: a newer program has written the database.
    """
    for table, rows in (("alembic_version", revisions), ("store_info", infos)):
        if len(rows) != 1:
            raise Corrupt(f"{table} of {name}", f"{len(rows)} rows", "one row")
    _check_types(revisions[0], infos[0], name)
    store_id, created_at, log_format = infos[0]
    info = DatabaseInfo(store_id, created_at, revisions[0], log_format)
    if info.revision > HEAD or info.log_format > LOG_FORMAT:
        raise Incompatible(
            f"{name} has schema revision {info.revision} and log format {info.log_format}; this program supports"
            f" revisions up to {HEAD} and log formats up to {LOG_FORMAT}",
            "upgrade Rollbook: pip install --upgrade rollbook",
        )
    return info


def _check_types(revision: object, info: tuple[object, ...], name: str) -> None:
    """Raise `Corrupt` if the type of a value is not the type of its column. SQLite accepts values of any type."""
    columns = ("alembic_version.version_num", "store_info.store_id", "store_info.created_at", "store_info.log_format")
    for column, value, type_ in zip(columns, (revision, *info), (str, str, int, int), strict=True):
        if not isinstance(value, type_):
            raise Corrupt(f"{column} of {name}", repr(value), "text" if type_ is str else "an integer")


def refuse_behind(info: DatabaseInfo, name: str) -> DatabaseInfo:
    """Return `info` unchanged if the database has the revision that this program needs.

    Raises:
        Incompatible: the database has an older revision. The error contains the command that upgrades the database.
    """
    if info.is_behind:
        raise Incompatible(
            f"{name} has schema revision {info.revision}, this program needs {HEAD}",
            f"run: rollbook migrate --db '{name}'",
        )
    return info


def refuse_existing(kind: str, name: str) -> AlreadyExists:
    """Return the error of a copy whose target, a file or a schema, exists."""
    return AlreadyExists(kind, name, "a copy never overwrites anything; choose another target, or remove this one")


def refuse_reserved(name: str) -> Unavailable:
    """Return the error of a copy that another call makes at the same time."""
    return Unavailable(f"another process makes the copy {name}; wait until it ends", 10.0)


def refuse_foreign(copy: DatabaseInfo, info: DatabaseInfo, name: str, cure: str) -> None:
    """Raise `Incompatible` if an unfinished copy cannot be continued.

    Args:
        copy: the description of the unfinished copy.
        info: the description of the store that is copied.
        name: the file or schema of the unfinished copy, for the message.
        cure: the advice for the user.
    """
    if copy.store_id != info.store_id:
        reason = f"{name} is an unfinished copy of the store {copy.store_id}, not of {info.store_id}"
        raise Incompatible(reason, cure)
    if copy.is_behind:
        raise Incompatible(f"an older version of Rollbook began the unfinished copy {name}", cure)


def alembic_config(connection: "Connection | None" = None) -> "Config":
    """Return alembic's configuration. If a connection is given, alembic uses this connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def run_migrations(connection: "Connection", revision: str = "head") -> None:
    """Upgrade a database to a revision, in the transaction of the connection.

    The caller must hold alembic's lock (`turn`, `turn_in_loop`). On Postgres, the search path of the connection must
    contain only the schema to upgrade.
    """
    from alembic import command

    command.upgrade(alembic_config(connection), revision)


@contextmanager
def turn() -> Generator[None]:
    """Hold the lock of alembic during the block. The calling thread waits until the lock is free."""
    with _alembic:
        yield


@asynccontextmanager
async def turn_in_loop() -> AsyncGenerator[None]:
    """Hold the lock of alembic during the block. The calling task waits without blocking its event loop."""
    while not _alembic.acquire(blocking=False):  # noqa: ASYNC110 (its holder may be in another loop or thread)
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        _alembic.release()
