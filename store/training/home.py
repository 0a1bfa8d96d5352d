"""The thread in which spans are sent: one for each process, with an event loop and without any attempt's context."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Home:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="rollbook-spans", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_here(self) -> bool:
        """Whether the caller is this thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop."""
        # In an empty context: what sends spans must not itself be traced as part of the attempt that made them.
        self.loop.call_soon_threadsafe(callback, *args, context=Context())

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        return Context().run(asyncio.run_coroutine_threadsafe, work, self.loop)


class _Homes:
    """This process's home, started when it is first needed; a fork starts its own."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._home: Home | None = None

    def get(self) -> Home:
        with self._lock:
            if self._home is None:
                self._home = Home()
            return self._home


_homes = _Homes()


def home() -> Home:
    """Return the home of this process."""
    return _homes.get()
