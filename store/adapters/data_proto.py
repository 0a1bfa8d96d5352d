"""Conversion of training rows to the fields of verl's `DataProto`, as Agent-lightning's trainer for verl expects them.

A row is one prompt with its response. It is made from one or several triplets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from store.adapters.records import Triplet
from store.adapters.rows import Trajectories
from store.errors import Invalid

__all__ = ["DataProtoFields", "data_proto_fields"]


@dataclass(frozen=True, slots=True)
class DataProtoFields:
    """The three parts of a `DataProto` with B rows. Each row has P tokens of prompt and R tokens of response."""

    batch: dict[str, Any]
    """Numpy arrays by name: `prompts` (B, P), `responses` (B, R), `input_ids`, `attention_mask` and `position_ids`
    (B, P+R), `response_mask` (B, R), all int64; `token_level_scores` (B, R) float32; `is_drop_mask` (B,) bool, True for
    a row whose prompt was truncated. `rollout_log_probs` (B, R) float32 is present only if every row has log
    probabilities."""
    non_tensor_batch: dict[str, Any]
    """Numpy arrays of objects, each (B,): `data_id_list` and `uid` both contain the task, which several rollouts may
    share. `rollout_id_list` contains the rollout ids. `turn_index_list` contains the index of the row's first call
    among the calls of its attempt, from 0."""
    meta_info: dict[str, Any]
    """Settings that verl's workers read, such as `temperature`."""

    def to_data_proto(self) -> Any:
        """Return a `verl.DataProto`. Its tensors share the memory of the arrays.

        Raises:
            Invalid: verl or torch is not installed.
        """
        verl, torch = _imported("verl", "verl"), _imported("torch", "verl")
        tensors = {name: torch.from_numpy(array) for name, array in self.batch.items()}
        return verl.DataProto.from_dict(
            tensors=tensors, non_tensors=dict(self.non_tensor_batch), meta_info=dict(self.meta_info)
        )


def data_proto_fields(
    trajectories: Trajectories,
    triplets: Sequence[Triplet],
    *,
    data_ids: Mapping[str, str] | None = None,
    meta_info: Mapping[str, Any] | None = None,
) -> DataProtoFields:
    """Return rows as the fields of a `DataProto`.

    Args:
        trajectories: the rows, as lists or as arrays.
        triplets: the triplets that were passed to `trajectories()`, in that order.
        data_ids: the id of the task of each rollout, by rollout id. verl compares the rewards of rollouts with the same
            task. For a rollout without an entry, the rollout id is used as the id of its task.
        meta_info: the settings for verl's workers.

    Raises:
        Invalid: a row was made from a triplet that is not in `triplets`, or numpy is not installed.
    """
    numpy = _imported("numpy", "verl")
    if any(index >= len(triplets) for indexes in trajectories.rows for index in indexes):
        raise Invalid(
            "triplets",
            f"there are {len(triplets)} triplets, but a row refers to a higher index; "
            "pass the triplets from which `trajectories` was made",
        )
    firsts = [indexes[0] for indexes in trajectories.rows]
    rollout_ids = [str(triplets[index].metadata.get("rollout_id")) for index in firsts]
    tasks = [(data_ids or {}).get(rollout_id, rollout_id) for rollout_id in rollout_ids]
    turns = _turns(triplets)
    truncated = {omission.triplet for omission in trajectories.left_out if omission.reason == "prompt_truncated"}

    def array(values: Any, kind: Any, width: int | None = None) -> Any:
        matrix = numpy.asarray(values, kind)
        # An empty list of rows does not show the number of columns, so the array is reshaped.
        return matrix if len(trajectories) or width is None else matrix.reshape(0, width)

    response = _width(trajectories.responses)
    total = _width(trajectories.input_ids)
    input_ids = array(trajectories.input_ids, numpy.int64, total)
    batch = {
        "prompts": numpy.ascontiguousarray(input_ids[:, : total - response]),
        "responses": array(trajectories.responses, numpy.int64, response),
        "input_ids": input_ids,
        "attention_mask": array(trajectories.attention_mask, numpy.int64, total),
        "position_ids": array(trajectories.position_ids, numpy.int64, total),
        "response_mask": array(trajectories.response_mask, numpy.int64, response),
        "token_level_scores": array(trajectories.token_level_scores, numpy.float32, response),
        "is_drop_mask": array([index in truncated for index in firsts], numpy.bool_),
    }
    if all(trajectories.has_log_probs):
        batch["rollout_log_probs"] = array(trajectories.old_log_probs, numpy.float32, response)
    values_by_name = {
        "data_id_list": tasks,
        "uid": tasks,
        "rollout_id_list": rollout_ids,
        "turn_index_list": [turns[index] for index in firsts],
    }
    objects = {name: numpy.asarray(values, object) for name, values in values_by_name.items()}
    return DataProtoFields(batch, objects, dict(meta_info or {}))


def _width(rows: Any) -> int:
    """Return the number of columns; 0 for nested lists without rows."""
    shape = getattr(rows, "shape", None)
    return int(shape[1]) if shape is not None else len(rows[0]) if rows else 0


def _turns(triplets: Sequence[Triplet]) -> list[int]:
    """Return for each triplet the number of earlier triplets of the same attempt."""
    turn_counts: Counter[tuple[Any, Any]] = Counter()
    turns: list[int] = []
    for triplet in triplets:
        attempt = (triplet.metadata.get("rollout_id"), triplet.metadata.get("attempt_id"))
        turns.append(turn_counts[attempt])
        turn_counts[attempt] += 1
    return turns


def _imported(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise Invalid(name, f"is not installed; run pip install 'rollbook[{extra}]'") from None
