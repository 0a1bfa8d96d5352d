"""A small training with both sides, algorithm and runners; the task decides what happens to its runner."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from store.interface.store import Store
from store.models import AttemptedRollout, PromptTemplate, Rollout, RolloutConfig
from store.runtime.process import worker_name
from store.training.algorithms.rollout_ends import finished
from store.training.running.runner import ExecutionEvent

COMPUTED = PromptTemplate(template="computed", engine="f-string")
"""What an algorithm publishes after computing."""
RETRIED = RolloutConfig(max_attempts=3, retry_condition=["unresponsive"], unresponsive_seconds=2)
"""For tasks that are quickly done: nobody sends heartbeats."""


@dataclass
class Train:
    """Enqueues tasks and waits until all have ended.

    Attributes:
        leaves_open: return as soon as so many are at work, with the tasks as they are.
        but_first: wait until so many, the first ones, have ended.
        waits_for: wait only for so many, the last ones.
        fails: raise instead of waiting.
        waits: how it waits: "waits" calls `wait_for_rollouts`, "polls" reads the statuses again and again, "follows"
            follows the log.
        computes: after waiting for the first ones, compute for so many seconds and publish the result.
    """

    tasks: list[Any]
    leaves_open: int = 0
    but_first: int = 0
    waits_for: int = 0
    fails: bool = False
    waits: str = "waits"
    computes: float = 0
    config: RolloutConfig | None = None

    async def __call__(self, store: Store, event: ExecutionEvent) -> None:
        rollouts = [await store.enqueue_rollout(task, config=self.config) for task in self.tasks]
        if self.but_first:
            await store.wait_for_rollouts([rollout.rollout_id for rollout in rollouts][: self.but_first])
        while self.leaves_open and (await at_work(store)) < self.leaves_open:  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.01)
        if self.fails:
            raise LookupError("the algorithm is lost")
        if self.computes:
            await asyncio.sleep(self.computes)
            # It reads once what it learns from.
            await store.query_rollouts()
            await asyncio.sleep(self.computes)
            await store.add_resources({"weights": COMPUTED})
        elif not self.leaves_open:
            await self._wait(store, rollouts[-self.waits_for :])

    async def _wait(self, store: Store, rollouts: list[Rollout]) -> None:
        match self.waits:
            case "polls":
                while (await store.query_rollouts(status_in=["succeeded"])).total < len(rollouts):
                    await store.query_rollouts()
            case "follows":
                async for _ in finished(store, rollouts):
                    pass
            case _:
                await store.wait_for_rollouts([rollout.rollout_id for rollout in rollouts])


async def at_work(store: Store) -> int:
    """Return how many tasks are being done, and have begun."""
    page = await store.query_rollouts(status_in=["running"])
    return page.total


@dataclass
class Serve:
    """Does tasks, one after the other.

    Attributes:
        max_rollouts: returns after so many.
    """

    max_rollouts: int | None = None

    async def __call__(self, store: Store, worker_id: int, event: ExecutionEvent) -> None:
        done = 0
        while not event.is_set() and (self.max_rollouts is None or done < self.max_rollouts):
            claimed = await store.dequeue_rollout(worker_name(worker_id), wait_seconds=0.1)
            if claimed is not None:
                await do(store, claimed, event)
                done += 1


async def do(store: Store, claimed: AttemptedRollout, event: ExecutionEvent) -> None:
    """Do one task."""
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    await store.update_attempt(rollout_id, attempt_id, status="running")
    try:
        await obey(claimed.input, claimed.attempt.sequence_id, event)
    except asyncio.CancelledError:
        await store.update_attempt(rollout_id, attempt_id, status="failed", metadata={"reason": "interrupted"})
        raise
    await store.update_attempt(rollout_id, attempt_id, status="succeeded", metadata={"pid": os.getpid()})


async def obey(task: Any, attempt: int, event: ExecutionEvent) -> None:
    """Do what a task says; what kills is done at the first attempt only."""
    match task:
        case "crash":
            raise RuntimeError("the runner is broken")
        case "die" if attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case "until stopped":
            while not event.is_set():  # noqa: ASYNC110 - an event of threads
                await asyncio.sleep(0.01)
        case "for ever":
            await asyncio.Event().wait()
        case "stubborn":
            while True:
                time.sleep(1)  # noqa: ASYNC251 - hears nothing
        case _:
            pass
