"""Conditions of search in SQL: clauses as expressions of FTS5 on SQLite and of tsquery on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, bindparam, column, literal_column, select, table
from sqlalchemy import cast as cast_sql
from sqlalchemy.types import BigInteger, Text, UserDefinedType

from store.db.dialect import Dialect
from store.indexing.search.index import documents, is_sqlite, kind_word, name_word, rollout_word
from store.indexing.search.query_language import Clause

_words = table("search_words", column("rowid", BigInteger))


class _TsQuery(UserDefinedType[Any]):
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "tsquery"


class WordMatch:
    """Documents that match clauses, as a part of a statement.

    Args:
        dialect: the database.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._has_fts = is_sqlite(dialect.compiler.name)
        self._dialect = dialect

    @property
    def id(self) -> ColumnElement[int]:
        """The column with the numbers of documents. Documents can be read quickly in the order of this column."""
        return _words.c.rowid if self._has_fts else documents.c.id

    def source(self) -> FromClause:
        """Return the tables of the statement."""
        return _words.join(documents, documents.c.id == _words.c.rowid) if self._has_fts else documents

    def all_documents(self) -> WordMatch:
        """Return the statement's part for all documents, without a condition on words."""
        other = WordMatch(self._dialect)
        other._has_fts = False
        return other

    def condition(self, *, of_rollouts: bool = False) -> ColumnElement[bool]:
        """Return the condition that a document matches the parameter `words`.

        With `of_rollouts`, the document must also belong to one of the rollouts that were passed to `params`.
        """
        if self._has_fts:
            return literal_column("search_words").op("MATCH")(bindparam("words", type_=Text))
        vector: ColumnElement[Any] = literal_column("search_documents.vector")
        matches = vector.op("@@")(cast_sql(bindparam("words", type_=Text), _TsQuery))
        return matches & self.of_rollouts() if of_rollouts else matches

    def of_rollouts(self) -> ColumnElement[bool]:
        """Return the condition that a document belongs to one of the rollouts in the parameter `numbers`."""
        return self._dialect.any_of(documents.c.rollout, "numbers")

    def params(self, clause: Clause, numbers: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the parameters of `condition` for a clause, and for the rollouts with these numbers; None for all."""
        if self._has_fts:
            return {"words": fts_query(clause, numbers)}
        values: dict[str, Any] = {"words": ts_query(clause)}
        return values if numbers is None else {**values, "numbers": self._dialect.list_param(list(numbers))}

    def rollouts_statement(self, *, has_least: bool) -> Select[Any]:
        """Return the statement that selects, of the rollouts passed to `params`, those with a document that matches.

        With `has_least`, the number of the document must be at least the parameter `least`.
        """
        statement = select(documents.c.rollout).select_from(self.source()).where(self.condition(of_rollouts=True))
        if has_least:
            statement = statement.where(self.id >= bindparam("least", type_=BigInteger))
        return statement.distinct()


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


def ts_query(clause: Clause) -> str:
    """Return the text of the type tsquery for a clause."""
    parts: list[str] = []
    if clause.kinds:
        parts.append("(" + " | ".join(f"'§{kind_word(kind)}'" for kind in clause.kinds) + ")")
    if clause.name is not None:
        parts.append(f"'§{name_word(clause.name)}'")
    for phrase in clause.phrases:
        words = [f"'{word}'" for word in phrase.words]
        if phrase.is_prefix:
            words[-1] += ":*"
        parts.append("(" + " <-> ".join(words) + ")")
    return " & ".join(parts)
