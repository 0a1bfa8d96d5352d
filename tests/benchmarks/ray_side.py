"""Trainings and starts that `test_ray.py` measures, each in a process: `python -m tests.benchmarks.ray_side …`.

The last line of the output is the figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from store import InMemoryLightningStore
from store.interface.store import Store
from store.training import Plan, Trainer, algo, rollout
from store.training.bundle import RunnerBundle
from store.training.execution import RayExecutionStrategy
from store.training.running.agent import LitAgent

_WARM_UP = 64
_AGENT_SECONDS = 120.0


@rollout
async def quick(task: float) -> float:
    """Return the task."""
    return task


@algo
async def train(store: Any, train_dataset: Any) -> None:
    """Run a few rollouts until every runner has started, then all; print the rollouts per second."""
    plan = Plan("bench", seed=1)
    await _run(plan, store, train_dataset[:_WARM_UP], 0)
    began = time.perf_counter()
    await _run(plan, store, train_dataset, 1)
    print(f"measured: {len(train_dataset) / (time.perf_counter() - began)}", flush=True)


async def _run(plan: Plan, store: Any, tasks: Any, epoch: int) -> None:
    rollouts = await plan.enqueue(store, tasks, epoch=epoch)
    async for ended in plan.finished(store, rollouts):
        assert ended.status == "succeeded", ended


def rate(strategy: str, url: str, rollouts: int, n_runners: int) -> None:
    """Print the rollouts per second of a training with a strategy."""
    trainer = Trainer(algorithm=train, store=url, strategy=strategy, n_runners=n_runners)
    trainer.fit(quick, [1.0] * rollouts, quiet=True)
    trainer.close()


def start_runners(n_runners: int) -> None:
    """Print the seconds from the start of a training until the last runner asks for work."""
    _init(n_runners)
    store = InMemoryLightningStore()
    began = time.perf_counter()

    async def wait(store: Store, event: Any) -> None:
        # A runner sends its first heartbeat directly before its first claim.
        while (await store.query_workers(limit=0)).total < n_runners:  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.01)
        print(f"measured: {time.perf_counter() - began}", flush=True)

    RayExecutionStrategy(n_runners).execute(wait, RunnerBundle(quick), store)
    store.sync.close()


class Bare:
    """Actor that imports the modules of a runner."""

    def __init__(self, modules: list[str]) -> None:
        for module in modules:
            # Compiled packages register modules that cannot be imported by name.
            with contextlib.suppress(ImportError):
                import_module(module)

    def ready(self) -> bool:
        """Return when the modules are imported."""
        return True


def start_actors(n_runners: int) -> None:
    """Print the seconds from the start of bare actors until the last one has imported the modules of a runner."""
    ray = _init(n_runners)
    modules = json.loads(Path(os.environ["ROLLBOOK_BENCH_MODULES"]).read_text())
    began = time.perf_counter()
    actors = [ray.remote(num_cpus=1)(Bare).remote(modules) for _ in range(n_runners)]
    ray.get([actor.ready.remote() for actor in actors])
    print(f"measured: {time.perf_counter() - began}", flush=True)


@rollout
async def modules_of(task: str) -> None:
    """Write the names of the modules of this runner into a file."""
    names = sorted(name for name in sys.modules if name.partition(".")[0] not in {"ray", "__main__"})
    Path(task).write_text(json.dumps(names))  # noqa: ASYNC240 - a small file


def modules(path: str) -> None:
    """Write the names of the modules that a runner has into a file."""
    agent: LitAgent[Any] = modules_of

    @algo
    async def one(store: Any, train_dataset: Any) -> None:
        rollout = await store.enqueue_rollout(train_dataset[0])
        (ended,) = await store.wait_for_rollouts([rollout.rollout_id], timeout=_AGENT_SECONDS)
        assert ended.status == "succeeded", ended

    Trainer(algorithm=one, strategy="ray").fit(agent, [path], quiet=True)


def _init(n_runners: int) -> Any:
    ray = import_module("ray")
    ray.init("local", num_cpus=n_runners, include_dashboard=False, log_to_driver=False)
    return ray


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rate", strategy, url, rollouts, runners]:
            rate(strategy, url, int(rollouts), int(runners))
        case ["runners", number]:
            start_runners(int(number))
        case ["actors", number]:
            start_actors(int(number))
        case ["modules", path]:
            modules(path)
        case other:
            raise SystemExit(f"unknown arguments {other}")
