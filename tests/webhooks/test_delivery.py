"""Delivery of webhooks: signatures, retries, refused addresses, and one sender at a time."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.errors import Conflict, Invalid, NotFound
from store.sql.store import SQLStore
from store.testing.clock import ManualClock
from store.webhooks import delivery, records
from store.webhooks.conditions import parse_conditions
from store.webhooks.delivery import (
    LEASE_SECONDS,
    RETRY_SECONDS,
    TIMEOUT_SECONDS,
    SendResult,
    WebhookThread,
    check_address,
    check_url,
    deliver,
    send,
)
from store.webhooks.records import Delivery, Webhook, Webhooks
from store.webhooks.signing import new_secret, signed_headers
from tests.conftest import POSTGRES, SQLITE
from tests.webhooks.receivers import receiving

BOTH = pytest.mark.parametrize("url", [SQLITE, POSTGRES], indirect=True)


@pytest.fixture
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    kind = getattr(request, "param", "sqlite")
    return f"sqlite:///{tmp_path / 'rollbook.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def webhooks(url: str, clock: ManualClock) -> AsyncGenerator[Webhooks]:
    await (await SQLStore.open(url)).close()
    async with Webhooks.opened(url, clock=clock) as opened:
        yield opened


async def idle_webhook(webhooks: Webhooks, url: str) -> Webhook:
    return await webhooks.add(url, new_secret(), parse_conditions(["run_ended"]))


async def waiting_message(webhooks: Webhooks, webhook: Webhook) -> Delivery:
    """Add a message that is due, as the check of a condition does."""
    async with webhooks._writing() as (session, now):
        message = webhooks._message(webhook, "pipeline_run.ended", "", {}, now, "http://host")
        await webhooks._insert(session, webhook, [message])
    return message


def test_signature_equals_the_example_of_another_implementation() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    headers = signed_headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_function_of_the_documentation_accepts_a_message_and_refuses_a_changed_or_old_one() -> None:
    page = (Path(__file__).parents[2] / "docs/webhooks.md").read_text()
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    is_authentic, secret = names["is_authentic"], new_secret()
    headers = signed_headers(secret, "msg_1", 1000, b"{}")
    assert is_authentic(secret, headers, b"{}", now=1000)
    assert not is_authentic(secret, headers, b"{ }", now=1000)
    assert not is_authentic(secret, headers, b"{}", now=1301)
    assert not is_authentic(secret, headers, b"{}")
    assert not is_authentic(new_secret(), headers, b"{}", now=1000)


@BOTH
async def test_message_is_retried_with_equal_id_until_it_succeeds(webhooks: Webhooks, clock: ManualClock) -> None:
    async with receiving(500, 204) as receiver:
        webhook = await idle_webhook(webhooks, receiver.url)
        message = await waiting_message(webhooks, webhook)
        [(_, first)] = await webhooks.claim(lease_seconds=60)
        failed = await deliver(webhooks, webhook, first, allow_private=True)
        assert failed is not None
        assert (failed.status, failed.response_status, failed.attempts) == ("waiting", 500, 1)
        assert failed.next_at == webhooks.now + RETRY_SECONDS[0] * 1_000_000
        assert await webhooks.claim(lease_seconds=60) == []
        clock.advance(RETRY_SECONDS[0])
        [(_, second)] = await webhooks.claim(lease_seconds=60)
        delivered = await deliver(webhooks, webhook, second, allow_private=True)
        assert delivered is not None
        assert (delivered.status, delivered.error, delivered.next_at) == ("delivered", None, None)
        assert await webhooks.next_at() is None
        assert await webhooks.deliveries(9) == [delivered]
    assert len(receiver.requests) == 2
    key = base64.b64decode(webhook.secret.removeprefix("whsec_"))
    stamps: set[str] = set()
    for headers, body in receiver.requests:
        assert headers["webhook-id"] == message.delivery_id
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        stamps.add(headers["webhook-timestamp"])
        assert json.loads(body)["url"] == "http://host/ui/"
    assert len(stamps) == 2


async def test_message_fails_after_the_last_retry(webhooks: Webhooks, clock: ManualClock) -> None:
    webhook = await idle_webhook(webhooks, "http://10.0.0.1/")
    await waiting_message(webhooks, webhook)
    result: Delivery | None = None
    for pause in (*RETRY_SECONDS, None):
        [(_, message)] = await webhooks.claim(lease_seconds=60)
        result = await deliver(webhooks, webhook, message, allow_private=False)
        assert result is not None
        assert "not a public address" in str(result.error)
        clock.advance(pause or 0)
    assert result is not None
    assert (result.status, result.next_at) == ("failed", None)


@BOTH
async def test_two_servers_send_a_message_once_and_a_killed_sender_repeats_it(
    webhooks: Webhooks, url: str, clock: ManualClock
) -> None:
    webhook = await idle_webhook(webhooks, "http://10.0.0.1/")
    await waiting_message(webhooks, webhook)
    async with Webhooks.opened(url, clock=clock) as other:
        claims = await asyncio.gather(webhooks.claim(lease_seconds=60), other.claim(lease_seconds=60))
        [(_, message)] = [claim for claimed in claims for claim in claimed]
        # The sender is killed before it stores the result, so another server sends the message again.
        clock.advance(60)
        [(_, again)] = await other.claim(lease_seconds=60)
        assert again.delivery_id == message.delivery_id
        assert again.attempts == 2
        # A sender that was only slow does not overwrite the result of the other.
        assert await webhooks.record(message, response_status=200, error=None, retry_seconds=None) is None
        assert await other.record(again, response_status=200, error=None, retry_seconds=None) is not None


async def test_receiver_that_hangs_ends_an_attempt_and_delays_no_other(webhooks: Webhooks) -> None:
    async with receiving() as hanging, receiving(200) as quick:
        both = [await idle_webhook(webhooks, receiver.url) for receiver in (hanging, quick)]
        for webhook in (*both, *both[:1]):
            await waiting_message(webhooks, webhook)
        claimed = await webhooks.claim(lease_seconds=60)
        # One receiver takes at most one message at a time.
        assert {webhook.webhook_id for webhook, _ in claimed} == {webhook.webhook_id for webhook in both}
        assert len(claimed) == 2
        assert await webhooks.claim(lease_seconds=60, busy=[both[0].webhook_id]) == []
        results = await asyncio.gather(
            *[
                deliver(webhooks, webhook, message, allow_private=True, timeout_seconds=0.2)
                for webhook, message in claimed
            ]
        )
    states = {result.webhook_id: (result.status, result.error) for result in results if result is not None}
    assert states == {
        both[0].webhook_id: ("waiting", "no response after 0.2 s"),
        both[1].webhook_id: ("delivered", None),
    }


async def test_redirect_is_not_followed(webhooks: Webhooks) -> None:
    async with receiving(200) as target, receiving(302, location=target.url) as receiver:
        webhook = await idle_webhook(webhooks, receiver.url)
        result = await send(webhook, await waiting_message(webhooks, webhook), allow_private=True)
        assert result == SendResult(302, "the receiver answered with the status 302")
        assert target.requests == []


async def test_long_response_is_not_read_and_a_closed_connection_is_an_error(webhooks: Webhooks) -> None:
    async with receiving(200, has_endless_body=True) as receiver:
        webhook = await idle_webhook(webhooks, receiver.url)
        message = await waiting_message(webhooks, webhook)
        assert await send(webhook, message, allow_private=True) == SendResult(200, None)
    async with receiving(0) as receiver:
        result = await send(replace(webhook, url=receiver.url), message, allow_private=True)
        assert (result.status, str(result.error).partition(":")[0]) == (None, "ServerDisconnectedError")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]"])
async def test_host_that_looks_like_an_address_is_checked_at_each_attempt(webhooks: Webhooks, host: str) -> None:
    async with receiving(200) as receiver:
        webhook = await idle_webhook(webhooks, f"http://{host}:{receiver.port}/")
        result = await send(webhook, await waiting_message(webhooks, webhook), allow_private=False)
        assert "is not a public address" in str(result.error)
        assert receiver.requests == []


async def test_name_server_that_hangs_ends_an_attempt_and_leaves_only_a_daemon_thread(
    webhooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = await idle_webhook(webhooks, "http://name.example/")
    message = await waiting_message(webhooks, webhook)
    hanging = threading.Event()

    def resolve(*_: Any) -> list[Any]:
        hanging.wait()
        return []

    monkeypatch.setattr(delivery, "getaddrinfo", resolve)
    try:
        result = await send(webhook, message, allow_private=False, timeout_seconds=0.05)
        assert result == SendResult(None, "no response after 0.05 s")
        (thread,) = [thread for thread in threading.enumerate() if thread.name.endswith("name lookup")]
        assert thread.daemon
    finally:
        hanging.set()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.1.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "100.100.100.200"),
        *("::1", "fe80::1%eth0", "fd00:ec2::254", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::"),
        "168.63.129.16",
    ],
)
def test_private_address_is_refused(address: str) -> None:
    with pytest.raises(OSError, match="not a public address"):
        check_address(address)
    check_address("93.184.216.34")
    check_address("2606:2800:220:1:248:1893:25c8:1946")


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:1/",
        "http://0x7f.1/",
        "http://[::ffff:10.0.0.1]/",
        "ftp://host/",
        "http://",
        "http://u:p@8.8.8.8",
    ],
)
async def test_url_of_a_private_address_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        await check_url(url, allow_private=False)


async def test_name_that_changes_to_a_private_address_receives_nothing(
    webhooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ["93.184.216.34", "127.0.0.1", "127.0.0.1"]
    async with receiving(200) as receiver:

        def resolve(host: str, port: int, *_: Any) -> list[Any]:
            assert host == "name.example"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses.pop(0), port))]

        monkeypatch.setattr(delivery, "getaddrinfo", resolve)
        url = f"http://name.example:{receiver.port}/"
        webhook = await idle_webhook(webhooks, await check_url(url, allow_private=False))
        message = await waiting_message(webhooks, webhook)
        refused = await send(webhook, message, allow_private=False)
        assert "127.0.0.1 is not a public address" in str(refused.error)
        assert receiver.requests == []
        # The connection uses the address of the check, and the request has the name.
        assert await send(webhook, message, allow_private=True) == SendResult(200, None)
        assert receiver.requests[0][0]["host"] == f"name.example:{receiver.port}"


async def test_server_thread_delivers_messages_that_are_due(webhooks: Webhooks, url: str) -> None:
    async with receiving(200) as receiver:
        webhook = await idle_webhook(webhooks, receiver.url)
        await waiting_message(webhooks, webhook)
        thread = WebhookThread(allow_private=True)
        thread.follow("default", url, "http://host")
        try:
            async with asyncio.timeout(60):
                while (await webhooks.deliveries(1))[0].status != "delivered":  # noqa: ASYNC110 - another thread writes
                    await asyncio.sleep(0.02)
        finally:
            await asyncio.to_thread(thread.close)


async def test_stop_of_a_server_does_not_wait_for_a_receiver_that_hangs(webhooks: Webhooks, url: str) -> None:
    async with receiving() as receiver:
        webhook = await idle_webhook(webhooks, receiver.url)
        await waiting_message(webhooks, webhook)
        thread = WebhookThread(allow_private=True)
        thread.follow("default", url, "http://host")
        async with asyncio.timeout(60):
            while not receiver.requests:  # noqa: ASYNC110 - the receiver has no event for it
                await asyncio.sleep(0.02)
        async with asyncio.timeout(TIMEOUT_SECONDS / 2):
            await asyncio.to_thread(thread.close)
        # Another server sends the message again after the lease.
        [row] = await webhooks.deliveries(9)
        assert (row.status, row.attempts) == ("waiting", 1)
        assert row.next_at == (row.attempted_at or 0) + LEASE_SECONDS * 1_000_000


@BOTH
async def test_removed_webhook_leaves_no_messages_and_old_messages_are_deleted(
    webhooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_MOST_DELIVERIES", 2)
    monkeypatch.setattr(records, "MAX_WEBHOOKS", 1)
    webhook = await idle_webhook(webhooks, "http://10.0.0.1/")
    with pytest.raises(Conflict):
        await idle_webhook(webhooks, "http://10.0.0.1/")
    sent = [await waiting_message(webhooks, webhook) for _ in range(3)]
    assert {row.delivery_id for row in await webhooks.deliveries(9)} <= {row.delivery_id for row in sent}
    assert len(await webhooks.deliveries(9)) == 2
    await webhooks.remove(webhook.webhook_id)
    assert (await webhooks.all(), await webhooks.deliveries(9)) == ([], [])
    with pytest.raises(NotFound):
        await webhooks.remove(webhook.webhook_id)
