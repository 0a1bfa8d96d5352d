"""Where a store lives: a daemon thread with an event loop of its own, so that it may be called from any other."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from store.errors import Closed

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's where it is installed, since handing a call over and back is a third cheaper."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Home:
    """A thread with a running loop."""

    def __init__(self, name: str) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._running: set[asyncio.Task[Any]] = set()
        self._guests = 1
        self._counting = threading.Lock()
        self._thread.start()

    def shared(self) -> Self:
        """Return it for one more store, which leaves it as the first does; the last one ends it."""
        with self._counting:
            if not self._guests:
                raise Closed("sharing connections")
            self._guests += 1
        return self

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    async def run(self, work: Coroutine[Any, Any, T], lost: Callable[[T], None] | None = None) -> T:
        """Run a coroutine here and return its result there; cancelling the caller cancels it.

        A result that the caller no longer takes, because it was cancelled at the same moment, goes to `lost`, in this
        loop.
        """
        if asyncio.get_running_loop() is self.loop:
            return await work
        answer: Future[T] = Future()
        self.loop.call_soon_threadsafe(self._begin, work, answer, lost)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if not answer.cancel() and lost is not None and answer.exception() is None:
                self.loop.call_soon_threadsafe(lost, answer.result())
            raise

    def _begin(self, work: Coroutine[Any, Any, T], answer: Future[T], lost: Callable[[T], None] | None) -> None:
        task = self.loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(lambda done: self._end(done, answer, lost))
        answer.add_done_callback(lambda given: given.cancelled() and self.loop.call_soon_threadsafe(task.cancel))

    def _end(self, task: asyncio.Task[T], answer: Future[T], lost: Callable[[T], None] | None) -> None:
        self._running.discard(task)
        if task.cancelled():
            answer.cancel()
        elif not answer.set_running_or_notify_cancel():
            if task.exception() is None and lost is not None:
                lost(task.result())
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine here, for a caller without a loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def leave(self) -> None:
        """Stop the loop and wait for the thread, if no other store lives here; nothing may be running any more."""
        with self._counting:
            self._guests -= 1
            if self._guests > 0:
                return
        if not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)
