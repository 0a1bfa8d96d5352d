"""Shared core of the HTTP client: connections and kinds of requests."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeVar, cast

from store.client import requests
from store.client.transport import StoreCall, Transport, changing, reading
from store.errors import ReadOnly
from store.interface.runs import AsAt
from store.models import AttemptedRollout, PaginatedResult
from store.models.calls import ChangingCall, ClaimRunsCall, DequeueManyRolloutsCall
from store.models.queries import PageQuery
from store.wire import encoding, paths
from store.wire.calls import decoder_of, operation_of, route_of

T = TypeVar("T")

SLICE_SECONDS: Final = 25.0
"""The longest time for which one request asks the server to wait. Proxies often close a request after 30 s."""

FULL_WAIT: Final = 0.8
"""The fraction of the requested time after which a wait counts as complete.

It is below 1, because clocks differ and timers may fire early.
"""
_NO_WAIT_PAUSE_SECONDS: Final = 0.5


_WAITING: Final = (ClaimRunsCall, DequeueManyRolloutsCall)


@dataclass(frozen=True, slots=True)
class _Form:
    """What all requests of one type of call have in common."""

    operation: str
    """The name of the call, for errors."""
    decode: Callable[[bytes], Any]
    rollbook_only: bool


@cache
def _form_of(kind: type[ChangingCall[Any]]) -> _Form:
    route = route_of(kind)
    operation = operation_of(kind) if route.has_own_statuses else kind.method
    return _Form(operation, decoder_of(kind), route.is_addition or route.has_own_statuses)


class HTTPCore:
    """The connections to one partition of a server. A partition is a separate store in the server's database.

    Args:
        transport: sends requests.
        read_only: refuse calls that write.
    """

    def __init__(self, transport: Transport, *, read_only: bool) -> None:
        self.transport = transport
        self.read_only = read_only
        self.server_checked = False
        self.has_finish_attempt = True
        """Whether the server may have the call `finish_attempt`."""
        self.store_id = ""

    async def check_server(self, operation: str) -> None:
        """Check that the server is a Rollbook server.

        Raises:
            Incompatible: the server is not a Rollbook server, so it does not support the operation.
        """
        call = reading(operation, paths.STORE, rollbook_only=True)
        info = await self.transport.request(call, encoding.decode_store_info)
        self.store_id = info.store_id
        self.server_checked = True

    def check_writable(self, operation: str) -> None:
        """Check that the store may write.

        Raises:
            ReadOnly: the store was opened read-only.
        """
        if self.read_only:
            raise ReadOnly(operation)

    async def change(self, operation: str, path: str, body: bytes, decode: Callable[[bytes], T], **details: Any) -> T:
        """Send a call that writes, and return its decoded response."""
        self.check_writable(operation)
        return await self.transport.request(changing(operation, path, body, **details), decode)

    async def call(self, call: ChangingCall[T], operation: str = "") -> T:
        """Send a call that has a route, and return its result.

        Args:
            call: the call.
            operation: the name of the call for errors; empty for its own name.
        """
        form = _form_of(type(call))
        name = operation or form.operation
        if not isinstance(call, _WAITING):
            path, body = requests.of_call(call)
            return await self.change(name, path, body, form.decode, rollbook_only=form.rollbook_only)

        async def claim(seconds: float) -> list[AttemptedRollout]:
            path, body = requests.of_call(replace(call, wait_seconds=seconds))
            details: dict[str, Any] = {"waits": seconds, "claims": True, "rollbook_only": form.rollbook_only}
            return await self.change(name, path, body, form.decode, **details)

        return cast("T", await self.in_slices(name, call.wait_seconds, claim, bool))

    async def rollbook_read(
        self, operation: str, path: str, fields: Mapping[str, Any], decode: Callable[[bytes], T]
    ) -> T:
        """Like `read`, for a call that only Rollbook servers support."""
        return await self.transport.request(
            reading(operation, path + requests.query_string(fields), rollbook_only=True), decode
        )

    async def rollbook_query(self, operation: str, path: str, decode: Callable[[bytes], T], **fields: Any) -> T:
        """Like `rollbook_read`, with the fields in the body because they may be too long for a query string."""
        call = StoreCall(operation, "POST", path, requests.body(**requests.given(**fields)), rollbook_only=True)
        return await self.transport.request(call, decode)

    async def page(
        self, operation: str, path: str, query: PageQuery, decode: Callable[[bytes], PaginatedResult[T]]
    ) -> PaginatedResult[T]:
        """Send a query in the request body, and return one page of its matches."""
        call = StoreCall(operation, "POST", path, requests.body(**await self.keys(query)))
        return with_limit(await self.transport.request(call, decode), query.limit)

    async def keys(self, query: PageQuery) -> dict[str, Any]:
        """Return a query as the fields of a request.

        Raises:
            Incompatible: the query uses additions to Agent-lightning, and the server is not a Rollbook server.
        """
        if query.uses_additions and not self.server_checked:
            await self.check_server("a query with additions to Agent-lightning")
        return {**requests.query(query), **await self.moment(query.as_at, getattr(query, "at", None))}

    async def read(self, operation: str, path: str, fields: dict[str, Any], decode: Callable[[bytes], T]) -> T:
        """Send a read with the fields in its query string, and return its decoded response."""
        return await self.transport.request(reading(operation, path + requests.query_string(fields)), decode)

    async def find(
        self,
        operation: str,
        template: str,
        field: str,
        key: str,
        fields: dict[str, Any],
        decode: Callable[[bytes], T | None],
    ) -> T | None:
        """Return the object at a path, or None if it does not exist."""
        if not requests.is_nameable(requests.lookup_id(key, field)):
            return None
        return await self.read(operation, requests.path(template, **{field: key}), fields, decode)

    async def moment(self, as_at: AsAt | None, at: int | None = None) -> dict[str, Any]:
        """Return the request fields that make a read return a past state; empty for the present state.

        Raises:
            Incompatible: the server is not a Rollbook server; it would ignore the fields and return the present state.
        """
        moment = requests.moment(as_at, at)
        if moment and not self.server_checked:
            await self.check_server("as_at")
        return moment

    async def in_slices(
        self, operation: str, seconds: float, request: Callable[[float], Awaitable[T]], is_over: Callable[[T], bool]
    ) -> T:
        """Repeat a request that asks the server to wait, until the response is complete or the time is over.

        Return the last response.

        Args:
            operation: the name of the method, for errors.
            seconds: the total time to wait.
            request: sends a request that asks the server to wait for at most the given number of seconds.
            is_over: returns whether a response is complete.
        """
        deadline = time.monotonic() + seconds
        left = seconds
        while True:
            began = time.monotonic()
            requested = min(left, SLICE_SECONDS)
            answer = await request(requested)
            now = time.monotonic()
            left = deadline - now
            if left <= 0 or is_over(answer):
                return answer
            if now - began < requested * FULL_WAIT:
                # This server responds at once instead of waiting, as servers of Agent-lightning do, so the client
                # pauses.
                await self.transport.pause(operation, min(left, _NO_WAIT_PAUSE_SECONDS))


def with_limit(page: PaginatedResult[T], limit: int) -> PaginatedResult[T]:
    """Return a page with the given limit. For limit 0, the request had limit 1, because the protocol refuses 0."""
    if limit:
        return page
    return PaginatedResult(items=[], limit=0, offset=page.offset, total=page.total)
