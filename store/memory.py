"""Agent-lightning's store in memory, by its name and made as it is there: without a URL and without await."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from weakref import WeakMethod

from store.db.drivers.sqlite.dialect import SQLite
from store.db.url import parse
from store.runtime.clock import Clock
from store.sql.store import SQLStore


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
            self._home.submit(self._start(create=True)).result()
        except BaseException:
            self._home.leave()
            raise
        atexit.register(_call_if_alive, WeakMethod(self._close_at_exit))

    def _close_at_exit(self) -> None:
        # In a forked child the thread is missing and the file is its parent's.
        if not self._closed and os.getpid() == self._pid:
            self._home.submit(self._stop()).result(timeout=30)


def _call_if_alive(method: WeakMethod[Callable[[], None]]) -> None:
    alive = method()
    if alive is not None:
        alive()
