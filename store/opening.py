"""`open_store` and `open_sync`, which open the store at a URL, and the class of stores in memory."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec
from weakref import WeakMethod

from store.db.drivers.sqlite.dialect import SQLite
from store.db.url import parse
from store.errors import Invalid
from store.interface.store import Store, SyncStore
from store.runtime.blocking import CallThread
from store.runtime.clock import Clock
from store.runtime.urls import scheme_of
from store.sql.store import SQLStore

P = ParamSpec("P")


class StoreOpening(Coroutine[Any, Any, Store]):
    """The opening of a store: `await` returns the store; `async with` also closes the store at the end of the block.

    Args:
        opening: the coroutine that opens the store.
    """

    def __init__(self, opening: Coroutine[Any, Any, Store]) -> None:
        self._opening = opening
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, Any, Store]:
        return self._opening.__await__()

    async def __aenter__(self) -> Store:
        self._store = store = await self._opening
        return await store.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._store is not None  # `__aenter__` opened it
        await self._store.__aexit__(kind, error, trace)

    def send(self, value: Any, /) -> Any:
        """Continue the coroutine; event loops call this."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception inside the coroutine; event loops call this."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """End the coroutine; event loops call this."""
        self._opening.close()


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    scan_debounce_seconds: float = 10.0,
    create: bool = True,
    read_only: bool = False,
    api_key: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> StoreOpening:
    """Open a store: `memory://`, `sqlite:///run.db`, `postgresql://host/database?partition=name`, `http://host:4747`.

    `async with open_store(url) as store:` closes the store at the end of the block; `store = await open_store(url)`
    leaves this to the caller.

    Args:
        url: a database or a server, with an optional partition.
        clock: a function that returns microseconds since the epoch. With None, a Postgres store uses the clock of its
            database, and other stores use the clock of the machine. A server always uses its own clock. The check for
            overdue attempts uses the monotonic clock of the machine if `clock` is None. Otherwise it uses the method
            `elapsed` of `clock` if there is one, and else `clock` itself.
        scan_debounce_seconds: the minimum time between two checks for overdue attempts. The methods marked *Sweeps* in
            `Store` make such a check; with 0, every call of these methods makes one. If neither `clock` nor `read_only`
            is set, the store also ends overdue attempts on time while it is open. A server has its own setting.
        create: whether to create the partition if it does not exist. This has no effect with a server.
        read_only: whether to refuse calls that write; the partition is then neither created nor upgraded.
        api_key: the key for a server; None for the value of `ROLLBOOK_API_KEY`, if it is set.
        ca_file: a PEM file of certificates to trust in addition to the certificates of the system, for a server at
            `https://`.

    Raises:
        Invalid: the URL is invalid, a clock was given for a server, or `api_key` or `ca_file` for a database.
        NotFound: the store does not exist, and `create` is False.
        Incompatible: the schema of the database has another version; the database is not a store; or it is a backup or
            an archive, and `read_only` is False.
        ReadOnly: the file or its directory cannot be written.
        Unavailable: the database, or the server, does not answer.
        Unauthorized: the server requires a valid key.
    """
    return StoreOpening(_open(url, clock, scan_debounce_seconds, create, read_only, api_key, ca_file))


async def _open(
    url: str,
    clock: Clock | None,
    scan_debounce_seconds: float,
    create: bool,  # noqa: FBT001 - the arguments of `open_store`
    read_only: bool,  # noqa: FBT001
    api_key: str | None,
    ca_file: str | os.PathLike[str] | None,
) -> Store:
    if scheme_of(url) in {"http", "https"}:
        # The client imports aiohttp, which a program that opens a database does not need.
        from store.client import HTTPStore

        if clock is not None:
            raise Invalid("clock", "is not for a server, which has its own clock; leave it out")
        return await HTTPStore.open(url, read_only=read_only, api_key=api_key, ca_file=ca_file)
    for name, value in (("api_key", api_key), ("ca_file", ca_file)):
        if value is not None:
            raise Invalid(name, "is for a server, but the URL is that of a database; leave it out")
    return await SQLStore.open(
        url, clock=clock, scan_debounce_seconds=scan_debounce_seconds, create=create, read_only=read_only
    )


def _same_arguments(
    open_async: Callable[P, Coroutine[Any, Any, Store]],
) -> Callable[[Callable[..., SyncStore]], Callable[P, SyncStore]]:
    """Return a decorator that gives a function the parameters of `open_async`."""

    def decorate(function: Callable[..., SyncStore]) -> Callable[P, SyncStore]:
        @wraps(function)
        def opened(*args: P.args, **kwargs: P.kwargs) -> SyncStore:
            return function(*args, **kwargs)

        # `inspect.signature` and `help` take the parameters from the function in this attribute.
        vars(opened)["__wrapped__"] = open_async
        opened.__annotations__ = {**open_async.__annotations__, "return": SyncStore}
        return opened

    return decorate


@_same_arguments(open_store)
def open_sync(*args: Any, **kwargs: Any) -> SyncStore:
    """Open a store for code without `await`: scripts, notebooks and threads.

    The store has the methods of `Store`, and each call blocks until it is done. The calls run on an event loop in a
    thread of their own, so they also work where a loop is running, as in Jupyter. Use the store as a context manager,
    or call `close()` at the end. The arguments and errors are those of `open_store`.
    """
    thread = CallThread()
    try:
        return SyncStore(thread.get().wait(open_store(*args, **kwargs)), thread)
    except BaseException:
        thread.leave()
        raise


class InMemoryLightningStore(SQLStore):
    """A `memory://` store, which is open as soon as it is constructed.

    Its data is in a private temporary file, which is deleted by `close()` or when the interpreter exits. Unlike
    Agent-lightning's store, this store has no memory limits and evicts nothing.

    Args:
        thread_safe: accepted for compatibility and ignored; the store is always thread-safe.
        scan_debounce_seconds: the minimum time between two checks for overdue attempts. The methods marked *Sweeps* in
            `Store` make such a check; with 0, every call of these methods makes one.
        clock: returns microseconds since the epoch; None for the clock of the machine.
    """

    def __init__(
        self, *, thread_safe: bool = False, scan_debounce_seconds: float = 10.0, clock: Clock | None = None
    ) -> None:
        del thread_safe
        url = parse("memory://")
        super().__init__(url, SQLite(url, clock), scan_debounce_seconds=scan_debounce_seconds, read_only=False)
        try:
            self.core.thread.submit(self.core.start(create=True)).result()
        except BaseException:
            self.core.thread.leave()
            raise
        self.store_id = self.core.store_id
        atexit.register(_call_if_alive, WeakMethod(self.core.flush_at_exit))


def _call_if_alive(method: WeakMethod[Callable[[], None]]) -> None:
    alive = method()
    if alive is not None:
        alive()
