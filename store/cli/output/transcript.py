"""The transcript of an attempt as text: messages, tool calls, rewards and errors in the order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from store.cli.output.events import reward_text
from store.cli.output.printing import line, note, printable, token_text
from store.cli.output.times import duration

if TYPE_CHECKING:
    from store.dashboard.views.transcript import Entry, Text
    from store.models import Span


def entries_of(spans: Sequence[Span], *, full: bool) -> list[Entry]:
    """Return the entries of the dashboard's transcript for the spans of one attempt.

    Args:
        spans: the spans of the attempt.
        full: whether long texts are returned in full.
    """
    from store.dashboard.views.transcript import transcript

    return transcript(spans, full=[span.span_id for span in spans] if full else ())


def print_transcript(entries: Sequence[Entry]) -> None:
    """Print entries. An entry consists of a title and its indented texts."""
    is_cut = False
    for entry in entries:
        line()
        if entry.skipped:
            line(f"({entry.skipped} message{'' if entry.skipped == 1 else 's'} as before)", style="dim")
        line(printable("  ".join([_title(entry), *_facts(entry)])), style=None if entry.kind in _PLAIN else "bold")
        for heading, text in _texts(entry):
            if heading:
                line(f"  {printable(heading)}")
            # Control characters are escaped, because they could move the cursor. Line breaks are kept.
            for part in text.shown.splitlines():
                line(f"  {'  ' if heading else ''}{printable(part)}")
            if text.is_cut:
                is_cut = True
                line(f"  … {len(text.shown):,} of {text.length:,} characters")
    if is_cut:
        note("--full shows longer parts of the texts; `rollbook show ID --json` contains all of them")


_PLAIN = frozenset({"span", "same"})


def _title(entry: Entry) -> str:
    match entry.kind:
        case "tool":
            return f"tool {entry.title}"
        case "reward":
            return ", ".join(reward_text(name, value) for name, value in entry.rewards) or entry.title
        case "same":
            return f"{entry.title}: the same call, recorded by another span"
        case _:
            return entry.title


def _facts(entry: Entry) -> Iterator[str]:
    if entry.is_error:
        yield "ERROR"
    if entry.kind != "reward":
        yield from (reward_text(name, value) for name, value in entry.rewards)
    yield from (f"no valid reward ({name} {value[:80]})" for name, value in entry.invalid_rewards)
    if entry.attached:
        yield f"{entry.attached} attached part{'' if entry.attached == 1 else 's'} without text"
    if entry.is_answer and entry.model:
        yield entry.model
    if entry.is_answer and entry.tokens_in is not None:
        yield token_text(entry.tokens_in, entry.tokens_out)
    if entry.seconds and (entry.is_answer or entry.kind != "message"):
        yield duration(entry.seconds)
    yield f"#{entry.sequence_id}"


def _texts(entry: Entry) -> Iterator[tuple[str, Text]]:
    if entry.thinking:
        yield "thinking", entry.thinking
    if entry.text:
        yield "", entry.text
    for call in entry.calls:
        yield ("" if entry.kind == "tool" else f"calls {call.name}"), call.arguments
    if entry.result:
        yield "result", entry.result
