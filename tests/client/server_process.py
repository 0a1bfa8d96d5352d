"""A server in its own process that tests can kill and restart on the same port."""

from __future__ import annotations

from multiprocessing.connection import Connection

from store import open_store
from store.server import StoreServer
from tests.faults import processes
from tests.postgres import free_port


class ServerProcess:
    """A server that outlives nothing.

    Attributes:
        url: where it is, whether it runs or not.
    """

    def __init__(self, store_url: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._store_url = store_url
        self._process: processes.Killable | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        self._process = processes.Killable(_serve, self._store_url, self._port)

    def kill(self) -> None:
        """Kill it without a chance to finish anything."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


async def _serve(ready: Connection, store_url: str, port: int) -> None:
    async with await open_store(store_url) as store:
        server = StoreServer(store, port=port)
        await server.start()
        await processes.until_left(ready)
        await server.stop()
