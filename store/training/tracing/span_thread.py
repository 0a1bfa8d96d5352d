"""The thread that sends the spans and heartbeats of a process. It has its own event loop.

The thread does not belong to an attempt, so its own work is not traced.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar

from store.errors import WrongProcess
from store.runtime import process
from store.runtime.loop_thread import LoopThread

T = TypeVar("T")


class SpanThread(LoopThread):
    """Event-loop thread whose work runs in an empty context, so that its calls to the store are not traced."""

    def submit(self, work: Coroutine[Any, Any, T], lost: Callable[[T], None] | None = None) -> Future[T]:
        """Start a coroutine in the thread, and return a future with its result.

        Raises:
            Closed: the loop has ended.
            WrongProcess: this process was forked, and does not have the thread.
        """
        if self.process != process.number:
            work.close()
            raise WrongProcess(self.process, process.number, "storing spans")
        return Context().run(super().submit, work, lost)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> bool:
        """Call a function in the loop; return False if the loop has ended or belongs to the parent of this process."""
        if self.process != process.number:
            return False
        return Context().run(super().call_soon, callback, *args)


class _Shared:
    """Access to the span thread of this process, which starts at first use. A forked child starts its own thread."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._thread: SpanThread | None = None

    def get(self) -> SpanThread:
        with self._lock:
            if self._thread is None:
                self._thread = SpanThread("rollbook-spans", asyncio.new_event_loop)
            return self._thread


_shared = _Shared()


def span_thread() -> SpanThread:
    """Return the span thread of this process."""
    return _shared.get()
