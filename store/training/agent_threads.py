"""Threads for agents that are not async: each is kept a while for the next agent, since starting one costs more."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

_IDLE_SECONDS: Final = 10.0

_Work = Callable[[], None]


class AgentThreads:
    """Any number of daemon threads: an agent that never returns keeps its own, and holds nothing up.

    Args:
        idle_seconds: how long a thread that has nothing to do is kept.
    """

    def __init__(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._reset()
        if hasattr(os, "register_at_fork"):
            # A child has none of its parent's threads.
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Work]] = []

    def run(self, work: _Work) -> None:
        """Run what never raises, in a thread that runs nothing else meanwhile."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue[_Work]()
            threading.Thread(target=self._live, args=(inbox,), name="rollbook-agent", daemon=True).start()
        inbox.put(work)

    def _live(self, inbox: SimpleQueue[_Work]) -> None:
        while (work := self._next(inbox)) is not None:
            work()
            # What the agent held must not live as long as the thread.
            del work
            with self._lock:
                self._idle.append(inbox)

    def _next(self, inbox: SimpleQueue[_Work]) -> _Work | None:
        try:
            return inbox.get(timeout=self._idle_seconds)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        # It was chosen at the last moment.
        return inbox.get()
