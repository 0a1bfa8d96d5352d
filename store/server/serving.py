"""Running the application: uvicorn with uvloop and httptools, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator
from typing import cast

import uvicorn
from fastapi import FastAPI

from store.server.connection import Connection

_GRACE_SECONDS = 10
_IDLE_SECONDS = 30


class Server(uvicorn.Server):
    """A server of one application on one socket.

    Args:
        app: as `build_app` makes it.
        on_started: called once requests are answered, in the server's thread.
        idle_seconds: how long a connection stays open on which nothing happens.
        takes_signals: let Ctrl+C and SIGTERM end it in peace; for a process that does nothing but serve.
    """

    def __init__(
        self,
        app: FastAPI,
        on_started: Callable[[], None],
        *,
        idle_seconds: float = _IDLE_SECONDS,
        takes_signals: bool = False,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                # uvloop where it is installed.
                loop="auto",
                http=Connection,
                ws="websockets-sansio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # Any length of time will do, whatever uvicorn declares.
                timeout_keep_alive=cast("int", idle_seconds),
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._parked = app.state.parked
        self._on_started = on_started
        self._takes_signals = takes_signals

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, wake the calls that wait, finish the others."""
        self._parked.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Let a first signal end the server in peace, a second one at once."""
        if not self._takes_signals:
            yield
            return
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stop)
        try:
            yield
        finally:
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
