"""Conversion of rows to verl's `DataProto`, compared with verl's own class and GRPO where verl is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from store.adapters.data_proto import DataProtoFields, data_proto_fields
from store.adapters.records import Triplet
from store.adapters.rows import Trajectories, trajectories
from store.errors import Invalid
from store.examples.guess_number.grpo import advantages

numpy: Any = pytest.importorskip("numpy")

with_verl = pytest.mark.skipif(
    find_spec("verl") is None and not os.environ.get("ROLLBOOK_REQUIRE_VERL"),
    reason="verl is not installed: make test-verl",
)
REWARDS = {"ro-1": 1.0, "ro-2": 0.0, "ro-3": 0.5, "ro-4": 0.5}
TASKS = {"ro-1": "task-a", "ro-2": "task-a", "ro-3": "task-b", "ro-4": "task-b"}


def call(rollout: str, prompt: Sequence[int], response: Sequence[int], *, has_tokens: bool = True) -> Triplet:
    said: dict[str, Any] = {"token_ids": list(response)}
    if has_tokens:
        said["logprobs"] = [{"logprob": -0.25 * token} for token in response]
    ids = {"rollout_id": rollout, "attempt_id": f"at-{rollout}"}
    return Triplet(prompt={"token_ids": list(prompt)}, response=said, reward=REWARDS[rollout], metadata=ids)


CALLS = [
    call("ro-1", [11, 12], [21, 22]),
    call("ro-2", [11, 12], [23]),
    call("ro-1", [11, 12, 21, 22, 13], [24]),
    call("ro-3", [14, 15], [25, 26, 27]),
    call("ro-4", [14, 15], [25]),
]


def rows(calls: Sequence[Triplet] = CALLS, **options: Any) -> Trajectories:
    return trajectories(calls, 0, 5, 3, **options)


@pytest.mark.parametrize("as_numpy", [False, True])
def test_prompts_stand_at_the_right_of_theirs_and_responses_at_the_left(as_numpy: bool) -> None:
    fields = data_proto_fields(rows(as_numpy=as_numpy), CALLS, data_ids=TASKS, meta_info={"temperature": 1.0})
    batch = fields.batch
    assert batch["prompts"].tolist()[:3] == [[0, 0, 0, 11, 12], [0, 0, 0, 11, 12], [11, 12, 21, 22, 13]]
    assert batch["responses"].tolist()[:3] == [[21, 22, 0], [23, 0, 0], [24, 0, 0]]
    assert batch["input_ids"].tolist() == numpy.concatenate([batch["prompts"], batch["responses"]], axis=1).tolist()
    assert batch["attention_mask"].tolist()[0] == [0, 0, 0, 1, 1, 1, 1, 0]
    # What Agent-lightning computes: clamp(cumsum(attention_mask) - 1, min=0).
    counted = numpy.clip(numpy.cumsum(batch["attention_mask"], axis=1) - 1, 0, None)
    assert batch["position_ids"].tolist() == counted.tolist()
    assert batch["response_mask"].tolist() == batch["attention_mask"][:, 5:].tolist()
    assert batch["token_level_scores"].tolist()[:2] == [[0, 1, 0], [0, 0, 0]]
    assert batch["rollout_log_probs"].tolist()[0] == [-5.25, -5.5, 0.0]
    assert batch["is_drop_mask"].tolist() == 5 * [False]
    assert {name: str(array.dtype) for name, array in batch.items() if array.dtype != "int64"} == {
        "token_level_scores": "float32",
        "rollout_log_probs": "float32",
        "is_drop_mask": "bool",
    }
    assert {name: array.tolist() for name, array in fields.non_tensor_batch.items()} == {
        "data_id_list": ["task-a", "task-a", "task-a", "task-b", "task-b"],
        "uid": ["task-a", "task-a", "task-a", "task-b", "task-b"],
        "rollout_id_list": ["ro-1", "ro-2", "ro-1", "ro-3", "ro-4"],
        "turn_index_list": [0, 0, 1, 0, 0],
    }
    assert fields.meta_info == {"temperature": 1.0}


def test_response_mask_separates_the_turns_of_a_row() -> None:
    turns = trajectories([CALLS[0], CALLS[2]], 0, 2, 4, merge_turns=True)
    batch = data_proto_fields(turns, [CALLS[0], CALLS[2]]).batch
    assert batch["responses"].tolist() == [[21, 22, 13, 24]]
    assert batch["response_mask"].tolist() == [[1, 1, 0, 1]]
    assert batch["attention_mask"].tolist() == [6 * [1]]


def test_log_probabilities_that_are_not_known_for_all_rows_are_left_out() -> None:
    calls = [CALLS[0], call("ro-2", [11, 12], [23], has_tokens=False)]
    fields = data_proto_fields(rows(calls), calls)
    assert "rollout_log_probs" not in fields.batch
    assert fields.non_tensor_batch["uid"].tolist() == ["ro-1", "ro-2"], "without tasks each is its own"


def test_a_row_with_a_truncated_prompt_is_marked_to_be_dropped() -> None:
    turns = trajectories(CALLS, 0, 4, 3, long_prompts="truncate")
    assert data_proto_fields(turns, CALLS).batch["is_drop_mask"].tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("as_numpy", [False, True])
def test_no_rows_are_arrays_without_rows(as_numpy: bool) -> None:
    fields = data_proto_fields(rows([], as_numpy=as_numpy), [])
    assert {len(array) for array in (*fields.batch.values(), *fields.non_tensor_batch.values())} == {0}


def test_rows_of_other_triplets_are_refused() -> None:
    with pytest.raises(Invalid, match="there are 2 triplets, but a row refers to a higher index"):
        data_proto_fields(rows(), CALLS[:2])


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed")
def test_without_verl_the_error_names_the_extra() -> None:
    with pytest.raises(Invalid, match=r"verl.* is not installed; run pip install 'rollbook\[verl\]'"):
        data_proto_fields(rows(), CALLS).to_data_proto()


def exported() -> DataProtoFields:
    return data_proto_fields(rows(), CALLS, data_ids=TASKS, meta_info={"temperature": 1.0})


@with_verl
@pytest.mark.filterwarnings("ignore")
def test_verls_own_class_takes_the_fields() -> None:
    torch: Any = import_module("torch")
    DataProto: Any = import_module("verl").DataProto  # noqa: N806
    data: Any = exported().to_data_proto()
    assert isinstance(data, DataProto)
    data.check_consistency()
    assert len(data) == 5
    for name, array in exported().batch.items():
        assert torch.equal(data.batch[name], torch.from_numpy(array)), name
    # The ways in which its trainer takes batches apart and puts them together.
    first, second = data[:4].chunk(2)
    assert torch.equal(DataProto.concat([first, second]).batch["input_ids"], data.batch["input_ids"][:4])
    assert data.select_idxs([2]).non_tensor_batch["turn_index_list"].tolist() == [1]
    back = DataProto.from_tensordict(data.to_tensordict().select(*exported().batch))
    assert torch.equal(back.batch["rollout_log_probs"], data.batch["rollout_log_probs"])


@with_verl
@pytest.mark.filterwarnings("ignore")
def test_verls_own_grpo_finds_the_advantages_that_the_example_learns_from() -> None:
    algorithms: Any = import_module("verl.trainer.ppo.core_algos")
    # One row for each rollout: a group of rollouts is a group of rows.
    calls = [CALLS[0], CALLS[1], *CALLS[3:]]
    data: Any = data_proto_fields(rows(calls), calls, data_ids=TASKS).to_data_proto()
    grpo: Any = algorithms.compute_grpo_outcome_advantage(
        data.batch["token_level_scores"], data.batch["response_mask"], data.non_tensor_batch["uid"], epsilon=1e-4
    )
    ours = advantages(REWARDS, TASKS)
    for row, rollout_id in enumerate(data.non_tensor_batch["rollout_id_list"]):
        mask = data.batch["response_mask"][row].bool()
        assert grpo[0][row][mask].tolist() == pytest.approx([ours[rollout_id]] * int(mask.sum()), abs=1e-5)
