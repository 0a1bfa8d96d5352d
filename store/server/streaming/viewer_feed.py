"""The stream of a run for web front ends that are older than Rollbook, in their form of events and texts."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from pydantic import Field

from store.errors import Conflict, NotFound, Unsupported
from store.models import RunFrame
from store.models.enums import Frozen
from store.server.call import Call
from store.server.streaming import viewer_events
from store.server.streaming.feed import Fact, Feeding, Frame
from store.server.streaming.run_pages import SharedRuns
from store.sql.store import SQLStore
from store.wire.encoding import dumps


class ViewerQuery(Frozen):
    """WebSocket /ws/stream/{run_id}."""

    after: int = Field(default=0, ge=0)
    """The `seq` of the last event that the client has processed."""
    follow: bool = True
    """Whether to continue after the run's end, because a part of the run may be run again."""


def viewed_store(call: Call) -> SQLStore:
    """Return the store of a call.

    Raises:
        Unsupported: the store cannot find runs by flow or imported id.
    """
    if not isinstance(call.store, SQLStore):
        raise Unsupported("runs of web front ends", type(call.store).__name__)
    return call.store


@asynccontextmanager
async def viewer_feed(
    runs: SharedRuns, call: Call, run_id: str, query: ViewerQuery, **how: Any
) -> AsyncGenerator[Feeding]:
    """Provide a front end's stream of a run until the block ends. If the run is not found, the stream has one frame."""
    store, partition = viewed_store(call), call.scope["rollbook.partition"]
    try:
        rollout_id = await store.runs.resolve(run_id)
    except NotFound:
        yield Dismissal(partition, viewer_events.unknown(run_id), **how)
        return
    except Conflict as error:
        yield Dismissal(partition, {"type": "system", "message": f"Error: {error}"}, **how)
        return
    async with runs.use(store, rollout_id, bodies=True) as shared:
        following = store.runs.following(shared, rollout_id, "head", query.after, masks=False)
        async with aclosing(following.frames("head")) as frames:
            await anext(frames)
            yield ViewerFeed(partition, rollout_id, frames, follow=query.follow, **how)


class Dismissal(Feeding):
    """A stream of one frame.

    Args:
        partition: the partition of the log.
        text: the content of the frame.
        how: the other arguments of `Feeding`.
    """

    def __init__(self, partition: str, text: dict[str, Any], **how: Any) -> None:
        super().__init__(partition, **how)
        self._text = text

    def _opening(self) -> list[Frame]:
        return [_frame(self._text)]

    async def _follow(self) -> AsyncGenerator[Fact]:
        for fact in ():
            yield fact

    def _take(self, fact: Fact) -> None:
        del fact

    def _beat(self) -> list[Frame]:
        return []

    def farewell(self, error: Exception) -> Frame:
        return _frame({"type": "system", "message": f"Error: {error}"})


class ViewerFeed(Dismissal):
    """A stream of a run to one front end.

    Args:
        partition: the partition of the log.
        run_id: the id of the run.
        frames: the frames of the run.
        follow: whether to continue after the run's end.
        how: the other arguments of `Feeding`.
    """

    def __init__(
        self, partition: str, run_id: str, frames: AsyncGenerator[RunFrame], *, follow: bool, **how: Any
    ) -> None:
        super().__init__(partition, {}, **how)
        self._run_id = run_id
        self._frames = frames
        self._goes_on = follow

    def _opening(self) -> list[Frame]:
        return []

    async def _follow(self) -> AsyncGenerator[Fact]:
        position = 0
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                position = position if frame.event is None else frame.event.position
                for shown in viewer_events.frames_shown(self._run_id, frame):
                    # The time is used to measure the lag of readers. A frame without an event has no time of its own.
                    at = time.time() if frame.event is None else frame.event.at
                    yield Fact(position, frame.seq, at, "", frame.kind, str(frame.seq), _frame(shown))
                if frame.kind == "terminal" and not self._goes_on:
                    return


def _frame(shown: dict[str, Any]) -> Frame:
    return Frame("event", None, dumps(shown))
