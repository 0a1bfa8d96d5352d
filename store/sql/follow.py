"""Following a run in a SQL store: the pages that its readers read along, and what they wait for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

from store.db.dialect import ReadSession, Row
from store.db.queries import log as log_queries
from store.db.queries import run_follow, run_views
from store.db.queries.pages import LONGEST_ID
from store.db.queries.run_views import View
from store.errors import NotFound
from store.models import Fork, RunEventRow, RunFrame
from store.planning.follow import Following, Form, Page, Place, Source
from store.planning.run_state import TURNS, Turn
from store.sql.mapping import runs as run_mapping
from store.sql.run_ids import SQLRunIds
from store.validation import arguments
from store.validation.json_limits import check_text

_AT_ONCE: Final = 200
_NOTHING: Final = 0


class SQLRuns(SQLRunIds):
    """What a SQL store tells of a run while it goes."""

    async def follow(
        self,
        rollout_id: str,
        *,
        after: int = 0,
        until: int | None = None,
        view: str = "head",
        bodies: bool = True,
    ) -> AsyncIterator[RunFrame]:
        following = self.following(RunSource(self, rollout_id, bodies=bodies), rollout_id, view, after, until)
        async with aclosing(following.frames(view)) as frames:
            async for frame in frames:
                yield frame

    def following(
        self,
        source: Source,
        rollout_id: str,
        view: str,
        after: int,
        until: int | None = None,
        *,
        masks: bool = True,
        goes_on: bool = True,
    ) -> Following:
        """Return a reader's way along a run; arguments as of `follow`, and of `Following`."""
        arguments.text(rollout_id, "rollout_id")
        arguments.whole(after, "after", "a version of the run: 0, 1, 2 …", 0)
        if until is not None:
            arguments.whole(until, "until", "a version of the run: 1, 2, 3 …", 1)
        form, attempt = run_views.parse(arguments.text(view, "view"))
        return Following(source, rollout_id, form, attempt, after, until, masks=masks, goes_on=goes_on)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def past(self, rollout_id: str) -> tuple[Sequence[Turn], Place]:
        """Return how a run came to stand as it does: see `store.planning.follow.Source.past`."""

        async def read(session: ReadSession) -> tuple[Sequence[Turn], Place]:
            stream = f"rollout/{check_text(rollout_id, 'rollout_id', LONGEST_ID)}"
            last = await run_follow.last_of(self.core.dialect, session, stream)
            if last is None:
                raise NotFound.rollout(rollout_id)
            rows = await run_follow.turns(self.core.dialect, session, stream, TURNS, last[0])
            return [_turn(row, {}) for row in rows], Place(*last)

        return await self.core.read(read, snapshot=True)

    async def place(self, rollout_id: str, version: int) -> Place:
        """Return the moment of an event of a run that is there."""

        async def read(session: ReadSession) -> Place:
            stream = f"rollout/{rollout_id}"
            rows = await log_queries.stream_events(self.core.dialect, session, stream, after=version - 1, limit=1)
            return Place(version, rows[0][0])

        return await self.core.read(read)

    async def page(self, rollout_id: str, after: int, *, bodies: bool) -> Page:
        """Return the next facts of a run: see `store.planning.follow.Source.page`."""

        async def read(session: ReadSession) -> Page:
            commit = await log_queries.last_commit(self.core.dialect, session)
            end = _NOTHING if commit is None else commit[3]
            rows = await log_queries.stream_events(
                self.core.dialect, session, f"rollout/{rollout_id}", after=after, limit=_AT_ONCE
            )
            if not rows:
                return Page([], Place(after, _NOTHING), is_last=True, end=end)
            place = Place(rows[-1][3], rows[-1][0])
            forks = await self._forks_among(session, rollout_id, rows)
            facts: list[Turn | RunEventRow] = [_turn(row, forks) for row in rows if row[5] in TURNS]
            facts += await self._events(session, rollout_id, View("raw", 0, place.position), after, -1, bodies=bodies)
            facts.sort(key=_version)
            return Page(facts, place, is_last=len(rows) < _AT_ONCE, end=end)

        return await self.core.read(read, snapshot=True)

    async def view(self, rollout_id: str, view: View, after: int, *, bodies: bool) -> Sequence[RunEventRow]:
        """Return the next events of a view that is cut at a moment."""
        return await self.core.read(
            lambda session: self._events(session, rollout_id, view, after, _AT_ONCE, bodies=bodies), snapshot=True
        )

    async def _events(
        self, session: ReadSession, rollout_id: str, view: View, after: int, limit: int, *, bodies: bool
    ) -> list[RunEventRow]:
        rows = await run_views.events(self.core.dialect, session, rollout_id, view, after=after, limit=limit)
        payloads, texts = await self._payload_of(session, rows) if bodies else ({}, {})
        return [run_mapping.event(rollout_id, row, payloads.get(row[1]), texts) for row in rows]

    async def _forks_among(self, session: ReadSession, rollout_id: str, rows: Sequence[Row]) -> dict[int, Fork]:
        if all(row[5] != "attempt.forked" for row in rows):
            return {}
        standing = await run_views.standing(self.core.dialect, session, rollout_id)
        assert standing is not None  # there are events of it
        return dict((await self._family(session, rollout_id, standing)).forks)

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def news(self, end: int) -> None:
        """Return when something may have been committed after a position of the log.

        Raises:
            Closed: the store was closed.
        """
        await self.core.log_news(end)


def _turn(row: Row, forks: dict[int, Fork]) -> Turn:
    fields = log_queries.described(row, None)
    return Turn(fields["number"], fields["type"], fields["data"], forks.get(fields["number"]))


def _version(fact: Turn | RunEventRow) -> int:
    return fact.version


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run in a SQL store, read by one reader alone."""

    runs: SQLRuns
    rollout_id: str
    bodies: bool

    async def past(self) -> tuple[Sequence[Turn], Place]:
        """See `store.planning.follow.Source`, and so for the others."""
        return await self.runs.past(self.rollout_id)

    async def place(self, version: int) -> Place:
        """Return the moment of an event that is there."""
        return await self.runs.place(self.rollout_id, version)

    async def view(self, form: Form, attempt: int, after: int, until: Place) -> AsyncGenerator[RunEventRow]:
        """Yield the events that a view holds at a moment, after a version."""
        seen = View(form, attempt, until.position)
        read = partial(self.runs.view, self.rollout_id, seen, bodies=self.bodies)
        while events := await read(after=after):
            for event in events:
                yield event
            after = events[-1].version
            if len(events) < _AT_ONCE:
                return

    async def page(self, after: int, since: int) -> Page:
        """Return what comes after a version."""
        del since  # what is read now is never older
        return await self.runs.page(self.rollout_id, after, bodies=self.bodies)

    async def news(self, end: int) -> int:
        """Return once the log may have gone on after a position."""
        await self.runs.news(end)
        return end
