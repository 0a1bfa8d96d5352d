"""Printing: data on standard output, everything else on standard error.

A terminal gets colours, aligned tables and relative times. Other programs get the same cells tab-separated, complete
and exact.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import orjson

from store.cli.output.streams import json_text

if TYPE_CHECKING:
    from rich.console import Console

STYLES: Final = {
    "succeeded": "green",
    "OK": "green",
    "failed": "red",
    "timeout": "red",
    "unresponsive": "red",
    "lost": "red",
    "stopped": "dim",
    "ERROR": "red",
    "running": "cyan",
    "busy": "cyan",
    "preparing": "blue",
    "queuing": "yellow",
    "requeuing": "yellow",
    "cancelled": "dim",
    "idle": "dim",
    "unknown": "dim",
}
"""The style of each status on a terminal."""

# The environment variables that make rich treat a pipe as a terminal.
_TERMINAL_VARIABLES: Final = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})
# Ids and names are user input. Their control characters could move the cursor or break a line.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def is_terminal() -> bool:
    """Return whether standard output is a terminal, or must be treated as a terminal."""
    # Importing rich takes longer than many commands, so rich is imported only if its answer may be true.
    return (sys.stdout.isatty() or not _TERMINAL_VARIABLES.isdisjoint(os.environ)) and console().is_terminal


def console() -> Console:
    """Return a console that prints styled text on standard output and does not wrap long lines."""
    from rich.console import Console

    # If NO_COLOR is set, rich by itself removes only the colours and keeps bold and dim text.
    colors = None if os.environ.get("NO_COLOR") else "auto"
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, color_system=colors)


def note(text: str) -> None:
    """Print a message on standard error."""
    print(text, file=sys.stderr)


def line(text: str = "", style: str | None = None) -> None:
    """Print a line of data."""
    if style and is_terminal():
        console().print(text, style=style)
    else:
        sys.stdout.write(f"{text}\n")


def progress_line(text: str) -> None:
    """Print a progress message immediately, with its control characters escaped.

    The work continues if the line cannot be printed, for example because the reader of the output has closed the pipe.
    """
    with suppress(OSError):
        print(printable(text), flush=True)


def heading(text: str) -> None:
    """Print an empty line and a heading."""
    line()
    line(text, style="bold")


def json_document(value: Any) -> None:
    """Print one JSON document, indented on a terminal."""
    option = orjson.OPT_INDENT_2 if is_terminal() else 0
    sys.stdout.write(json_text(orjson.dumps(value, option=option)) + "\n")


def json_line(value: Any) -> None:
    """Print a JSON document on a line of its own."""
    sys.stdout.write(json_text(orjson.dumps(value)) + "\n")


def printable(text: str) -> str:
    """Return a text with its control characters escaped."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def compact(value: Any) -> str:
    """Return a JSON value on one line."""
    return orjson.dumps(value).decode()


def fitted(text: str, width: int) -> str:
    """Return a text, truncated if it needs more than `width` terminal columns. A truncated text ends with `…`."""
    # For most texts, this condition makes it unnecessary to check each character.
    if len(text) * 2 <= width or (len(text) <= width and text.isascii()):
        return text
    if sum(map(_columns, text)) <= width:
        return text
    length, used = 0, 1
    while used + _columns(text[length]) <= width:
        used += _columns(text[length])
        length += 1
    return text[:length] + "…"


def width_of(text: str) -> int:
    """Return the number of terminal columns that a text needs."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def byte_size(value: int) -> str:
    """Return a number of bytes as a short text, for example 61.4 MB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value} B"


@contextmanager
def working(activity: str) -> Generator[None]:
    """Show a progress message during the block, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False, emoji=False).status(f"{activity} …"):
        yield


def tree(roots: Sequence[Any], below: Callable[[Any], Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each node of a tree with the characters that draw the branches in front of the node.

    A parent comes before its children. The depth of the tree is not limited.

    Args:
        roots: the nodes without a parent.
        below: a function that returns the children of a node.
    """
    waiting: list[tuple[str, str, Any]] = [("", "", root) for root in reversed(roots)]
    while waiting:
        lead, continued, node = waiting.pop()
        yield lead, node
        children = below(node)
        for index, child in reversed(list(enumerate(children))):
            last = index == len(children) - 1
            waiting.append((continued + ("└─ " if last else "├─ "), continued + ("   " if last else "│  "), child))
