"""An agent, an algorithm and a trainer, as a user writes them."""

from collections.abc import Sequence
from typing import assert_type

import rollbook
from rollbook.training import (
    FitReport,
    Plan,
    Runner,
    Tracer,
    TracerTraceToTriplet,
    Trainer,
    algo,
    emit_reward,
    operation,
    rollout,
    trajectories,
)


@operation
def search(question: str) -> list[str]:
    return [question]


@rollout
async def agent(task: str, prompt_template: rollbook.PromptTemplate) -> float:
    emit_reward(0.5, attributes={"judge": "found something"})
    return 1.0 if search(prompt_template.format(question=task)) else 0.0


@algo
async def climb(store: rollbook.Store, train_dataset: Sequence[str]) -> None:
    plan = Plan("climb", seed=1)
    prompt = rollbook.PromptTemplate(template="{question}", engine="f-string")
    published = await plan.publish(store, {"prompt": prompt}, step=0)
    rollouts = await plan.enqueue(store, train_dataset, epoch=0, mode="train", resources_id=published.resources_id)
    async for ended in plan.finished(store, rollouts):
        print(ended)


async def export(opened: rollbook.Store, rollout_id: str) -> None:
    triplets = TracerTraceToTriplet().adapt(await opened.query_spans(rollout_id))
    batch = trajectories(triplets, pad_token_id=0, max_prompt=8, max_response=8)
    print(batch.token_level_scores)


async def run_one(opened: rollbook.Store) -> None:
    runner = Runner(Tracer(), max_rollouts=1)
    with runner.run_context(agent=agent, store=opened, worker_id=0):
        await runner.iter()


if __name__ == "__main__":
    report = Trainer(algorithm=climb, strategy="shm", n_runners=2).fit(agent, ["2 + 2"])
    assert_type(report, FitReport)
