"""Runners that are ended by signals give their work back: each rollout ends once, with success."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psutil
import pytest

from store import open_store
from store.interface.store import Store
from store.models import AttemptedRollout, NamedResources, PromptTemplate, Rollout, RolloutConfig
from store.training.running.agent import LitAgent
from store.training.running.hooks import Hook
from store.training.running.runner import Runner
from store.training.running.stop_event import StopEvent
from tests.client.server_process import ServerProcess
from tests.conftest import POSTGRES, SQLITE
from tests.torture import rounds
from tests.training.execution.drained import Notes, main
from tests.training.execution.programs import Program, running
from tests.training.stores import POSTGRES_IN_TORTURE
from tests.training.training_helpers import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LONG = 600
ONCE = RolloutConfig(max_attempts=1)


@pytest.fixture
async def store(durable_url: str) -> AsyncIterator[Store]:
    """A store on each database, on the clock of the machine."""
    async with await open_store(durable_url) as opened:
        await opened.add_resources({"prompt": PromptTemplate(template="0", engine="f-string")})
        yield opened


class Place:
    """A store, the notes of its agents, and its runners."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.notes = Notes(str(directory))
        self._log = directory / "log"

    def runners(self, kind: str = "async", *, count: int = 1, grace: float = 10) -> AbstractContextManager[Program]:
        """Start runners. Their processes end with the block at the latest."""
        return running(main, self.url, str(self.notes.place), kind, str(count), str(grace), log=self._log)

    async def until_noted(self, name: str, count: int) -> None:
        """Wait until agents have noted `count` rollouts."""

        async def has_count() -> bool:
            return len(self.notes.read(name)) >= count

        await until(has_count)

    def check_log(self, text: str) -> None:
        """Check that the runners have printed a text."""
        assert text in self._log.read_text()


@pytest.fixture
def place(durable_url: str, tmp_path: Path) -> Place:
    return Place(durable_url, tmp_path)


def end(program: Program, name: str = "SIGTERM") -> int | None:
    """End runners by a signal, and return their exit code, when no process is left."""
    children = program.children(recursive=True)
    program.send_signal(signal.Signals[name])
    code = program.exit_code(60)
    assert not psutil.wait_procs(children, timeout=10)[1]
    return code


async def tasks(store: Store, *inputs: Any) -> list[str]:
    """Enqueue tasks that may be tried only once."""
    return [(await store.enqueue_rollout(task, config=ONCE)).rollout_id for task in inputs]


async def of(store: Store, rollout_id: str) -> tuple[str, list[tuple[str, Any]]]:
    """Return the status of a rollout, and the statuses and reasons of its attempts."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    attempts = await store.query_attempts(rollout_id)
    return rollout.status, [(attempt.status, (attempt.metadata or {}).get("reason")) for attempt in attempts]


async def shorten(store: Store, rollout_ids: list[str]) -> None:
    """Make the next attempts at rollouts short."""
    for rollout_id in rollout_ids:
        await store.update_rollout(rollout_id, input={"seconds": 0})


async def check_all_ended(store: Store, place: Place, rollout_ids: list[str]) -> None:
    """Check that each rollout succeeded in its last attempt, and that no other attempt completed its task."""
    await store.wait_for_rollouts(rollout_ids)
    for rollout_id in rollout_ids:
        status, attempts = await of(store, rollout_id)
        assert (status, attempts[-1], {*attempts[:-1]} <= {("failed", "drained")}) == (
            "succeeded",
            ("succeeded", None),
            True,
        ), attempts
    assert Counter(place.notes.read("ends")) == Counter(rollout_ids)
    assert (await store.log.verify()).ok


async def test_after_sigterm_attempts_end_within_the_grace_period_and_the_rest_returns(
    store: Store, place: Place
) -> None:
    short, long, stubborn, waiting = await tasks(
        store, {"seconds": 1}, {"seconds": LONG}, {"seconds": LONG, "finishes": True}, {"seconds": 0}
    )
    with place.runners(grace=2) as program:
        await place.until_noted("begun", 3)
        assert end(program) == 143
    assert await of(store, short) == ("succeeded", [("succeeded", None)])
    assert await of(store, stubborn) == ("succeeded", [("succeeded", None)]), "it finished when it was cancelled"
    assert await of(store, waiting) == ("queuing", [])
    assert await of(store, long) == ("requeuing", [("failed", "drained")])
    place.check_log("claims nothing more, attempts still running: 3")
    place.check_log(f"put {long} back after")
    (put_back,) = [event.data for event in await store.log.history(long) if "error" in event.data]
    assert (put_back["error"]["type"], put_back["is_counted"]) == ("drained", False)
    await shorten(store, [long])
    with place.runners() as program:
        await check_all_ended(store, place, [short, long, stubborn, waiting])
        assert end(program) == 143


@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_second_sigterm_returns_the_work_at_once_also_that_of_a_thread(
    store: Store, place: Place, kind: str
) -> None:
    rollout_ids = await tasks(store, *[{"seconds": LONG}] * 2)
    with place.runners(kind, grace=LONG) as program:
        await place.until_noted("begun", 2)
        program.send_signal(signal.SIGTERM)
        assert program.exit_code(0.5) is None, "the attempts may end"
        began = time.monotonic()
        assert end(program) == 143
        assert time.monotonic() - began < 10
    for rollout_id in rollout_ids:
        assert await of(store, rollout_id) == ("requeuing", [("failed", "drained")])
    assert (place.notes.read("ends"), len(place.notes.read("cancelled"))) == ([], 2 * (kind == "async"))
    await shorten(store, rollout_ids)
    with place.runners(kind) as program:
        await check_all_ended(store, place, rollout_ids)
        assert end(program, "SIGINT") == 130


@pytest.mark.parametrize(
    "durable_url", [POSTGRES, pytest.param("sqlite", marks=pytest.mark.torture_only)], indirect=True
)
async def test_three_processes_return_their_work_through_a_server(store: Store, place: Place) -> None:
    rollout_ids = await tasks(store, *[{"seconds": LONG}] * 9)
    server = ServerProcess(place.url)
    server.start()
    try:
        with Place(server.url, place.notes.place).runners(count=3, grace=0.3) as program:
            await place.until_noted("begun", 9)
            (cancelled,) = await tasks(store, {"seconds": 0})
            await store.update_rollout(cancelled, status="cancelled")
            # A signal to a process group, a systemd unit or a SLURM step reaches all of its processes.
            for child in program.children():
                child.send_signal(signal.SIGTERM)
            assert end(program) == 143
        for rollout_id in rollout_ids:
            assert await of(store, rollout_id) == ("requeuing", [("failed", "drained")])
        assert await of(store, cancelled) == ("cancelled", [])
        await shorten(store, rollout_ids)
        with Place(server.url, place.notes.place).runners(count=1) as program:
            await check_all_ended(store, place, rollout_ids)
            assert end(program) == 143
    finally:
        server.kill()


class Returning(LitAgent[Any]):
    """Agent that returns at once."""

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> float:
        return 1.0


class Slow(Hook):
    """Hook that takes its seconds at the end of the trace, and resets a context variable there."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begun = asyncio.Event()
        self.has_ended = False

    async def on_trace_start(self, **_: Any) -> None:
        self._token = _variable.set("a trace")

    async def on_trace_end(self, **_: Any) -> None:
        self.begun.set()
        await asyncio.sleep(self._seconds)
        _variable.reset(self._token)
        self.has_ended = True


_variable: ContextVar[str] = ContextVar("_variable")


@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
@pytest.mark.parametrize("seconds, cancellations", [(0.5, 1), (LONG, 1), (LONG, 2)])
async def test_after_its_agent_has_returned_an_attempt_of_a_drained_runner_succeeds(
    store: Store, seconds: float, cancellations: int
) -> None:
    (task,) = await tasks(store, 1)
    hook, stopped = Slow(seconds), StopEvent()
    runner = Runner[Any](grace_seconds=LONG if cancellations > 1 else 2.0)
    with runner.run_context(agent=Returning(), store=store, hooks=[hook]):
        working = asyncio.create_task(runner.iter(event=stopped))
        await hook.begun.wait()
        stopped.drain()
        for _ in range(cancellations):
            working.cancel()
            await asyncio.sleep(0.1)
        async with asyncio.timeout(30):
            await asyncio.wait({working})
    assert await of(store, task) == ("succeeded", [("succeeded", None)])
    assert hook.has_ended == (seconds < LONG)
    assert len(await store.query_spans(task)) == 2, "the root and the reward"


@pytest.mark.torture
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_no_order_of_signals_and_claims_loses_or_repeats_a_rollout(store: Store, place: Place) -> None:
    count = rounds(400, few=40)
    rollout_ids = await tasks(store, *[{"seconds": random.uniform(0, 0.05)} for _ in range(count)])

    async def unfinished() -> int:
        return (await store.query_rollouts(status_in=["queuing", "requeuing"], limit=0)).total

    for _ in range(rounds(40, few=2)):
        with place.runners(count=random.choice([1, 2]), grace=random.choice([0, 0.02, 5])) as program:
            before = len(place.notes.read("ends"))
            if await unfinished():
                await place.until_noted("ends", before + 1)
            await asyncio.sleep(random.uniform(0, 0.2))
            for _ in range(random.choice([0, 1])):
                program.send_signal(random.choice([signal.SIGTERM, signal.SIGINT]))
                await asyncio.sleep(random.uniform(0, 0.02))
            assert end(program) in {143, 130}
        active = await store.query_rollouts(status_in=["preparing", "running"])
        assert active.total == 0, [rollout for rollout in active if isinstance(rollout, AttemptedRollout)]
    with place.runners() as program:
        await check_all_ended(store, place, rollout_ids)
        assert end(program) == 143
