"""Routes of webhooks. Decision 119."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from store.errors import Unsupported
from store.server.call import Call
from store.server.routing import Id, OwnStatusRoute, needs
from store.sql.core import SQLCore
from store.sql.database import database_of
from store.webhooks.management import WebhookService, required_service
from store.webhooks.records import all_webhooks, newest_deliveries
from store.wire import paths
from store.wire.encoding import dumps
from store.wire.webhook_bodies import (
    NewWebhook,
    WebhookMessage,
    WebhookMessagesQuery,
    WebhookSummary,
    WebhookWithSecret,
)

webhooks = APIRouter(route_class=OwnStatusRoute, tags=["Webhooks"])


def _core(call: Call) -> SQLCore:
    database = database_of(call.store)
    if database is None:
        raise Unsupported("webhooks", type(call.store).__name__)
    return database.core


def _service(call: Call) -> tuple[WebhookService, str]:
    return required_service(call.app.state.webhooks), call.scope["rollbook.partition"]


@webhooks.get(paths.WEBHOOKS, response_model=list[WebhookSummary])
@needs("admin")
async def query_webhooks(call: Call) -> bytes:
    """Return all webhooks without their secrets."""
    return dumps([webhook.public_fields() for webhook in await _core(call).look(all_webhooks)])


@webhooks.post(paths.WEBHOOKS, response_model=WebhookWithSecret, status_code=201)
@needs("admin")
async def add_webhook(call: Call, webhook: NewWebhook) -> bytes:
    """Add a webhook, and return it with its secret. A private address is refused unless the server permits it."""
    service, partition = _service(call)
    new = await service.add(partition, webhook.url, webhook.conditions)
    return dumps({**new.public_fields(), "secret": new.secret})


@webhooks.delete(paths.WEBHOOK, response_model=WebhookSummary)
@needs("admin")
async def remove_webhook(call: Call, webhook_id: Id) -> bytes:
    """Remove a webhook with its messages, also those that wait for a retry."""
    service, partition = _service(call)
    return dumps((await service.remove(partition, webhook_id)).public_fields())


@webhooks.post(paths.WEBHOOK_TEST, response_model=WebhookMessage)
@needs("admin")
async def test_webhook(call: Call, webhook_id: Id) -> bytes:
    """Send a message of the type `webhook.test` once, and return it with its result after ten seconds at most."""
    service, partition = _service(call)
    return dumps((await service.test(partition, webhook_id)).public_fields())


@webhooks.get(paths.WEBHOOK_DELIVERIES, response_model=list[WebhookMessage])
@needs("admin")
async def query_webhook_deliveries(call: Call, query: Annotated[WebhookMessagesQuery, Query()]) -> bytes:
    """Return the newest messages with their attempts and results."""
    read = partial(newest_deliveries, limit=query.limit, webhook_id=query.webhook_id)
    return dumps([message.public_fields() for message in await _core(call).look(read)])
