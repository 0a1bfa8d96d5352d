"""SIGKILL of the processes between agents and model during games: every game is completed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from store import open_store
from store.examples.guess_number.agent import guesser
from store.examples.guess_number.course import Course
from store.interface.store import Store
from store.models import LoggedEvent, ProxyLLM, Rollout, RolloutConfig
from store.training import Plan, Runner, TracerTraceToTriplet, find_final_reward
from tests.examples.guessing import GAME, MODEL, KillableProcess

pytestmark = [pytest.mark.slow]

TASKS = Course(game=GAME).tasks
REPLICAS = 5
# Many attempts: how long a process takes to start again is up to the machine.
RETRIED = RolloutConfig(max_attempts=20, retry_condition=["failed"])


class Table(NamedTuple):
    """Where games are played: a store with a runner, a proxy and a policy's server before it."""

    store: Store
    proxy: KillableProcess
    policy: KillableProcess

    def process(self, which: str) -> KillableProcess:
        """Return one of the two."""
        return self.proxy if which == "proxy" else self.policy


class Missed(logging.Handler):
    """Hears agents say that a model does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        self._loop.call_soon_threadsafe(self.heard.set)


@pytest.fixture
async def missed() -> AsyncIterator[Missed]:
    """What hears it."""
    handler = Missed()
    logger = logging.getLogger("store.examples.guess_number.agent")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[Table]:
    """Everything running. The database is not killed, so one kind is enough."""
    url = f"sqlite:///{tmp_path / 'table.db'}"
    policy = KillableProcess("policy")
    proxy = KillableProcess("proxy", url, policy.url)
    async with await open_store(url) as store:
        with ExitStack() as until_the_end:
            for process in (policy, proxy):
                until_the_end.callback(process.kill)
                process.start()
            async with playing(store):
                yield Table(store, proxy, policy)


@asynccontextmanager
async def playing(store: Store) -> AsyncGenerator[None]:
    """Play what is enqueued, eight games at once."""
    runner: Runner[object] = Runner(concurrency=8, poll_interval=1)
    with runner.run_context(agent=guesser, store=store):
        working = asyncio.create_task(runner.iter())
        try:
            yield
        finally:
            working.cancel()
            await asyncio.wait({working})


async def enqueue(table: Table, replicas: int = REPLICAS) -> tuple[Plan, list[Rollout]]:
    """Plan games, and enqueue those that are missing."""
    plan = Plan("kills", config=RETRIED)
    llm = ProxyLLM(endpoint=table.proxy.url, model=MODEL)
    published = await plan.publish(table.store, {"policy": llm}, step=0)
    return plan, await plan.enqueue(table.store, TASKS, replicas=replicas, resources_id=published.resources_id)


async def until_ended(plan: Plan, table: Table, rollouts: list[Rollout], count: int) -> None:
    """Wait until so many of the games have ended."""
    async with aclosing(plan.finished(table.store, rollouts)) as ends:
        async for _ in ends:
            count -= 1
            if count == 0:
                break


async def check(store: Store, rollouts: list[Rollout]) -> None:
    """See that each game was won, that its spans tell how, and that the tables are what the log says."""
    ended = await store.query_rollouts()
    assert Counter(rollout.rollout_id for rollout in ended) == Counter(rollout.rollout_id for rollout in rollouts)
    assert {rollout.status for rollout in ended} == {"succeeded"}
    for rollout in ended:
        spans = await store.query_spans(rollout.rollout_id, "latest")
        assert find_final_reward(spans) == 1.0
        calls = TracerTraceToTriplet().adapt([span for span in spans if span.status.status_code != "ERROR"])
        token: int = calls[-1].response["token_ids"][0]
        won = GAME.words[token]
        assert won == str(rollout.input["secret"]), "the last call that was recorded is the one that won"
    assert (await store.log.verify()).ok


@pytest.mark.parametrize("which", ["proxy", "policy"])
async def test_killed_again_and_again_it_costs_no_game(table: Table, missed: Missed, which: str) -> None:
    process = table.process(which)
    plan, rollouts = await enqueue(table, replicas=2)
    for ended, replicas in ((4, 4), (20, REPLICAS)):
        await until_ended(plan, table, rollouts, ended)
        missed.heard.clear()
        await asyncio.to_thread(process.kill)
        # The games at work may have ended before. These begin after the kill.
        _, rollouts = await enqueue(table, replicas=replicas)
        await missed.heard.wait()
        await asyncio.to_thread(process.start)
    await until_ended(plan, table, rollouts, len(rollouts))
    assert len(rollouts) == 35
    await check(table.store, rollouts)


async def test_attempts_fail_while_the_proxy_is_gone_for_long_and_are_retried(table: Table) -> None:
    await asyncio.to_thread(table.proxy.kill)
    plan, rollouts = await enqueue(table)
    events = cast("AsyncGenerator[LoggedEvent]", table.store.log.tail(follow=True, types=["attempt.status_changed"]))
    async with aclosing(events):
        async for event in events:
            if event.data["to"] == "failed":
                break
    await asyncio.to_thread(table.proxy.start)
    async for _ in plan.finished(table.store, rollouts):
        pass
    attempts = [len(await table.store.query_attempts(rollout.rollout_id)) for rollout in rollouts]
    assert max(attempts) > 1
    await check(table.store, rollouts)
