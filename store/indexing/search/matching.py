"""Conditions of search in SQL: clauses as expressions of FTS5 on SQLite and as codes of words on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    column,
    func,
    literal_column,
    select,
    table,
)
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import Dialect, ReadSession
from store.indexing.search.index import CHARACTERS, documents, is_sqlite, kind_word, name_word, rollout_word
from store.indexing.search.lexicon import NO_CODE, Codes, read_codes
from store.indexing.search.query_language import Clause, SearchTerms

_words = table("search_words", column("rowid", BigInteger))
_coded: ColumnElement[Any] = literal_column("search_documents.words")
_characters: ColumnElement[Any] = literal_column(CHARACTERS)


class WordMatch:
    """Documents that match clauses, as a part of a statement.

    Args:
        dialect: the database.
        codes: the codes of the words of the clauses, from `codes_of`.
    """

    def __init__(self, dialect: Dialect, codes: Codes) -> None:
        self._has_fts = is_sqlite(dialect.compiler.name)
        self._dialect, self._codes = dialect, codes

    @property
    def id(self) -> ColumnElement[int]:
        """The column with the numbers of documents. Documents can be read quickly in the order of this column."""
        return _words.c.rowid if self._has_fts else documents.c.id

    def source(self) -> FromClause:
        """Return the tables of the statement."""
        return _words.join(documents, documents.c.id == _words.c.rowid) if self._has_fts else documents

    def all_documents(self) -> WordMatch:
        """Return the statement's part for all documents, without a condition on words."""
        other = WordMatch(self._dialect, self._codes)
        other._has_fts = False
        return other

    def condition(self, clause: Clause, *, of_rollouts: bool = False) -> ColumnElement[bool]:
        """Return the condition that a document matches a clause.

        With `of_rollouts`, the document must also belong to one of the rollouts that were passed to `params`.
        """
        if self._has_fts:
            return literal_column("search_words").op("MATCH")(bindparam("words", type_=Text))
        conditions = self._coded(clause)
        if clause.kinds:
            conditions.append(self._dialect.any_of(documents.c.kind, "kinds"))
        return and_(*conditions, *([self.of_rollouts()] if of_rollouts else []))

    def of_rollouts(self) -> ColumnElement[bool]:
        """Return the condition that a document belongs to one of the rollouts in the parameter `numbers`."""
        return self._dialect.any_of(documents.c.rollout, "numbers")

    def params(self, clause: Clause, numbers: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the parameters of `condition` for a clause, and for the rollouts with these numbers; None for all."""
        if self._has_fts:
            return {"words": fts_query(clause, numbers)}
        values: dict[str, Any] = {}
        if clause.kinds:
            values["kinds"] = self._dialect.list_param([int(kind) for kind in clause.kinds])
        return values if numbers is None else {**values, "numbers": self._dialect.list_param(list(numbers))}

    def rollouts_statement(self, clause: Clause, *, has_least: bool) -> Select[Any]:
        """Return the statement that selects, of the rollouts passed to `params`, those with a document that matches.

        With `has_least`, the number of the document must be at least the parameter `least`.
        """
        statement = (
            select(documents.c.rollout).select_from(self.source()).where(self.condition(clause, of_rollouts=True))
        )
        if has_least:
            statement = statement.where(self.id >= bindparam("least", type_=BigInteger))
        return statement.distinct()

    def _coded(self, clause: Clause) -> list[ColumnElement[bool]]:
        """Return the conditions on the codes of the words of a document.

        The codes are literals. With parameters, Postgres would use the same plan for rare and for frequent words.
        """
        words, characters = self._codes.words, ""
        conditions: list[ColumnElement[bool]] = []
        if clause.kinds and not (clause.phrases or clause.name):
            kinds = "".join(words.get(f"§{kind_word(kind)}", NO_CODE) for kind in clause.kinds)
            conditions.append(_characters.op("&&")(_list(kinds)))
        name = () if clause.name is None else (f"§{name_word(clause.name)}",)
        sequences = [name, *(phrase.words for phrase in clause.phrases if not phrase.is_prefix)]
        for sequence in filter(None, sequences):
            text = "".join(words.get(word, NO_CODE) for word in sequence)
            characters += text
            # For one character this repeats the condition on the list, but takes a tenth of its time for each row.
            conditions.append(func.strpos(_coded, literal_column(f"'{text}'")) > 0)
        for phrase in clause.phrases:
            if not phrase.is_prefix:
                continue
            before = "".join(words.get(word, NO_CODE) for word in phrase.words[:-1])
            characters += before
            ends = self._codes.prefixes[phrase.words[-1]] or [NO_CODE]
            conditions.append(_characters.op("&&")(_list("".join(sorted({code[0] for code in ends})))))
            if before or any(len(code) > 1 for code in ends):
                single = "".join(code for code in ends if len(code) == 1) or NO_CODE
                pairs = "".join(f"|{code}" for code in ends if len(code) > 1)
                conditions.append(_coded.op("~")(literal_column(f"'{before}(?:[{single}]{pairs})'")))
        if characters:
            conditions.append(_characters.op("@>")(_list(characters)))
        return conditions


def _list(characters: str) -> ColumnElement[Any]:
    return literal_column(f"string_to_array('{characters}', NULL)")


async def codes_of(session: ReadSession, terms: SearchTerms) -> Codes:
    """Return the codes of the words of a query. SQLite needs none."""
    if is_sqlite(session.dialect.compiler.name):
        return Codes()
    clauses = (*terms.required, *terms.excluded)
    phrases = [phrase for clause in clauses for phrase in clause.phrases]
    words = {word for phrase in phrases for word in phrase.words}
    words |= {f"§{kind_word(kind)}" for clause in clauses for kind in clause.kinds}
    words |= {f"§{name_word(clause.name)}" for clause in clauses if clause.name is not None}
    return await read_codes(session, words, {phrase.words[-1] for phrase in phrases if phrase.is_prefix})


def is_empty(clause: Clause) -> bool:
    """Return whether every document matches a clause."""
    return not (clause.phrases or clause.kinds or clause.name is not None)


def fts_query(clause: Clause, numbers: Sequence[int] | None) -> str:
    """Return the expression of FTS5 for a clause, and for the rollouts with these numbers; None for all."""
    meta: list[str] = []
    if clause.kinds:
        meta.append(" OR ".join(map(kind_word, clause.kinds)))
    if clause.name is not None:
        meta.append(name_word(clause.name))
    if numbers is not None:
        meta.append(" OR ".join(map(rollout_word, numbers)))
    parts: list[str] = []
    if meta:
        parts.append("meta : (" + " AND ".join(f"({words})" for words in meta) + ")")
    if clause.phrases:
        phrases = [f'"{" ".join(phrase.words)}"{" *" if phrase.is_prefix else ""}' for phrase in clause.phrases]
        parts.append("text : (" + " AND ".join(phrases) + ")")
    return " AND ".join(parts)
