"""The transcript of an attempt as text: messages, turns with tool calls, rewards and errors in the order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from store.cli.output.printing import line, note, printable
from store.cli.output.times import duration
from store.narration.events import reward_text
from store.narration.tokens import token_text

if TYPE_CHECKING:
    from store.dashboard.transcripts.turns import Block, ToolCall
    from store.dashboard.views.transcript import Entry, Text
    from store.models import Span

_SIGNS = {"removed": "- ", "added": "+ ", "same": "  ", "gap": "…"}


def entries_of(spans: Sequence[Span], *, full: bool) -> list[Entry]:
    """Return the entries of the dashboard's transcript for the spans of one attempt.

    Args:
        spans: the spans of the attempt.
        full: whether long texts are returned in full.
    """
    from store.dashboard.views.transcript import transcript

    return transcript(spans, full=[span.span_id for span in spans] if full else ())


def print_transcript(entries: Sequence[Entry]) -> None:
    """Print a transcript. Each block has a title and indented texts; a tool call is one block in its turn."""
    from store.dashboard.transcripts.turns import blocks_of

    texts = _Texts()
    for block in blocks_of(entries):
        line()
        if block.kind not in {"spans", "tool"}:
            line(printable("  ".join([_title(block), *_facts(block)])), style="bold")
        _print_block(block, texts)
    if texts.is_cut:
        note("--full shows longer parts of the texts; `rollbook show ID --json` contains all of them")


def _print_block(block: Block, texts: _Texts) -> None:
    if block.thinking:
        texts.write("reasoning", block.thinking)
    if block.text:
        texts.write("", block.text)
    for medium in block.media:
        line(f"  {printable('1 attachment, ' + medium.title)}")
    for tool in block.tools:
        _print_tool(tool, texts)
    for error in block.errors:
        line(f"  {printable(error.title)}", style="bold")
        if error.text:
            texts.write("", error.text)
    if block.kind == "spans":
        _print_spans(block)


def _print_tool(tool: ToolCall, texts: _Texts) -> None:
    line(printable("  ".join([f"  tool {tool.name}", *_facts_of_tool(tool)])), style="bold")
    for edit in tool.text.edit:
        line(f"    {printable(_SIGNS[edit.kind] + edit.text)}")
    if tool.text.details:
        texts.write("arguments", tool.arguments)
    elif tool.text.headline:
        line(f"    {printable(tool.text.headline)}")
    for heading, text in (("error", tool.error), ("result", tool.result), ("result in the prompt", tool.seen)):
        if text is not None:
            texts.write(heading, text)
    for medium in tool.media:
        line(f"    {printable('1 attachment, ' + medium.title)}")


def _print_spans(block: Block) -> None:
    for span in block.spans:
        facts = ["ERROR"] if span.is_error else []
        facts += [duration(span.seconds)] if span.seconds else []
        title = f"{span.title}: the same call, recorded by another span" if span.kind == "same" else span.title
        line(printable("  ".join([title, *facts, f"#{span.sequence_id}"])))


class _Texts:
    """Printer of texts, which remembers whether a text was truncated."""

    def __init__(self) -> None:
        self.is_cut = False

    def write(self, heading: str, text: Text) -> None:
        """Print a text below its heading."""
        if heading:
            line(f"  {printable(heading)}")
        # Control characters are escaped, because they could move the cursor. Line breaks are kept.
        for part in text.shown.splitlines():
            line(f"  {'  ' if heading else ''}{printable(part)}")
        if text.is_cut:
            self.is_cut = True
            line(f"  … {len(text.shown):,} of {text.length:,} characters")


def _title(block: Block) -> str:
    match block.kind:
        case "turn":
            return f"turn {block.number}"
        case "reward":
            return ", ".join(reward_text(name, value) for name, value in block.rewards) or block.title
        case "error":
            return "error"
        case _:
            return block.title


def _facts(block: Block) -> Iterator[str]:
    yield from (f"no valid reward ({name} {value[:80]})" for name, value in block.invalid_rewards)
    if block.kind == "turn":
        if block.model:
            yield block.model
        if block.tokens_in is not None or block.tokens_out is not None:
            yield token_text(block.tokens_in, block.tokens_out)
    if block.seconds and block.kind in {"turn", "reward", "log"}:
        yield duration(block.seconds)
    same_calls = [span.sequence_id for span in block.spans] if block.kind == "turn" else []
    yield from (f"#{number}" for number in (block.sequence_id, *same_calls))


def _facts_of_tool(tool: ToolCall) -> Iterator[str]:
    if tool.failure:
        yield f"FAILED: {tool.failure}"
    if tool.seconds:
        yield duration(tool.seconds)
    if tool.sequence_id is not None:
        yield f"#{tool.sequence_id}"
