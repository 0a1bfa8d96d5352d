"""The partitions of a server's database: the one at its root, and any other below `/p/<name>/`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from store.db.url import DEFAULT_PARTITION, PARTITION, parse
from store.errors import NotFound, StoreError, Unavailable
from store.interface import Store
from store.server.refusals import UnknownPartition, refusal
from store.server.routing import answer
from store.wire.paths import PARTITIONS

MAX_OPEN: Final = 64
OpenPartition = Callable[[str], Awaitable[Store]]


def with_partition(url: str, partition: str) -> str:
    """Return the URL of another partition of the same database."""
    parts = urlsplit(url)
    query = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key != "partition"]
    if partition != DEFAULT_PARTITION:
        query.append(("partition", partition))
    # urlunsplit drops the empty host of sqlite:///run.db.
    return f"{parts.scheme}://{urlunsplit(('', '', parts.netloc + parts.path, urlencode(query), ''))}"


class _Opened:
    """A partition that is open, or being opened, and how many requests use it."""

    def __init__(self, opening: asyncio.Task[Store]) -> None:
        self.opening = opening
        self.users = 0


class Partitions:
    """The stores of one server: the one at its root, and those opened on demand, of which it keeps the last used.

    Args:
        root: the store at `/`; its owner closes it.
        url: its URL, of which other partitions are named; None where there are no others.
        open_partition: opens a partition that exists, by its URL; raises `NotFound` if it does not.
        limit: how many partitions besides the root are open at most.
    """

    def __init__(
        self,
        root: Store,
        url: str | None = None,
        open_partition: OpenPartition | None = None,
        limit: int = MAX_OPEN,
    ) -> None:
        self.root = root
        self.root_name = DEFAULT_PARTITION if url is None else parse(url).partition
        self._url = url
        self._open_partition = open_partition
        self._limit = limit
        self._opened: OrderedDict[str, _Opened] = OrderedDict()

    def __len__(self) -> int:
        return len(self._opened)

    def open_stores(self) -> list[tuple[str, Store]]:
        """Return the name and the store of each partition that is open."""
        opened = [(name, each.opening) for name, each in self._opened.items()]
        ready = [(name, opening.result()) for name, opening in opened if opening.done() and not _failed(opening)]
        return [(self.root_name, self.root), *ready]

    @asynccontextmanager
    async def use(self, name: str) -> AsyncGenerator[Store]:
        """Give the store of a partition, which stays open meanwhile.

        Raises:
            UnknownPartition: there is none of that name.
            Unavailable: all that may be open are in use.
        """
        if name == self.root_name:
            yield self.root
            return
        opened = self._opened.get(name) or await self._begin(name)
        opened.users += 1
        try:
            # Shielded, since others wait for the same opening.
            store = await asyncio.shield(opened.opening)
        except NotFound:
            self._drop(name, opened)
            raise UnknownPartition(_unknown(name)) from None
        except BaseException:
            self._drop(name, opened)
            raise
        try:
            if name in self._opened:
                self._opened.move_to_end(name)
            yield store
        finally:
            opened.users -= 1

    async def _begin(self, name: str) -> _Opened:
        url, open_partition = self._url, self._open_partition
        if url is None or open_partition is None or not PARTITION.fullmatch(name):
            raise UnknownPartition(_unknown(name))
        await self._make_room()
        if name not in self._opened:
            opening = asyncio.ensure_future(open_partition(with_partition(url, name)))
            self._opened[name] = _Opened(opening)
        return self._opened[name]

    async def _make_room(self) -> None:
        while len(self._opened) >= self._limit:
            idle = next((name for name, each in self._opened.items() if not each.users and each.opening.done()), None)
            if idle is None:
                raise Unavailable(f"{self._limit} partitions are open, and all of them are in use")
            await _close(self._opened.pop(idle))

    def _drop(self, name: str, opened: _Opened) -> None:
        opened.users -= 1
        if opened.opening.done() and self._opened.get(name) is opened and _failed(opened.opening):
            del self._opened[name]

    async def close(self) -> None:
        """Close every partition but the root."""
        while self._opened:
            _, opened = self._opened.popitem()
            await _close(opened)


async def _close(opened: _Opened) -> None:
    await asyncio.wait((opened.opening,))
    if not _failed(opened.opening):
        await opened.opening.result().close()


def _failed(opening: asyncio.Task[Store]) -> bool:
    return opening.cancelled() or opening.exception() is not None


def _unknown(name: str) -> NotFound:
    if not PARTITION.fullmatch(name):
        return NotFound("partition", name, f"no partition can be named {name!r}; names match {PARTITION.pattern}")
    return NotFound(
        "partition", name, f"there is no partition {name!r}; make it with `rollbook partitions create {name}`"
    )


class PartitionLayer:
    """An ASGI layer that finds the store of a request: `scope["rollbook.store"]`, `scope["rollbook.partition"]`.

    What comes before the rest of the path moves to `root_path`, so that all routes are the same in every partition.
    """

    def __init__(self, app: ASGIApp, partitions: Partitions) -> None:
        self._app = app
        self._partitions = partitions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the store, and hand on."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        root_path: str = scope.get("root_path", "")
        path: str = scope["path"][len(root_path) :]
        if not path.startswith(PARTITIONS):
            scope["rollbook.store"] = self._partitions.root
            scope["rollbook.partition"] = self._partitions.root_name
            await self._app(scope, receive, send)
            return
        name = path[len(PARTITIONS) :].partition("/")[0]
        try:
            async with self._partitions.use(name) as store:
                scope["rollbook.store"] = store
                scope["rollbook.partition"] = name
                scope["root_path"] = f"{root_path}{PARTITIONS}{name}"
                await self._app(scope, receive, send)
        except StoreError as error:
            await _refuse(scope, receive, send, error)


async def _refuse(scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:100]})
        return
    await answer(send, *refusal(error))
