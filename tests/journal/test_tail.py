"""Following the log: in order, without loss or repetition, and never another log."""

# A test of a part may look inside that part.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from store import open_store
from store.errors import Closed, Incompatible, Invalid, NotFound
from store.interface.store import Store
from store.journal import tail as tails
from store.models import EnqueueRolloutRequest, LoggedEvent
from store.sql import core, waiters
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.conftest import SQLITE
from tests.journal.database_helpers import fill, is_there, tamper

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For a claim about code that is the same on each database."""

PATIENCE = 60.0
"""For what happens at once, however busy the machine is."""
WRITES = """
import asyncio, sys
from store import open_store

async def main() -> None:
    store = await open_store(sys.argv[1])
    for number in range(20):
        await store.enqueue_rollout({"number": number})
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
async def filled(store: Store, clock: ManualClock) -> Store:
    await fill(store, clock)
    return store


def following(store: Store, after: str | None = None, **filters: Any) -> aclosing[AsyncGenerator[LoggedEvent, None]]:
    """Return a tail that is closed at the end of its block, as whoever leaves it early should."""
    return aclosing(cast("AsyncGenerator[LoggedEvent, None]", store.log.tail(after, **filters)))


async def read(store: Store, after: str | None = None, limit: int | None = None, **filters: Any) -> list[LoggedEvent]:
    received: list[LoggedEvent] = []
    async with following(store, after, **filters) as events:
        async for event in events:
            received.append(event)
            if limit is not None and len(received) == limit:
                break
    return received


async def test_the_complete_log_is_read_in_order(filled: Store) -> None:
    events = await read(filled)
    report = await filled.log.verify()
    assert [event.position for event in events] == list(range(1, report.events + 1))
    assert [event.commit_id for event in events] == sorted(event.commit_id for event in events)
    assert len({event.cursor for event in events}) == len(events)


@ON_SQLITE
async def test_events_carry_their_payload(filled: Store) -> None:
    events = await read(filled)
    enqueued = next(event for event in events if event.type == "rollout.enqueued")
    assert enqueued.body is not None
    assert enqueued.body["input"] == {"number": 0}
    changed = next(event for event in events if event.type == "rollout.status_changed")
    assert (changed.data["from"], changed.data["to"], changed.body) == ("queuing", "preparing", None)


async def test_an_empty_log_has_no_events(store: Store) -> None:
    assert await read(store) == []


async def test_a_reader_resumes_at_every_cursor_without_loss_or_repetition(filled: Store) -> None:
    events = await read(filled)
    for index, event in enumerate(events):
        assert await read(filled, after=event.cursor) == events[index + 1 :]


@ON_SQLITE
async def test_small_pages_give_the_same_events_as_one_page(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    events = await read(filled)
    monkeypatch.setattr(tails, "EVENTS_AT_ONCE", 3)
    assert await read(filled) == events


async def test_a_reader_receives_only_the_requested_types(filled: Store) -> None:
    events = await read(filled)
    spans = await read(filled, types=["span.recorded", "worker.seen"])
    assert spans == [event for event in events if event.type in {"span.recorded", "worker.seen"}]
    assert await read(filled, types=[]) == []


async def test_a_reader_receives_only_events_of_the_requested_rollout(filled: Store) -> None:
    events = await read(filled)
    name = next(event.stream for event in events if event.type == "span.recorded")
    of_one = await read(filled, rollout_id=name.removeprefix("rollout/"))
    assert of_one == [event for event in events if event.stream == name]
    assert await read(filled, rollout_id="ro-nobody") == []


@ON_SQLITE
async def test_a_filtered_reader_can_resume_unfiltered(filled: Store) -> None:
    events = await read(filled)
    (first,) = await read(filled, types=["worker.seen"], limit=1)
    assert await read(filled, after=first.cursor) == events[first.position :]


async def test_a_filtered_follower_skips_other_events_and_receives_the_next_match(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "EVENTS_AT_ONCE", 2)
    async with following(filled, follow=True, types=["resources.published"]) as events:
        seen = [await anext(events), await anext(events)]
        waiting = asyncio.ensure_future(anext(events))
        await until_waiting(filled)
        await filled.enqueue_rollout({"not": "asked for"})
        await filled.add_resources({})
        assert (await asyncio.wait_for(waiting, PATIENCE)).position > seen[-1].position


@pytest.fixture
def no_slow_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the slow poll that stands behind the news: what is heard now was told."""
    for module in (core, waiters):
        monkeypatch.setattr(module, "FALLBACK_SECONDS", 3600.0)


async def until_waiting(store: Store) -> None:
    """Return once somebody waits for what is committed next."""
    assert isinstance(store, SQLStore)
    async with asyncio.timeout(PATIENCE):
        while not store.core.waiting._followers:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("no_slow_poll")
async def test_a_follower_receives_a_commit_at_once(store: Store) -> None:
    async with following(store, follow=True) as events:
        for number in range(5):
            waiting = asyncio.ensure_future(anext(events))
            await until_waiting(store)
            assert not waiting.done()
            await store.enqueue_rollout({"number": number})
            event = await asyncio.wait_for(waiting, PATIENCE)
            assert event.body is not None
            assert event.body["input"] == {"number": number}


async def test_a_follower_receives_all_events_of_many_writers(store: Store) -> None:
    async def write(worker: int) -> None:
        for number in range(10):
            started = await store.start_rollout({"worker": worker, "number": number})
            await store.add_span(make_span(started.attempt))

    writing = asyncio.gather(*(write(worker) for worker in range(8)))
    positions: list[int] = []
    async with following(store, follow=True, types=["rollout.started", "span.recorded"]) as events:
        async for event in events:
            positions.append(event.position)
            if len(positions) == 8 * 10 * 2:
                break
    await writing
    assert positions == sorted(set(positions))


@pytest.mark.slow
@pytest.mark.usefixtures("no_slow_poll")
async def test_a_follower_wakes_for_commits_of_another_process(durable_url: str, tmp_path: Path) -> None:
    script = tmp_path / "writes.py"
    script.write_text(WRITES)
    async with await open_store(durable_url) as store, following(store, follow=True) as events:
        process = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, str(script), durable_url],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        numbers: list[int] = []
        while len(numbers) < 20:
            event = await asyncio.wait_for(anext(events), PATIENCE)
            assert event.body is not None
            numbers.append(event.body["input"]["number"])
        assert await asyncio.to_thread(process.wait) == 0
        assert numbers == list(range(20))


async def test_closing_the_store_ends_a_follower(store_url: str) -> None:
    store = await open_store(store_url)
    events = store.log.tail(follow=True)
    waiting = asyncio.ensure_future(anext(events))
    await until_waiting(store)
    await store.close()
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, PATIENCE)


@ON_SQLITE
async def test_invalid_cursor_is_refused(filled: Store, subtests: pytest.Subtests) -> None:
    for text in ("", "7", "2.a.1.0000000000000000.1", "1.a.x.0000000000000000.1", "1.a.1.00.1", "1"):
        with subtests.test(text=text), pytest.raises(Invalid, match="cursor"):
            await read(filled, after=text)


@ON_SQLITE
async def test_a_cursor_of_another_store_is_refused(filled: Store) -> None:
    (event,) = await read(filled, limit=1)
    async with await open_store("memory://") as other:
        await other.enqueue_rollout({"q": 1})
        with pytest.raises(Incompatible, match="store"):
            await read(other, after=event.cursor)


@ON_SQLITE
@pytest.mark.parametrize("part, value", [(2, "99999"), (3, "f" * 16), (4, "99999")])
async def test_a_cursor_that_does_not_match_the_log_is_refused(filled: Store, part: int, value: str) -> None:
    parts = (await read(filled))[10].cursor.split(".")
    parts[part] = value
    with pytest.raises(Incompatible, match="restored or replaced"):
        await read(filled, after=".".join(parts))


@ON_SQLITE
async def test_a_cursor_beyond_a_restored_log_is_refused(durable_url: str, clock: ManualClock) -> None:
    async with await open_store(durable_url, clock=clock, scan_debounce_seconds=0) as store:
        await fill(store, clock)
        last = (await read(store))[-1]
        await tamper(
            durable_url,
            f"DELETE FROM events WHERE commit_id = {last.commit_id}",
            f"DELETE FROM commits WHERE commit_id = {last.commit_id}",
        )
        with pytest.raises(Incompatible):
            await read(store, after=last.cursor)


async def test_history_numbers_the_facts_of_a_rollout_without_holes(filled: Store) -> None:
    events = await read(filled)
    stream = next(event.stream for event in events if event.type == "span.recorded")
    history = await filled.log.history(stream.removeprefix("rollout/"))
    assert [event.number for event in history] == list(range(1, len(history) + 1))
    assert [event.position for event in history] == [event.position for event in events if event.stream == stream]
    claim = history[1]
    assert (claim.type, claim.actor, claim.data["worker_id"]) == ("attempt.started", "worker:w1", "w1")
    spans = [event for event in history if event.type == "span.recorded"]
    assert len(spans) == 3
    assert all(span.body and span.body_hash and len(span.body_hash) == 64 for span in spans)


@ON_SQLITE
async def test_history_contains_the_cause_of_an_event(filled: Store) -> None:
    stream = next(event.stream for event in await read(filled) if event.type == "span.recorded")
    history = {event.position: event for event in await filled.log.history(stream.removeprefix("rollout/"))}
    caused = [event for event in history.values() if event.cause is not None]
    assert caused
    assert all(history[event.cause].position < event.position for event in caused if event.cause in history)


async def test_history_as_at_a_position_ends_at_this_position(store: Store) -> None:
    await store.add_resources({})
    rollout = await store.enqueue_rollout({"q": 1})
    await store.update_rollout(rollout.rollout_id, metadata={"a": 1})
    history = await store.log.history(rollout.rollout_id)
    assert await store.log.history(rollout.rollout_id, as_at=history[0].position) == history[:1]
    assert await store.log.history(rollout.rollout_id, as_at=datetime.now(UTC)) == history
    with pytest.raises(NotFound):
        await store.log.history(rollout.rollout_id, as_at=1)


@ON_SQLITE
async def test_the_history_of_an_unknown_rollout_is_not_found(filled: Store) -> None:
    with pytest.raises(NotFound, match="ro-nobody"):
        await filled.log.history("ro-nobody")
    assert not await is_there(filled, "ro-nobody")


async def test_a_long_history_is_complete(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "EVENTS_AT_ONCE", 7)
    (rollout,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={})])
    for number in range(20):
        await store.update_rollout(rollout.rollout_id, metadata={"number": number})
    history = await store.log.history(rollout.rollout_id)
    assert [event.number for event in history] == list(range(1, 22))


@pytest.fixture
async def two_stores(durable_url: str) -> AsyncIterator[tuple[Store, Store]]:
    async with await open_store(durable_url) as one, await open_store(durable_url) as two:
        yield one, two


async def test_a_reader_can_continue_at_the_cursor_of_another_reader(two_stores: tuple[Store, Store]) -> None:
    one, two = two_stores
    for number in range(6):
        await one.enqueue_rollout({"number": number})
    (*_, third) = await read(one, limit=3)
    rest = await read(two, after=third.cursor)
    assert [event.position for event in rest] == [4, 5, 6]
