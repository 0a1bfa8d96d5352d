"""Where a store lives: a daemon thread with an event loop of its own, so that it may be called from any other."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Home:
    """A thread with a running loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine here and return its result there; cancelling the caller cancels it."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine here, for a caller without a loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def leave(self) -> None:
        """Stop the loop and wait for the thread; nothing may be running any more."""
        if not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)
