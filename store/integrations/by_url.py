"""Store that is defined by its URL. Frameworks can construct and pickle the store early, and fork their process."""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from store.db.url import parse
from store.errors import Closed, WrongProcess
from store.interface.store import Store
from store.opening import open_store

P = ParamSpec("P")
T = TypeVar("T")

_SERVED: Final = frozenset({"http", "https"})


class StoreByURL:
    """A store that opens at the first call in each process.

    Args:
        url: the URL of the database, as for `open_store`.
        scan_debounce_seconds: Calls marked *Sweeps* in `Store` also look for overdue attempts, at most once in this
            time. At 0, each of these calls looks.

    Raises:
        Invalid: the URL is invalid.
    """

    def __init__(self, url: str, *, scan_debounce_seconds: float = 10.0) -> None:
        self._url = parse(url)
        self._debounce = scan_debounce_seconds
        self._creator_pid = os.getpid()
        self._store: Store | None = None
        self._closed_for_forks: weakref.WeakSet[Store] = weakref.WeakSet()
        self._opening = threading.Lock()
        _instances.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_private:
            raise TypeError("a memory:// store cannot be pickled: no other process can reach it; use sqlite:///run.db")
        return _again, (self._url.text, self._debounce)

    @property
    def is_private(self) -> bool:
        """Whether only this process can reach the store."""
        return self._url.scheme == "memory"

    @property
    def server(self) -> str | None:
        """The URL of the server; None for a database."""
        return self._url.text.partition("?")[0].rstrip("/") if self._url.scheme in _SERVED else None

    async def opened(self) -> Store:
        """Return the store of this process; the first call opens the store.

        Raises:
            WrongProcess: a `memory://` store can be used only in the process that created it.
        """
        # A thread opens the store, because an event loop must not wait for a lock, and a cancelled call must not stop
        # the opening.
        return self._store or await asyncio.to_thread(self._open)

    def _open(self) -> Store:
        with self._opening:
            if self._store is None:
                if self.is_private and self._creator_pid != os.getpid():
                    raise WrongProcess(self._creator_pid, os.getpid())
                self._store = asyncio.run(open_store(self._url.text, scan_debounce_seconds=self._debounce))
            return self._store

    async def call(
        self, method: Callable[Concatenate[Store, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call the method with the same name as `method` on the opened store, and return its result."""
        while True:
            store = await self.opened()
            bound: Callable[P, Awaitable[T]] = getattr(store, method.__name__)
            try:
                return await bound(*args, **kwargs)
            except Closed:
                # A store that raises `Closed` has not executed the call, so the call can be repeated.
                if store not in self._closed_for_forks:
                    raise

    async def close(self) -> None:
        """Close the store in this process; a later call opens the store again."""
        if self._store is not None:
            # The store is closed in a thread, as in `opened`. A fork waits until the store is closed.
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._opening:
            store, self._store = self._store, None
            if store is not None:
                asyncio.run(store.close())

    def before_fork(self) -> None:
        """Close the store if it is a SQLite file; the next call in the parent or the child opens the file again.

        SQLite keeps the state of its locks in the memory of the process, and a fork copies that memory. After a fork
        during a commit, the file would stay locked for ever in the child. After a fork during a read, the child would
        read without a lock. So closing the store interrupts the running reads, and `call` repeats them. No call can
        open the store during the fork.
        """
        self._opening.acquire()
        if self._store is not None and self._url.path is not None:
            store, self._store = self._store, None
            self._closed_for_forks.add(store)
            # An event loop may be running in this thread, so closing needs a thread of its own.
            thread = threading.Thread(target=asyncio.run, args=(store.close(),))
            thread.start()
            thread.join()

    def after_fork_in_parent(self) -> None:
        """Allow calls to open the store again."""
        self._opening.release()

    def after_fork_in_child(self) -> None:
        """Discard the inherited store; the next call opens a store of this process."""
        if self._store is not None:
            # This reference keeps the store alive, because its finalisers would write to the parent's connections.
            _inherited.append(self._store)
            self._store = None
        # `before_fork` acquired the inherited lock, so the child needs a new one.
        self._opening = threading.Lock()


def _again(url: str, scan_debounce_seconds: float) -> StoreByURL:
    return StoreByURL(url, scan_debounce_seconds=scan_debounce_seconds)


_instances: weakref.WeakSet[StoreByURL] = weakref.WeakSet()
_inherited: list[Store] = []
_forking: list[StoreByURL] = []
_fork_lock = threading.Lock()


def _before_fork() -> None:
    _fork_lock.acquire()
    _forking[:] = _instances
    for store in _forking:
        store.before_fork()


def _after_fork_in_parent() -> None:
    for store in _forking:
        store.after_fork_in_parent()
    _forking.clear()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    for store in _forking:
        store.after_fork_in_child()
    _forking.clear()
    # `_before_fork` acquired the lock in the parent, so the child must release its copy.
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    # `concurrent.futures.thread` registers a function that stops thread pools during a fork. `_before_fork` must run
    # earlier, because it waits until a store is open, and opening a file uses a thread pool. Python calls these
    # functions in the reverse order of their registration. So the module is imported before `_before_fork` is
    # registered.
    importlib.import_module("concurrent.futures.thread")
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
