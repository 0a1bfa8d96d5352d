"""The argument of reward functions: an attempt that has ended, with everything that was recorded about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from store.adapters.messages import OpenAIMessages, TraceToMessages
from store.models import Attempt, Rollout, Span


@dataclass(frozen=True, eq=False)
class AttemptRecord:
    """The latest attempt of a rollout that has ended."""

    rollout: Rollout
    """The rollout. `rollout.input` is its task, and `rollout.metadata` its metadata."""
    attempt: Attempt
    spans: list[Span]
    """The spans of the attempt, in the order of their sequence ids."""

    @cached_property
    def messages(self) -> list[OpenAIMessages]:
        """The model calls of the attempt as chat messages in OpenAI's form, in the order of time."""
        return TraceToMessages().adapt(self.spans)

    @property
    def reward(self) -> float | None:
        """The recorded reward, or the score of the version that the query selects; None if there is none."""
        return self.attempt.reward

    @property
    def rewards(self) -> dict[str, float]:
        """All numbers of the reward in `reward`, by name."""
        return self.attempt.rewards
