"""Agents with scripted behaviour, hooks that record their arguments, and a runner for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from store.interface.store import Store
from store.models import NamedResources, Rollout
from store.training import Hook, LitAgent, Outcome, Runner
from tests.training.training_helpers import RESOURCES


class Doing(LitAgent[Any]):
    """Does what a function of (task, resources, rollout) says; async if that is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.started = 0

    def is_async(self) -> bool:
        """As the function."""
        return inspect.iscoroutinefunction(self.function)

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Do it."""
        self.started += 1
        return self.function(task, resources, rollout)

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Do it."""
        self.started += 1
        return await self.function(task, resources, rollout)


def returning(value: Any) -> Doing:
    """Return an agent that returns a value."""
    return Doing(lambda *_: value)


def raising(error: BaseException) -> Doing:
    """Return an agent that raises."""

    def agent(*_: Any) -> None:
        raise error

    return Doing(agent)


class Recording(Hook):
    """Writes down what it is told, and raises where it is asked to."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self.outcomes: list[Outcome] = []
        self.spans: list[Any] = []
        self.statuses: list[str] = []
        self._fails_at = fails_at

    def _tell(self, name: str) -> None:
        self.told.append(name)
        if name == self._fails_at:
            raise LookupError(f"the hook failed at {name}")

    async def on_rollout_start(self, **_: Any) -> None:
        """Note it."""
        self._tell("rollout start")

    async def on_trace_start(self, **_: Any) -> None:
        """Note it."""
        self._tell("trace start")

    async def on_trace_end(self, **_: Any) -> None:
        """Note it."""
        self._tell("trace end")

    async def on_rollout_end(
        self, *, agent: Any, runner: Any, rollout: Any, spans: Any, outcome: Outcome | None = None
    ) -> None:
        """Note it, and what the store says of the attempt by now."""
        assert outcome is not None
        self.outcomes.append(outcome)
        self.spans = list(spans)
        attempt = await runner.store.get_latest_attempt(rollout.rollout_id)
        self.statuses.append(attempt.status)
        self._tell("rollout end")


@asynccontextmanager
async def running(
    store: Store, agent: LitAgent[Any], *, hooks: list[Hook] | None = None, worker_id: int = 0, **settings: Any
) -> AsyncGenerator[Runner[Any]]:
    """A runner with resources, whose `iter` runs until the end of the block."""
    if await store.get_latest_resources() is None:
        await store.add_resources(dict(RESOURCES))
    runner: Runner[Any] = Runner(**settings)
    event = asyncio.Event()
    with runner.run_context(agent=agent, store=store, hooks=hooks, worker_id=worker_id):
        serving = asyncio.create_task(runner.iter(event=event))
        try:
            yield runner
        finally:
            event.set()
            await serving


async def step(store: Store, agent: LitAgent[Any], hooks: Any = None, **settings: Any) -> Any:
    """Run a step on a store with resources, and return its rollout."""
    runner: Runner[Any] = Runner(**settings)
    with runner.run_context(agent=agent, store=store, hooks=hooks, worker_id=3):
        return await runner.step("task", resources=dict(RESOURCES), mode="train")


async def last(store: Store) -> Any:
    """Return the rollout that was made last, with its attempt."""
    return list(await store.query_rollouts(sort_by="start_time"))[-1]


async def failure_of(store: Store, rollout: Any) -> Any:
    """Return the error that the log has of an attempt."""
    return [event.data["error"] for event in await store.log.history(rollout.rollout_id) if "error" in event.data]


async def ended(store: Store, *rollouts: Any) -> list[Any]:
    """Return rollouts with their latest attempts, once they have ended."""
    ids = [rollout.rollout_id for rollout in rollouts]
    assert len(await store.wait_for_rollouts(ids)) == len(ids)
    return [await store.get_rollout_by_id(rollout_id) for rollout_id in ids]


async def status_of(store: Store, rollout: Any) -> str:
    """Return the status that a rollout has now."""
    current = await store.get_rollout_by_id(rollout.rollout_id)
    assert current is not None
    return current.status


class Gate:
    """Async agents that wait inside until they are let go."""

    def __init__(self) -> None:
        self.inside: list[Any] = []
        self.arrived = asyncio.Condition()
        self.open = asyncio.Event()
        self.cancelled: list[Any] = []

    def agent(self) -> Doing:
        """Return such an agent."""

        async def work(task: Any, *_: Any) -> float:
            async with self.arrived:
                self.inside.append(task)
                self.arrived.notify_all()
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.cancelled.append(task)
                raise
            return 1.0

        return Doing(work)

    async def holds(self, count: int) -> None:
        """Wait until so many are inside."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.inside) >= count)
