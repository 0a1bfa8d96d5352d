"""The language of search queries.

A query consists of terms. A term is a word, a `"phrase"` or a `prefix*`, or a scope with a value, such as
`error:timeout`. Words without a scope must occur together in one text. Each scoped term may match a different text
of the rollout. `-` before a term excludes the rollouts that have a matching text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from store.errors import Invalid
from store.indexing.search.documents import DocumentKind
from store.indexing.search.words import word_texts

LONGEST_QUERY: Final = 1_000
MOST_TERMS: Final = 32
LONGEST_REGEX: Final = 500

_Kinds = tuple[DocumentKind, ...]
ROLES: Final[Mapping[str, _Kinds]] = {
    "system": (DocumentKind.SYSTEM,),
    "user": (DocumentKind.USER,),
    "assistant": (DocumentKind.ASSISTANT,),
    "tool": (DocumentKind.RESULT,),
}
SCOPES: Final[Mapping[str, _Kinds]] = {
    "input": (DocumentKind.INPUT,),
    "reasoning": (DocumentKind.REASONING,),
    "error": (DocumentKind.ERROR,),
    "note": (DocumentKind.NOTE,),
    "span": (DocumentKind.SPAN,),
}
"""The scopes with an optional word or phrase as value. `tool:`, `role:` and `regex:` take other values."""
_TOOL: Final = (DocumentKind.CALL, DocumentKind.RESULT)
SCOPE_NAMES: Final = ("tool:", "role:", *(f"{name}:" for name in SCOPES), "regex:")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that follow each other in a text. With `is_prefix`, the last one is the beginning of a word."""

    words: tuple[str, ...]
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """A condition on one text."""

    phrases: tuple[Phrase, ...] = ()
    """The phrases that the text contains."""
    kinds: _Kinds = ()
    """The kinds of the text; empty for all kinds."""
    name: str | None = None
    """The name of the tool; None for any."""


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """A query. A rollout matches if each required clause, and no excluded clause, matches one of its texts."""

    required: tuple[Clause, ...]
    excluded: tuple[Clause, ...] = ()
    regex: str | None = None
    """A regular expression that the text of the first required clause must match."""


@dataclass(frozen=True, slots=True)
class _Term:
    start: int
    end: int
    is_excluded: bool
    scope: str
    """The name of the scope, such as `tool`; empty if the term has no scope."""
    name: str
    """The name of the tool or the role for the scopes `tool` and `role`; otherwise empty."""
    value: str
    is_quoted: bool


def parse_query(text: str, regex: str | None = None) -> SearchTerms:
    """Return the parsed query.

    Args:
        text: the query, which may contain `regex:`.
        regex: a regular expression; None to use the one in the query, if there is one.

    Raises:
        Invalid: the query is malformed. The message states which characters are wrong and how to correct them.
    """
    if len(text) > LONGEST_QUERY:
        raise Invalid("query", f"has {len(text)} characters; write at most {LONGEST_QUERY}")
    terms = _Reader(text).terms()
    if len(terms) > MOST_TERMS:
        raise _refusal(text, terms[MOST_TERMS].start, terms[MOST_TERMS].end, f"write at most {MOST_TERMS} terms")
    plain: list[Phrase] = []
    required: list[Clause] = []
    excluded: list[Clause] = []
    for term in terms:
        if term.scope == "regex":
            regex = _regex(text, term, regex)
        elif not term.scope and not term.is_excluded:
            plain.append(_phrase(text, term))
        else:
            (excluded if term.is_excluded else required).append(clause_of(text, term))
    if plain:
        required.insert(0, Clause(tuple(plain)))
    if regex is not None and not 1 <= len(regex) <= LONGEST_REGEX:
        raise Invalid("regex", f"has {len(regex)} characters; write 1 to {LONGEST_REGEX}")
    if regex is not None:
        required = required or [Clause()]
    return SearchTerms(_checked(required, excluded), tuple(excluded), regex)


def _checked(required: list[Clause], excluded: list[Clause]) -> tuple[Clause, ...]:
    if not required and excluded:
        reason = "excludes texts but requires none; add a word, or a scope such as error: or role:assistant"
        raise Invalid("query", reason)
    if not required:
        raise Invalid("query", 'is empty; write a word, a "phrase", a prefix*, or a scope such as tool:bash or error:')
    return tuple(required)


def _refusal(text: str, start: int, end: int, cure: str) -> Invalid:
    return Invalid("query", f"at character {start + 1}, {text[start:end]!r}: {cure}")


class _Reader:
    """Cuts a query into terms."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def terms(self) -> list[_Term]:
        terms: list[_Term] = []
        while True:
            while self._at < len(self._text) and self._text[self._at].isspace():
                self._at += 1
            if self._at == len(self._text):
                return terms
            terms.append(self._term())

    def _term(self) -> _Term:
        text, start = self._text, self._at
        is_excluded = text[start] == "-"
        if is_excluded:
            self._at += 1
        scope = self._until_colon()
        if scope and scope not in {"tool", "role", "regex", *SCOPES}:
            cure = f"{scope}: is an unknown scope; use {', '.join(SCOPE_NAMES)}, or write the text in quotes"
            raise _refusal(text, start, self._at, cure)
        name = ""
        if scope in {"tool", "role"}:
            name = self._name()
        value, is_quoted = self._value(start)
        if is_excluded and not (scope or value or is_quoted):
            raise _refusal(text, start, self._at, 'a word must follow the -; write -word, or "-" in quotes')
        if not is_quoted and '"' in value:
            raise _refusal(text, start, self._at, "a quote must begin a phrase; put a space before it")
        return _Term(start, self._at, is_excluded, scope, name, value, is_quoted)

    def _until_colon(self) -> str:
        """Read a scope and its colon, if they are next; return the scope."""
        end = self._at
        while end < len(self._text) and (self._text[end].isalpha() or self._text[end] == "_"):
            end += 1
        if end == self._at or end >= len(self._text) or self._text[end] != ":":
            return ""
        scope, self._at = self._text[self._at : end].lower(), end + 1
        return scope

    def _name(self) -> str:
        """Read the name of a tool or a role, and the colon after it."""
        start = self._at
        while self._at < len(self._text) and not (self._text[self._at].isspace() or self._text[self._at] in ':"'):
            self._at += 1
        name = self._text[start : self._at]
        if self._at < len(self._text) and self._text[self._at] == ":":
            self._at += 1
        elif self._at < len(self._text) and self._text[self._at] == '"':
            raise _refusal(self._text, start, self._at + 1, "write the name without quotes")
        return name

    def _value(self, start: int) -> tuple[str, bool]:
        """Read a phrase in quotes or the characters up to the next space; return it and whether it was quoted."""
        text = self._text
        if self._at < len(text) and text[self._at] == '"':
            end = text.find('"', self._at + 1)
            if end < 0:
                raise _refusal(text, self._at, len(text), "the quote has no end; add a second quote")
            value, self._at = text[self._at + 1 : end], end + 1
            if self._at < len(text) and not text[self._at].isspace():
                raise _refusal(text, start, self._at + 1, "put a space after the quote")
            return value, True
        first = self._at
        while self._at < len(text) and not text[self._at].isspace():
            self._at += 1
        return text[first : self._at], False


def _phrase(text: str, term: _Term) -> Phrase:
    value = term.value
    is_prefix = value.endswith("*") and not term.is_quoted
    if "*" in value.rstrip("*") and not term.is_quoted:
        raise _refusal(text, term.start, term.end, "a * can only stand at the end of a word; write regex: for patterns")
    words = tuple(word_texts(value))
    if not words:
        raise _refusal(text, term.start, term.end, "has no letter and no digit; write a word, or regex: for a pattern")
    return Phrase(words, is_prefix)


def clause_of(text: str, term: _Term) -> Clause:
    """Return the clause of a term of the query `text`, of any scope except `regex`."""
    if not term.scope:
        return Clause((_phrase(text, term),))
    phrases = (_phrase(text, term),) if term.value or term.is_quoted else ()
    if term.scope == "tool":
        if not term.name and not phrases:
            cure = "write the name of a tool after tool:, such as tool:bash, and a word after it: tool:bash:timeout"
            raise _refusal(text, term.start, term.end, cure)
        return Clause(phrases, _TOOL, term.name.casefold() or None)
    if term.scope == "role":
        kinds = ROLES.get(term.name.lower())
        if kinds is None:
            cure = f"{term.name!r} is an unknown role; use {', '.join(f'role:{role}' for role in ROLES)}"
            raise _refusal(text, term.start, term.end, cure)
        return Clause(phrases, kinds)
    return Clause(phrases, SCOPES[term.scope])


def _regex(text: str, term: _Term, other: str | None) -> str:
    if term.is_excluded or other is not None:
        cure = "a regular expression cannot be excluded" if term.is_excluded else "write only one regular expression"
        raise _refusal(text, term.start, term.end, cure)
    if not term.value:
        raise _refusal(text, term.start, term.end, "write an expression after regex:, in quotes if it contains spaces")
    return term.value
