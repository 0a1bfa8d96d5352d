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
    from store.interface import Store

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
            # It may have finished them between the question and the kill; what it held is what it holds now.
            if left := (await _held(store)).get(worker_id):
                return Loss(worker_id, pid, left)
        await asyncio.sleep(_LOOK_SECONDS)


async def _pid(store: Store, worker_id: str) -> int | None:
    worker = await store.get_worker_by_id(worker_id)
    pid = ((worker.heartbeat_stats if worker else None) or {}).get("pid")
    # A worker of an earlier run may have had this name, and somebody else its pid by now.
    return pid if pid in {child.pid for child in multiprocessing.active_children()} else None


async def _held(store: Store) -> dict[str, list[str]]:
    """Return which rollouts each worker holds unfinished."""
    held: dict[str, list[str]] = {}
    for rollout in await store.query_rollouts(status_in=_IN_FLIGHT):
        if isinstance(rollout, AttemptedRollout) and rollout.attempt.status in _IN_FLIGHT:
            held.setdefault(rollout.attempt.worker_id or "", []).append(rollout.rollout_id)
    return held
