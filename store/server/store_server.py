"""A store that its process serves to other processes over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, Literal, Self

from store.interface.delegating import DelegatingStore
from store.interface.locking import LockedStore
from store.interface.store import Store
from store.models import LightningStoreCapabilities
from store.runtime.loop_thread import new_loop
from store.server.app import build_app
from store.server.partitions import Partitions
from store.server.process.serve import Server
from store.server.streaming.front_end import FrontEnd
from store.wire.listener import bind, is_loopback, url_of
from store.wire.paths import OTLP_TRACES

logger = logging.getLogger("store.server")

DEFAULT_PORT: Final = 4747
_START_SECONDS: Final = 60.0

LaunchMode = Literal["thread", "asyncio", "mp"]


class StoreServer(DelegatingStore):
    """A store together with the HTTP server through which other processes use it.

    The object is a store itself. In the process that created the object, every call goes to the wrapped store. In any
    other process (a fork, or after pickling), every call goes over HTTP to the process that created the object. `stop`
    ends only the server; `close` also closes the wrapped store.

    Args:
        store: the store to serve. It must accept calls from any task.
        host: the address to listen on. On other addresses than loopback, anyone who reaches the port may read and
            write.
        port: the port; 0 for any free port, None for 4747.
        cors_allow_origins: origins whose pages may call the server, `*` for all.
        launch_mode: `thread` for a separate thread, `asyncio` for the event loop that calls `start`.
        n_workers: must be 1. `rollbook serve` runs several processes on one Postgres database.
        tracker: accepted for compatibility with Agent-lightning and not used; see `/metrics`.

    Raises:
        ValueError: the store does not accept calls from any task, or several processes are requested.
    """

    front_end: FrontEnd | None = None
    """A web front end. The server also serves its routes. Set this before `start`."""

    def __init__(
        self,
        store: Store,
        host: str | None = None,
        port: int | None = None,
        cors_allow_origins: str | Sequence[str] | None = None,
        launch_mode: LaunchMode = "thread",
        n_workers: int = 1,
        tracker: object = None,
    ) -> None:
        del tracker
        capabilities = store.capabilities
        if not capabilities.get("async_safe"):
            raise ValueError(
                "The store is not async-safe: its calls may not come from several tasks, as a server's do."
            )
        if launch_mode == "mp" and not capabilities.get("zero_copy"):
            raise ValueError(
                "The store does not support zero-copy. Other processes cannot open it; use sqlite or Postgres."
            )
        if launch_mode not in {"thread", "asyncio"} or n_workers != 1:
            raise ValueError("A StoreServer is one process; start `rollbook serve` once or several times instead.")
        self._store: Store | None = store
        self._owner_pid = os.getpid()
        self._host = host or "127.0.0.1"
        self._port = DEFAULT_PORT if port is None else port
        self._origins = [cors_allow_origins] if isinstance(cors_allow_origins, str) else list(cors_allow_origins or ())
        self._launch_mode: LaunchMode = launch_mode
        self._server: Server | None = None
        self._ended: Future[None] | None = None
        self._client: Store | None = None
        self._endpoint: str | None = None

    @property
    def endpoint(self) -> str:
        """The URL of the server. If the port is 0, the URL is known only after the start."""
        if self._endpoint is None:
            if self._port == 0:
                raise RuntimeError("the server has no port yet; start it first")
            self._endpoint = url_of(self._host, self._port)
        return self._endpoint

    def otlp_traces_endpoint(self) -> str:
        return self.endpoint + OTLP_TRACES

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": True}

    @property
    def target(self) -> Store:
        """The wrapped store in the process that created this object; in other processes, a client of the server."""
        if self._store is not None and os.getpid() == self._owner_pid:
            return self._store
        if self._client is None:
            from store.client import HTTPStore

            self._client = HTTPStore(self.endpoint)
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        """Return the URL of the server, which a copy in another process needs."""
        return {"endpoint": self.endpoint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._store, self._server, self._ended, self._client = None, None, None, None
        self._owner_pid = -1
        self._endpoint = state["endpoint"]

    async def start(self) -> None:
        """Start the server, and return when it is ready for requests. Do nothing if it has already started.

        Raises:
            RuntimeError: the port is in use (the text describes the program that uses it), or another process created
                this object.
        """
        if self._ended is not None and not self._ended.done():
            return
        if self._store is None or os.getpid() != self._owner_pid:
            raise RuntimeError(f"the server belongs to process {self._owner_pid}; start it in that process")
        if not is_loopback(self._host):
            logger.warning("the store is served on %s to everybody who reaches it, without keys", self._host)
        # `bind` runs in a thread, because it sends a request to a port that is in use, to describe the program there.
        listener = await asyncio.to_thread(bind, self._host, self._port)
        self._port = listener.getsockname()[1]
        started: Future[None] = Future()
        is_local = is_loopback(self._host)
        app = build_app(
            Partitions(self._store), cors_origins=self._origins, is_local=is_local, front_end=self.front_end
        )
        self._server = Server(app, lambda: started.set_result(None))
        self._ended = self._launch(self._server.serve([listener]), started)
        async with asyncio.timeout(_START_SECONDS):
            await asyncio.wrap_future(started)

    def _launch(self, serving: Coroutine[Any, Any, None], started: Future[None]) -> Future[None]:
        ended: Future[None] = Future()

        def end(error: BaseException | None) -> None:
            if error is not None and not started.done():
                started.set_exception(error)
            ended.set_result(None)

        if self._launch_mode == "asyncio":
            task: asyncio.Task[None] = asyncio.ensure_future(serving)
            task.add_done_callback(lambda done: end(None if done.cancelled() else done.exception()))
            return ended

        def work() -> None:
            error: BaseException | None = None
            try:
                with asyncio.Runner(loop_factory=new_loop) as runner:
                    runner.run(serving)
            except BaseException as failed:  # noqa: BLE001 - raised where the start is awaited
                error = failed
            end(error)

        threading.Thread(target=work, name="rollbook server", daemon=True).start()
        return ended

    async def stop(self) -> None:
        """Answer accepted requests, end waiting calls, and stop listening; the store stays open."""
        if self._server is None or self._ended is None or os.getpid() != self._owner_pid:
            return
        self._server.should_exit = True
        await asyncio.shield(asyncio.wrap_future(self._ended))

    async def run_forever(self) -> None:
        """Start the server if necessary, and return when it has stopped. A cancellation stops the server."""
        await self.start()
        assert self._ended is not None  # started
        try:
            await asyncio.shield(asyncio.wrap_future(self._ended))
        finally:
            await self.stop()

    async def close(self) -> None:
        """Stop the server and close the store; in another process, close only the client."""
        await self.stop()
        await self.target.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self


def LightningStoreThreaded(store: Store) -> Store:  # noqa: N802 - Agent-lightning's name of a class
    """Return a store that any thread and any event loop may use.

    This is the store itself if its capabilities say that it is safe for threads. Rollbook's stores are safe for
    threads, because they pass calls to the thread that owns the database. A store that is not safe for threads gets a
    lock around each of its calls.
    """
    return store if store.capabilities.get("thread_safe") else LockedStore(store)


LightningStoreServer = StoreServer
"""Agent-lightning's name of the class."""
