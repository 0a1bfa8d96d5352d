"""Source of events for a reader that follows a run in a SQL store.

The source reads pages of events and waits for new events.

A turn is an event that changes the state of the run, such as the start of an attempt. In this module, a fact is a turn
or an event that readers see.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Final

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import log as log_queries
from store.db.queries import run_follow, run_views
from store.db.queries.pages import LONGEST_ID
from store.db.queries.run_views import View
from store.errors import NotFound
from store.models import Fork, RunEventRow
from store.planning.follow import Form, RunFollowPage, RunPosition
from store.planning.run_state import TURNS, Turn
from store.sql import run_reads
from store.sql.core import SQLCore
from store.sql.mapping import runs as run_mapping
from store.validation.json_limits import check_text

_AT_ONCE: Final = 200
_BEFORE_FIRST: Final = 0


class RunSource:
    """The source of one run for one reader. It implements `store.planning.follow.Source`.

    Args:
        core: the core of the store.
        rollout_id: the id of the run.
        bodies: whether to read messages, prompts, responses and errors as well.
    """

    def __init__(self, core: SQLCore, rollout_id: str, *, bodies: bool) -> None:
        self.core = core
        self.rollout_id = rollout_id
        self.bodies = bodies

    async def past(self) -> tuple[Sequence[Turn], RunPosition]:
        """Return all turns of the run, and the position of the run's last event; see `Source.past`."""

        async def read(session: ReadSession) -> tuple[Sequence[Turn], RunPosition]:
            stream = f"rollout/{check_text(self.rollout_id, 'rollout_id', LONGEST_ID)}"
            last = await run_follow.last_of(session, stream)
            if last is None:
                raise NotFound.rollout(self.rollout_id)
            rows = await run_follow.turns(session, stream, TURNS, last[0])
            return [Turn(log_queries.event_of(row)) for row in rows], RunPosition(*last)

        return await self.core.read(read, snapshot=True)

    async def place(self, version: int) -> RunPosition:
        """Return the position of an existing event."""

        async def read(session: ReadSession) -> RunPosition:
            stream = f"rollout/{self.rollout_id}"
            rows = await log_queries.stream_events(session, stream, after=version - 1, limit=1)
            return RunPosition(version, rows[0].position)

        return await self.core.read(read)

    async def page(self, after: int, since: int) -> RunFollowPage:
        """Return the next facts of the run; see `Source.page`."""
        del since  # a read of the database always includes the position `since`

        async def read(session: ReadSession) -> RunFollowPage:
            commit = await log_queries.last_commit(session)
            end = _BEFORE_FIRST if commit is None else commit.last_position
            # The bodies are read with the events, so that a page for all readers costs few statements.
            rows = await log_queries.stream_events(
                session, f"rollout/{self.rollout_id}", after=after, limit=_AT_ONCE, bodies=self.bodies
            )
            if not rows:
                return RunFollowPage([], RunPosition(after, _BEFORE_FIRST), is_last=True, end=end)
            place = RunPosition(rows[-1].version, rows[-1].position)
            forks = await self._forks_among(session, rows)
            facts: list[Turn | RunEventRow] = [_turn(row, forks) for row in rows if row.type in TURNS]
            facts += await self._events(session, View("raw", 0, place.position), after, -1, rows)
            facts.sort(key=_version)
            return RunFollowPage(facts, place, is_last=len(rows) < _AT_ONCE, end=end)

        return await self.core.read(read, snapshot=True)

    async def view(self, form: Form, attempt: int, after: int, until: RunPosition) -> AsyncGenerator[RunEventRow]:
        """Yield the events of the view at the position `until` whose versions are above `after`."""
        run_view = View(form, attempt, until.position)
        while True:
            events = await self.core.read(
                partial(self._events, view=run_view, after=after, limit=_AT_ONCE), snapshot=True
            )
            for event in events:
                yield event
            if len(events) < _AT_ONCE:
                return
            after = events[-1].version

    async def news(self, end: int) -> int:
        """Wait until the log may have new events after the position `end`, and return `end`.

        Raises:
            Closed: the store was closed.
        """
        await self.core.log_news(end)
        return end

    async def _events(
        self, session: ReadSession, view: View, after: int, limit: int, stream: Sequence[NamedRow] | None = None
    ) -> list[RunEventRow]:
        rows = await run_views.events(session, self.rollout_id, view, after=after, limit=limit)
        payloads, texts = await run_reads.payloads_of(session, rows, stream) if self.bodies else ({}, {})
        return [run_mapping.event(self.rollout_id, row, payloads.get(row.position), texts) for row in rows]

    async def _forks_among(self, session: ReadSession, rows: Sequence[NamedRow]) -> dict[int, Fork]:
        if all(row.type != "attempt.forked" for row in rows):
            return {}
        standing = await run_views.standing(session, self.rollout_id)
        assert standing is not None  # the rollout has events
        return dict((await run_reads.family_of(session, self.rollout_id, standing)).forks)


def _turn(row: NamedRow, forks: dict[int, Fork]) -> Turn:
    event = log_queries.event_of(row)
    return Turn(event, forks.get(event.version))


def _version(fact: Turn | RunEventRow) -> int:
    return fact.version
