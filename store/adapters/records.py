"""Results of the adapters: triplets, dropped spans and lost rewards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import Field

from store.models.enums import Frozen

__all__ = ["AdaptReport", "Dropped", "Lost", "Triplet"]


class Triplet(Frozen):
    """One call to a model, with its reward."""

    prompt: Any
    """`token_ids` (ints), `raw_content` (the messages), `image_urls` (in the messages, in order)."""
    response: Any
    """`token_ids` (ints, of the first choice), `raw_content` (the choices) and, if recorded, `logprobs`: one entry for
    each token, a number or an object with a `logprob` (natural logarithm)."""
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    """`request` and `response` (their parameters), `response_id`, `agent_name`; `rewards`, all dimensions by name;
    `model_version`, if the proxy knew it; `rollout_id`, `attempt_id`, `sequence_id`, and `span_ids` of all spans that
    recorded the call."""


class Dropped(NamedTuple):
    """A span of a call that did not become a triplet.

    The reason is `same_response` or `same_tokens` (the span `detail` recorded the same call and received this span's
    data), `inside_a_call` (it has no response id, and is below the call of the span `detail`), `in_a_reward` (a call of
    a judge), `other_agent`, `failed` (a call without a response), `no_token_ids`, `duplicate_span` (another span has
    the same id) or `not_a_span`.
    """

    span_id: str
    reason: str
    detail: str


class Lost(NamedTuple):
    """A reward that was not assigned to a call.

    The reason is `no_call_before` (no call without a reward had ended before it), `linked_call_missing`,
    `call_has_a_reward` (its call already has another reward) or `not_the_last_reward`.
    """

    span_id: str
    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class AdaptReport:
    """The triplets of an adapter, and the spans and rewards that it left out."""

    triplets: list[Triplet]
    dropped: list[Dropped]
    lost_rewards: list[Lost]

    def reasons(self) -> dict[str, int]:
        """Return the numbers of left-out spans and rewards, by reason."""
        counted = Counter([each.reason for each in self.dropped] + [each.reason for each in self.lost_rewards])
        return dict(sorted(counted.items()))
