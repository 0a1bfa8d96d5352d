"""A runner lost on purpose: killed as a power cut would, while it holds rollouts that are not finished."""

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
    """A runner that was killed while it held rollouts: who it was, and which."""

    worker_id: str
    pid: int
    rollout_ids: list[str]


async def lose_a_runner(store: Store, holding: int) -> Loss:
    """Kill a runner of this process, once one holds so many rollouts, and return what it left unfinished.

    Which process a runner is, its heartbeats say; whoever started it starts another in its place.
    """
    while True:
        for worker_id, held in (await _held(store)).items():
            if len(held) < holding or (pid := await _pid(store, worker_id)) is None:
                continue
            os.kill(pid, signal.SIGKILL)
            # It may have finished them between the question and the kill, or said so of some that are not told yet.
            if lost := await _lost(store, (await _held(store)).get(worker_id, [])):
                return Loss(worker_id, pid, lost)
        await asyncio.sleep(_LOOK_SECONDS)


async def _lost(store: Store, held: list[AttemptedRollout]) -> list[str]:
    """Return of which rollouts the attempt came to nothing, once that is known of each."""
    lost: list[str] = []
    for rollout in held:
        while (status := await _status(store, rollout)) in _IN_FLIGHT:  # noqa: ASYNC110 - nothing else tells of it
            await asyncio.sleep(_LOOK_SECONDS)
        if status not in {None, "succeeded"}:
            lost.append(rollout.rollout_id)
    return lost


async def _status(store: Store, rollout: AttemptedRollout) -> str | None:
    """Return how an attempt stands; None if its claim was taken back."""
    attempts = await store.query_attempts(rollout.rollout_id)
    return next((each.status for each in attempts if each.attempt_id == rollout.attempt.attempt_id), None)


async def _pid(store: Store, worker_id: str) -> int | None:
    worker = await store.get_worker_by_id(worker_id)
    pid = ((worker.heartbeat_stats if worker else None) or {}).get("pid")
    # A worker of an earlier run may have had this name, and somebody else its pid by now.
    return pid if pid in {child.pid for child in multiprocessing.active_children()} else None


async def _held(store: Store) -> dict[str, list[AttemptedRollout]]:
    """Return what each worker holds unfinished."""
    held: dict[str, list[AttemptedRollout]] = {}
    for rollout in await store.query_rollouts(status_in=_IN_FLIGHT):
        if isinstance(rollout, AttemptedRollout) and rollout.attempt.status in _IN_FLIGHT:
            held.setdefault(rollout.attempt.worker_id or "", []).append(rollout)
    return held
