"""A training with an LLM proxy that tests interrupt and kill: `python -m tests.training.execution.resumed …`.

The arguments are the strategy, the URL of the store, the number of tasks and the URL of a model server. The exit code
is 130 after Ctrl+C. The last line of the output contains the numbers of the report.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import aiohttp

from store.models import LLM
from store.training.algorithms.algorithm import algo
from store.training.algorithms.plan import Plan
from store.training.running.agent import llm_rollout
from store.training.running.runner import Runner
from store.training.trainer import Trainer

RUN = "resumed"


@llm_rollout
async def agent(task: Any, llm: LLM) -> float:
    """Ask the model once, and return the task as reward."""
    request = {"model": llm.model, "messages": [{"role": "user", "content": str(task)}]}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as http,
        http.post(f"{llm.endpoint}/v1/chat/completions", json=request) as response,
    ):
        await response.json()
    return float(task)


@algo
async def train(store: Any, llm_proxy: Any, train_dataset: Any) -> None:
    """Run all tasks in one step."""
    plan = Plan(RUN, seed=1)
    published = await plan.publish(store, {"main_llm": llm_proxy.as_resource()}, step=0)
    rollouts = await plan.enqueue(store, train_dataset, resources_id=published.resources_id)
    async for ended in plan.finished(store, rollouts):
        assert ended.status == "succeeded", ended


def main(strategy: str, url: str, tasks: str, model: str) -> None:
    """Train, and print the numbers of the report."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("aiohttp").setLevel(logging.ERROR)
    backend = {"model_name": "tiny", "litellm_params": {"model": "openai/tiny", "api_base": model}}
    trainer = Trainer(
        algorithm=train,
        store=url,
        strategy=strategy,
        n_runners=2,
        runner={"type": Runner, "concurrency": 8 if strategy == "cs" else 2, "heartbeat_interval": 0.5},
        llm_proxy={"model_list": [backend]},
    )
    try:
        report = trainer.fit(agent, list(range(int(tasks))))
    except KeyboardInterrupt:
        sys.exit(130)
    trainer.close()
    rows = [(row.mode, row.step, str(row.version), row.rollouts, row.mean) for row in report.rewards]
    print(json.dumps({"rollouts": report.rollouts, "earlier": report.earlier, "drops": report.drops, "rows": rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
