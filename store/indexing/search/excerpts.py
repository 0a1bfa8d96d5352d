"""Excerpts of texts, with the ranges that match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from store.indexing.search.query_language import Clause, Phrase
from store.indexing.search.regex import Regex
from store.indexing.search.words import Word, words_of

_BEFORE: Final = 80
_LENGTH: Final = 280
_MOST_MARKS: Final = 50


class Excerpt(NamedTuple):
    """A part of a text."""

    text: str
    marks: list[tuple[int, int]]
    """The matching ranges of characters of `text`."""
    is_start: bool
    """Whether the excerpt begins where the text begins."""
    is_end: bool
    """Whether the excerpt ends where the text ends."""


def excerpt(text: str, clauses: Sequence[Clause], regex: Regex | None = None) -> Excerpt:
    """Return the part of a text around its first match, with all matches in this part."""
    ranges = [] if regex is None else regex.ranges(text, _MOST_MARKS)
    if not ranges:
        phrases = [phrase for clause in clauses for phrase in clause.phrases]
        words = list(words_of(text)) if phrases else []
        ranges = sorted(place for phrase in phrases for place in phrase_places(words, phrase))
    first = ranges[0][0] if ranges else 0
    start = max(first - _BEFORE, 0)
    if start:
        # Begin with a complete word.
        space = max(text.find(" ", start, first), text.find("\n", start, first))
        start = space + 1 if space >= 0 else start
    end = min(start + _LENGTH, len(text))
    marks = [(max(a, start) - start, min(b, end) - start) for a, b in ranges if a < end and b > start]
    return Excerpt(text[start:end], joined_ranges(marks)[:_MOST_MARKS], start == 0, end == len(text))


def phrase_places(words: Sequence[Word], phrase: Phrase) -> Iterable[tuple[int, int]]:
    """Yield the range of characters of each occurrence of a phrase in a text, given the words of the text."""
    *first, last = phrase.words
    length = len(phrase.words)
    for index in range(len(words) - length + 1):
        end = words[index + length - 1]
        is_last = end.text.startswith(last) if phrase.is_prefix else end.text == last
        if is_last and all(words[index + offset].text == word for offset, word in enumerate(first)):
            yield words[index].start, end.end


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join the sorted ranges that overlap or touch."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
