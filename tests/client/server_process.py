"""A server in a process of its own, which may be killed and started again on the same port: `python -m … URL PORT`."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

from store import open_store
from store.server import StoreServer

READY = "ready\n"


class ServerProcess:
    """A server that outlives nothing.

    Attributes:
        url: where it is, whether it runs or not.
    """

    def __init__(self, store_url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._store_url = store_url
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        command = [sys.executable, "-m", "tests.client.server_process", self._store_url, str(self._port)]
        # It ends when its input does, so that it never outlives the tests.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == READY

    def kill(self) -> None:
        """Kill it without a chance to finish anything."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


async def _serve(store_url: str, port: int) -> None:
    async with await open_store(store_url) as store:
        server = StoreServer(store, port=port)
        await server.start()
        sys.stdout.write(READY)
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        await server.stop()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
