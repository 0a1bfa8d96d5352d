"""Rewards as span attributes: writing rewards, and reading them in every format of Agent-lightning 0.1 to 0.3.

The numbers of a reward are its dimensions. The primary dimension is the number that training uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from store.errors import Invalid
from store.models import Span
from store.semconv import ANNOTATION_SPAN, REWARD, summarise
from store.training.tracing.core_fields import SpanCoreFields

_ANNOTATED: Final = "reward"

AnySpan = Span | SpanCoreFields
S = TypeVar("S", bound=AnySpan)


class RewardDimension(NamedTuple):
    """One number of a reward, with its name."""

    name: str
    value: float


def finite(value: float, field: str) -> float:
    """Return the number of a reward as a float.

    Raises:
        Invalid: the number is NaN, infinite or too large for a float.
    """
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if not math.isfinite(number):
        raise Invalid(field, f"{number} is not a finite number; emit a finite number, or no reward")
    return number


def check_rewards(name: str, attributes: Mapping[str, Any]) -> None:
    """Check that the rewards in the attributes of a span with this name are finite.

    Raises:
        Invalid: a reward is NaN, infinite or too large for a float.
    """
    for key, value in attributes.items():
        if isinstance(value, (int, float)) and (
            (key == _ANNOTATED and name == ANNOTATION_SPAN) or (key.startswith(f"{REWARD}.") and key.endswith(".value"))
        ):
            finite(value, key)


def get_rewards_from_span(span: AnySpan) -> list[RewardDimension]:
    """Return the dimensions of a span's reward, with the primary dimension first; an empty list without a reward.

    Raises:
        ValueError: the span has the attribute `agentlightning.reward` itself, which no version of Agent-lightning sets.
    """
    if REWARD in span.attributes:
        raise ValueError(f"{REWARD} is an attribute itself; rewards are {REWARD}.0.name, {REWARD}.0.value, …")
    return [RewardDimension(name, value) for name, value in summarise(span.name, span.attributes).rewards]


def get_reward_value(span: AnySpan) -> float | None:
    """Return the primary dimension of a span's reward, or None if the span has no reward.

    Raises:
        ValueError: the span has the attribute `agentlightning.reward` itself, which no version of Agent-lightning sets.
    """
    rewards = get_rewards_from_span(span)
    return rewards[0].value if rewards else None


def is_reward_span(span: AnySpan) -> bool:
    """Return whether a span has a reward."""
    return get_reward_value(span) is not None


def find_reward_spans(spans: Sequence[S]) -> list[S]:
    """Return the spans that have a reward, in the order of `spans`."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[AnySpan]) -> float | None:
    """Return the primary dimension of the last span with a reward; None if no span has a reward."""
    for span in reversed(spans):
        reward = get_reward_value(span)
        if reward is not None:
            return reward
    return None
