"""Recording of an agent's return value as spans of its attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, cast

from opentelemetry.sdk.trace import ReadableSpan

from store.models import Span
from store.semconv import PRIMARY
from store.training.tracing.core_fields import SpanCoreFields, type_name
from store.training.tracing.emitters import emit_reward
from store.training.tracing.recorder import StoreRecorder
from store.training.tracing.reward_spans import check_rewards, finite
from store.training.tracing.scope import AttemptScope
from store.training.tracing.span_recording import record_fields

logger = logging.getLogger("store.training.returned")


async def record_returned(result: Any, scope: AttemptScope) -> None:
    """Record an agent's return value in an attempt, as children of the current span.

    Raises:
        TypeError: the value has a type that agents may not return.
        Invalid: a number of a reward is not finite.
        ValueError: a reward has several numbers, and none has the name `primary`;
            or a list contains objects of several types.
    """
    if result is None:
        return
    reward = _reward(result)
    if reward is not None:
        # The agent makes no further calls, so there is no need to wait until the reward is stored.
        key = None
        if isinstance(reward, Mapping):
            if PRIMARY not in reward and len(reward) > 1:
                raise ValueError(
                    f"the agent returned the dimensions {', '.join(map(repr, reward))}; name one of them {PRIMARY!r}"
                )
            key = PRIMARY if PRIMARY in reward else next(iter(reward))
        record_fields(scope, emit_reward(reward, primary_key=key, propagate=False))
    elif isinstance(result, list):
        await _record_spans(cast("list[Any]", result), scope)
    else:
        raise TypeError(
            f"the agent returned {type_name(result)}; return None, a number, a dict of numbers, or a list of spans"
        )


def _reward(result: Any) -> float | Mapping[str, float] | None:
    if isinstance(result, Mapping):
        values = cast("Mapping[Any, Any]", result)
        numbers = {name: _number(value, f"reward {name!r}") for name, value in values.items()}
        if not values or any(value is None or not isinstance(name, str) for name, value in numbers.items()):
            raise TypeError("the agent returned a dict that is not a reward; return a dict of numbers by name")
        return cast("dict[str, float]", numbers)
    if isinstance(result, (bool, int)):
        logger.warning("the agent returned %r, taken as the reward %s", result, finite(result, "reward"))
    return _number(result)


def _number(value: Any, field: str = "reward") -> float | None:
    """Return a Python or numpy number as a float, or None for another value.

    Some numpy scalars are not registered as `numbers.Real`, so their method `item` converts them to Python numbers.
    """
    if isinstance(value, (str, bytes, list, tuple)):
        return None
    item: Callable[[], Any] | None = getattr(value, "item", None)
    number = item() if item is not None and getattr(value, "ndim", None) == 0 else value
    return finite(cast("float", number), field) if isinstance(number, Real) else None


async def _record_spans(spans: list[Any], scope: AttemptScope) -> None:
    if not spans:
        logger.warning("the agent of attempt %s returned an empty list", scope.attempt_id)
        return
    kinds = (kind for kind in (SpanCoreFields, ReadableSpan, Span) if all(isinstance(span, kind) for span in spans))
    kind = next(kinds, None)
    if kind is None:
        names = ", ".join(sorted({type_name(span) for span in spans}))
        raise ValueError(f"the agent returned a list of {names}; return a list of spans of one type")
    for span in spans:
        check_rewards(span.name, span.attributes or {})
    if kind is Span:
        assert isinstance(scope.recorder, StoreRecorder)  # every attempt has a StoreRecorder
        await scope.recorder.add(spans)
        return
    for span in spans:
        if kind is SpanCoreFields:
            record_fields(scope, span)
        else:
            scope.recorder.put(span)
