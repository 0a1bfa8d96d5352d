"""Emitters of rewards, annotations, messages, objects and exceptions as spans of the current attempt.

With `propagate=False`, an emitter only builds and returns the span, which also works outside of attempts.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from store.errors import Invalid
from store.models import AttributeValue, TraceStatus
from store.otel.repair import add_attributes
from store.runtime.lenient_json import safe_text
from store.semconv import (
    ANNOTATION_SPAN,
    CHANGED,
    EXCEPTION_SPAN,
    MESSAGE_BODY,
    MESSAGE_SPAN,
    OBJECT_JSON,
    OBJECT_LITERAL,
    OBJECT_SPAN,
    OBJECT_TYPE,
    PRIMARY,
    REWARD,
    reward_attributes,
)
from store.training.tracing.core_fields import SpanCoreFields, exception_attributes, type_name
from store.training.tracing.reward_spans import AnySpan, check_rewards, finite
from store.training.tracing.scope import require_scope
from store.training.tracing.span_attributes import (
    check_attributes_sanity,
    flat_attributes,
    flatten_attributes,
    sanitize_attributes,
)
from store.training.tracing.span_recording import record_fields

_LITERALS: Final[Mapping[str, Callable[[str], Any]]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
    "bytes": base64.b64decode,
}


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> SpanCoreFields:  # noqa: FBT001, FBT002 - signature of the contract
    """Record custom attributes in the current attempt, and return once the attributes are stored.

    Args:
        annotation: attributes, or nested dicts and lists of attributes.
        propagate: whether to record the span, or only to return it.

    Raises:
        ValueError: a value is neither a string, bool, int or float nor a dict or list of these.
        Invalid: the annotation has a reward that is not finite, contains itself, or is nested too deeply.
        RuntimeError: there is no current attempt.
    """
    fields = _emit(ANNOTATION_SPAN, _annotation(annotation), propagate=propagate)
    return _flush(fields, propagate=propagate)


async def emit_annotation_async(annotation: Mapping[str, Any]) -> SpanCoreFields:
    """Record like `emit_annotation`, without blocking the event loop."""
    return await _flushed(_emit(ANNOTATION_SPAN, _annotation(annotation), propagate=True))


def _annotation(annotation: Mapping[str, Any]) -> dict[str, AttributeValue]:
    try:
        attributes = flatten_attributes(annotation)
    except RecursionError:
        raise Invalid("annotation", "contains itself or is nested too deeply; flatten it, or emit its text") from None
    check_attributes_sanity(attributes)
    check_rewards(ANNOTATION_SPAN, attributes)
    return attributes


def emit_reward(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> SpanCoreFields:
    """Record a reward in the current attempt, and return once the reward is stored.

    Sequence ids order the spans of an attempt. The reward's span comes after the spans of all calls that have ended,
    and before the spans of all later calls.

    Args:
        reward: one number, or several numbers by name.
        primary_key: the name of the number that training uses, if there are several numbers.
        attributes: further attributes, such as links to the rewarded spans (`make_link_attributes`) or tags. Values of
            types that spans do not support become JSON text; `rollbook.changed` lists the values that could not be
            recorded.
        propagate: whether to record the span, or only to return it.

    Raises:
        TypeError: the reward is neither a number nor a dict.
        Invalid: a number is not finite.
        ValueError: a value of the dict is not a number, or `primary_key` is not a key of the dict.
        RuntimeError: there is no current attempt.
    """
    fields = _emit(ANNOTATION_SPAN, _reward(reward, primary_key, attributes), propagate=propagate)
    return _flush(fields, propagate=propagate)


async def emit_reward_async(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> SpanCoreFields:
    """Record like `emit_reward`, without blocking the event loop.

    By sequence id, the reward's span comes after the spans of earlier calls of the same asyncio task, and before the
    spans of its later calls.
    """
    return await _flushed(_emit(ANNOTATION_SPAN, _reward(reward, primary_key, attributes), propagate=True))


def _reward(
    reward: float | Mapping[str, float], primary_key: str | None, attributes: Mapping[str, Any] | None
) -> dict[str, Any]:
    dimensions = _dimensions(reward, primary_key)
    further = {} if attributes is None else _further_attributes(attributes)
    reserved = [name for name in further if name == REWARD or name.startswith(f"{REWARD}.")]
    for name in reserved:
        del further[name]
    recorded = reward_attributes(dimensions)
    add_attributes(recorded, further)
    if reserved:
        changes = [f"{name}: left out, because the reward itself sets it" for name in reserved]
        add_attributes(recorded, {CHANGED: changes})
    return recorded


def _further_attributes(attributes: Any) -> dict[str, AttributeValue]:
    """Return the further attributes of a reward. Any object is accepted, so that the reward is always recorded."""
    if isinstance(attributes, Mapping):
        with suppress(Exception):
            flat = flatten_attributes(attributes)
            check_attributes_sanity(flat)
            return flat
    with suppress(Exception):
        further: dict[str, AttributeValue] = {}
        for key, value in cast("Mapping[Any, Any]", attributes).items():
            add_attributes(further, flat_attributes(safe_text(key), value))
        return further
    return flat_attributes("attributes", attributes)


def _dimensions(reward: Any, primary_key: str | None) -> dict[str, float]:
    if not isinstance(reward, Mapping):
        if not isinstance(reward, (bool, int, float)):
            raise TypeError(f"a reward is a number or a dict of numbers, not {type(reward).__name__}")
        return {PRIMARY: finite(reward, "reward")}
    values = cast("Mapping[str, Any]", reward)
    if primary_key is None or primary_key not in values:
        raise ValueError(f"primary_key={primary_key!r} is not one of the dimensions {', '.join(map(repr, values))}")
    for name, value in values.items():
        if not isinstance(value, (bool, int, float)):
            raise ValueError(f"the reward {name!r} is {type(value).__name__}, not a number")  # noqa: TRY004 - the contract requires ValueError
    first = {primary_key: values[primary_key]}
    return {name: finite(value, f"reward {name!r}") for name, value in (first | dict(values)).items()}


def emit_message(message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> SpanCoreFields:  # noqa: FBT001, FBT002 - signature of the contract
    """Record a line of text in the current attempt.

    Args:
        message: the text.
        attributes: further attributes; values of types that spans do not support become JSON text.
        propagate: whether to record the span, or only to return it.

    Raises:
        TypeError: the message is not text.
        RuntimeError: there is no current attempt.
    """
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers are not type-checked)
        raise TypeError(f"a message is text, not {type(message).__name__}; use emit_object for anything else")
    return _emit(MESSAGE_SPAN, {MESSAGE_BODY: message} | sanitize_attributes(attributes or {}), propagate=propagate)


def emit_object(
    object: Any,  # noqa: A002 - signature of the contract
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,  # noqa: FBT001, FBT002 - signature of the contract
) -> SpanCoreFields:
    """Record a value in the current attempt. `get_object_value` returns the value of such a span.

    Args:
        object: a string, number, bool, bytes, or any JSON value.
        attributes: further attributes; values of types that spans do not support become JSON text.
        propagate: whether to record the span, or only to return it.

    Raises:
        RuntimeError: JSON does not support the value, or there is no current attempt.
    """
    name = type_name(object)
    if isinstance(object, bytes):
        recorded = {OBJECT_TYPE: "bytes", OBJECT_LITERAL: base64.b64encode(object).decode()}
    elif name in _LITERALS:
        recorded = {OBJECT_TYPE: name, OBJECT_LITERAL: str(object)}
    else:
        try:
            recorded = {OBJECT_TYPE: name, OBJECT_JSON: json.dumps(object, ensure_ascii=False)}
        except (TypeError, ValueError, RecursionError) as error:
            raise RuntimeError(f"{name} is not a JSON value: {error}; emit only a part that is JSON") from None
    return _emit(OBJECT_SPAN, recorded | sanitize_attributes(attributes or {}), propagate=propagate)


def emit_exception(
    exception: BaseException,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,  # noqa: FBT001, FBT002 - signature of the contract
) -> SpanCoreFields:
    """Record an exception that the agent has handled; the attempt continues.

    Args:
        exception: the exception.
        attributes: further attributes; values of types that spans do not support become JSON text.
        propagate: whether to record the span, or only to return it.

    Raises:
        TypeError: `exception` is not an exception.
        RuntimeError: there is no current attempt.
    """
    if not isinstance(exception, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance] (as above)
        raise TypeError(f"emit_exception needs an exception, not {type(exception).__name__}")
    recorded = exception_attributes(exception) | sanitize_attributes(attributes or {})
    return _emit(EXCEPTION_SPAN, recorded, propagate=propagate)


def _emit(name: str, attributes: Mapping[str, Any], *, propagate: bool) -> SpanCoreFields:
    now = time.time()
    fields = SpanCoreFields(
        name=name,
        status=TraceStatus(status_code="OK"),
        attributes=dict(attributes),
        start_time=now,
        end_time=now,
    )
    if propagate:
        record_fields(require_scope(name), fields)
    return fields


def _flush(fields: SpanCoreFields, *, propagate: bool) -> SpanCoreFields:
    if propagate:
        require_scope(fields.name).recorder.flush()
    return fields


async def _flushed(fields: SpanCoreFields) -> SpanCoreFields:
    await require_scope(fields.name).recorder.flushed()
    return fields


def get_message_value(span: AnySpan) -> str | None:
    """Return the text of a message span, or None if the span has no text.

    Raises:
        TypeError: the recorded message is not a string.
    """
    body = span.attributes.get(MESSAGE_BODY)
    if body is not None and not isinstance(body, str):
        raise TypeError(f"the message of span {span.name!r} is {type(body).__name__}, not text")
    return body


def get_object_value(span: AnySpan) -> Any:
    """Return the value of an object span, or None if the span has no value.

    Raises:
        RuntimeError: the value is damaged or of an unknown type.
    """
    attributes = span.attributes
    text, literal = attributes.get(OBJECT_JSON), attributes.get(OBJECT_LITERAL)
    try:
        if text is not None:
            return json.loads(str(text))
        if literal is not None:
            return _LITERALS[str(attributes.get(OBJECT_TYPE))](str(literal))
    except (ValueError, KeyError) as error:
        raise RuntimeError(f"the object of span {span.name!r} cannot be read: {error!r}") from error
    return None
