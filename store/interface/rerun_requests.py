"""Requests for re-runs, which wait for a runner of the run's pipeline. Decision 41.

A request is an annotation of the run: a label, and a note with the arguments. The request changes neither the status
nor the results of the run. A runner starts a new attempt for the request, removes the label, and adds a note with the
attempt. If the runner refuses the request, the note contains the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from uuid import uuid4

from pydantic import Field, ValidationError

from store.domain.statuses import UNRESPONSIVE_SECONDS
from store.errors import (
    AttemptActive,
    Conflict,
    GraphChanged,
    HeadMoved,
    Invalid,
    NotFound,
    SideEffectsUnconfirmed,
)
from store.interface.liveness import is_orphan, live_runners
from store.interface.phase_graphs import graph_of
from store.interface.store import Store
from store.models import AttemptedRollout, ForkPlan, ForkResult, OnMissing, PhaseGraph, Rollout
from store.models.annotations import Annotations
from store.models.enums import Frozen
from store.planning.plan import of_fork

LABEL: Final = "rerun requested"
"""The label of runs with an open request."""
CLAIM_SECONDS: Final = 5.0
"""The maximum time for which `request_rerun` waits until a live runner takes the request."""

_ACTIVE: Final = ("preparing", "running")
_POLL_SECONDS: Final = 0.05


class RerunRequest(Frozen):
    """A request: the arguments of `runs.fork` for the re-run, and the pipeline that has to execute the re-run."""

    request_id: str
    pipeline: str
    """The name of the pipeline's phase graph, which declares the phases of its runs."""
    node: str | None = None
    phase: str | None = None
    scopes: list[str] = Field(default_factory=list[str])
    base: str = "head"
    on_missing: OnMissing = "error"
    cascade: bool = True
    state_patch: dict[str, Any] | None = None
    supersede: bool = False
    expected_head: int | None = None
    reason: str | None = None
    confirm_side_effects: bool = False
    allow_graph_change: bool = False


class RequestEnd(Frozen):
    """The end of a request: the attempt that a runner has started, or the reason why the runner refused the request."""

    request_id: str
    attempt: int | None = None
    refused: str | None = None


M = TypeVar("M", RerunRequest, RequestEnd)


class RerunAnswer(Frozen):
    """The state of a request when `request_rerun` returns."""

    request_id: str
    plan: ForkPlan | None
    """The plan of the re-run; None for a repeated request, because the plan of the first call may be out of date."""
    attempt: int | None
    """The sequence id of the attempt that a runner has started; None while the request is open."""
    runners: list[str]
    """The worker ids of the pipeline's live runners."""

    @property
    def message(self) -> str | None:
        """The reason why no attempt has started yet, and the remedy; None once an attempt has started."""
        if self.attempt is not None:
            return None
        if self.runners:
            return f"The request is open: {len(self.runners)} live runners of the pipeline have not taken it yet."
        return (
            "No runner of this pipeline is live, so the run stays as it is until one takes the request;"
            " start one with `rollbook runner --pipeline MODULE:PIPELINE`."
        )


async def request_rerun(
    store: Store,
    rollout_id: str,
    *,
    request_id: str | None = None,
    state_patch: Mapping[str, Any] | None = None,
    supersede: bool = False,
    expected_head: int | None = None,
    reason: str | None = None,
    confirm_side_effects: bool = False,
    allow_graph_change: bool = False,
    default_graph: PhaseGraph | None = None,
    wait_seconds: float = CLAIM_SECONDS,
    **part: Any,
) -> RerunAnswer:
    """Request a re-run of a part of a run.

    The call returns when a runner has started the re-run, or after `wait_seconds`. Without a live runner, the call
    returns at once. An active attempt of the run is ended if its process is gone, or if `supersede` is set.

    Args:
        store: the store of the run.
        rollout_id: the run.
        request_id: the id of the request; a repeated request with the same id has no further effect.
        state_patch: keys to set in the state from which the re-run starts.
        supersede: whether to end an attempt that is active.
        expected_head: the sequence id that the head must have; None for any head.
        reason: the reason for the re-run.
        confirm_side_effects: whether to allow phases with unsafe side effects to run again.
        allow_graph_change: whether to allow checkpoints that were saved under another phase graph.
        default_graph: the phase graph of a run whose resources contain none.
        wait_seconds: the maximum time to wait until a live runner takes the request.
        part: the arguments of `runs.plan_fork`, such as `phase` and `scopes`.

    Raises:
        AttemptActive: an attempt is active, its process may still run, and `supersede` is not set.
        Conflict: another request is open, a runner refuses this request, or `runs.fork` would raise `Conflict`.
        Invalid: `runs.fork` would raise `Invalid`.
        NotFound: the run does not exist.
    """
    request_id = request_id or uuid4().hex
    annotations = await store.annotations.query(rollout_id)
    requests = [request for note in annotations.notes if (request := _parsed(RerunRequest, note.text)) is not None]
    repeated_request = next((request for request in requests if request.request_id == request_id), None)
    if repeated_request is not None:
        return await _answer(store, rollout_id, repeated_request, None, wait_seconds)
    rollout = await _attempted(store, rollout_id)
    graph = await graph_of(store, rollout)
    if rollout.attempt.status in _ACTIVE and rollout.status in _ACTIVE and not supersede:
        supersede = await is_orphan(store, rollout)
        if not supersede:
            raise AttemptActive(rollout_id, rollout.attempt.sequence_id)
    plan = await store.runs.plan_fork(rollout_id, **part, graph=None if graph is not None else default_graph)
    if expected_head not in {None, plan.head}:
        raise HeadMoved(rollout_id, expected_head or 0, plan.head)
    if plan.graph_changed and not allow_graph_change:
        raise GraphChanged(plan.graph_changed)
    if plan.unsafe and not confirm_side_effects:
        raise SideEffectsUnconfirmed(plan.unsafe)
    if LABEL in annotations.labels:
        raise Conflict(
            f"a re-run of {rollout_id} was requested before and waits for a runner",
            f"start a runner, or withdraw the request by removing the label {LABEL!r}",
        )
    graph = graph or default_graph
    assert graph is not None  # without a graph, `plan_fork` has raised an error
    request = RerunRequest(
        request_id=request_id,
        pipeline=graph.name,
        state_patch=None if state_patch is None else dict(state_patch),
        supersede=supersede,
        expected_head=expected_head,
        reason=reason,
        confirm_side_effects=confirm_side_effects,
        allow_graph_change=allow_graph_change,
        **part,
    )
    text = f"Re-run requested: {of_fork(plan)}.\n{request.model_dump_json(exclude_defaults=True)}"
    await store.annotations.annotate(rollout_id, text, add_labels=[LABEL])
    return await _answer(store, rollout_id, request, plan, wait_seconds)


async def _answer(
    store: Store, rollout_id: str, request: RerunRequest, plan: ForkPlan | None, wait_seconds: float
) -> RerunAnswer:
    """Wait until a live runner takes a request, at most `wait_seconds`, and return the state of the request."""
    runners = await live_runners(store, request.pipeline)
    attempt = await _claimed(store, rollout_id, request.request_id, wait_seconds if runners else 0.0)
    return RerunAnswer(request_id=request.request_id, plan=plan, attempt=attempt, runners=runners)


async def open_request(store: Store, rollout_id: str) -> RerunRequest | None:
    """Return the oldest open request of a run; None if no request is open."""
    annotations = await store.annotations.query(rollout_id)
    return next(iter(_open(annotations)), None) if LABEL in annotations.labels else None


async def take(
    store: Store,
    rollout_id: str,
    request: RerunRequest,
    graph: PhaseGraph,
    worker_id: str,
    silence: float = UNRESPONSIVE_SECONDS,
) -> ForkResult | None:
    """Start the requested attempt for a worker, and close the request.

    The result is None if another worker has started the attempt, or if the run no longer allows the re-run. In the
    second case, a note contains the reason.

    Args:
        store: the store of the run.
        rollout_id: the run.
        request: the open request of the run.
        graph: the phase graph of the worker's pipeline, for a run whose resources contain none.
        worker_id: the worker.
        silence: `unresponsive_seconds` for a run whose config does not set it.

    Raises:
        Unavailable: the store cannot be reached; the request stays open.
    """
    try:
        rollout = await _attempted(store, rollout_id)
        await limit_silence(store, rollout, silence)
        recorded_graph = await graph_of(store, rollout)
        result = await store.runs.fork(
            rollout_id,
            **request.model_dump(exclude={"request_id", "pipeline", "supersede"}),
            on_active="supersede" if request.supersede else "reject",
            request_id=request.request_id,
            worker_id=worker_id,
            graph=None if recorded_graph is not None else graph,
        )
    except (Conflict, Invalid, NotFound) as error:
        end = RequestEnd(request_id=request.request_id, refused=str(error))
        await _close(store, rollout_id, f"Re-run refused: {error}", end)
        return None
    is_ours = result.attempt.worker_id == worker_id
    text = f"Attempt {result.attempt.sequence_id} runs it, by {result.attempt.worker_id}."
    await _close(store, rollout_id, text, RequestEnd(request_id=request.request_id, attempt=result.attempt.sequence_id))
    return result if is_ours else None


async def limit_silence(store: Store, rollout: Rollout, seconds: float = UNRESPONSIVE_SECONDS) -> None:
    """Set `unresponsive_seconds` of a rollout that has none, so that the store ends an attempt whose process dies.

    The value is the time without a sign of life after which an attempt becomes unresponsive.
    """
    if rollout.config.unresponsive_seconds is None:
        config = rollout.config.model_copy(update={"unresponsive_seconds": seconds})
        await store.update_rollout(rollout.rollout_id, config=config)


async def _attempted(store: Store, rollout_id: str) -> AttemptedRollout:
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise NotFound.rollout(rollout_id)
    if not isinstance(rollout, AttemptedRollout):
        raise Conflict(f"run {rollout_id} has not begun", "wait until a runner has taken it")
    return rollout


async def _claimed(store: Store, rollout_id: str, request_id: str, wait_seconds: float) -> int | None:
    """Return the attempt that a runner has started for a request; None if there is none after `wait_seconds`.

    Raises:
        Conflict: a runner has refused the request.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        annotations = await store.annotations.query(rollout_id)
        for note in reversed(annotations.notes):
            end = _parsed(RequestEnd, note.text)
            if end is None or end.request_id != request_id:
                continue
            if end.refused is not None:
                raise Conflict(f"the re-run was refused: {end.refused}", "check the plan again")
            # A note with neither an attempt nor a refusal is the request itself.
            if end.attempt is not None:
                return end.attempt
        if loop.time() >= deadline:
            return None
        await asyncio.sleep(_POLL_SECONDS)


async def _close(store: Store, rollout_id: str, text: str, end: RequestEnd) -> None:
    """Add a note about the end of a request, and remove the label unless another request is open."""
    try:
        annotations = await store.annotations.query(rollout_id)
        others = [request for request in _open(annotations) if request.request_id != end.request_id]
        note = f"{text}\n{end.model_dump_json(exclude_none=True)}"
        await store.annotations.annotate(rollout_id, note, remove_labels=[] if others else [LABEL])
    except NotFound:
        return


def _open(annotations: Annotations) -> list[RerunRequest]:
    """Return the requests that have no end yet, oldest first."""
    requests: dict[str, RerunRequest] = {}
    for note in annotations.notes:
        if (request := _parsed(RerunRequest, note.text)) is not None:
            requests.setdefault(request.request_id, request)
        elif (end := _parsed(RequestEnd, note.text)) is not None:
            requests.pop(end.request_id, None)
    return list(requests.values())


def _parsed(kind: type[M], text: str | None) -> M | None:
    """Return the object in the last line of a note; None if that line does not contain such an object."""
    try:
        return kind.model_validate_json((text or "").rpartition("\n")[2])
    except ValidationError:
        return None
