"""Results of an adapter: the triplets, dropped spans and lost rewards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import Field

from store.models.enums import Frozen

__all__ = ["AdaptReport", "Dropped", "Lost", "Triplet"]


class Triplet(Frozen):
    """The prompt, the response and the reward of one call to a model, or of one of several choices of a call."""

    prompt: Any
    """An object: `token_ids` is a list of ints, `raw_content` contains the messages, and `image_urls` lists the URLs of
    the images in the messages, in order."""
    response: Any
    """An object: `token_ids` is a list of ints, the token ids of the choice. `raw_content` contains the recorded
    choices. If several choices of the call became triplets, it contains only the choice of this triplet. `logprobs`, if
    recorded, has one entry for each token: a natural logarithm, or an object with this number as `logprob`."""
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    """`request` and `response`, the parameters of the request and of the response; `response_id`; `agent_name`;
    `rewards`, all values of the reward by name; `model_version`, None if no proxy recorded it; `rollout_id` and
    `attempt_id`, the rollout and the attempt of the call; `sequence_id`, the number of the call among the spans; and
    `span_ids`, the ids of all spans that recorded the call. If several choices of a call became triplets, `choice` is
    the number of the choice, from 0. With `strict_upstream`, adapters set only the keys that Agent-lightning 0.3
    sets."""


class Dropped(NamedTuple):
    """A span, or a choice of a call, that did not become a triplet of its own.

    The reasons are:

    - `same_response`, `same_tokens`: another span, whose id is in `detail`, recorded the same call. The data of both
      spans are merged.
    - `inside_a_call`: the span has no response id, and is a descendant of the span of a call, whose id is in `detail`.
    - `in_a_reward`: the call was made while a reward was computed. The model was a judge of the agent.
    - `other_agent`: the adapter does not use the calls of the agent.
    - `failed`: the call failed without a response.
    - `no_token_ids`: the call lacks token ids that the adapter requires.
    - `choice_without_token_ids`: a later choice, whose number is in `detail`, has no token ids, or the prompt has no
      token ids.
    - `duplicate_span`: another span has the same id.
    - `not_a_span`: the item of the input is not a valid span; `detail` is its type.
    """

    span_id: str
    reason: str
    detail: str


class Lost(NamedTuple):
    """A reward that was not assigned to a call.

    The reasons are:

    - `no_call_before`: when the reward was recorded, no call had ended, or all calls that had ended had a reward.
    - `linked_call_missing`: the reward links to a call that is not among the calls.
    - `call_has_a_reward`: the call of the reward already has another reward.
    - `not_the_last_reward`: the adapter's policy uses only the last reward.
    """

    span_id: str
    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class AdaptReport:
    """The triplets of an adapter, and the spans and rewards that were left out."""

    triplets: list[Triplet]
    dropped: list[Dropped]
    lost_rewards: list[Lost]

    def reasons(self) -> dict[str, int]:
        """Return the numbers of left-out spans and rewards, by reason."""
        counted = Counter([item.reason for item in self.dropped] + [item.reason for item in self.lost_rewards])
        return dict(sorted(counted.items()))
