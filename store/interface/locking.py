"""A store with a lock around the calls of another store that is not safe for threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Final, cast

from store.interface.annotations import StoreAnnotations
from store.interface.delegating import DelegatingStore
from store.interface.log import StoreLog
from store.interface.runs import StoreRuns
from store.interface.scanners import StoreScanners
from store.interface.store import Store
from store.interface.threads import StoreThreads
from store.models import AttemptedRollout, LightningStoreCapabilities

_POLL_SECONDS: Final = 0.05
_UNLOCKED: Final = frozenset({"wait_for_rollouts"})
"""Calls that take no lock, because they wait for the effects of other calls."""


class LockedStore(DelegatingStore):
    """A store that executes one call of another store at a time, for callers in any thread and event loop.

    Calls get the lock in the order of their arrival. `wait_for_rollouts` and iterators take no lock. A claim with
    `wait_seconds` is repeated until it succeeds or the time is over. Between two tries, other calls can take the lock.

    Args:
        store: the store whose calls are locked.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._calls = cast("Store", _LockedCalls(store, _Turns()))

    @property
    def target(self) -> Store:
        return self._calls

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self._store.capabilities, "thread_safe": True, "async_safe": True}

    def otlp_traces_endpoint(self) -> str:
        return self._store.otlp_traces_endpoint()

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> AttemptedRollout | None:
        claimed = await self.dequeue_many_rollouts(1, worker_id, wait_seconds=wait_seconds)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> list[AttemptedRollout]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            claimed = await self._calls.dequeue_many_rollouts(limit=limit, worker_id=worker_id)
            remaining = deadline - loop.time()
            if claimed or remaining <= 0:
                return claimed
            await asyncio.sleep(min(remaining, _POLL_SECONDS))

    async def close(self) -> None:
        await self._calls.close()


class _Turns:
    """A lock whose waiters are tasks of any event loop, in the order of arrival. No waiter blocks its loop."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_taken = False
        self._waiters: deque[Future[None]] = deque()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Take the lock for a block."""
        turn: Future[None] = Future()
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                turn.set_result(None)
            else:
                self._waiters.append(turn)
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            if not turn.cancel() and not turn.cancelled():
                self._release()
            raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        with self._mutex:
            while self._waiters:
                turn = self._waiters.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._is_taken = False


class _LockedCalls:
    """The methods of an object, each within the lock if it is a coroutine function."""

    def __init__(self, target: Any, turns: _Turns) -> None:
        self._target = target
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if isinstance(value, StoreAnnotations | StoreLog | StoreRuns | StoreScanners | StoreThreads):
            return _LockedCalls(value, self._turns)
        if name in _UNLOCKED or not inspect.iscoroutinefunction(value):
            return value

        @wraps(value)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            async with self._turns.taken():
                return await value(*args, **kwargs)

        return locked
