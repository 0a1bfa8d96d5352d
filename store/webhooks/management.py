"""Changes of webhooks by users: add, remove, test. A server calls them for HTTP and for its pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from store.db.url import with_partition
from store.errors import Conflict
from store.runtime.loop_thread import LoopThread
from store.webhooks.conditions import Settings, checked_conditions
from store.webhooks.records import Delivery, Webhook, Webhooks
from store.webhooks.signing import new_secret

T = TypeVar("T")


async def add_webhook(
    webhooks: Webhooks, url: str, conditions: Mapping[str, Settings], *, allow_private: bool
) -> Webhook:
    """Add a webhook with a new secret.

    Args:
        webhooks: the webhooks of a partition.
        url: the address of the receiver.
        conditions: the settings of conditions by name; empty for all conditions that need no scanner.
        allow_private: whether the address may be private.

    Raises:
        Invalid: the URL or a condition is invalid, or the address is private or cannot be resolved.
        Conflict: the partition has the maximum number of webhooks.
    """
    # The application of a server imports this module, and must not import the HTTP client.
    from store.webhooks.delivery import check_url

    settings = checked_conditions(conditions)
    return await webhooks.add(await check_url(url, allow_private=allow_private), new_secret(), settings)


async def test_webhook(webhooks: Webhooks, webhook_id: str, *, allow_private: bool) -> Delivery:
    """Send a message of the type `webhook.test` once, and return it with its result.

    Raises:
        NotFound: there is no webhook with this id.
        Conflict: the webhook was removed during the attempt.
    """
    from store.webhooks.delivery import LEASE_SECONDS, deliver

    webhook, message = await webhooks.add_test(webhook_id, LEASE_SECONDS)
    delivery = await deliver(webhooks, webhook, message, allow_private=allow_private)
    if delivery is None:
        raise Conflict(f"the webhook {webhook_id} was removed during the attempt", "see `rollbook webhooks ls`")
    return delivery


class WebhookService(NamedTuple):
    """The webhooks of the partitions of a server.

    Each method opens the database in a thread, because writes to SQLite block their event loop.
    """

    db: str
    """The URL of the database of the server."""
    allow_private: bool
    """Whether receivers may have private addresses."""

    async def add(self, partition: str, url: str, conditions: Mapping[str, Settings]) -> Webhook:
        """Add a webhook, as `add_webhook` does."""
        return await self._run(
            partition, lambda webhooks: add_webhook(webhooks, url, conditions, allow_private=self.allow_private)
        )

    async def remove(self, partition: str, webhook_id: str) -> Webhook:
        """Remove and return a webhook.

        Raises:
            NotFound: there is no webhook with this id.
        """
        return await self._run(partition, lambda webhooks: webhooks.remove(webhook_id))

    async def test(self, partition: str, webhook_id: str) -> Delivery:
        """Send a test, as `test_webhook` does."""
        return await self._run(
            partition, lambda webhooks: test_webhook(webhooks, webhook_id, allow_private=self.allow_private)
        )

    async def _run(self, partition: str, work: Callable[[Webhooks], Awaitable[T]]) -> T:
        async def run() -> T:
            async with Webhooks.opened(with_partition(self.db, partition)) as webhooks:
                return await work(webhooks)

        thread = LoopThread("rollbook webhook")
        try:
            return await thread.run(run())
        finally:
            # The end of the thread may wait for the lock of a SQLite file.
            await asyncio.to_thread(thread.leave)


def required_service(service: WebhookService | None) -> WebhookService:
    """Return the service of a server.

    Raises:
        Conflict: the server sends no webhooks.
    """
    if service is None:
        reason = "this server sends no webhooks: its store is in memory, it is read-only, or it runs inside a program"
        raise Conflict(reason, "use `rollbook serve` with a database, or `rollbook webhooks`")
    return service
