"""Timeouts of attempts count only the time in which a process could receive signals of the attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from store import open_store
from store.errors import Unavailable
from store.interface.store import Store
from store.models import Rollout
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.contract.rollout_helpers import started, statuses
from store.testing.samples import make_span
from tests.conftest import SQLITE
from tests.faults.sessions import Trouble, Unreliable, wrapped

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For a claim about times that the process counts; the database stores them in the same way."""

HOUR = 3600.0
ALIVE = ("preparing", "preparing")
SILENT = ("failed", "unresponsive")


@asynccontextmanager
async def opened(url: str, clock: ManualClock) -> AsyncGenerator[Store]:
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as store:
        yield store


async def beat(store: Store, rollout: Rollout, at: float) -> None:
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=at)


async def test_a_sweep_after_an_outage_ends_no_live_attempt_and_later_the_dead_one(
    durable_url: str, clock: ManualClock
) -> None:
    async with opened(durable_url, clock) as before:
        rollouts = [await started(before, unresponsive_seconds=5) for _ in range(10)]
        clock.advance(4)
        for rollout in rollouts:
            await beat(before, rollout, clock.seconds)
    clock.advance(60)
    async with opened(durable_url, clock) as after:
        assert {rollout.status for rollout in await after.query_rollouts()} == {"preparing"}
        clock.advance(4)
        for rollout in rollouts[1:]:
            await beat(after, rollout, clock.seconds)
        assert {rollout.status for rollout in await after.query_rollouts()} == {"preparing"}
        clock.advance(1.1)
        ended = await after.query_rollouts(status_in=["failed"])
        assert [rollout.rollout_id for rollout in ended] == [rollouts[0].rollout_id]
        clock.advance(4)
        assert len(await after.query_rollouts(status_in=["failed"])) == 10


async def test_an_outage_does_not_count_against_the_time_limit(durable_url: str, clock: ManualClock) -> None:
    async with opened(durable_url, clock) as before:
        rollout = await started(before, timeout_seconds=10)
        clock.advance(6)
        await before.add_span(make_span(rollout.attempt))
    clock.advance(HOUR)
    async with opened(durable_url, clock) as after:
        assert await statuses(after, rollout) == ("running", "running")
        clock.advance(3.9)
        assert await statuses(after, rollout) == ("running", "running")
        clock.advance(0.2)
        assert await statuses(after, rollout) == ("failed", "timeout")


@ON_SQLITE
async def test_a_heartbeat_is_the_last_time_before_an_outage_at_which_a_server_ran(
    durable_url: str, clock: ManualClock
) -> None:
    async with opened(durable_url, clock) as before:
        rollout = await started(before, timeout_seconds=10)
        clock.advance(6)
        await beat(before, rollout, clock.seconds)
    clock.advance(HOUR)
    async with opened(durable_url, clock) as after:
        assert await statuses(after, rollout) == ALIVE
        clock.advance(4.1)
        assert await statuses(after, rollout) == ("failed", "timeout")


@asynccontextmanager
async def interrupted(url: str, clock: ManualClock, trouble: Trouble) -> AsyncGenerator[Store]:
    with wrapped(lambda session: Unreliable(session, trouble)):
        store = await SQLStore.open(url, clock=clock, scan_debounce_seconds=0)
    async with store:
        yield store


async def test_the_time_without_a_database_counts_against_no_attempt(durable_url: str, clock: ManualClock) -> None:
    trouble = Trouble()
    async with interrupted(durable_url, clock, trouble) as store:
        silent = await started(store, unresponsive_seconds=5)
        limited = await started(store, timeout_seconds=10)
        is_lost = threading.Event()

        def fail() -> None:
            is_lost.set()
            raise Unavailable("the database is down")

        trouble.before_begin = fail
        call = asyncio.ensure_future(store.enqueue_rollout(1))
        await asyncio.to_thread(is_lost.wait)
        clock.advance(60)
        trouble.before_begin = lambda: None
        await call
        assert await statuses(store, silent) == ALIVE
        assert await statuses(store, limited) == ALIVE
        clock.advance(5.1)
        assert await statuses(store, silent) == SILENT
        assert await statuses(store, limited) == ALIVE
        clock.advance(5)
        assert await statuses(store, limited) == ("failed", "timeout")


def process_clock(clock: ManualClock, _: float) -> float:
    return clock.seconds


def remote(clock: ManualClock, jump: float) -> float:
    return clock.seconds - jump


@ON_SQLITE
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
@pytest.mark.parametrize(
    "time_of", [process_clock, remote], ids=["a sender with this clock", "a sender with another clock"]
)
async def test_a_jump_of_the_clock_is_no_silence_and_hides_none(
    durable_url: str, clock: ManualClock, jump: float, time_of: Callable[[ManualClock, float], float]
) -> None:
    async with opened(durable_url, clock) as store:
        rollout = await started(store, unresponsive_seconds=5)
        clock.advance(1)
        clock.jump(jump)
        assert await statuses(store, rollout) == ALIVE
        for _ in range(5):
            clock.advance(3.5)
            await beat(store, rollout, time_of(clock, jump))
            assert await statuses(store, rollout) == ALIVE
        clock.advance(4.5)
        assert await statuses(store, rollout) == ALIVE
        clock.advance(1)
        assert await statuses(store, rollout) == SILENT


@ON_SQLITE
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_after_a_jump_spans_are_signs_of_life(durable_url: str, clock: ManualClock, jump: float) -> None:
    async with opened(durable_url, clock) as store:
        rollout = await started(store, unresponsive_seconds=5)
        clock.jump(jump)
        for number in range(1, 4):
            clock.advance(4)
            await store.add_span(make_span(rollout.attempt, number))
            assert await statuses(store, rollout) == ("running", "running")
        clock.advance(5.5)
        assert await statuses(store, rollout) == SILENT


@ON_SQLITE
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_jump_does_not_change_the_time_limit(durable_url: str, clock: ManualClock, jump: float) -> None:
    async with opened(durable_url, clock) as store:
        before = await started(store, timeout_seconds=5)
        clock.advance(2)
        clock.jump(jump)
        after = await started(store, timeout_seconds=5)
        clock.advance(2.9)
        assert (await statuses(store, before), await statuses(store, after)) == (ALIVE, ALIVE)
        clock.advance(0.2)
        assert await statuses(store, before) == ("failed", "timeout")
        assert await statuses(store, after) == ALIVE
        clock.advance(2)
        assert await statuses(store, after) == ("failed", "timeout")


@pytest.mark.parametrize(
    "durable_url,error",
    [
        ("sqlite", HOUR),
        ("sqlite", -HOUR),
        ("postgres", HOUR),
        pytest.param("postgres", -HOUR, marks=pytest.mark.torture_only),
    ],
    indirect=["durable_url"],
)
async def test_a_second_process_with_a_wrong_clock_ends_no_live_attempt(
    durable_url: str, clock: ManualClock, error: float
) -> None:
    wrong = ManualClock(clock())
    wrong.jump(error)

    def advance(seconds: float) -> None:
        for ticking in (clock, wrong):
            ticking.advance(seconds)

    async with opened(durable_url, clock) as right:
        silent = await started(right, unresponsive_seconds=5)
        limited = await started(right, timeout_seconds=60)
        advance(4)
        await beat(right, silent, clock.seconds)
        async with opened(durable_url, wrong) as other:
            for _ in range(5):
                for store in (right, other):
                    assert await statuses(store, silent) == ALIVE
                    assert await statuses(store, limited) == ALIVE
                # With the clock ahead, all later events of both processes are ahead too.
                await other.enqueue_rollout("written under a wrong clock")
                advance(4)
                await beat(right, silent, clock.seconds)
                await right.enqueue_rollout("written under a right clock")
            advance(5.1)
            assert await statuses(right, silent) == SILENT
            assert await statuses(other, limited) == ALIVE
            advance(31)
            assert await statuses(right, limited) == ("failed", "timeout")


async def test_heartbeat_of_another_process_is_a_sign_of_life(durable_url: str, clock: ManualClock) -> None:
    async with opened(durable_url, clock) as one, opened(durable_url, clock) as two:
        rollout = await started(one, unresponsive_seconds=5)
        for _ in range(3):
            clock.advance(4)
            await beat(two, rollout, clock.seconds)
            assert await statuses(one, rollout) == ALIVE
        # Only the second process knows how long ago this heartbeat was.
        clock.advance(5.1)
        assert await statuses(two, rollout) == SILENT
        assert await statuses(one, rollout) == SILENT


async def test_judgements_under_wrong_clocks_can_be_rebuilt(durable_url: str, clock: ManualClock) -> None:
    async with opened(durable_url, clock) as store:
        for jump in (HOUR, -2 * HOUR, HOUR):
            rollout = await started(store, unresponsive_seconds=5, max_attempts=2, retry_condition=["unresponsive"])
            clock.jump(jump)
            clock.advance(5.1)
            assert await statuses(store, rollout) == ("requeuing", "unresponsive")
        report = await store.log.verify()
        assert report.ok, report.differences
