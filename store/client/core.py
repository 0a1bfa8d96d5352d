"""The shared core of a store over HTTP: its connections and its requests."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from store.client import requests, run_requests
from store.client.transport import StoreCall, Transport, changing, reading
from store.errors import ReadOnly
from store.interface.runs import AsAt
from store.models import PaginatedResult
from store.models.queries import PageQuery
from store.wire import encoding, paths

T = TypeVar("T")

SLICE_SECONDS: Final = 25.0
"""The longest that a server is asked to wait at a time: proxies cut what takes longer, often after 30 s."""

IN_TIME: Final = 0.8
"""The part of its time that a wait lasts at the least: clocks differ, and timers fire a little early."""
_HASTE_SECONDS: Final = 0.5


class HTTPCore:
    """The connections to one partition of a server.

    Args:
        transport: sends requests.
        read_only: refuse calls that write.
    """

    def __init__(self, transport: Transport, *, read_only: bool) -> None:
        self.transport = transport
        self.read_only = read_only
        self.knows_server = False
        self.store_id = ""

    async def meet(self, operation: str) -> None:
        """Make sure that the server is Rollbook's.

        Raises:
            Incompatible: it is another's, which would not know what the operation means.
        """
        call = reading(operation, paths.STORE, is_ours=True)
        info = await self.transport.ask(call, encoding.decode_store_info)
        self.store_id = info.store_id
        self.knows_server = True

    def writes(self, operation: str) -> None:
        """Refuse a call that writes if the store was opened for reading.

        Raises:
            ReadOnly: it was.
        """
        if self.read_only:
            raise ReadOnly(operation)

    async def change(self, operation: str, path: str, body: bytes, decode: Callable[[bytes], T], **details: Any) -> T:
        """Return the answer to a call that writes."""
        self.writes(operation)
        return await self.transport.ask(changing(operation, path, body, **details), decode)

    async def do(self, operation: str, path: str, body: bytes, decode: Callable[[bytes], T]) -> T:
        """As `change`, for a call that only Rollbook's servers know."""
        return await self.change(operation, path, body, decode, is_ours=True)

    async def see(self, operation: str, path: str, asked: Mapping[str, Any], decode: Callable[[bytes], T]) -> T:
        """Return the answer to a query."""
        return await self.transport.ask(reading(operation, path + requests.query_string(asked), is_ours=True), decode)

    async def consider(self, operation: str, path: str, decode: Callable[[bytes], T], **asked: Any) -> T:
        """Return the answer to a question that is too long for a query."""
        call = StoreCall(operation, "POST", path, run_requests.body(**asked), is_ours=True)
        return await self.transport.ask(call, decode)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def page(
        self, operation: str, path: str, query: PageQuery, decode: Callable[[bytes], PaginatedResult[T]]
    ) -> PaginatedResult[T]:
        """Return the page of a query that is sent in a body."""
        call = StoreCall(operation, "POST", path, requests.body(**await self.keys(query)))
        return echo(await self.transport.ask(call, decode), query.limit)

    async def keys(self, query: PageQuery) -> dict[str, Any]:
        """Return a query as keys of a request."""
        return {**requests.query(query), **await self.past(query.as_at, getattr(query, "at", None))}

    async def read(self, operation: str, path: str, fields: dict[str, Any], decode: Callable[[bytes], T]) -> T:
        """As `see`, for a call that every server knows."""
        return await self.transport.ask(reading(operation, path + requests.query_string(fields)), decode)

    async def find(
        self,
        operation: str,
        template: str,
        field: str,
        key: str,
        fields: dict[str, Any],
        decode: Callable[[bytes], T | None],
    ) -> T | None:
        """Return the one thing that a path names, or None."""
        if not requests.is_nameable(requests.sought(key, field)):
            return None
        return await self.read(operation, requests.path(template, **{field: key}), fields, decode)

    async def past(self, as_at: AsAt | None, at: int | None = None) -> dict[str, Any]:
        """Return the moment a read is about, having made sure that the server does not answer with the present."""
        moment = requests.past(as_at, at)
        if moment and not self.knows_server:
            await self.meet("as_at")
        return moment

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def in_slices(
        self, operation: str, seconds: float, ask: Callable[[float], Awaitable[T]], is_over: Callable[[T], bool]
    ) -> T:
        """Return what a question gives once that is enough, or at its deadline, asking for a while at a time."""
        deadline = time.monotonic() + seconds
        left = seconds
        while True:
            began = time.monotonic()
            asked_for = min(left, SLICE_SECONDS)
            answer = await ask(asked_for)
            now = time.monotonic()
            left = deadline - now
            if left <= 0 or is_over(answer):
                return answer
            if now - began < asked_for * IN_TIME:
                # This server does not wait, as Agent-lightning's do not.
                await self.transport.pause(operation, min(left, _HASTE_SECONDS))


def echo(page: PaginatedResult[T], limit: int) -> PaginatedResult[T]:
    """Return a page as it was asked for; the protocol has none without items."""
    if limit:
        return page
    return PaginatedResult(items=[], limit=0, offset=page.offset, total=page.total)
