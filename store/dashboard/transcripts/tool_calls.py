"""Tool calls as a page shows them: a headline of the arguments, and edits as differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import orjson

from store.dashboard.diff.matching import Work, grouped, opcodes
from store.dashboard.views.formats import pretty
from store.model_calls.json_values import as_list, as_object, as_objects

MOST_EDIT_LINES: Final = 400
"""The maximum number of lines of one edit."""
_MOST_WORK: Final = 20_000
_LONGEST_EDIT: Final = 100_000
_CONTEXT: Final = 2
_HEADLINE: Final = 200
_PAIRS: Final = (
    ("old_str", "new_str"),
    ("old_string", "new_string"),
    ("old_text", "new_text"),
    ("old", "new"),
    ("search", "replace"),
    ("find", "replace"),
    ("original", "replacement"),
    ("before", "after"),
)
"""The names of the arguments with the text to replace and its replacement."""
_PATHS: Final = ("path", "file_path", "filepath", "file", "filename", "file_name", "target_file")
_COMMANDS: Final = ("command", "cmd", "code", "script", "query", "q", "url", "pattern", "regex", "expression", "text")
_CONTENTS: Final = ("file_text", "content", "contents", "new_content", "patch", "diff", "input")
"""The arguments that may contain a file or a patch."""

LineKind = Literal["removed", "added", "same", "gap"]


@dataclass(frozen=True, slots=True)
class EditLine:
    """One line of an edit. A `gap` has no text. It stands for lines that are left out, or separates two edits."""

    kind: LineKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a tool call."""

    headline: str
    """The arguments on one line, the most informative ones first, possibly truncated."""
    details: str
    """The arguments without those of the edit, as text of several lines; empty if the headline contains them all."""
    edit: tuple[EditLine, ...] = ()


def arguments_of(text: str) -> Arguments:
    """Return the arguments of a tool call, which are JSON or any other text."""
    fields = _object(text)
    if not fields:
        line = " ".join(text.split())
        edit = tuple(_patch_lines(text)) if _is_patch(text) else ()
        is_complete = bool(edit) or (len(line) <= _HEADLINE and "\n" not in text.strip())
        return Arguments("" if fields == {} or edit else line[:_HEADLINE], "" if is_complete else text, edit)
    edit, names = _edit(fields)
    rest = {name: value for name, value in fields.items() if name not in names}
    headline, is_complete = _headline(rest)
    return Arguments(headline, "" if is_complete else _details(rest), edit)


def _object(text: str) -> dict[str, Any] | None:
    """Return the fields of a JSON object; None for another text."""
    if text.lstrip()[:1] != "{":
        return None
    try:
        value: Any = orjson.loads(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _headline(fields: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the arguments on one line, the most informative first, and whether the line contains all of them."""
    order = {name: place for place, name in enumerate((*_PATHS, *_COMMANDS))}
    names = sorted(fields, key=lambda name: order.get(name, len(order)))
    parts: list[str] = []
    for name in names:
        value = fields[name]
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        parts.append(text if name in order else f"{name}={text}")
    joined = " ".join(parts)
    line = " ".join(joined.split())
    return line[:_HEADLINE], len(line) <= _HEADLINE and "\n" not in joined.strip()


def _details(fields: Mapping[str, Any]) -> str:
    texts = [name for name, value in fields.items() if isinstance(value, str) and "\n" in value]
    if len(fields) == 1 and texts:
        return fields[texts[0]]
    rest = {name: value for name, value in fields.items() if name not in texts}
    return "\n\n".join(([pretty(rest)] if rest else []) + [f"{name}:\n{fields[name]}" for name in texts])


def _edit(fields: Mapping[str, Any]) -> tuple[tuple[EditLine, ...], set[str]]:
    """Return the lines of the edit in arguments, and the names of the arguments that the lines contain."""
    for old, new in _PAIRS:
        if isinstance(fields.get(old), str) and isinstance(fields.get(new), str):
            return tuple(_difference(fields[old], fields[new])), {old, new}
    edits = as_objects(fields.get("edits"))
    if edits and len(edits) == len(as_list(fields.get("edits"))):
        parts = [_edit(as_object(edit)) for edit in edits[:MOST_EDIT_LINES]]
        if all(lines and names == edit.keys() for (lines, names), edit in zip(parts, edits, strict=False)):
            lines = [line for lines, _ in parts for line in (EditLine("gap"), *lines)][1:]
            return tuple(_bounded(lines)), {"edits"}
    for name in _CONTENTS:
        content = fields.get(name)
        if isinstance(content, str) and _is_patch(content):
            return tuple(_patch_lines(content)), {name}
    return (), set()


def _difference(old: str, new: str) -> list[EditLine]:
    before, after = old[:_LONGEST_EDIT].splitlines(), new[:_LONGEST_EDIT].splitlines()
    lines: list[EditLine] = []
    for group in grouped(opcodes(before, after, Work(_MOST_WORK)), _CONTEXT):
        if lines:
            lines.append(EditLine("gap"))
        for tag, low, high, start, end in group:
            if tag == "equal":
                lines += [EditLine("same", line) for line in before[low:high]]
                continue
            lines += [EditLine("removed", line) for line in before[low:high]]
            lines += [EditLine("added", line) for line in after[start:end]]
    if max(len(old), len(new)) > _LONGEST_EDIT:
        lines.append(EditLine("gap"))
    # Two texts that differ only in their last line break have equal lines, so there are no groups.
    return _bounded(lines or [EditLine("same", line) for line in before])


def _bounded(lines: list[EditLine]) -> list[EditLine]:
    return lines if len(lines) <= MOST_EDIT_LINES else [*lines[:MOST_EDIT_LINES], EditLine("gap")]


def _is_patch(text: str) -> bool:
    start = text.lstrip()[:200]
    return start.startswith(("*** Begin Patch", "diff --git ")) or (start.startswith("--- ") and "\n+++ " in start)


def _patch_lines(text: str) -> Iterator[EditLine]:
    lines = text[:_LONGEST_EDIT].splitlines()
    for line in lines[:MOST_EDIT_LINES]:
        if line.startswith(("--- ", "+++ ")) or line[:1] not in {"+", "-"}:
            yield EditLine("same", line)
        else:
            yield EditLine("added" if line[0] == "+" else "removed", line[1:])
    if len(lines) > MOST_EDIT_LINES or len(text) > _LONGEST_EDIT:
        yield EditLine("gap")


def summary_of(text: str) -> str:
    """Return the first line of a result, or `3 lines · first line` if the result has several lines."""
    stripped = text.strip()
    lines = stripped.count("\n") + 1
    first = " ".join(stripped[:2_000].partition("\n")[0].split())
    if len(first) > _HEADLINE:
        first = f"{first[: _HEADLINE - 1]}…"
    return first if lines == 1 else f"{lines:,} lines · {first}"
