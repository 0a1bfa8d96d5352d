"""An algorithm that a test kills: it plans a few epochs and returns after all rollouts have ended."""

from __future__ import annotations

from store import open_store
from store.training.algorithms.plan import Plan
from tests.torture import IS_TORTURE

RUN = "killed"
EPOCHS = 3 if IS_TORTURE else 2
ITEMS = 150 if IS_TORTURE else 105
"""The rollouts of an epoch are enqueued in more than one call, which holds up to 200."""
REPLICAS = 2


async def train(url: str) -> None:
    """Enqueue what is missing of each epoch, and wait until it has ended."""
    plan = Plan(RUN, seed=1)
    async with await open_store(url) as store:
        for epoch in range(EPOCHS):
            rollouts = await plan.enqueue(store, range(ITEMS), epoch=epoch, replicas=REPLICAS)
            ended = [rollout.rollout_id async for rollout in plan.finished(store, rollouts)]
            assert sorted(ended) == sorted(rollout.rollout_id for rollout in rollouts)
