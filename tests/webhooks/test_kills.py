"""A server that is killed while it sends a message: the next server sends the message again, and no event is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import orjson
import pytest

from store import open_store
from store.interface.store import Store
from store.models import RunEvent
from store.webhooks.conditions import parse_conditions
from store.webhooks.records import Delivery, Webhooks
from store.webhooks.signing import new_secret
from tests.conftest import SQLITE
from tests.postgres import free_port
from tests.server.fleet import ForkedCommand
from tests.torture import Rounds
from tests.webhooks.receivers import Receiver, receiving

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(1800)]

POSTGRES_IN_TORTURE = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])


def shorten_intervals() -> None:
    """Let a server check and deliver every 0.2 s, and send messages of a killed server again after 0.2 s."""
    from store.server import webhooks as partitions
    from store.webhooks import delivery

    for module, name in ((partitions, "_FIRST_SECONDS"), (delivery, "CHECK_SECONDS"), (delivery, "LEASE_SECONDS")):
        setattr(module, name, 0.2)


def start_server(url: str) -> ForkedCommand:
    options = ("--db", url, "--port", str(free_port()), "--allow-private-webhooks")
    return ForkedCommand("serve", *options, before=shorten_intervals)


async def end_run(store: Store) -> str:
    run = await store.start_rollout(1)
    await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, [RunEvent(kind="note")])
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="succeeded")
    return run.rollout_id


async def kill_while_sending(url: str, receiver: Receiver, *, pause_seconds: float) -> None:
    """Start a server, and kill it after it has sent a message, which the receiver may have accepted."""
    count = len(receiver.requests)
    server = start_server(url)
    try:
        while len(receiver.requests) == count:  # noqa: ASYNC110 - the receiver has no event for it
            await asyncio.sleep(0.01)
        await asyncio.sleep(pause_seconds)
        server.kill()
    finally:
        server.end()


async def wait_for_deliveries(webhooks: Webhooks, count: int) -> list[Delivery]:
    """Wait until this number of messages is delivered, and return them."""
    while True:
        rows = await webhooks.deliveries(500)
        if Counter(row.status for row in rows)["delivered"] == count:
            return rows
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_message_of_a_killed_server_is_sent_again_and_no_event_is_lost(durable_url: str, rounds: Rounds) -> None:
    async with (
        await open_store(durable_url) as store,
        Webhooks.opened(durable_url) as webhooks,
        receiving() as receiver,
    ):
        await webhooks.add(receiver.url, new_secret(), parse_conditions(["run_ended"]))
        runs, unanswered = [await end_run(store)], set[str]()
        for number in range(rounds(40, few=1)):
            if is_answered := number % 2 == 1:
                receiver.statuses.append(200)
            await kill_while_sending(durable_url, receiver, pause_seconds=random.uniform(0, 0.02) if is_answered else 0)
            if not is_answered:
                unanswered.add(receiver.requests[-1][0]["webhook-id"])
            # A message that was accepted may be sent again too, if its result is not stored.
            runs.append(await end_run(store))
        receiver.statuses += [200] * 2 * len(runs)
        server = start_server(durable_url)
        try:
            rows = await wait_for_deliveries(webhooks, len(runs))
        finally:
            server.end()
    sent = Counter(headers["webhook-id"] for headers, _ in receiver.requests)
    assert all(sent[name] >= 2 for name in unanswered)
    assert sent.keys() == {row.delivery_id for row in rows}
    messages = {headers["webhook-id"]: body for headers, body in receiver.requests}
    assert sorted(orjson.loads(body)["data"]["rollout_id"] for body in messages.values()) == sorted(runs)
