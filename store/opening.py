"""From a URL to a store."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from urllib.parse import urlsplit
from weakref import WeakMethod

from store.db.drivers.sqlite.dialect import SQLite
from store.db.url import parse
from store.errors import Invalid
from store.interface.store import Store
from store.runtime.clock import Clock
from store.sql.store import SQLStore


async def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    scan_debounce_seconds: float = 10.0,
    create: bool = True,
    read_only: bool = False,
    api_key: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> Store:
    """Open a store: `memory://`, `sqlite:///run.db`, `postgresql://host/database?partition=name`, `http://host:4747`.

    Args:
        url: which database, and which partition of it; or which server, and which partition of its database.
        clock: microseconds since the epoch; the machine's, or Postgres's own, if None. A server has its own.
        scan_debounce_seconds: the least time between two looks of the watchdog on marked calls; 0 looks every time. A
            server has its own.
        create: create the partition if it is missing. A server is asked for what it has.
        read_only: never write; with this nothing is created or upgraded either.
        api_key: for a server; None for the one in `ROLLBOOK_API_KEY`, if there is one.
        ca_file: certificates to believe besides the system's, for a server at `https://`.

    Raises:
        Invalid: the URL has a mistake, a clock was given for a server, or a key for a database.
        NotFound: there is no such store, and `create` is False.
        Incompatible: the database is behind or ahead of this version, or is no store.
        ReadOnly: the file or its directory cannot be written.
        Unavailable: the database, or the server, does not answer.
        Unauthorized: the server asks for a key, and got none that counts.
    """
    if urlsplit(url).scheme in {"http", "https"}:
        # The client brings aiohttp, which who opens a database should not have to wait for.
        from store.client import HTTPStore

        if clock is not None:
            raise Invalid("clock", "a store behind a server has the server's clock; leave it out")
        return await HTTPStore.open(url, read_only=read_only, api_key=api_key, ca_file=ca_file)
    for name, given in (("api_key", api_key), ("ca_file", ca_file)):
        if given is not None:
            raise Invalid(name, "is for a server, and the URL names a database; leave it out")
    return await SQLStore.open(
        url, clock=clock, scan_debounce_seconds=scan_debounce_seconds, create=create, read_only=read_only
    )


class InMemoryLightningStore(SQLStore):
    """A `memory://` store, open as soon as it is constructed.

    It lives in a private temporary file, which is deleted by `close()` or when the interpreter exits. Agent-lightning's
    limits of memory have no counterpart: nothing is ever evicted.

    Args:
        thread_safe: accepted and ignored; it always is.
        scan_debounce_seconds: the least time between two looks of the watchdog on marked calls; 0 looks every time.
        clock: microseconds since the epoch; the machine's if None.
    """

    def __init__(
        self, *, thread_safe: bool = False, scan_debounce_seconds: float = 10.0, clock: Clock | None = None
    ) -> None:
        del thread_safe
        url = parse("memory://")
        super().__init__(url, SQLite(url, clock), scan_debounce_seconds=scan_debounce_seconds, read_only=False)
        try:
            self.core.thread.submit(self.core.start(create=True)).result()
        except BaseException:
            self.core.thread.leave()
            raise
        atexit.register(_call_if_alive, WeakMethod(self.core.flush_at_exit))


def _call_if_alive(method: WeakMethod[Callable[[], None]]) -> None:
    alive = method()
    if alive is not None:
        alive()
