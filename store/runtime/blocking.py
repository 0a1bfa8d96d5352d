"""Blocking versions of async methods, for scripts, notebooks and threads.

Each call runs on an event loop in a daemon thread and blocks its caller until the call is done. A caller may also be in
a thread with a running event loop, but then the call blocks that loop.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from store.errors import WrongProcess
from store.runtime import process
from store.runtime.loop_thread import LoopThread

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_AT_ONCE = 256
"""The maximum number of items of an iterator that are transferred between the threads at once."""


class Blocking(Generic[S]):
    """An object whose methods call the async methods of a target and wait for their results.

    Args:
        target: the object with async methods.
        thread: the thread in which the async methods run.
    """

    def __init__(self, target: S, thread: CallThread) -> None:
        self.target = target
        self.thread = thread


class CallThread:
    """Owner of the event-loop thread of blocking calls; the thread starts with the first call."""

    def __init__(self) -> None:
        self._thread: LoopThread | None = None
        self._starting = threading.Lock()

    def get(self) -> LoopThread:
        """Return the thread. It is started if it is not running.

        Raises:
            WrongProcess: the thread was started before this process was forked.
        """
        thread = self._thread
        if thread is not None and thread.process != process.number:
            raise WrongProcess(opened_in=thread.process, used_in=process.number)
        with self._starting:
            if self._thread is None:
                self._thread = LoopThread("rollbook-sync", asyncio.new_event_loop)
                weakref.finalize(self, self._thread.leave)
            return self._thread

    def leave(self) -> None:
        """End the thread; the next call starts a new one."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.leave()


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[S], P], T]:
    """Return a method that blocks until the target's method of this name returns."""

    @wraps(method)
    def call(self: Blocking[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        target_method: Callable[P, Coroutine[Any, Any, T]] = getattr(self.target, method.__name__)
        return self.thread.get().wait(target_method(*args, **kwargs))

    return call


def blocking_iterator(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking[S], P], Iterator[T]]:
    """Return a generator method that blocks until the target's method of this name yields an item."""

    @wraps(method)
    def iterate(self: Blocking[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        target_method: Callable[P, AsyncIterator[T]] = getattr(self.target, method.__name__)
        thread = self.thread.get()
        reader = BatchReader(target_method(*args, **kwargs))
        try:
            while items := thread.wait(reader.take()):
                yield from items
        finally:
            thread.finish(reader.close())

    return iterate


class BatchReader(Generic[T]):
    """Reader of an async iterator in batches. It waits for one item, and returns it with all items that are ready."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._upcoming: asyncio.Task[T | _End] | None = None

    async def take(self) -> list[T]:
        """Return the next items, at least one; an empty list at the end."""
        batch: list[T] = []
        while len(batch) < _AT_ONCE:
            upcoming = self._upcoming = self._upcoming or asyncio.create_task(_next(self._items))
            if batch and not await _is_there(upcoming):
                break
            item = await upcoming
            if isinstance(item, _End):
                break
            self._upcoming = None
            batch.append(item)
        return batch

    async def close(self) -> None:
        """Close the iterator; a pending read is cancelled."""
        if self._upcoming is not None:
            self._upcoming.cancel()
            await asyncio.gather(self._upcoming, return_exceptions=True)
        items: object = self._items
        if isinstance(items, AsyncGenerator):
            await cast("AsyncGenerator[T, None]", items).aclose()


class _End:
    """Marker for the end of the items."""


async def _next(items: AsyncIterator[T]) -> T | _End:
    return await anext(items, _End())


async def _is_there(upcoming: asyncio.Task[Any]) -> bool:
    """Return whether an item is ready. An error does not count as an item: the read of the next batch raises it."""
    await asyncio.sleep(0)
    return upcoming.done() and not upcoming.cancelled() and upcoming.exception() is None
