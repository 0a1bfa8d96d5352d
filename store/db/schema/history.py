"""Linear history of the schema: the revision that this program writes, and upgrades to it.

Alembic is imported only for an upgrade. Plain SQL reads the revision itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from store.errors import Corrupt, Incompatible

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

HEAD = "0007"
"""The revision that this program reads and writes; revisions are numbered, so a greater one is newer."""
LOG_FORMAT = 1
"""The format of the log, which no migration changes."""

_PACKAGE = Path(__file__).parents[2]
MIGRATIONS = next(place / "migrations" for place in (_PACKAGE, _PACKAGE.parent) if (place / "migrations").is_dir())
"""The directory of the revisions: inside the installed package, or beside it in a checkout."""

MARKS = frozenset({"alembic_version", "store_info"})
"""The tables by which a store is recognised."""

# Alembic keeps its state in module globals, so a process runs one upgrade at a time.
_alembic = Lock()


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """The description of a database, which is stored in the database."""

    store_id: str
    """16 random hex digits, generated when the store was created. Copies of a database have the same id."""
    created_at: int
    """The time of the creation, in microseconds since the epoch."""
    revision: str
    log_format: int = LOG_FORMAT

    @property
    def is_behind(self) -> bool:
        """Whether a migration has to be run before this program can use the database."""
        return self.revision < HEAD


def read_info(revisions: list[str], infos: list[tuple[str, int, int]], shown: str) -> DatabaseInfo:
    """Return the contents of `alembic_version` and `store_info`.

    Raises:
        Corrupt: one of the tables does not have exactly one row.
        Incompatible: a newer program wrote them.
    """
    for table, rows in (("alembic_version", revisions), ("store_info", infos)):
        if len(rows) != 1:
            raise Corrupt(f"{table} of {shown}", f"{len(rows)} rows", "one row")
    store_id, created_at, log_format = infos[0]
    info = DatabaseInfo(store_id, created_at, revisions[0], log_format)
    if info.revision > HEAD or info.log_format > LOG_FORMAT:
        raise Incompatible(
            f"{shown} has schema revision {info.revision} and log format {info.log_format}; this program supports"
            f" revisions up to {HEAD} and log formats up to {LOG_FORMAT}",
            "upgrade Rollbook: pip install --upgrade rollbook",
        )
    return info


def refuse_behind(info: DatabaseInfo, shown: str) -> DatabaseInfo:
    """Return the info of a database that has the newest revision.

    Raises:
        Incompatible: the database is older; the error contains the command that upgrades it.
    """
    if info.is_behind:
        raise Incompatible(
            f"{shown} has schema revision {info.revision}, this program needs {HEAD}",
            f"run: rollbook migrate --db '{shown}'",
        )
    return info


def alembic_config(connection: "Connection | None" = None) -> "Config":
    """Return alembic's configuration, with the connection to work on if one is given."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def run_migrations(connection: "Connection", revision: str = "head") -> None:
    """Upgrade a database to a revision in the connection's transaction.

    The caller holds alembic's lock (`turn`, `turn_in_loop`).

    On Postgres the connection's search path contains only the partition's schema.
    """
    from alembic import command

    command.upgrade(alembic_config(connection), revision)


@contextmanager
def turn() -> Generator[None]:
    """Hold the lock of alembic; the calling thread waits for it."""
    with _alembic:
        yield


@asynccontextmanager
async def turn_in_loop() -> AsyncGenerator[None]:
    """Hold the lock of alembic; the task waits without blocking the loop, in which the holder may run."""
    while not _alembic.acquire(blocking=False):  # noqa: ASYNC110 (its holder may be in another loop or thread)
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        _alembic.release()
