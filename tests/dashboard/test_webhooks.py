"""The page and the routes of webhooks: webhooks are added, tested and removed, and secrets are displayed once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from store import open_store
from store.client.webhooks import HTTPWebhooks
from store.errors import NotFound
from store.interface.store import Store
from store.server.partitions import Partitions
from store.webhooks.management import WebhookService
from tests.dashboard.page_helpers import Read
from tests.server.api import Answer, Api, speaking_to
from tests.webhooks.receivers import receiving

HTML = {"Accept": "text/html"}


@pytest.fixture(params=[True])
async def api(store: Store, store_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    service = WebhookService(store_url, allow_private=request.param)
    async with speaking_to(Partitions(store, store_url), webhook_service=service) as api:
        yield api


async def send(api: Api, path: str = "webhooks", **fields: Any) -> Answer:
    """Send a form of the dashboard."""
    headers = {"Origin": api.url, **HTML}
    return await api.send("POST", f"//ui/{path}", data=fields, headers=headers, allow_redirects=False)


async def texts(api: Api) -> list[str]:
    """Return all that can be read about webhooks."""
    paths = ("//ui/webhooks", "//ui/webhooks.json", "/webhooks", "/webhooks/deliveries")
    return [(await api.get(path)).body.decode() for path in paths]


async def test_webhook_is_added_tested_and_removed_on_the_page(api: Api) -> None:
    assert "rollbook webhooks add" in Read((await api.get("//ui/webhooks")).body).text
    async with receiving(204, 500) as receiver:
        added = await send(api, url=receiver.url, on="failure_rate", **{"failure_rate.above": "0.25"})
        assert added.status == 201
        (secret,) = [word for word in Read(added.body).text.split() if word.startswith("whsec_")]
        (webhook,) = (await api.get("//ui/webhooks.json")).ok()["webhooks"]
        assert webhook["conditions"] == {"failure_rate": {"rollouts": 100, "above": 0.25}}
        assert (webhook["url"], webhook["holds_since"], webhook["last_delivery"]) == (receiver.url, {}, None)
        for status, error in ((204, None), (500, "the receiver answered with the status 500")):
            tested = await send(api, f"webhooks/{webhook['id']}/test")
            assert (tested.status, tested.headers["location"]) == (303, "/ui/webhooks")
            message = (await api.get("//ui/webhooks.json")).ok()["webhooks"][0]["last_delivery"]
            assert (message["response_status"], message["error"]) == (status, error)
        assert [body for body in await texts(api) if secret in body] == []
        page = Read((await api.get(f"//ui/webhooks?webhook={webhook['id']}")).body).text
        assert "the receiver answered with the status 500" in page
    assert (await send(api, f"webhooks/{webhook['id']}/remove")).status == 303
    assert (await api.get("//ui/webhooks.json")).ok()["webhooks"] == []
    assert (await send(api, f"webhooks/{webhook['id']}/remove")).status == 404


async def test_webhook_is_added_tested_and_removed_over_http(api: Api) -> None:
    async with receiving(204) as receiver, HTTPWebhooks.opened(api.url) as client:
        added = await client.add(receiver.url, {"scanner_rate/loops": {"above": 0.2}})
        secret = added.pop("secret")
        assert added["conditions"] == {"scanner_rate/loops": {"rollouts": 100, "above": 0.2}}
        assert await client.all() == [added]
        tested = await client.test(added["id"])
        assert (tested["status"], tested["response_status"], tested["body"]["type"]) == (
            "delivered",
            204,
            "webhook.test",
        )
        assert await client.deliveries(1, added["id"]) == [tested]
        assert await client.deliveries(9, "none") == []
        assert [body for body in await texts(api) if secret in body] == []
        assert await client.remove(added["id"]) == added
        for call in (client.remove, client.test):
            with pytest.raises(NotFound, match="there is no webhook"):
                await call(added["id"])


@pytest.mark.parametrize("api", [False], indirect=True)
@pytest.mark.parametrize(
    "body, reason",
    [
        ({"url": "http://127.0.0.1:1/"}, "127.0.0.1 is not a public address; permit it with"),
        ({"url": "ftp://8.8.8.8/"}, "is not the URL of a receiver"),
        ({"url": "https://8.8.8.8/", "conditions": {"scanner_rate": {}}}, "'scanner_rate' is not a condition"),
        (
            {"url": "https://8.8.8.8/", "conditions": {"failure_rate": {"above": 2}}},
            "above=2 of failure_rate is out of",
        ),
        ({"url": "https://8.8.8.8/", "conditions": {"run_ended": {"x": 1}}}, "'x' is not a setting of run_ended"),
    ],
)
async def test_invalid_webhook_is_refused(api: Api, body: dict[str, Any], reason: str) -> None:
    answer = await api.post("/webhooks", body)
    assert (answer.status, answer.json["error_type"]) == (422, "Invalid")
    assert reason in answer.detail


async def test_invalid_field_of_the_form_is_named(api: Api) -> None:
    for fields, reason in (
        ({}, "select at least one condition"),
        ({"on": "other"}, "must be one of"),
        ({"on": "stuck_queue", "stuck_queue.seconds": "soon"}, "'soon' is not a number"),
        ({"on": "scanner_rate", "scanner": " "}, "'scanner_rate/' is not a condition"),
    ):
        answer = await send(api, url="https://8.8.8.8/", **fields)
        assert answer.status == 422
        assert reason in Read(answer.body).text


async def test_server_without_webhooks_refuses_them_and_lists_them() -> None:
    async with await open_store("memory://") as store, speaking_to(Partitions(store)) as api:
        assert (await api.get("/webhooks")).ok() == []
        refused = await api.post("/webhooks", {"url": "https://8.8.8.8/"})
        assert (refused.status, refused.json["error_type"]) == (409, "Conflict")
        assert "This server sends no webhooks" in Read((await api.get("//ui/webhooks")).body).text
