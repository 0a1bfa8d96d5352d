"""Triplets become rows in the layout of verl, and unusable ones are reported."""

from __future__ import annotations

import random
import sys
from itertools import accumulate
from typing import Any

import pytest

from store.adapters.records import Triplet
from store.adapters.rows import LeftOut, Trajectories, trajectories
from store.errors import Invalid

PAD = 0
GRIDS = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "responses",
    "response_mask",
    "old_log_probs",
    "token_level_scores",
)


def triplet(
    prompt: Any, response: Any, reward: float | None = 1.0, logprobs: Any = None, attempt: str = "at-1"
) -> Triplet:
    said = {"token_ids": response} if logprobs is None else {"token_ids": response, "logprobs": logprobs}
    ids = {"rollout_id": "ro-1", "attempt_id": attempt}
    return Triplet(prompt={"token_ids": prompt}, response=said, reward=reward, metadata=ids)


def row(batch: Trajectories, number: int = 0) -> dict[str, Any]:
    return {name: getattr(batch, name)[number] for name in GRIDS}


def test_prompts_are_padded_on_the_left_and_responses_on_the_right() -> None:
    batch = trajectories([triplet([11, 12], [21, 22, 23], 0.5, [-0.1, -0.2, -0.3])], PAD, 4, 5)
    assert row(batch) == {
        "input_ids": [0, 0, 11, 12, 21, 22, 23, 0, 0],
        "attention_mask": [0, 0, 1, 1, 1, 1, 1, 0, 0],
        "position_ids": [0, 0, 0, 1, 2, 3, 4, 4, 4],
        "responses": [21, 22, 23, 0, 0],
        "response_mask": [1, 1, 1, 0, 0],
        "old_log_probs": [-0.1, -0.2, -0.3, 0.0, 0.0],
        "token_level_scores": [0.0, 0.0, 0.5, 0.0, 0.0],
    }
    assert (batch.rows, batch.has_log_probs, batch.left_out, len(batch)) == ([[0]], [True], [], 1)


def test_a_long_response_is_cut_and_its_reward_stands_on_the_last_token_left() -> None:
    batch = trajectories([triplet([1], [2, 3, 4], 0.5, [-1, -2, -3])], PAD, 1, 2)
    assert (batch.responses, batch.token_level_scores, batch.old_log_probs) == ([[2, 3]], [[0.0, 0.5]], [[-1.0, -2.0]])
    assert batch.left_out == [LeftOut(0, "response_truncated")]


def test_a_long_prompt_is_left_out_or_cut_to_its_end() -> None:
    triplets = [triplet([1, 2, 3], [4], logprobs=[0.0]), triplet([5], [6], logprobs=[0.0])]
    dropped = trajectories(triplets, PAD, 2, 1)
    assert (dropped.rows, dropped.left_out) == ([[1]], [LeftOut(0, "prompt_too_long")])
    cut = trajectories(triplets, PAD, 2, 1, long_prompts="truncate")
    assert (cut.input_ids[0], cut.left_out) == ([2, 3, 4], [LeftOut(0, "prompt_truncated")])


@pytest.mark.parametrize(
    "unusable, reason",
    [
        (triplet([], [1]), "no_prompt_tokens"),
        (triplet(["a"], [1]), "no_prompt_tokens"),
        (triplet([1], []), "no_response_tokens"),
        (triplet([1], [True]), "no_response_tokens"),
        (triplet([1], [2], None), "no_reward"),
        (triplet([1], [2], float("nan")), "no_reward"),
        (Triplet(prompt="text", response=None, reward=1.0), "no_prompt_tokens"),
    ],
)
def test_unusable_triplets_are_omitted_with_the_reason(unusable: Triplet, reason: str) -> None:
    batch = trajectories([triplet([1], [2]), unusable], PAD, 2, 2)
    assert batch.rows == [[0]]
    assert batch.reasons() == {"no_log_probs": 1, reason: 1}


def test_a_missing_reward_may_be_given_a_value() -> None:
    batch = trajectories([triplet([1], [2, 3], None)], PAD, 1, 3, missing_reward=-1)
    assert batch.token_level_scores == [[0.0, -1.0, 0.0]]


@pytest.mark.parametrize("logprobs", [[-0.1], [-0.1, None], [-0.1, float("nan")], "x", [{"logprob": -0.1}, {}]])
def test_log_probabilities_that_are_not_one_for_each_token_count_as_unknown(logprobs: Any) -> None:
    batch = trajectories([triplet([1], [2, 3], logprobs=logprobs)], PAD, 1, 2)
    assert (batch.old_log_probs, batch.has_log_probs) == ([[0.0, 0.0]], [False])
    assert batch.left_out == [LeftOut(0, "no_log_probs")]


def test_log_probabilities_may_come_as_the_engine_gives_them() -> None:
    batch = trajectories([triplet([1], [2, 3], logprobs=[{"token": "a", "logprob": -0.1}, {"logprob": -2}])], PAD, 1, 2)
    assert (batch.old_log_probs, batch.has_log_probs) == ([[-0.1, -2.0]], [True])


def conversation() -> list[Triplet]:
    """Two turns: 1 → 2 3, then a tool says 4, then → 5; beside them a call of another attempt and of another prompt."""
    return [
        triplet([1], [2, 3], 0.25, [-1, -2]),
        triplet([1, 2, 3, 4], [5], 1.0, [-3], attempt="at-2"),
        triplet([1, 2, 3, 4], [5], 1.0, [-3]),
        triplet([1, 9], [5], 1.0, [-3]),
    ]


def test_the_turns_of_a_conversation_become_one_row_in_which_only_the_models_tokens_count() -> None:
    batch = trajectories(conversation(), PAD, 4, 5, merge_turns=True)
    assert batch.rows == [[0, 2], [1], [3]]
    assert row(batch) == {
        "input_ids": [0, 0, 0, 1, 2, 3, 4, 5, 0],
        "attention_mask": [0, 0, 0, 1, 1, 1, 1, 1, 0],
        "position_ids": [0, 0, 0, 0, 1, 2, 3, 4, 4],
        "responses": [2, 3, 4, 5, 0],
        "response_mask": [1, 1, 0, 1, 0],
        "old_log_probs": [-1.0, -2.0, 0.0, -3.0, 0.0],
        "token_level_scores": [0.0, 0.25, 0.0, 1.0, 0.0],
    }
    assert len(trajectories(conversation(), PAD, 4, 5)) == 4


def test_rewards_of_turns_that_were_cut_off_stand_on_the_last_token_of_the_model() -> None:
    batch = trajectories(conversation()[:3], PAD, 4, 3, merge_turns=True)
    assert (batch.response_mask[0], batch.token_level_scores[0]) == ([1, 1, 0], [0.0, 1.25, 0.0])
    assert batch.left_out == [LeftOut(2, "response_truncated")]


@pytest.mark.parametrize("seed", range(20))
def test_every_row_keeps_the_arithmetic_of_the_field(seed: int) -> None:
    lot = random.Random(seed)

    def tokens_by_lot() -> list[int]:
        return [lot.randrange(1, 99) for _ in range(lot.randrange(1, 7))]

    triplets = [triplet(tokens_by_lot(), tokens_by_lot(), lot.randrange(1, 9) / 8) for _ in range(9)]
    batch = trajectories(triplets, PAD, 5, 4, long_prompts="truncate")
    for number, (place,) in enumerate(batch.rows):
        one, source = row(batch, number), triplets[place]
        mask, tokens = one["attention_mask"], one["input_ids"]
        prompt, response = source.prompt["token_ids"][-5:], source.response["token_ids"][:4]
        assert [token for token, seen in zip(tokens, mask, strict=True) if seen] == prompt + response
        assert tokens[5 - len(prompt) : 5] == prompt
        assert (tokens[5:], mask[5:]) == (one["responses"], one["response_mask"])
        assert one["position_ids"] == [max(count - 1, 0) for count in accumulate(mask)]
        assert one["token_level_scores"].index(source.reward) == len(response) - 1
        assert sum(one["token_level_scores"]) == source.reward


def test_arrays_have_the_types_and_shapes_that_verl_takes() -> None:
    numpy: Any = pytest.importorskip("numpy")
    triplets = [
        triplet(list(range(1, 2 + number % 8)), list(range(1, 2 + number % 5)), number + 1) for number in range(50)
    ]
    arrays, lists = (trajectories(triplets, PAD, 8, 6, as_numpy=as_numpy) for as_numpy in (True, False))
    for name in GRIDS:
        is_float = name in {"old_log_probs", "token_level_scores"}
        assert getattr(arrays, name).dtype == (numpy.float32 if is_float else numpy.int64)
        assert getattr(arrays, name).tolist() == getattr(lists, name)
    assert (arrays.input_ids.shape, arrays.responses.shape) == ((50, 14), (50, 6))
    assert (arrays.position_ids == numpy.clip(numpy.cumsum(arrays.attention_mask, axis=-1) - 1, 0, None)).all()
    # The place of a reward by verl's arithmetic: from the length that the mask of the response gives.
    last = arrays.attention_mask[:, 8:].sum(axis=-1) - 1
    assert (arrays.token_level_scores[numpy.arange(50), last] == numpy.arange(50) + 1).all()
    empty = trajectories([], PAD, 8, 6, as_numpy=True)
    assert (empty.input_ids.shape, empty.token_level_scores.shape) == ((0, 14), (0, 6))


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((-1, 1, 1), "pad_token_id: -1 is not an integer from 0 on"),
        ((None, 1, 1), "pad_token_id: None"),
        ((0, 0, 1), "max_prompt: 0"),
        ((0, 1, 1.5), "max_response: 1.5"),
    ],
)
def test_a_size_that_makes_no_rows_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        trajectories([], *arguments)


def test_an_unknown_way_with_long_prompts_is_refused() -> None:
    way: Any = "middle"
    with pytest.raises(Invalid, match="long_prompts: 'middle' is neither drop nor truncate"):
        trajectories([], 0, 1, 1, long_prompts=way)


def test_missing_numpy_is_reported_with_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(Invalid, match="as_numpy: numpy is not installed; install it, or use as_numpy=False"):
        trajectories([], 0, 1, 1, as_numpy=True)
    assert len(trajectories([], 0, 1, 1)) == 0
