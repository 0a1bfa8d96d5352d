"""Regular expressions in linear time, by the library RE2."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from store.errors import Invalid

_MEMORY_BYTES = 8 * 1024 * 1024


class Regex:
    """A regular expression of RE2. For every expression, a match takes time linear in the length of the text.

    Args:
        pattern: the expression.

    Raises:
        Invalid: the expression is malformed, or the library is not installed.
    """

    def __init__(self, pattern: str) -> None:
        try:
            re2: Any = import_module("re2")
        except ImportError:
            reason = "needs the library RE2; install it with: pip install 'rollbook[search]'"
            raise Invalid("regex", reason) from None
        options: Any = re2.Options()
        options.max_mem = _MEMORY_BYTES
        options.log_errors = False
        try:
            self._pattern: Any = re2.compile(pattern, options)
        except re2.error as error:
            text = error.args[0] if error.args else error
            reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            raise Invalid("regex", f"{pattern!r} is not an expression of RE2: {reason}; correct it") from None

    def matches(self, text: str) -> bool:
        """Return whether the expression matches a part of a text."""
        return self._pattern.search(_encodable(text)) is not None

    def ranges(self, text: str, limit: int) -> list[tuple[int, int]]:
        """Return the ranges of at most `limit` matches that are not empty."""
        ranges: list[tuple[int, int]] = []
        for match in self._pattern.finditer(_encodable(text)):
            if match.end() > match.start():
                ranges.append((match.start(), match.end()))
            if len(ranges) == limit:
                break
        return ranges


def _encodable(text: str) -> str:
    """Return the text with replacements for lone surrogates, which have no code in UTF-8."""
    return text.encode("utf-8", errors="replace").decode() if not text.isascii() else text
