"""From a URL to a store."""

from store.clock import Clock
from store.db.dialect import register
from store.db.drivers.postgres import Postgres
from store.db.drivers.sqlite import SQLite
from store.interface import Store
from store.sql_store import SQLStore

register("memory", SQLite)
register("sqlite", SQLite)
register("postgresql", Postgres)


async def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    scan_debounce_seconds: float = 10.0,
    create: bool = True,
    read_only: bool = False,
) -> Store:
    """Open a store: `memory://`, `sqlite:///run.db` or `postgresql://host/database?partition=name`.

    Args:
        url: which database, and which partition of it.
        clock: microseconds since the epoch; the machine's, or Postgres's own, if None.
        scan_debounce_seconds: the least time between two looks of the watchdog on marked calls; 0 looks every time.
        create: create the partition if it is missing.
        read_only: never write; with this nothing is created or upgraded either.

    Raises:
        Invalid: the URL has a mistake.
        NotFound: there is no such store, and `create` is False.
        Incompatible: the database is behind or ahead of this version, or is no store.
        ReadOnly: the file or its directory cannot be written.
        Unavailable: the database does not answer.
    """
    return await SQLStore.open(
        url, clock=clock, scan_debounce_seconds=scan_debounce_seconds, create=create, read_only=read_only
    )
