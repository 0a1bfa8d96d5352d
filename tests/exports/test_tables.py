"""Rows of the exported tables: what the interface of the store returns, on every kind of store."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from store.adapters.triplets import TracerTraceToTriplet
from store.exports import export_store
from store.exports.records import RolloutRecord
from store.exports.tables import TABLES, tables_of
from store.interface.store import Store
from store.models import Rollout, Span
from store.models.flat_spans import FlatSpan, flat_span
from store.models.queries import RolloutQuery, SpanQuery
from store.semconv import summarise
from tests.exports.agents import call

Lines = dict[str, list[dict[str, Any]]]


async def exported(store: Store, directory: Path, **arguments: Any) -> Lines:
    """Return the rows of all tables."""
    report = await export_store(store, "jsonl", directory, **arguments)
    lines: Lines = {}
    for table in TABLES:
        files = sorted((directory / table.name).glob("*.jsonl"))
        lines[table.name] = [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert report.rows == {name: len(lines[name]) for name in report.rows}
    return lines


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def test_tables_have_the_objects_of_the_store(any_store: Store, tmp_path: Path) -> None:
    lines = await exported(any_store, tmp_path / "all")
    rollouts = await any_store.query_rollouts()
    ids = [rollout.rollout_id for rollout in rollouts]
    assert [row["rollout_id"] for row in lines["rollouts"]] == ids
    for row, rollout in zip(lines["rollouts"], rollouts, strict=True):
        assert (row["input"], row["metadata"], row["rewards"]) == (rollout.input, rollout.metadata, rollout.rewards)
        assert (row["status"], row["mode"], row["reward"]) == (rollout.status, rollout.mode, rollout.reward)
        assert seconds(row["start_time"]) == rollout.start_time
        assert row["labels"] == (await any_store.annotations.query(rollout.rollout_id)).labels
    assert lines["rollouts"][0]["labels"] == ["good, mostly", "reviewed"]
    attempts = [attempt for rollout_id in ids for attempt in await any_store.query_attempts(rollout_id)]
    assert [(row["attempt_id"], row["number"], row["reward"]) for row in lines["attempts"]] == [
        (attempt.attempt_id, attempt.sequence_id, attempt.reward) for attempt in attempts
    ]
    spans = {rollout_id: list(await any_store.query_spans(rollout_id)) for rollout_id in ids}
    flat = [span for of_rollout in spans.values() for span in of_rollout]
    assert [
        (row["span_id"], row["attributes"], row["events"], row["status_message"], row["resource"])
        for row in lines["spans"]
    ] == [
        (
            span.span_id,
            span.attributes,
            [event.model_dump() for event in span.events],
            span.status.description,
            span.resource.model_dump(),
        )
        for span in flat
    ]
    assert [(row["span_id"], row["name"], row["value"]) for row in lines["rewards"] if row["span_id"]] == [
        (span.span_id, name, value) for span in flat for name, value in summarise(span.name, span.attributes).rewards
    ]
    history = [event for rollout_id in ids for event in await any_store.log.history(rollout_id)]
    assert [(row["position"], row["type"], row["data"], row["body"]) for row in lines["events"]] == [
        (event.position, event.type, event.data, event.body) for event in history
    ]
    triplets = [triplet for of_rollout in spans.values() for triplet in TracerTraceToTriplet().adapt(of_rollout)]
    assert [(row["prompt_token_ids"], row["response"], row["reward"]) for row in lines["triplets"]] == [
        (triplet.prompt["token_ids"], triplet.response["raw_content"], triplet.reward) for triplet in triplets
    ]


async def test_scores_of_a_version_replace_the_recorded_rewards(any_store: Store, tmp_path: Path) -> None:
    rollouts = await any_store.query_rollouts(status_in=["succeeded"])
    recorded = await exported(any_store, tmp_path / "recorded")
    query = RolloutQuery(reward_version="exact@v2", reward_min=21)
    scored = await exported(any_store, tmp_path / "scored", query=query)
    ids = [rollout.rollout_id for rollout in rollouts[1:]]
    assert [(row["rollout_id"], row["reward"]) for row in scored["rollouts"]] == [
        (rollout_id, 20 + number) for number, rollout_id in enumerate(ids, start=1)
    ]
    for name in ("rollouts", "attempts"):
        assert {orjson.dumps(row["rewards"].get("length")) for row in scored[name]} == {b"3.0"}
    assert [row["reward"] for row in scored["attempts"]] == [row["reward"] for row in scored["rollouts"]]
    last_rewards = {row["attempt_id"]: row["reward"] for row in scored["triplets"]}
    assert [*last_rewards.values()] == [row["reward"] for row in scored["attempts"]]
    assert [row["reward"] for row in recorded["rollouts"]] == [
        rollout.reward for rollout in await any_store.query_rollouts()
    ]
    for lines in (recorded, scored):
        rows = [row for row in lines["rewards"] if row["rollout_id"] == ids[-1] and row["reward_version"]]
        assert [(row["reward_version"], row["name"], row["value"]) for row in rows] == [
            (f"exact@{version}", name, value)
            for version, primary in (("v1", 10), ("v2", 20))
            for name, value in (("primary", primary + len(ids)), ("length", 3))
        ]
    assert [row for row in recorded["rewards"] if row["rollout_id"] in ids] == scored["rewards"]


async def test_calls_and_messages_refer_to_each_other(store: Store, tmp_path: Path) -> None:
    lines = await exported(store, tmp_path / "all", tables=["model_calls", "messages"])
    last = lines["model_calls"][-1]
    assert (last["call"], last["prompt_messages"], last["choices"], last["finish_reason"]) == (2, 4, 1, "stop")
    assert (last["prompt_tokens"], last["completion_tokens"], last["settings"]) == (30, 5, {"temperature": 0.5})
    assert (last["prompt_token_ids"], last["response_token_ids"]) == (list(range(9)), [7, 8, 9])
    messages = [row for row in lines["messages"] if (row["attempt_id"], row["call"]) == (last["attempt_id"], 2)]
    assert [(row["place"], row["role"], row["content"], row["is_response"]) for row in messages] == [
        (1, "system", "Be brief.", False),
        (2, "user", "What is 6+6?", False),
        (3, "assistant", "", False),
        (4, "tool", "12", False),
        (5, "assistant", "It is 12.", True),
    ]
    (use,) = messages[2]["tool_calls"]
    assert use["function"] == {"name": "add", "arguments": '{"a":6,"b":6}'}
    assert messages[3]["tool_call_id"] == use["id"] == "c1"


def test_a_call_that_two_recorders_saw_is_one_row() -> None:
    attempt = RolloutAttempt("ro", "at")
    prompt, answer = [{"role": "user", "content": "hi"}], {"role": "assistant", "content": "ho"}
    agent = call(attempt, 1, prompt, answer)
    bare = {
        name: value
        for name, value in agent.attributes.items()
        if "token" not in name and not name.startswith("gen_ai.usage")
    }
    agent = agent.model_copy(update={"attributes": bare})
    proxy = call(attempt, 2, prompt, answer, span_id="f" * 16, start_time=agent.start_time, end_time=agent.end_time)
    of_proxy = {**proxy.attributes, "agl.call.backend": "vllm", "gen_ai.response.id": bare["gen_ai.response.id"]}
    proxy = proxy.model_copy(update={"attributes": of_proxy})
    record = recorded(agent, proxy)
    calls, messages = tables_of(["model_calls", "messages"])[::-1]
    (row,) = calls.rows(record)
    fields = dict(zip([column.name for column in calls.columns], row, strict=True))
    assert fields["span_id"] == agent.span_id
    assert orjson.loads(fields["span_ids"]) == [agent.span_id, proxy.span_id]
    assert (fields["prompt_tokens"], fields["response_token_ids"]) == (20, [7, 8, 9])
    assert len(messages.rows(record)) == 2


class RolloutAttempt:
    """The ids of an attempt."""

    def __init__(self, rollout_id: str, attempt_id: str) -> None:
        self.rollout_id, self.attempt_id = rollout_id, attempt_id


def recorded(*spans: Span) -> RolloutRecord:
    """Return a record of a rollout with these spans."""
    rollout = Rollout(rollout_id="ro", input=None, start_time=0.0)
    return RolloutRecord(rollout, 1, spans=[flat_span(span) for span in spans])


async def test_rows_of_spans_are_the_spans(any_store: Store) -> None:
    ids = [rollout.rollout_id for rollout in await any_store.query_rollouts()]
    rows: list[FlatSpan] = []
    query = SpanQuery.of(rollout_id=ids)
    assert await any_store.log.take_spans(query, rows.extend) == len(rows)
    assert rows == [flat_span(span) for span in await any_store.find_spans(query)]
    assert RolloutRecord(Rollout(rollout_id="", input=None, start_time=0), 1, spans=rows).span_models == list(
        await any_store.find_spans(query)
    )
    latest: list[FlatSpan] = []
    position = (await any_store.log.position()).position
    of_latest = SpanQuery.of(rollout_id=ids, attempt_id="latest", as_at=position, limit=3, offset=2)
    await any_store.log.take_spans(of_latest, latest.extend)
    assert latest == [flat_span(span) for span in await any_store.find_spans(of_latest)]
