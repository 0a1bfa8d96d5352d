"""Store for an algorithm. If the algorithm waits for rollouts that no runner can execute, the store raises an error."""
# ruff: noqa: ASYNC109 - the names of arguments are those of the interface.

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeVar

from store.interface.delegating import DelegatingStore
from store.models import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LoggedEvent,
    PaginatedResult,
    Rollout,
)
from store.semconv import PLAN_KEY
from store.training.execution.strategy import RunnersGone

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.running.runner import ExecutionEvent

T = TypeVar("T")

AT_WORK: Final = ("preparing", "running")
STANDSTILL_SECONDS: Final = 5.0
"""Seconds for which rollouts may wait without an active attempt after every runner has ended."""

_WAITING: Final = ("queuing", "requeuing")


def plan_of(key: str) -> str:
    """Return the name of the plan from the key of a rollout, `<run>/<mode>/<epoch>/<index>/<replica>`."""
    return key.rsplit("/", 4)[0]


class AlgorithmStore(DelegatingStore):
    """Store for an algorithm. It forwards all calls to `target`.

    After every runner has ended, no queued rollout can be executed any more. A call that waits for a queued rollout
    then raises `RunnersGone`: `wait_for_rollouts`, `follow` and `finished` of `store.training`, and repeated reads of
    queued rollouts. The error is raised after `STANDSTILL_SECONDS` in which no worker has an active attempt.
    An algorithm that does not wait may continue for any time.

    Args:
        target: the store.
        no_runner: event that is set when every runner of the training has ended.
    """

    def __init__(self, target: Store, no_runner: ExecutionEvent) -> None:
        self._target = target
        self._no_runner = no_runner
        self.plans: set[str] = set()
        """The names of the plans whose rollouts the algorithm enqueued, even if all of the rollouts existed already."""
        self._standstill: tuple[float, float] | None = None
        """The times of the first and the last check at which the algorithm waited and no attempt was active."""

    @property
    def target(self) -> Store:
        return self._target

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.target.capabilities

    def otlp_traces_endpoint(self) -> str:
        return self.target.otlp_traces_endpoint()

    async def close(self) -> None:
        await self.target.close()

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        enqueued = await self.target.enqueue_many_rollouts(rollouts)
        keys = {str((request.metadata or {}).get(PLAN_KEY, "")) for request in rollouts}
        self.plans |= {plan_of(key) for key in keys} - {""}
        return enqueued

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait as `Store.wait_for_rollouts` does.

        Raises:
            RunnersGone: no runner is left that could execute one of the rollouts.
        """
        ended = await self._checked(self.target.wait_for_rollouts(rollout_ids, timeout), rollout_ids)
        if len({rollout.rollout_id for rollout in ended}) < len(set(rollout_ids)):
            await self._check(rollout_ids)
        return ended

    async def checked_tail(self, events: AsyncGenerator[LoggedEvent]) -> AsyncGenerator[LoggedEvent]:
        """Yield events of the log to an algorithm that uses them to wait for rollouts.

        Raises:
            RunnersGone: rollouts are queued, and no runner is left.
        """
        async with aclosing(events):
            while (event := await self._checked(anext(events, None), None)) is not None:
                yield event

    async def _checked(self, wait: Awaitable[T], rollout_ids: Sequence[str] | None) -> T:
        """Return the result of a wait; raise `RunnersGone` if no runner is left to execute the awaited rollouts."""
        waiting = asyncio.ensure_future(wait)
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=STANDSTILL_SECONDS / 5)
                if not waiting.done():
                    await self._check(rollout_ids)
            return waiting.result()
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})

    async def find_rollouts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Rollout | AttemptedRollout]:
        page = await self.target.find_rollouts(*args, **kwargs)
        await self._check_read(page)
        return page

    async def get_rollout_by_id(self, *args: Any, **kwargs: Any) -> Rollout | AttemptedRollout | None:
        rollout = await self.target.get_rollout_by_id(*args, **kwargs)
        await self._check_read([] if rollout is None else [rollout])
        return rollout

    async def get_latest_attempt(self, rollout_id: str, *args: Any, **kwargs: Any) -> Attempt | None:
        await self._check([rollout_id])
        return await self.target.get_latest_attempt(rollout_id, *args, **kwargs)

    async def _check_read(self, rollouts: Collection[Rollout]) -> None:
        if waiting := [rollout.rollout_id for rollout in rollouts if rollout.status in _WAITING]:
            await self._check(waiting)

    async def _check(self, rollout_ids: Sequence[str] | None) -> None:
        """Raise `RunnersGone` if the algorithm has waited too long for these rollouts; None stands for all rollouts."""
        if not self._no_runner.is_set():
            return
        waiting = await self.target.query_rollouts(rollout_id_in=rollout_ids, status_in=_WAITING, limit=0)
        if not waiting.total:
            return
        at_work = await self.target.query_rollouts(status_in=AT_WORK, limit=0)
        now = time.monotonic()
        # An algorithm that reads queued rollouts only now and then is computing, so its waiting time starts again.
        if at_work.total or self._standstill is None or now - self._standstill[1] > STANDSTILL_SECONDS:
            self._standstill = None if at_work.total else (now, now)
            return
        self._standstill = (self._standstill[0], now)
        if now - self._standstill[0] < STANDSTILL_SECONDS:
            return
        raise RunnersGone(
            f"{waiting.total} rollouts wait, but every runner has reached max_rollouts and ended; "
            "raise max_rollouts, or leave it out"
        )
