"""What the parts of a store over HTTP share: its connections, and how they ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from store.client import requests, run_requests
from store.client.transport import StoreCall, Transport, changing, reading
from store.errors import ReadOnly
from store.wire import encoding, paths

T = TypeVar("T")


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
