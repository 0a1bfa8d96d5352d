"""An index: how the tables of one subject follow from the events of the log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from sqlalchemy import Table
from sqlalchemy.schema import CreateIndex, CreateTable

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.index_place import IndexSession
from store.db.queries.bodies import payload

LARGEST_BODY = 8 * 1024 * 1024
"""The maximum number of bytes of a body that indexes read. The parsing of a larger body would block other threads."""


@dataclass(frozen=True)
class IndexedEvent:
    """An event of the log, as an index reads it."""

    row: NamedRow
    is_oversized: bool
    """Whether the event has a body that is larger than `LARGEST_BODY`. Such a body is not read."""

    @property
    def position(self) -> int:
        return self.row.position

    @property
    def stream(self) -> str:
        """The stream of the event, for example `rollout/<rollout_id>`."""
        return self.row.stream

    @property
    def rollout_id(self) -> str:
        """The id of the rollout whose history contains the event. Meaningful only for events of rollouts."""
        return self.row.stream.removeprefix("rollout/")

    @property
    def version(self) -> int:
        """The number of the event in its stream."""
        return self.row.version

    @property
    def type(self) -> str:
        return self.row.type

    @property
    def at(self) -> int:
        """The time of the event in µs since the epoch."""
        return self.row.at

    @cached_property
    def data(self) -> dict[str, Any]:
        """The data of the event, which are never removed."""
        return json_of(self.row.data)

    @property
    def has_unread_body(self) -> bool:
        """Whether the payload of the event was removed, or is too large to be read."""
        return self.row.body_hash is not None and self.row.body is None

    @cached_property
    def body(self) -> dict[str, Any]:
        """The payload of the event; empty if there is none, if it was removed, or if it is too large to be read."""
        return payload(self.row.codec, self.row.body) or {}


class Index(ABC):
    """Tables that follow from the events of the log.

    The rows of an event, and the position up to which events were folded, are written in one transaction. So an event
    is neither lost nor folded twice, even if a process is killed. `fold` may read the rows that it wrote before.
    """

    name: ClassVar[str]
    """The name of the index, and the beginning of the names of its tables. Only lower-case letters."""
    version: ClassVar[int]
    """The version of the meaning of the rows. An index of another version is dropped and made again."""
    types: ClassVar[tuple[str, ...]]
    """The types of the events that the index folds."""
    tables: ClassVar[tuple[Table, ...]]
    """The tables. A table of rows of a rollout has a column `rollout_id`."""

    async def create(self, session: IndexSession) -> None:
        """Create the tables. None of them may exist before."""
        compiler = session.dialect.compiler
        for table in self.tables:
            await session.execute(str(CreateTable(table).compile(dialect=compiler)))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                await session.execute(str(CreateIndex(index).compile(dialect=compiler)))

    async def clear(self, session: IndexSession) -> None:
        """Drop the tables, if they exist."""
        for name in self.table_names:
            await session.execute(f"DROP TABLE IF EXISTS {name}")

    @property
    def table_names(self) -> list[str]:
        """The names of all tables of the index."""
        return [table.name for table in self.tables]

    @abstractmethod
    async def fold(self, session: IndexSession, events: Sequence[IndexedEvent]) -> None:
        """Write the rows that follow from events, which are in the order of the log."""

    async def remove(self, session: IndexSession, rollout_ids: Sequence[str]) -> bool:
        """Delete all rows of rollouts from which payload was removed. The caller folds their remaining events again.

        Return False and leave the rows unchanged if it takes less time to make the whole index again.
        """
        for table in self.tables:
            if "rollout_id" in table.c:
                await session.delete(table, "rollout_id", rollout_ids)
        return True

    async def problem(self, session: ReadSession, rollout_id: str, events: Sequence[IndexedEvent]) -> str | None:
        """Return how the rows of a rollout differ from those that follow from its events; None if they are equal.

        Args:
            session: a session that sees the tables.
            rollout_id: the id of the rollout.
            events: all events of the rollout that the index folds, up to the position of the index.
        """
        del session, rollout_id, events
        return None

    async def purge(self, session: IndexSession) -> None:
        """Remove from the tables the content that deleted rows left there. Called after removals of payload."""
        del session
