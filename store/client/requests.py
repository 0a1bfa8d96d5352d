"""Functions that encode arguments as request bodies, query strings and paths.

The server validates types and sizes. Values that JSON cannot represent are refused here, with the same messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from store.domain.rows import row_maker
from store.errors import Invalid
from store.interface.store import AsAt
from store.models import (
    UNSET,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    PhaseGraph,
    RolloutConfig,
    RunEvent,
    Span,
)
from store.models.calls import (
    AddResourcesCall,
    AddScannerCall,
    AnnotateCall,
    AppendEventsCall,
    ChangingCall,
    EnqueueManyRolloutsCall,
    EnqueueRolloutCall,
    FinishAttemptCall,
    ForkCall,
    LogMetricsCall,
    RecordScansCall,
    RecordScoresCall,
    UpdateAttemptCall,
    UpdateResourcesCall,
)
from store.models.queries import PageQuery, SpanQuery, kind_of
from store.models.trusted import span_model
from store.validation import annotations, arguments, scanners, scores, trainer_metrics
from store.validation.conditions import condition
from store.validation.json_limits import check_call, check_text, dumps, dumps_fields
from store.wire.bodies import moment_on_wire
from store.wire.calls import ids_of, path_of
from store.wire.paths import LATEST_ATTEMPT

_NAMED_RESOURCES: Final = TypeAdapter[NamedResources](NamedResources, config=ConfigDict(defer_build=True))
_ROLLOUTS: Final = (EnqueueRolloutRequest, EnqueueRolloutCall)
_RESERVED: Final = frozenset({"search", "latest", "next", "batch", ".", ".."})
_LONGEST_ID: Final = 512
_ANY_LENGTH: Final = 2**31
_OBJECTS: Final = frozenset({"metadata", "heartbeat_stats", "state", "state_patch", "external"})
_LISTS: Final = frozenset({"scopes", "add_labels", "remove_labels"})
_SPAN_COLUMNS: Final = (
    "rollout_id",
    "attempt_id",
    "span_id",
    "sequence_id",
    "trace_id",
    "parent_id",
    "name",
    "start_time",
    "end_time",
)
_span_values = itemgetter(*_SPAN_COLUMNS)
_flat_span = row_maker((*_SPAN_COLUMNS, "status_code", "status_message"))
_BATCH_BYTES: Final = 31 * 1024 * 1024
"""The maximum size of a body with spans: less than a server accepts, and more than the payload limit of one call."""


def body(prefix: str = "", /, **fields: Any) -> bytes:
    """Return a JSON object of the fields. `UNSET` fields are left out; None becomes null.

    Raises:
        Invalid: JSON cannot represent a field. In the error, `prefix` comes before the name of the field.
    """
    arguments.phase_graph(fields.get("graph"))
    for config in fields.values():
        if isinstance(config, RolloutConfig):
            arguments.rollout_config(config, f"{prefix}config")
    return dumps_fields({name: _as_json(name, value) for name, value in fields.items() if value is not UNSET}, prefix)


def _as_json(name: str, value: Any) -> Any:
    if name in _OBJECTS and isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if name in _LISTS and isinstance(value, Sequence):
        return list(cast("Sequence[Any]", value))
    if isinstance(value, PhaseGraph):
        return value.model_dump()
    # A list is not passed to `plain`, because a list from the caller may contain itself.
    return plain(value) if isinstance(value, BaseModel) else value


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def plain(value: Any) -> Any:
    """Convert models and lists of models to dicts; return other values unchanged."""
    if isinstance(value, BaseModel):
        fields = {name: plain(item) for name, item in value.__dict__.items()}
        return {**fields, **value.model_extra} if value.model_extra else fields
    if isinstance(value, list):
        return [plain(item) for item in cast("list[Any]", value)]
    return value


def name(value: Any, field: str) -> str:
    """Check and return an id for use in a path.

    Raises:
        Invalid: the id is empty or not a string, or contains characters that a database cannot store.
    """
    if not arguments.text(value, field):
        raise Invalid(field, "is empty; give an id")
    return check_text(value, field)


def lookup_id(value: Any, field: str) -> str:
    """Check and return an id of any length, for a read of the object with this id.

    Raises:
        Invalid: the id is not a string, or contains characters that a database cannot store.
    """
    return check_text(value, field, _ANY_LENGTH)


def path(template: str, **ids: str) -> str:
    """Fill ids into a path template, each encoded as one segment."""
    return template.format(**{field: _segment(value) for field, value in ids.items()})


def _segment(value: str) -> str:
    if value in _RESERVED:
        # Without this encoding, the server would take the id for a word of the protocol or for a relative path.
        return f"%{ord(value[0]):02X}{value[1:]}"
    return quote(value, safe="")


def is_nameable(value: str) -> bool:
    """Return whether a stored object can have this id: an id has 1 to 512 bytes."""
    return 0 < len(value.encode()) <= _LONGEST_ID


def of_call(call: ChangingCall[Any]) -> tuple[str, bytes]:
    """Return the path and the body of a call.

    Fields that are `UNSET`, and None where it is the default, are left out.

    Raises:
        Invalid: JSON cannot represent a field, or the server could not recognise that it is wrong.
        TooLarge: there are more items than one call may contain.
    """
    kind = type(call)
    names = ids_of(kind)
    where = path_of(kind)
    if names:
        ids = {field: name(getattr(call, field), field) for field in names}
        is_latest = kind is UpdateAttemptCall and ids["attempt_id"] == "latest"
        where = path(LATEST_ATTEMPT if is_latest else where, **ids)
    encode = _BODIES.get(kind, _fields_body)
    return where, encode(call)


def _fields_body(call: ChangingCall[Any]) -> bytes:
    kind = type(call)
    if kind in _CHECKS:
        _CHECKS[kind](call)
    names, optional = ids_of(kind), _optional_fields(kind)
    sent = {
        field: value
        for field, value in vars(call).items()
        if field not in names and not (value is None and field in optional)
    }
    if not sent.get("wait_seconds", True):
        del sent["wait_seconds"]
    return body(**sent)


@cache
def _optional_fields(kind: type[ChangingCall[Any]]) -> frozenset[str]:
    """Return the fields of a call whose default is None."""
    return frozenset(name for name, value in vars(kind).items() if value is None)


def of_finish(call: FinishAttemptCall, spans: Sequence[bytes]) -> tuple[str, bytes]:
    """Return the path and the body of a call that ends an attempt with these encoded spans.

    Raises:
        Invalid: JSON cannot represent a field.
    """
    ids = {field: name(getattr(call, field), field) for field in ids_of(FinishAttemptCall)}
    fields = body(
        status=call.status,
        metadata=call.metadata,
        error=call.error,
        **({"number": True} if call.number else {}),
        **given(claim_as=call.claim_as),
        **({"requeue": True} if call.requeue else {}),
    )
    where = path(path_of(FinishAttemptCall), **ids)
    return where, b'{"spans":[' + b",".join(spans) + b"]," + fields[1:] if spans else fields


def _events_body(call: AppendEventsCall) -> bytes:
    rest = b"}" if call.key is None else b"," + body(key=arguments.text(call.key, "key"))[1:]
    return b'{"events":[' + b",".join(_events(call.events)) + b"]" + rest


def _scores_body(call: RecordScoresCall) -> bytes:
    items: list[Any] = [plain(score) for score in arguments.several(call.scores, "scores")]
    return dumps_fields({"scores": items}, "")


def _scans_body(call: RecordScansCall) -> bytes:
    scans: list[Any] = [plain(scan) for scan in scanners.check_scans(call.name, call.version, call.scans)]
    return dumps_fields({"name": call.name, "version": call.version, "scans": scans}, "")


_BODIES: Final[dict[type[ChangingCall[Any]], Callable[[Any], bytes]]] = {
    AddResourcesCall: lambda call: resources(call.resources),
    UpdateResourcesCall: lambda call: resources(call.resources),
    EnqueueManyRolloutsCall: lambda call: b'{"rollouts":[' + b",".join(_rollouts(call.rollouts)) + b"]}",
    AppendEventsCall: _events_body,
    RecordScoresCall: _scores_body,
    LogMetricsCall: lambda call: dumps_fields(
        {"step": trainer_metrics.step_of(call.step), "metrics": trainer_metrics.values_of(call.metrics)}, ""
    ),
    AddScannerCall: lambda call: dumps_fields({"scanner": plain(scanners.check_scanner(call.scanner))}, ""),
    RecordScansCall: _scans_body,
}
"""The functions that encode the bodies of calls whose fields need more than `body`."""


def _check_fork(call: ForkCall) -> None:
    part(call.node, call.phase, call.scopes, call.on_missing)
    arguments.choice(call.on_active, "on_active", "reject", "supersede")
    if call.expected_head is not None:
        arguments.whole(call.expected_head, "expected_head", "a sequence_id: 1, 2, 3 …", 1)


def _check_heartbeat(call: UpdateAttemptCall) -> None:
    time: Any = call.last_heartbeat_time
    # None is sent unchanged, because the server refuses it with an error of its own.
    if time is not None and time is not UNSET:
        arguments.moment(time, "last_heartbeat_time")


_CHECKS: Final[dict[type[ChangingCall[Any]], Callable[[Any], object]]] = {
    RecordScoresCall: lambda call: scores.check(call.scores),
    AnnotateCall: annotations.check,
    ForkCall: _check_fork,
    UpdateAttemptCall: _check_heartbeat,
}
"""The functions that refuse what the server would take for something else, because JSON has fewer types."""


def part(node: Any, phase: Any, scopes: Any, on_missing: Any) -> dict[str, Any]:
    """Return the body fields that select which part of a run is repeated.

    Raises:
        Invalid: a field has a wrong value.
    """
    arguments.choice(on_missing, "on_missing", "error", "full")
    texts = arguments.texts(scopes, "scopes")
    for field, value in (("node", node), ("phase", phase)):
        if value is not None:
            arguments.text(value, field)
    return {"node": node, "phase": phase, "scopes": texts, "on_missing": on_missing}


def _rollouts(requests: Sequence[EnqueueRolloutRequest]) -> Iterator[bytes]:
    check_call(len(requests), 0, "rollouts")
    for index, request in enumerate(requests):
        if not isinstance(request, _ROLLOUTS):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"rollouts[{index}]", f"is {type(request).__name__}, not an EnqueueRolloutRequest")
        fields = dict(request.__dict__)
        task = fields.pop("input")
        yield body(f"rollouts[{index}].", input=task, **given(**fields))


def _events(events: Sequence[RunEvent]) -> Iterator[bytes]:
    check_call(len(events), 0, "events")
    for index, event in enumerate(events):
        if not isinstance(event, RunEvent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"events[{index}]", f"is {type(event).__name__}, not a RunEvent")
        # Declared fields that are None are left out. Fields that the model does not declare are sent even if they are
        # None.
        yield body(f"events[{index}].", **given(**event.__dict__) | (event.model_extra or {}))


def of_single_rollout(error: Invalid) -> Invalid:
    """Change an error about the only item of a list of rollouts to an error of a call without a list, and return it."""
    field = error.field.removeprefix("rollouts[0].").removeprefix("rollouts.0.")
    # An error about the size names the whole item. The call without a list names its argument `input` instead.
    field = "input" if field == "rollouts[0]" else field
    error.args = (f"{field}{str(error).removeprefix(error.field)}",)
    error.field = field
    return error


def span(value: Any, place: str = "span") -> bytes:
    """Return the body that records one span.

    Raises:
        Invalid: the value is not a span, or JSON cannot represent the span.
    """
    if not isinstance(value, Span):
        raise Invalid(place, f"is {type(value).__name__}, not a Span")
    for field in ("start_time", "end_time"):
        at = getattr(value, field)
        if at is not None and not math.isfinite(at):
            raise Invalid(f"{place}.{field}", f"{at} is not a time; send seconds since the epoch, or None")
    return dumps_fields(plain(value), f"{place}.")


def span_batches(spans: Sequence[Span], *, number: bool = False) -> list[tuple[list[int], bytes]]:
    """Return the bodies that record spans, usually only one body, each with the indexes of its spans.

    If there are several bodies, the spans are ordered by attempt, as the store orders the spans of one body. So if a
    request fails, the same spans are stored as after a failure with a single body.

    Raises:
        TooLarge: there are more spans than one call may contain.
        Invalid: an item is not a span, or JSON cannot represent it.
    """
    check_call(len(spans), 0, "spans")
    texts = [span(item, f"spans[{index}]") for index, item in enumerate(spans)]
    if sum(map(len, texts)) <= _BATCH_BYTES:
        return [(list(range(len(texts))), batch(texts, number=number))]
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(spans):
        groups.setdefault((item.rollout_id, item.attempt_id), []).append(index)
    batches: list[list[int]] = [[]]
    size = 0
    for index in (place for places in groups.values() for place in places):
        size += len(texts[index])
        if size > _BATCH_BYTES and batches[-1]:
            batches.append([])
            size = len(texts[index])
        batches[-1].append(index)
    return [(places, batch([texts[place] for place in places], number=number)) for places in batches]


def batch(texts: Sequence[bytes], *, number: bool = False) -> bytes:
    """Return the body that records encoded spans."""
    return b'{"spans":[' + b",".join(texts) + (b'],"number":true}' if number else b"]}")


def resources(value: Any) -> bytes:
    """Return the body that publishes resources.

    Raises:
        Invalid: a resource has an unknown type, or JSON cannot represent it.
    """
    try:
        checked = _NAMED_RESOURCES.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["resources", *(str(part) for part in first["loc"])])
        raise Invalid(where, f"{first['msg']} (got {first['input']!r})") from None
    return dumps({key: resource.model_dump() for key, resource in checked.items()}, "resources")


def moment(as_at: AsAt | None, at: int | None = None) -> dict[str, Any]:
    """Return the query fields for a read of the past.

    Raises:
        Invalid: the caller gave both `as_at` and `at`, or a value of a wrong type.
    """
    if as_at is not None and at is not None:
        raise Invalid("at", "give as_at, a moment of the log, or at, a number of the rollout's history; not both")
    if as_at is not None and (isinstance(as_at, bool) or not isinstance(as_at, int | datetime)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid("as_at", f"{as_at!r} is neither a position (int) nor a datetime with a time zone")
    if at is not None:
        arguments.event_number(at)
    return given(as_at=moment_on_wire(as_at), at=at)


def query(value: PageQuery) -> dict[str, Any]:
    """Return a query as the fields of a request, except `as_at` and `at`.

    Raises:
        Invalid: a field has a wrong value.
    """
    sent = dict[str, Any]()
    for name in (*value.scope, *value.conditions()):
        filter_value = getattr(value, name)
        if type(value).model_fields[name].is_required():
            several = value.several if isinstance(value, SpanQuery) else None
            sent[name] = (
                lookup_id(filter_value, name)
                if several is None
                else [lookup_id(rollout_id, name) for rollout_id in several]
            )
        elif filter_value is not None:
            kind = "text" if name in value.scope else kind_of(type(value), name)
            sent[name] = condition(filter_value, name, kind)
    # Null means the order of creation; a missing key means the default order.
    if value.sort_by is not None or type(value).model_fields["sort_by"].default is not None:
        sent["sort_by"] = value.sort_by
    reward_version = getattr(value, "reward_version", None)
    if reward_version is not None:
        sent["reward_version"] = str(scores.version_key(reward_version))
    filter_logic = getattr(value, "filter_logic", "and")
    arguments.choice(filter_logic, "filter_logic", "and", "or")
    arguments.choice(value.sort_order, "sort_order", "asc", "desc")
    arguments.page(value.limit, value.offset)
    if filter_logic != "and":
        sent["filter_logic"] = filter_logic
    # The protocol refuses limit 0. One item is requested instead, and `with_limit` drops it.
    return {**sent, "limit": value.limit or 1, "offset": value.offset, "sort_order": value.sort_order}


def texts(values: Any, field: str) -> list[str] | None:
    """Check and return a filter of several values; None for no filter.

    Raises:
        Invalid: the filter is a single string, or one of its values is not a string.
    """
    return None if values is None else condition(values, field, "texts")


def query_string(fields: Mapping[str, Any]) -> str:
    """Return fields as a query string with its question mark; empty without fields."""
    return "?" + urlencode(fields, doseq=True) if fields else ""


def decode_span_page(text: bytes) -> PaginatedResult[Span]:
    """Decode a page of spans without validation, because the server has validated the spans.

    Decoding with validation takes five times as long.

    Raises:
        LookupError: a field is missing.
        TypeError: a field has a wrong type.
        orjson.JSONDecodeError: the text is not JSON.
    """
    page = orjson.loads(text)
    items = [_span_of(item) for item in page["items"]]
    return PaginatedResult(items=items, limit=page["limit"], offset=page["offset"], total=page["total"])


def _span_of(item: dict[str, Any]) -> Span:
    # The last two values are the defaults for rows without a status. Spans on the wire always have a status.
    row = _flat_span((*_span_values(item), "UNSET", None))
    for name in _SPAN_COLUMNS:
        del item[name]
    return span_model(row, item)
