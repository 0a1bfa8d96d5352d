"""Documents of attempts: they follow ATIF, say what the attempt did, and become the same spans again."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from store.atif.reading import own_attempt
from store.atif.schema import read_document
from store.model_calls import Protocol, attributes_of
from store.model_calls.attributes import CALL_SPAN
from store.models import Span
from tests.atif import harbor
from tests.atif.attempts import ATTEMPTS, SYSTEM, chat, record, span, use, user
from tests.model_calls.corpus import CORPUS
from tests.model_calls.facts import call_of_response, call_of_stream, reader_of


def _document(*spans: Span, **fields: Any) -> dict[str, Any]:
    """Return a document as it is read from a file."""
    return json.loads(orjson.dumps(record(*spans, **fields).document()))


@pytest.mark.parametrize("name", ATTEMPTS)
def test_spans_of_a_document_equal_those_it_was_made_of(name: str) -> None:
    spans = ATTEMPTS[name]
    document = read_document(orjson.dumps(record(*spans).document()))
    restored = own_attempt(document).spans
    assert [_fields(one) for one in restored] == [_fields(one) for one in spans]


@pytest.mark.parametrize("protocol", [protocol for protocol in Protocol if protocol is not Protocol.EMBEDDINGS])
def test_calls_of_every_protocol_survive(protocol: Protocol) -> None:
    calls = [
        call
        for entry in CORPUS
        if entry.protocol == protocol
        for call in (
            *([call_of_response(entry)] if entry.response is not None else []),
            *([call_of_stream(entry, reader_of(entry, *entry.frames))] if entry.frames else []),
        )
    ]
    spans = [span(number, attributes_of(call), name=CALL_SPAN) for number, call in enumerate(calls, 1)]
    document = json.loads(orjson.dumps(record(*spans).document()))
    harbor.check(document)
    assert [_fields(one) for one in own_attempt(document).spans] == [_fields(one) for one in spans]


def _fields(span: Span) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return a span for a comparison in which 1, 1.0 and True differ, and which ignores the order of attributes."""
    fields = span.model_dump(exclude={"rollout_id", "attempt_id"})
    return fields, sorted((name, repr(value)) for name, value in span.attributes.items())


def test_steps_are_the_conversation() -> None:
    document = _document(*ATTEMPTS["a tool user"])
    steps = document["steps"]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent", "user", "agent"]
    first, second, last = steps[2], steps[3], steps[5]
    assert (first["reasoning_content"], first["reasoning_effort"]) == ("Hm.", "high")
    assert first["tool_calls"][0]["arguments"] == {"x": 1, "y": [1.0, None]}
    assert first["observation"]["results"] == [{"source_call_id": "c1", "content": "seen"}]
    assert first["metrics"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "cached_tokens": 4,
        "prompt_token_ids": [0],
        "completion_token_ids": [7, 8, 0],
        "logprobs": [-0.5, -1, -0.25],
    }
    assert [call["arguments"] for call in second["tool_calls"]] == [{}, {}]
    assert second["tool_calls"][1]["extra"]["rollbook"] == {"arguments": "not JSON"}
    assert [one["content"] for one in second["observation"]["results"]] == ["", "both"]
    assert last["observation"]["results"][0]["content"] == "late"
    assert document["agent"]["tool_definitions"][0]["function"]["name"] == "look"
    assert document["agent"]["model_name"] == "qwen-2"
    assert all(step.get("llm_call_count") == (1 if step["source"] == "agent" else None) for step in steps)
    assert document["final_metrics"] == {
        "total_prompt_tokens": 80,
        "total_completion_tokens": 9,
        "total_cached_tokens": 12,
        "total_steps": 6,
    }


def test_a_prompt_is_stored_once_for_all_calls_that_repeat_it() -> None:
    text = "long " * 1000
    messages: list[dict[str, Any]] = [SYSTEM, user(text)]
    spans: list[Span] = []
    for number in range(1, 9):
        answer = use(f"c{number}", '{"a": 1}', reasoning_content="because " * 1000)
        spans.append(chat(number, [*messages], answer))
        messages += [use(f"c{number}", '{"a": 1}'), {"role": "tool", "tool_call_id": f"c{number}", "content": "r"}]
    content = orjson.dumps(record(*spans).document())
    assert content.count(text.encode()) == 1
    assert content.count(b"because " * 1000) == 8
    assert len(_document(*spans)["steps"]) == 10


def test_branches_are_embedded_and_copied_steps_are_not_training_data() -> None:
    document = _document(*ATTEMPTS["branches"])
    texts = [[step["message"] for step in document["steps"]]]
    texts += [[step["message"] for step in one["steps"]] for one in document["subagent_trajectories"]]
    assert texts == [
        ["Be brief.", "u", "one", "w", "two", "x", "three"],
        ["Be brief.", "u", "one", "v", "three"],
        ["another agent", ""],
        ["few", "one", "shots", "two"],
    ]
    branch, _, shots = document["subagent_trajectories"]
    assert [step.get("is_copied_context") for step in branch["steps"]] == [True, True, True, None, None]
    assert [step.get("is_copied_context") for step in shots["steps"]] == [None, True, None, None]
    assert [one["trajectory_id"] for one in document["subagent_trajectories"]] == ["at/2", "at/3", "at/4"]
    # Each of the answered calls is one step, and the call that failed is none.
    calls = [step for one in (document, *document["subagent_trajectories"]) for step in one["steps"]]
    assert sum("llm_call_count" in step for step in calls) == 6


def test_values_of_all_recorders_of_a_call_are_in_its_step() -> None:
    document = _document(*ATTEMPTS["several recorders"])
    _, step = document["steps"]
    assert step["metrics"]["completion_token_ids"] == [7, 8, 0]
    assert (step["metrics"]["cost_usd"], document["final_metrics"]["total_cost_usd"]) == (0.25, 0.25)
    assert len(step["extra"]["rollbook"]["spans"]) == 2
    assert [one["span"]["name"] for one in document["extra"]["rollbook"]["spans"]] == ["agentlightning.annotation"]


def test_images_are_parts_only_with_an_address() -> None:
    first, *others = (document["steps"][0]["message"] for document in _trajectories(_document(*ATTEMPTS["media"])))
    assert first == [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "source": {"media_type": "image/png", "path": "https://example.org/a.png"}},
    ]
    assert others[0] == "What is this?"


def _trajectories(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [document, *document.get("subagent_trajectories", ())]


def test_an_attempt_without_calls_has_its_task_as_a_step() -> None:
    (step,) = _document(span(1, {}))["steps"]
    assert (step["source"], step["message"]) == ("user", '{"task":1}')


def test_logprobs_that_do_not_fit_the_tokens_are_left_out() -> None:
    answer = {"role": "assistant", "content": "x"}
    for values in ("[-1, -2]", '[-1, null, "x"]'):
        document = _document(chat(1, [user("u")], answer, attributes={"logprobs.content": values}))
        step = document["steps"][1]
        assert "logprobs" not in step["metrics"]
        assert step["extra"]["rollbook"]["spans"][0]["span"]["attributes"]["logprobs.content"] == values
