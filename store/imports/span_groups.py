"""Temporary storage that groups the spans of files by rollout, with bounded memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

import orjson

from store.imports.otlp_files import FileSpan
from store.imports.rollouts import UNENDED
from store.models import Span
from store.semconv import ATTEMPT_STATUS

_SCHEMA: Final = """
create table spans (
    rollout text not null, attempt text not null, trace text not null, span text not null, place text not null,
    hash blob not null, added blob not null, body blob not null, primary key (rollout, attempt, trace, span)
);
create table rollouts (number integer primary key, rollout text not null unique);
"""


class GroupedSpan(NamedTuple):
    """A span of a rollout, with its place in the files and the attributes that an export added."""

    place: str
    span: Span
    added: dict[str, Any]


class SpanGroups:
    """Spans by rollout, in a temporary database of SQLite. A large database is on disk; `__exit__` deletes it."""

    def __init__(self) -> None:
        # Calls come from several threads, one after the other.
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._database.executescript(f"pragma journal_mode = off; pragma synchronous = off; {_SCHEMA}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, key: str, entry: FileSpan) -> str | None:
        """Add a span, unless a span with the same ids was added before.

        Return the place of the earlier span if its content differs from this span; otherwise None.

        Args:
            key: the key of the rollout.
            entry: the span.
        """
        span = entry.span.span()
        body = span.model_dump_json().encode()
        ids = key, span.attempt_id, span.trace_id, span.span_id
        digest = sha256(body).digest()
        done = self._database.execute(
            "insert or ignore into spans values (?, ?, ?, ?, ?, ?, ?, ?)",
            (*ids, entry.place, digest, orjson.dumps(entry.span.added), body),
        )
        if done.rowcount:
            self._database.execute("insert or ignore into rollouts (rollout) values (?)", (key,))
            return None
        stored = self._database.execute(
            "select hash, place from spans where rollout = ? and attempt = ? and trace = ? and span = ?", ids
        )
        before, place = stored.fetchone()
        if before != digest:
            return place
        if entry.span.added.get(ATTEMPT_STATUS) not in {None, *UNENDED}:
            # An export after the end of the attempt has its status and reward, unlike one before.
            self._database.execute(
                "update spans set added = ? where rollout = ? and attempt = ? and trace = ? and span = ?",
                (orjson.dumps(entry.span.added), *ids),
            )
        return None

    def rollouts(self) -> Iterator[tuple[str, list[GroupedSpan]]]:
        """Yield the key and the spans of each rollout, in the order of their first spans."""
        query = "select place, body, added from spans where rollout = ? order by rowid"
        with closing(self._database.execute("select rollout from rollouts order by number")) as keys:
            for (key,) in keys:
                entries = self._database.execute(query, (key,)).fetchall()
                yield (
                    key,
                    [
                        GroupedSpan(place, Span.model_validate_json(body), orjson.loads(added))
                        for place, body, added in entries
                    ],
                )
