"""Threads for agents that are not async. Idle threads are reused, because reuse costs less than a new thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

_IDLE_SECONDS: Final = 10.0

_Work = Callable[[], None]


class AgentThreads:
    """Pool of daemon threads without a maximum size. An agent that never returns blocks only its own thread.

    Args:
        idle_seconds: the time after which an idle thread ends, in seconds.
    """

    def __init__(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._reset()
        if hasattr(os, "register_at_fork"):
            # The threads of the parent process do not exist in a forked child, so the pool starts empty there.
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Work]] = []

    def run(self, work: _Work) -> None:
        """Run a function in a thread that runs nothing else until the function returns. The function must not raise."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue[_Work]()
            threading.Thread(target=self._run_loop, args=(inbox,), name="rollbook-agent", daemon=True).start()
        inbox.put(work)

    def _run_loop(self, inbox: SimpleQueue[_Work]) -> None:
        while True:
            try:
                work = inbox.get(timeout=self._idle_seconds)
            except Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                # `run` removed this inbox from the idle list just before the timeout, and puts work into it now.
                work = inbox.get()
            work()
            # An idle thread must not keep the objects of the agent alive.
            del work
            with self._lock:
                self._idle.append(inbox)


def future_of(function: Callable[[], T], start: Callable[[_Work], object]) -> asyncio.Future[T]:
    """Call a function in another thread, and return a future of its result in the running event loop.

    If the future is cancelled, the function continues, because a thread cannot be stopped. Its result is ignored.

    Args:
        function: the function; it must not raise StopIteration, which a future refuses.
        start: function that runs its argument in a thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def end(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - passed to the waiting caller
            failure = error
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(end, result, failure)

    start(run)
    return future
