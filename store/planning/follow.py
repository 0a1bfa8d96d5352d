"""Frames for readers that follow a run. A reader that resumes ends with the same view as a new reader. Decision 31.

A frame is a message to a reader about an event or another change. A turn is an event that changes the state of the run,
and a fact is any event.

The position of a reader is a version. The reader has the events of its view at that version and gets the changes since
then: new events, and the masks of a fork. The view can also change in other ways: by a retry, by a fork of an attempt
other than the head, or by a moved head. Then the reader gets the whole view again. Past and new events come from the
same log by the same code, so no event is lost or sent twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, Protocol

from store.domain.events import AttemptStatusChanged, RolloutStatusChanged
from store.domain.run_events import AttemptForked
from store.errors import Invalid, NotFound
from store.models.run_frames import RunFrame
from store.models.runs import RunEventRow
from store.planning.run_state import RunState, Turn

Form = Literal["seen", "own", "raw"]


class FutureCursor(Invalid):
    """A reader's position is beyond the last event of a run."""

    code = "future_cursor"

    def __init__(self, after: int, last: int) -> None:
        super().__init__("after", f"{after} is beyond the last event of the rollout, which has number {last}")


@dataclass(frozen=True, slots=True)
class RunPosition:
    """A position in a run."""

    version: int
    """The version of the run's last event at this position."""
    position: int
    """The position of that event in the log."""


@dataclass(frozen=True)
class RunFollowPage:
    """The next facts of a run that a reader may need."""

    facts: Sequence[Turn | RunEventRow]
    place: RunPosition
    """The position after these facts, and after directly following facts that no reader needs."""
    is_last: bool
    """Whether the run had no further facts."""
    end: int
    """The last position of the whole log when this page was read."""
    _frames: dict[int | None, list[RunFrame]] = field(default_factory=dict[int | None, list[RunFrame]], compare=False)

    @cached_property
    def has_turns(self) -> bool:
        """Whether a fact changes the state of the run."""
        return any(isinstance(fact, Turn) for fact in self.facts)

    def frames(self, attempt: int | None) -> Sequence[RunFrame]:
        """Return the frames of the events of an attempt, or of all attempts. All readers of the page share them."""
        frames = self._frames.get(attempt)
        if frames is None:
            events = (fact for fact in self.facts if isinstance(fact, RunEventRow))
            frames = self._frames[attempt] = [
                _event_frame(event) for event in events if attempt is None or event.attempt == attempt
            ]
        return frames


class Source(Protocol):
    """The log of one run."""

    async def past(self) -> tuple[Sequence[Turn], RunPosition]:
        """Return all turns of the run, and its last position.

        Raises:
            NotFound: the rollout does not exist.
        """
        ...

    async def place(self, version: int) -> RunPosition:
        """Return the position of an existing event."""
        ...

    def view(self, form: Form, attempt: int, after: int, until: RunPosition) -> AsyncGenerator[RunEventRow]:
        """Yield the events of a view at the position `until` whose versions are above `after`."""
        ...

    async def page(self, after: int, since: int) -> RunFollowPage:
        """Return the facts after the version `after`, from a read that includes the log up to the position `since`."""
        ...

    async def news(self, end: int) -> int:
        """Wait until the run may have facts after the log position `end`; return the position that the log has reached.

        There may be no such facts, because other runs write to the same log.
        """
        ...


@dataclass(slots=True)
class Following:
    """One reader that follows a run.

    Args:
        source: the log of the run.
        rollout_id: the id of the run.
        form: the events in the view: `seen` for those of an attempt and of the attempts on which it builds, `own` for
            those of the attempt alone, `raw` for all events.
        attempt: the attempt whose view is followed; None for the head and for `raw`.
        after: the version that the reader has seen; 0 for a new reader.
        until: the version whose view the reader was loading when its connection ended; None if the reader was not
            loading a view.
        masks: whether the reader itself can remove the events that a fork hides. If not, the reader gets the whole view
            again after a fork.
        goes_on: whether to wait for more facts after the last fact.
    """

    source: Source
    rollout_id: str
    form: Form
    attempt: int | None
    after: int
    until: int | None = None
    masks: bool = True
    goes_on: bool = True
    _state: RunState = field(default_factory=RunState)
    _moved: int = 0
    """The last version at which the view changed so that the reader needed the whole view again."""
    _sent_end: bool = False
    """Whether a `terminal` frame was sent since the run last continued."""

    async def frames(self, view: str) -> AsyncGenerator[RunFrame]:
        """Yield the frames of `batches` one by one."""
        async with aclosing(self.batches(view)) as batches:
            async for batch in batches:
                for frame in batch:
                    yield frame

    async def batches(self, view: str) -> AsyncGenerator[Sequence[RunFrame]]:
        """Yield frames until the reader stops, several at once where a page has several. The first batch has one.

        Args:
            view: the name of the view, as in the reader's request.

        Raises:
            FutureCursor: `after` is beyond the run's last event.
            NotFound: the rollout or the attempt does not exist.
        """
        turns, place = await self.source.past()
        furthest = max(self.after, self.until or 0)
        if furthest > place.version:
            raise FutureCursor(furthest, place.version)
        yield [self._hello(view, turns, place)]
        if self.until is not None:
            place = await self.source.place(self.until)
        # A reader that follows the head and already has events may have missed a move of the head, so it reads all
        # facts after its last event.
        reads_log = self._follows_head and self.after > 0 and self.until is None
        start = self.after if reads_log else place.version
        for turn in turns:
            if turn.version <= start:
                self._apply_turn(turn)
        if not reads_log and self.after < place.version:
            async with aclosing(self._load(self.after, place)) as loaded:
                async for frame in loaded:
                    yield [frame]
        self.after = max(start, self.after)
        async with aclosing(self._follow_log()) as followed:
            async for batch in followed:
                yield batch

    @property
    def _follows_head(self) -> bool:
        return self.form == "seen" and self.attempt is None

    @property
    def _shown_attempt(self) -> int | None:
        """The attempt whose events extend the view; None for the events of all attempts."""
        return self._state.head if self._follows_head else self.attempt

    def _hello(self, view: str, turns: Sequence[Turn], place: RunPosition) -> RunFrame:
        state = RunState()
        for turn in turns:
            state.take(turn)
        attempt = state.head if self._follows_head else self.attempt
        if self.attempt is not None and state.status_of(self.attempt) is None:
            raise NotFound.attempt(str(self.attempt), self.rollout_id)
        return RunFrame(
            kind="hello",
            seq=self.after,
            view=view,
            last_seq=place.version,
            head_attempt=state.head,
            attempt_status=state.status_of(attempt),
            rollout_status=state.rollout_status,
        )

    async def _load(self, after: int, until: RunPosition) -> AsyncGenerator[RunFrame]:
        """Yield the events of the view at a position, then the status of the run at that position."""
        if self.form == "raw" or self._shown_attempt is not None:
            async with aclosing(self.source.view(self.form, self._shown_attempt or 0, after, until)) as events:
                async for event in events:
                    # A reader that loses its connection can resume with the version of the last event, if that event
                    # is after the last move. Otherwise the reader also needs the version whose view is being loaded.
                    yield _event_frame(event, until.version if event.version < self._moved else None)
        yield self._status(until.version, self._shown_attempt)
        for frame in self._end(until.version):
            yield frame

    async def _follow_log(self) -> AsyncGenerator[Sequence[RunFrame]]:
        since = 0
        while True:
            page = await self.source.page(self.after, since)
            if page.has_turns:
                async with aclosing(self._page_frames(page)) as frames:
                    async for frame in frames:
                        yield [frame]
            elif (self.form == "raw" or self._shown_attempt is not None) and (
                batch := page.frames(self._shown_attempt)
            ):
                yield batch
            self.after = page.place.version
            if page.is_last:
                if not self._sent_end:
                    for frame in self._end(self.after):
                        yield [frame]
                if not self.goes_on:
                    return
                since = await self.source.news(page.end)

    async def _page_frames(self, page: RunFollowPage) -> AsyncGenerator[RunFrame]:
        for index, fact in enumerate(page.facts):
            if isinstance(fact, RunEventRow):
                if self._holds(fact):
                    yield _event_frame(fact)
            elif not self._apply_turn(fact):
                for frame in self._turn_frames(fact):
                    yield frame
            else:
                # The page may contain more moves; the load below includes all of them.
                for later in page.facts[index + 1 :]:
                    if isinstance(later, Turn):
                        self._apply_turn(later)
                self._sent_end = False
                yield RunFrame(kind="reset", seq=0)
                async with aclosing(self._load(0, page.place)) as loaded:
                    async for frame in loaded:
                        yield frame
                return

    def _holds(self, event: RunEventRow) -> bool:
        """Return whether a new event belongs to the view.

        The shown attempt may build on other attempts. The view contains their events only from before the fork. So
        their new events do not belong to the view.
        """
        return self.form == "raw" or event.attempt == self._shown_attempt

    def _apply_turn(self, turn: Turn) -> bool:
        """Apply a turn; return whether the view changed so that the reader needs the whole view again."""
        move = self._state.take(turn)
        needs_reload = self._follows_head and (move == "elsewhere" or (move == "fork" and not self.masks))
        if needs_reload:
            self._moved = turn.version
        return needs_reload

    def _turn_frames(self, turn: Turn) -> list[RunFrame]:
        match turn.event.fact:
            case AttemptForked() as forked if self._follows_head:
                self._sent_end = False
                return [self._fork(turn, forked)]
            case AttemptStatusChanged(attempt_id=attempt_id):
                return [self._status(turn.version, self._state.number_of(attempt_id), of_rollout=False)]
            case RolloutStatusChanged(from_=from_, to=to):
                frames = [self._status(turn.version, None)]
                if from_ != to:
                    self._sent_end = False
                    frames += self._end(turn.version)
                return frames
            case _:
                return []

    def _fork(self, turn: Turn, forked: AttemptForked) -> RunFrame:
        fork = turn.fork
        return RunFrame(
            kind="fork",
            seq=turn.version,
            attempt=self._state.head,
            base=forked.base,
            base_seq=forked.base_version,
            masks=None if fork is None else fork.masks,
            plan=fork,
        )

    def _status(self, seq: int, attempt: int | None, *, of_rollout: bool = True) -> RunFrame:
        return RunFrame(
            kind="status",
            seq=seq,
            attempt=attempt,
            attempt_status=self._state.status_of(attempt),
            rollout_status=self._state.rollout_status if of_rollout else None,
        )

    def _end(self, seq: int) -> list[RunFrame]:
        outcome = self._state.outcome_of(self._shown_attempt)
        if outcome is None:
            return []
        self._sent_end = True
        error = self._state.error_of(self._shown_attempt) if outcome == "failed" else None
        return [RunFrame(kind="terminal", seq=seq, attempt=self._shown_attempt, outcome=outcome, error=error)]


_EVENT: Final = RunFrame(kind="event", seq=0)


def _event_frame(event: RunEventRow, until: int | None = None) -> RunFrame:
    # A copy takes a third of the time of a new frame, whose many empty fields would be set one by one.
    return _EVENT.model_copy(update={"seq": event.version, "until": until, "event": event})
