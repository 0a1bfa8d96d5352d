"""Conversion of triplets to training rows in the layout of the trainer verl.

verl represents a batch of B rows as prompts
padded on the left to P tokens, followed by responses padded on the right to R tokens. verl derives `position_ids` from
the attention mask. `torch.from_numpy` accepts each array that this module makes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, cast

from store.adapters.records import Triplet
from store.errors import Invalid

__all__ = ["LeftOut", "Trajectories", "trajectories"]

LongPrompts = Literal["drop", "truncate"]

_INTEGERS: Final = ("input_ids", "attention_mask", "position_ids", "responses", "response_mask")
_FLOATS: Final = ("old_log_probs", "token_level_scores")
_OF_A_RESPONSE: Final = frozenset({"responses", "response_mask", *_FLOATS})


class LeftOut(NamedTuple):
    """A triplet that was dropped, or a triplet that is incomplete in its row.

    The reasons for a dropped triplet are `no_prompt_tokens`, `no_response_tokens`, `no_reward` and `prompt_too_long`.
    The reasons for an incomplete triplet are `prompt_truncated`, `response_truncated` and `no_log_probs`. With
    `no_log_probs`, the row contains zeros in place of the triplet's log probabilities.
    """

    triplet: int
    """The index of the triplet in the input."""
    reason: str


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Batch of B rows, each with a prompt of P tokens and a response of R tokens, including padding.

    The first seven fields are nested lists, or numpy arrays of the type that each field states. P is the `max_prompt`
    and R is the `max_response` of `trajectories`.
    """

    input_ids: Any
    """(B, P+R) int64: the token ids of the prompt and the response, padded with `pad_token_id`."""
    attention_mask: Any
    """(B, P+R) int64: 1 where there is a token, 0 where there is padding."""
    position_ids: Any
    """(B, P+R) int64: `clip(cumsum(attention_mask) - 1, 0)`. The first token has position 0. Padding on the left has
    position 0, and padding on the right has the position of the last token."""
    responses: Any
    """(B, R) int64: the last R columns of `input_ids`."""
    response_mask: Any
    """(B, R) int64: 1 for tokens that the model generated, 0 for padding and for tokens between responses."""
    old_log_probs: Any
    """(B, R) float32: for each generated token, the natural logarithm of the probability with which it was sampled; 0
    for other tokens."""
    token_level_scores: Any
    """(B, R) float32: the reward at the last token of each response, 0 at other tokens."""
    rows: list[list[int]]
    """For each row, the triplets from which the row was made, as indexes in the input."""
    has_log_probs: list[bool]
    """For each row, whether `old_log_probs` are known for all generated tokens. If false, the trainer must compute the
    log probabilities."""
    left_out: list[LeftOut]
    """The triplets that were dropped or are incomplete, with the reasons."""

    def __len__(self) -> int:
        return len(self.rows)

    def reasons(self) -> dict[str, int]:
        """Return the number of entries of `left_out` by reason."""
        return dict(sorted(Counter(item.reason for item in self.left_out).items()))


def trajectories(
    triplets: Iterable[Triplet],
    pad_token_id: int,
    max_prompt: int,
    max_response: int,
    *,
    long_prompts: LongPrompts = "drop",
    missing_reward: float | None = None,
    merge_turns: bool = False,
    as_numpy: bool = False,
) -> Trajectories:
    """Return the training rows of triplets with token ids, and a list of the triplets that were dropped or truncated.

    Rows have the order of the triplets.

    Args:
        triplets: triplets from an adapter. They may belong to several rollouts.
        pad_token_id: the padding token of the tokenizer.
        max_prompt: the length P of each prompt, including padding.
        max_response: the length R of each response, including padding. A longer response is truncated. Its reward is
            then at the last remaining token.
        long_prompts: the handling of a prompt of more than P tokens. "drop" leaves out the call. "truncate" keeps only
            the last P tokens of the prompt; the row then has a prompt that the model never received.
        missing_reward: the reward for a row whose triplets have no reward. With None, such a row is left out.
        merge_turns: whether a conversation becomes one row. A conversation is a sequence of calls of one attempt. In a
            conversation, each prompt begins with the prompt and the response of the previous call. Tokens between two
            responses are part of the row's response, with a `response_mask` of 0. The reward of each call is at the
            last token of its response. A reward that the adapter copied to all calls would therefore count several
            times, so use the adapter's reward policy `final_only`.
        as_numpy: whether to return numpy arrays instead of nested lists; numpy must then be installed.

    Raises:
        Invalid: a number or `long_prompts` is not valid, or numpy is required and not installed.
    """
    limits = (("pad_token_id", pad_token_id, 0), ("max_prompt", max_prompt, 1), ("max_response", max_response, 1))
    for field, value, minimum in limits:
        if type(value) is not int or value < minimum:
            raise Invalid(
                field, f"{value!r} is not an integer from {minimum} on; take your tokenizer's or model's value"
            )
    if long_prompts not in {"drop", "truncate"}:
        raise Invalid("long_prompts", f"{long_prompts!r} is neither drop nor truncate")
    rows = _Rows(pad_token_id, max_prompt, max_response, truncates=long_prompts == "truncate")
    for turns in _conversations([_turn(index, triplet) for index, triplet in enumerate(triplets)], merge=merge_turns):
        rows.add(turns, missing_reward)
    return _in_numpy(rows.batch, max_prompt, max_response) if as_numpy else rows.batch


@dataclass(frozen=True, slots=True)
class _Turn:
    """The data of a triplet from which a row is made."""

    index: int
    """The index of the triplet in the input."""
    prompt: list[int]
    response: list[int]
    log_probs: list[float] | None
    reward: float | None
    attempt: tuple[Any, Any]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.response


def _turn(index: int, triplet: Triplet) -> _Turn:
    response = _ids(triplet.response)
    reward = _finite(triplet.reward)
    metadata = triplet.metadata
    attempt = (metadata.get("rollout_id"), metadata.get("attempt_id"))
    return _Turn(index, _ids(triplet.prompt), response, _log_probs(triplet.response, len(response)), reward, attempt)


def _ids(side: Any) -> list[int]:
    value: Any = cast("Mapping[str, Any]", side).get("token_ids") if isinstance(side, Mapping) else None
    ids: Sequence[Any] = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
    return list(ids) if all(type(number) is int for number in ids) else []


def _log_probs(side: Any, tokens: int) -> list[float] | None:
    """Return the log probabilities of a response; None if a token has no log probability."""
    value: Any = cast("Mapping[str, Any]", side).get("logprobs") if isinstance(side, Mapping) else None
    if not isinstance(value, (list, tuple)) or len(cast("Sequence[Any]", value)) != tokens:
        return None
    numbers = [_log_prob(entry) for entry in cast("Sequence[Any]", value)]
    floats = [number for number in numbers if number is not None]
    return floats if len(floats) == tokens else None


def _log_prob(entry: Any) -> float | None:
    return _finite(cast("Mapping[str, Any]", entry).get("logprob") if isinstance(entry, Mapping) else entry)


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _conversations(turns: Iterable[_Turn], *, merge: bool) -> list[list[_Turn]]:
    """Return turns grouped by conversation. Groups are in the order of their first turns.

    Without `merge`, each turn is a group of its own.
    """
    conversations: list[list[_Turn]] = []
    open_in: dict[tuple[Any, Any], list[list[_Turn]]] = {}
    for turn in turns:
        continued = [
            conversation
            for conversation in open_in.get(turn.attempt, ())
            if merge and _continues(conversation[-1], turn)
        ]
        if continued:
            max(continued, key=lambda conversation: len(conversation[-1].tokens)).append(turn)
        else:
            conversations.append([turn])
            open_in.setdefault(turn.attempt, []).append(conversations[-1])
    return conversations


def _continues(before: _Turn, turn: _Turn) -> bool:
    tokens = before.tokens
    are_complete = before.prompt and before.response and turn.response
    return bool(are_complete) and len(turn.prompt) > len(tokens) and turn.prompt[: len(tokens)] == tokens


class _Rows:
    """Builder of the rows of a batch. With `truncates`, prompts that are too long are truncated instead of dropped."""

    def __init__(self, pad: int, max_prompt: int, max_response: int, *, truncates: bool) -> None:
        self.batch = Trajectories([], [], [], [], [], [], [], [], [], [])
        self._pad = pad
        self._max_prompt = max_prompt
        self._max_response = max_response
        self._truncates = truncates

    def add(self, turns: list[_Turn], missing_reward: float | None) -> None:
        """Make a row of the turns of one conversation, or record the reason why no row is made."""
        reward = None if any(turn.reward is not None for turn in turns) else missing_reward
        if reason := self._drop_reason(turns, reward):
            self.batch.left_out.extend(LeftOut(turn.index, reason) for turn in turns)
            return
        prompt = turns[0].prompt[-self._max_prompt :]
        if len(prompt) < len(turns[0].prompt):
            self.batch.left_out.append(LeftOut(turns[0].index, "prompt_truncated"))
        response, mask, log_probs, ends = _joined(turns)
        scores = [0.0] * self._max_response
        for turn, end in zip(turns, ends, strict=True):
            if turn.reward is not None:
                scores[self._last(mask, end)] += turn.reward
            if end > self._max_response:
                self.batch.left_out.append(LeftOut(turn.index, "response_truncated"))
            if turn.log_probs is None:
                self.batch.left_out.append(LeftOut(turn.index, "no_log_probs"))
        if reward is not None:
            scores[self._last(mask, ends[-1])] = reward
        self._append(prompt, response[: self._max_response], mask, log_probs, scores)
        self.batch.rows.append([turn.index for turn in turns])
        self.batch.has_log_probs.append(all(turn.log_probs is not None for turn in turns))

    def _last(self, mask: list[int], end: int) -> int:
        """Return the index of the last generated token before `end`. Truncated tokens are not counted."""
        return max(index for index in range(min(end, self._max_response)) if mask[index])

    def _drop_reason(self, turns: list[_Turn], reward: float | None) -> str | None:
        if not turns[0].prompt:
            return "no_prompt_tokens"
        if not turns[0].response:
            return "no_response_tokens"
        if len(turns[0].prompt) > self._max_prompt and not self._truncates:
            return "prompt_too_long"
        return "no_reward" if reward is None and all(turn.reward is None for turn in turns) else None

    def _append(
        self, prompt: list[int], response: list[int], mask: list[int], log_probs: list[float], scores: list[float]
    ) -> None:
        trajectories, left_padding = self.batch, self._max_prompt - len(prompt)
        right_padding = self._max_response - len(response)
        attention = [0] * left_padding + [1] * (len(prompt) + len(response)) + [0] * right_padding
        responses = response + [self._pad] * right_padding
        trajectories.input_ids.append([self._pad] * left_padding + prompt + responses)
        trajectories.attention_mask.append(attention)
        trajectories.position_ids.append([max(count - 1, 0) for count in accumulate(attention)])
        trajectories.responses.append(responses)
        trajectories.response_mask.append(mask[: self._max_response] + [0] * right_padding)
        trajectories.old_log_probs.append(log_probs[: self._max_response] + [0.0] * right_padding)
        trajectories.token_level_scores.append(scores)


def _joined(turns: list[_Turn]) -> tuple[list[int], list[int], list[float], list[int]]:
    """Return the response of a row that consists of several turns.

    Returns:
        The tokens after the first prompt; for each token, 1 if the model generated it, else 0; for each token, the log
        probability, or 0 if it is not known; and for each turn, the index after its last token.
    """
    tokens: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    ends: list[int] = []
    for turn in turns:
        between = turn.prompt[len(turns[0].prompt) + len(tokens) :]
        tokens += [*between, *turn.response]
        mask += [0] * len(between) + [1] * len(turn.response)
        log_probs += [0.0] * len(between) + (turn.log_probs or [0.0] * len(turn.response))
        ends.append(len(tokens))
    return tokens, mask, log_probs, ends


def _in_numpy(trajectories: Trajectories, max_prompt: int, max_response: int) -> Trajectories:
    try:
        numpy: Any = import_module("numpy")
    except ImportError:
        raise Invalid("as_numpy", "numpy is not installed; install it, or use as_numpy=False") from None
    kinds = {**dict.fromkeys(_INTEGERS, numpy.int64), **dict.fromkeys(_FLOATS, numpy.float32)}

    def array(name: str) -> Any:
        # If there are no rows, numpy cannot derive the number of columns, so the number is passed.
        width = max_response if name in _OF_A_RESPONSE else max_prompt + max_response
        return numpy.asarray(getattr(trajectories, name), kinds[name]).reshape(len(trajectories), width)

    return replace(trajectories, **{name: array(name) for name in kinds})
