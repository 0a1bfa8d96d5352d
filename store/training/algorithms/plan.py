"""Plans of rollouts. Each rollout has a key, so that a restarted algorithm enqueues only the missing rollouts.

Here, a run is a training with a name. An epoch is one pass over the items of a dataset. The replicas of an item are
several rollouts with this item as their task.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from store.errors import Invalid
from store.models import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig
from store.semconv import GROUP_KEY, PLAN_KEY, STEP_KEY
from store.training.algorithms.model_addresses import with_addresses
from store.training.algorithms.rollout_ends import finished
from store.training.running.outcome import CUT_SHORT

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import ResourcesUpdate, ResourceUnion, Rollout, RolloutMode
    from store.training.algorithms.algorithm import Dataset

STEADY: Final = RolloutConfig(unresponsive_seconds=30.0, max_attempts=3, retry_condition=["unresponsive"])
"""Default config of planned rollouts: an attempt without a sign of life for 30 s is retried, up to three attempts."""

_ENQUEUED_AT_ONCE: Final = 200
_REQUEUES: Final = 3
"""The maximum number of times that one call of `finished` enqueues a rollout again."""
# A key has at most 512 bytes, including the numbers after the name.
_LONGEST_NAME: Final = 400


@dataclass(frozen=True, slots=True)
class Planned:
    """One rollout of a plan."""

    key: str
    """Plan key `<run>/<mode>/<epoch>/<index>/<replica>`, which is unique in the store."""
    group: str
    """Group `<run>/<mode>/<epoch>/<index>`, shared by the replicas of an item."""
    index: int
    """Index of the item in the dataset, from 0."""
    replica: int
    """Number of the replica, from 0."""


class Plan:
    """Rollouts of one run, in a fixed order.

    The store accepts one rollout per key. If an algorithm was killed and runs again with the same name and the same
    items, it therefore receives the existing rollouts, finished or not, and only the missing rollouts are created.
    Rollouts whose failure the agent did not cause are enqueued again: the training was interrupted, a machine died, or
    the store, the proxy or the model could not be reached.

    Args:
        run: the name of the run; another name starts a new plan.
        seed: the seed for the order of the items. Each epoch has its own order, which a restart reproduces. None:
            the order of the dataset.
        config: limits and retries of the rollouts.

    Raises:
        Invalid: the name is empty or longer than 400 bytes.
    """

    def __init__(self, run: str, *, seed: int | None = None, config: RolloutConfig = STEADY) -> None:
        if not 0 < len(run.encode()) <= _LONGEST_NAME:
            raise Invalid("run", f"the name has {len(run.encode())} bytes; use 1 to {_LONGEST_NAME}")
        self.run = run
        self.seed = seed
        self.config = config
        self._inherited: set[str] = set()
        """Ids of rollouts that were already being executed when `enqueue` returned them. Their worker may be dead."""

    def planned(
        self, items: Dataset[Any], *, epoch: int = 0, replicas: int = 1, mode: RolloutMode = "train"
    ) -> Iterator[Planned]:
        """Yield the rollouts that `enqueue` would create, in plan order, with the replicas of each item together."""
        order = list(range(len(items)))
        if self.seed is not None:
            # A string seed gives the same order in every process.
            random.Random(f"{self.seed}/{mode}/{epoch}").shuffle(order)
        for index in order:
            group = f"{self.run}/{mode}/{epoch}/{index}"
            yield from (Planned(f"{group}/{replica}", group, index, replica) for replica in range(replicas))

    async def enqueue(
        self,
        store: Store,
        items: Dataset[Any],
        *,
        epoch: int = 0,
        replicas: int = 1,
        mode: RolloutMode = "train",
        step: int | None = None,
        resources_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[Rollout]:
        """Enqueue the missing rollouts of an epoch, and return all of its rollouts in plan order.

        Args:
            store: the store.
            items: the tasks, as JSON values; pass the same items in the same order each time.
            epoch: the number of the pass over the items.
            replicas: the number of rollouts per item; the replicas of an item form a group.
            mode: the mode of the rollouts.
            step: the training step of the rollouts; None for the number of the epoch.
            resources_id: the id of the resources for the rollouts; None for the latest resources. Existing rollouts
                keep their resources.
            metadata: further metadata of each rollout.

        Raises:
            Conflict: an item differs from the item that was enqueued with the same key; the message contains the key.
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
        # The size of a call is limited, so there may be several calls. A restart finds the rollouts of earlier calls.
        for start in range(0, len(requests), _ENQUEUED_AT_ONCE):
            rollouts += await store.enqueue_many_rollouts(requests[start : start + _ENQUEUED_AT_ONCE])
        self._inherited |= {rollout.rollout_id for rollout in rollouts if rollout.status in {"preparing", "running"}}
        requeued = await _requeue_failed(
            store, [rollout.rollout_id for rollout in rollouts if rollout.status == "failed"]
        )
        return [requeued.get(rollout.rollout_id, rollout) for rollout in rollouts]

    async def finished(self, store: Store, rollouts: Iterable[Rollout]) -> AsyncGenerator[Rollout]:
        """Yield each rollout once it has ended; see `rollout_ends.finished`.

        A rollout whose failure the agent did not cause is enqueued again, up to three times, instead of being yielded.
        """
        requeues = Counter[str]()
        pending = list(rollouts)
        while pending:
            requeued: list[Rollout] = []
            async with aclosing(finished(store, pending)) as ends:
                async for rollout in ends:
                    if requeues[rollout.rollout_id] < _REQUEUES and self._is_cut_short(rollout):
                        requeues[rollout.rollout_id] += 1
                        requeued.append(await store.update_rollout(rollout.rollout_id, status="requeuing"))
                    else:
                        yield rollout
            pending = requeued

    def _is_cut_short(self, rollout: Rollout) -> bool:
        if not _may_be_cut_short(rollout):
            return False
        if rollout.attempt.status != "unresponsive" or _has_reason(rollout):
            return True
        # A rollout that was first executed in this training has been retried as often as the config permits.
        is_inherited = rollout.rollout_id in self._inherited
        self._inherited.discard(rollout.rollout_id)
        return is_inherited

    def resources_id(self, step: int) -> str:
        """Return the id under which `publish` publishes the resources of a step."""
        return f"{self.run}/{step}"

    async def publish(self, store: Store, resources: Mapping[str, ResourceUnion], *, step: int) -> ResourcesUpdate:
        """Publish the resources of a step if the step has none, and return the resources of the step.

        If the step has resources, only the addresses and keys of models are taken from `resources`: the proxy or the
        model server of a restarted training has another address. If an address or a key differs, the resources are
        published as the next version.
        """
        resources_id = self.resources_id(step)
        stored = await store.get_resources_by_id(resources_id)
        if stored is None:
            return await store.update_resources(resources_id, resources)
        moved = with_addresses(stored.resources, resources)
        return stored if moved is None else await store.update_resources(resources_id, moved)


async def _requeue_failed(store: Store, rollout_ids: Sequence[str]) -> dict[str, Rollout]:
    """Requeue the failed rollouts whose failure the agent did not cause, and return these rollouts by id."""
    requeued: dict[str, Rollout] = {}
    for start in range(0, len(rollout_ids), _ENQUEUED_AT_ONCE):
        failed = await store.query_rollouts(rollout_id_in=rollout_ids[start : start + _ENQUEUED_AT_ONCE])
        cut_short = [rollout.rollout_id for rollout in failed if _may_be_cut_short(rollout)]
        updates = (store.update_rollout(rollout_id, status="requeuing") for rollout_id in cut_short)
        reopened = await asyncio.gather(*updates)
        requeued |= {rollout.rollout_id: rollout for rollout in reopened}
    return requeued


def _may_be_cut_short(rollout: Rollout) -> TypeGuard[AttemptedRollout]:
    """Return whether a rollout failed, and the agent did not cause the failure of its latest attempt."""
    if rollout.status != "failed" or not isinstance(rollout, AttemptedRollout):
        return False
    return rollout.attempt.status == "unresponsive" or _has_reason(rollout)


def _has_reason(rollout: AttemptedRollout) -> bool:
    return (rollout.attempt.metadata or {}).get("reason") in CUT_SHORT
