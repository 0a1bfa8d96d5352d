"""Usage of models and of tools: sums of the index, on both databases and over HTTP, and costs from prices."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store.client import HTTPStore
from store.db.index_place import indexable
from store.db.queries.rollout_list import RolloutListQuery, rollout_page
from store.db.queries.usage import RolloutTools
from store.domain.usage import UsageNumbers
from store.errors import Invalid
from store.indexing.following import IndexFollower
from store.indexing.usage_index import UsageIndex
from store.interface.store import Store
from store.models import (
    LLM,
    Attempt,
    ModelPrice,
    PriceTable,
    RolloutConfig,
    RunEvent,
    TraceStatus,
    UsageQuery,
    UsageReport,
    UsageSum,
)
from store.models.missing_rewards import MissingReward
from store.models.prices import cost_text
from store.models.usage import UsageKey
from store.operations import Redaction, redact
from store.semconv import FEEDS
from store.sql.store import SQLStore
from store.sql.usage import usage_of_rollouts
from store.testing.samples import make_span
from tests.client.served import Served

_numbers = itertools.count(1)

BOTH = pytest.mark.parametrize(
    "durable_url,writer",
    [("sqlite", "in process"), ("postgres", "in process"), pytest.param("sqlite", "http", marks=pytest.mark.http)],
    indirect=True,
)


@pytest.fixture
async def writer(request: pytest.FixtureRequest, store: SQLStore) -> AsyncIterator[Store]:
    if request.param == "in process":
        yield store
        return
    with Served() as server, server.serving(store) as url:
        async with HTTPStore(url) as client:
            yield client


FEEDS_OF_USAGE = [FEEDS[name][0] for name in UsageNumbers._fields]


async def record(store: Store, attempt: Attempt, *spans: dict[str, Any]) -> None:
    """Record spans with these attributes."""
    for attributes in spans:
        number = next(_numbers)
        await store.add_span(make_span(attempt, number, span_id=f"span-{number}", attributes=attributes))


async def drop(store: SQLStore) -> None:
    """Drop the index of usage."""
    follower = IndexFollower(store.core.dialect, store.store_id, UsageIndex())
    await store.core.thread.run(follower.drop())
    await store.core.thread.run(follower.close())


def gen_ai(model: str, tokens_in: int, tokens_out: int, response_id: str | None = None) -> dict[str, Any]:
    named = {} if response_id is None else {"gen_ai.response.id": response_id}
    usage = {"gen_ai.usage.input_tokens": tokens_in, "gen_ai.usage.output_tokens": tokens_out}
    return {**named, **usage, "gen_ai.response.model": model}


async def start(store: Store, step: int, group: str, mode: Any = "train") -> Attempt:
    rollout = await store.start_rollout("task", mode=mode, metadata={"rollbook.step": step, "rollbook.group": group})
    return rollout.attempt


def tool(result: str = "done", **attributes: Any) -> dict[str, Any]:
    """Return the attributes of a span of a tool."""
    return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bash", "tool.result": result, **attributes}


def response(*tools: str, **attributes: Any) -> dict[str, Any]:
    """Return the attributes of a call of a model whose response has tool calls with these ids."""
    parts: list[dict[str, Any]] = [{"type": "tool_call", "id": name, "name": "bash", "arguments": {}} for name in tools]
    return {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": parts}]), **attributes}


async def tools_of(store: SQLStore, rollout_id: str) -> RolloutTools | None:
    """Return the tool calls of a rollout after the index has read the log to its end."""
    used = await usage_of_rollouts(store.core, lambda column: column == rollout_id, waits=True)
    assert used.events_behind == 0
    return used.tools.get(rollout_id)


async def sums(store: Store, by: UsageKey, model: str | None = None, **conditions: Any) -> list[tuple[Any, ...]]:
    report = await store.log.usage(UsageQuery(by=by, **conditions))
    assert report.position == report.head
    return [
        (*row.key.values(), row.model, row.source, row.calls, row.tokens_in, row.tokens_out)
        for row in report.sums
        if model in (None, row.model)
    ]


@BOTH
async def test_usage_is_summed_by_each_division(writer: Store) -> None:
    await writer.update_resources("prompts", {"system": LLM(endpoint="http://v1", model="m")})
    one = await start(writer, 10, "a")
    await writer.update_resources("prompts", {"system": LLM(endpoint="http://v2", model="m")})
    two, validation = await start(writer, 10, "b"), await start(writer, 15, "b", "val")
    await record(writer, one, gen_ai("small", 100, 10), gen_ai("large", 50, 5))
    await record(writer, two, gen_ai("small", 200, 20), {"gen_ai.response.id": "r-1"})
    await record(writer, validation, gen_ai("small", 300, 30))
    assert await sums(writer, "all") == [
        ("small", "counted", 3, 600, 60),
        ("large", "counted", 1, 50, 5),
        (None, "unknown", 1, None, None),
    ]
    assert await sums(writer, "step", model="small") == [
        (10, "small", "counted", 2, 300, 30),
        (15, "small", "counted", 1, 300, 30),
    ]
    assert await sums(writer, "group", model="small") == [
        ("b", "small", "counted", 2, 500, 50),
        ("a", "small", "counted", 1, 100, 10),
    ]
    assert await sums(writer, "version", model="small") == [
        ("prompts", 1, "small", "counted", 1, 100, 10),
        ("prompts", 2, "small", "counted", 2, 500, 50),
    ]
    assert await sums(writer, "mode", model="small") == [
        ("train", "small", "counted", 2, 300, 30),
        ("val", "small", "counted", 1, 300, 30),
    ]
    assert await sums(writer, "model", model="small") == [("small", "small", "counted", 3, 600, 60)]
    assert await sums(writer, "group", model="small", limit=1) == [("b", "small", "counted", 2, 500, 50)]
    assert await sums(writer, "step", model="small", limit=1, offset=1) == [(15, "small", "counted", 1, 300, 30)]
    assert await sums(writer, "all", rollout_id_in=[validation.rollout_id]) == [("small", "counted", 1, 300, 30)]
    assert await sums(writer, "mode", group_in=["b"], filter_logic="or", step_in=[10], model="large") == [
        ("train", "large", "counted", 1, 50, 5)
    ]
    assert await sums(writer, "all", step_in=[10], mode_in=["train"], group_in=["b"], model="small") == [
        ("small", "counted", 1, 200, 20)
    ]
    with pytest.raises(Invalid, match="as_at"):
        await writer.log.usage(UsageQuery.of(as_at=1))


async def test_call_of_several_spans_counts_once_with_the_cost_that_one_of_them_reports(store: SQLStore) -> None:
    attempt = await start(store, 1, "a")
    await record(store, attempt, gen_ai("m", 30, 7, "r-1"), gen_ai("m", 20, 2, "r-2"))
    assert await sums(store, "all") == [("m", "counted", 2, 50, 9)]
    await record(
        store, attempt, {**gen_ai("m", 30, 9, "r-1"), "gen_ai.usage.cost": 0.5, "gen_ai.usage.cached_tokens": 8}
    )
    await record(store, attempt, gen_ai("m", 30, 7, "r-1"))
    assert await sums(store, "all") == [("m", "reported", 1, 30, 9), ("m", "counted", 1, 20, 2)]
    report = await store.log.usage(UsageQuery())
    assert [(row.tokens_cached, row.cost) for row in report.sums] == [(8, 0.5), (None, None)]
    rollout = await store.get_rollout_by_id(attempt.rollout_id)
    listed = await store.core.look(lambda session: rollout_page(session, RolloutListQuery(), MissingReward()))
    assert rollout is not None
    assert [(row.tokens_in, row.tokens_out) for row in listed.rows] == [(50, 11)]


async def test_openinference_spans_report_tokens_model_and_cost(store: SQLStore) -> None:
    attempt = await start(store, 1, "a")
    names = {"prompt": 40, "completion": 4, "prompt_details.cache_read": 30, "completion_details.reasoning": 3}
    tokens = {f"llm.token_count.{name}": value for name, value in names.items()}
    await record(store, attempt, {**tokens, "llm.model_name": "m", "llm.cost.prompt": 0.25, "llm.cost.completion": 0.5})
    (row,) = (await store.log.usage(UsageQuery())).sums
    assert (row.model, row.source, row.cost) == ("m", "reported", 0.75)
    assert (row.tokens_in, row.tokens_out, row.tokens_cached, row.tokens_reasoning) == (40, 4, 30, 3)
    events = [event for event in await store.log.history(attempt.rollout_id) if event.type == "span.recorded"]
    assert [(event.shape, event.data["cost"]) for event in events] == [(3, 0.75)]


async def test_events_of_a_run_count_unless_its_spans_report_calls(store: SQLStore) -> None:
    attempt = await start(store, 1, "a")
    event = RunEvent(
        kind="result", node_id="n", metrics={"tokens_in": 10.0, "tokens_out": 2, "model": "m", "cost": 0.1}
    )
    await store.runs.append_events(attempt.rollout_id, attempt.attempt_id, [event, event])
    assert await sums(store, "run") == [(attempt.rollout_id, "m", "reported", 2, 20, 4)]
    await record(store, attempt, gen_ai("m", 10, 2))
    await store.runs.append_events(attempt.rollout_id, attempt.attempt_id, [event])
    assert await sums(store, "run") == [(attempt.rollout_id, "m", "counted", 1, 10, 2)]


async def test_tool_call_counts_once_with_its_error(store: SQLStore) -> None:
    expected: list[tuple[list[dict[str, Any]], tuple[int | None, int | None] | None]] = [
        ([], None),
        ([{"agentlightning.reward.0.value": 1.0}], None),
        ([gen_ai("m", 1, 1)], (None, None)),
        ([tool(), tool("exit code: 1"), tool('{"error": "no such file"}')], (3, 2)),
        ([tool(**{"exception.type": "ValueError"})], (1, 1)),
        # Errors are known from spans of tools only.
        ([response("c-1", "c-2")], (2, None)),
        # The spans execute the calls that the response requests.
        ([response("c-1", "c-2"), tool(), tool("exit 2")], (2, 1)),
        ([response("c-1", "c-2", "c-3"), tool()], (3, 0)),
        # The span of an agent repeats the responses of its calls.
        ([response("c-1"), tool(), response("c-1", **{"gen_ai.operation.name": "invoke_agent"})], (1, 0)),
        # Two spans record one call of a model.
        ([response("c-1", **gen_ai("m", 1, 1, "r-1")), response("c-1", **gen_ai("m", 1, 1, "r-1"))], (1, None)),
        ([gen_ai("m", 1, 1, "r-1"), response("c-1", "c-2", **gen_ai("m", 1, 1, "r-1"))], (2, None)),
    ]
    attempts = [await start(store, 1, "a") for _ in expected]
    for attempt, (spans, _) in zip(attempts, expected, strict=True):
        await record(store, attempt, *spans)
    for attempt, (spans, numbers) in zip(attempts, expected, strict=True):
        assert await tools_of(store, attempt.rollout_id) == numbers, spans


async def test_tool_calls_of_all_attempts_are_added_and_unread_payload_makes_them_unknown(
    store: SQLStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.indexing.following.LARGEST_BODY", 20_000)
    options = {"max_attempts": 2, "retry_condition": ["failed"]}
    rollout = await store.start_rollout("task", config=RolloutConfig(**options))  # pyright: ignore[reportArgumentType]
    one = rollout.attempt
    await record(store, one, tool(), tool("exit 1"))
    await store.add_span(make_span(one, 9, status=TraceStatus(status_code="ERROR"), attributes=tool()))
    await store.update_attempt(one.rollout_id, one.attempt_id, status="failed")
    again = await store.dequeue_rollout("worker")
    assert again is not None
    await record(store, again.attempt, response("c-1"), tool())
    assert await tools_of(store, one.rollout_id) == (4, 2)
    large = await start(store, 1, "a")
    await record(store, large, tool(), tool("x" * 30_000))
    assert await tools_of(store, large.rollout_id) == (None, None)
    assert (await store.log.verify()).differences == []
    await redact(store_url, one.rollout_id, Redaction(reason="private", everything=True))
    assert await tools_of(store, one.rollout_id) == (None, None)
    assert (await store.log.verify()).differences == []


async def test_index_of_single_events_equals_the_index_of_all_events(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = random.Random(7)
    attempts = [await start(store, step, f"group {step % 2}") for step in range(4)]
    for _ in range(60):
        usage: dict[str, Any] = {name: choice.randrange(5) for name in FEEDS_OF_USAGE if choice.random() < 0.5}
        usage |= choice.choice([{}, tool(), response(*("c" * choice.randrange(3)))])
        named = {"gen_ai.response.id": f"r-{choice.randrange(4)}"} if choice.random() < 0.7 else {}
        await record(store, choice.choice(attempts), {**usage, **named, "gen_ai.response.model": choice.choice("ab")})
    await store.update_rollout(attempts[0].rollout_id, mode="test")
    whole = [await sums(store, by) for by in ("group", "step", "mode")]
    tools = [await tools_of(store, attempt.rollout_id) for attempt in attempts]
    # A condition that the totals do not answer selects the sums of attempts.
    assert [await sums(store, by, rollout_id_contains="ro-") for by in ("group", "step", "mode")] == whole
    await drop(store)
    monkeypatch.setattr("store.indexing.following.EVENTS_AT_ONCE", 1)
    report = await store.log.usage(UsageQuery())
    while report.position < report.head:
        report = await store.log.usage(UsageQuery())
    assert [await sums(store, by) for by in ("group", "step", "mode")] == whole
    assert [await tools_of(store, attempt.rollout_id) for attempt in attempts] == tools
    assert None not in tools


async def test_usage_remains_after_its_payload_was_removed(store: SQLStore, store_url: str) -> None:
    attempt = await start(store, 1, "a")
    await record(store, attempt, gen_ai("m", 30, 7, "r-1"))
    before = await sums(store, "all")
    await redact(store_url, attempt.rollout_id, Redaction(reason="private", everything=True))
    assert await sums(store, "all") == before
    assert await sums(store, "all", rollout_id_in=[attempt.rollout_id]) == before
    await drop(store)
    assert await sums(store, "all") == before


async def test_verification_reports_sums_that_do_not_follow_from_the_log(store: SQLStore) -> None:
    attempt = await start(store, 1, "a")
    await record(store, attempt, gen_ai("m", 30, 7, "r-1"), tool())
    await sums(store, "all")
    assert (await store.log.verify()).differences == []

    async def change(table: str, column: str, value: int) -> None:
        async with indexable(store.core.dialect).index_place("usage").transaction() as session:
            table = table if not store.core.dialect.schema else f'"{store.core.dialect.schema}".{table}'
            await session.execute(f"UPDATE {table} SET {column} = {value}")

    for table, column, wrong, right in (("usage_sums", "tokens_in", 31, 30), ("usage_tools", "failed", 1, 0)):
        await store.core.thread.run(change(table, column, wrong))
        (difference,) = (await store.log.verify()).differences
        assert (difference.check, difference.key) == ("index usage", attempt.rollout_id)
        await store.core.thread.run(change(table, column, right))


def usage(model: str, **numbers: Any) -> UsageSum:
    basis: Any = "reported" if "cost" in numbers else "counted"
    return UsageSum(key={"step": 1}, model=model, source=basis, calls=2, **numbers)


def report(*rows: UsageSum) -> UsageReport:
    return UsageReport(by="step", sums=list(rows), total=list(rows), keys=1, position=9, head=9)


def test_cost_is_reported_or_follows_from_the_most_exact_price() -> None:
    price = ModelPrice(input=1, output=4)
    prices = PriceTable(models={"m-1": ModelPrice(input=2, output=8, cached_input=0.5, cache_write=3), "m-*": price})
    exact = usage("m-1", tokens_in=1_000_000, tokens_out=500_000, tokens_cached=400_000, tokens_written=100_000)
    assert prices.cost_of(exact) == pytest.approx(0.5 * 2 + 0.4 * 0.5 + 0.1 * 3 + 0.5 * 8)
    assert prices.cost_of(usage("m-2", tokens_in=1_000_000)) == 1.0
    assert prices.cost_of(usage("m-2", tokens_in=1_000_000, cost=0.25)) == 0.25
    assert prices.cost_of(usage("x", tokens_in=1)) is None
    costs = prices.costs(report(exact, usage("m-2", tokens_in=1, cost=0.25), usage("x", tokens_in=7)))
    assert costs.total.cost == pytest.approx(5.75)
    assert (costs.total.priced_calls, costs.total.calls, costs.unpriced_models) == (4, 6, ["x"])
    assert [line.models for line in costs.lines] == [["m-1", "m-2", "x"]]


def test_reported_dollars_are_converted_or_left_out_in_another_currency() -> None:
    row = usage("m", tokens_in=1_000_000, cost=2.0)
    models = {"m": ModelPrice(input=3, output=3)}
    assert PriceTable(currency="EUR", dollar=0.5, models=models).cost_of(row) == 1.0
    assert PriceTable(currency="EUR", models=models).cost_of(row) == 3.0
    assert PriceTable(currency="EUR").cost_of(row) is None


def test_unknown_numbers_stay_unknown_in_sums() -> None:
    costs = PriceTable().costs(report(usage("m", tokens_in=5), usage("n")))
    assert (costs.total.tokens_in, costs.total.tokens_out, costs.total.cost) == (5, None, None)


@pytest.mark.parametrize(
    "text,fault",
    [
        ("[models.m]\ninput = 1", "models.m.output"),
        ("[models.m]\ninput = -1\noutput = 1", "models.m.input"),
        ("[models.m]\ninput = nan\noutput = 1", "models.m.input"),
        ("[models.m]\ninput = 1\noutput = 1\ncached = 1", "models.m.cached"),
        ("price = 1", "price"),
        ("[models", "not TOML"),
    ],
)
def test_invalid_price_is_refused_with_its_place(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(Invalid, match=fault):
        PriceTable.read(path)
    with pytest.raises(Invalid, match="cannot be read"):
        PriceTable.read(tmp_path / "missing.toml")


def test_costs_have_two_decimals_or_three_digits() -> None:
    texts = [cost_text(cost, "USD") for cost in (None, 0.0, 1234.567, 0.5, 0.001234, 1e-30)]
    assert texts == ["–", "0.00 USD", "1,234.57 USD", "0.500 USD", "0.00123 USD", "0.000000000000 USD"]  # noqa: RUF001
