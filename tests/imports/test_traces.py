"""Traces of verifiers and prime-rl. The files in `data` were written by verifiers 0.4.0 with its own types."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from store.adapters.messages import TraceToMessages
from store.adapters.triplets import TracerTraceToTriplet
from store.errors import Invalid, NotFound
from store.imports import ForeignRollout, Skipped, import_rollouts
from store.imports.traces import SOURCE, TraceFolder, read_traces, records_of_line
from store.interface.store import Store
from store.model_calls import call_of
from store.models import AttemptedRollout, Span

DATA = Path(__file__).with_name("data")
Json = dict[str, Any]


def rollouts_of(line: Json | bytes) -> list[ForeignRollout | Skipped]:
    text = line if isinstance(line, bytes) else orjson.dumps(line) + b"\n"
    return list(records_of_line(text, "file:1", TraceFolder()))


def spans_in(line: Json) -> list[Span]:
    (record,) = rollouts_of(line)
    assert isinstance(record, ForeignRollout), record
    return list(record.spans)


def reason(line: Json | bytes) -> str:
    (record,) = rollouts_of(line)
    assert isinstance(record, Skipped), record
    return record.reason


def line_of(file: str, number: int = 0) -> Json:
    return json.loads((DATA / file).read_text().splitlines()[number])


EVALUATION = "evaluation/traces.jsonl"
TRAINING = "training/rollouts/step_1/train/all/traces.jsonl"


async def test_traces_become_rollouts_with_their_rewards_groups_steps_and_errors(store: Store) -> None:
    report = await import_rollouts(store, read_traces(DATA), source=SOURCE)
    assert (report.imported, report.extended, report.spans, report.skips) == (9, 3, 36, [])
    again = await import_rollouts(store, read_traces(DATA), source=SOURCE)
    assert (again.unchanged, again.spans) == (12, 0)
    rollouts = {
        rollout.metadata["rollbook.source"]["key"]: rollout
        for rollout in await store.query_rollouts()
        if rollout.metadata
    }

    def fields(key: str) -> tuple[Any, ...]:
        rollout = rollouts[key]
        assert isinstance(rollout, AttemptedRollout)
        metadata = rollout.metadata or {}
        numbers = metadata.get("rollbook.group"), metadata.get("rollbook.step")
        return rollout.status, rollout.attempt.status, rollout.mode, *numbers, rollout.rewards

    rewards = {"primary": 1.1, "correct": 1.0, "brief": 0.5}
    assert fields("a" * 32) == ("succeeded", "succeeded", "test", "math-1", None, rewards)
    assert fields("b" * 32) == ("failed", "failed", "test", "math-2", None, {})
    assert fields("1" * 32) == ("succeeded", "succeeded", "train", "g-5", 1, {"primary": 1.0, "correct": 1.0})
    assert fields("3" * 32) == ("succeeded", "succeeded", "val", "math-5", 2, {"primary": 1.0, "correct": 1.0})
    assert fields(f"episode f3{'0' * 30}") == ("failed", "failed", "train", "g-6", 1, {})
    assert fields("e" * 32)[:3] == ("succeeded", "succeeded", None)
    assert rollouts["a" * 32].input["prompt"] == "What is 2+2?"
    judge = rollouts["d" * 32].metadata or {}
    assert (judge["agent"]["name"], judge["episode"]) == ("judge", f"e3{'0' * 30}")


def test_calls_tools_and_messages_of_a_trace_become_spans() -> None:
    agent, first, tool, second, message, reward = spans_in(line_of(EVALUATION))
    assert (agent.name, agent.parent_id, first.parent_id) == ("agent", None, agent.span_id)
    assert (first.start_time, first.end_time) == (1_790_000_000.4, 1_790_000_001.4)
    call = call_of(first.attributes)
    assert [(part.role, part.text) for part in call.messages] == [("system", "Be brief."), ("user", "What is 2+2?")]
    (answer,) = call.answers
    (use,) = answer.tool_calls
    assert (answer.thinking, use.name, use.text) == ("I add.", "add", '{"a": 2, "b": 2}')
    assert (call.usage.prompt, call.usage.completion, call.usage.cached, call.usage.reasoning) == (30, 8, 10, 3)
    assert (call.model, call.choices[0].finish_reason) == ("qwen3-4b", "tool_calls")
    assert call.settings == {"temperature": 0.7, "max_tokens": 64}
    assert [use["name"] for use in call.tools] == ["add"]
    assert (tool.name, tool.attributes["gen_ai.tool.call.result"], tool.start_time) == ("add", "4", second.start_time)
    assert [part.role for part in call_of(second.attributes).messages] == ["system", "user", "assistant", "tool"]
    assert message.attributes["agentlightning.message.body"] == "Thank you."
    assert (reward.start_time, reward.attributes["verifiers.weight.brief"]) == (1_790_000_003.5, 0.2)


def test_branches_of_a_trace_become_triplets_with_token_ids_and_policy_version() -> None:
    spans = spans_in(line_of(TRAINING))
    triplets = TracerTraceToTriplet().adapt(spans)
    assert [(triplet.prompt["token_ids"], triplet.response["token_ids"]) for triplet in triplets] == [
        ([1, 2, 3, 4], [11, 12]),
        ([1, 2, 3, 4, 11, 12, 5, 6, 4], [13]),
        ([1, 7, 4], [14, 15, 16]),
    ]
    assert [token["logprob"] for token in triplets[0].response["logprobs"]] == [-0.1235, -0.5]
    assert [triplet.reward for triplet in triplets] == [None, None, 1.0]
    assert {triplet.metadata["model_version"] for triplet in triplets} == {"1"}
    roles = [[message["role"] for message in line["messages"]] for line in TraceToMessages().adapt(spans)]
    assert roles == [["user", "assistant"], ["user", "assistant"] * 2, ["user", "assistant"]]


@pytest.mark.parametrize("order", [("all", "effective"), ("effective", "all")])
async def test_a_trace_in_both_folders_is_one_rollout_with_its_advantages(
    sqlite_store: Store, order: tuple[str, str]
) -> None:
    for subset in order:
        folder = DATA / "training/rollouts/step_2/train" / subset
        report = await import_rollouts(sqlite_store, read_traces(folder), source=SOURCE)
        assert report.skips == []
    (rollout,) = [item for item in await sqlite_store.query_rollouts() if item.reward == 0.0]
    (credit,) = await sqlite_store.query_spans(rollout.rollout_id, name="training.credit")
    assert credit.attributes == {
        "node.1.advantages": [-0.5, -0.5],
        "node.3.advantages": [-0.5],
        "node.5.advantages": [-0.5] * 3,
        "training.step": 2,
    }
    assert (await sqlite_store.query_spans(rollout.rollout_id)).total == 6


def changed(change: Callable[[Json], Any], file: str = TRAINING) -> Json:
    line = line_of(file)
    change(line["traces"][0])
    return line


@pytest.mark.parametrize(
    "line, expected",
    [
        (b'{"id": "x", "traces": [{"id"', "not complete"),
        (b'{"id": "x", "traces": [{"id"\n', "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[1, 2]\n", "neither an episode nor a trace"),
        (b'{"prompt": [], "completion": [], "reward": 1.0}\n', "neither an episode nor a trace"),
        (changed(lambda trace: trace.update(version=2)), "version"),
        (changed(lambda trace: trace["nodes"][1].update(parent=1)), r"nodes[1].parent"),
        (changed(lambda trace: trace["nodes"][1].update(parent="0")), r"nodes[1].parent"),
        (changed(lambda trace: trace["calls"][1].update(node=99)), r"calls[1].node"),
        (changed(lambda trace: trace["nodes"].append(None)), "nodes"),
    ],
)
def test_a_line_that_is_no_trace_is_skipped_with_the_reason(line: Json | bytes, expected: str) -> None:
    assert expected in reason(line)


def test_a_malformed_trace_of_an_episode_does_not_affect_the_others() -> None:
    line = line_of(EVALUATION, 2)
    line["traces"][0]["nodes"] = [None]
    line["traces"].append(None)
    skip, rollout, none = rollouts_of(line)
    assert isinstance(skip, Skipped)
    assert isinstance(rollout, ForeignRollout)
    assert skip.place == "file:1, trace 1"
    assert none == Skipped(place="file:1, trace 3", reason="the trace is no object")


def test_an_episode_that_was_appended_to_an_incomplete_line_is_read() -> None:
    whole = (DATA / TRAINING).read_bytes().splitlines(keepends=True)[0]
    skip, rollout = rollouts_of(whole[:700] + whole)
    assert isinstance(skip, Skipped)
    assert isinstance(rollout, ForeignRollout)
    assert (skip.place, rollout.key) == ("file:1", "1" * 32)


def _nodes(**fields: Any) -> Callable[[Json], Any]:
    return lambda trace: [node.update(fields) for node in trace["nodes"]]


def _calls(**fields: Any) -> Callable[[Json], Any]:
    return lambda trace: [call.update(fields) for call in trace["calls"]]


ODD: list[Callable[[Json], Any]] = [
    lambda trace: trace.update(calls=None, tools=3, timing=[], agent="a", rewards=[1], metrics=None),
    _nodes(token_ids="x", mask=None, logprobs={}, timestamp="now"),
    _nodes(message=None),
    _nodes(message={"role": 1, "content": {"a": [1]}, "tool_calls": [3, {}]}),
    _calls(usage={"prompt_tokens": -1.5}, time=1, sampling=[], error="x"),
    lambda trace: trace.update(errors=[{"type": "E" * 999, "message": "\x00\ud800" * 999}], ok=False),
    lambda trace: trace.update(rewards={"a": {"score": "NaN"}, "primary": {"score": 1}, "b\x00": {"score": 2}}),
    lambda trace: trace.update(id=None, task=None, a_field_of_next_year={"x": [1]}),
    lambda trace: trace["nodes"][0]["message"].update(content="half \ud83d an emoji \x00"),
]


@pytest.mark.parametrize("change", ODD)
async def test_a_trace_with_odd_values_is_imported(sqlite_store: Store, change: Callable[[Json], Any]) -> None:
    line = json.dumps(changed(change)).encode() + b"\n"
    report = await import_rollouts(sqlite_store, rollouts_of(line), source=SOURCE)
    assert (report.imported, report.skips) == (1, [])
    (rollout,) = await sqlite_store.query_rollouts()
    assert rollout.status in {"succeeded", "failed"}


def test_unknown_fields_are_kept_in_the_metadata() -> None:
    (record,) = rollouts_of(changed(lambda trace: trace.update(a_field_of_next_year={"x": [1]})))
    assert isinstance(record, ForeignRollout)
    assert (record.metadata or {})["further"] == {"a_field_of_next_year": {"x": [1]}}


def test_a_reward_that_is_not_finite_is_left_out_and_named() -> None:
    rewards = {"a": {"score": "NaN"}, "b": {"score": 2}}
    *_, reward = spans_in(changed(lambda trace: trace.update(rewards=rewards)))
    assert reward.attributes["agentlightning.reward.0.value"] == 2
    assert "reward a" in str(reward.attributes["rollbook.changed"])


def test_a_token_that_was_not_sampled_is_marked_within_a_response() -> None:
    def change(trace: Json) -> None:
        trace["nodes"][5].update(mask=[False, True, False, True], logprobs=[-0.1, -0.3])

    call = spans_in(changed(change))[3]
    assert call.attributes["response_token_ids"] == [14, 15, 16]
    assert call.attributes["response_mask"] == [True, False, True]
    assert [token["logprob"] for token in json.loads(str(call.attributes["logprobs.content"]))] == [-0.1, 0.0, -0.3]


def test_a_path_without_traces_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        list(read_traces(tmp_path / "missing"))
    with pytest.raises(Invalid, match=r"no file .* is named traces\.jsonl"):
        list(read_traces(tmp_path))
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(Invalid, match="old version of verifiers"):
        list(read_traces(tmp_path))
    with pytest.raises(Invalid, match="no episode and no trace"):
        list(read_traces(tmp_path / "results.jsonl"))
    (tmp_path / "traces.jsonl").write_text("")
    assert list(read_traces(tmp_path)) == []


def test_files_are_read_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (10, 9):
        file = tmp_path / f"step_{step}/train/all/traces.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(f"step {step}")
    assert [Path(record.place).parts[-4] for record in read_traces(tmp_path)] == ["step_9", "step_10"]
