"""Agents and algorithms for tests of the trainer, at module level so that other processes can import them."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from store import open_store
from store.interface.store import Store
from store.models import LLM, NamedResources, PromptTemplate, RolloutMode
from store.training.algorithms.algorithm import algo
from store.training.algorithms.plan import Plan
from store.training.running.agent import LitAgent, rollout
from store.training.running.hooks import Hook
from store.training.running.runner import Runner
from store.training.tracing.emitters import emit_annotation, emit_message
from tests.faults import processes

RESOURCES: NamedResources = {
    "main_llm": LLM(endpoint="http://127.0.0.1:9", model="m"),
    "prompt": PromptTemplate(template="0", engine="f-string"),
}


@rollout
async def scaled(task: Any, prompt_template: PromptTemplate) -> float:
    """Return the task as reward, plus what the prompt says."""
    return task + float(prompt_template.template)


@rollout
def plain(task: Any) -> float:
    """Return the task as reward."""
    return float(task)


@rollout
def mute(task: Any, prompt_template: PromptTemplate) -> None:
    """Do nothing."""


@rollout
def failing(task: Any, prompt_template: PromptTemplate) -> float:
    """Fail."""
    secret_of_the_traceback = int("x")
    return secret_of_the_traceback + task


class Picky(LitAgent[Any]):
    """Fails on odd tasks."""

    def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        """Return 1 for an even task."""
        if task % 2:
            raise KeyError("odd")
        return 1.0


class Informed(LitAgent[Any]):
    """Records what it knows of its trainer."""

    def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        """Return the trainer's number of runners."""
        trainer: Any = self.trainer
        stored_rollout = trainer.store.sync.get_rollout_by_id(rollout.rollout_id)
        names = sorted(trainer.initial_resources)
        emit_annotation({"seed": trainer.seed, "resources": names, "status": stored_rollout.status})
        return float(trainer.n_runners)


@rollout
async def endless(task: Any) -> None:
    """Emit a message and never end."""
    emit_message("at work")
    await asyncio.Event().wait()


async def serve_endlessly(connection: Connection, url: str, worker_id: int, settings: dict[str, Any]) -> None:
    """Run `endless` on the queue of a store, and send the task of each attempt that has started."""

    class Reporting(Hook):
        async def on_trace_start(self, *, rollout: Any, **_: Any) -> None:
            connection.send(rollout.input)

    async with await open_store(url) as store:
        runner: Runner[Any] = Runner(**settings)
        with runner.run_context(agent=endless, store=store, hooks=[Reporting()], worker_id=worker_id):
            await runner.iter()


def runner_at_work(url: str, attempts: int = 1, *, worker_id: int = 0, **settings: Any) -> BaseProcess:
    """Return the process of a runner that executes attempts."""
    ours, theirs = multiprocessing.Pipe()
    process = processes.start(serve_endlessly, theirs, url, worker_id, settings)
    theirs.close()
    for _ in range(attempts):
        ours.recv()
    return process


def prompt(value: float) -> NamedResources:
    """Return resources whose prompt is a number."""
    return {"prompt": PromptTemplate(template=str(value), engine="f-string")}


@algo
async def improve(store: Store, train_dataset: Any, val_dataset: Any) -> None:
    """Publish a better prompt in each of two steps."""
    plan = Plan("improve", seed=1)
    for step in range(2):
        resources_id = (await plan.publish(store, prompt(step / 2), step=step)).resources_id
        parts: list[tuple[RolloutMode, Any]] = [("train", train_dataset), ("val", val_dataset)]
        for mode, tasks in parts:
            rollouts = await plan.enqueue(store, tasks, epoch=step, mode=mode, resources_id=resources_id)
            async for _ in plan.finished(store, rollouts):
                pass


@algo
async def through_a_proxy(store: Store, llm_proxy: Any, train_dataset: Any) -> None:
    """Run the tasks with a model behind a proxy."""
    plan = Plan("proxied")
    resources_id = (await plan.publish(store, {"main_llm": llm_proxy.as_resource()}, step=0)).resources_id
    rollouts = await plan.enqueue(store, train_dataset, resources_id=resources_id)
    async for _ in plan.finished(store, rollouts):
        pass


@algo
def improve_slowly(store: Store, train_dataset: Any) -> None:
    """Run the tasks once, without await."""
    store.sync.add_resources(prompt(0))
    rollouts = [store.sync.enqueue_rollout(task) for task in train_dataset]
    store.sync.wait_for_rollouts([rollout.rollout_id for rollout in rollouts])
