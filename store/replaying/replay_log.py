"""Log of a replay: the creation and the changes of status of each rollout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from store.errors import Invalid, Unsupported
from store.interface.log import StoreLog
from store.interface.runs import AsAt
from store.models import HistoryEvent, LoggedEvent, LogPosition
from store.models.flat_spans import TakeSpans
from store.models.queries import SpanQuery
from store.replaying.timeline import ReplayEvent, Timeline

_CURSOR: Final = "replay-"
_STREAM: Final = "rollout/"
_END: Final = "rollout.status_changed"


class ReplayLog(StoreLog):
    """Log of a replay. `tail` yields the events of the replay; `history` and `take_spans` read the source.

    Args:
        source: the log of the recorded rollouts.
        timeline: the timeline.
        store_id: the id of the replay.
    """

    def __init__(self, source: StoreLog, timeline: Timeline, store_id: str) -> None:
        super().__init__("ReplayStore")
        self._source = source
        self._timeline = timeline
        self._store_id = store_id

    async def history(
        self, rollout_id: str, *, as_at: AsAt | None = None, after: int = 0, limit: int = -1
    ) -> list[HistoryEvent]:
        if as_at is not None:
            raise Unsupported("log.history with as_at", self.backend)
        return await self._source.history(rollout_id, after=after, limit=limit)

    async def position(self, as_at: AsAt | None = None) -> LogPosition:
        if as_at is not None:
            raise Unsupported("log.position with as_at", self.backend)
        return LogPosition(store_id=self._store_id, position=len(self._timeline.events))

    async def take_spans(self, query: SpanQuery, take: TakeSpans) -> int:
        return await self._source.take_spans(query, take)

    async def tail(
        self,
        after: str | None = None,
        *,
        follow: bool = False,
        types: Sequence[str] | None = None,
        rollout_id: str | None = None,
    ) -> AsyncIterator[LoggedEvent]:
        place, timeline = _place(after), self._timeline
        # If the types leave out the ends of rollouts, the caller does not wait for an end. So no step is taken for it.
        waits_for_ends = types is None or _END in types
        while True:
            seen = timeline.changes
            while place < len(timeline.events):
                event = timeline.events[place]
                place += 1
                if (types is None or event.type in types) and rollout_id in {None, event.rollout_id}:
                    yield _logged(event, place)
            if not follow:
                return
            if place == len(timeline.events):
                await (timeline.step() if waits_for_ends else timeline.change(seen))


def _place(cursor: str | None) -> int:
    if cursor is None:
        return 0
    number = cursor.removeprefix(_CURSOR)
    if number == cursor or not number.isdecimal():
        raise Invalid("after", f"{cursor!r} is no cursor of a replay")
    return int(number)


def _logged(event: ReplayEvent, position: int) -> LoggedEvent:
    return LoggedEvent(
        number=event.number,
        position=position,
        at=event.at,
        type=event.type,
        actor=None,
        cause=None,
        data=event.data,
        body=None,
        stream=f"{_STREAM}{event.rollout_id}",
        commit_id=position,
        cursor=f"{_CURSOR}{position}",
    )
