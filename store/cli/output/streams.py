"""Standard output and standard error of every kind: closed, or with an encoding that lacks characters."""

from __future__ import annotations

import codecs
import os
import re
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Final

_PLAIN: Final = {
    "→": "->",
    "←": "<-",
    "…": "...",
    "·": "-",
    "\u00d7": "x",
    "µ": "u",
    "\u2013": "-",
    "—": "-",
    "\u2018": "'",
    "\u2019": "'",
    "“": '"',
    "”": '"',
    "─": "-",
    "│": "|",
    "├": "|",
    "└": "`",
    "█": "#",
    "•": "*",
    "✓": "+",
}
"""The characters of Rollbook's own messages that are not ASCII, and their replacements."""
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_HANDLER: Final = "rollbook"


def prepare() -> None:
    """Make standard output and standard error accept every text, whatever their encoding.

    A character that the encoding lacks is printed as a similar plain character, or as its escape in JSON. A
    stream that is closed is replaced by the null device.
    """
    codecs.register_error(_HANDLER, _replaced)
    if None in {sys.__stdin__, sys.__stdout__, sys.__stderr__}:
        # The next file that is opened gets the number of a closed stream. This file could be a database.
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
        sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # A program that runs commands may have replaced a stream by its own object, which cannot be reconfigured.
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):
                stream.reconfigure(errors=_HANDLER)


def json_text(document: bytes) -> str:
    """Return a JSON document for standard output. If the output is not UTF-8, the document is ASCII."""
    text = document.decode()
    if text.isascii() or _is_utf8(sys.stdout.encoding):
        return text
    # Outside of strings, JSON is ASCII.
    return _BEYOND_ASCII.sub(lambda match: _escape(match[0]), text)


def _is_utf8(encoding: str | None) -> bool:
    # Python replaces standard output in tests by files without an encoding, which accept every text.
    return encoding is None or codecs.lookup(encoding).name == "utf-8"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(part) or _escape(part) for part in error.object[error.start : error.end]), error.end


def _escape(character: str) -> str:
    """Return the escape of a character in JSON; two escapes if the character has more than 16 bits."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index] << 8 | units[index + 1]:04x}" for index in range(0, len(units), 2))
