"""What an algorithm intends to run, each rollout under a key: started again, it enqueues only what is missing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from store.errors import Invalid
from store.models import EnqueueRolloutRequest, RolloutConfig
from store.semconv import GROUP_KEY, PLAN_KEY, STEP_KEY
from store.training.continuous import finished

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import NamedResources, ResourcesUpdate, Rollout, RolloutMode

STEADY: Final = RolloutConfig(unresponsive_seconds=30.0, max_attempts=3, retry_condition=["unresponsive"])
"""The default limits of planned rollouts: a worker that misses three heartbeats is dead, and others do its work."""

_ENQUEUED_AT_ONCE: Final = 200
# Why an attempt failed that is no fault of the agent's: the training ended around it, or its store was gone.
_CUT_SHORT: Final = frozenset({"interrupted", "spool"})
# A key holds at most 512 bytes, and the numbers behind the name need some of them.
_LONGEST_NAME: Final = 400


@dataclass(frozen=True, slots=True)
class Planned:
    """One rollout of a plan."""

    key: str
    """`<run>/<mode>/<epoch>/<index>/<replica>`: its plan key, which the store gives to one rollout only."""
    group: str
    """`<run>/<mode>/<epoch>/<index>`, common to the replicas of an item."""
    index: int
    """Of the item, from 0, in the dataset."""
    replica: int
    """From 0."""


class Plan:
    """The rollouts of one run, in an order that does not change.

    An algorithm that was killed and runs again with the same name and the same items gets the rollouts that exist,
    finished or not, and only the missing ones are enqueued: the store holds one rollout for each key. Those that failed
    because their training was interrupted wait to be run again.

    Args:
        run: the name of the run; another name plans everything anew.
        seed: shuffles the items, another way in each epoch and the same way each time; None keeps their order.
        config: limits and retries of the rollouts.

    Raises:
        Invalid: the name is empty or longer than 400 bytes.
    """

    def __init__(self, run: str, *, seed: int | None = None, config: RolloutConfig = STEADY) -> None:
        if not 0 < len(run.encode()) <= _LONGEST_NAME:
            raise Invalid("run", f"a name of 1 to {_LONGEST_NAME} bytes, please, not {len(run.encode())}")
        self.run = run
        self.seed = seed
        self.config = config

    def planned(
        self, items: Sequence[Any], *, epoch: int = 0, replicas: int = 1, mode: RolloutMode = "train"
    ) -> Iterator[Planned]:
        """Yield what `enqueue` would create, in plan order: item after item, the replicas of each together."""
        order = list(range(len(items)))
        if self.seed is not None:
            # A text as seed is hashed alike in every process.
            random.Random(f"{self.seed}/{mode}/{epoch}").shuffle(order)
        for index in order:
            group = f"{self.run}/{mode}/{epoch}/{index}"
            yield from (Planned(f"{group}/{replica}", group, index, replica) for replica in range(replicas))

    async def enqueue(
        self,
        store: Store,
        items: Sequence[Any],
        *,
        epoch: int = 0,
        replicas: int = 1,
        mode: RolloutMode = "train",
        step: int | None = None,
        resources_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> list[Rollout]:
        """Enqueue what is missing of an epoch, and return all of its rollouts, in plan order.

        Args:
            store: where to.
            items: the tasks, each any JSON value; the same ones in the same order each time.
            epoch: which pass over them.
            replicas: how often each is run; the replicas of one form a group.
            mode: what they are run for.
            step: the training step they belong to; None for the epoch.
            resources_id: what they are run with; None for the latest. A rollout that exists keeps its own.
            metadata: further metadata of each.

        Raises:
            Conflict: an item is not what it was when its key was enqueued; the text names the key.
        """
        common = {**(metadata or {}), STEP_KEY: epoch if step is None else step}
        requests = [
            EnqueueRolloutRequest(
                input=items[planned.index],
                mode=mode,
                resources_id=resources_id,
                config=self.config,
                metadata={**common, PLAN_KEY: planned.key, GROUP_KEY: planned.group},
            )
            for planned in self.planned(items, epoch=epoch, replicas=replicas, mode=mode)
        ]
        rollouts: list[Rollout] = []
        # In parts, each of them whole or not at all: what one call takes is limited, what was begun is found again.
        for start in range(0, len(requests), _ENQUEUED_AT_ONCE):
            rollouts += await store.enqueue_many_rollouts(requests[start : start + _ENQUEUED_AT_ONCE])
        return [await _taken_up(store, rollout) if rollout.status == "failed" else rollout for rollout in rollouts]

    def finished(self, store: Store, rollouts: Iterable[Rollout]) -> AsyncIterator[Rollout]:
        """Yield each rollout once it has ended; those that ended before come first. As `continuous.finished`."""
        return finished(store, rollouts)

    def resources_id(self, step: int) -> str:
        """Return the id under which `publish` publishes the resources of a step."""
        return f"{self.run}/{step}"

    async def publish(self, store: Store, resources: NamedResources, *, step: int) -> ResourcesUpdate:
        """Publish the resources of a step, unless that was done before; return what is published."""
        known = await store.get_resources_by_id(self.resources_id(step))
        return known or await store.update_resources(self.resources_id(step), resources)


async def _taken_up(store: Store, rollout: Rollout) -> Rollout:
    """Queue a rollout again that only failed since its training ended while it was at work."""
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    if attempt is None or (attempt.metadata or {}).get("reason") not in _CUT_SHORT:
        return rollout
    return await store.update_rollout(rollout.rollout_id, status="requeuing")
