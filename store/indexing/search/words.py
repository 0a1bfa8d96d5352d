"""Words of texts, in the same form for every database.

This module splits texts into words for SQLite and for Postgres. So a query has the same results on both, and an excerpt
marks the words that the database compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

LONGEST_WORD: Final = 64
"""The number of characters at the beginning of a word that are stored and compared."""
WORDS_IN_PART: Final = 10_000
"""The maximum number of words of a part of a text. Postgres stores no positions of words above 16,383."""

# Languages that are written without spaces: each character is a word, and a word of a query becomes a phrase.
_SINGLE: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f"
_ASCII_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_WORD: Final = re.compile(rf"[{_SINGLE}]|[^\W_{_SINGLE}]+")
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/_-]{160,}={0,2}")
_DATA_URL: Final = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,[A-Za-z0-9+/=]*")


class Word(NamedTuple):
    """A word, and the range of its characters in a text."""

    text: str
    start: int
    end: int


def words_of(text: str) -> Iterator[Word]:
    """Yield the words of a text. Words that differ only in upper and lower case are equal."""
    pattern = _ASCII_WORD if text.isascii() else _WORD
    for match in pattern.finditer(text):
        yield Word(match.group()[:LONGEST_WORD].casefold(), match.start(), match.end())


def word_texts(text: str) -> list[str]:
    """Return the texts of the words that `words_of` yields."""
    pattern = _ASCII_WORD if text.isascii() else _WORD
    return [word[:LONGEST_WORD].casefold() for word in pattern.findall(text)]


def without_encoded(text: str) -> str:
    """Return a text without base64 and other long runs of encoded bytes, which no one searches for."""
    if len(text) < 160:
        return _DATA_URL.sub(" ", text) if "base64," in text else text
    if "base64," in text:
        text = _DATA_URL.sub(" ", text)

    def replaced(match: re.Match[str]) -> str:
        run = match.group()
        is_encoded = any(map(str.isdigit, run)) and not run.islower() and not run.isupper()
        return " " if is_encoded else run

    return _ENCODED.sub(replaced, text)


def parts_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a text, each with its words. Texts without words have no parts."""
    words = word_texts(text)
    if len(words) <= WORDS_IN_PART:
        if words:
            yield text, words
        return
    ranges = list(words_of(text))
    start = 0
    for first in range(0, len(ranges), WORDS_IN_PART):
        part = ranges[first : first + WORDS_IN_PART]
        end = ranges[first + WORDS_IN_PART].start if first + WORDS_IN_PART < len(ranges) else len(text)
        yield text[start:end], [word.text for word in part]
        start = end
