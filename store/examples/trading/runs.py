"""Start of a run of the desk, execution of an attempt, and search for a run whose process died."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

from store.errors import Invalid
from store.examples.trading.desk import SCOPES, Desk
from store.examples.trading.feeds import DATE, TICKERS
from store.interface.liveness import is_orphan
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError
from store.pipelines.pipeline_runner import PipelineRunner
from store.run_folders.folder_phases import TA

_NAME: Final = "trading"
_PREFIX: Final = "trading-"


async def begin(store: Store) -> AttemptedRollout:
    """Start a run with the current graph."""
    resources_id = _PREFIX + TA.digest[:12]
    if await store.get_resources_by_id(resources_id) is None:
        await store.update_resources(resources_id, {"phases": TA})
    task_input = {"example": _NAME, "date": DATE, "tickers": list(TICKERS)}
    metadata = {"rollbook.group": _PREFIX + DATE}
    return await store.start_rollout(task_input, resources_id=resources_id, metadata=metadata)


async def drive(store: Store, run: AttemptedRollout, desk: Desk) -> None:
    """Execute the attempt in this process with a runner, which sends heartbeats and reports the status."""

    async def start(worker_id: str) -> AttemptedRollout:
        # The worker's heartbeats name this process, so that other processes can detect that this process has ended.
        await store.update_attempt(run.rollout_id, run.attempt.attempt_id, worker_id=worker_id)
        return run

    outcome = await PipelineRunner(desk.pipeline).execute(store, start)
    if outcome.error is not None:
        raise outcome.error


async def left_behind(store: Store) -> AttemptedRollout | None:
    """Return the newest run of the desk whose process, on this machine, was killed; None if there is none."""
    active = await store.query_rollouts(
        status_in=["preparing", "running"], sort_by="start_time", sort_order="desc", limit=100
    )
    for run in active:
        is_desk_run = (run.resources_id or "").startswith(_PREFIX)
        if is_desk_run and isinstance(run, AttemptedRollout) and await is_orphan(store, run):
            return run
    return None


async def go_on(store: Store, run: AttemptedRollout) -> AttemptedRollout:
    """Report the attempt of a run whose process has ended as failed, and start an attempt that resumes it.

    If all phases of the attempt are completed and only its status is missing, the attempt is returned unchanged.
    """
    if await _is_done(store, run):
        return run
    lost = AttemptError(type="Killed", message="its process is gone")
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="failed", error=lost)
    # The broker is simulated, so trades that had begun may be repeated.
    resumed = await store.runs.resume(run.rollout_id, confirm_side_effects=True, reason=lost.message)
    return resumed.rollout


async def _is_done(store: Store, run: AttemptedRollout) -> bool:
    page = await store.runs.query_events(run.rollout_id, kind="phase.completed", limit=-1, bodies=False)
    done = {(event.scope, event.phase) for event in page.items}
    return all((scope, phase.name) in done for phase in TA.phases for scope in SCOPES[phase.scope_kind])


def dying_at(place: str | None) -> Callable[[str, str], None] | None:
    """Return a callback that kills this process by SIGKILL when the desk reaches a node: `NODE`, or `NODE/SCOPE`.

    Raises:
        Invalid: the node does not exist, or never runs for this scope.
    """
    if place is None:
        return None
    node, _, scope = place.partition("/")
    phases = TA.phases_of(node)
    if not phases:
        names = ", ".join(name for phase in TA.phases for name in phase.nodes)
        raise Invalid("--stop-at", f"{node!r} is none of {names}")
    scopes = SCOPES[phases[0].scope_kind]
    if scope.lower() not in {"", *(name.lower() for name in scopes)}:
        raise Invalid("--stop-at", f"{node} is never about {scope!r}, only about {', '.join(scopes)}")

    def reached(name: str, about: str) -> None:
        if name == node and scope.lower() in {"", about.lower()}:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached
