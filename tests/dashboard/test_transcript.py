"""Transcripts: each message once and in order, and long texts truncated."""

from __future__ import annotations

from typing import Any

from store.dashboard.views.transcript import BUDGET, LONGEST, Entry, transcript
from store.models import Event, Span, TraceStatus


def _span(number: int, name: str = "step", *, start: float | None = None, **attributes: Any) -> Span:
    began = 100.0 + number if start is None else start
    return Span.from_attributes(
        attributes={name.replace("__", "."): value for name, value in attributes.items()},
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=number,
        span_id=f"{number:016x}",
        name=name,
        start_time=began,
        end_time=began + 0.5,
    )


def _call(number: int, asked: list[str], answer: str, response: str | None = None, **more: Any) -> Span:
    attributes: dict[str, Any] = {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": answer}
    for place, text in enumerate(asked):
        attributes[f"gen_ai.prompt.{place}.role"] = "user" if place % 2 == 0 else "assistant"
        attributes[f"gen_ai.prompt.{place}.content"] = text
    attributes["gen_ai.response.id"] = response or f"resp-{number}"
    span = _span(number, "openai.chat.completion", **more)
    return span.model_copy(update={"attributes": attributes | dict(span.attributes)})


def _texts(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.title, entry.text.shown if entry.text else "") for entry in entries]


def test_messages_repeated_by_a_later_call_are_shown_once() -> None:
    entries = transcript([_call(1, ["one"], "two"), _call(2, ["one", "two", "three"], "four")])
    assert _texts(entries) == [("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]
    assert [entry.skipped for entry in entries] == [0, 0, 2, 0]
    assert [entry.is_answer for entry in entries] == [False, True, False, True]


def test_separate_conversation_is_shown_from_its_beginning() -> None:
    entries = transcript([_call(1, ["one"], "two"), _call(2, ["other", "two"], "x"), _call(3, ["one", "two"], "y")])
    assert [text for _, text in _texts(entries)] == ["one", "two", "other", "two", "x", "y"]


def test_a_second_span_of_the_same_answer_is_one_line() -> None:
    of_proxy = _call(2, ["one"], "two", "resp", start=101.1, agl__call__backend="vllm")
    entries = transcript([_call(1, ["one"], "two", "resp"), of_proxy])
    assert [entry.kind for entry in entries] == ["message", "message", "same"]


def test_transcript_has_both_of_two_calls_with_one_response_id() -> None:
    entries = transcript([_call(1, ["one"], "two", "resp"), _call(2, ["three"], "four", "resp")])
    assert [text for _, text in _texts(entries)] == ["one", "two", "three", "four"]


def test_a_call_has_the_messages_and_tokens_of_all_spans_that_recorded_it() -> None:
    bare = _span(1, "chat", gen_ai__response__id="resp")
    entries = transcript([bare, _call(2, ["one"], "two", "resp", gen_ai__usage__input_tokens=3)])
    assert [(entry.kind, entry.sequence_id) for entry in entries] == [("message", 1), ("message", 1), ("same", 2)]
    assert _texts(entries)[:2] == [("user", "one"), ("assistant", "two")]
    assert entries[1].tokens_in == 3


def test_entries_go_by_the_time_they_began() -> None:
    entries = transcript([_span(1, "late", start=9.0), _span(2, "early", start=3.0)])
    assert [entry.title for entry in entries] == ["early", "late"]


def test_a_parent_comes_before_children_that_start_at_the_same_time() -> None:
    start, agent = 100.0, f"{3:016x}"
    spans = [
        _span(1, "first", start=start).model_copy(update={"parent_id": agent}),
        _span(2, "second", start=start).model_copy(update={"parent_id": agent}),
        _span(3, "agent", start=start).model_copy(update={"parent_id": agent}),
    ]
    assert [entry.title for entry in transcript(spans)] == ["agent", "first", "second"]


def test_tools_rewards_logs_and_other_spans_have_distinct_kinds() -> None:
    spans = [
        _span(1, "search", tool__name="search", tool__parameters="{}", tool__result="found"),
        _span(2, "agentlightning.annotation", agentlightning__reward__0__value=0.5),
        _span(3, "agentlightning.message", agentlightning__message__body="said"),
        _span(4, "index"),
    ]
    entries = transcript(spans)
    assert [entry.kind for entry in entries] == ["tool", "reward", "log", "span"]
    assert entries[0].result is not None
    assert entries[0].result.shown == "found"
    assert entries[1].rewards == (("primary", 0.5),)


def test_a_failed_span_says_why() -> None:
    thrown = Event(name="exception", attributes={"exception.type": "KeyError", "exception.message": "'k'"})
    failed = _span(1).model_copy(update={"events": [thrown], "status": TraceStatus(status_code="ERROR")})
    entries = transcript([failed])
    assert [(entry.kind, entry.title) for entry in entries] == [("span", "step"), ("error", "KeyError")]
    assert entries[1].text is not None
    assert entries[1].text.shown == "'k'"


def test_a_long_text_is_cut_unless_its_span_is_named() -> None:
    span = _call(1, ["x" * (LONGEST + 1)], "short")
    cut, full = transcript([span]), transcript([span], full=[span.span_id])
    assert cut[0].text is not None
    assert (len(cut[0].text.shown), cut[0].text.length, cut[0].text.is_cut) == (LONGEST, LONGEST + 1, True)
    assert full[0].text is not None
    assert not full[0].text.is_cut


def test_a_page_keeps_to_its_budget_however_much_there_is() -> None:
    spans = [_call(number, [f"{number} " + "x" * LONGEST], "y" * LONGEST) for number in range(1, 201)]
    entries = transcript(spans)
    length = sum(len(entry.text.shown) for entry in entries if entry.text)
    assert len(entries) == 400
    assert length < BUDGET + 400 * 301


def test_invalid_reward_is_a_separate_entry() -> None:
    (entry,) = transcript([_span(1, "agentlightning.annotation", agentlightning__reward__0__value="NaN")])
    assert (entry.kind, entry.rewards, entry.invalid_rewards) == ("reward", (), (("primary", "NaN"),))
