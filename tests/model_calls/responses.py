"""Responses and streams of OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

from tests.model_calls.entries import DONE, MODEL, Answer, Entry, Json, flat, named_event

ID = "resp_1"
QUESTION: Json = {"model": MODEL, "input": "What is six times seven?"}
USAGE: Json = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 13,
}
COUNTS = {"prompt": 9, "completion": 4, "total": 13, "cached": 8, "cache_write": 0, "reasoning": 3}


def response(*items: Json, status: str = "completed", **details: Any) -> Json:
    """Return a response with these output items."""
    return {
        "id": ID,
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **details,
    }


def stream(*events: Any, done: bool = False) -> tuple[bytes, ...]:
    """Return the frames of a stream, with numbers."""
    frames = [named_event({"sequence_number": number, **event}) for number, event in enumerate(flat(events))]
    return (*frames, *([DONE] if done else []))


def created() -> list[Json]:
    """Return the first events of a stream."""
    return [
        {"type": f"response.{name}", "response": response(status="in_progress", usage=None)}
        for name in ("created", "in_progress")
    ]


def completed(*items: Json, **details: Any) -> Json:
    """Return the last event of a stream."""
    fields: dict[str, Any] = {"usage": USAGE, **details}
    return {"type": "response.completed", "response": response(*items, **fields)}


def added(index: int, item: Json) -> Json:
    """Return the event for the start of an item."""
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, item: Json) -> Json:
    """Return the event for the end of an item."""
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(kind: str, piece: Any, index: int = 0, **details: Any) -> Json:
    """Return an event with a piece of an item."""
    return {
        "type": f"response.{kind}.delta",
        "output_index": index,
        "item_id": f"item_{index}",
        "delta": piece,
        **details,
    }


def message(*parts: Json, index: int = 0, status: str = "completed", **details: Any) -> Json:
    """Return a message item."""
    return {
        "type": "message",
        "id": f"item_{index}",
        "role": "assistant",
        "status": status,
        "content": list(parts),
        **details,
    }


def text_part(text: str, **details: Any) -> Json:
    """Return a text part."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [], **details}


def part(name: str, value: Json, index: int = 0, at: int = 0) -> Json:
    """Return an event for the start or the end of a part of a message."""
    return {
        "type": f"response.content_part.{name}",
        "output_index": index,
        "content_index": at,
        "item_id": f"item_{index}",
        "part": value,
    }


def text(*pieces: str, index: int = 0) -> list[Json]:
    """Return the events of a message with one text part."""
    joined = text_part("".join(pieces))
    return [
        added(index, message(index=index, status="in_progress")),
        part("added", text_part(""), index),
        *(delta("output_text", piece, index, content_index=0, logprobs=[]) for piece in pieces),
        {
            "type": "response.output_text.done",
            "output_index": index,
            "content_index": 0,
            "item_id": f"item_{index}",
            "text": joined["text"],
            "logprobs": [],
        },
        part("done", joined, index),
        done(index, message(joined, index=index)),
    ]


def item(kind: str, index: int = 0, **fields: Any) -> Json:
    """Return an output item that is no message."""
    return {"type": kind, "id": f"item_{index}", **fields}


def function_call(
    arguments: Any = '{"city":"Paris"}', name: str = "get_weather", index: int = 0, call_id: str = "call_1"
) -> Json:
    """Return a call of a function."""
    return item("function_call", index, call_id=call_id, name=name, arguments=arguments, status="completed")


def argued(call: Json, *pieces: str, index: int = 0) -> list[Json]:
    """Return the events of a call of a function."""
    return [
        added(index, {**call, "arguments": "", "status": "in_progress"}),
        *(delta("function_call_arguments", piece, index) for piece in pieces),
        {
            "type": "response.function_call_arguments.done",
            "output_index": index,
            "item_id": call["id"],
            "name": call["name"],
            "arguments": "".join(pieces),
        },
        done(index, {**call, "arguments": "".join(pieces)}),
    ]


def entry(name: str, *answers: Answer, **details: Any) -> Entry:
    """Return an entry of this protocol."""
    fields: dict[str, Any] = {"request": QUESTION, "response_id": ID, **details}
    return Entry(name=f"responses {name}", protocol="responses", answers=answers, **fields)


def tool(name: str, tools: Any, events: list[Any], *items: Json, **details: Any) -> Entry:
    """Return an entry with tool calls, whose stream has these events before its last."""
    fields: dict[str, Any] = {"finish": "completed", "tools": tools, **details}
    answer = Answer(**fields)
    return entry(
        name,
        answer,
        response=response(*items, usage=USAGE),
        frames=stream(
            created(),
            events or [pair for i, one in enumerate(items) for pair in (added(i, one), done(i, one))],
            completed(*items),
        ),
        usage=COUNTS,
    )


PLAIN = Answer(text="It is 42.", finish="completed")
TEXT_MESSAGE = message(text_part("It is 42."))
URL: Json = {
    "type": "url_citation",
    "url": "https://example.com/rain",
    "title": "Rain",
    "start_index": 0,
    "end_index": 9,
}
LOGPROBS: list[Json] = [
    {
        "token": "It",
        "logprob": -0.25,
        "bytes": [73, 116],
        "top_logprobs": [{"token": "It", "logprob": -0.25, "bytes": [73, 116]}],
    },
    {"token": " is", "logprob": -0.5, "bytes": [], "top_logprobs": []},
]
THOUGHT = item("reasoning", summary=[{"type": "summary_text", "text": "I multiply."}])

TEXTS = (
    entry(
        "text",
        PLAIN,
        response=response(TEXT_MESSAGE, usage=USAGE),
        frames=stream(created(), text("It is ", "42."), completed(TEXT_MESSAGE)),
        usage=COUNTS,
        prompt=(("user", "text", "What is six times seven?"),),
    ),
    entry(
        "Unicode",
        Answer(text="Grüße 🦜", finish="completed"),
        response=response(message(text_part("Grüße 🦜"))),
        frames=stream(created(), text("Grü", "ße 🦜"), completed(message(text_part("Grüße 🦜")), usage=None)),
    ),
    entry("no items", Answer(finish="completed"), response=response(), frames=stream(created(), completed(usage=None))),
    entry(
        "two parts",
        Answer(text="It is 42.", finish="completed", kinds=("text", "text")),
        response=response(message(text_part("It is "), text_part("42."))),
        frames=stream(
            created(),
            added(0, message(status="in_progress")),
            part("added", text_part("")),
            delta("output_text", "It is ", content_index=0),
            part("done", text_part("It is ")),
            part("added", text_part(""), at=1),
            delta("output_text", "42.", content_index=1),
            part("done", text_part("42."), at=1),
            done(0, message(text_part("It is "), text_part("42."))),
            completed(message(text_part("It is "), text_part("42.")), usage=None),
        ),
    ),
    entry(
        "two messages",
        Answer(text="It is 42.", finish="completed"),
        response=response(message(text_part("It is ")), message(text_part("42."), index=1)),
        frames=stream(
            created(),
            text("It is "),
            text("42.", index=1),
            completed(message(text_part("It is ")), message(text_part("42."), index=1), usage=None),
        ),
    ),
    entry(
        "refusal",
        Answer(refusal="I cannot.", finish="completed"),
        response=response(message({"type": "refusal", "refusal": "I cannot."})),
        frames=stream(
            created(),
            added(0, message(status="in_progress")),
            part("added", {"type": "refusal", "refusal": ""}),
            delta("refusal", "I ", content_index=0),
            delta("refusal", "cannot.", content_index=0),
            {
                "type": "response.refusal.done",
                "output_index": 0,
                "content_index": 0,
                "item_id": "item_0",
                "refusal": "I cannot.",
            },
            part("done", {"type": "refusal", "refusal": "I cannot."}),
            done(0, message({"type": "refusal", "refusal": "I cannot."})),
            completed(message({"type": "refusal", "refusal": "I cannot."}), usage=None),
        ),
    ),
    entry(
        "annotations",
        Answer(text="It rains.", finish="completed", fragments=("https://example.com/rain",)),
        response=response(message(text_part("It rains.", annotations=[URL]))),
        frames=stream(
            created(),
            text("It rains.")[:4],
            {
                "type": "response.output_text.annotation.added",
                "output_index": 0,
                "content_index": 0,
                "item_id": "item_0",
                "annotation_index": 0,
                "annotation": URL,
            },
            done(0, message(text_part("It rains.", annotations=[URL]))),
            completed(message(text_part("It rains.", annotations=[URL])), usage=None),
        ),
    ),
    entry(
        "annotation without the end of its item",
        Answer(text="It rains.", fragments=("https://example.com/rain",)),
        frames=stream(
            created(),
            text("It rains.")[:4],
            {
                "type": "response.output_text.annotation.added",
                "output_index": 0,
                "content_index": 0,
                "item_id": "item_0",
                "annotation_index": 0,
                "annotation": URL,
            },
        ),
        ends=False,
    ),
    entry(
        "log probabilities",
        Answer(text="It is", finish="completed", logprobs=(-0.25, -0.5)),
        request={**QUESTION, "include": ["message.output_text.logprobs"], "top_logprobs": 1},
        response=response(message(text_part("It is", logprobs=LOGPROBS))),
        frames=stream(
            created(),
            added(0, message(status="in_progress")),
            part("added", text_part("")),
            delta("output_text", "It", content_index=0, logprobs=LOGPROBS[:1]),
            delta("output_text", " is", content_index=0, logprobs=LOGPROBS[1:]),
            part("done", text_part("It is", logprobs=LOGPROBS)),
            done(0, message(text_part("It is", logprobs=LOGPROBS))),
            completed(message(text_part("It is", logprobs=LOGPROBS)), usage=None),
        ),
    ),
    entry(
        "log probabilities in deltas only",
        Answer(text="It is", finish="completed", logprobs=(-0.25, -0.5)),
        frames=stream(
            created(),
            added(0, message(status="in_progress")),
            part("added", text_part("")),
            delta("output_text", "It", content_index=0, logprobs=LOGPROBS[:1]),
            delta("output_text", " is", content_index=0, logprobs=LOGPROBS[1:]),
            completed(usage=None),
        ),
    ),
    entry(
        "reasoning summary",
        Answer(text="It is 42.", reasoning="I multiply.", finish="completed", kinds=("reasoning", "text")),
        response=response(THOUGHT, message(text_part("It is 42."), index=1), usage=USAGE),
        frames=stream(
            created(),
            added(0, item("reasoning", summary=[])),
            {
                "type": "response.reasoning_summary_part.added",
                "output_index": 0,
                "summary_index": 0,
                "item_id": "item_0",
                "part": {"type": "summary_text", "text": ""},
            },
            delta("reasoning_summary_text", "I ", summary_index=0),
            delta("reasoning_summary_text", "multiply.", summary_index=0),
            {
                "type": "response.reasoning_summary_text.done",
                "output_index": 0,
                "summary_index": 0,
                "item_id": "item_0",
                "text": "I multiply.",
            },
            {
                "type": "response.reasoning_summary_part.done",
                "output_index": 0,
                "summary_index": 0,
                "item_id": "item_0",
                "part": {"type": "summary_text", "text": "I multiply."},
            },
            done(0, THOUGHT),
            text("It is 42.", index=1),
            completed(THOUGHT, message(text_part("It is 42."), index=1)),
        ),
        usage=COUNTS,
    ),
    entry(
        "reasoning summary in deltas only",
        Answer(reasoning="I multiply."),
        frames=stream(
            created(),
            added(0, item("reasoning", summary=[])),
            delta("reasoning_summary_text", "I ", summary_index=0),
            delta("reasoning_summary_text", "multiply.", summary_index=0),
        ),
        ends=False,
    ),
    entry(
        "reasoning text",
        Answer(text="It is 42.", reasoning="6*7", finish="completed"),
        response=response(
            item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "6*7"}]),
            message(text_part("It is 42."), index=1),
        ),
        frames=stream(
            created(),
            added(0, item("reasoning", summary=[], content=[])),
            part("added", {"type": "reasoning_text", "text": ""}),
            delta("reasoning_text", "6*", content_index=0),
            delta("reasoning_text", "7", content_index=0),
            {
                "type": "response.reasoning_text.done",
                "output_index": 0,
                "content_index": 0,
                "item_id": "item_0",
                "text": "6*7",
            },
            done(0, item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "6*7"}])),
            text("It is 42.", index=1),
            completed(
                item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "6*7"}]),
                message(text_part("It is 42."), index=1),
                usage=None,
            ),
        ),
    ),
    entry(
        "encrypted reasoning",
        Answer(text="It is 42.", finish="completed", fragments=("gAAAAencrypted",), kinds=("reasoning", "text")),
        response=response(
            item("reasoning", summary=[], encrypted_content="gAAAAencrypted"), message(text_part("It is 42."), index=1)
        ),
        frames=stream(
            created(),
            added(0, item("reasoning", summary=[], encrypted_content="gAAA")),
            done(0, item("reasoning", summary=[], encrypted_content="gAAAAencrypted")),
            text("It is 42.", index=1),
            completed(
                item("reasoning", summary=[], encrypted_content="gAAAAencrypted"),
                message(text_part("It is 42."), index=1),
                usage=None,
            ),
        ),
    ),
    entry(
        "item of an unknown type",
        Answer(
            text="It is 42.",
            finish="completed",
            unknown=("hologram",),
            fragments=("volume-7",),
            kinds=("unknown", "text"),
        ),
        response=response(item("hologram", data="volume-7", none=None), message(text_part("It is 42."), index=1)),
        frames=stream(
            created(),
            added(0, item("hologram", data="")),
            done(0, item("hologram", data="volume-7", none=None)),
            text("It is 42.", index=1),
            completed(
                item("hologram", data="volume-7", none=None), message(text_part("It is 42."), index=1), usage=None
            ),
        ),
    ),
    entry(
        "part of an unknown type",
        Answer(text="It is 42.", finish="completed", unknown=("hologram",), fragments=("volume-7",)),
        response=response(message({"type": "hologram", "data": "volume-7"}, text_part("It is 42."))),
    ),
    entry(
        "compaction",
        Answer(text="It is 42.", finish="completed", unknown=("compaction",), fragments=("gAAAAcompact",)),
        response=response(
            item("compaction", encrypted_content="gAAAAcompact"), message(text_part("It is 42."), index=1)
        ),
    ),
    entry(
        "phase of a message",
        PLAIN,
        response=response(message(text_part("It is 42."), phase="final_answer")),
    ),
    *(
        entry(
            f"incomplete because of {reason}",
            Answer(text="It is", finish=reason),
            response=response(
                message(text_part("It is"), status="incomplete"),
                status="incomplete",
                incomplete_details={"reason": reason},
            ),
            frames=stream(
                created(),
                text("It is")[:3],
                {
                    "type": "response.incomplete",
                    "response": response(
                        message(text_part("It is"), status="incomplete"),
                        status="incomplete",
                        incomplete_details={"reason": reason},
                    ),
                },
            ),
        )
        for reason in ("max_output_tokens", "content_filter")
    ),
    entry(
        "failed",
        Answer(text="It is", finish="failed"),
        frames=stream(
            created(),
            text("It is")[:3],
            {
                "type": "response.failed",
                "response": response(
                    message(text_part("It is")),
                    status="failed",
                    error={"code": "server_error", "message": "Overloaded"},
                ),
            },
        ),
        error="Overloaded",
    ),
    entry(
        "token ids",
        Answer(text="It is 42.", finish="completed", token_ids=(21, 22)),
        response=response(TEXT_MESSAGE, prompt_token_ids=[11, 12], response_token_ids=[21, 22], usage=USAGE),
        prompt_token_ids=(11, 12),
        usage=COUNTS,
    ),
)

SHELL = item(
    "shell_call",
    call_id="call_1",
    status="completed",
    action={"commands": ["ls"], "max_output_length": None, "timeout_ms": 100},
)
LOCAL_SHELL = item(
    "local_shell_call",
    call_id="call_1",
    status="completed",
    action={"type": "exec", "command": ["ls", "-l"], "env": {}},
)
PATCH = item(
    "apply_patch_call",
    call_id="call_1",
    status="completed",
    operation={"type": "update_file", "path": "a.py", "diff": "+x = 1"},
)
CUSTOM = item("custom_tool_call", call_id="call_1", name="run", input="print(1)\n")
MCP = item(
    "mcp_call",
    server_label="math-server",
    name="lookup",
    arguments='{"q":1}',
    output="forty-two",
    error=None,
    approval_request_id=None,
    status="completed",
)
TOOLS = (
    tool(
        "function call",
        (("function", "get_weather", '{"city":"Paris"}'),),
        argued(function_call(), '{"city":', '"Paris"}'),
        function_call(),
        call_ids=("call_1",),
    ),
    tool(
        "function call with arguments that are not JSON",
        (("function", "get_weather", '{"city": Paris'),),
        argued(function_call('{"city": Paris'), '{"city"', ": Paris"),
        function_call('{"city": Paris'),
    ),
    tool("function call without arguments", (("function", "now", ""),), [], function_call("", "now")),
    tool(
        "function call with an object",
        (("function", "now", {"city": "Paris"}),),
        [],
        function_call({"city": "Paris"}, "now"),
    ),
    tool(
        "parallel function calls",
        (("function", "get_weather", '{"city":"Paris"}'), ("function", "get_weather", '{"city":"Rome"}')),
        [
            added(0, function_call("")),
            added(1, function_call("", index=1, call_id="call_2")),
            delta("function_call_arguments", '{"city":'),
            delta("function_call_arguments", '{"city":', 1),
            delta("function_call_arguments", '"Paris"}'),
            delta("function_call_arguments", '"Rome"}', 1),
            done(0, function_call()),
            done(1, function_call('{"city":"Rome"}', index=1, call_id="call_2")),
        ],
        function_call(),
        function_call('{"city":"Rome"}', index=1, call_id="call_2"),
        call_ids=("call_1", "call_2"),
    ),
    tool(
        "function call after reasoning and text",
        (("function", "get_weather", '{"city":"Paris"}'),),
        [],
        THOUGHT,
        message(text_part("I look."), index=1),
        function_call(index=2),
        reasoning="I multiply.",
        text="I look.",
        kinds=("reasoning", "text", "tool_call"),
    ),
    tool(
        "custom tool call",
        (("custom", "run", "print(1)\n"),),
        [
            added(0, {**CUSTOM, "input": ""}),
            delta("custom_tool_call_input", "print("),
            delta("custom_tool_call_input", "1)\n"),
            {
                "type": "response.custom_tool_call_input.done",
                "output_index": 0,
                "item_id": "item_0",
                "input": "print(1)\n",
            },
            done(0, CUSTOM),
        ],
        CUSTOM,
        call_ids=("call_1",),
    ),
    tool(
        "local shell call",
        (("local_shell_call", "", {"type": "exec", "command": ["ls", "-l"], "env": {}}),),
        [],
        LOCAL_SHELL,
        call_ids=("call_1",),
    ),
    tool("shell call", (("shell_call", "", None),), [], SHELL, call_ids=("call_1",), fragments=("ls", "timeout_ms")),
    tool(
        "patch call", (("apply_patch_call", "", {"type": "update_file", "path": "a.py", "diff": "+x = 1"}),), [], PATCH
    ),
    tool(
        "MCP call",
        (("mcp_call", "lookup", '{"q":1}'),),
        [
            added(0, {**MCP, "arguments": "", "output": None, "status": "in_progress"}),
            delta("mcp_call_arguments", '{"q":'),
            delta("mcp_call_arguments", "1}"),
            {
                "type": "response.mcp_call_arguments.done",
                "output_index": 0,
                "item_id": "item_0",
                "arguments": '{"q":1}',
            },
            {"type": "response.mcp_call.completed", "output_index": 0, "item_id": "item_0"},
            done(0, MCP),
        ],
        MCP,
        fragments=("forty-two", "math-server"),
    ),
    tool(
        "MCP call that failed",
        (("mcp_call", "lookup", "{}"),),
        [],
        {
            **MCP,
            "arguments": "{}",
            "output": None,
            "status": "failed",
            "error": {"type": "http_error", "code": 500, "message": "down"},
        },
        fragments=("http_error",),
    ),
    entry(
        "list of MCP tools",
        Answer(text="It is 42.", finish="completed", results=("lookup",), fragments=("math-server",)),
        response=response(
            item(
                "mcp_list_tools",
                server_label="math-server",
                tools=[
                    {"name": "lookup", "input_schema": {"type": "object"}, "description": None, "annotations": None}
                ],
                error=None,
            ),
            message(text_part("It is 42."), index=1),
        ),
    ),
    entry(
        "approval of an MCP call",
        Answer(
            finish="completed", tools=(("mcp_approval_request", "lookup", "{}"),), fragments=("math-server", "mcpr_1")
        ),
        response=response(
            {
                "type": "mcp_approval_request",
                "id": "mcpr_1",
                "server_label": "math-server",
                "name": "lookup",
                "arguments": "{}",
            }
        ),
    ),
    tool(
        "computer call",
        (("computer_call", "", None),),
        [],
        item(
            "computer_call",
            call_id="call_1",
            status="completed",
            action={"type": "click", "button": "left", "x": 10, "y": 20},
            pending_safety_checks=[],
        ),
        fragments=("left",),
        call_ids=("call_1",),
    ),
    tool(
        "web search call",
        (("web_search_call", "", None),),
        [
            added(0, item("web_search_call", status="in_progress")),
            {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "item_0"},
            {"type": "response.web_search_call.completed", "output_index": 0, "item_id": "item_0"},
            done(
                0,
                item(
                    "web_search_call",
                    status="completed",
                    action={"type": "search", "query": "rain", "queries": ["rain"]},
                ),
            ),
            text("It rains.", index=1),
        ],
        item("web_search_call", status="completed", action={"type": "search", "query": "rain", "queries": ["rain"]}),
        message(text_part("It rains."), index=1),
        text="It rains.",
        fragments=("queries",),
    ),
    tool(
        "file search call",
        (("file_search_call", "", None),),
        [],
        item(
            "file_search_call",
            status="completed",
            queries=["sums"],
            results=[
                {"file_id": "file_1", "filename": "a.txt", "score": 0.5, "text": "six times seven", "attributes": {}}
            ],
        ),
        fragments=("sums", "six times seven"),
    ),
    tool(
        "code interpreter call",
        (("code_interpreter_call", "", None),),
        [
            added(0, item("code_interpreter_call", status="in_progress", code="", container_id="cntr_1", outputs=None)),
            delta("code_interpreter_call_code", "print("),
            delta("code_interpreter_call_code", "6*7)"),
            {
                "type": "response.code_interpreter_call_code.done",
                "output_index": 0,
                "item_id": "item_0",
                "code": "print(6*7)",
            },
            done(
                0,
                item(
                    "code_interpreter_call",
                    status="completed",
                    code="print(6*7)",
                    container_id="cntr_1",
                    outputs=[{"type": "logs", "logs": "42-logged"}],
                ),
            ),
        ],
        item(
            "code_interpreter_call",
            status="completed",
            code="print(6*7)",
            container_id="cntr_1",
            outputs=[{"type": "logs", "logs": "42-logged"}],
        ),
        fragments=("print(6*7)", "42-logged"),
    ),
    entry(
        "code interpreter call in deltas only",
        Answer(tools=(("code_interpreter_call", "", None),), fragments=("print(6*7)",)),
        frames=stream(
            created(),
            added(0, item("code_interpreter_call", status="in_progress", code="", container_id="cntr_1", outputs=None)),
            delta("code_interpreter_call_code", "print("),
            delta("code_interpreter_call_code", "6*7)"),
        ),
        ends=False,
    ),
    tool(
        "image generation call",
        (("image_generation_call", "", None),),
        [
            added(0, item("image_generation_call", status="in_progress", result=None)),
            {
                "type": "response.image_generation_call.partial_image",
                "output_index": 0,
                "item_id": "item_0",
                "partial_image_index": 0,
                "partial_image_b64": "iVBO",
            },
            done(0, item("image_generation_call", status="completed", result="iVBORw0KGgo=", revised_prompt="A cat")),
        ],
        item("image_generation_call", status="completed", result="iVBORw0KGgo=", revised_prompt="A cat"),
        fragments=("iVBORw0KGgo=", "A cat"),
    ),
    tool(
        "search for tools",
        (("tool_search_call", "", None),),
        [],
        item(
            "tool_search_call",
            call_id="call_1",
            execution="client",
            status="completed",
            arguments={"goal": "find-weather"},
        ),
        fragments=("find-weather",),
    ),
    entry(
        "results of tools that the server ran",
        Answer(finish="completed", tools=(("shell_call", "", None),), results=("total 8",)),
        response=response(
            SHELL,
            item(
                "shell_call_output",
                1,
                call_id="call_1",
                status="completed",
                max_output_length=None,
                output=[{"stdout": "total 8", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
            ),
        ),
    ),
)


def counted(name: str, usage: Any, **counts: int) -> Entry:
    """Return an entry with this usage, whole and in the last event of a stream."""
    frames = stream(created(), text("It is 42."), completed(TEXT_MESSAGE, usage=usage))
    return entry(f"usage {name}", PLAIN, response=response(TEXT_MESSAGE, usage=usage), frames=frames, usage=counts)


USAGES = (
    counted("null", None),
    counted(
        "without details", {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}, prompt=9, completion=4, total=13
    ),
    counted("without total", {"input_tokens": 9, "output_tokens": 4}, prompt=9, completion=4, total=13),
    counted("of the prompt only", {"input_tokens": 9}, prompt=9),
    counted(
        "with null details",
        {
            "input_tokens": 9,
            "output_tokens": 4,
            "total_tokens": 13,
            "input_tokens_details": None,
            "output_tokens_details": None,
        },
        prompt=9,
        completion=4,
        total=13,
    ),
)

BARE = [completed(usage=USAGE)]
STREAMS = (
    entry(
        "final event without output", PLAIN, frames=stream(created(), text("It is ", "42."), completed()), usage=COUNTS
    ),
    entry(
        "final event without output after items only",
        Answer(text="It is 42.", finish="completed", tools=(("function", "get_weather", '{"city":"Paris"}'),)),
        frames=stream(created(), done(0, TEXT_MESSAGE), done(1, function_call(index=1)), completed()),
        usage=COUNTS,
    ),
    entry(
        "final event without output after deltas only",
        PLAIN,
        frames=stream(
            created(),
            delta("output_text", "It is ", content_index=0),
            delta("output_text", "42.", content_index=0),
            completed(),
        ),
        usage=COUNTS,
    ),
    entry(
        "final event without output after arguments in pieces",
        Answer(finish="completed", tools=(("function", "get_weather", '{"city":"Paris"}'),)),
        frames=stream(created(), argued(function_call(), '{"city":', '"Paris"}')[:3], completed()),
        usage=COUNTS,
    ),
    entry(
        "final event without the field output",
        PLAIN,
        frames=stream(
            created(),
            text("It is 42."),
            {
                "type": "response.completed",
                "response": {"id": ID, "model": MODEL, "status": "completed", "usage": USAGE},
            },
        ),
        usage=COUNTS,
    ),
    entry(
        "text only in its last event",
        PLAIN,
        frames=stream(
            created(),
            {
                "type": "response.output_text.done",
                "output_index": 0,
                "content_index": 0,
                "item_id": "item_0",
                "text": "It is 42.",
            },
            completed(),
        ),
        usage=COUNTS,
    ),
    entry(
        "part only in its last event",
        PLAIN,
        frames=stream(created(), part("done", text_part("It is 42.")), completed()),
        usage=COUNTS,
    ),
    entry(
        "arguments only in their last event",
        Answer(finish="completed", tools=(("function", "get_weather", '{"city":"Paris"}'),)),
        frames=stream(
            created(),
            added(0, function_call("")),
            {
                "type": "response.function_call_arguments.done",
                "output_index": 0,
                "item_id": "item_0",
                "arguments": '{"city":"Paris"}',
            },
            completed(),
        ),
        usage=COUNTS,
    ),
    entry("only the final event", PLAIN, frames=stream(completed(TEXT_MESSAGE)), usage=COUNTS),
    entry(
        "end mark of the Chat API",
        PLAIN,
        frames=stream(created(), text("It is 42."), completed(TEXT_MESSAGE), done=True),
        usage=COUNTS,
    ),
    entry(
        "final event twice",
        PLAIN,
        frames=stream(created(), text("It is 42."), completed(TEXT_MESSAGE), completed(TEXT_MESSAGE)),
        usage=COUNTS,
    ),
    entry(
        "no names of events",
        PLAIN,
        frames=tuple(
            frame.partition(b"\n")[2] for frame in stream(created(), text("It is", " 42."), completed(TEXT_MESSAGE))
        ),
        usage=COUNTS,
    ),
    entry(
        "lines that end with CRLF",
        PLAIN,
        frames=tuple(
            frame.replace(b"\n", b"\r\n") for frame in stream(created(), text("It is", " 42."), completed(TEXT_MESSAGE))
        ),
        usage=COUNTS,
    ),
    entry(
        "comments",
        PLAIN,
        frames=(b": hello\n\n", *stream(created(), text("It is", " 42."), completed(TEXT_MESSAGE))),
        usage=COUNTS,
    ),
    entry(
        "event of an unknown type",
        PLAIN,
        frames=stream(created(), {"type": "response.weather", "rain": 1}, text("It is 42."), completed(TEXT_MESSAGE)),
        usage=COUNTS,
    ),
    entry("no end", Answer(text="It is"), frames=stream(created(), text("It ", "is")[:4]), ends=False),
    entry("no end after an item", Answer(text="It is 42."), frames=stream(created(), text("It is 42.")), ends=False),
    entry("start only", Answer(), frames=stream(created()), ends=False),
    entry(
        "no end in a function call",
        Answer(tools=(("function", "get_weather", '{"city":"Pa'),)),
        frames=stream(created(), argued(function_call(), '{"city":', '"Pa')[:3]),
        ends=False,
    ),
    entry(
        "no end in a custom tool call",
        Answer(tools=(("custom", "run", "print("),)),
        frames=stream(created(), added(0, {**CUSTOM, "input": ""}), delta("custom_tool_call_input", "print(")),
        ends=False,
    ),
    entry(
        "error in the middle",
        Answer(text="It is"),
        frames=stream(
            created(),
            text("It is")[:3],
            {"type": "error", "code": "server_error", "message": "Overloaded", "param": None},
        ),
        ends=False,
        error="Overloaded",
    ),
    entry(
        "error of a gateway in the middle",
        Answer(text="It is"),
        frames=stream(
            created(), text("It is")[:3], {"type": "error", "error": {"type": "overloaded", "message": "Overloaded"}}
        ),
        ends=False,
        error="Overloaded",
    ),
    entry(
        "items in another order",
        Answer(text="It is 42.", finish="completed"),
        frames=stream(created(), text("42.", index=1), text("It is "), completed()),
        usage=COUNTS,
    ),
    entry(
        "indexes with a gap",
        Answer(text="It is 42.", finish="completed"),
        frames=stream(created(), text("It is ", index=2), text("42.", index=5), completed()),
        usage=COUNTS,
    ),
)


def asked(name: str, input_: Any, *prompt: tuple[str, ...], **request: Any) -> Entry:
    """Return an entry about a prompt."""
    tools = request.pop("names", None)
    request = {"model": MODEL, "input": input_, **request}
    return entry(f"prompt {name}", PLAIN, request=request, response=response(TEXT_MESSAGE), prompt=prompt, tools=tools)


USER = ("user", "text", "hi")
HI: Json = {"role": "user", "content": "hi"}
SCREEN = "data:image/png;base64,iVBORw0KGgo="
PROMPTS = (
    asked("with instructions", "hi", ("system", "text", "Be brief."), USER, instructions="Be brief."),
    asked(
        "with a developer's message",
        [{"role": "developer", "content": "Be brief."}, HI],
        ("developer", "text", "Be brief."),
        USER,
    ),
    asked(
        "with instructions as a list",
        "hi",
        ("developer", "text", "Be brief."),
        USER,
        instructions=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
        ],
    ),
    asked(
        "with media",
        [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "hi"},
                    {"type": "input_image", "image_url": SCREEN, "detail": "auto"},
                    {"type": "input_image", "file_id": "file_1", "detail": "auto"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
                    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                ],
            }
        ],
        USER,
        ("user", "image", SCREEN),
        ("user", "image", "file_1"),
        ("user", "document", "JVBERg=="),
        ("user", "audio", "UklGRg=="),
    ),
    asked(
        "with a function's history",
        [
            HI,
            THOUGHT,
            function_call(),
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            message(text_part("It rains.")),
            HI,
        ],
        USER,
        ("assistant", "reasoning", "I multiply."),
        ("assistant", "tool_call", "function", "get_weather", '{"city":"Paris"}'),
        ("", "tool_result", "call_1", "rain"),
        ("assistant", "text", "It rains."),
        USER,
    ),
    asked(
        "with outputs of other forms",
        [
            HI,
            function_call(call_id="a"),
            function_call(call_id="b"),
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "rain"}]},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_image", "image_url": SCREEN}]},
        ],
        USER,
        ("assistant", "tool_call", "function", "get_weather", '{"city":"Paris"}'),
        ("assistant", "tool_call", "function", "get_weather", '{"city":"Paris"}'),
        ("", "tool_result", "a", "rain"),
        ("", "tool_result", "b", SCREEN),
    ),
    asked(
        "with a custom tool's history",
        [HI, CUSTOM, {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"}],
        USER,
        ("assistant", "tool_call", "custom", "run", "print(1)\n"),
        ("", "tool_result", "call_1", "1"),
        tools=[{"type": "custom", "name": "run"}, {"type": "web_search"}],
        names=("run", "web_search"),
    ),
    asked(
        "with a shell's history",
        [
            HI,
            SHELL,
            {
                "type": "shell_call_output",
                "call_id": "call_1",
                "output": [{"stdout": "total 8", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
            },
            LOCAL_SHELL,
            {"type": "local_shell_call_output", "id": "call_1", "output": "total 9"},
            PATCH,
            {"type": "apply_patch_call_output", "call_id": "call_1", "status": "failed", "output": "no such file"},
        ],
        USER,
        ("assistant", "tool_call", "shell_call", "", "ls"),
        ("", "tool_result", "call_1", "total 8"),
        ("assistant", "tool_call", "local_shell_call", "", "ls"),
        ("", "tool_result", "call_1", "total 9"),
        ("assistant", "tool_call", "apply_patch_call", "", "a.py"),
        ("", "tool_result", "call_1", "no such file"),
    ),
    asked(
        "with a computer's history",
        [
            HI,
            item(
                "computer_call",
                call_id="call_1",
                status="completed",
                action={"type": "screenshot"},
                pending_safety_checks=[],
            ),
            {
                "type": "computer_call_output",
                "call_id": "call_1",
                "output": {"type": "computer_screenshot", "image_url": SCREEN},
            },
        ],
        USER,
        ("assistant", "tool_call", "computer_call", "", "screenshot"),
        ("", "tool_result", "call_1", SCREEN),
    ),
    asked(
        "with an approval and a reference",
        [
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
            {"type": "item_reference", "id": "item_77"},
            HI,
        ],
        ("", "tool_result", "mcpr_1", "true"),
        ("", "unknown", "item_77"),
        USER,
    ),
    asked(
        "with an item of an unknown type",
        [{"type": "hologram", "data": "volume-7"}, HI],
        ("", "unknown", "volume-7"),
        USER,
    ),
    asked("without input", None),
)

ENTRIES = (*TEXTS, *TOOLS, *USAGES, *STREAMS, *PROMPTS)
