"""Arguments become request bodies: checked for what JSON cannot carry, and encoded.

What a store would refuse for its kind or its size is left to the server, whose words come back; what would not survive
the way there is refused here, in the same words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from store.errors import Invalid
from store.interface.store import AsAt
from store.models import UNSET, EnqueueRolloutRequest, NamedResources, PaginatedResult, RolloutConfig, Span
from store.models.queries import PageQuery, list_fields
from store.sql.mapping.rollouts import span_model
from store.validation import arguments
from store.validation.json_limits import check_call, check_text, dumps, dumps_fields
from store.wire.bodies import moment_on_wire

_NAMED_RESOURCES: Final = TypeAdapter[NamedResources](NamedResources)
_WORDS: Final = frozenset({"search", "latest", "next", "batch", ".", ".."})
_LONGEST_ID: Final = 512
_NO_LENGTH: Final = 2**31
_ROW: Final = (
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
_row = itemgetter(*_ROW)
_BATCH_BYTES: Final = 31 * 1024 * 1024
"""The largest body of spans that is sent: less than servers take, and more than what a store takes in one call."""


def body(prefix: str = "", /, **fields: Any) -> bytes:
    """Return an object of the fields that were given: what is `UNSET` is left out, None is null.

    Raises:
        Invalid: a field holds what JSON cannot carry, named after `prefix`.
    """
    for config in fields.values():
        if isinstance(config, RolloutConfig):
            _check_durations(config, prefix)
    return dumps_fields({name: _given(value) for name, value in fields.items() if value is not UNSET}, prefix)


def _given(value: Any) -> Any:
    # Lists are the caller's own, and may even contain themselves.
    return plain(value) if isinstance(value, BaseModel) else value


def _check_durations(config: RolloutConfig, prefix: str) -> None:
    for field in ("timeout_seconds", "unresponsive_seconds"):
        value = getattr(config, field)
        if value is not None and not math.isfinite(value):
            raise Invalid(f"{prefix}config.{field}", f"{value} is not a duration; leave it out for no limit")


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None: those whose null and absence mean the same."""
    return {name: value for name, value in fields.items() if value is not None}


def plain(value: Any) -> Any:
    """Return models, and lists of them, as dicts; all else as it is."""
    if isinstance(value, BaseModel):
        fields = {name: plain(item) for name, item in value.__dict__.items()}
        return {**fields, **value.model_extra} if value.model_extra else fields
    if isinstance(value, list):
        return [plain(item) for item in cast("list[Any]", value)]
    return value


def name(value: Any, field: str) -> str:
    """Return an id that stands in a path.

    Raises:
        Invalid: it is not text, empty, or text that no database keeps.
    """
    if not arguments.text(value, field):
        raise Invalid(field, "is empty, and no path can name it")
    return check_text(value, field)


def sought(value: Any, field: str) -> str:
    """Return an id to look for, which may be of any length; errors as `name`."""
    return check_text(value, field, _NO_LENGTH)


def path(template: str, **ids: str) -> str:
    """Return a path with its ids filled in, each as one segment that can be taken for nothing else."""
    return template.format(**{field: _segment(value) for field, value in ids.items()})


def _segment(value: str) -> str:
    if value in _WORDS:
        # Encoded it is an id, plain it would be a word of the protocol or a step up the tree.
        return f"%{ord(value[0]):02X}{value[1:]}"
    return quote(value, safe="")


def is_nameable(value: str) -> bool:
    """Say whether anything can have this id and a path name it."""
    return 0 < len(value.encode()) <= _LONGEST_ID


# -- creation --------------------------------------------------------------------------------------------------------


def rollout(prefix: str = "", /, **fields: Any) -> bytes:
    """Return the fields of a rollout to be; what is None is left out, but for the input."""
    task = fields.pop("input")
    return body(prefix, input=task, **given(**fields))


def rollouts(requests: Sequence[EnqueueRolloutRequest]) -> bytes:
    """Return the body that enqueues rollouts.

    Raises:
        TooLarge: more than a call takes.
        Invalid: one is no request, or holds what JSON cannot carry.
    """
    check_call(len(requests), 0, "rollouts")
    items: list[bytes] = []
    for index, request in enumerate(requests):
        if not isinstance(request, EnqueueRolloutRequest):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"rollouts[{index}]", f"is {type(request).__name__}, not an EnqueueRolloutRequest")
        items.append(rollout(f"rollouts[{index}].", **request.__dict__))
    return b'{"rollouts":[' + b",".join(items) + b"]}"


def of_the_only_one(error: Invalid) -> Invalid:
    """Return what a server refused in a list of one, as about that one."""
    field = error.field.removeprefix("rollouts[0].").removeprefix("rollouts.0.")
    # What is too large is so as a whole; of one rollout it is the input that is named.
    field = "input" if field == "rollouts[0]" else field
    error.args = (f"{field}{str(error).removeprefix(error.field)}",)
    error.field = field
    return error


# -- spans -----------------------------------------------------------------------------------------------------------


def span(value: Any, place: str = "span") -> bytes:
    """Return the body that records one span.

    Raises:
        Invalid: it is no span, or holds what JSON cannot carry.
    """
    if not isinstance(value, Span):
        raise Invalid(place, f"is {type(value).__name__}, not a Span")
    for field in ("start_time", "end_time"):
        at = getattr(value, field)
        if at is not None and not math.isfinite(at):
            raise Invalid(f"{place}.{field}", f"{at} is not a time; send seconds since the epoch, or None")
    return dumps_fields(plain(value), f"{place}.")


def span_batches(spans: Sequence[Span], *, number: bool = False) -> list[tuple[list[int], bytes]]:
    """Return spans as bodies that record them, most often as one, each with the places of its spans.

    They come group by group, as the store takes them, so that of several bodies the first failing one is where one
    alone would have failed.

    Raises:
        TooLarge: more than a call takes.
        Invalid: one is no span, or holds what JSON cannot carry.
    """
    check_call(len(spans), 0, "spans")
    texts = [span(each, f"spans[{index}]") for index, each in enumerate(spans)]
    if sum(map(len, texts)) <= _BATCH_BYTES:
        return [(list(range(len(texts))), batch(texts, number=number))]
    groups: dict[tuple[str, str], list[int]] = {}
    for index, each in enumerate(spans):
        groups.setdefault((each.rollout_id, each.attempt_id), []).append(index)
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


# -- resources -------------------------------------------------------------------------------------------------------


def resources(value: Any) -> bytes:
    """Return the body that publishes resources: the object itself.

    Raises:
        Invalid: one is of no kind there is, or holds what JSON cannot carry.
    """
    try:
        checked = _NAMED_RESOURCES.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["resources", *(str(part) for part in first["loc"])])
        raise Invalid(where, f"{first['msg']} (got {first['input']!r})") from None
    return dumps({key: each.model_dump() for key, each in checked.items()}, "resources")


# -- queries ---------------------------------------------------------------------------------------------------------


def past(as_at: AsAt | None, at: int | None = None) -> dict[str, Any]:
    """Return the moment that a read is about, as keys of its query.

    Raises:
        Invalid: both were given, or one is no moment.
    """
    if as_at is not None and at is not None:
        raise Invalid("at", "give as_at, a moment of the log, or at, a number of the rollout's history; not both")
    if as_at is not None and (isinstance(as_at, bool) or not isinstance(as_at, int | datetime)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid("as_at", f"{as_at!r} is neither a position (int) nor a datetime with a time zone")
    if at is not None:
        arguments.event_number(at)
    return given(as_at=moment_on_wire(as_at), at=at)


def query(value: PageQuery) -> dict[str, Any]:
    """Return a query as keys of a request, all but its moment.

    Raises:
        Invalid: as every store refuses it.
    """
    lists, sent = list_fields(type(value)), dict[str, Any]()
    for name in (*value.scope, *value.conditions()):
        wanted = getattr(value, name)
        if type(value).model_fields[name].is_required():
            sent[name] = sought(wanted, name)
        elif wanted is not None:
            sent[name] = texts(wanted, name) if name in lists else text(wanted, name)
    # Null is the order of creation, while leaving the key out means the default.
    if value.sort_by is not None or type(value).model_fields["sort_by"].default is not None:
        sent["sort_by"] = value.sort_by
    filter_logic = getattr(value, "filter_logic", "and")
    arguments.choice(filter_logic, "filter_logic", "and", "or")
    arguments.choice(value.sort_order, "sort_order", "asc", "desc")
    arguments.page(value.limit, value.offset)
    if filter_logic != "and":
        sent["filter_logic"] = filter_logic
    # The protocol has no page without items: the one asked for instead is dropped when it comes.
    return {**sent, "limit": value.limit or 1, "offset": value.offset, "sort_order": value.sort_order}


def texts(values: Any, field: str) -> list[str] | None:
    """Return the wanted values of a field; None for any.

    Raises:
        Invalid: they are one text, or one of them is none.
    """
    if values is None:
        return None
    found = arguments.texts(values, field)
    for value in found:
        check_text(value, field, _NO_LENGTH)
    return found


def text(value: Any, field: str) -> Any:
    """Return a wanted text, or None; errors as `texts`."""
    if value is not None:
        if not isinstance(value, str):
            raise Invalid(field, f"{value!r} is not text")
        check_text(value, field, _NO_LENGTH)
    return value


def query_string(fields: Mapping[str, Any]) -> str:
    """Return fields as the query of a path, with its question mark; nothing for none."""
    return "?" + urlencode(fields, doseq=True) if fields else ""


# -- replies -----------------------------------------------------------------------------------------------------------


def decode_span_page(text: bytes) -> PaginatedResult[Span]:
    """Return a page of spans, in a fifth of the time that validating them takes: who answers has validated them.

    Raises:
        LookupError: something is missing.
        TypeError: something is of another kind.
        orjson.JSONDecodeError: it is no JSON.
    """
    page = orjson.loads(text)
    items = [_span_of(item) for item in page["items"]]
    return PaginatedResult(items=items, limit=page["limit"], offset=page["offset"], total=page["total"])


def _span_of(given: dict[str, Any]) -> Span:
    row = _row(given)
    for name in _ROW:
        del given[name]
    # Statuses are always there; only the rows of a table may lack them.
    return span_model((*row, "UNSET", None), given)
