"""HTTP server of the proxy. It runs on a listening socket, in a separate thread or in the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from store.llm_proxy.cache import AnswerCache
from store.llm_proxy.forwarding import Forwarder, new_session
from store.llm_proxy.handling import ProxyHandler
from store.llm_proxy.recorder import CallRecorder
from store.llm_proxy.routes import Routes
from store.llm_proxy.settings import ProxySettings
from store.llm_proxy.translation import Translator
from store.runtime.loop_thread import new_loop
from store.server.process.connection import Connection

_IDLE_SECONDS = 75

LaunchMode = Literal["thread", "asyncio"]


class _Server(uvicorn.Server):
    def __init__(self, app: ASGIApp, grace_seconds: float, routes: Routes, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                # The client gets only the headers of the backend.
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=max(1, round(grace_seconds)),
            )
        )
        self._routes = routes
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._routes.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        # Ctrl+C is handled by the program that contains the proxy.
        yield


class Serving:
    """One run of the proxy, from `launch` until `ended` is done.

    Attributes:
        started: future that is done when the proxy answers requests; it fails if the proxy cannot start.
        ended: future that is done when all connections are closed and all spans are written.
    """

    def __init__(
        self, listener: socket.socket, routes: Routes, recorder: CallRecorder, settings: ProxySettings, key: str | None
    ) -> None:
        self._listener = listener
        self._routes = routes
        self._recorder = recorder
        self._settings = settings
        self._key = key
        self._server: _Server | None = None
        self.started: Future[None] = Future()
        self.ended: Future[None] = Future()

    def launch(self, mode: LaunchMode) -> None:
        """Start the proxy in a new thread or as a task of the running loop."""
        if mode == "asyncio":
            task = asyncio.ensure_future(self._run())
            task.add_done_callback(lambda done: self._end(None if done.cancelled() else done.exception()))
        else:
            threading.Thread(target=self._run_thread, name="rollbook proxy", daemon=True).start()

    def stop(self) -> None:
        """Accept no more requests, and close the server when the calls in flight have ended. Return at once."""
        if self._server is not None:
            self._server.should_exit = True

    def _run_thread(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._run())
        except BaseException as failed:  # noqa: BLE001 - reported to the caller that waits for the start
            error = failed
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if not self.started.done():
            self.started.set_exception(error or RuntimeError("the proxy was stopped before it had started"))
        self.ended.set_result(None)

    async def _run(self) -> None:
        self._routes.open()
        async with new_session() as session:
            cache = AnswerCache(self._settings.cache_bytes)
            translator = Translator(self._settings.silence_seconds)
            forwarder = Forwarder(session, self._routes, cache, self._recorder, translator, self._settings, self._key)
            app = ProxyHandler(forwarder, self._routes, self._recorder, self._settings, self._key)
            started = self.started
            self._server = _Server(app, self._settings.grace_seconds, self._routes, lambda: started.set_result(None))
            try:
                await self._server.serve([self._listener])
            finally:
                self._listener.close()
                await app.finished()
                await translator.close()
