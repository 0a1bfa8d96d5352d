"""A training that tests kill: `python -m tests.training.execution.killed URL TASKS`, exit code 0 at its end.

It resumes the plan of the previous process. The agent is slow, so that a kill interrupts it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from typing import Any

from store.models import PromptTemplate, RolloutConfig
from store.training.algorithms.algorithm import algo
from store.training.algorithms.plan import Plan
from store.training.execution import ClientServerExecutionStrategy
from store.training.running.agent import rollout
from store.training.running.runner import Runner
from store.training.tracing.emitters import emit_message, emit_reward
from store.training.trainer import Trainer

RUN = "killed"
EPOCHS = 2
MESSAGES = 3
CONFIG = RolloutConfig(unresponsive_seconds=4, max_attempts=20, retry_condition=["unresponsive"])
"""A claim whose answer was lost with the server belongs to no runner until the attempt is unresponsive.

On a slow machine, attempts that are at work may become unresponsive too. They are retried."""


@rollout
async def agent(task: Any, prompt_template: PromptTemplate) -> None:
    """Say a few things, with a pause between each, and reward itself for the task."""
    for number in range(MESSAGES):
        emit_message(str(number))
        await asyncio.sleep(random.uniform(0, 0.02))
    emit_reward(float(task))


@algo
async def train(store: Any, train_dataset: Any) -> None:
    """Run all tasks in each epoch, with what the epoch publishes."""
    plan = Plan(RUN, seed=1, config=CONFIG)
    for epoch in range(EPOCHS):
        prompt = PromptTemplate(template=str(epoch), engine="f-string")
        published = await plan.publish(store, {"prompt": prompt}, step=epoch)
        rollouts = await plan.enqueue(store, train_dataset, epoch=epoch, resources_id=published.resources_id)
        async for ended in plan.finished(store, rollouts):
            assert ended.status == "succeeded", ended


def main(url: str, tasks: str) -> None:
    """Train on a store: through a server of its own, or through the one at the URL."""
    is_served = url.startswith("http")
    logging.basicConfig(level=logging.INFO)
    # A runner is killed alone, and the other one goes on, only where the server is another process.
    n_runners = 2 if is_served else 1
    strategy = ClientServerExecutionStrategy("both", server_port=0, managed_store=not is_served, n_runners=n_runners)
    runner = {"type": Runner, "concurrency": 4, "heartbeat_interval": 0.5}
    Trainer(algorithm=train, store=url, strategy=strategy, runner=runner).fit(agent, list(range(int(tasks))))


if __name__ == "__main__":
    main(*sys.argv[1:])
