"""Responses and streams of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from tests.model_calls.entries import MODEL, Answer, Entry, Json, flat, named_event

ID = "msg_1"
QUESTION: Json = {
    "model": MODEL,
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "What is six times seven?"}],
}
USAGE: Json = {"input_tokens": 9, "output_tokens": 4}
COUNTS = {"prompt": 9, "completion": 4, "total": 13}
PNG: Json = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def response(*blocks: Json, stop: str | None = "end_turn", **details: Any) -> Json:
    """Return a response with these content blocks."""
    return {
        "id": ID,
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(blocks),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": USAGE,
        **details,
    }


def started(**usage: Any) -> Json:
    """Return the first event of a stream."""
    message = response(stop=None, usage={"input_tokens": 9, "output_tokens": 1, **usage})
    return {"type": "message_start", "message": message}


def block(index: int, start: Json, *deltas: Json, stops: bool = True) -> list[Json]:
    """Return the events of one content block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        *([{"type": "content_block_stop", "index": index}] if stops else []),
    ]


def ended(reason: str | None = "end_turn", usage: Any = None, **details: Any) -> list[Json]:
    """Return the last events of a stream."""
    delta = {"stop_reason": reason, "stop_sequence": None, **details}
    counts = {"output_tokens": 4} if usage is None else usage
    return [{"type": "message_delta", "delta": delta, "usage": counts}, {"type": "message_stop"}]


def stream(*events: Any) -> tuple[bytes, ...]:
    """Return the frames of a stream."""
    return tuple(map(named_event, flat(events)))


def streamed(*blocks: list[Json], reason: str = "end_turn", **details: Any) -> tuple[bytes, ...]:
    """Return the frames of a complete stream with these blocks."""
    return stream(started(), *blocks, ended(reason, **details))


def text(*pieces: str, index: int = 0) -> list[Json]:
    """Return the events of a text block."""
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def inputs(*pieces: str) -> list[Json]:
    """Return the deltas of a tool's input."""
    return [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def entry(name: str, *answers: Answer, **details: Any) -> Entry:
    """Return an entry of this protocol."""
    fields: dict[str, Any] = {"request": QUESTION, "response_id": ID, "usage": COUNTS, **details}
    return Entry(name=f"messages {name}", protocol="messages", answers=answers, **fields)


PLAIN = Answer(text="It is 42.", finish="end_turn")
TEXT_BLOCK: Json = {"type": "text", "text": "It is 42."}
WEATHER: Json = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
TOOL: Json = {
    "name": "get_weather",
    "description": "Calls get_weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CITATION: Json = {
    "type": "char_location",
    "cited_text": "six times seven",
    "document_index": 0,
    "document_title": "Sums",
    "start_char_index": 0,
    "end_char_index": 15,
}
SEARCH_RESULT: Json = {
    "type": "web_search_result",
    "url": "https://example.com/rain",
    "title": "Rain",
    "encrypted_content": "EqgfCioIARgB",
    "page_age": None,
}


def called(*tools: tuple[str, str, Any], **details: Any) -> Answer:
    """Return the facts of a message with these tool calls."""
    fields: dict[str, Any] = {"finish": "tool_use", "tools": tools, **details}
    return Answer(**fields)


TEXTS = (
    entry(
        "text",
        PLAIN,
        response=response(TEXT_BLOCK),
        frames=streamed(text("It is ", "42.")),
        prompt=(("user", "text", "What is six times seven?"),),
    ),
    entry("no blocks", Answer(finish="end_turn"), response=response(), frames=streamed()),
    entry(
        "empty text",
        Answer(finish="end_turn"),
        response=response({"type": "text", "text": ""}),
        frames=streamed(text("")),
    ),
    entry(
        "Unicode",
        Answer(text="Grüße 🦜", finish="end_turn"),
        response=response({"type": "text", "text": "Grüße 🦜"}),
        frames=streamed(text("Grü", "ße 🦜")),
    ),
    entry(
        "two texts",
        Answer(text="It is 42.", finish="end_turn", kinds=("text", "text")),
        response=response({"type": "text", "text": "It is "}, {"type": "text", "text": "42."}),
        frames=streamed(text("It", " is "), text("42.", index=1)),
    ),
    entry(
        "text in the start of its block",
        PLAIN,
        frames=streamed(block(0, {"type": "text", "text": "It is "}, {"type": "text_delta", "text": "42."})),
    ),
    entry(
        "citations",
        Answer(text="It is 42.", finish="end_turn", fragments=("six times seven",)),
        response=response({**TEXT_BLOCK, "citations": [CITATION]}),
        frames=streamed(
            block(
                0,
                {"type": "text", "text": "", "citations": []},
                {"type": "citations_delta", "citation": CITATION},
                {"type": "text_delta", "text": "It is "},
                {"type": "text_delta", "text": "42."},
            )
        ),
    ),
    entry(
        "two citations",
        Answer(text="It is 42.", finish="end_turn", fragments=("six times seven", "Products")),
        response=response({**TEXT_BLOCK, "citations": [CITATION, {**CITATION, "document_title": "Products"}]}),
        frames=streamed(
            block(
                0,
                {"type": "text", "text": "", "citations": None},
                {"type": "text_delta", "text": "It is 42."},
                {"type": "citations_delta", "citation": CITATION},
                {"type": "citations_delta", "citation": {**CITATION, "document_title": "Products"}},
            )
        ),
    ),
    entry(
        "thinking",
        Answer(
            text="It is 42.", reasoning="6*7", finish="end_turn", fragments=("sig-abc",), kinds=("reasoning", "text")
        ),
        request={**QUESTION, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        response=response({"type": "thinking", "thinking": "6*7", "signature": "sig-abc"}, TEXT_BLOCK),
        frames=streamed(
            block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "6*"},
                {"type": "thinking_delta", "thinking": "7"},
                {"type": "signature_delta", "signature": "sig-abc"},
            ),
            text("It is 42.", index=1),
        ),
    ),
    entry(
        "thinking that is not shown",
        Answer(text="It is 42.", finish="end_turn", fragments=("sig-abc",), kinds=("reasoning", "text")),
        response=response({"type": "thinking", "thinking": "", "signature": "sig-abc"}, TEXT_BLOCK),
        frames=streamed(
            block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "signature_delta", "signature": "sig-abc"},
            ),
            text("It is 42.", index=1),
        ),
    ),
    entry(
        "redacted thinking",
        Answer(
            text="It is 42.",
            reasoning="6*7",
            finish="end_turn",
            fragments=("EmwKAhgB",),
            kinds=("reasoning", "reasoning", "text"),
        ),
        response=response(
            {"type": "thinking", "thinking": "6*7", "signature": "s"},
            {"type": "redacted_thinking", "data": "EmwKAhgB"},
            TEXT_BLOCK,
        ),
        frames=streamed(
            block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "6*7"},
                {"type": "signature_delta", "signature": "s"},
            ),
            block(1, {"type": "redacted_thinking", "data": "EmwKAhgB"}),
            text("It is 42.", index=2),
        ),
    ),
    entry(
        "thinking between tools",
        called(
            ("function", "get_weather", {"city": "Paris"}),
            reasoning="ab",
            text="x",
            kinds=("reasoning", "text", "reasoning", "tool_call"),
        ),
        response=response(
            {"type": "thinking", "thinking": "a", "signature": "s"},
            {"type": "text", "text": "x"},
            {"type": "thinking", "thinking": "b", "signature": "t"},
            WEATHER,
            stop="tool_use",
        ),
    ),
    *(
        entry(
            f"stop reason {reason}",
            Answer(text="It is 42.", finish=reason),
            response=response(TEXT_BLOCK, stop=reason),
            frames=streamed(text("It is 42."), reason=reason),
        )
        for reason in ("max_tokens", "pause_turn", "refusal", "model_context_window_exceeded")
    ),
    entry(
        "stop sequence",
        Answer(text="It is 42", finish="stop_sequence"),
        request={**QUESTION, "stop_sequences": ["."]},
        response=response({"type": "text", "text": "It is 42"}, stop="stop_sequence", stop_sequence="."),
        frames=stream(started(), text("It is 42"), ended("stop_sequence", stop_sequence=".")),
    ),
)

TOOLS = (
    entry(
        "tool use",
        called(("function", "get_weather", {"city": "Paris"}), call_ids=("toolu_1",)),
        request={**QUESTION, "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}]},
        tools=("get_weather", "web_search"),
        response=response(WEATHER, stop="tool_use"),
        frames=streamed(block(0, {**WEATHER, "input": {}}, *inputs("", '{"city":', ' "Paris"}')), reason="tool_use"),
    ),
    entry(
        "tool use without arguments",
        called(("function", "now", {})),
        response=response({**WEATHER, "name": "now", "input": {}}, stop="tool_use"),
        frames=streamed(block(0, {**WEATHER, "name": "now", "input": {}}), reason="tool_use"),
    ),
    entry(
        "tool use with empty pieces of arguments",
        called(("function", "now", {})),
        frames=streamed(block(0, {**WEATHER, "name": "now", "input": {}}, *inputs("", "")), reason="tool_use"),
    ),
    entry(
        "tool use with null in its arguments",
        called(("function", "get_weather", {"city": None, "days": [], "of": {}})),
        response=response({**WEATHER, "input": {"city": None, "days": [], "of": {}}}, stop="tool_use"),
        frames=streamed(
            block(0, {**WEATHER, "input": {}}, *inputs('{"city": null, "days": [], "of": {}}')), reason="tool_use"
        ),
    ),
    entry(
        "tool use with arguments that are not JSON",
        called(("function", "get_weather", '{"city": Paris')),
        frames=streamed(block(0, {**WEATHER, "input": {}}, *inputs('{"city"', ": Paris")), reason="tool_use"),
    ),
    entry(
        "tool use with its input at the start of the block",
        called(("function", "get_weather", {"city": "Paris"})),
        frames=streamed(block(0, WEATHER), reason="tool_use"),
    ),
    entry(
        "parallel tool uses after text",
        called(
            ("function", "get_weather", {"city": "Paris"}),
            ("function", "get_weather", {"city": "Rome"}),
            text="I look.",
            call_ids=("toolu_1", "toolu_2"),
        ),
        response=response(
            {"type": "text", "text": "I look."},
            WEATHER,
            {**WEATHER, "id": "toolu_2", "input": {"city": "Rome"}},
            stop="tool_use",
        ),
        frames=streamed(
            text("I look."),
            block(1, {**WEATHER, "input": {}}, *inputs('{"city": "Paris"}')),
            block(2, {**WEATHER, "id": "toolu_2", "input": {}}, *inputs('{"city": "Rome"}')),
            reason="tool_use",
        ),
    ),
    entry(
        "blocks by turns",
        called(("function", "get_weather", {"city": "Paris"}), ("function", "get_weather", {"city": "Rome"})),
        frames=stream(
            started(),
            block(0, {**WEATHER, "input": {}}, *inputs('{"city":'), stops=False),
            block(1, {**WEATHER, "id": "toolu_2", "input": {}}, *inputs('{"city":'), stops=False),
            {"type": "content_block_delta", "index": 0, "delta": inputs('"Paris"}')[0]},
            {"type": "content_block_delta", "index": 1, "delta": inputs('"Rome"}')[0]},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_stop", "index": 1},
            ended("tool_use"),
        ),
    ),
    entry(
        "web search",
        Answer(
            text="It rains.",
            finish="end_turn",
            tools=(("server_tool_use", "web_search", {"query": "rain"}),),
            results=("https://example.com/rain",),
            kinds=("tool_call", "tool_result", "text"),
        ),
        response=response(
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rain"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [SEARCH_RESULT]},
            {"type": "text", "text": "It rains."},
        ),
        frames=streamed(
            block(
                0,
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
                *inputs('{"query":', ' "rain"}'),
            ),
            block(1, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [SEARCH_RESULT]}),
            text("It rains.", index=2),
        ),
    ),
    entry(
        "web search that failed",
        Answer(finish="end_turn", results=("max_uses_exceeded",)),
        response=response(
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
            }
        ),
    ),
    entry(
        "web fetch",
        Answer(
            finish="end_turn",
            tools=(("server_tool_use", "web_fetch", {"url": "https://example.com"}),),
            results=("Example Domain",),
        ),
        response=response(
            {
                "type": "server_tool_use",
                "id": "srvtoolu_1",
                "name": "web_fetch",
                "input": {"url": "https://example.com"},
            },
            {
                "type": "web_fetch_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": {
                    "type": "web_fetch_result",
                    "url": "https://example.com",
                    "retrieved_at": None,
                    "content": {
                        "type": "document",
                        "title": None,
                        "citations": None,
                        "source": {"type": "text", "media_type": "text/plain", "data": "Example Domain"},
                    },
                },
            },
        ),
    ),
    entry(
        "code execution",
        Answer(
            finish="end_turn",
            tools=(("server_tool_use", "bash_code_execution", {"command": "ls"}),),
            results=("total 8",),
        ),
        response=response(
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution", "input": {"command": "ls"}},
            {
                "type": "bash_code_execution_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": {
                    "type": "bash_code_execution_result",
                    "stdout": "total 8",
                    "stderr": "",
                    "return_code": 0,
                    "content": [],
                },
            },
            container={"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"},
        ),
        frames=streamed(
            block(
                0,
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution", "input": {}},
                *inputs('{"command": "ls"}'),
            ),
            block(
                1,
                {
                    "type": "bash_code_execution_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": {
                        "type": "bash_code_execution_result",
                        "stdout": "total 8",
                        "stderr": "",
                        "return_code": 0,
                        "content": [],
                    },
                },
            ),
        ),
    ),
    entry(
        "MCP",
        Answer(
            finish="end_turn",
            tools=(("mcp_tool_use", "lookup", {"q": 1}),),
            results=("forty-two",),
            fragments=("math-server",),
        ),
        response=response(
            {
                "type": "mcp_tool_use",
                "id": "mcptoolu_1",
                "name": "lookup",
                "server_name": "math-server",
                "input": {"q": 1},
            },
            {
                "type": "mcp_tool_result",
                "tool_use_id": "mcptoolu_1",
                "is_error": False,
                "content": [{"type": "text", "text": "forty-two"}],
            },
        ),
        frames=streamed(
            block(
                0,
                {
                    "type": "mcp_tool_use",
                    "id": "mcptoolu_1",
                    "name": "lookup",
                    "server_name": "math-server",
                    "input": {},
                },
                *inputs('{"q":', " 1}"),
            ),
            block(
                1,
                {
                    "type": "mcp_tool_result",
                    "tool_use_id": "mcptoolu_1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "forty-two"}],
                },
            ),
        ),
    ),
    entry(
        "container upload",
        Answer(text="Done.", finish="end_turn", media=("document",), fragments=("file_011",)),
        response=response({"type": "container_upload", "file_id": "file_011"}, {"type": "text", "text": "Done."}),
        frames=streamed(block(0, {"type": "container_upload", "file_id": "file_011"}), text("Done.", index=1)),
    ),
    entry(
        "block of an unknown type",
        Answer(
            text="Done.", finish="end_turn", unknown=("hologram",), fragments=("volume-7",), kinds=("unknown", "text")
        ),
        response=response({"type": "hologram", "data": "volume-7", "none": None}, {"type": "text", "text": "Done."}),
        frames=streamed(block(0, {"type": "hologram", "data": "volume-7", "none": None}), text("Done.", index=1)),
    ),
    entry(
        "block of an unknown type in pieces",
        Answer(finish="end_turn", unknown=("hologram",), fragments=("volume-7",)),
        frames=streamed(
            block(
                0,
                {"type": "hologram", "data": ""},
                {"type": "hologram_delta", "data": "volume"},
                {"type": "hologram_delta", "data": "-7"},
            )
        ),
    ),
    entry(
        "compaction",
        Answer(text="Done.", finish="end_turn", unknown=("compaction",), fragments=("A summary so far",)),
        response=response({"type": "compaction", "content": "A summary so far"}, {"type": "text", "text": "Done."}),
        frames=streamed(
            block(
                0, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "A summary so far"}
            ),
            text("Done.", index=1),
        ),
    ),
)


def counted(name: str, usage: Any, **counts: int) -> Entry:
    """Return an entry whose response has this usage."""
    return entry(f"usage {name}", PLAIN, response=response(TEXT_BLOCK, usage=usage), usage=counts)


def counted_stream(name: str, start: Json, *updates: Any, **counts: int) -> Entry:
    """Return an entry whose stream has these counts in its first event and in its `message_delta` events."""
    last = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": update} for update in updates]
    frames = stream(
        {"type": "message_start", "message": response(stop=None, usage=start)},
        text("It is 42."),
        last,
        {"type": "message_stop"},
    )
    return entry(f"usage {name}", PLAIN, frames=frames, usage=counts)


CACHES: Json = {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
CACHED = {"prompt": 129, "completion": 4, "total": 133, "cached": 100, "cache_write": 20}
USAGES = (
    counted("with caches", {**USAGE, **CACHES}, **CACHED),
    counted(
        "with caches of two durations",
        {**USAGE, **CACHES, "cache_creation": {"ephemeral_5m_input_tokens": 15, "ephemeral_1h_input_tokens": 5}},
        **CACHED,
    ),
    counted(
        "with caches of two durations without a sum",
        {
            **USAGE,
            "cache_read_input_tokens": 100,
            "cache_creation": {"ephemeral_5m_input_tokens": 15, "ephemeral_1h_input_tokens": 5},
        },
        **CACHED,
    ),
    counted(
        "with caches that are null",
        {**USAGE, "cache_read_input_tokens": None, "cache_creation_input_tokens": None},
        **COUNTS,
    ),
    counted(
        "with caches that are zero",
        {**USAGE, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
        **COUNTS,
        cached=0,
        cache_write=0,
    ),
    counted("with thinking", {**USAGE, "output_tokens_details": {"thinking_tokens": 3}}, **COUNTS, reasoning=3),
    counted(
        "with tools of the server",
        {**USAGE, "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0}, "service_tier": "standard"},
        **COUNTS,
    ),
    counted("null", None),
    counted("of the prompt only", {"input_tokens": 9}, prompt=9),
    counted_stream(
        "of a stream with caches", {"input_tokens": 9, **CACHES, "output_tokens": 1}, {"output_tokens": 4}, **CACHED
    ),
    counted_stream(
        "of a stream, repeated at its end",
        {"input_tokens": 9, **CACHES, "output_tokens": 1},
        {"input_tokens": 9, **CACHES, "output_tokens": 4},
        **CACHED,
    ),
    counted_stream(
        "of a stream with null at its end",
        {"input_tokens": 9, **CACHES, "output_tokens": 1},
        {"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 4},
        **CACHED,
    ),
    counted_stream(
        "of a stream, at its end only",
        {"input_tokens": 0, "output_tokens": 0},
        {"input_tokens": 9, "output_tokens": 4},
        **COUNTS,
    ),
    counted_stream(
        "of a stream with two updates",
        {"input_tokens": 9, "output_tokens": 1},
        {"output_tokens": 2},
        {"output_tokens": 4},
        **COUNTS,
    ),
    counted_stream(
        "of a stream with thinking",
        {"input_tokens": 9, "output_tokens": 1},
        {"output_tokens": 4, "output_tokens_details": {"thinking_tokens": 3}},
        **COUNTS,
        reasoning=3,
    ),
    counted_stream(
        "of a stream without usage at its end",
        {"input_tokens": 9, "output_tokens": 1},
        None,
        prompt=9,
        completion=1,
        total=10,
    ),
)

STARTED = {"prompt": 9, "completion": 1, "total": 10}
STREAMS = (
    entry("pings", PLAIN, frames=stream(started(), {"type": "ping"}, text("It is", " 42."), {"type": "ping"}, ended())),
    entry(
        "no names of events",
        PLAIN,
        frames=tuple(frame.partition(b"\n")[2] for frame in streamed(text("It is", " 42."))),
    ),
    entry(
        "lines that end with CRLF",
        PLAIN,
        frames=tuple(frame.replace(b"\n", b"\r\n") for frame in streamed(text("It is", " 42."))),
    ),
    entry("comments", PLAIN, frames=(b": hello\n\n", *streamed(text("It is", " 42.")))),
    entry(
        "no stop of the block",
        PLAIN,
        frames=stream(
            started(),
            block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "It is 42."}, stops=False),
            ended(),
        ),
    ),
    entry("no start of the block", PLAIN, frames=stream(started(), text("It is 42.")[1:], ended())),
    entry("stop twice", PLAIN, frames=(*streamed(text("It is 42.")), *stream({"type": "message_stop"}))),
    entry("no message_stop", PLAIN, frames=stream(started(), text("It is 42."), ended()[:1])),
    entry("no end", Answer(text="It is"), frames=stream(started(), text("It is")[:2]), ends=False, usage=STARTED),
    entry(
        "no end in a tool use",
        Answer(tools=(("function", "get_weather", '{"city": "Pa'),)),
        frames=stream(started(), block(0, {**WEATHER, "input": {}}, *inputs('{"city":', ' "Pa'), stops=False)),
        ends=False,
        usage=STARTED,
    ),
    entry("start only", Answer(), frames=stream(started()), ends=False, usage=STARTED),
    entry(
        "error in the middle",
        Answer(text="It is"),
        frames=stream(
            started(),
            text("It is")[:2],
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        ),
        ends=False,
        error="Overloaded",
        usage=STARTED,
    ),
    entry(
        "event of an unknown type",
        PLAIN,
        frames=stream(started(), {"type": "weather_report", "rain": True}, text("It is 42."), ended()),
    ),
    entry(
        "token ids",
        Answer(text="It is 42.", finish="end_turn", token_ids=(21, 22)),
        response=response(TEXT_BLOCK, prompt_token_ids=[11, 12], response_token_ids=[21, 22]),
        prompt_token_ids=(11, 12),
    ),
)


def asked(name: str, messages: list[Json], *prompt: tuple[str, ...], **request: Any) -> Entry:
    """Return an entry about a prompt."""
    request = {"model": MODEL, "max_tokens": 50, "messages": messages, **request}
    return entry(f"prompt {name}", PLAIN, request=request, response=response(TEXT_BLOCK), prompt=prompt)


def result(content: Any = ..., call_id: str = "toolu_1", **details: Any) -> Json:
    """Return a message with the result of a tool."""
    fields = {
        "type": "tool_result",
        "tool_use_id": call_id,
        **({} if content is ... else {"content": content}),
        **details,
    }
    return {"role": "user", "content": [fields]}


USER = ("user", "text", "hi")
HI: Json = {"role": "user", "content": "hi"}
USED: Json = {"role": "assistant", "content": [WEATHER]}
WAS_USED = ("assistant", "tool_call", "function", "get_weather", '{"city":"Paris"}')
PROMPTS = (
    asked("with system text", [HI], ("system", "text", "Be brief."), USER, system="Be brief."),
    asked(
        "with system blocks",
        [HI],
        ("system", "text", "Be brief."),
        ("system", "text", "Be kind."),
        USER,
        system=[
            {"type": "text", "text": "Be brief."},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
        ],
    ),
    asked(
        "with media",
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": PNG},
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}},
                    {
                        "type": "document",
                        "title": "Sums",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
                    },
                    {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ],
        ("user", "image", "iVBORw0KGgo="),
        ("user", "image", "https://example.com/cat.png"),
        ("user", "document", "JVBERg=="),
        USER,
    ),
    asked("with a result as text", [HI, USED, result("rain")], USER, WAS_USED, ("", "tool_result", "toolu_1", "rain")),
    asked(
        "with a result as a list",
        [HI, USED, result([{"type": "text", "text": "rain"}, {"type": "text", "text": "soon"}])],
        USER,
        WAS_USED,
        ("", "tool_result", "toolu_1", "soon"),
    ),
    asked(
        "with a result as an image",
        [HI, USED, result([{"type": "image", "source": PNG}])],
        USER,
        WAS_USED,
        ("", "tool_result", "toolu_1", "iVBORw0KGgo="),
    ),
    asked(
        "with a failed result",
        [HI, USED, result("no such city", is_error=True)],
        USER,
        WAS_USED,
        ("", "tool_result", "toolu_1", "is_error"),
    ),
    asked("with an empty result", [HI, USED, result()], USER, WAS_USED, ("", "tool_result", "toolu_1", "")),
    asked(
        "with two results and text",
        [
            HI,
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "I look."}, WEATHER, {**WEATHER, "id": "toolu_2"}],
            },
            {
                "role": "user",
                "content": [
                    result("rain")["content"][0],
                    result("sun", "toolu_2")["content"][0],
                    {"type": "text", "text": "hi"},
                ],
            },
        ],
        USER,
        ("assistant", "text", "I look."),
        WAS_USED,
        WAS_USED,
        ("", "tool_result", "toolu_1", "rain"),
        ("", "tool_result", "toolu_2", "sun"),
        USER,
    ),
    asked(
        "with thinking",
        [
            HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "6*7", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "42"},
                ],
            },
            HI,
        ],
        USER,
        ("assistant", "reasoning", "6*7"),
        ("assistant", "reasoning", ""),
        ("assistant", "text", "42"),
        USER,
    ),
    asked(
        "with a server's tool",
        [
            HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rain"}},
                    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [SEARCH_RESULT]},
                ],
            },
            HI,
        ],
        USER,
        ("assistant", "tool_call", "server_tool_use", "web_search", '{"query":"rain"}'),
        ("", "tool_result", "srvtoolu_1", "https://example.com/rain"),
        USER,
    ),
    asked(
        "with a block of an unknown type",
        [{"role": "user", "content": [{"type": "hologram", "data": "volume-7"}]}],
        ("user", "unknown", "volume-7"),
    ),
    asked(
        "with the beginning of the answer",
        [HI, {"role": "assistant", "content": "It is"}],
        USER,
        ("assistant", "text", "It is"),
    ),
)

ENTRIES = (*TEXTS, *TOOLS, *USAGES, *STREAMS, *PROMPTS)
