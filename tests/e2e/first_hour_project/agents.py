"""The project's agent, which asks a model through the proxy, and its trainer."""

import json
import urllib.request
from collections.abc import Sequence

import rollbook
from rollbook.training import Plan, Trainer, algo, rollout


@rollout
def agent(task: dict[str, int], llm: rollbook.LLM) -> float:
    """Ask the model for the sum of two numbers."""
    messages = [{"role": "user", "content": f"{task['a']} + {task['b']}"}]
    request = urllib.request.Request(
        f"{llm.endpoint}/chat/completions",
        json.dumps({"model": llm.model, "messages": messages}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return 1.0 if text == str(task["a"] + task["b"]) else 0.0


@rollout
def echo(task: int) -> float:
    """Return the task as its reward."""
    return float(task)


@algo
async def one_round(store: rollbook.Store, train_dataset: Sequence[int], val_dataset: Sequence[int]) -> None:
    plan = Plan("first-hour", seed=1)
    rollouts = await plan.enqueue(store, train_dataset, epoch=0, mode="train")
    async for ended in plan.finished(store, rollouts):
        print(ended)


trainer = Trainer(algorithm=one_round, strategy="shm", n_runners=1)
