"""Daemon thread with an event loop, in which other threads and event loops can run coroutines."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from store.errors import Closed
from store.runtime import process

T = TypeVar("T")

_ENDING_SECONDS: Final = 4.0
"""The maximum time to wait for cancelled coroutines before the loop is closed."""
_JOIN_SECONDS: Final = 5.0
_GONE_SECONDS: Final = 1.0


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop if uvloop is installed, else of asyncio.

    With uvloop, switches between threads take a third less time. Decision 16.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """A thread with a running event loop.

    Every call ends with a result or an error. The error is `Closed` if the loop ends before the call is done. Several
    users may share the thread (see `shared`). The thread ends when the last user leaves.

    Args:
        name: the name of the thread.
        loop_factory: the function that creates the loop.
    """

    def __init__(self, name: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_loop) -> None:
        self.process = process.number
        """The id of the process that started the thread; a forked process does not have the thread."""
        self.loop = loop_factory()
        self._users = 1
        # The lock is reentrant: while a call holds it, the garbage collector may finalise a generator in this thread,
        # and the finaliser submits a call that closes the generator.
        self._lock = threading.RLock()
        self._calls: dict[asyncio.Task[Any], Future[Any]] = {}
        self._thread = threading.Thread(target=self._run_thread, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread. Such a caller must not wait for the loop, which it would block."""
        return threading.current_thread() is self._thread

    async def run(self, work: Coroutine[Any, Any, T], lost: Callable[[T], None] | None = None) -> T:
        """Run a coroutine in the thread and return its result in the caller's loop.

        If the caller is cancelled, the coroutine is cancelled too. If the coroutine has already returned at this
        moment, no caller receives the result, so `lost` is called with the result, in the thread.

        Raises:
            Closed: the loop ended before the coroutine was done.
        """
        if asyncio.get_running_loop() is self.loop:
            return await work
        answer = self.submit(work, lost)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if not answer.cancel() and lost is not None and answer.exception() is None:
                self.call_soon(lost, answer.result())
            raise

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and block until it is done.

        If the wait is interrupted, the coroutine is cancelled.

        Raises:
            Closed: the loop ended before the coroutine was done.
        """
        answer = self.submit(work)
        try:
            return answer.result()
        except BaseException:
            answer.cancel()
            raise

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that releases a resource, and wait for it unless the caller runs in this thread.

        After the end of the loop, this method does nothing.
        """
        # Python may finalise a generator in any thread, also in the thread of the loop. This thread cannot wait for
        # itself.
        with suppress(Closed):
            if self.is_current:
                self.submit(work)
            else:
                self.wait(work)

    def submit(self, work: Coroutine[Any, Any, T], lost: Callable[[T], None] | None = None) -> Future[T]:
        """Start a coroutine in the thread, and return a future with its result.

        Raises:
            Closed: the loop has ended.
        """
        answer: Future[T] = Future()
        if not self.call_soon(self._begin, work, answer, lost):
            work.close()
            raise _closed(work)
        return answer

    def call_soon(self, callback: Callable[..., object], *args: Any) -> bool:
        """Call a function in the loop; return False, without calling it, if the loop has ended."""
        # With the lock, this call is either before or after `leave`. The loop runs all callbacks that it received
        # before it was stopped, so no callback is lost.
        with self._lock:
            if not self._users:
                return False
            self.loop.call_soon_threadsafe(callback, *args)
            return True

    def _begin(self, work: Coroutine[Any, Any, T], answer: Future[T], lost: Callable[[T], None] | None) -> None:
        task = self.loop.create_task(work)
        self._calls[task] = answer
        task.add_done_callback(lambda done: self._end(done, answer, lost))
        answer.add_done_callback(lambda future: future.cancelled() and self.call_soon(task.cancel))

    def _end(self, task: asyncio.Task[T], answer: Future[T], lost: Callable[[T], None] | None) -> None:
        del self._calls[task]
        if task.cancelled() and self._users:
            answer.cancel()
        elif not answer.set_running_or_notify_cancel():
            if not task.cancelled() and task.exception() is None and lost is not None:
                lost(task.result())
        elif task.cancelled():
            answer.set_exception(_closed(task.get_coro()))
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def shared(self) -> Self:
        """Count one more user of this thread, and return this object. The thread ends when all users have left.

        Raises:
            Closed: the thread has ended.
        """
        with self._lock:
            if not self._users:
                raise Closed("sharing connections")
            self._users += 1
        return self

    def leave(self) -> None:
        """Leave the thread. If no other user shares it, the thread ends, and its running coroutines are cancelled.

        The callers of these coroutines get `Closed`.

        In a forked process, this method does nothing.
        """
        if self.process != process.number:
            return
        with self._lock:
            if not self._users:
                return
            if self._users == 1:
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._users -= 1
            if self._users:
                return
        if not self.is_current:
            self._thread.join(_JOIN_SECONDS)
            self._wait_for_system()

    def _wait_for_system(self) -> None:
        """Wait until the operating system has ended the thread, if the system lists its threads.

        `join` returns earlier. OpenSSL then still frees its data of the thread, and holds a lock. If the process forked
        at this moment, the lock would stay locked in the child, which could never connect to Postgres.
        """
        task_directory = Path("/proc/self/task", str(self._thread.native_id))
        deadline = time.monotonic() + _GONE_SECONDS
        while not self._thread.is_alive() and task_directory.exists() and time.monotonic() < deadline:
            time.sleep(0.0005)

    def _run_thread(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self._finish(asyncio.all_tasks(self.loop)))
        for task, answer in self._calls.items():
            if answer.set_running_or_notify_cancel():
                answer.set_exception(_closed(task.get_coro()))
        self.loop.close()

    async def _finish(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDING_SECONDS)
        await self.loop.shutdown_asyncgens()


def _closed(work: object) -> Closed:
    name: str = getattr(work, "__name__", "_")
    return Closed("a call" if name.startswith("_") else name)


async def run_in_thread(name: str, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop of a new thread, for example because writes to SQLite block their loop."""
    thread = LoopThread(name)
    try:
        return await thread.run(work)
    finally:
        thread.leave()
