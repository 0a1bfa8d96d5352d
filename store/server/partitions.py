"""The partitions of a server's database: one partition at the root, and each other partition below `/p/<name>/`."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from store.db.url import parse, with_partition
from store.errors import NotFound, StoreError, Unavailable
from store.interface.store import Store
from store.runtime.urls import DEFAULT_PARTITION, PARTITION
from store.server.errors import UnknownPartition, refusal
from store.server.quotas import Quotas
from store.server.routing import answer, path_within
from store.sql.database import StoreDatabase, database_of
from store.wire.paths import PARTITIONS, STORE

logger = logging.getLogger("store.server")

MAX_OPEN: Final = 64
_SURVEY_SECONDS: Final = 2.0
OpenPartition = Callable[[str], Awaitable[Store]]


class _Opened:
    """A partition that is open or being opened, and the number of requests that use it."""

    def __init__(self, opening: asyncio.Task[Store]) -> None:
        self.opening = opening
        self.users = 0


class Partitions:
    """The stores of one server: one store at the root, and other stores that are opened on demand.

    The most recently used stores stay open.

    Args:
        root: the store at `/`; its owner closes it.
        url: the URL of the root store, from which the URLs of other partitions derive; None if there are no other
            partitions.
        open_partition: opens an existing partition by its URL; raises `NotFound` if the partition does not exist.
        make_partition: opens a partition and creates it if it is missing; None if the server creates no partitions.
        limit: the largest number of open partitions besides the root.
        surveys: whether `watch` opens partitions that no request uses. If several processes serve the same port, this
            should be True in only one process, because each open partition needs database connections.
        quotas: the quotas of the partitions; None for no limits.
    """

    def __init__(
        self,
        root: Store,
        url: str | None = None,
        open_partition: OpenPartition | None = None,
        limit: int = MAX_OPEN,
        *,
        make_partition: OpenPartition | None = None,
        surveys: bool = True,
        quotas: Quotas | None = None,
    ) -> None:
        self.root = root
        self.root_name = DEFAULT_PARTITION if url is None else parse(url).partition
        self.quotas = quotas or Quotas()
        self.quotas.guard(self.root_name, root)
        self._url = url
        self._open_partition = open_partition
        self._make_partition = make_partition
        self._limit = limit
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._watched: frozenset[str] = frozenset()
        """The partitions that had active attempts with a time limit at the last survey."""
        self._closed: list[str] = []
        """The partitions with active attempts that the last survey did not open, because the limit was reached."""
        self._surveys = surveys and url is not None and open_partition is not None

    def __len__(self) -> int:
        return len(self._opened)

    def open_stores(self) -> list[tuple[str, Store]]:
        """Return the name and the store of each partition that is open."""
        opened = [(name, partition.opening) for name, partition in self._opened.items()]
        ready = [(name, opening.result()) for name, opening in opened if opening.done() and not _failed(opening)]
        return [(self.root_name, self.root), *ready]

    async def names(self) -> list[str]:
        """Return the names of all partitions of the database, open or closed. The name of the root is first.

        Raises:
            StoreError: the database does not answer.
        """
        if self._url is None or self._open_partition is None:
            return [name for name, _ in self.open_stores()]
        # This import also loads the Postgres driver, so it is delayed until the names are needed.
        from store.db.schema.partitions import names as names_of

        return [self.root_name, *(name for name in await names_of(self._url) if name != self.root_name)]

    def opened(self, name: str) -> Store | None:
        """Return the store of a partition if it is open. Unlike `use`, do not mark the partition as recently used."""
        return dict(self.open_stores()).get(name)

    @asynccontextmanager
    async def use(self, name: str) -> AsyncGenerator[Store]:
        """Provide the store of a partition, which stays open until the block ends.

        Raises:
            UnknownPartition: no partition has this name.
            Unavailable: the limit of open partitions is reached, and all of them are in use.
        """
        if name == self.root_name:
            yield self.root
            return
        opened = self._opened.get(name) or await self._begin(name, self._open_partition)
        opened.users += 1
        try:
            # The opening is shielded, because other requests wait for it as well.
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

    @asynccontextmanager
    async def use_or_make(self, name: str) -> AsyncGenerator[Store]:
        """Provide a store as `use` does, and create a missing partition if `make_partition` is set."""
        if name != self.root_name and name not in self._opened:
            await self._begin(name, self._make_partition or self._open_partition)
        async with self.use(name) as store:
            yield store

    async def _begin(self, name: str, open_partition: OpenPartition | None) -> _Opened:
        url = self._url
        if url is None or open_partition is None or not PARTITION.fullmatch(name):
            raise UnknownPartition(_unknown(name))
        while len(self._opened) >= self._limit:
            idle = self._idle()
            if not idle:
                raise Unavailable(f"{self._limit} partitions are open, and all of them are in use")
            await _close(self._opened.pop(idle[0]))
        if name not in self._opened:

            async def open_guarded() -> Store:
                store = await open_partition(with_partition(url, name))
                self.quotas.guard(name, store)
                return store

            self._opened[name] = _Opened(asyncio.ensure_future(open_guarded()))
        return self._opened[name]

    def _idle(self) -> list[str]:
        """Return the open partitions that no request uses, in the order in which they should be closed."""
        idle = [name for name, partition in self._opened.items() if not partition.users and partition.opening.done()]
        return sorted(idle, key=lambda name: name in self._watched)

    async def watch(self) -> None:
        """Until cancelled, end overdue attempts on time in all partitions, including those that no request uses.

        A partition with active attempts is opened and stays open while the limit on open partitions allows it.
        """
        database = database_of(self.root)
        while self._surveys and database is not None:
            try:
                await self._survey(database)
            except StoreError as error:
                logger.warning("the partitions with active attempts could not be listed: %s", error)
            except Exception:
                # Overdue attempts must end while the server runs, so an unexpected error must not stop the surveys.
                logger.exception("the partitions with active attempts could not be listed")
            await asyncio.sleep(_SURVEY_SECONDS)

    async def _survey(self, root: StoreDatabase) -> None:
        watched = await root.core.watched_partitions()
        self._watched = frozenset(watched)
        closed: list[str] = []
        for name in watched:
            if name == self.root_name or name in self._opened:
                continue
            if len(self._opened) >= self._limit and all(idle in self._watched for idle in self._idle()):
                closed.append(name)
                continue
            # Opening fails, for example, if the partition was dropped after the survey.
            with suppress(StoreError):
                async with self.use(name):
                    pass
        if closed and closed != self._closed:
            names = ", ".join(closed[:5])
            logger.warning(
                "%d partitions are open, so overdue attempts end only with calls in %d others: %s",
                *(self._limit, len(closed), names),
            )
        self._closed = closed

    def _drop(self, name: str, opened: _Opened) -> None:
        opened.users -= 1
        if opened.opening.done() and self._opened.get(name) is opened and _failed(opened.opening):
            del self._opened[name]

    async def close(self) -> None:
        """Close all open partitions except the root."""
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
        "partition", name, f"there is no partition {name!r}; create it with `rollbook partitions create {name}`"
    )


class PartitionLayer:
    """An ASGI layer that finds the store of a request: `scope["rollbook.store"]`, `scope["rollbook.partition"]`.

    The prefix of the path moves to `root_path`, so that all routes are the same in every partition.
    """

    def __init__(self, app: ASGIApp, partitions: Partitions) -> None:
        self._app = app
        self._partitions = partitions

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Find the store, and pass on the request."""
        # `__call__` is not async in this layer and in the other layers. So a request that is only passed on needs no
        # coroutine.
        if scope["type"] not in {"http", "websocket"}:
            return self._app(scope, receive, send)
        name, root_path = place_of(scope)
        if name is None:
            scope["rollbook.store"] = self._partitions.root
            scope["rollbook.partition"] = self._partitions.root_name
            return self._app(scope, receive, send)
        return self._within(name, root_path, scope, receive, send)

    async def _within(self, name: str, root_path: str, scope: Scope, receive: Receive, send: Send) -> None:
        # Only this request creates a partition, so a mistyped name in any other request creates nothing.
        creates_partition = (
            scope["type"] == "http" and scope["method"] == "PUT" and path_within(scope, root_path) == STORE
        )
        try:
            async with (self._partitions.use_or_make if creates_partition else self._partitions.use)(name) as store:
                scope["rollbook.store"] = store
                scope["rollbook.partition"] = name
                scope["root_path"] = root_path
                await self._app(scope, receive, send)
        except StoreError as error:
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:100]})
            else:
                await answer(send, *refusal(error))


def place_of(scope: Scope) -> tuple[str | None, str]:
    """Return the partition in a path, and the prefix of the path. The partition is None at the root."""
    root_path: str = scope.get("root_path", "")
    path: str = scope["path"][len(root_path) :]
    if not path.startswith(PARTITIONS):
        return None, root_path
    name = path[len(PARTITIONS) :].partition("/")[0]
    return name, f"{root_path}{PARTITIONS}{name}"
