"""The page of webhooks: their conditions and states, and the log of their messages. Decision 119."""

from __future__ import annotations

import logging
from functools import partial

from store.dashboard.page import Done, PageContent, Pages
from store.dashboard.request import PageRequest
from store.errors import Invalid
from store.webhooks.conditions import CONDITIONS
from store.webhooks.management import WebhookService, required_service
from store.webhooks.records import all_webhooks, newest_deliveries

logger = logging.getLogger("store.dashboard")

pages = Pages()


@pages.get("/ui/webhooks", role="admin")
async def webhooks(request: PageRequest) -> PageContent:
    """Show the webhooks without their secrets, and the newest messages."""
    chosen = request.one("webhook") or None
    look = request.store.core.look
    rows = [webhook.public_fields() for webhook in await look(all_webhooks)]
    for row in rows:
        newest = await look(partial(newest_deliveries, limit=1, webhook_id=row["id"]))
        row["last_delivery"] = newest[0].public_fields() if newest else None
    messages = await look(partial(newest_deliveries, limit=request.rows, webhook_id=chosen))
    service: WebhookService | None = request.extra.get("webhooks")
    values = {
        "webhooks": rows,
        "deliveries": [message.public_fields() for message in messages],
        "chosen": chosen,
        "sends": service is not None,
        "allows_private": service is not None and service.allow_private,
    }
    return PageContent("webhooks.html", values, "Webhooks", hidden={"kinds": CONDITIONS})


@pages.post("/ui/webhooks", role="admin")
async def add(request: PageRequest) -> PageContent:
    """Add a webhook, and show its secret once.

    Raises:
        Invalid: no condition is selected, or a field is invalid.
        Conflict: this server sends no webhooks, or there are too many.
    """
    conditions: dict[str, dict[str, float]] = {}
    for name in request.several_among("on", list(CONDITIONS)):
        kind, settings = CONDITIONS[name], dict[str, float]()
        for key in kind.defaults:
            text = request.one(f"{name}.{key}")
            try:
                settings |= {key: float(text)} if text else {}
            except ValueError:
                raise Invalid(f"{name}.{key}", f"{text[:80]!r} is not a number") from None
        conditions[f"{name}/{request.one('scanner').strip()}" if kind.needs_scanner else name] = settings
    if not conditions:
        raise Invalid("on", "select at least one condition")
    service = required_service(request.extra.get("webhooks"))
    webhook = await service.add(request.partition, request.one("url").strip(), conditions)
    logger.info("%s added the webhook %s", request.visitor.actor, webhook.webhook_id)
    # The secret is not a value of the page, so that the JSON version of the page does not contain it.
    values = {"webhook": webhook.public_fields()}
    return PageContent("webhook_secret.html", values, "New webhook", 201, hidden={"secret": webhook.secret})


@pages.post("/ui/webhooks/{webhook_id}/remove", role="admin")
async def remove(request: PageRequest) -> Done:
    """Remove a webhook with its messages."""
    webhook_id = request.ids["webhook_id"]
    await required_service(request.extra.get("webhooks")).remove(request.partition, webhook_id)
    logger.info("%s removed the webhook %s", request.visitor.actor, webhook_id)
    return Done(request.url("webhooks"), f"The webhook {webhook_id} is removed.")


@pages.post("/ui/webhooks/{webhook_id}/test", role="admin")
async def test(request: PageRequest) -> Done:
    """Send a test to a receiver."""
    service = required_service(request.extra.get("webhooks"))
    delivery = await service.test(request.partition, request.ids["webhook_id"])
    result = f"was delivered, with the status {delivery.response_status}"
    if delivery.error is not None:
        result = f"failed: {delivery.error}"
    return Done(request.url("webhooks"), f"The test of the webhook {delivery.webhook_id} {result}.")
