"""Deliberate loss of a runner, which is killed while it has unfinished rollouts.

The rollouts of the killed runner are retried in new attempts.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.models import AttemptedRollout

if TYPE_CHECKING:
    from store.interface.store import Store

_LOOK_SECONDS = 0.025
_IN_FLIGHT = ("preparing", "running")


@dataclass(frozen=True, slots=True)
class Loss:
    """A runner that was killed, and the ids of the rollouts that it did not finish."""

    worker_id: str
    pid: int
    rollout_ids: list[str]


async def lose_a_runner(store: Store, holding: int) -> Loss:
    """Wait until a runner has at least `holding` unfinished rollouts. Kill this runner, and return its lost rollouts.

    Only child processes of this process are killed. If the killed runner lost no rollout, another runner is killed. The
    process id of a runner comes from its heartbeat. The trainer starts a new process in place of a killed process.
    """
    while True:
        for worker_id, held in (await _held(store)).items():
            if len(held) < holding or (pid := await _pid(store, worker_id)) is None:
                continue
            os.kill(pid, signal.SIGKILL)
            # The runner may have finished some of the rollouts before the kill. So the rollouts are read again.
            if lost := await _lost(store, (await _held(store)).get(worker_id, [])):
                return Loss(worker_id, pid, lost)
        await asyncio.sleep(_LOOK_SECONDS)


async def _lost(store: Store, held: list[AttemptedRollout]) -> list[str]:
    """Wait until the attempt of each rollout has ended, and return the ids of the rollouts whose attempt failed."""
    lost: list[str] = []
    for rollout in held:
        while (status := await _status(store, rollout)) in _IN_FLIGHT:  # noqa: ASYNC110 - there is no notification of the end
            await asyncio.sleep(_LOOK_SECONDS)
        if status not in {None, "succeeded"}:
            lost.append(rollout.rollout_id)
    return lost


async def _status(store: Store, rollout: AttemptedRollout) -> str | None:
    """Return the status of the rollout's attempt, or None if the attempt no longer exists.

    An attempt no longer exists if the store has returned the rollout to the queue before the attempt began.
    """
    attempts = await store.query_attempts(rollout.rollout_id)
    return next((attempt.status for attempt in attempts if attempt.attempt_id == rollout.attempt.attempt_id), None)


async def _pid(store: Store, worker_id: str) -> int | None:
    worker = await store.get_worker_by_id(worker_id)
    pid = ((worker.heartbeat_stats if worker else None) or {}).get("pid")
    # The heartbeat may be from an earlier run, and another program may now have the same process id. So only ids of
    # child processes of this process are returned.
    return pid if pid in {child.pid for child in multiprocessing.active_children()} else None


async def _held(store: Store) -> dict[str, list[AttemptedRollout]]:
    """Return the unfinished rollouts of each runner, by worker id."""
    held: dict[str, list[AttemptedRollout]] = {}
    for rollout in await store.query_rollouts(status_in=_IN_FLIGHT):
        if isinstance(rollout, AttemptedRollout) and rollout.attempt.status in _IN_FLIGHT:
            held.setdefault(rollout.attempt.worker_id or "", []).append(rollout)
    return held
