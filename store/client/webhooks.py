"""Webhooks of a server, over HTTP. Decision 119."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import orjson

from store.client import requests
from store.client.core import HTTPCore
from store.client.store import HTTPStore
from store.client.transport import StoreCall
from store.wire import paths


class HTTPWebhooks:
    """Client of the webhooks of one partition of a server. Every method needs a key of the role `admin`."""

    def __init__(self, core: HTTPCore) -> None:
        self._core = core

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, *, api_key: str | None = None) -> AsyncGenerator[Self]:
        """Connect to a partition of a server during the block.

        Args:
            url: `http://host:port`, with an optional partition, as for `open_store`.
            api_key: an admin's key; None for the value of `ROLLBOOK_API_KEY`, if it is set.
        """
        # A repeated request could add a webhook twice, so no request is repeated.
        async with HTTPStore(url, api_key=api_key, retry_seconds=0) as store:
            yield cls(store.core)

    async def all(self) -> list[dict[str, Any]]:
        """Return all webhooks without their secrets, the oldest first."""
        return await self._send("query_webhooks", "GET", paths.WEBHOOKS)

    async def add(self, url: str, conditions: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """Add a webhook, and return it with its secret.

        Raises:
            Invalid: the URL or a condition is invalid, or the server refuses the address.
            Conflict: the partition has the maximum number of webhooks, or the server sends none.
        """
        body = requests.body(url=url, conditions=conditions)
        return await self._send("add_webhook", "POST", paths.WEBHOOKS, body)

    async def remove(self, webhook_id: str) -> dict[str, Any]:
        """Remove and return a webhook.

        Raises:
            NotFound: there is no webhook with this id.
        """
        return await self._send("remove_webhook", "DELETE", paths.path(paths.WEBHOOK, webhook_id=webhook_id))

    async def test(self, webhook_id: str) -> dict[str, Any]:
        """Let the server send a message of the type `webhook.test` once, and return it with its result.

        Raises:
            NotFound: there is no webhook with this id.
        """
        return await self._send("test_webhook", "POST", paths.path(paths.WEBHOOK_TEST, webhook_id=webhook_id))

    async def deliveries(self, limit: int, webhook_id: str | None = None) -> list[dict[str, Any]]:
        """Return the newest messages of a webhook, or of all webhooks, the newest first."""
        fields = {"limit": limit} | ({} if webhook_id is None else {"webhook_id": webhook_id})
        return await self._send("query_deliveries", "GET", paths.WEBHOOK_DELIVERIES + requests.query_string(fields))

    async def _send(self, operation: str, method: str, path: str, body: bytes | None = None) -> Any:
        call = StoreCall(operation, method, path, body, rollbook_only=True)
        return await self._core.transport.request(call, orjson.loads)
