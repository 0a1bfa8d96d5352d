"""ATIF's rules: exported documents follow the published schema, and documents that break a rule are refused by name."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from store.atif.form import SCHEMA_VERSION
from store.atif.reading import ForeignSpans, is_own, own_attempt
from store.atif.schema import read_document
from store.errors import Incompatible, Invalid, StoreError
from tests.atif import harbor
from tests.atif.attempts import ATTEMPTS, record
from tests.atif.foreign import TRAJECTORY, set_field

Json = dict[str, Any]


@pytest.mark.parametrize("name", ATTEMPTS)
def test_exported_documents_follow_the_published_schema(name: str) -> None:
    document = json.loads(orjson.dumps(record(*ATTEMPTS[name]).document()))
    harbor.check(document)
    read_document(orjson.dumps(document))
    # Version 1.7 has no audio, and the published models do not notice.
    assert document["schema_version"] == SCHEMA_VERSION == "ATIF-v1.7"
    assert b'"type":"audio"' not in orjson.dumps(document["steps"][0]["message"])


def test_harbor_reads_exported_documents_and_accepts_five_broken_rules() -> None:
    try:
        model = harbor.model()
    except ImportError:
        assert "ROLLBOOK_REQUIRE_HARBOR" not in os.environ
        pytest.skip("harbor is not installed; make test-atif installs it")
    assert json.loads(harbor.SCHEMA.read_bytes()) == harbor.schema()
    for spans in ATTEMPTS.values():
        model.model_validate_json(orjson.dumps(record(*spans).document()))
    model.model_validate(TRAJECTORY)
    accepted = {name for name, change in _BROKEN.items() if _is_accepted(model, _changed(change))}
    assert accepted == {
        "an id twice", "lengths", "a negative count", "a number as text", "a negative token id",
    }  # fmt: skip


def _is_accepted(model: Any, document: Json) -> bool:
    try:
        model.model_validate(document)
    except ValueError:
        return False
    return True


def _changed(change: Callable[[Json], object]) -> Json:
    document = copy.deepcopy(TRAJECTORY)
    change(document)
    return document


_BROKEN: dict[str, Callable[[Json], object]] = {
    "another version": set_field("schema_version", "ATIF-v2.0"),
    "no steps": set_field("steps", []),
    "an unknown field": set_field("steps/1/reward", 1.0),
    "arguments as text": set_field("steps/2/tool_calls/0/arguments", '{"path": "a"}'),
    "an id twice": lambda document: document["steps"][2]["tool_calls"].append(document["steps"][2]["tool_calls"][0]),
    "lengths": set_field("steps/2/metrics/logprobs", [-0.5]),
    "a negative count": set_field("steps/2/metrics/prompt_tokens", -1),
    "a negative token id": set_field("steps/2/metrics/completion_token_ids", [1, -2]),
    "a gap": set_field("steps/1/step_id", 3),
    "a number as text": set_field("steps/1/step_id", "2"),
    "no such call": set_field("steps/2/observation/results/0/source_call_id", "c7"),
    "a field of agents": set_field("steps/1/reasoning_content", "Hm."),
    "metrics without a call": set_field("steps/2/llm_call_count", 0),
    "no time": set_field("steps/1/timestamp", "yesterday"),
    "a part without its source": set_field("steps/1/message", [{"type": "image", "text": "a"}]),
    "a message of null": set_field("steps/1/message", None),
    "no reference": set_field("steps/3/observation/results/0/subagent_trajectory_ref", [{"session_id": "s"}]),
    "an agent twice": lambda document: document["subagent_trajectories"].append(document["subagent_trajectories"][0]),
}
_REASONS = {
    "another version": "schema_version is 'ATIF-v2.0', and this program reads ATIF-v1.0 to ATIF-v1.8",
    "no steps": r"steps: List should have at least 1 item",
    "an unknown field": r"steps\[1\]\.reward: Extra inputs are not permitted",
    "arguments as text": r"steps\[2\]\.tool_calls\[0\]\.arguments: Input should be a valid dictionary",
    "an id twice": r"steps\[2\]: tool_calls have the tool_call_id 'c1' twice",
    "lengths": r"steps\[2\]\.metrics: logprobs has 1 values for 2 completion_token_ids",
    "a negative count": r"steps\[2\]\.metrics\.prompt_tokens: Input should be greater than or equal to 0",
    "a negative token id": r"steps\[2\]\.metrics\.completion_token_ids\[1\]: Input should be greater",
    "a gap": r"document: steps\[1\]\.step_id is 3; steps are numbered",
    "a number as text": r"steps\[1\]\.step_id: Input should be a valid integer",
    "no such call": r"steps\[2\]: no tool call of the step has the id 'c7' of a source_call_id",
    "a field of agents": r"steps\[1\]: a step of the source 'user' has no reasoning_content",
    "metrics without a call": r"steps\[2\]: a step of the source 'agent' with llm_call_count 0 has no metrics",
    "no time": r"steps\[1\]\.timestamp: 'yesterday' is not a time in ISO 8601",
    "a part without its source": r"steps\[1\]\.message",
    "a message of null": r"steps\[1\]\.message",
    "no reference": r"subagent_trajectory_ref\[0\]: a reference needs a trajectory_id or a trajectory_path",
    "an agent twice": r"subagent_trajectories\[1\]\.trajectory_id 'sub' occurs twice",
}


@pytest.mark.parametrize("name", _BROKEN)
def test_a_broken_rule_is_refused_with_the_path_of_the_field(name: str) -> None:
    with pytest.raises((Invalid, Incompatible), match=_REASONS[name]):
        read_document(orjson.dumps(_changed(_BROKEN[name])))


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"steps": []}', "agent: Field required; steps: List should have"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b'{"steps": [{"metrics": {"logprobs": [-1, NaN]}}]}', r"steps\[0\]\.metrics\.logprobs\[1\]: NaN and infinite"),
        (b'{"extra": {"a": -Infinity}}', r"extra\.a: NaN and infinite"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_files_of_something_else_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        read_document(content)


def test_older_versions_and_python_json_are_read() -> None:
    for version in ("ATIF-v1.0", "ATIF-v1.8"):
        text = json.dumps({**TRAJECTORY, "schema_version": version, "notes": "\ud83d"})
        assert read_document(text.encode())["schema_version"] == version
    assert "schema_version" not in read_document(
        orjson.dumps({name: value for name, value in TRAJECTORY.items() if name != "schema_version"})
    )


_VALUES: tuple[Any, ...] = (None, 0, -1, 1.5, "", "x", [], {}, [None], [{}], {"a": 1}, True, ["a"], 2**70)


def test_a_document_with_any_changed_value_is_read_or_refused() -> None:
    documents = [json.loads(orjson.dumps(record(*spans).document())) for spans in ATTEMPTS.values()]
    numbers = random.Random(1)
    read = 0
    for _ in range(500):
        document = copy.deepcopy(numbers.choice([*documents, TRAJECTORY]))
        part, place = numbers.choice([*_places(document)])
        part[place] = numbers.choice(_VALUES)
        with contextlib.suppress(StoreError):
            content = read_document(json.dumps(document).encode())
            if is_own(content):
                own_attempt(content)
            else:
                ForeignSpans("trace", str).add(content)
            read += 1
    assert 100 < read < 400


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the objects and lists in a value with each of their keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for place, item in list[tuple[Any, Any]](items):  # pyright: ignore[reportUnknownArgumentType]
        yield value, place
        yield from _places(item)
