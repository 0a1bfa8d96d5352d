"""The uvicorn server that runs and stops the application. It uses uvloop and httptools."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator
from typing import cast

import uvicorn
from fastapi import FastAPI

from store.server.auth.tls import Certificate
from store.server.partitions import Partitions
from store.server.process.connection import Connection
from store.server.process.socket_connection import SocketConnection
from store.server.streaming.streams import FAREWELL_SECONDS

# Container engines kill a process ten seconds after they ask the process to stop. The grace period and the time to
# close a database together are shorter.
_GRACE_SECONDS = 5
_IDLE_SECONDS = 30


class Server(uvicorn.Server):
    """A server of one application on one socket.

    Args:
        app: the application of `build_app`.
        on_started: called in the server's thread when the server is ready for requests.
        idle_seconds: the time for which an idle connection stays open.
        takes_signals: whether Ctrl+C and SIGTERM stop the server. Set this only in a process that does nothing else.
        certificate: the checked certificate for TLS; None for plain HTTP.
    """

    def __init__(
        self,
        app: FastAPI,
        on_started: Callable[[], None],
        *,
        idle_seconds: float = _IDLE_SECONDS,
        takes_signals: bool = False,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                # "auto" chooses uvloop if it is installed.
                loop="auto",
                http=Connection,
                ws=SocketConnection,
                # Compressing a large event for each of its readers would take seconds.
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # The application has its own layer for these headers.
                proxy_headers=False,
                # uvicorn declares an int, but accepts a float as well.
                timeout_keep_alive=cast("int", idle_seconds),
                timeout_graceful_shutdown=_GRACE_SECONDS,
                ssl_certfile=certificate and certificate.cert,
                ssl_keyfile=certificate and str(certificate.key),
            )
        )
        self._parked = app.state.parked
        self._partitions: Partitions = app.state.partitions
        self._watching: asyncio.Task[None] | None = None
        self._on_started = on_started
        self._takes_signals = takes_signals

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer requests."""
        await super().startup(sockets)
        self._watching = asyncio.create_task(self._partitions.watch())
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, end waiting calls, and complete all other calls."""
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._parked.close()
        # This wait precedes the closing of connections, because a WebSocket would otherwise lose its last frame.
        await self._parked.emptied(0.0 if self.force_exit else FAREWELL_SECONDS)
        await super().shutdown(sockets)
        # A client that has not read its response by now would prevent the event loop from ending.
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stop the server on the first signal, and stop it at once on the second signal."""
        if not self._takes_signals:
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: self.stop(now=self.should_exit))
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def stop(self, *, now: bool = False) -> None:
        """Begin to stop. With `now`, do not wait for running calls."""
        self.force_exit = self.force_exit or now
        self.should_exit = True
