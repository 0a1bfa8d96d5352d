"""Commands about runs, made from arguments that are checked, encoded, compressed and hashed here.

An event in the log has `data`, a JSON object of at most 8 KiB, and a body, which contains the payload of the
event. A fact is the content of `data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from store.domain.body import Body
from store.domain.events import Json, encode
from store.domain.run_commands import AppendToRun, Fork, ForkPrecondition, MoveHead, NewRunFact, RetractArtifact
from store.domain.run_events import (
    ArtifactSaved,
    AttemptForked,
    CheckpointRejected,
    CheckpointSaved,
    PhaseCompleted,
    PhaseSkipped,
    PhaseStarted,
)
from store.domain.run_events import RunEvent as RunEventFact
from store.errors import Invalid, TooLarge
from store.models.calls import (
    AppendEventsCall,
    ForkCall,
    MoveHeadCall,
    ResumeCall,
    RetractArtifactCall,
    SaveArtifactCall,
    SaveCheckpointCall,
)
from store.models.runs import Fork as ForkModel
from store.models.runs import ForkPlan, RunEvent
from store.planning.saving import Taken
from store.runtime import ids, process
from store.validation import arguments
from store.validation.json_limits import (
    MAX_CALL_BYTES,
    MAX_DATA_BYTES,
    check_call,
    check_text,
    dumps,
    dumps_fields,
    encode_body,
)

BLOB_FROM: Final = 1024
"""The minimum length, in bytes of UTF-8, of prompts and responses that are stored as blobs.

Equal texts share a blob.
"""

MAX_REASON_BYTES: Final = 1024

_PHASES: Final = {kind.type: kind for kind in (PhaseStarted, PhaseCompleted, PhaseSkipped)}
_NAMES: Final = ("node_id", "scope", "parent_node_id", "agent", "phase", "node_exec", "status", "service")
_PAYLOAD: Final = ("message", "prompt", "response", "error")
# With at most this many metrics, an event's `data` cannot exceed its limit of 8 KiB, because names are limited too.
_FEW_METRICS: Final = 16


def append(call: AppendEventsCall) -> AppendToRun:
    """Return the command that records run events."""
    attempt_id, key = call.attempt_id, call.key
    check_call(len(call.events), 0, "events")
    items: list[NewRunFact] = []
    size = 0
    for index, event in enumerate(call.events):
        path = f"events[{index}]."
        if not isinstance(event, RunEvent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"events[{index}]", f"is {type(event).__name__}, not a RunEvent")
        item = _phase(event, attempt_id, path) if event.kind in _PHASES else _run_event(event, attempt_id, path)
        if key is not None:
            item.fact.key = key
        item.fact.ordinal = index  # pyright: ignore[reportAttributeAccessIssue] (both types have this field)
        size += item.size
        items.append(item)
    check_call(0, size, "events")
    return _append(call.rollout_id, attempt_id, "events", items, key)


def _run_event(event: RunEvent, attempt_id: str, path: str) -> NewRunFact:
    fact = RunEventFact(attempt_id=attempt_id, kind=check_text(event.kind, f"{path}kind"))
    fields = event.__dict__
    for name in _NAMES:
        value = fields[name]
        if value is not None:
            setattr(fact, name, check_text(value, path + name))
    if event.metrics:
        fact.metrics = _metrics(event.metrics, f"{path}metrics")
    payload = {name: value for name in _PAYLOAD if (value := fields[name]) is not None}
    blobs: list[Body] = []
    for name in ("prompt", "response"):
        blob = _blob(payload.get(name), path + name)
        if blob is not None:
            del payload[name]
            blobs.append(blob)
            setattr(fact, f"{name}_sha256", blob.sha256.hex())
    # The store interprets these fields only in events about a phase. In other events, they are payload.
    payload |= {name: value for name in ("cascade", "reason") if (value := fields[name]) is not None}
    if len(event.metrics or ()) > _FEW_METRICS:
        _check_data(fact, f"{path}metrics")
    return NewRunFact(fact, _payload(payload | (event.model_extra or {}), path), blobs)


def _phase(event: RunEvent, attempt_id: str, path: str) -> NewRunFact:
    if event.phase is None:
        raise Invalid(f"{path}phase", f"is None; an event of kind {event.kind} needs the name of its phase")
    fact = _PHASES[event.kind](
        attempt_id=attempt_id,
        phase=check_text(event.phase, f"{path}phase"),
        scope=_name(event.scope, f"{path}scope"),
        cascade=event.cascade,
        reason=None if event.reason is None else check_text(event.reason, f"{path}reason", MAX_REASON_BYTES),
    )
    fields = ("kind", "phase", "scope", "cascade", "reason")
    rest = {name: value for name, value in event.__dict__.items() if name not in fields and value is not None}
    return NewRunFact(fact, _payload(rest | (event.model_extra or {}), path))


def _metrics(metrics: dict[str, Any], path: str) -> Json:
    for name, value in metrics.items():
        check_text(name, path)
        if name == "model" and isinstance(value, str):
            check_text(value, f"{path}.model")
        elif value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise Invalid(f"{path}.{name}", f"is {type(value).__name__}; metrics are numbers, except `model`")
    dumps(metrics, path)
    return metrics


def _blob(text: str | None, path: str) -> Body | None:
    # One character takes at most four bytes.
    if text is None or len(text) * 4 < BLOB_FROM:
        return None
    raw = check_text(text, path, MAX_CALL_BYTES).encode()
    return encode_body(raw) if len(raw) >= BLOB_FROM else None


def checkpoint(call: SaveCheckpointCall, taken: Taken, parent_id: str | None) -> AppendToRun:
    """Return the command that saves a checkpoint. If the checkpoint is rejected, the command records the reason."""
    attempt_id, name, key = call.attempt_id, call.name, call.key
    scope, after_phase = check_text(taken.scope, "scope"), _name(taken.after_phase, "after_phase")
    check_text(name, "name")
    if taken.rejection is not None:
        reason = taken.rejection.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        rejected = CheckpointRejected(attempt_id, scope, name, reason, after_phase, key)
        return _append(call.rollout_id, attempt_id, CheckpointRejected.type, [NewRunFact(rejected, None)], key)
    if taken.state is None and call.external is None:
        raise Invalid("state", "is None; give the state, or its location in `external`")
    location = _object(call.external)
    dumps(location, "external")
    fact = CheckpointSaved(
        attempt_id=attempt_id,
        checkpoint_id=ids.checkpoint_id(),
        scope=scope,
        name=name,
        after_phase=after_phase,
        parent_id=parent_id,
        graph=taken.graph,
        external=location,
        key=key,
    )
    _check_data(fact, "external")
    body = _payload({"state": taken.state}, "") if taken.state is not None else None
    return _append(call.rollout_id, attempt_id, CheckpointSaved.type, [NewRunFact(fact, body)], key)


def artifact(call: SaveArtifactCall) -> AppendToRun:
    """Return the command that saves an artifact."""
    fact = ArtifactSaved(
        attempt_id=call.attempt_id,
        artifact_id=ids.artifact_id(),
        scope=check_text(call.scope, "scope"),
        name=check_text(call.name, "name"),
        phase=_name(call.phase, "phase"),
        media_type=_name(call.media_type, "media_type"),
        key=call.key,
    )
    item = NewRunFact(fact, _payload({"content": call.content}, ""))
    return _append(call.rollout_id, call.attempt_id, ArtifactSaved.type, [item], call.key)


def retract(call: RetractArtifactCall) -> RetractArtifact:
    """Return the command that retracts an artifact."""
    return RetractArtifact(
        rollout_id=check_text(call.rollout_id, "rollout_id"),
        artifact_id=check_text(call.artifact_id, "artifact_id"),
        reason=None if call.reason is None else check_text(call.reason, "reason", MAX_REASON_BYTES),
        key=_name(call.key, "key"),
    )


def fork(plan: ForkPlan, call: ForkCall | ResumeCall) -> Fork:
    """Return the command that starts the attempt of a fork, as planned."""
    is_fork = isinstance(call, ForkCall)
    fact = AttemptForked(
        attempt_id=ids.attempt_id(),
        kind=plan.kind,
        base=plan.base,
        base_version=plan.base_version,
        masks=[mask.model_dump() for mask in plan.masks],
        scopes=list(plan.scopes),
        phase=plan.phase,
        entry=plan.entry,
        checkpoints=[item.checkpoint_id for item in plan.checkpoints],
        cascade=list(plan.cascade),
        graph=plan.graph,
        degraded=None if plan.degraded is None else plan.degraded.model_dump(),
        confirmed=call.confirm_side_effects or None,
        request_id=_name(call.request_id, "request_id"),
    )
    _check_data(fact, "scopes")
    request_fields = {"reason": call.reason, "state_patch": _object(call.state_patch) if is_fork else None}
    return Fork(
        rollout_id=check_text(plan.rollout_id, "rollout_id"),
        fact=fact,
        ground=ForkPrecondition(plan.head, plan.ground),
        supersede=is_fork and call.on_active == "supersede",
        worker_id=_name(call.worker_id, "worker_id"),
        owner=process.owner(),
        body=_payload({name: value for name, value in request_fields.items() if value is not None}, ""),
        metadata=_metadata(plan, request_fields),
        actor=None if call.worker_id is None else f"worker:{call.worker_id}",
    )


def _metadata(plan: ForkPlan, request_fields: Json) -> Body:
    """Return the metadata for the attempt of a fork. The key `fork` contains a `store.models.Fork` as JSON."""
    fork = plan.model_dump(include=set(ForkModel.model_fields)) | request_fields
    raw = dumps_fields({"metadata": {"fork": fork}}, "")
    check_call(0, len(raw), "state_patch")
    return encode_body(raw)


def move_head(call: MoveHeadCall) -> MoveHead:
    """Return the command that makes an attempt the head of its rollout."""
    return MoveHead(
        rollout_id=check_text(call.rollout_id, "rollout_id"),
        attempt_id=check_text(call.attempt_id, "attempt_id"),
        request_id=_name(call.request_id, "request_id"),
        body=_payload({} if call.reason is None else {"reason": call.reason}, ""),
    )


def _append(rollout_id: str, attempt_id: str, kind: str, items: list[NewRunFact], key: str | None) -> AppendToRun:
    return AppendToRun(
        rollout_id=check_text(rollout_id, "rollout_id"),
        attempt_id=check_text(attempt_id, "attempt_id"),
        kind=kind,
        items=items,
        key=_name(key, "key"),
    )


def _name(value: str | None, path: str) -> str | None:
    return None if value is None else check_text(arguments.text(value, path), path)


def _object(value: Mapping[str, Any] | None) -> Json | None:
    return None if value is None else dict(value)


def _payload(value: dict[str, Any], path: str) -> Body | None:
    """Return the body that contains a payload; None if the payload is empty."""
    if not value:
        return None
    raw = dumps_fields(value, path)
    check_call(0, len(raw), path.rstrip(".") or next(iter(value)))
    return encode_body(raw)


def _check_data(fact: Any, path: str) -> None:
    """Check that a fact fits into `data`. Payload is not counted, because the body contains it.

    Raises:
        TooLarge: the fact has more than 8 KiB.
    """
    size = len(encode(fact).encode())
    if size > MAX_DATA_BYTES:
        raise TooLarge(path, size, MAX_DATA_BYTES)
