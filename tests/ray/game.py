"""A training of the number game on a Ray cluster, which tests kill: `main(URL, TASKS, ADDRESS, OPTIONS)`.

The player needs no model: it halves the range. The last line of the output contains the numbers of the report.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.examples.guess_number.game import FOUND, Game
from store.models import PromptTemplate, RolloutConfig
from store.runtime.process import this_process
from store.training.algorithms.algorithm import algo
from store.training.algorithms.plan import Plan
from store.training.running.agent import LitAgent, rollout
from store.training.running.hooks import Hook
from store.training.running.runner import Runner
from store.training.tracing.emitters import emit_message
from store.training.trainer import Trainer
from tests.training.execution import interrupted, resumed

RUN = "game"
RESOURCES = interrupted.RESOURCES
GAME = Game()
PAUSE_SECONDS = 0.05
"""The duration of a guess, so that games are in progress when a process is killed."""
CONCURRENCY = 4
CONFIG = RolloutConfig(unresponsive_seconds=600, max_attempts=5, retry_condition=["unresponsive"])
"""The watchdog is so slow that lost attempts are repeated only if they are reported."""


@rollout
async def play(task: int) -> float:
    """Find a number by halving the range."""
    if task == 1:
        print("looks for 1")
    low, high = 1, GAME.numbers
    for _ in range(GAME.guesses):
        guess = (low + high) // 2
        await asyncio.sleep(PAUSE_SECONDS)
        emit_message(str(guess))
        verdict = GAME.judge(task, str(guess))
        if verdict == FOUND:
            return 1.0
        low, high = (guess + 1, high) if verdict == "higher" else (low, guess - 1)
    return 0.0


@algo
async def train(store: Any, train_dataset: Any) -> None:
    """Play all games once, and publish which process ran the algorithm."""
    plan = Plan(RUN, seed=1, config=CONFIG)
    process = PromptTemplate(template=json.dumps(this_process()), engine="f-string")
    await plan.publish(store, {"process": process}, step=0)
    rollouts = await plan.enqueue(store, train_dataset)
    async for ended in plan.finished(store, rollouts):
        assert ended.status == "succeeded", ended


class Note(Hook):
    """Hook that writes the id of its process into a file for each rollout."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    async def on_rollout_end(self, *, rollout: Any, **_: Any) -> None:
        """Write the file."""
        Path(self._directory, rollout.rollout_id).write_text(str(os.getpid()))  # noqa: ASYNC240 - a small file


@dataclass
class Patient(LitAgent[Any]):
    """Agent that never ends, and writes a file when it is cancelled.

    Attributes:
        directory: the directory of the files.
    """

    directory: str

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> None:
        """Wait until the cancellation, and write its time."""
        del task, resources
        emit_message("at work")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            Path(self.directory, rollout.rollout_id).write_text(str(time.time()))  # noqa: ASYNC240 - a small file
            raise

    def __post_init__(self) -> None:
        super().__init__()


@algo
async def enqueue(store: Any, train_dataset: Any) -> None:
    """Enqueue the tasks, and wait until all have ended."""
    await store.add_resources(RESOURCES)
    rollouts = [await store.enqueue_rollout(task) for task in train_dataset]
    await store.wait_for_rollouts([rollout.rollout_id for rollout in rollouts])


def main(url: str, tasks: str, address: str, options: str = "{}", directory: str = "") -> None:
    """Play, and print the numbers of the report.

    Args:
        url: the URL of the store.
        tasks: the number of games.
        address: the address of the cluster.
        options: further arguments of the strategy, as JSON. With `patient`, the agent never ends.
        directory: the directory of the files that hook and agent write.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = json.loads(options)
    is_patient = settings.pop("patient", False)
    trainer = Trainer(
        algorithm=enqueue if is_patient else train,
        store=url,
        strategy={"type": "ray", "address": address, "n_runners": 6, **settings},
        # Heartbeats are so rare that they detect neither a lost worker nor a cancellation.
        runner={"type": Runner, "concurrency": 50 if is_patient else CONCURRENCY, "heartbeat_interval": 20.0},
        hooks=[Note(directory)] if directory and not is_patient else None,
    )
    numbers = [number % GAME.numbers + 1 for number in range(int(tasks))]
    report = trainer.fit(Patient(directory) if is_patient else play, numbers)
    trainer.close()
    print(
        json.dumps(
            {
                "rollouts": report.rollouts,
                "earlier": report.earlier,
                "crashed": report.execution.crashed if report.execution else [],
                "replaced": report.execution.replaced if report.execution else 0,
                "killed": report.execution.killed if report.execution else [],
                "moved": report.execution.moved if report.execution else 0,
            }
        ),
        flush=True,
    )


def endless(address: str, url: str) -> None:
    """Train until it is interrupted, on the cluster that the environment names."""
    os.environ["RAY_ADDRESS"] = address
    interrupted.main("ray", url)


def proxied(address: str, url: str, tasks: str, model: str) -> None:
    """Train with a proxy of a model, on the cluster that the environment names."""
    os.environ["RAY_ADDRESS"] = address
    resumed.main("ray", url, tasks, model)
