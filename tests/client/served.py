"""A server in a thread of the test process. It serves the stores of tests, each under its own path."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Self
from uuid import uuid4

from store import InMemoryLightningStore
from store.cli.example_parts import front_end
from store.errors import NotFound
from store.interface.store import Store
from store.runtime.loop_thread import new_loop
from store.server.app import build_app
from store.server.errors import UnknownPartition
from store.server.partitions import Partitions
from store.server.process.serve import Server
from store.wire.listener import bind
from tests.prompt_uvicorn import end_at_once

end_at_once()


class Handed(Partitions):
    """Partitions that are stores of the tests, by made-up names."""

    def __init__(self, root: Store) -> None:
        super().__init__(root)
        self.stores: dict[str, Store] = {}

    @asynccontextmanager
    async def use(self, name: str) -> AsyncGenerator[Store]:
        if name not in self.stores:
            raise UnknownPartition(NotFound("partition", name))
        yield self.stores[name]


class Served:
    """A running server, with a store in memory at its root.

    Attributes:
        url: of its root.
    """

    def __init__(self) -> None:
        self._root = InMemoryLightningStore()
        self._partitions = Handed(self._root)
        self._socket = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        started = threading.Event()
        self._server = Server(build_app(self._partitions, front_end=front_end()), started.set)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert started.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server has not ended"
        self._root.sync.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._server.serve([self._socket]))

    @contextmanager
    def serving(self, store: Store) -> Generator[str]:
        """Serve a store, and return its URL."""
        name = f"t{uuid4().hex[:20]}"
        self._partitions.stores[name] = store
        try:
            yield f"{self.url}/p/{name}"
        finally:
            del self._partitions.stores[name]
