"""Responses and streams of OpenAI's Chat API, and of the servers that speak it with differences."""

from __future__ import annotations

from typing import Any

from tests.model_calls.entries import DONE, MODEL, Answer, Entry, Json, event, function, raw_event

ID = "chatcmpl-1"
QUESTION: Json = {"model": MODEL, "messages": [{"role": "user", "content": "What is seven times six?"}]}
USAGE: Json = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
COUNTS = {"prompt": 9, "completion": 4, "total": 13}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def answer(message: Json, finish: str | None = "stop", **details: Any) -> Json:
    """Return a response with one choice. Fields of the choice have the prefix `choice_`."""
    choice = {name.removeprefix("choice_"): details.pop(name) for name in list(details) if name.startswith("choice_")}
    first = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, **choice}
    return response([first], **details)


def response(choices: list[Json], **details: Any) -> Json:
    """Return a response with these choices."""
    return {"id": ID, "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices, **details}


def chunk(delta: Json | None = None, finish: str | None = None, index: Any = 0, **details: Any) -> Json:
    """Return one chunk of a stream. Fields of the choice have the prefix `choice_`."""
    choice = {name.removeprefix("choice_"): details.pop(name) for name in list(details) if name.startswith("choice_")}
    piece = {"index": index, "delta": delta or {}, "finish_reason": finish, **choice}
    return chunks([piece], **details)


def chunks(choices: list[Json], **details: Any) -> Json:
    """Return one chunk of a stream with these choices."""
    return {"id": ID, "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices, **details}


def stream(*events: Json, done: bool = True) -> tuple[bytes, ...]:
    """Return the frames of a stream."""
    return (*map(event, events), *([DONE] if done else []))


def streamed(*deltas: Json, finish: str = "stop") -> tuple[bytes, ...]:
    """Return a stream with a role, these deltas and a finish reason."""
    return stream(chunk({"role": "assistant", "content": ""}), *map(chunk, deltas), chunk({}, finish))


def entry(name: str, *answers: Answer, **details: Any) -> Entry:
    """Return an entry of this protocol."""
    fields: dict[str, Any] = {"request": QUESTION, "response_id": ID, **details}
    return Entry(name=f"chat {name}", protocol="chat", answers=answers, **fields)


def call(arguments: Any = '{"city":"Paris"}', name: str = "get_weather", call_id: str | None = "call_1") -> Json:
    """Return a call of a function."""
    fields = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": {n: v for n, v in fields.items() if v is not ...}}


def called(*tools: tuple[str, str, Any], **details: Any) -> Answer:
    """Return the facts of a choice with these tool calls."""
    fields: dict[str, Any] = {"finish": "tool_calls", "tools": tools, **details}
    return Answer(**fields)


PARIS = ("function", "get_weather", '{"city":"Paris"}')
ROME = ("function", "get_weather", '{"city":"Rome"}')
PLAIN = Answer(text="It is 42.", finish="stop")
LOGPROBS: list[Json] = [
    {"token": "It", "logprob": -0.25, "bytes": [73, 116], "top_logprobs": [{"token": "It", "logprob": -0.25}]},
    {"token": " is", "logprob": -0.5, "bytes": None, "top_logprobs": []},
]

TEXTS = (
    entry(
        "text",
        PLAIN,
        response=answer({"content": "It is 42.", "refusal": None}, usage=USAGE, system_fingerprint="fp_1"),
        frames=stream(
            chunk({"role": "assistant", "content": "", "refusal": None}),
            chunk({"content": "It is "}),
            chunk({"content": "42."}),
            chunk({}, "stop"),
            chunks([], usage=USAGE),
        ),
        usage=COUNTS,
        prompt=(("user", "text", "What is seven times six?"),),
    ),
    entry("empty text", Answer(finish="stop"), response=answer({"content": ""}), frames=streamed()),
    entry(
        "no content",
        Answer(finish="length"),
        response=answer({"content": None}, "length"),
        frames=stream(chunk({"role": "assistant", "content": None}), chunk({}, "length")),
    ),
    entry("message without content", Answer(finish="stop"), response=answer({})),
    entry(
        "Unicode",
        Answer(text="Grüße, 世界 🦜\n\tEnde", finish="stop"),
        response=answer({"content": "Grüße, 世界 🦜\n\tEnde"}),
        frames=(
            *map(raw_event, (chunk({"role": "assistant", "content": "Grüße, 世"}), chunk({"content": "界 🦜\n\t"}))),
            *stream(chunk({"content": "Ende"}, "stop")),
        ),
    ),
    entry(
        "half an emoji and NUL",
        Answer(text="cut \ufffd\ufffd", finish="length"),
        response=answer({"content": "cut \x00\ud83d"}, "length"),
        frames=streamed({"content": "cut \x00"}, {"content": "\ud83d"}, finish="length"),
        is_storable=False,
    ),
    entry(
        "emoji whose halves are in two chunks",
        Answer(text="a 🦜 b", finish="stop"),
        frames=streamed({"content": "a \ud83e"}, {"content": "\udd9c b"}),
        is_storable=False,
    ),
    entry(
        "text that looks like an event",
        Answer(text="data: [DONE]\n\ndata: x", finish="stop"),
        response=answer({"content": "data: [DONE]\n\ndata: x"}),
        frames=streamed({"content": "data: [DONE]\n"}, {"content": "\ndata: x"}),
    ),
    entry(
        "JSON as text",
        Answer(text='{"x": 3}', finish="stop"),
        response=answer({"content": '{"x": 3}'}),
        frames=streamed({"content": '{"x"'}, {"content": ": 3}"}),
    ),
    entry(
        "list of text parts",
        Answer(text="It is 42.", finish="stop"),
        response=answer({"content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "42."}]}),
        frames=streamed(
            {"content": [{"type": "text", "text": "It is "}]}, {"content": [{"type": "text", "text": "42."}]}
        ),
    ),
    entry(
        "list of strings",
        Answer(text="It is 42.", finish="stop"),
        response=answer({"content": ["It is ", "42."]}),
    ),
    entry(
        "Mistral's thinking chunks",
        Answer(text="42", reasoning="hmm", finish="stop", kinds=("reasoning", "text")),
        response=answer(
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]},
                    {"type": "text", "text": "42"},
                ]
            }
        ),
        frames=streamed(
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "mm"}]}]},
            {"content": "4"},
            {"content": "2"},
        ),
    ),
    entry(
        "Mistral's thinking as text",
        Answer(text="42", reasoning="hmm", finish="stop"),
        response=answer({"content": [{"type": "thinking", "thinking": "hmm"}, {"type": "text", "text": "42"}]}),
        frames=streamed(
            {"content": [{"type": "thinking", "thinking": "hmm"}]}, {"content": [{"type": "text", "text": "42"}]}
        ),
    ),
    entry(
        "Mistral's references",
        Answer(text="See this.", finish="stop", unknown=("reference",), fragments=("reference_ids",)),
        response=answer(
            {
                "content": [
                    {"type": "text", "text": "See "},
                    {"type": "reference", "reference_ids": [3]},
                    {"type": "text", "text": "this."},
                ]
            }
        ),
    ),
    entry(
        "content part of an unknown type",
        Answer(text="a", finish="stop", unknown=("hologram",), fragments=("volume-7",)),
        response=answer({"content": [{"type": "text", "text": "a"}, {"type": "hologram", "data": "volume-7"}]}),
        frames=streamed(
            {"content": [{"type": "text", "text": "a"}]}, {"content": [{"type": "hologram", "data": "volume-7"}]}
        ),
    ),
    entry(
        "refusal",
        Answer(refusal="I cannot do that.", finish="stop"),
        response=answer({"content": None, "refusal": "I cannot do that."}),
        frames=streamed({"refusal": "I cannot"}, {"refusal": " do that."}),
    ),
    entry(
        "refusal part",
        Answer(refusal="No.", finish="stop"),
        response=answer({"content": [{"type": "refusal", "refusal": "No."}]}),
    ),
    entry(
        "reasoning_content",
        Answer(text="42", reasoning="6*7", finish="stop"),
        response=answer({"content": "42", "reasoning_content": "6*7"}),
        frames=streamed(
            {"content": None, "reasoning_content": "6*"}, {"content": None, "reasoning_content": "7"}, {"content": "42"}
        ),
    ),
    entry(
        "reasoning",
        Answer(text="42", reasoning="6*7", finish="stop"),
        response=answer({"content": "42", "reasoning": "6*7"}),
        frames=streamed(
            {"content": "", "reasoning": "6*"}, {"content": "", "reasoning": "7"}, {"content": "42", "reasoning": None}
        ),
    ),
    entry(
        "reasoning under both names",
        Answer(text="42", reasoning="6*7", finish="stop"),
        response=answer({"content": "42", "reasoning": "6*7", "reasoning_content": "6*7"}),
        frames=streamed(
            {"reasoning": "6*", "reasoning_content": "6*"},
            {"reasoning": "7", "reasoning_content": "7"},
            {"content": "42"},
        ),
    ),
    entry(
        "OpenRouter's reasoning details",
        Answer(text="42", reasoning="6*7", finish="stop", fragments=("gAAAAencrypted",)),
        response=answer(
            {
                "content": "42",
                "reasoning": "6*7",
                "reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAAAencrypted", "index": 0}],
            }
        ),
    ),
    entry(
        "thinking blocks of LiteLLM",
        Answer(text="42", reasoning="6*7", finish="stop", fragments=("sig-abc",)),
        response=answer(
            {
                "content": "42",
                "reasoning_content": "6*7",
                "thinking_blocks": [{"type": "thinking", "thinking": "6*7", "signature": "sig-abc"}],
            }
        ),
    ),
    entry(
        "audio",
        Answer(finish="stop", media=("audio",), fragments=("UklGRg==", "Hello there")),
        response=answer(
            {
                "content": None,
                "audio": {"id": "audio_1", "data": "UklGRg==", "transcript": "Hello there", "expires_at": 9},
            }
        ),
    ),
    entry(
        "audio in pieces",
        Answer(finish="stop", media=("audio",), fragments=("Hello there",)),
        frames=streamed(
            {"audio": {"id": "audio_1", "transcript": "Hello"}},
            {"audio": {"transcript": " there"}},
            {"audio": {"data": "UklG"}},
            {"audio": {"data": "Rg=="}},
            {"audio": {"expires_at": 9}},
        ),
    ),
    entry(
        "OpenRouter's images",
        Answer(text="Here.", finish="stop", media=("image",), fragments=(PIXEL,)),
        response=answer({"content": "Here.", "images": [{"type": "image_url", "image_url": {"url": PIXEL}}]}),
        frames=streamed({"content": "Here."}, {"images": [{"type": "image_url", "image_url": {"url": PIXEL}}]}),
    ),
    entry(
        "image part",
        Answer(text="Here.", finish="stop", media=("image",), fragments=(PIXEL,)),
        response=answer(
            {"content": [{"type": "text", "text": "Here."}, {"type": "image_url", "image_url": {"url": PIXEL}}]}
        ),
    ),
    entry(
        "annotations",
        Answer(text="It rains.", finish="stop", fragments=("https://example.com/rain",)),
        response=answer(
            {
                "content": "It rains.",
                "annotations": [
                    {
                        "type": "url_citation",
                        "url_citation": {
                            "url": "https://example.com/rain",
                            "title": "Rain",
                            "start_index": 0,
                            "end_index": 9,
                        },
                    }
                ],
            }
        ),
        frames=streamed(
            {
                "content": "It rains.",
                "annotations": [
                    {
                        "type": "url_citation",
                        "url_citation": {
                            "url": "https://example.com/rain",
                            "title": "Rain",
                            "start_index": 0,
                            "end_index": 9,
                        },
                    }
                ],
            }
        ),
    ),
    entry(
        "whitespace",
        Answer(text="  \n a \n\n", finish="stop"),
        response=answer({"content": "  \n a \n\n"}),
        frames=streamed({"content": "  \n"}, {"content": " a "}, {"content": "\n\n"}),
    ),
    entry(
        "role of the answer",
        Answer(text="x", finish="stop", role="model"),
        response=response([{"index": 0, "message": {"role": "model", "content": "x"}, "finish_reason": "stop"}]),
        frames=stream(chunk({"role": "model", "content": "x"}), chunk({}, "stop")),
    ),
)


def tool(*deltas: Json, name: str, answers: Answer, **details: Any) -> Entry:
    """Return an entry whose stream has these deltas of tool calls, one in each chunk."""
    frames = streamed(*({"tool_calls": [delta]} for delta in deltas), finish="tool_calls")
    return entry(name, answers, frames=frames, request={**QUESTION, "tools": [function()]}, **details)


TOOLS = (
    entry(
        "tool call",
        called(PARIS, call_ids=("call_1",)),
        request={**QUESTION, "tools": [function(), function("search")], "tool_choice": "auto"},
        tools=("get_weather", "search"),
        response=answer({"content": None, "tool_calls": [call()]}, "tool_calls"),
        frames=streamed(
            {"tool_calls": [{"index": 0, **call("")}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"ci'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": 'ty":"Paris"}'}}]},
            finish="tool_calls",
        ),
    ),
    entry(
        "tool call after text",
        called(PARIS, text="Let me look."),
        response=answer({"content": "Let me look.", "tool_calls": [call()]}, "tool_calls"),
        frames=streamed(
            {"content": "Let me "}, {"content": "look."}, {"tool_calls": [{"index": 0, **call()}]}, finish="tool_calls"
        ),
    ),
    entry(
        "arguments that are not JSON",
        called(("function", "get_weather", '{"city": Paris')),
        response=answer({"content": None, "tool_calls": [call('{"city": Paris')]}, "tool_calls"),
        frames=streamed(
            {"tool_calls": [{"index": 0, **call('{"city"')}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ": Paris"}}]},
            finish="tool_calls",
        ),
    ),
    entry(
        "empty arguments",
        called(("function", "now", "")),
        response=answer({"content": None, "tool_calls": [call("", "now")]}, "tool_calls"),
        frames=streamed({"tool_calls": [{"index": 0, **call("", "now")}]}, finish="tool_calls"),
    ),
    entry(
        "missing arguments",
        called(("function", "now", "")),
        response=answer({"content": None, "tool_calls": [call(..., "now")]}, "tool_calls"),
        frames=streamed({"tool_calls": [{"index": 0, **call(..., "now")}]}, finish="tool_calls"),
    ),
    entry(
        "null arguments",
        called(("function", "now", "")),
        response=answer({"content": None, "tool_calls": [call(None, "now")]}, "tool_calls"),
        frames=streamed({"tool_calls": [{"index": 0, **call(None, "now")}]}, finish="tool_calls"),
    ),
    entry(
        "arguments as an object",
        called(("function", "get_weather", {"city": "Paris", "days": None})),
        response=answer({"content": None, "tool_calls": [call({"city": "Paris", "days": None})]}, "tool_calls"),
        frames=streamed({"tool_calls": [{"index": 0, **call({"city": "Paris", "days": None})}]}, finish="tool_calls"),
    ),
    entry(
        "arguments as an empty object",
        called(("function", "now", {})),
        response=answer({"content": None, "tool_calls": [call({}, "now")]}, "tool_calls"),
        frames=streamed({"tool_calls": [{"index": 0, **call({}, "now")}]}, finish="tool_calls"),
    ),
    entry(
        "arguments as JSON that is no object",
        called(("function", "f", "[1,2]"), ("function", "f", '"Paris"'), ("function", "f", "null")),
        response=answer(
            {"tool_calls": [call("[1,2]", "f", "a"), call('"Paris"', "f", "b"), call("null", "f", "c")]}, "tool_calls"
        ),
    ),
    entry(
        "tool call without an id",
        called(PARIS, call_ids=(None,)),
        response=answer({"content": None, "tool_calls": [call(call_id=None)]}, "tool_calls"),
        frames=streamed({"tool_calls": [{"index": 0, **call(call_id=None)}]}, finish="tool_calls"),
    ),
    entry(
        "tool call without a type",
        called(PARIS),
        response=answer({"tool_calls": [{"id": "call_1", "function": call()["function"]}]}, "tool_calls"),
        frames=streamed(
            {"tool_calls": [{"index": 0, "id": "call_1", "function": call()["function"]}]}, finish="tool_calls"
        ),
    ),
    entry(
        "custom tool",
        called(("custom", "run", "print(1)\n")),
        request={**QUESTION, "tools": [{"type": "custom", "custom": {"name": "run", "description": "Runs code."}}]},
        tools=("run",),
        response=answer(
            {"tool_calls": [{"id": "call_1", "type": "custom", "custom": {"name": "run", "input": "print(1)\n"}}]},
            "tool_calls",
        ),
        frames=streamed(
            {"tool_calls": [{"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "run", "input": ""}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "print("}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "1)\n"}}]},
            finish="tool_calls",
        ),
    ),
    entry(
        "function call in the old form",
        Answer(finish="function_call", tools=(PARIS,)),
        request={**QUESTION, "functions": [function()["function"]], "function_call": "auto"},
        tools=("get_weather",),
        response=answer({"content": None, "function_call": call()["function"]}, "function_call"),
        frames=streamed(
            {"function_call": {"name": "get_weather", "arguments": ""}},
            {"function_call": {"arguments": '{"city":'}},
            {"function_call": {"arguments": '"Paris"}'}},
            finish="function_call",
        ),
    ),
    entry(
        "tool call of an unknown type",
        called(unknown=("retrieval",), fragments=("passages on rain",)),
        response=answer(
            {"tool_calls": [{"id": "call_1", "type": "retrieval", "retrieval": {"query": "passages on rain"}}]},
            "tool_calls",
        ),
    ),
    entry(
        "empty and null lists of tool calls",
        PLAIN,
        response=answer({"content": "It is 42.", "tool_calls": [], "function_call": None}),
        frames=streamed(
            {"content": "It is ", "tool_calls": []}, {"content": "42.", "tool_calls": None, "function_call": None}
        ),
    ),
    entry(
        "parallel tool calls",
        called(PARIS, ROME, call_ids=("call_1", "call_2")),
        response=answer({"tool_calls": [call(), call('{"city":"Rome"}', call_id="call_2")]}, "tool_calls"),
        frames=streamed(
            {"tool_calls": [{"index": 0, **call("")}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":"Paris"}'}}]},
            {"tool_calls": [{"index": 1, **call("", call_id="call_2")}]},
            {"tool_calls": [{"index": 1, "function": {"arguments": '{"city":"Rome"}'}}]},
            finish="tool_calls",
        ),
    ),
    entry(
        "parallel tool calls in one delta",
        called(PARIS, ROME),
        frames=streamed(
            {"tool_calls": [{"index": 0, **call()}, {"index": 1, **call('{"city":"Rome"}', call_id="call_2")}]},
            finish="tool_calls",
        ),
    ),
    entry(
        "parallel tool calls in one delta without index",
        called(PARIS, ROME),
        frames=streamed({"tool_calls": [call(), call('{"city":"Rome"}', call_id="call_2")]}, finish="tool_calls"),
    ),
    tool(
        {"index": 0, **call('{"city"')},
        {"index": 1, **call('{"city"', call_id="call_2")},
        {"index": 0, "function": {"arguments": ':"Paris"}'}},
        {"index": 1, "function": {"arguments": ':"Rome"}'}},
        name="parallel tool calls by turns",
        answers=called(PARIS, ROME),
    ),
    tool(
        {"index": 0, **call()},
        {"index": 0, **call('{"city":"Rome"}', call_id="call_2")},
        name="parallel tool calls that all have index 0",
        answers=called(PARIS, ROME, call_ids=("call_1", "call_2")),
    ),
    tool(
        {"index": 0, **call('{"city":')},
        {"index": 0, "function": {"arguments": '"Paris"}'}},
        {"index": 0, **call('{"city":', call_id="call_2")},
        {"index": 0, "function": {"arguments": '"Rome"}'}},
        name="parallel tool calls in pieces that all have index 0",
        answers=called(PARIS, ROME),
    ),
    tool(
        call(),
        call('{"city":"Rome"}', call_id="call_2"),
        name="parallel tool calls without index",
        answers=called(PARIS, ROME),
    ),
    tool(
        call('{"city":'),
        {"function": {"arguments": '"Paris"}'}},
        call('{"city":', call_id="call_2"),
        {"function": {"arguments": '"Rome"}'}},
        name="parallel tool calls in pieces without index",
        answers=called(PARIS, ROME),
    ),
    tool(
        {"index": 0, **call()},
        {"index": 3, **call('{"city":"Rome"}', call_id="call_2")},
        name="indexes with a gap",
        answers=called(PARIS, ROME),
    ),
    tool(
        {"index": 1, **call('{"city":')},
        {"index": 1, "function": {"arguments": '"Paris"}'}},
        {"index": 2, **call('{"city":"Rome"}', call_id="call_2")},
        name="indexes that begin at 1",
        answers=called(PARIS, ROME),
    ),
    tool(
        {"index": "0", **call('{"city":')},
        {"index": "0", "function": {"arguments": '"Paris"}'}},
        {"index": "1", **call('{"city":"Rome"}', call_id="call_2")},
        name="indexes as text",
        answers=called(PARIS, ROME),
    ),
    tool(
        {"index": 0, **call('{"city":')},
        {"index": 0, **call('"Paris"}')},
        {"index": 1, **call('{"city":', call_id="call_2")},
        {"index": 1, **call('"Rome"}', call_id="call_2")},
        name="name and id in every delta",
        answers=called(PARIS, ROME, call_ids=("call_1", "call_2")),
    ),
    tool(
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_", "arguments": ""}},
        {"index": 0, "function": {"name": "weather"}},
        {"index": 0, "function": {"arguments": '{"city":"Paris"}'}},
        name="name in pieces",
        answers=called(PARIS),
    ),
    tool(
        {"index": 0, "id": "call_1", "type": "function", "function": {"arguments": ""}},
        {"index": 0, "id": "", "function": {"name": "get_weather", "arguments": ""}},
        {"index": 0, "id": "", "function": {"name": "", "arguments": '{"city":"Paris"}'}},
        name="empty names and ids",
        answers=called(PARIS, call_ids=("call_1",)),
    ),
    tool(
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": None}},
        {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": '{"city":"Paris"}'}},
        name="null names and ids",
        answers=called(PARIS, call_ids=("call_1",)),
    ),
    entry(
        "tool call in the first chunk with the finish reason",
        called(PARIS),
        frames=stream(chunk({"role": "assistant", "tool_calls": [{"index": 0, **call()}]}, "tool_calls")),
    ),
    entry(
        "tool call with Gemini's signature",
        called(PARIS, fragments=("thought-sig-1",)),
        response=answer(
            {"tool_calls": [{**call(), "extra_content": {"google": {"thought_signature": "thought-sig-1"}}}]},
            "tool_calls",
        ),
        frames=streamed(
            {
                "tool_calls": [
                    {"index": 0, **call(), "extra_content": {"google": {"thought_signature": "thought-sig-1"}}}
                ]
            },
            finish="tool_calls",
        ),
    ),
)

CHOICES = (
    entry(
        "two choices",
        Answer(text="A", finish="stop"),
        Answer(text="B", finish="length"),
        request={**QUESTION, "n": 2},
        settings={"choice.count": 2},
        response=response(
            [
                {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": "stop"},
                {"index": 1, "message": {"role": "assistant", "content": "B"}, "finish_reason": "length"},
            ]
        ),
        frames=stream(
            chunk({"role": "assistant", "content": "A"}),
            chunk({"role": "assistant", "content": "B"}, index=1),
            chunk({}, "length", 1),
            chunk({}, "stop"),
        ),
    ),
    entry(
        "three choices by turns",
        Answer(text="a1a2", finish="stop"),
        Answer(finish="tool_calls", tools=(PARIS,)),
        Answer(reasoning="c1", text="c2", finish="stop"),
        request={**QUESTION, "n": 3},
        frames=stream(
            chunks([{"index": index, "delta": {"role": "assistant"}, "finish_reason": None} for index in range(3)]),
            chunks(
                [
                    {"index": 0, "delta": {"content": "a1"}, "finish_reason": None},
                    {"index": 2, "delta": {"reasoning_content": "c1"}, "finish_reason": None},
                ]
            ),
            chunk({"tool_calls": [{"index": 0, **call()}]}, index=1),
            chunk({"content": "a2"}, "stop"),
            chunk({"content": "c2"}, "stop", 2),
            chunk({}, "tool_calls", 1),
        ),
    ),
    entry(
        "choices in another order",
        Answer(text="A", finish="stop"),
        Answer(text="B", finish="stop"),
        response=response(
            [
                {"index": 1, "message": {"role": "assistant", "content": "B"}, "finish_reason": "stop"},
                {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": "stop"},
            ]
        ),
        frames=stream(chunk({"content": "B"}, "stop", 1), chunk({"content": "A"}, "stop")),
    ),
    entry(
        "choice without index",
        PLAIN,
        response=response([{"message": {"role": "assistant", "content": "It is 42."}, "finish_reason": "stop"}]),
        frames=stream(
            chunks([{"delta": {"role": "assistant", "content": "It is "}}]),
            chunks([{"delta": {"content": "42."}, "finish_reason": "stop"}]),
        ),
    ),
    entry("no choices", response=response([], usage=USAGE), usage=COUNTS),
    entry("null choices", response={**response([]), "choices": None}),
    *(
        entry(
            f"finish reason {reason}",
            Answer(text="It is", finish=reason),
            response=answer({"content": "It is"}, reason),
            frames=streamed({"content": "It is"}, finish=reason),
        )
        for reason in ("length", "content_filter", "eos_token", "abort")
    ),
    entry("finish reason null", Answer(text="It is"), response=answer({"content": "It is"}, None)),
)

TOKENS = (
    entry(
        "token ids of vLLM",
        Answer(text="It is 42.", finish="stop", token_ids=(21, 22, 23)),
        request={**QUESTION, "return_token_ids": True},
        response=answer(
            {"content": "It is 42."}, choice_token_ids=[21, 22, 23], prompt_token_ids=[11, 12], usage=USAGE
        ),
        frames=stream(
            chunk({"role": "assistant", "content": ""}, prompt_token_ids=[11, 12]),
            chunk({"content": "It is"}, choice_token_ids=[21, 22]),
            chunk({"content": " 42."}, "stop", choice_token_ids=[23]),
            chunks([], usage=USAGE),
        ),
        prompt_token_ids=(11, 12),
        usage=COUNTS,
    ),
    entry(
        "token ids without usage",
        Answer(text="It is 42.", finish="stop", token_ids=(21, 22, 23)),
        response=answer({"content": "It is 42."}, choice_token_ids=[21, 22, 23], prompt_token_ids=[11, 12]),
        frames=stream(
            chunk({"role": "assistant", "content": ""}, prompt_token_ids=[11, 12]),
            chunk({"content": "It is 42."}, "stop", choice_token_ids=[21, 22, 23]),
        ),
        prompt_token_ids=(11, 12),
        usage={"prompt": 2, "completion": 3, "total": 5},
    ),
    entry(
        "token ids of two choices",
        Answer(text="A", finish="stop", token_ids=(21,)),
        Answer(text="BC", finish="stop", token_ids=(31, 32)),
        request={**QUESTION, "n": 2},
        response=response(
            [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "A"},
                    "finish_reason": "stop",
                    "token_ids": [21],
                },
                {
                    "index": 1,
                    "message": {"role": "assistant", "content": "BC"},
                    "finish_reason": "stop",
                    "token_ids": [31, 32],
                },
            ],
            prompt_token_ids=[11],
            usage=USAGE,
        ),
        frames=stream(
            chunk({"content": "A"}, "stop", choice_token_ids=[21], prompt_token_ids=[11], usage=USAGE),
            chunk({"content": "B"}, index=1, choice_token_ids=[31]),
            chunk({"content": "C"}, "stop", 1, choice_token_ids=[32]),
        ),
        prompt_token_ids=(11,),
        usage=COUNTS,
    ),
    entry(
        "token ids in provider_specific_fields",
        Answer(text="A", finish="stop", token_ids=(21, 22)),
        response=answer(
            {"content": "A"},
            choice_provider_specific_fields={"token_ids": [21, 22]},
            prompt_token_ids=[11],
            usage=USAGE,
        ),
        frames=stream(
            chunk({"content": "A"}, choice_provider_specific_fields={"token_ids": [21]}, prompt_token_ids=[11]),
            chunk({}, "stop", choice_provider_specific_fields={"token_ids": [22]}, usage=USAGE),
        ),
        prompt_token_ids=(11,),
        usage=COUNTS,
    ),
    entry(
        "token ids of the prompt in the choice",
        Answer(text="A", finish="stop", token_ids=(21,)),
        response=answer({"content": "A"}, choice_prompt_token_ids=[11, 12], choice_token_ids=[21], usage=USAGE),
        frames=stream(
            chunk({"content": "A"}, "stop", choice_prompt_token_ids=[11, 12], choice_token_ids=[21], usage=USAGE)
        ),
        prompt_token_ids=(11, 12),
        usage=COUNTS,
    ),
    entry(
        "response_token_ids",
        Answer(text="A", finish="stop", token_ids=(21, 22)),
        response=answer({"content": "A"}, response_token_ids=[[21, 22]], prompt_token_ids=[11], usage=USAGE),
        prompt_token_ids=(11,),
        usage=COUNTS,
    ),
    entry(
        "tokens as token ids",
        Answer(text="AB", finish="stop", token_ids=(21, 22), logprobs=(-0.5, -0.25)),
        request={**QUESTION, "logprobs": True, "return_tokens_as_token_ids": True},
        response=answer(
            {"content": "AB"},
            choice_logprobs={
                "content": [
                    {"token": "token_id:21", "logprob": -0.5, "bytes": [65], "top_logprobs": []},
                    {"token": "token_id:22", "logprob": -0.25, "bytes": [66], "top_logprobs": []},
                ]
            },
            usage=USAGE,
        ),
        frames=stream(
            chunk({"content": "A"}, choice_logprobs={"content": [{"token": "token_id:21", "logprob": -0.5}]}),
            chunk(
                {"content": "B"},
                "stop",
                choice_logprobs={"content": [{"token": "token_id:22", "logprob": -0.25}]},
                usage=USAGE,
            ),
        ),
        usage=COUNTS,
    ),
    entry(
        "log probabilities",
        Answer(text="It is", finish="stop", logprobs=(-0.25, -0.5)),
        request={**QUESTION, "logprobs": True, "top_logprobs": 1},
        response=answer({"content": "It is"}, choice_logprobs={"content": LOGPROBS, "refusal": None}),
        frames=stream(
            chunk({"role": "assistant", "content": ""}, choice_logprobs=None),
            chunk({"content": "It"}, choice_logprobs={"content": LOGPROBS[:1], "refusal": None}),
            chunk({"content": " is"}, choice_logprobs={"content": LOGPROBS[1:], "refusal": None}),
            chunk({}, "stop", choice_logprobs=None),
        ),
    ),
    entry(
        "log probabilities of a refusal",
        Answer(refusal="It is", finish="stop"),
        response=answer({"content": None, "refusal": "It is"}, choice_logprobs={"content": None, "refusal": LOGPROBS}),
        frames=stream(
            chunk({"refusal": "It"}, choice_logprobs={"content": None, "refusal": LOGPROBS[:1]}),
            chunk({"refusal": " is"}, "stop", choice_logprobs={"content": None, "refusal": LOGPROBS[1:]}),
        ),
    ),
    entry(
        "log probability that is null or infinite",
        Answer(text="It is", finish="stop"),
        response=answer(
            {"content": "It is"},
            choice_logprobs={"content": [{"token": "It", "logprob": None}, {"token": " is", "logprob": float("-inf")}]},
        ),
        is_storable=False,
    ),
)


def counted(name: str, usage: Any, **counts: int) -> Entry:
    """Return an entry with this usage, whole and in the last chunk of a stream."""
    frames = stream(chunk({"role": "assistant", "content": "It is 42."}, "stop"), chunks([], usage=usage))
    response = answer({"content": "It is 42."}, usage=usage)
    return entry(f"usage {name}", PLAIN, response=response, frames=frames, usage=counts)


USAGES = (
    counted("null", None),
    counted("empty", {}),
    counted("without total", {"prompt_tokens": 9, "completion_tokens": 4}, **COUNTS),
    counted("of the prompt only", {"prompt_tokens": 9}, prompt=9),
    counted("with null", {"prompt_tokens": 9, "completion_tokens": None, "total_tokens": None}, prompt=9),
    counted("with null details", {**USAGE, "prompt_tokens_details": None, "completion_tokens_details": None}, **COUNTS),
    counted("of other types", {"prompt_tokens": "9", "completion_tokens": 4.5, "total_tokens": True}),
    counted("zero", {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, prompt=0, completion=0, total=0),
    counted(
        "with cached and reasoning tokens",
        {
            **USAGE,
            "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 3, "accepted_prediction_tokens": 0},
        },
        **COUNTS,
        cached=8,
        reasoning=3,
    ),
    counted(
        "with written cache",
        {**USAGE, "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 6}},
        **COUNTS,
        cached=2,
        cache_write=6,
    ),
    counted("of DeepSeek", {**USAGE, "prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 4}, **COUNTS, cached=5),
    counted(
        "of LiteLLM for Anthropic",
        {
            **USAGE,
            "prompt_tokens_details": {"cached_tokens": 5},
            "cache_read_input_tokens": 5,
            "cache_creation_input_tokens": 2,
        },
        **COUNTS,
        cached=5,
        cache_write=2,
    ),
    entry(
        "usage in every chunk",
        PLAIN,
        frames=stream(
            chunk({"content": "It is"}, usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}),
            chunk({"content": " 42."}, "stop", usage=USAGE),
            chunks([], usage=USAGE),
        ),
        usage=COUNTS,
    ),
    entry(
        "usage null in every chunk but the last",
        PLAIN,
        frames=stream(
            chunk({"content": "It is"}, usage=None),
            chunk({"content": " 42."}, "stop", usage=None),
            chunks([], usage=USAGE),
        ),
        usage=COUNTS,
    ),
    entry(
        "usage null after the counts",
        PLAIN,
        frames=stream(
            chunk({"content": "It is 42."}, usage=USAGE), chunk({}, "stop", usage=None), chunks([], usage=None)
        ),
        usage=COUNTS,
    ),
    entry(
        "usage in the first chunk",
        PLAIN,
        frames=stream(chunk({"role": "assistant", "content": "It is 42."}, usage=USAGE), chunk({}, "stop")),
        usage=COUNTS,
    ),
    entry(
        "usage in two parts",
        PLAIN,
        frames=stream(
            chunk({"content": "It is 42."}, usage={"prompt_tokens": 9}),
            chunk({}, "stop", usage={"completion_tokens": 4, "total_tokens": 13}),
        ),
        usage=COUNTS,
    ),
    entry(
        "usage below x_groq",
        PLAIN,
        frames=stream(chunk({"content": "It is 42."}), chunk({}, "stop", x_groq={"id": "req_1", "usage": USAGE})),
        usage=COUNTS,
    ),
    entry(
        "usage in the choice",
        PLAIN,
        frames=stream(chunk({"content": "It is 42."}), chunk({}, "stop", choice_usage=USAGE)),
        usage=COUNTS,
    ),
    entry(
        "usage repeated after the end",
        PLAIN,
        frames=stream(chunk({"content": "It is 42."}, "stop"), chunks([], usage=USAGE), chunks([], usage=USAGE)),
        usage=COUNTS,
    ),
)

COMMENT = b": OPENROUTER PROCESSING\n\n"
STREAMS = (
    entry(
        "content in the first chunk only",
        PLAIN,
        frames=stream(chunk({"role": "assistant", "content": "It is 42."}), chunk({}, "stop")),
    ),
    entry(
        "everything in one chunk",
        PLAIN,
        frames=stream(chunk({"role": "assistant", "content": "It is 42."}, "stop", usage=USAGE)),
        usage=COUNTS,
    ),
    entry("role only", Answer(finish="stop"), frames=stream(chunk({"role": "assistant"}), chunk({}, "stop"))),
    entry("no role", PLAIN, frames=stream(chunk({"content": "It is 42."}), chunk({}, "stop"))),
    entry(
        "role in every chunk",
        PLAIN,
        frames=stream(
            *(chunk({"role": "assistant", "content": text}) for text in ("It ", "is ", "42.")),
            chunk({"role": "assistant"}, "stop"),
        ),
    ),
    entry(
        "Azure's filter results",
        PLAIN,
        frames=stream(
            {
                **chunks([], prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}]),
                "id": "",
                "model": "",
            },
            chunk({"role": "assistant", "content": "It is"}, choice_content_filter_results={}),
            chunk({"content": " 42."}, choice_content_filter_results={"hate": {"filtered": False, "severity": "safe"}}),
            chunk({}, "stop"),
        ),
    ),
    entry(
        "empty choices in the middle",
        PLAIN,
        frames=stream(chunk({"content": "It is"}), chunks([]), chunk({"content": " 42."}, "stop")),
    ),
    entry(
        "null delta",
        PLAIN,
        frames=stream(chunk({"content": "It is 42."}), chunks([{"index": 0, "delta": None, "finish_reason": "stop"}])),
    ),
    entry(
        "comments and pings",
        PLAIN,
        frames=(
            COMMENT,
            event(chunk({"content": "It is"})),
            COMMENT,
            b"event: ping\ndata: {}\n\n",
            *stream(chunk({"content": " 42."}, "stop")),
        ),
    ),
    entry(
        "lines that end with CRLF",
        PLAIN,
        frames=tuple(frame.replace(b"\n", b"\r\n") for frame in streamed({"content": "It is"}, {"content": " 42."})),
    ),
    entry(
        "lines that end with CR",
        PLAIN,
        frames=tuple(frame.replace(b"\n", b"\r") for frame in streamed({"content": "It is"}, {"content": " 42."})),
    ),
    entry(
        "no space after the colon",
        PLAIN,
        frames=tuple(
            frame.replace(b"data: ", b"data:") for frame in streamed({"content": "It is"}, {"content": " 42."})
        ),
    ),
    entry(
        "event on two lines",
        PLAIN,
        frames=(
            event(chunk({"content": "It is 42."})).replace(b', "model"', b',\ndata: "model"'),
            *stream(chunk({}, "stop")),
        ),
    ),
    entry(
        "event ids and retry times",
        PLAIN,
        frames=(
            b"retry: 100\n\n",
            *(b"id: 7\nevent: message\n" + frame for frame in streamed({"content": "It is 42."})),
        ),
    ),
    entry(
        "no end mark",
        PLAIN,
        frames=stream(chunk({"role": "assistant", "content": "It is 42."}), chunk({}, "stop"), done=False),
    ),
    entry(
        "no end",
        Answer(text="It is 42."),
        frames=stream(chunk({"role": "assistant", "content": "It is"}), chunk({"content": " 42."}), done=False),
        ends=False,
    ),
    entry(
        "no end of one of two choices",
        Answer(text="A", finish="stop"),
        Answer(text="B"),
        frames=stream(chunk({"content": "B"}, index=1), chunk({"content": "A"}, "stop"), done=False),
        ends=False,
    ),
    entry(
        "end mark without a finish reason",
        Answer(text="It is 42."),
        frames=stream(chunk({"role": "assistant", "content": "It is"}), chunk({"content": " 42."})),
    ),
    entry(
        "no end in a tool call",
        Answer(tools=(("function", "get_weather", '{"city":"Pa'),)),
        frames=stream(
            chunk({"role": "assistant", "tool_calls": [{"index": 0, **call("")}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city":"Pa'}}]}),
            done=False,
        ),
        ends=False,
    ),
    entry("no events", frames=(COMMENT,), ends=False, model=None, response_id=None),
    entry("end mark only", frames=(DONE,), model=None, response_id=None),
    entry(
        "two end marks",
        PLAIN,
        frames=(*streamed({"content": "It is 42."}), DONE),
    ),
    entry(
        "finish reason twice",
        PLAIN,
        frames=stream(chunk({"content": "It is 42."}), chunk({}, "stop"), chunk({}, "stop")),
    ),
    entry(
        "finish reason and then null",
        PLAIN,
        frames=stream(chunk({"content": "It is 42."}, "stop"), chunk({"content": ""}, None, usage=USAGE)),
        usage=COUNTS,
    ),
    entry(
        "error in the middle",
        Answer(text="It is"),
        frames=(
            *stream(chunk({"content": "It is"}), done=False),
            event({"error": {"message": "overloaded", "code": 503}}),
        ),
        ends=False,
        error="overloaded",
    ),
    entry(
        "error as text",
        Answer(text="It is"),
        frames=(*stream(chunk({"content": "It is"}), done=False), event({"error": "overloaded"}), DONE),
        ends=False,
        error="overloaded",
    ),
    entry(
        "error event",
        Answer(text="It is"),
        frames=(
            *stream(chunk({"content": "It is"}), done=False),
            b"event: error\n" + event({"error": {"message": "overloaded"}}),
        ),
        ends=False,
        error="overloaded",
    ),
    entry(
        "error in a chunk with choices",
        Answer(text="It is", finish="error"),
        frames=stream(
            chunk({"content": "It is"}),
            chunk({"content": ""}, "error", error={"message": "overloaded", "code": 502}),
            done=False,
        ),
        error="overloaded",
    ),
    entry(
        "error before the first chunk",
        frames=(event({"error": {"message": "overloaded"}}),),
        ends=False,
        error="overloaded",
        model=None,
        response_id=None,
    ),
    entry(
        "event that is not JSON",
        PLAIN,
        frames=(
            *stream(chunk({"content": "It is"}), done=False),
            b"data: {broken\n\n",
            *stream(chunk({"content": " 42."}, "stop")),
        ),
        is_readable=False,
    ),
    entry(
        "events that are no objects",
        PLAIN,
        frames=(
            *stream(chunk({"content": "It is"}), done=False),
            b"data: [1]\n\ndata: null\n\n",
            *stream(chunk({"content": " 42."}, "stop")),
        ),
    ),
    entry(
        "bytes that are not UTF-8",
        Answer(text="It is \ufffd 42.", finish="stop"),
        frames=(event(chunk({"content": "It is @ 42."})).replace(b"@", b"\xff"), *stream(chunk({}, "stop"))),
        is_readable=False,
    ),
    entry(
        "id and model in the first chunk only",
        PLAIN,
        frames=stream(
            chunk({"content": "It is"}),
            {"choices": [{"index": 0, "delta": {"content": " 42."}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        ),
    ),
    entry(
        "message in place of the delta",
        PLAIN,
        frames=stream(
            chunks([{"index": 0, "message": {"role": "assistant", "content": "It is 42."}, "finish_reason": "stop"}])
        ),
    ),
    entry(
        "logprobs and text after the finish reason",
        Answer(text="It is 42.", finish="stop"),
        frames=stream(chunk({"content": "It is"}, "stop"), chunk({"content": " 42."})),
    ),
)


def asked(name: str, messages: Any, *prompt: tuple[str, ...], **request: Any) -> Entry:
    """Return an entry about a prompt."""
    return entry(
        f"prompt {name}",
        PLAIN,
        request={"model": MODEL, "messages": messages, **request},
        response=answer({"content": "It is 42."}),
        prompt=prompt,
    )


USER = ("user", "text", "hi")
HI: Json = {"role": "user", "content": "hi"}
PROMPTS = (
    asked(
        "with a system message", [{"role": "system", "content": "Be brief."}, HI], ("system", "text", "Be brief."), USER
    ),
    asked(
        "with a list of system parts",
        [
            {
                "role": "system",
                "content": [
                    {"type": "text", "text": "Be brief."},
                    {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
                ],
            },
            HI,
        ],
        ("system", "text", "Be brief."),
        ("system", "text", "Be kind."),
        USER,
    ),
    asked(
        "of a developer", [{"role": "developer", "content": "Be brief."}, HI], ("developer", "text", "Be brief."), USER
    ),
    asked(
        "with media",
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "hi"},
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
                    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                    {
                        "type": "file",
                        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
                    },
                    {"type": "video_url", "video_url": {"url": "https://example.com/cat.mp4"}},
                ],
            }
        ],
        USER,
        ("user", "image", PIXEL),
        ("user", "image", "https://example.com/cat.png"),
        ("user", "audio", "UklGRg=="),
        ("user", "document", "JVBERg=="),
        ("user", "video", "https://example.com/cat.mp4"),
    ),
    asked(
        "with a part of an unknown type",
        [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "hologram", "data": "volume-7"}]}],
        USER,
        ("user", "unknown", "volume-7"),
    ),
    asked(
        "with a tool's history",
        [
            HI,
            {"role": "assistant", "content": None, "tool_calls": [call(), call('{"city":"Rome"}', call_id="call_2")]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "sun"}]},
            {"role": "assistant", "content": "Rain and sun."},
            {"role": "user", "content": "thanks"},
        ],
        USER,
        ("assistant", "tool_call", *PARIS),
        ("assistant", "tool_call", *ROME),
        ("", "tool_result", "call_1", "rain"),
        ("", "tool_result", "call_2", "sun"),
        ("assistant", "text", "Rain and sun."),
        ("user", "text", "thanks"),
    ),
    asked(
        "with tool results of other forms",
        [
            HI,
            {"role": "assistant", "tool_calls": [call(call_id=name) for name in ("a", "b", "c", "d")]},
            {"role": "tool", "tool_call_id": "a", "content": ""},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
            {"role": "tool", "tool_call_id": "c", "content": {"degrees": 21}},
            {"role": "tool", "tool_call_id": "d", "content": None},
        ],
        USER,
        *[("assistant", "tool_call", *PARIS)] * 4,
        ("", "tool_result", "a", ""),
        ("", "tool_result", "b", PIXEL),
        ("", "tool_result", "c", "degrees"),
        ("", "tool_result", "d", ""),
    ),
    asked(
        "with a function's history in the old form",
        [
            HI,
            {"role": "assistant", "content": None, "function_call": call()["function"]},
            {"role": "function", "name": "get_weather", "content": "rain"},
        ],
        USER,
        ("assistant", "tool_call", *PARIS),
        ("", "tool_result", "", "rain"),
    ),
    asked(
        "with a custom tool's history",
        [
            HI,
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "run", "input": "1"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ],
        USER,
        ("assistant", "tool_call", "custom", "run", "1"),
        ("", "tool_result", "c", "1"),
    ),
    asked(
        "with reasoning and a refusal",
        [
            HI,
            {"role": "assistant", "content": "42", "reasoning_content": "6*7"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "refusal": "No."},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        ],
        USER,
        ("assistant", "reasoning", "6*7"),
        ("assistant", "text", "42"),
        USER,
        ("assistant", "refusal", "No."),
        USER,
        ("assistant", "refusal", "Never."),
    ),
    asked("of an unknown role", [{"role": "critic", "content": "Hm."}, HI], ("critic", "text", "Hm."), USER),
    asked(
        "with an audio answer before it",
        [HI, {"role": "assistant", "audio": {"id": "audio_1"}}],
        USER,
        ("assistant", "audio", "audio_1"),
    ),
    asked("as a list of strings", [{"role": "user", "content": ["hi", "ho"]}], USER, ("user", "text", "ho")),
    asked("that is empty", []),
    asked(
        "with a setting of every kind",
        [HI],
        USER,
        temperature=0.5,
        top_p=0.9,
        max_completion_tokens=50,
        seed=7,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        stop=["\n"],
        response_format={"type": "json_object"},
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        reasoning_effort="low",
    ),
)

ENTRIES = (*TEXTS, *TOOLS, *CHOICES, *TOKENS, *USAGES, *STREAMS, *PROMPTS)
