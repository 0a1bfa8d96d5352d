"""What an agent says of itself: rewards, annotations, messages, objects and exceptions, as spans of its attempt.

With `propagate=False` a span is built and returned, and nothing is recorded; so it is outside of attempts.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from store.models import AttributeValue, TraceStatus
from store.semconv import (
    ANNOTATION_SPAN,
    EXCEPTION_SPAN,
    MESSAGE_BODY,
    MESSAGE_SPAN,
    OBJECT_JSON,
    OBJECT_LITERAL,
    OBJECT_SPAN,
    OBJECT_TYPE,
    PRIMARY,
)
from store.training.attrs import check_attributes_sanity, flatten_attributes, sanitize_attributes
from store.training.core_fields import SpanCoreFields, exception_attributes, type_name
from store.training.reward_spans import AnySpan, reward_attributes
from store.training.scope import require_scope

_LITERALS: Final[Mapping[str, Callable[[str], Any]]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
    "bytes": base64.b64decode,
}


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> SpanCoreFields:  # noqa: FBT001, FBT002 - the contract's
    """Record attributes of your own in the current attempt. Returns once they are stored.

    Args:
        annotation: attributes, or nested dicts and lists of them.
        propagate: whether to record the span, or only to return it.

    Raises:
        ValueError: a value is None or an object.
        RuntimeError: there is no current attempt.
    """
    fields = _emit(ANNOTATION_SPAN, _annotation(annotation), propagate=propagate)
    return _flush(fields, propagate=propagate)


async def emit_annotation_async(annotation: Mapping[str, Any]) -> SpanCoreFields:
    """As `emit_annotation`, for async agents: the event loop goes on until the span is stored."""
    return await _flushed(_emit(ANNOTATION_SPAN, _annotation(annotation), propagate=True))


def _annotation(given: Mapping[str, Any]) -> dict[str, AttributeValue]:
    attributes = flatten_attributes(given)
    check_attributes_sanity(attributes)
    return attributes


def emit_reward(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> SpanCoreFields:
    """Record a reward in the current attempt. Returns once it is stored.

    Its number is greater than those of all calls that had ended, and smaller than those of all that begin later.

    Args:
        reward: one number, or several by name.
        primary_key: which of several is the reward that training uses.
        attributes: more to say, such as links to what is rewarded (`make_link_attributes`) or tags.
        propagate: whether to record the span, or only to return it.

    Raises:
        TypeError: the reward is no number.
        ValueError: it is not finite; one of several is no number, or `primary_key` is none of them.
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
    """As `emit_reward`, for async agents: the event loop goes on until the reward is stored.

    Its number has its place among those of the calls that come before and after it in the same task.
    """
    return await _flushed(_emit(ANNOTATION_SPAN, _reward(reward, primary_key, attributes), propagate=True))


def _reward(
    reward: float | Mapping[str, float], primary_key: str | None, attributes: Mapping[str, Any] | None
) -> dict[str, Any]:
    dimensions = _dimensions(reward, primary_key)
    return reward_attributes(dimensions) | _annotation(attributes or {})


def _dimensions(reward: Any, primary_key: str | None) -> dict[str, float]:
    if not isinstance(reward, Mapping):
        if not isinstance(reward, (bool, int, float)):
            raise TypeError(f"a reward is a number or a dict of numbers, not {type(reward).__name__}")
        return {PRIMARY: finite(reward, "the reward")}
    named = cast("Mapping[str, Any]", reward)
    if primary_key is None or primary_key not in named:
        raise ValueError(f"primary_key={primary_key!r} is none of the dimensions {', '.join(map(repr, named))}")
    for name, value in named.items():
        if not isinstance(value, (bool, int, float)):
            raise ValueError(f"the reward {name!r} is {type(value).__name__}, not a number")  # noqa: TRY004 - the contract's
    first = {primary_key: named[primary_key]}
    return {name: finite(value, f"the reward {name!r}") for name, value in (first | dict(named)).items()}


def finite(value: float, what: str) -> float:
    """Return a number as a float.

    Raises:
        ValueError: it is NaN or infinite, which no database gives back as it came.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; a reward is a finite number")
    return number


def emit_message(message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> SpanCoreFields:  # noqa: FBT001, FBT002 - the contract's
    """Record a line of text in the current attempt.

    Args:
        message: the text.
        attributes: more to say; what a span cannot hold becomes JSON text.
        propagate: whether to record the span, or only to return it.

    Raises:
        TypeError: the message is no text.
        RuntimeError: there is no current attempt.
    """
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance] (callers are not type-checked)
        raise TypeError(f"a message is text, not {type(message).__name__}; use emit_object for anything else")
    return _emit(MESSAGE_SPAN, {MESSAGE_BODY: message} | sanitize_attributes(attributes or {}), propagate=propagate)


def emit_object(
    object: Any,  # noqa: A002 - the contract's
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,  # noqa: FBT001, FBT002 - the contract's
) -> SpanCoreFields:
    """Record a value in the current attempt, to be read back with `get_object_value`.

    Args:
        object: a string, number, bool, bytes, or anything that JSON knows.
        attributes: more to say; what a span cannot hold becomes JSON text.
        propagate: whether to record the span, or only to return it.

    Raises:
        RuntimeError: JSON does not know the value; or there is no current attempt.
    """
    return _emit(OBJECT_SPAN, _described(object) | sanitize_attributes(attributes or {}), propagate=propagate)


def _described(value: Any) -> dict[str, AttributeValue]:
    name = type_name(value)
    if isinstance(value, bytes):
        return {OBJECT_TYPE: "bytes", OBJECT_LITERAL: base64.b64encode(value).decode()}
    if name in _LITERALS:
        return {OBJECT_TYPE: name, OBJECT_LITERAL: str(value)}
    try:
        return {OBJECT_TYPE: name, OBJECT_JSON: json.dumps(value, ensure_ascii=False)}
    except (TypeError, ValueError) as error:
        raise RuntimeError(f"{name} is no value of JSON, {error}; emit a part of it that is") from None


def emit_exception(
    exception: BaseException,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,  # noqa: FBT001, FBT002 - the contract's
) -> SpanCoreFields:
    """Record an exception that the agent has dealt with; the attempt goes on.

    Args:
        exception: the exception.
        attributes: more to say; what a span cannot hold becomes JSON text.
        propagate: whether to record the span, or only to return it.

    Raises:
        TypeError: it is no exception.
        RuntimeError: there is no current attempt.
    """
    if not isinstance(exception, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance] (as above)
        raise TypeError(f"an exception is wanted, not {type(exception).__name__}")
    said = exception_attributes(exception) | sanitize_attributes(attributes or {})
    return _emit(EXCEPTION_SPAN, said, propagate=propagate)


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
        # Building a span must not bring the SDK.
        from store.training.tracer import record_fields

        record_fields(require_scope(name), fields)
    return fields


def _flush(fields: SpanCoreFields, *, propagate: bool) -> SpanCoreFields:
    if propagate:
        require_scope(fields.name).recorder.flush()
    return fields


async def _flushed(fields: SpanCoreFields) -> SpanCoreFields:
    await require_scope(fields.name).recorder.flushed()
    return fields


# -- reading ---------------------------------------------------------------------------------------------------------


def get_message_value(span: AnySpan) -> str | None:
    """Return the text of a message's span, or None if it has none.

    Raises:
        TypeError: it is no text.
    """
    body = span.attributes.get(MESSAGE_BODY)
    if body is not None and not isinstance(body, str):
        raise TypeError(f"the message of span {span.name!r} is {type(body).__name__}, not text")
    return body


def get_object_value(span: AnySpan) -> Any:
    """Return the value that an object's span holds, or None if it holds none.

    Raises:
        RuntimeError: what it holds is damaged, or of a kind that is not known.
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
