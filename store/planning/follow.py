"""Following a run: what its reader is told, fact by fact, so that going on from anywhere equals reading it afresh.

A reader stands at a version of the run. It holds what its view held then, and is told what changes: what comes, and
what a fork takes away. Where the view changes otherwise, by a retry, a branch or a moved head, it is told all of it
anew. So replay and live are one way along one log, with nothing between them that could be missed or come twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal, Protocol

from store.errors import Invalid, NotFound
from store.models.run_frames import RunFrame
from store.models.runs import RunEventRow
from store.planning.run_state import RunState, Turn

Form = Literal["seen", "own", "raw"]


class FutureCursor(Invalid):
    """A reader claims to have seen more of a run than there is."""

    code = "future_cursor"

    def __init__(self, after: int, last: int) -> None:
        super().__init__("after", f"{after} is beyond the last event of the rollout, which is its number {last}")


@dataclass(frozen=True, slots=True)
class RunPosition:
    """A moment of a run."""

    version: int
    """Of its last event then."""
    position: int
    """Of that event in the log."""


@dataclass(frozen=True, slots=True)
class RunFollowPage:
    """The next facts of a run, as far as they concern its readers."""

    facts: Sequence[Turn | RunEventRow]
    place: RunPosition
    """Where a reader stands after them, also past those that concern nobody."""
    is_last: bool
    """Whether there was nothing more."""
    end: int
    """The last position of the whole log when it was read."""
    told: dict[int, RunFrame] = field(default_factory=dict[int, RunFrame], compare=False)
    """The frames of its events, made once for all readers."""

    def frame(self, event: RunEventRow) -> RunFrame:
        """Return what a reader is told of one of its events."""
        frame = self.told.get(event.version)
        if frame is None:
            frame = self.told[event.version] = _told(event)
        return frame


class Source(Protocol):
    """Where a run is read."""

    async def past(self) -> tuple[Sequence[Turn], RunPosition]:
        """Return all turns of the run, and where it stands.

        Raises:
            NotFound: no such rollout.
        """
        ...

    async def place(self, version: int) -> RunPosition:
        """Return the moment of an event that is there."""
        ...

    def view(self, form: Form, attempt: int, after: int, until: RunPosition) -> AsyncGenerator[RunEventRow]:
        """Yield the events that a view holds at a moment, after a version."""
        ...

    async def page(self, after: int, since: int) -> RunFollowPage:
        """Return what comes after a version, read when the log had reached a position."""
        ...

    async def news(self, end: int) -> int:
        """Return once the run may have gone on after a position of the log; and which one it has reached."""
        ...


@dataclass(slots=True)
class Following:
    """One reader's way along a run.

    Args:
        source: where the run is read.
        rollout_id: which.
        form: `seen`, `own` or `raw`, as views are.
        attempt: whose view it is; None for the head's, and for `raw`.
        after: the version that the reader has seen; 0 for one that holds nothing.
        until: the version as of which it was being told the view when it was cut off, if it was.
        masks: whether the reader can take away what a fork hides; else it is told everything anew.
        goes_on: whether to wait for more, once all was told that is there.
    """

    source: Source
    rollout_id: str
    form: Form
    attempt: int | None
    after: int
    until: int | None = None
    masks: bool = True
    goes_on: bool = True
    _course: RunState = field(default_factory=RunState)
    _moved: int = 0
    """The last version at which the view became another one than what a reader could work out."""
    _told_end: bool = False
    """Whether how the run ended was told since it last went on."""

    async def frames(self, view: str) -> AsyncGenerator[RunFrame]:
        """Yield frames until whoever reads stops.

        Args:
            view: its name, as the reader has given it.

        Raises:
            FutureCursor: `after` is beyond the run's last event.
            NotFound: no such rollout, or attempt.
        """
        turns, place = await self.source.past()
        furthest = max(self.after, self.until or 0)
        if furthest > place.version:
            raise FutureCursor(furthest, place.version)
        yield self._hello(view, turns, place)
        if self.until is not None:
            place = await self.source.place(self.until)
        # Whoever follows a head, and holds something, may have missed that it moved, so it goes the whole way.
        walks = self._follows_head and self.after > 0 and self.until is None
        at = self.after if walks else place.version
        for turn in turns:
            if turn.version <= at:
                self._is_new_to_view(turn)
        if not walks and self.after < place.version:
            async with aclosing(self._load(self.after, place)) as loaded:
                async for frame in loaded:
                    yield frame
        self.after = max(at, self.after)
        async with aclosing(self._walk()) as walked:
            async for frame in walked:
                yield frame

    @property
    def _follows_head(self) -> bool:
        return self.form == "seen" and self.attempt is None

    @property
    def _whose(self) -> int | None:
        """The attempt whose events come next in the view; None for those of all."""
        return self._course.head if self._follows_head else self.attempt

    def _hello(self, view: str, turns: Sequence[Turn], place: RunPosition) -> RunFrame:
        now = RunState()
        for turn in turns:
            now.take(turn)
        whose = now.head if self._follows_head else self.attempt
        if self.attempt is not None and now.status_of(self.attempt) is None:
            raise NotFound.attempt(str(self.attempt), self.rollout_id)
        return RunFrame(
            kind="hello",
            seq=self.after,
            view=view,
            last_seq=place.version,
            head_attempt=now.head,
            attempt_status=now.status_of(whose),
            rollout_status=now.rollout_status,
        )

    async def _load(self, after: int, until: RunPosition) -> AsyncGenerator[RunFrame]:
        """Yield what the view holds at a moment, and how the run stands then."""
        if self.form == "raw" or self._whose is not None:
            async with aclosing(self.source.view(self.form, self._whose or 0, after, until)) as events:
                async for event in events:
                    # Beyond the last move, going on from an event is the same as going on with what is told here.
                    yield _told(event, until.version if event.version < self._moved else None)
        yield self._status(until.version, self._whose)
        for frame in self._end(until.version):
            yield frame

    async def _walk(self) -> AsyncGenerator[RunFrame]:
        since = 0
        while True:
            page = await self.source.page(self.after, since)
            async with aclosing(self._tell(page)) as told:
                async for frame in told:
                    yield frame
            self.after = page.place.version
            if page.is_last:
                if not self._told_end:
                    for frame in self._end(self.after):
                        yield frame
                if not self.goes_on:
                    return
                since = await self.source.news(page.end)

    async def _tell(self, page: RunFollowPage) -> AsyncGenerator[RunFrame]:
        for index, fact in enumerate(page.facts):
            if isinstance(fact, RunEventRow):
                if self._holds(fact):
                    yield page.frame(fact)
            elif not self._is_new_to_view(fact):
                for frame in self._turned(fact):
                    yield frame
            else:
                # The page may hold more moves, and all of them are in what is told now.
                for later in page.facts[index + 1 :]:
                    if isinstance(later, Turn):
                        self._is_new_to_view(later)
                self._told_end = False
                yield RunFrame(kind="reset", seq=0)
                async with aclosing(self._load(0, page.place)) as loaded:
                    async for frame in loaded:
                        yield frame
                return

    def _holds(self, event: RunEventRow) -> bool:
        """Whether the view holds an event that has just come: of those it builds on, none counts any more."""
        return self.form == "raw" or event.attempt == self._whose

    def _is_new_to_view(self, turn: Turn) -> bool:
        """Take in a turn; whether it makes the view another one than what its reader holds and can work out."""
        move = self._course.take(turn)
        is_new = self._follows_head and (move == "elsewhere" or (move == "fork" and not self.masks))
        if is_new:
            self._moved = turn.version
        return is_new

    def _turned(self, turn: Turn) -> list[RunFrame]:
        match turn.type:
            case "attempt.forked" if self._follows_head:
                self._told_end = False
                return [self._fork(turn)]
            case "attempt.status_changed":
                number = self._course.number_of(turn.data["attempt_id"])
                return [self._status(turn.version, number, of_rollout=False)]
            case "rollout.status_changed":
                frames = [self._status(turn.version, None)]
                if turn.data["from"] != turn.data["to"]:
                    self._told_end = False
                    frames += self._end(turn.version)
                return frames
            case _:
                return []

    def _fork(self, turn: Turn) -> RunFrame:
        fork = turn.fork
        return RunFrame(
            kind="fork",
            seq=turn.version,
            attempt=self._course.head,
            base=turn.data["base"],
            base_seq=turn.data["base_version"],
            masks=None if fork is None else fork.masks,
            plan=fork,
        )

    def _status(self, seq: int, attempt: int | None, *, of_rollout: bool = True) -> RunFrame:
        return RunFrame(
            kind="status",
            seq=seq,
            attempt=attempt,
            attempt_status=self._course.status_of(attempt),
            rollout_status=self._course.rollout_status if of_rollout else None,
        )

    def _end(self, seq: int) -> list[RunFrame]:
        outcome = self._course.outcome_of(self._whose)
        if outcome is None:
            return []
        self._told_end = True
        error = self._course.error_of(self._whose) if outcome == "failed" else None
        return [RunFrame(kind="terminal", seq=seq, attempt=self._whose, outcome=outcome, error=error)]


def _told(event: RunEventRow, until: int | None = None) -> RunFrame:
    return RunFrame.model_construct(kind="event", seq=event.version, until=until, event=event)
