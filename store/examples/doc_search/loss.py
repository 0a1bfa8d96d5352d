"""Deliberate loss of a runner: it is killed, as by a power cut, while it has unfinished rollouts."""

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
    """A runner that was killed, and the rollouts that it did not finish."""

    worker_id: str
    pid: int
    rollout_ids: list[str]


async def lose_a_runner(store: Store, holding: int) -> Loss:
    """Kill a runner of this process when it has `holding` unfinished rollouts, and return the rollouts that it lost.

    The process id comes from the runner's heartbeat. The trainer replaces the killed process.
    """
    while True:
        for worker_id, held in (await _held(store)).items():
            if len(held) < holding or (pid := await _pid(store, worker_id)) is None:
                continue
            os.kill(pid, signal.SIGKILL)
            # The runner may have finished rollouts since the query, so they are read again.
            if lost := await _lost(store, (await _held(store)).get(worker_id, [])):
                return Loss(worker_id, pid, lost)
        await asyncio.sleep(_LOOK_SECONDS)


async def _lost(store: Store, held: list[AttemptedRollout]) -> list[str]:
    """Wait until each attempt has ended, and return the rollouts whose attempt did not succeed."""
    lost: list[str] = []
    for rollout in held:
        while (status := await _status(store, rollout)) in _IN_FLIGHT:  # noqa: ASYNC110 - there is no notification of it
            await asyncio.sleep(_LOOK_SECONDS)
        if status not in {None, "succeeded"}:
            lost.append(rollout.rollout_id)
    return lost


async def _status(store: Store, rollout: AttemptedRollout) -> str | None:
    """Return the status of an attempt; None if its claim was released."""
    attempts = await store.query_attempts(rollout.rollout_id)
    return next((each.status for each in attempts if each.attempt_id == rollout.attempt.attempt_id), None)


async def _pid(store: Store, worker_id: str) -> int | None:
    worker = await store.get_worker_by_id(worker_id)
    pid = ((worker.heartbeat_stats if worker else None) or {}).get("pid")
    # The heartbeat may be from an earlier run and its pid reused, so only children of this process count.
    return pid if pid in {child.pid for child in multiprocessing.active_children()} else None


async def _held(store: Store) -> dict[str, list[AttemptedRollout]]:
    """Return the unfinished rollouts of each worker."""
    held: dict[str, list[AttemptedRollout]] = {}
    for rollout in await store.query_rollouts(status_in=_IN_FLIGHT):
        if isinstance(rollout, AttemptedRollout) and rollout.attempt.status in _IN_FLIGHT:
            held.setdefault(rollout.attempt.worker_id or "", []).append(rollout)
    return held
