"""Comparison of two rollouts, or of two attempts of one rollout."""

from __future__ import annotations

from typing import Any

import pytest

from store.dashboard.diff.span_paths import compare_paths
from store.dashboard.diff.texts import diff
from store.dashboard.diff.transcripts import MOST_ROWS, MessageRow, SideMessage, compare_messages
from store.dashboard.pages.compare import MOST_PATHS, MOST_READ, speed_text
from store.db.queries.waterfall import SpanRow
from store.interface.store import Store
from store.testing.samples import make_prompt, make_span
from tests.dashboard.page_helpers import HOSTILE, Read
from tests.dashboard.traces import a_span, answered, member
from tests.server.api import Api


async def compared(api: Api, a: str, b: str, query: str = "") -> dict[str, Any]:
    """Return what a comparison shows."""
    return (await api.get(f"//ui/compare.json?a={a}&b={b}{query}")).ok()


def text(segments: list[list[Any]]) -> str:
    return "".join(segment[0] for segment in segments)


def other(segments: list[list[Any]]) -> str:
    """Return what differs in a text."""
    return "".join(segment[0] for segment in segments if segment[1])


async def test_differences_of_two_rollouts_are_marked_from_the_first_place(api: Api, store: Store) -> None:
    one = await member(store, "g", 1.0, "It is forty-two.", worker_id="w-1")
    two = await member(store, "g", 0.0, "It is forty-three.", worker_id="w-2")
    comparison = await compared(api, one.rollout_id, two.rollout_id)
    differing = {fact["name"]: (fact["a"], fact["b"]) for fact in comparison["facts"] if fact["differs"]}
    assert differing["Reward"] == (1.0, 0.0)
    assert differing["Worker"] == ("w-1", "w-2")
    assert "Status" not in differing
    assert "Group" not in differing
    first = next(row for row in comparison["said"] if row["is_first"])
    assert (first["who_a"], text(first["a"]).strip(), other(first["a"])) == ("assistant", "It is forty-two.", "two")
    assert (text(first["b"]).strip(), other(first["b"])) == ("It is forty-three.", "three")
    assert comparison["said_differing"] == 2
    assert comparison["paths_differing"] == 0


async def test_two_attempts_of_one_rollout_are_addressed_by_number(api: Api, store: Store) -> None:
    first = await store.start_rollout("task", config=None)
    await store.add_many_spans([a_span(first, 1, "agent"), a_span(first, 2, "tool", 1, status="ERROR")])
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
    second = await store.start_attempt(first.rollout_id)
    spans = [a_span(second, 1, "agent"), a_span(second, 2, "tool", 1), a_span(second, 3, "chat", 1)]
    await store.add_many_spans([*spans[:2], spans[2].model_copy(update={"attributes": answered("Who?", "Me.")})])
    comparison = await compared(api, f"{first.rollout_id}:1", first.rollout_id)
    assert [side["attempt"] for side in comparison["sides"]] == [1, 2]
    assert [(path["name"], path["depth"], path["change"]) for path in comparison["paths"]] == [
        ("tool", 1, "status"),
        ("chat", 1, "only b"),
    ]
    same = await compared(api, f"{first.rollout_id}:2", f"{first.rollout_id}:{second.attempt.attempt_id}")
    assert (same["said_differing"], same["paths"]) == (0, [])
    everything = await compared(api, f"{first.rollout_id}:2", f"{first.rollout_id}:2", "&all=1")
    assert [path["name"] for path in everything["paths"]] == ["agent", "tool", "chat"]


async def test_a_call_that_agent_and_proxy_recorded_counts_once(api: Api, store: Store) -> None:
    rollout = await store.start_rollout({})
    for number, tokens in ((1, 30), (2, 30), (3, 5)):
        attributes = {"gen_ai.response.id": f"r{number // 3}", "gen_ai.usage.input_tokens": tokens}
        await store.add_span(make_span(rollout.attempt, number, attributes=attributes))
    facts = (await compared(api, rollout.rollout_id, rollout.rollout_id))["facts"]
    assert [(fact["a"], fact["b"]) for fact in facts if fact["name"] == "Tokens in"] == [(35, 35)]


async def test_missing_sides_of_a_comparison_are_not_found(api: Api, store: Store) -> None:
    rollout = await store.enqueue_rollout("task")
    page = Read((await api.get("//ui/compare")).body)
    assert "Enter two rollouts" in page.text
    assert (await api.get(f"//ui/compare.json?a={rollout.rollout_id}&b=nobody")).status == 404
    assert (await api.get(f"//ui/compare.json?a={rollout.rollout_id}:7&b={rollout.rollout_id}")).status == 404
    # Two rollouts without an attempt differ in nothing.
    comparison = await compared(api, rollout.rollout_id, rollout.rollout_id)
    assert (comparison["said_differing"], comparison["paths"]) == (0, [])


async def test_differences_have_sizes_and_only_those_that_matter_are_marked(api: Api, store: Store) -> None:
    resources_id = (await store.add_resources(make_prompt("A"))).resources_id
    one = await member(store, "g", 0.5, resources_id=resources_id)
    await store.update_resources(resources_id, make_prompt("B"))
    two = await member(store, "g", 0.500001, resources_id=resources_id)
    facts = {fact["name"]: fact for fact in (await compared(api, one.rollout_id, two.rollout_id))["facts"]}
    assert (facts["Resources version"]["a"], facts["Resources version"]["b"]) == (1, 2)
    assert facts["Reward"]["difference"] == pytest.approx(1e-6)
    page = Read((await api.get(f"//ui/compare?a={one.rollout_id}&b={two.rollout_id}")).body)
    # The version differs; the rewards are equal as far as three decimals show.
    assert page.marked("class").count("differs") == 1
    assert (speed_text(0.4), speed_text(-0.4)) == ("400 ms slower", "400 ms faster")


async def test_fields_of_up_to_eight_rollouts_are_compared(api: Api, store: Store) -> None:
    rewards = (0.5, 0.5, 0.25, 0.75)
    a, b, *others = [(await member(store, "g", reward)).rollout_id for reward in rewards]
    query = "".join(f"&b={rollout_id}" for rollout_id in others)
    comparison = await compared(api, a, b, query)
    assert [side["rollout_id"] for side in comparison["sides"]] == [a, b, *others]
    reward = next(fact for fact in comparison["facts"] if fact["name"] == "Reward")
    assert (reward["a"], reward["b"], *reward["others"]) == rewards
    assert (reward["differs"], reward["difference"]) == (True, None)
    page = Read((await api.get(f"//ui/compare?a={a}&b={b}{query}")).body)
    assert f"/ui/compare?a={a}&b={others[1]}&b={b}&b={others[0]}" in page.links
    assert (await api.get(f"//ui/compare?a={a}{f'&b={b}' * 8}")).status == 422


async def test_groups_lead_to_the_comparison_of_selections(api: Api, store: Store) -> None:
    rollout = await member(store, "g/1", 1.0)
    await member(store, "g/2", 0.0)
    answer = await api.get("//ui/compare?a=g/1&b=g/2", allow_redirects=False)
    assert (answer.status, answer.headers["location"]) == (303, "/ui/cohorts?a=group%3Dg%252F1&b=group%3Dg%252F2")
    twin = (await api.get("//ui/compare.json?a=g/2&b=" + rollout.rollout_id)).ok()["comparison"]
    assert (twin["reward"]["difference"]["value"], twin["b"]["query"]) == (1.0, f"id={rollout.rollout_id}")


def test_words_of_unrelated_lines_are_not_compared() -> None:
    (row,) = diff("Run the tests before you finish.", "It was the best of times, it was the worst.").rows
    assert ([differs for _, differs in row.old], [differs for _, differs in row.new]) == ([True], [True])
    (row,) = diff("Run the tests before you finish.", "Run all tests before you finish.").rows
    assert [text for text, differs in row.new if differs] == ["all"]


async def test_hostile_words_stay_words(api: Api, store: Store) -> None:
    one, two = await member(store, HOSTILE, 1.0, HOSTILE), await member(store, "g", 1.0, f"{HOSTILE} and more")
    page = Read((await api.get(f"//ui/compare?a={one.rollout_id}&b={two.rollout_id}")).body)
    assert [mark for mark in page.marks if mark.get("src") == "x"] == []
    assert "onerror" in page.text


async def test_long_traces_give_a_page_of_bounded_size(api: Api, store: Store) -> None:
    sides = [await store.start_rollout("x" * 100_000) for _ in range(2)]
    for number, side in enumerate(sides):
        words = f"{number} " + "<b>& " * 1_000
        spans = [
            a_span(side, step, f"{number} step {step}", attributes=answered("Go on", words + str(step)))
            for step in range(1, 2 * MOST_PATHS)
        ]
        await store.add_many_spans(spans)
    answer = await api.get(f"//ui/compare?a={sides[0].rollout_id}&b={sides[1].rollout_id}")
    assert answer.status == 200
    assert len(answer.body) < 2_000_000
    assert "Not all are shown" in Read(answer.body).text


def messages(*words: str) -> list[SideMessage]:
    return [SideMessage("assistant", content, None) for content in words]


def kinds(rows: list[MessageRow]) -> list[str]:
    return [row.kind for row in rows]


def test_equal_messages_are_folded_except_beside_a_difference() -> None:
    diff = compare_messages(messages(*"abcdefg"), messages(*"abcXefg"))
    assert kinds(diff.rows) == ["gap", "same", "changed", "same", "gap"]
    assert (diff.rows[0].skipped, diff.rows[-1].skipped, diff.differing) == (2, 2, 1)
    diff = compare_messages(messages(*"abcdefg"), messages(*"abcXefg"), folds=False)
    assert kinds(diff.rows) == ["same"] * 3 + ["changed"] + ["same"] * 3
    diff = compare_messages(messages(*"abcd"), messages(*"abcde"))
    assert kinds(diff.rows) == ["gap", "same", "only_b"]


def test_message_of_one_side_has_a_row_alone() -> None:
    diff = compare_messages(messages("a", "b", "c"), messages("a", "c"))
    assert kinds(diff.rows) == ["same", "only_a", "same"]
    assert (diff.differing, diff.rows[1].is_first) == (1, True)
    diff = compare_messages([], messages("a"))
    assert (kinds(diff.rows), diff.differing) == (["only_b"], 1)


def test_truncated_messages_with_equal_beginnings_are_not_equal() -> None:
    diff = compare_messages([SideMessage("user", "a", None, 5)], [SideMessage("user", "a", None, 6)])
    assert (kinds(diff.rows), diff.differing) == (["changed"], 1)


def test_omitted_rows_are_counted_and_frequent_messages_are_not_matched() -> None:
    diff = compare_messages(messages(*map(str, range(MOST_ROWS + 5))), messages("x"))
    assert (len(diff.rows), diff.left_out, diff.differing, diff.is_rough) == (MOST_ROWS, 5, MOST_ROWS + 5, False)
    often = messages("first a", *["again"] * 3_000, "last a"), messages("first b", *["again"] * 3_000, "last b")
    assert compare_messages(*often).is_rough


async def test_comparison_states_its_omissions(api: Api, store: Store) -> None:
    sides = [await store.start_rollout("task") for _ in range(2)]
    for number, side in enumerate(sides):
        spans = [
            a_span(side, step, "agentlightning.message", attributes={"agentlightning.message.body": f"{step} {number}"})
            for step in range(1, MOST_READ + 2)
        ]
        await store.add_many_spans(spans)
    address = f"//ui/compare?a={sides[0].rollout_id}&b={sides[1].rollout_id}"
    page = Read((await api.get(address)).body)
    assert "101 more rows are not shown." in page.text
    assert "Only the beginnings of the transcripts are read." in page.text


def row(number: int, name: str, parent: int | None = None, *, seconds: float = 1.0, status: str = "OK") -> SpanRow:
    parent_id = None if parent is None else str(parent)
    return SpanRow(
        number, str(number), parent_id, name, "span", 0.0, seconds, status, number, None, None, None, None
    )  # fmt: skip


def test_paths_mark_steps_that_differ_in_presence_count_status_or_speed() -> None:
    a = [row(1, "agent"), row(2, "plan", 1), row(3, "search", 1), row(4, "write", 1), row(5, "check", 4)]
    b = [
        row(1, "agent"),
        row(2, "search", 1, seconds=2.0),
        row(3, "write", 1, status="ERROR"),
        row(4, "check", 3, seconds=0.5),
        row(5, "check", 1),
        row(6, "agent"),
    ]
    changes = {(path.name, path.depth): path.change for path in compare_paths(a, b)}
    assert changes == {
        ("agent", 0): "count",
        ("plan", 1): "only a",
        ("search", 1): "slower",
        ("write", 1): "status",
        ("check", 2): "faster",
        ("check", 1): "only b",
    }
    assert {path.change for path in compare_paths(a, a)} == {"same"}


def test_paths_of_broken_and_deep_traces_are_found() -> None:
    circle = [row(1, "a", 2), row(2, "b", 1), row(3, "orphan", 99), row(4, "self", 4)]
    assert sorted((path.name, path.depth) for path in compare_paths(circle, [])) == [
        ("a", 1),
        ("b", 0),
        ("orphan", 0),
        ("self", 0),
    ]
    deep = [row(number, "down", number - 1 if number > 1 else None) for number in range(1, 5_001)]
    assert len(compare_paths(deep, deep[::-1])) == 5_000
