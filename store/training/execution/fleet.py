"""Fleet of long-lived runners, whose number follows the queue of a store. Decision 107."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Never, TypeVar

from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptedRollout
from store.runtime.limited_log import LimitedLog
from store.training.execution.algorithm_store import AT_WORK
from store.training.execution.fleet_size import FleetLimits, FleetSize
from store.training.execution.supervisor import Supervisor

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOSSES_PER_RUNNER: Final = 3
"""The number of losses per runner, within ten minutes, after which no runner is started."""
_DUTY: Final = 10
"""The minimum pause after a measurement, in durations of the measurement, so that a long queue is read less often."""
_OPEN: Final = ("queuing", "requeuing", *AT_WORK)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Settings of a fleet.

    Attributes:
        limits: the limits of the number of runners.
        name: the name of the workers, before their number; None for the default names of their processes.
        announce: function that is called with lines about the number of runners.
        look_seconds: seconds between two measurements of the queue.
    """

    limits: FleetLimits
    name: str | None = None
    announce: Callable[[str], None] = logger.info
    look_seconds: float = 1.0

    @property
    def losses(self) -> int:
        """The number of losses that the fleet replaces within ten minutes."""
        return LOSSES_PER_RUNNER * self.limits.maximum

    async def follow_queue(self, supervisor: Supervisor, store: Store) -> Never:
        """Start and retire runners as the number of waiting and running rollouts changes.

        Raises:
            StoreError: the store refuses to be read.
        """
        size, limited, loop = FleetSize(self.limits), LimitedLog(logger), asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                before, rollouts = size.size, (await store.query_rollouts(status_in=_OPEN, limit=0)).total
                if size.measure(rollouts) != before:
                    self.announce(f"runners: {before} → {size.size}, because rollouts wait or run: {rollouts}")
                await self._resize(supervisor, size.size, store)
            except StoreError as error:
                if not error.retryable:
                    raise
                limited.warning("the number of rollouts cannot be read, so the number of runners stays", error)
            await asyncio.sleep(max(self.look_seconds, _DUTY * (loop.time() - began)))

    async def _resize(self, supervisor: Supervisor, size: int, store: Store) -> None:
        """Start runners until their number is `size`, or retire idle ones."""
        while len(supervisor.runners) < size and supervisor.can_start_more:
            supervisor.add_runner()
        if len(supervisor.runners) <= size:
            return
        # Workers with several slots may be idle in their rows. Workers of pipelines have the pipeline's name in front.
        at_work = await store.query_rollouts(status_in=AT_WORK)
        busy = [f"-{rollout.attempt.worker_id}" for rollout in at_work if isinstance(rollout, AttemptedRollout)]
        idle: list[int] = []
        for number, part in supervisor.runners.items():
            worker = part.worker_name(number) if self.name is None else f"{self.name}-{number}"
            if not any(name.endswith(f"-{worker}") for name in busy):
                idle.append(number)
        surplus = len(supervisor.runners) - size
        for number in sorted(idle, reverse=True)[: max(surplus, 0)]:
            supervisor.retire(number)


async def run_beside(work: Coroutine[Any, Any, T], *watches: Coroutine[Any, Any, Never]) -> T:
    """Return the result of `work`, while `watches` run. An error of a watch cancels the work, and is raised."""
    working = asyncio.ensure_future(work)
    watching = [asyncio.ensure_future(watch) for watch in watches]
    try:
        await asyncio.wait({working, *watching}, return_when=asyncio.FIRST_COMPLETED)
        for watch in watching:
            if watch.done():
                watch.result()
        return working.result()
    finally:
        working.cancel()
        for watch in watching:
            watch.cancel()
        await asyncio.wait({working, *watching})
