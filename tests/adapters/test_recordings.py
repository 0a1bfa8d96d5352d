"""Two recordings of one call are joined; two calls with one response id are not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from store.adapters.intake import sort_in
from store.adapters.messages import TraceToMessages
from store.adapters.recordings import group_recordings, repeated_calls
from store.adapters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet
from store.models import Span
from tests.training.traced import agent, call

OURS = {"agl.call.backend": "vllm"}
LITELLM = "litellm_request"
RAW = "raw_gen_ai_request"
ID = "chatcmpl-7"


def answered(
    span_id: str,
    start: float | None,
    end: float | None = None,
    text: str | None = None,
    *,
    tool: tuple[str, str] | None = None,
    is_whole: bool = True,
    scope: str | None = None,
    **where: Any,
) -> Span:
    """A call with an answer. Without `is_whole`, the span has no finish reason."""
    attributes = dict(where.pop("attributes", {}))
    if text is not None:
        attributes |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": text}
    if tool is not None:
        name, arguments = tool
        attributes |= {"gen_ai.completion.0.tool_calls.0.name": name}
        attributes |= {"gen_ai.completion.0.tool_calls.0.arguments": arguments}
    if is_whole and (text is not None or tool is not None):
        attributes["gen_ai.completion.0.finish_reason"] = "stop"
    span = call(span_id, start, end, response_id=where.pop("response_id", ID), attributes=attributes, **where)
    return span if scope is None else span.model_copy(update={"instrumentation_scope": {"name": scope}})


def proxied(span_id: str, start: float | None, end: float | None = None, text: str | None = None, **where: Any) -> Span:
    """The same call in front of the model: recorded by the proxy of this package."""
    return answered(span_id, start, end, text, attributes={**OURS, **where.pop("attributes", {})}, **where)


def groups_of(spans: Sequence[Span]) -> list[str]:
    (attempt,), _ = sort_in(spans)
    return [" ".join(timed.span.span_id for timed in group) for group in group_recordings(attempt.spans)]


def raw(span_id: str, start: float, end: float, response_id: str = ID, **more: Any) -> Span:
    choices = "[{'token_ids': [3], 'message': {'role': 'assistant', 'content': 'A'}, 'finish_reason': 'stop'}]"
    attributes = {"llm.hosted_vllm.id": response_id, "llm.hosted_vllm.choices": choices}
    return call(span_id, start, end, name=RAW, attributes=attributes, **more)


RANDOM_ID = "chatcmpl-0f8a66c1d5f14f0c"
TABLE: dict[str, tuple[list[Span], list[str]]] = {
    "the tracer twice": ([answered("a", 1, 2, "A"), answered("b", 3, 4, "A")], ["a", "b"]),
    "the tracer twice at one time": ([answered("a", 1, 4, "A"), answered("b", 2, 3, "A")], ["a", "b"]),
    "the tracer twice, with tokens only": (
        [answered("a", 1, 4, tokens=([1], [2])), answered("b", 2, 3, tokens=([1], [2]))],
        ["a", "b"],
    ),
    "the proxy twice": ([proxied("a", 1, 2, "A"), proxied("b", 3, 4, "A")], ["a", "b"]),
    "the proxy twice at one time": ([proxied("a", 1, 4, "A"), proxied("b", 2, 3, "A")], ["a", "b"]),
    "proxy and tracer": ([answered("t", 1, 4, "A"), proxied("p", 2, 3, "A")], ["t p"]),
    "proxy and tracer, later": ([answered("t", 1, 2, "A"), proxied("p", 3, 4, "A")], ["t", "p"]),
    "proxy with another clock, within the tolerance": (
        [answered("t", 1, 2, "A"), proxied("p", 2.3, 2.6, "A")],
        ["t p"],
    ),
    "proxy with another clock, outside of the agent": (
        [agent("A", 0, 9, "planner"), answered("t", 1, 2, "A", parent="A"), proxied("p", 301, 302, "A")],
        ["t p"],
    ),
    "proxy with another clock, and random ids": (
        [answered("t", 1, 2, "A", response_id=RANDOM_ID), proxied("p", 0.1, 0.2, "A", response_id=RANDOM_ID)],
        ["p t"],
    ),
    "proxy with another clock, for several calls": (
        [
            *(answered("t1", 1, 2, "A"), answered("t2", 3, 4, "B", response_id="chatcmpl-8")),
            *(proxied("p1", 7.1, 7.9, "A"), proxied("p2", 9.3, 9.9, "B", response_id="chatcmpl-8")),
        ],
        ["t1 p1", "t2 p2"],
    ),
    "other calls later": (
        [
            *(answered("t1", 1, 2, "A"), answered("t2", 3, 4, "B", response_id="chatcmpl-8")),
            *(proxied("p1", 7.1, 7.9, "A"), proxied("p2", 12, 13, "B", response_id="chatcmpl-8")),
        ],
        ["t1", "t2", "p1", "p2"],
    ),
    "other texts": ([answered("t", 1, 4, "A"), proxied("p", 2, 3, "B")], ["t", "p"]),
    "text that only begins alike": ([answered("t", 1, 4, "A"), proxied("p", 2, 3, "AB")], ["t", "p"]),
    "text that was cut off": ([answered("t", 1, 4, "A", is_whole=False), proxied("p", 2, 3, "AB")], ["t p"]),
    "other spaces": ([answered("t", 1, 4, "A b\n"), proxied("p", 2, 3, "A b")], ["t p"]),
    "other tokens": (
        [answered("t", 1, 4, "A", tokens=([1], [2])), proxied("p", 2, 3, "A", tokens=([1], [3]))],
        ["t", "p"],
    ),
    "equal tokens": (
        [answered("t", 1, 4, "A", tokens=([1], [2])), proxied("p", 2, 3, "a", tokens=([1], [2]))],
        ["t p"],
    ),
    "tokens and text": ([answered("t", 1, 4, "A"), proxied("p", 2, 3, tokens=([1], [2]))], ["t p"]),
    "equal tool calls": (
        [answered("t", 1, 4, tool=("f", '{"a": 1}')), proxied("p", 2, 3, tool=("f", '{"a":1}'))],
        ["t p"],
    ),
    "other arguments": (
        [answered("t", 1, 4, tool=("f", '{"a": 1}')), proxied("p", 2, 3, tool=("f", '{"a": 2}'))],
        ["t", "p"],
    ),
    "other tools": ([answered("t", 1, 4, tool=("f", "{}")), proxied("p", 2, 3, tool=("g", "{}"))], ["t", "p"]),
    "text and tool call": ([answered("t", 1, 4, "A"), proxied("p", 2, 3, tool=("f", "{}"))], ["t", "p"]),
    "no answer in one": ([answered("t", 1, 4), proxied("p", 2, 3, "A")], ["t p"]),
    "no answer in one, later": ([answered("t", 1, 2), proxied("p", 3, 4, "A")], ["t", "p"]),
    "three calls with two ids": (
        [
            *(answered("t1", 1, 2, "A"), proxied("p1", 1.1, 1.9, "A")),
            *(
                answered("t2", 2, 3, "B", response_id="chatcmpl-8"),
                proxied("p2", 2.1, 2.9, "B", response_id="chatcmpl-8"),
            ),
            *(answered("t3", 3, 4, "A"), proxied("p3", 3.1, 3.9, "A")),
        ],
        ["t1 p1", "t2 p2", "t3 p3"],
    ),
    "two calls at one time": (
        [
            *(answered("t1", 0, 9, "A"), proxied("p1", 0.2, 8.9, "A")),
            *(answered("t2", 0.1, 3, "B"), proxied("p2", 0.3, 2.9, "B")),
        ],
        ["t1 p1", "t2 p2"],
    ),
    "two calls at one time without answers": (
        [*(answered("t1", 0, 9), proxied("p1", 0.2, 8.9)), *(answered("t2", 0.1, 3), proxied("p2", 0.3, 2.9))],
        ["t1 p1", "t2 p2"],
    ),
    "calls within the tolerance": (
        [
            *(answered("t1", 0, 0.01, "A"), proxied("p1", 0.001, 0.009, "A")),
            *(answered("t2", 0.02, 0.03, "A"), proxied("p2", 0.021, 0.029, "A")),
        ],
        ["t1 p1", "t2 p2"],
    ),
    "a call that was tried again": (
        [
            answered("t1", 1, 2, "Th", is_whole=False, status="ERROR"),
            proxied("p1", 1.1, 2, "The", is_whole=False, status="ERROR"),
            *(answered("t2", 3, 4, "That"), proxied("p2", 3.1, 3.9, "That")),
        ],
        ["t1 p1", "t2 p2"],
    ),
    "a client that tried again": (
        [answered("t", 0, 20, "B"), proxied("p1", 0.1, 10, "A"), proxied("p2", 10.1, 19, "B")],
        ["t p2", "p1"],
    ),
    "LiteLLM": ([answered("l", 1, 4, name=LITELLM), raw("r", 2, 3, parent="l")], ["l r"]),
    "LiteLLM and a tracer": (
        [answered("t", 0, 5, "A"), answered("l", 1, 4, name=LITELLM), raw("r", 2, 3, parent="l")],
        ["t l r"],
    ),
    "LiteLLM twice": (
        [
            *(answered("l1", 1, 4, name=LITELLM), raw("r1", 2, 3, parent="l1")),
            *(answered("l2", 2, 3.5, name=LITELLM), raw("r2", 2.5, 3.4, parent="l2")),
        ],
        ["l1 r1", "l2 r2"],
    ),
    "LiteLLM and the proxy": ([answered("l", 1, 4, name=LITELLM), proxied("p", 2, 3, "A")], ["l p"]),
    "a framework around a client": (
        [answered("f", 1, 5, "A", name="ChatOpenAI.chat"), answered("t", 2, 4, "A", name="openai.chat", parent="f")],
        ["f t"],
    ),
    "a framework beside a client": (
        [answered("f", 1, 5, "A", name="ChatOpenAI.chat"), answered("t", 2, 6, "A", name="openai.chat")],
        ["f t"],
    ),
    "a framework, a client and the proxy": (
        [
            answered("f", 1, 5, "A", name="ChatOpenAI.chat"),
            answered("t", 2, 4, "A", name="openai.chat", parent="f"),
            proxied("p", 2.1, 3.9, "A"),
        ],
        ["f t p"],
    ),
    "an agent around two calls": (
        [
            answered("A", 0, 9, "B", name="invoke_agent"),
            *(answered("t1", 1, 2, "A", parent="A"), answered("t2", 3, 4, "B", parent="A")),
        ],
        ["A t2", "t1"],
    ),
    "two tracers with scopes": (
        [answered("a", 1, 4, "A", scope="one"), answered("b", 2, 3, "A", scope="two")],
        ["a b"],
    ),
    "two spans of one scope": (
        [answered("a", 1, 4, "A", scope="one", name="x"), answered("b", 2, 3, "A", scope="one", name="y")],
        ["a", "b"],
    ),
    "a repeat without an answer": ([answered("a", 1, 4), answered("b", 2, 3)], ["a b"]),
    "spans without times": ([answered("t", None, None, "A"), proxied("p", None, None, "A")], ["p t"]),
}


@pytest.mark.parametrize("case", TABLE)
def test_spans_are_grouped_by_call(case: str) -> None:
    spans, expected = TABLE[case]
    assert groups_of(spans) == expected
    for seed in range(3):
        random.Random(seed).shuffle(spans)
        assert groups_of(spans) == expected


def test_triplets_and_messages_have_one_entry_for_each_call() -> None:
    prompt = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "?"}
    spans = [
        *(answered("t1", 1, 2, "A", attributes=prompt), proxied("p1", 1.1, 1.9, "A", tokens=([1], [11]))),
        answered("t2", 3, 4, "B", response_id="chatcmpl-8", tokens=([2], [12])),
        *(answered("t3", 5, 6, "C"), proxied("p3", 5.1, 5.9, "C", tokens=([3], [13]))),
    ]
    report = TracerTraceToTriplet().adapt_report(spans)
    assert [triplet.response["token_ids"] for triplet in report.triplets] == [[11], [12], [13]]
    assert [triplet.metadata["span_ids"] for triplet in report.triplets] == [["t1", "p1"], ["t2"], ["t3", "p3"]]
    assert [triplet.response["token_ids"] for triplet in LlmProxyTraceToTriplet().adapt(spans)] == [[11], [12], [13]]
    answers = [conversation["messages"][-1]["content"] for conversation in TraceToMessages().adapt(spans)]
    assert answers == ["A", "B", "C"]
    assert {key: span.span_id for key, span in repeated_calls(spans).items()} == {
        ("at-1", "p1"): "t1",
        ("at-1", "p3"): "t3",
    }


def test_strict_adapters_merge_equal_response_ids_as_agent_lightning_does() -> None:
    spans = [answered("a", 1, 2, "A", tokens=([1], [11])), answered("b", 3, 4, "B", tokens=([2], [12]))]
    assert len(TracerTraceToTriplet(strict_upstream=True).adapt(spans)) == 1
    assert len(TracerTraceToTriplet().adapt(spans)) == 2
