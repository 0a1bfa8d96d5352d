"""A tool call is one block of a transcript, in every convention; long transcripts fold what repeats."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pytest

from store.dashboard.transcripts.side_messages import messages
from store.dashboard.transcripts.tool_calls import arguments_of, summary_of
from store.dashboard.transcripts.turns import Block, ToolCall, blocks_of, outline_of, sections_of
from store.dashboard.views.markdown import MOST_MARKS, Prose
from store.dashboard.views.media import LARGEST_IMAGE, image_of, readable
from store.dashboard.views.transcript import transcript
from store.model_calls.tool_failures import failure_in
from store.models import Event, Span, TraceStatus
from tests.dashboard.filled import IMAGE
from tests.dashboard.page_helpers import HOSTILE

PNG = IMAGE.partition(",")[2]
EDIT = {"path": "dates.py", "old_str": "a = 1\nb = 2", "new_str": "a = 1\nb = 3"}


def _span(number: int, name: str, attributes: dict[str, Any], *, is_error: bool = False) -> Span:
    return Span.from_attributes(
        attributes=attributes,
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=number,
        span_id=f"{number:016x}",
        name=name,
        start_time=100.0 + number,
        end_time=100.5 + number,
        status=TraceStatus(status_code="ERROR" if is_error else "OK"),
    )


def _genai(calls: Sequence[tuple[str, dict[str, Any], str]], *, ids: bool = True) -> Iterator[Span]:
    """Yield the spans of turns in OpenTelemetry's convention, each with one tool call: name, arguments, result."""
    history: list[Any] = [{"role": "user", "parts": [{"type": "text", "content": "go"}]}]
    for turn, (name, arguments, result) in enumerate(calls):
        identity = {"id": f"c-{turn}"} if ids else {}
        call = {"type": "tool_call", **identity, "name": name, "arguments": arguments}
        answer = {"role": "assistant", "parts": [{"type": "text", "content": f"step {turn}"}, call]}
        messages = {"gen_ai.input.messages": orjson.dumps(history).decode()}
        answers = {"gen_ai.output.messages": orjson.dumps([answer]).decode(), "gen_ai.response.id": f"r-{turn}"}
        yield _span(2 * turn + 1, "chat", {"gen_ai.operation.name": "chat", **messages, **answers})
        execution = {"gen_ai.tool.name": name, "gen_ai.tool.call.arguments": orjson.dumps(arguments).decode()}
        execution |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": result}
        execution |= {"gen_ai.tool.call.id": f"c-{turn}"} if ids else {}
        yield _span(2 * turn + 2, f"execute_tool {name}", execution)
        response = {"type": "tool_call_response", **identity, "response": result}
        history += [answer, {"role": "tool", "parts": [response]}]


def _inference(calls: Sequence[tuple[str, dict[str, Any], str]], *, ids: bool = True) -> Iterator[Span]:
    """Yield the same turns in the convention of OpenInference."""
    history: list[dict[str, Any]] = [{"message.role": "user", "message.content": "go"}]
    for turn, (name, arguments, result) in enumerate(calls):
        text = orjson.dumps(arguments).decode()
        call = "message.tool_calls.0.tool_call"
        answer = {"message.role": "assistant", "message.content": f"step {turn}", f"{call}.function.name": name}
        answer |= {f"{call}.function.arguments": text} | ({f"{call}.id": f"c-{turn}"} if ids else {})
        attributes: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.token_count.completion": 7}
        for place, message in enumerate(history):
            attributes |= {f"llm.input_messages.{place}.{field}": value for field, value in message.items()}
        attributes |= {f"llm.output_messages.0.{field}": value for field, value in answer.items()}
        yield _span(2 * turn + 1, "llm", attributes)
        execution = {"openinference.span.kind": "TOOL", "tool.name": name, "input.value": text, "output.value": result}
        yield _span(2 * turn + 2, name, execution | ({"tool.id": f"c-{turn}"} if ids else {}))
        message = {"message.role": "tool", "message.content": result}
        history += [answer, message | ({"message.tool_call_id": f"c-{turn}"} if ids else {})]


CALLS = [("bash", {"command": "ls"}, "a\nb"), ("bash", {"command": "ls"}, "c"), ("edit", EDIT, "ok")]


def _blocks(spans: Sequence[Span]) -> list[Block]:
    return blocks_of(transcript(spans))


def _tools(blocks: Sequence[Block]) -> list[ToolCall]:
    return [tool for block in blocks for tool in block.tools]


@pytest.mark.parametrize("ids", [True, False], ids=["by id", "by name and order"])
@pytest.mark.parametrize("convention", [_genai, _inference])
def test_request_execution_and_result_of_a_tool_call_are_one_block(convention: Any, *, ids: bool) -> None:
    blocks = _blocks(list(convention(CALLS, ids=ids)))
    assert [block.kind for block in blocks] == ["user", "turn", "turn", "turn"]
    assert [block.number for block in blocks[1:]] == [1, 2, 3]
    tools = _tools(blocks)
    assert [(tool.name, tool.result.shown if tool.result else "", tool.sequence_id) for tool in tools] == [
        ("bash", "a\nb", 2),
        ("bash", "c", 4),
        ("edit", "ok", 6),
    ]
    assert [tool.seen for tool in tools] == [None, None, None]
    assert tools[0].seconds == 0.5


def test_tokens_of_openinference_are_those_of_the_turn_and_unknown_tokens_stay_unknown() -> None:
    turn = _blocks(list(_inference(CALLS[:1])))[1]
    assert (turn.tokens_in, turn.tokens_out) == (None, 7)


def test_every_anchor_of_a_transcript_is_unique_and_every_line_of_the_outline_leads_to_one() -> None:
    spans = [*_genai(CALLS), _span(90, "index", {}), _span(91, "step", {"exception.type": "E"}, is_error=True)]
    blocks = _blocks([*spans, _span(92, "graded", {"agentlightning.reward.0.value": 0.5})])
    lines = [f"entry-{span.span_id}" for block in blocks for span in block.spans]
    anchors = [name for block in blocks for name in (block.anchor, block.span_anchor) if name]
    anchors += [tool.anchor for tool in _tools(blocks)] + lines
    assert len(anchors) == len(set(anchors))
    assert {f"entry-{span.span_id}" for span in spans} <= set(anchors)
    outline = outline_of(blocks)
    assert {item.anchor for item in outline} <= set(anchors)
    assert [item.title for item in outline if item.kind == "tool"] == ["bash", "bash", "edit"]
    assert [(item.title, item.note) for item in outline if item.kind == "reward"] == [("Reward", "0.500")]


def test_result_that_differs_from_that_in_the_prompt_is_shown_beside_it() -> None:
    spans = list(_genai([CALLS[0], CALLS[1]]))
    first = spans[1].attributes["gen_ai.tool.call.result"]
    spans[1].attributes["gen_ai.tool.call.result"] = "other"
    tool = _tools(_blocks(spans))[0]
    assert tool.result is not None
    assert tool.seen is not None
    assert (tool.result.shown, tool.seen.shown) == ("other", first)


def test_several_results_in_one_message_reach_their_calls_and_its_text_stays() -> None:
    uses = [{"type": "tool_use", "id": f"u-{number}", "name": "f", "input": {"n": number}} for number in range(2)]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": "u-1", "content": "one", "is_error": True},
        {"type": "tool_result", "tool_use_id": "u-0", "content": "zero"},
    ]
    messages = [
        {"role": "assistant", "content": uses},
        {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]},
    ]
    call = {"gen_ai.input.messages": orjson.dumps(messages).decode(), "gen_ai.completion.0.content": "done"}
    blocks = _blocks([_span(1, "chat", call)])
    assert [(block.kind, block.text.shown if block.text else "") for block in blocks] == [
        ("message", ""),
        ("user", "go on"),
        ("turn", "done"),
    ]
    assert [(tool.result.shown if tool.result else "", tool.failure) for tool in blocks[0].tools] == [
        ("zero", ""),
        ("one", "error"),
    ]


def test_execution_without_a_request_and_result_without_a_call_are_blocks() -> None:
    result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "x", "response": "lost"}]}
    call = {"gen_ai.input.messages": orjson.dumps([result]).decode(), "gen_ai.completion.0.content": "done"}
    blocks = _blocks([_span(1, "search", {"tool.name": "search", "tool.result": "six"}), _span(2, "chat", call)])
    assert [(block.kind, [tool.name for tool in block.tools]) for block in blocks] == [
        ("tool", ["search", "tool"]),
        ("turn", []),
    ]


def test_failed_tool_states_its_exit_code_or_its_exception() -> None:
    spans = list(_genai([("bash", {"command": "x"}, "boom\nexit code: 2"), *CALLS[:1]]))
    thrown = Event(name="exception", attributes={"exception.type": "KeyError", "exception.message": "'k'"})
    failed = spans[3].model_copy(update={"events": [thrown], "status": TraceStatus(status_code="ERROR")})
    blocks = _blocks([*spans[:3], failed])
    tools = _tools(blocks)
    assert [tool.failure for tool in tools] == ["exit 2", "KeyError"]
    assert tools[1].error is not None
    assert tools[1].error.shown == "'k'"
    assert [item.title for item in outline_of(blocks) if item.is_failure] == ["bash", "bash"]


@pytest.mark.parametrize(
    "result, failure",
    [
        ('{"exit_code": 1, "output": "x"}', "exit 1"),
        ('{"returncode": 0}', ""),
        ('{"isError": true}', "error"),
        ('{"error": {"code": 3}}', "error"),
        ('{"error": null}', ""),
        ("[exit code 127]\nnot found", "exit 127"),
        ("out\nProcess exited with code 3.", "exit 3"),
        ("Command failed with exit status 1", "exit 1"),
        ("exit code: 0", ""),
        ("the script calls exit 1 when it fails", ""),
        ("", ""),
        ("{broken", ""),
    ],
)
def test_failure_of_a_result(result: str, failure: str) -> None:
    assert failure_in(result) == failure


def test_edit_is_a_difference_and_its_other_arguments_the_headline() -> None:
    arguments = arguments_of(orjson.dumps(EDIT).decode())
    assert (arguments.headline, arguments.details) == ("dates.py", "")
    assert [(line.kind, line.text) for line in arguments.edit] == [
        ("same", "a = 1"),
        ("removed", "b = 2"),
        ("added", "b = 3"),
    ]
    pair = {"old_string": "x", "new_string": "y"}
    several = arguments_of(orjson.dumps({"file_path": "f", "edits": [pair, pair]}).decode())
    assert [line.kind for line in several.edit] == ["removed", "added", "gap", "removed", "added"]
    patch = arguments_of("*** Begin Patch\n*** Update File: f\n-old\n+new\n*** End Patch")
    assert [line.kind for line in patch.edit] == ["same", "same", "removed", "added", "same"]
    huge = arguments_of(orjson.dumps({"old": "a\n" * 50_000, "new": "b\n" * 50_000}).decode())
    assert len(huge.edit) < 1_000


def test_arguments_are_one_line_if_they_fit_and_complete_otherwise() -> None:
    assert arguments_of('{"n": 2, "command": "ls -l"}').headline == "ls -l n=2"
    assert arguments_of('{"n": 2, "command": "ls -l"}').details == ""
    assert arguments_of('{"code": "a\\nb"}').details == "a\nb"
    assert "b\nc" in arguments_of('{"n": 1, "code": "b\\nc"}').details
    assert arguments_of("not JSON\nat all").details == "not JSON\nat all"
    assert arguments_of("") == arguments_of("{}")
    assert (summary_of("one"), summary_of("one\ntwo\n")) == ("one", "2 lines · one")


def test_long_transcript_folds_runs_of_turns_without_edits_and_errors() -> None:
    calls = [("edit", EDIT, "ok") if turn in {20, 21, 30} else ("bash", {"n": turn}, "fine") for turn in range(40)]
    calls[33] = ("bash", {"n": 33}, "exit code 1")
    blocks = _blocks(list(_genai(calls)))
    sections = sections_of(blocks)
    assert [section.summary for section in sections] == [
        "",
        "Turns 4 to 20 · bash × 17",  # noqa: RUF001
        "",
        "Turns 23 to 30 · bash × 8",  # noqa: RUF001
        "",
    ]
    assert [block for section in sections for block in section.blocks] == blocks
    assert [section.summary for section in sections_of(blocks[:20])] == [""]


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "[a](javascript:alert(1)) <javascript:alert(1)> [b](vbscript:x) [c](data:text/html;base64,PHNjcmlwdD4=)",
        "![a](https://example.invalid/pixel.png)",
        '```html" onclick=alert(1)\n<img src=x onerror=alert(1)>\n```',
        "<svg/onload=alert(1)>\n\n| <script> | b |\n|-|-|\n| </td><script>alert(1)</script> | x |",
        "[x]: javascript:alert(1)\n[a][x] &lt;script&gt; \\<b>",
        "# <a id=slider>\n- <form action=/ui/login>\n> <style>*{}</style>",
    ],
)
def test_markdown_of_a_message_contains_no_markup_of_the_message(text: str) -> None:
    html = Prose().render(text)
    assert html is not None
    lowered = html.lower()
    tags = {part.split(">")[0].split(" ")[0].strip("/") for part in lowered.split("<")[1:]}
    assert tags <= {
        "p",
        "a",
        "br",
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "em",
        "strong",
        "ul",
    } | {*("li", "blockquote", "h4", "h5", "h6", "ol", "hr")}
    assert ' href="javascript' not in lowered
    assert ' href="data' not in lowered
    assert " class=" not in lowered
    assert " on" not in "".join(part.split(">")[0] for part in lowered.split("<")[1:])


def test_links_of_markdown_lead_out_without_an_opener_and_lines_stay_lines() -> None:
    html = Prose().render("see [docs](https://example.org/?a=1&b=2)\nnext **line**")
    assert html == (
        '<p>see <a href="https://example.org/?a=1&amp;b=2" rel="noopener noreferrer">docs</a><br />\n'
        "next <strong>line</strong></p>\n"
    )


def test_text_that_takes_too_long_and_json_are_not_rendered() -> None:
    assert Prose().render("[" * (MOST_MARKS + 1)) is None
    assert Prose().render('{"a": 1}') is None
    prose = Prose(left=10)
    assert prose.render("x" * 8) is not None
    assert prose.render("x" * 8) is None


def _with_parts(*parts: Any) -> list[Span]:
    message = {"role": "user", "parts": [{"type": "text", "content": "look"}, *parts]}
    return [_span(1, "chat", {"gen_ai.input.messages": orjson.dumps([message]).decode()})]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": PNG},
        {"type": "blob", "mime_type": "application/octet-stream", "content": PNG},
        {"type": "image_url", "image_url": {"url": IMAGE}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PNG}},
        {"type": "input_image", "image_url": IMAGE},
    ],
)
def test_image_of_a_message_is_shown_by_its_bytes_and_is_no_text(part: dict[str, Any]) -> None:
    spans = _with_parts(part)
    block = _blocks(spans)[0]
    (medium,) = block.media
    assert block.text is not None
    assert block.text.shown == "look"
    assert (medium.is_image, medium.media_type, medium.size) == (True, "image/png", 70)
    assert image_of(spans[0].attributes, medium.key) == (base64.b64decode(PNG), "image/png")
    assert image_of(spans[0].attributes, "0" * 16) is None


@pytest.mark.parametrize(
    "url",
    [
        "data:image/svg+xml;base64," + base64.b64encode(b"<svg onload='alert(1)'/>").decode(),
        "data:image/png;base64," + base64.b64encode(b"<html><script>alert(1)</script>").decode(),
        "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * LARGEST_IMAGE).decode(),
        "data:image/svg+xml,%3Csvg%20onload=%22alert(1)%22/%3E",
        "https://example.invalid/a.png",
        "javascript:alert(1)",
        "data:image/png;base64,%%%",
    ],
    ids=["svg", "html", "large", "plain svg", "remote", "script", "broken"],
)
def test_bytes_of_no_allowed_image_format_are_an_attachment(url: str) -> None:
    spans = _with_parts({"type": "image_url", "image_url": {"url": url}})
    (medium,) = _blocks(spans)[0].media
    assert not medium.is_image
    assert image_of(spans[0].attributes, medium.key) is None


def test_sound_and_image_of_a_tool_are_media_and_their_base64_is_no_text() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert _blocks(_with_parts(sound))[0].media[0].title == "audio/wav · 4 B"
    parts = orjson.dumps([{"type": "image_url", "image_url": {"url": IMAGE}}]).decode()
    spans = [_span(1, "shot", {"gen_ai.tool.name": "shot", "gen_ai.tool.call.result": parts})]
    (tool,) = _tools(_blocks(spans))
    assert [medium.is_image for medium in tool.media] == [True]
    assert image_of(spans[0].attributes, tool.media[0].key) is not None


def test_long_base64_in_a_text_is_replaced_by_its_type_and_size() -> None:
    encoded = base64.b64encode(bytes(range(256)) * 4).decode()
    text = readable(f"before data:image/png;base64,{encoded} between {encoded} after {'x' * 300} {'ab/' * 100}")
    assert encoded[:60] not in text
    assert text.startswith("before [image/png, 1 KiB, ")
    assert " between [base64, " in text
    assert text.endswith(f" after {'x' * 300} {'ab/' * 100}")


@pytest.mark.parametrize("convention", [_genai, _inference])
def test_comparison_has_each_tool_call_once(convention: Any) -> None:
    compared = messages(_blocks(list(convention(CALLS))))
    assert [message.who for message in compared] == ["user", *["assistant", "tool bash"] * 2, "assistant", "tool edit"]
    assert compared[2].text.endswith("a\nb")
