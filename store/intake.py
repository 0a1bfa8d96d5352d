"""Arguments become commands: checked, encoded, compressed and hashed by the caller, before they go to the writer."""

import math
import socket
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from store import arguments, ids, process, semconv
from store.db.encoding import canonical_sha256, check_call, check_text, dumps, dumps_fields, encode_body
from store.domain.commands import (
    AmendRollout,
    BeatWorker,
    Claim,
    Enqueue,
    NewRollout,
    NewSpan,
    NumberSpans,
    PublishResources,
    RecordSpans,
    StartAttempt,
    StartRollout,
    UpdateAttempt,
)
from store.domain.events import Body, Json, SpanRecorded, encode
from store.errors import Invalid, TooLarge
from store.models import (
    UNSET,
    AttemptError,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    Unset,
)

MAX_SPAN_NAME_BYTES = 1024
MAX_STATUS_MESSAGE = 200
MAX_ERROR_TYPE = 200
MAX_ERROR_MESSAGE = 500
MAX_SEQUENCE_ID = 2**53
MAX_DATA_BYTES = 8 * 1024
# With so few, the lengths of names and ids alone keep `data` within its bound.
_FEW_REWARDS = 4
_DESCRIBED = ("model", "response_id", "kind", "node_id", "scope", "parent_node_id", "phase", "node_exec")
assert semconv.SpanSummary._fields[-len(_DESCRIBED) :] == _DESCRIBED
_STATUS = TypeAdapter[RolloutStatus](RolloutStatus)
_ATTEMPT_STATUS = TypeAdapter[AttemptStatus](AttemptStatus)
_ERROR = TypeAdapter(AttemptError)
_ERROR_STATUSES = ("failed", "timeout", "unresponsive")
_MODE = TypeAdapter[RolloutMode | None](RolloutMode | None)
_CONFIG = TypeAdapter(RolloutConfig)
_NAMED_RESOURCES = TypeAdapter[NamedResources](NamedResources)
_SHARED_EMPTY_LIST: list[str] = []


def owner() -> Json:
    """Return who this process is: host, pid, and when it started (µs), so that a reused pid is another process."""
    return _owner(process.number)


@cache
def _owner(pid: int) -> Json:
    return {"host": socket.gethostname(), "pid": pid, "started": _started_at(pid)}


def _started_at(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}").stat().st_ctime * 1_000_000)
    except OSError:
        return int((time.time() - time.process_time()) * 1_000_000)


# -- rollouts --------------------------------------------------------------------------------------------------------


def enqueue(requests: Sequence[EnqueueRolloutRequest]) -> Enqueue:
    """Return the command that creates waiting rollouts."""
    check_call(len(requests), 0, "rollouts")
    items: list[NewRollout] = []
    size = 0
    for index, request in enumerate(requests):
        if not isinstance(request, EnqueueRolloutRequest):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"rollouts[{index}]", f"is {type(request).__name__}, not an EnqueueRolloutRequest")
        item = _new_rollout(
            request.input, request.mode, request.resources_id, request.config, request.metadata, f"rollouts[{index}]."
        )
        size += item.body.raw_len
        check_call(0, size, "rollouts")
        items.append(item)
    return Enqueue(items=items)


def enqueue_one(
    input_: Any, mode: Any, resources_id: Any, config: RolloutConfig | None, metadata: dict[str, Any] | None
) -> Enqueue:
    """Return the command that creates one waiting rollout."""
    return Enqueue(items=[_new_rollout(input_, mode, resources_id, config, metadata, "")])


def start_rollout(
    input_: Any,
    mode: Any,
    resources_id: Any,
    config: RolloutConfig | None,
    metadata: dict[str, Any] | None,
    worker_id: str | None,
) -> StartRollout:
    """Return the command that creates a rollout and its first attempt."""
    return StartRollout(
        item=_new_rollout(input_, mode, resources_id, config, metadata, ""),
        attempt_id=ids.attempt_id(),
        worker_id=_worker_id(worker_id),
        owner=owner(),
        actor=_as_actor(worker_id),
    )


def _new_rollout(
    input_: Any,
    mode: Any,
    resources_id: Any,
    config: RolloutConfig | None,
    metadata: dict[str, Any] | None,
    path: str,
) -> NewRollout:
    if metadata is not None and not isinstance(metadata, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid(f"{path}metadata", f"is {type(metadata).__name__}, not an object")
    reserved = _reserved(metadata or {}, path)
    body = _payload({"input": input_, "metadata": metadata or {}}, path)
    return NewRollout(
        rollout_id=ids.rollout_id(),
        input_sha256=canonical_sha256(input_),
        body=body,
        mode=_mode(mode, path),
        resources_id=_optional_id(resources_id, f"{path}resources_id"),
        config=_config(config, path),
        group=cast("str | None", reserved.get(semconv.GROUP_KEY)),
        step=cast("int | None", reserved.get(semconv.STEP_KEY)),
        plan_key=cast("str | None", reserved.get(semconv.PLAN_KEY)),
    )


def _reserved(metadata: dict[str, Any], path: str) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for key, kind in semconv.RESERVED_METADATA.items():
        value = metadata.get(key)
        if value is None:
            continue
        if type(value) is not kind:
            raise Invalid(f"{path}metadata.{key}", f"is {type(value).__name__}; it must be {kind.__name__}")
        if isinstance(value, str):
            check_text(value, f"{path}metadata.{key}")
        elif not -(2**63) <= value < 2**63:
            raise Invalid(f"{path}metadata.{key}", f"the integer {value} needs more than 64 bits")
        found[key] = value
    return found


def amend_rollout(
    rollout_id: str,
    input_: Any,
    mode: Any,
    resources_id: Any,
    status: Any,
    config: Any,
    metadata: Any,
) -> AmendRollout:
    """Return the command that sets fields of a rollout."""
    given = {
        "input": input_,
        "mode": mode,
        "resources_id": resources_id,
        "config": config,
        "metadata": metadata,
    }
    fields = [name for name, value in given.items() if value is not UNSET]
    if status is None:
        raise Invalid("status", "is None; leave it out to keep the status")
    if config is None:
        raise Invalid("config", "is None; leave it out to keep the config, or give RolloutConfig() for the defaults")
    if metadata is not UNSET and metadata is not None and not isinstance(metadata, dict):
        raise Invalid("metadata", f"is {type(metadata).__name__}, not an object")
    payload = {name: given[name] for name in ("input", "metadata") if given[name] is not UNSET}
    return AmendRollout(
        rollout_id=_id(rollout_id, "rollout_id"),
        fields=fields,
        mode=None if mode is UNSET else _mode(mode, ""),
        resources_id=None if resources_id is UNSET else _optional_id(resources_id, "resources_id"),
        config=None if config is UNSET else _config(config, ""),
        status=None if status is UNSET else _checked(_STATUS, status, "status"),
        body=_payload(payload, "") if payload else None,
    )


# -- the queue and attempts --------------------------------------------------------------------------------------------


def claim(limit: int, worker_id: str | None) -> Claim:
    """Return the command that claims up to `limit` rollouts."""
    return Claim(
        limit=limit,
        attempt_ids=[ids.attempt_id() for _ in range(limit)],
        worker_id=_worker_id(worker_id),
        owner=owner(),
        actor=_as_actor(worker_id),
    )


def start_attempt(rollout_id: str, worker_id: str | None) -> StartAttempt:
    """Return the command that starts another attempt."""
    return StartAttempt(
        rollout_id=_id(rollout_id, "rollout_id"),
        attempt_id=ids.attempt_id(),
        worker_id=_worker_id(worker_id),
        owner=owner(),
        actor=_as_actor(worker_id),
    )


def update_attempt(
    rollout_id: str,
    attempt_id: str,
    status: Any,
    worker_id: Any,
    last_heartbeat_time: Any,
    metadata: Any,
    error: Any = UNSET,
) -> UpdateAttempt:
    """Return the command that sets fields of an attempt."""
    given = {"worker_id": worker_id, "last_heartbeat_time": last_heartbeat_time, "metadata": metadata}
    for name, value in (*given.items(), ("status", status), ("error", error)):
        if value is None:
            raise Invalid(name, "is None; leave it out to keep what is there")
    if metadata is not UNSET and not isinstance(metadata, dict):
        raise Invalid("metadata", f"is {type(metadata).__name__}, not an object")
    return UpdateAttempt(
        rollout_id=_id(rollout_id, "rollout_id"),
        attempt_id=_id(attempt_id, "attempt_id"),
        fields=[name for name, value in given.items() if value is not UNSET],
        status=None if status is UNSET else _checked(_ATTEMPT_STATUS, status, "status"),
        worker_id=None if worker_id is UNSET else _id(worker_id, "worker_id"),
        last_heartbeat_time=None
        if last_heartbeat_time is UNSET
        else arguments.moment(last_heartbeat_time, "last_heartbeat_time"),
        error=None if error is UNSET else _error(error, status),
        body=None if metadata is UNSET else _payload({"metadata": metadata}, ""),
    )


def _error(given: Any, status: Any) -> Json:
    if status not in _ERROR_STATUSES:
        raise Invalid("error", f"goes with a status that says what became of the attempt: {', '.join(_ERROR_STATUSES)}")
    error: AttemptError = _checked(_ERROR, given, "error")
    kept: Json = {
        "type": check_text(error.type[:MAX_ERROR_TYPE], "error.type", 4 * MAX_ERROR_TYPE),
        "message": check_text(error.message[:MAX_ERROR_MESSAGE], "error.message", 4 * MAX_ERROR_MESSAGE),
    }
    if error.span_id is not None:
        kept["span_id"] = check_text(error.span_id, "error.span_id")
    return kept


# -- spans -----------------------------------------------------------------------------------------------------------


def record_spans(spans: Sequence[Span], *, number: bool = False) -> RecordSpans:
    """Return the command that records spans."""
    check_call(len(spans), 0, "spans")
    items: list[NewSpan] = []
    size = 0
    for index, span in enumerate(spans):
        if not isinstance(span, Span):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"spans[{index}]", f"is {type(span).__name__}, not a Span")
        item = _new_span(span, "span." if len(spans) == 1 else f"spans[{index}].")
        size += item.body.raw_len
        items.append(item)
    check_call(0, size, "spans")
    return RecordSpans(items=items, number=number)


def _new_span(span: Span, path: str) -> NewSpan:
    if span.sequence_id > MAX_SEQUENCE_ID or span.sequence_id < -MAX_SEQUENCE_ID:
        raise TooLarge(f"{path}sequence_id", abs(span.sequence_id), MAX_SEQUENCE_ID, "in size")
    said = semconv.summarise(span.name, span.attributes)
    message = span.status.description
    if message is not None and len(message) > MAX_STATUS_MESSAGE:
        message = message[:MAX_STATUS_MESSAGE]
    fact = SpanRecorded(
        attempt_id=check_text(span.attempt_id, f"{path}attempt_id"),
        sequence_id=span.sequence_id,
        trace_id=check_text(span.trace_id, f"{path}trace_id"),
        span_id=check_text(span.span_id, f"{path}span_id"),
        name=check_text(span.name, f"{path}name", MAX_SPAN_NAME_BYTES),
        status_code=span.status.status_code,
        parent_id=None if span.parent_id is None else check_text(span.parent_id, f"{path}parent_id"),
        status_message=message,
        start=span.start_time,
        end=span.end_time,
    )
    if said is not semconv.NOTHING:
        _describe(fact, said, path)
        if len(said.rewards) > _FEW_REWARDS and (size := len(encode(fact))) > MAX_DATA_BYTES:
            raise TooLarge(f"{path}attributes", size, MAX_DATA_BYTES)
    body = _payload(_span_payload(span), path)
    for name in ("start_time", "end_time"):
        if (value := getattr(span, name)) is not None and not math.isfinite(value):
            raise Invalid(f"{path}{name}", f"{value} is not a time; send seconds since the epoch, or None")
    return NewSpan(check_text(span.rollout_id, f"{path}rollout_id"), fact, body)


def _describe(fact: SpanRecorded, said: semconv.SpanSummary, path: str) -> None:
    if said.rewards:
        fact.rewards = [[check_text(name, f"{path}attributes"), value] for name, value in said.rewards]
    fact.tokens_in, fact.tokens_out = said.tokens_in, said.tokens_out
    for name, value in zip(_DESCRIBED, cast("tuple[str | None, ...]", said[-len(_DESCRIBED) :]), strict=True):
        if value is not None:
            setattr(fact, name, check_text(value, f"{path}attributes"))


def _span_payload(span: Span) -> dict[str, Any]:
    fields = span.__dict__
    resource = span.resource
    payload: dict[str, Any] = {
        "attributes": span.attributes,
        "events": _plain(span.events),
        "links": _plain(span.links),
        "resource": {"attributes": resource.attributes, "schema_url": resource.schema_url},
    }
    # The two contexts are null on most spans; left out, they read back as null.
    for name in ("context", "parent"):
        if fields[name] is not None:
            payload[name] = _plain(fields[name])
    # The log keeps the code and the beginning of the message beside the payload; most often that is all there is.
    if span.status.model_extra or len(span.status.description or "") > MAX_STATUS_MESSAGE:
        payload["status"] = _plain(span.status)
    if span.model_extra:
        payload.update(span.model_extra)
    return payload


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        plain = {name: _plain(item) for name, item in value.__dict__.items()}
        if value.model_extra:
            plain.update(value.model_extra)
        return plain
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value


def number_spans(rollout_ids: Iterable[str]) -> NumberSpans:
    """Return the command that draws span numbers."""
    checked = [_id(rollout_id, "rollout_id") for rollout_id in rollout_ids]
    check_call(len(checked), 0, "rollout_attempt_ids")
    return NumberSpans(rollout_ids=checked)


# -- resources and workers ---------------------------------------------------------------------------------------------


def publish(resources_id: str | None, resources: Any) -> PublishResources:
    """Return the command that publishes resources, under a fresh id if none is given."""
    checked = _checked(_NAMED_RESOURCES, resources, "resources")
    body = _payload({"resources": {name: _plain(value) for name, value in checked.items()}}, "")
    return PublishResources(
        resources_id=ids.resources_id() if resources_id is None else _id(resources_id, "resources_id"),
        body=body,
        is_new=resources_id is None,
    )


def beat(worker_id: str, heartbeat_stats: dict[str, Any] | Unset) -> BeatWorker:
    """Return the command that records a worker's heartbeat."""
    if heartbeat_stats is None:  # pyright: ignore[reportUnnecessaryComparison] (callers are not type-checked)
        raise TypeError("heartbeat_stats is None; leave it out to keep the last ones")
    text = None
    if not isinstance(heartbeat_stats, Unset):
        if not isinstance(heartbeat_stats, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid("heartbeat_stats", f"is {type(heartbeat_stats).__name__}, not an object")
        raw = dumps(heartbeat_stats, "heartbeat_stats")
        check_call(0, len(raw), "heartbeat_stats")
        text = raw.decode()
    return BeatWorker(worker_id=_id(worker_id, "worker_id"), heartbeat_stats=text, actor=f"worker:{worker_id}")


# -- parts -----------------------------------------------------------------------------------------------------------


def _payload(value: dict[str, Any], path: str) -> Body:
    raw = dumps_fields(value, path)
    check_call(0, len(raw), path.rstrip(".") or next(iter(value), "payload"))
    return encode_body(raw)


def _config(given: Any, path: str) -> Json:
    config: RolloutConfig = RolloutConfig() if given is None else _checked(_CONFIG, given, f"{path}config")
    for name in ("timeout_seconds", "unresponsive_seconds"):
        value = getattr(config, name)
        if value is not None and not math.isfinite(value):
            raise Invalid(f"{path}config.{name}", f"{value} is not a duration; leave it out for no limit")
    # Sorted as it is stored, so that an equal config is equal text.
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
