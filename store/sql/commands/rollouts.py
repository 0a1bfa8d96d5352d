"""Commands about rollouts, attempts, span numbers, resources and workers.

The arguments are checked, encoded, compressed and hashed here. Then the writer gets the commands and executes them.
"""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from store import semconv
from store.domain.commands import (
    AmendRollout,
    BeatWorker,
    Claim,
    Enqueue,
    NewRollout,
    NumberSpans,
    PublishResources,
    StartAttempt,
    StartRollout,
    UpdateAttempt,
)
from store.domain.events import Json
from store.errors import Invalid
from store.models import (
    UNSET,
    AttemptError,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Unset,
)
from store.models.calls import (
    AddResourcesCall,
    EnqueueManyRolloutsCall,
    EnqueueRolloutCall,
    NextSpanCall,
    NextSpansCall,
    StartAttemptCall,
    StartRolloutCall,
    UpdateAttemptCall,
    UpdateResourcesCall,
    UpdateRolloutCall,
    UpdateWorkerCall,
)
from store.runtime import ids, process
from store.validation import arguments
from store.validation.json_limits import body_of, canonical_sha256, check_call, check_text, dumps

MAX_ERROR_TYPE = 200
MAX_ERROR_MESSAGE = 500
# A process that only reads uses none of these adapters, so an adapter is built when it is first used.
_DEFERRED = ConfigDict(defer_build=True)
_STATUS = TypeAdapter[RolloutStatus](RolloutStatus, config=_DEFERRED)
_ATTEMPT_STATUS = TypeAdapter[AttemptStatus](AttemptStatus, config=_DEFERRED)
_ERROR = TypeAdapter(AttemptError)
_ERROR_STATUSES = ("failed", "timeout", "unresponsive")
_MODE = TypeAdapter[RolloutMode | None](RolloutMode | None, config=_DEFERRED)
_CONFIG = TypeAdapter(RolloutConfig)
_NAMED_RESOURCES = TypeAdapter[NamedResources](NamedResources, config=_DEFERRED)
_SHARED_EMPTY_LIST: list[str] = []
_AMENDED = ("input", "mode", "resources_id", "config", "metadata")
_UPDATED = ("worker_id", "last_heartbeat_time", "metadata")


def enqueue(call: EnqueueManyRolloutsCall) -> Enqueue:
    """Return the command that creates rollouts in the queue."""
    check_call(len(call.rollouts), 0, "rollouts")
    items: list[NewRollout] = []
    size = 0
    for index, request in enumerate(call.rollouts):
        if not isinstance(request, EnqueueRolloutRequest):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"rollouts[{index}]", f"is {type(request).__name__}, not an EnqueueRolloutRequest")
        item = _new_rollout(request, f"rollouts[{index}].")
        size += item.body.raw_len
        check_call(0, size, "rollouts")
        items.append(item)
    return Enqueue(items=items)


def enqueue_one(call: EnqueueRolloutCall) -> Enqueue:
    """Return the command that creates one rollout in the queue."""
    return Enqueue(items=[_new_rollout(call, "")])


def start_rollout(call: StartRolloutCall) -> StartRollout:
    """Return the command that creates a rollout and its first attempt."""
    return StartRollout(
        item=_new_rollout(call, ""),
        attempt_id=ids.attempt_id(),
        worker_id=_worker_id(call.worker_id),
        owner=process.owner(),
        actor=_as_actor(call.worker_id),
    )


def _new_rollout(request: EnqueueRolloutRequest | EnqueueRolloutCall | StartRolloutCall, path: str) -> NewRollout:
    metadata = {} if request.metadata is None else arguments.mapping(request.metadata, f"{path}metadata")
    reserved = _reserved(metadata, path)
    body = body_of({"input": request.input, "metadata": metadata}, path)
    return NewRollout(
        rollout_id=ids.rollout_id(),
        input_sha256=canonical_sha256(request.input),
        body=body,
        mode=_mode(request.mode, path),
        resources_id=_optional_id(request.resources_id, f"{path}resources_id"),
        config=_config(request.config, path),
        group=cast("str | None", reserved.get(semconv.GROUP_KEY)),
        step=cast("int | None", reserved.get(semconv.STEP_KEY)),
        plan_key=cast("str | None", reserved.get(semconv.PLAN_KEY)),
    )


def _reserved(metadata: Mapping[str, Any], path: str) -> dict[str, str | int]:
    reserved: dict[str, str | int] = {}
    for key, kind in semconv.RESERVED_METADATA.items():
        value = metadata.get(key)
        if value is None:
            continue
        if type(value) is not kind:
            raise Invalid(f"{path}metadata.{key}", f"is {type(value).__name__}; it must be {kind.__name__}")
        if isinstance(value, str):
            check_text(value, f"{path}metadata.{key}")
        elif not -(2**63) <= value < 2**63:
            raise Invalid(f"{path}metadata.{key}", "an integer of more than 64 bits cannot be stored")
        reserved[key] = value
    return reserved


def amend_rollout(call: UpdateRolloutCall) -> AmendRollout:
    """Return the command that sets fields of a rollout."""
    status: Any = call.status
    config: Any = call.config
    if status is None:
        raise Invalid("status", "is None; leave it out to keep the status")
    if config is None:
        raise Invalid("config", "is None; leave it out to keep the config, or give RolloutConfig() for the defaults")
    payload: dict[str, Any] = {} if call.input is UNSET else {"input": call.input}
    if call.metadata is not UNSET:
        payload["metadata"] = None if call.metadata is None else arguments.mapping(call.metadata, "metadata")
    return AmendRollout(
        rollout_id=_id(call.rollout_id, "rollout_id"),
        fields=[name for name in _AMENDED if getattr(call, name) is not UNSET],
        mode=None if call.mode is UNSET else _mode(call.mode, ""),
        resources_id=None if call.resources_id is UNSET else _optional_id(call.resources_id, "resources_id"),
        config=None if config is UNSET else _config(config, ""),
        status=None if status is UNSET else _checked(_STATUS, status, "status"),
        body=body_of(payload) if payload else None,
    )


def claim(limit: int, worker_id: str | None, rollout_ids: list[str] | None = None) -> Claim:
    """Return the command that claims up to `limit` rollouts from the front of the queue, or with the given ids."""
    return Claim(
        rollout_ids=rollout_ids,
        limit=limit,
        attempt_ids=[ids.attempt_id() for _ in range(limit)],
        worker_id=_worker_id(worker_id),
        owner=process.owner(),
        actor=_as_actor(worker_id),
    )


def start_attempt(call: StartAttemptCall) -> StartAttempt:
    """Return the command that starts another attempt of a rollout."""
    return StartAttempt(
        rollout_id=_id(call.rollout_id, "rollout_id"),
        attempt_id=ids.attempt_id(),
        worker_id=_worker_id(call.worker_id),
        owner=process.owner(),
        actor=_as_actor(call.worker_id),
    )


def update_attempt(call: UpdateAttemptCall) -> UpdateAttempt:
    """Return the command that sets fields of an attempt."""
    for name in (*_UPDATED, "status", "error"):
        if getattr(call, name) is None:
            raise Invalid(name, "is None; leave it out to keep the present value")
    status, time, metadata = call.status, call.last_heartbeat_time, call.metadata
    return UpdateAttempt(
        rollout_id=_id(call.rollout_id, "rollout_id"),
        attempt_id=_id(call.attempt_id, "attempt_id"),
        fields=[name for name in _UPDATED if getattr(call, name) is not UNSET],
        status=None if status is UNSET else _checked(_ATTEMPT_STATUS, status, "status"),
        worker_id=None if call.worker_id is UNSET else _id(call.worker_id, "worker_id"),
        last_heartbeat_time=None if time is UNSET else arguments.moment(time, "last_heartbeat_time"),
        error=None if call.error is UNSET else _error(call.error, status),
        body=None if metadata is UNSET else body_of({"metadata": arguments.mapping(metadata, "metadata")}),
    )


def _error(value: Any, status: Any) -> Json:
    if status not in _ERROR_STATUSES:
        raise Invalid("error", f"is only allowed with one of these statuses: {', '.join(_ERROR_STATUSES)}")
    error: AttemptError = _checked(_ERROR, value, "error")
    stored: Json = {
        "type": check_text(error.type[:MAX_ERROR_TYPE], "error.type", 4 * MAX_ERROR_TYPE),
        "message": check_text(error.message[:MAX_ERROR_MESSAGE], "error.message", 4 * MAX_ERROR_MESSAGE),
    }
    if error.span_id is not None:
        stored["span_id"] = check_text(error.span_id, "error.span_id")
    return stored


def number_span(call: NextSpanCall) -> NumberSpans:
    """Return the command that reserves one span number."""
    return NumberSpans(rollout_ids=[_id(call.rollout_id, "rollout_id")])


def number_spans(call: NextSpansCall) -> NumberSpans:
    """Return the command that reserves one span number for each pair of ids."""
    checked = [_id(rollout_id, "rollout_id") for rollout_id, _ in call.rollout_attempt_ids]
    check_call(len(checked), 0, "rollout_attempt_ids")
    return NumberSpans(rollout_ids=checked)


def publish(call: AddResourcesCall | UpdateResourcesCall) -> PublishResources:
    """Return the command that publishes resources under the id of the call, or under a new id if the call has none."""
    is_new = isinstance(call, AddResourcesCall)
    resources_id = ids.resources_id() if is_new else _id(call.resources_id, "resources_id")
    checked = _checked(_NAMED_RESOURCES, call.resources, "resources")
    body = body_of({"resources": {name: value.model_dump() for name, value in checked.items()}})
    return PublishResources(resources_id=resources_id, body=body, is_new=is_new)


def beat(call: UpdateWorkerCall) -> BeatWorker:
    """Return the command that records a worker's heartbeat."""
    text = None
    if not isinstance(call.heartbeat_stats, Unset):
        raw = dumps(arguments.mapping(call.heartbeat_stats, "heartbeat_stats"), "heartbeat_stats")
        check_call(0, len(raw), "heartbeat_stats")
        text = raw.decode()
    worker_id = _id(call.worker_id, "worker_id")
    return BeatWorker(worker_id=worker_id, heartbeat_stats=text, actor=f"worker:{worker_id}")


def _config(value: Any, path: str) -> Json:
    config: RolloutConfig = RolloutConfig() if value is None else _checked(_CONFIG, value, f"{path}config")
    arguments.rollout_config(config, f"{path}config")
    # The keys are in the order of the stored text, so that equal configs have equal texts.
    return {
        "max_attempts": config.max_attempts,
        "retry_condition": list(config.retry_condition) or _SHARED_EMPTY_LIST,
        "timeout_seconds": config.timeout_seconds,
        "unresponsive_seconds": config.unresponsive_seconds,
    }


def _mode(mode: Any, path: str) -> RolloutMode | None:
    return None if mode is None else _checked(_MODE, mode, f"{path}mode")


def _checked(adapter: TypeAdapter[Any], value: Any, field: str) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Invalid(f"{field}.{where}" if where else field, f"{first['msg']} (got {first['input']!r})") from None


def _id(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise Invalid(field, f"is {type(value).__name__}, not text")
    return check_text(value, field)


def _optional_id(value: Any, field: str) -> str | None:
    return None if value is None else _id(value, field)


def _worker_id(value: Any) -> str | None:
    return _optional_id(value, "worker_id")


def _as_actor(worker_id: str | None) -> str | None:
    return f"worker:{worker_id}" if worker_id else None
