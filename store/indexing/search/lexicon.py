"""Codes of words on Postgres. Decision 120.

Each distinct word has a number in the table `search_lexicon`, and each number has a code of one or two characters. A
document is stored as the codes of its words in their order, so a phrase is a substring of this text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Column, Integer, MetaData, Table, Text, bindparam, select

from store.db.dialect import ReadSession
from store.db.index_place import IndexSession

lexicon = Table(
    "search_lexicon",
    MetaData(),
    Column("word", Text(collation="C"), primary_key=True),
    Column("number", Integer, nullable=False),
)
"""The numbers of words. The row of the empty word has the highest number that was ever assigned."""

# The ranges of characters are disjoint, so the codes of a text can be separated without spaces.
_SHORTEST: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SINGLE: Final = (0xA1, 0xC000)
_FIRST: Final = (0xC000, 0xD800)
_MORE_FIRST: Final = 0x10000
_SECOND: Final = (0xE000, 0xF900)
_SINGLES: Final = len(_SHORTEST) + _SINGLE[1] - _SINGLE[0]
_SECONDS: Final = _SECOND[1] - _SECOND[0]
_FIRSTS: Final = _FIRST[1] - _FIRST[0]
_CODE: Final = re.compile(f"[{chr(_FIRST[0])}-{chr(_FIRST[1] - 1)}{chr(_MORE_FIRST)}-\U0010ffff].|.", re.DOTALL)
NO_CODE: Final = "!"
"""A character that is in no code."""


def code_of(number: int) -> str:
    """Return the code of a word's number, which begins at 0."""
    if number < len(_SHORTEST):
        return _SHORTEST[number]
    if number < _SINGLES:
        return chr(_SINGLE[0] + number - len(_SHORTEST))
    first, second = divmod(number - _SINGLES, _SECONDS)
    first = first + _FIRST[0] if first < _FIRSTS else first - _FIRSTS + _MORE_FIRST
    return chr(first) + chr(second + _SECOND[0])


def codes_in(text: str) -> set[str]:
    """Return the distinct codes in the stored text of a document."""
    return set(_CODE.findall(text))


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of the words of a query. Words that no document contains have none."""

    words: dict[str, str] = field(default_factory=dict[str, str])
    prefixes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The codes of the words that begin with a prefix."""


async def read_codes(session: ReadSession, words: Iterable[str], prefixes: Iterable[str]) -> Codes:
    """Return the codes of words, and of the words that begin with a prefix."""
    dialect, column = session.dialect, lexicon.c
    statement = dialect.sql(select(column.word, column.number).where(dialect.any_of(column.word, "words")))
    rows = await session.fetch(statement, {"words": dialect.list_param(sorted(set(words)))})
    codes = Codes({row.word: code_of(row.number) for row in rows})
    least, end = bindparam("least", type_=Text), bindparam("end", type_=Text)
    statement = dialect.sql(select(column.number).where(column.word >= least, column.word < end))
    for prefix in prefixes:
        rows = await session.fetch(statement, {"least": prefix, "end": prefix + "\U0010ffff"})
        codes.prefixes[prefix] = [code_of(row.number) for row in rows]
    return codes


async def assigned_codes(session: IndexSession, words: Iterable[str]) -> dict[str, str]:
    """Return the codes of words. New words get the next numbers."""
    dialect, column = session.dialect, lexicon.c
    statement = dialect.sql(select(column.word, column.number).where(dialect.any_of(column.word, "words")))
    ordered = list(dict.fromkeys(words))
    rows = await session.fetch(statement, {"words": dialect.list_param(["", *ordered])})
    numbers = {row.word: row.number for row in rows}
    last = numbers.pop("", -1)
    fresh = {word: last + index for index, word in enumerate((w for w in ordered if w not in numbers), start=1)}
    if fresh:
        await session.write(lexicon, list(fresh.items()))
        await session.write(lexicon, [("", last + len(fresh))], "replace")
    return {word: code_of(number) for word, number in (numbers | fresh).items()}


async def remove_codes(session: IndexSession, codes: Collection[str]) -> None:
    """Delete the words with these codes."""
    column = lexicon.c
    rows = await session.fetch(session.dialect.sql(select(column.word, column.number)), {})
    words = [row.word for row in rows if row.word and code_of(row.number) in codes]
    await session.delete(lexicon, "word", words)
