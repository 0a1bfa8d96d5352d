"""Stream of a run over a WebSocket."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from pydantic import Field

from store.errors import Conflict, NotFound, Unsupported
from store.examples.trading.front_end import messages
from store.models import RunFrame
from store.models.enums import Frozen
from store.server.call import Call
from store.server.streaming.feed import Fact, Feeding, Frame
from store.server.streaming.run_pages import SharedRuns
from store.sql.database import StoreDatabase, database_of
from store.wire.encoding import dumps

SOCKET: Final = "/ws/stream/{run_id}"


class SocketQuery(Frozen):
    """WebSocket /ws/stream/{run_id}."""

    after: int = Field(default=0, ge=0)
    """The `seq` of the last event that the client has processed."""
    follow: bool = True
    """Whether to continue after the run's end, because a part of the run may be run again."""


def runs_database(call: Call) -> StoreDatabase:
    """Return the database of a call, which can find runs by flow or imported id.

    Raises:
        Unsupported: the store has no database in this process.
    """
    database = database_of(call.store)
    if database is None:
        raise Unsupported("runs of web front ends", type(call.store).__name__)
    return database


@asynccontextmanager
async def open_run_stream(runs: SharedRuns, call: Call, run_id: str, **options: Any) -> AsyncGenerator[Feeding]:
    """Provide the stream of a run until the block ends. If the run is not found, the stream has one frame."""
    query = call.query(SocketQuery)
    database, partition = runs_database(call), call.scope["rollbook.partition"]
    try:
        rollout_id = await database.runs.resolve(run_id)
    except NotFound:
        yield OneMessage(partition, messages.unknown(run_id), **options)
        return
    except Conflict as error:
        yield OneMessage(partition, {"type": "system", "message": f"Error: {error}"}, **options)
        return
    async with runs.use(database, rollout_id, bodies=True) as shared:
        following = database.runs.following(shared, rollout_id, "head", query.after, masks=False)
        async with aclosing(following.frames("head")) as frames:
            await anext(frames)
            yield RunStream(partition, rollout_id, frames, follow=query.follow, **options)


class OneMessage(Feeding):
    """A stream of one frame.

    Args:
        partition: the partition of the log.
        message: the content of the frame.
        options: the other arguments of `Feeding`.
    """

    def __init__(self, partition: str, message: dict[str, Any], **options: Any) -> None:
        super().__init__(partition, **options)
        self._message = message

    def _opening(self) -> list[Frame]:
        return [_frame(self._message)]

    async def _follow(self) -> AsyncGenerator[Sequence[Fact]]:
        for facts in ():
            yield facts

    def _take(self, fact: Fact) -> None:
        del fact

    def _beat(self) -> list[Frame]:
        return []

    def farewell(self, error: Exception) -> Frame:
        return _frame({"type": "system", "message": f"Error: {error}"})


class RunStream(OneMessage):
    """A stream of a run to one front end.

    Args:
        partition: the partition of the log.
        run_id: the id of the run.
        frames: the frames of the run.
        follow: whether to continue after the run's end.
        options: the other arguments of `Feeding`.
    """

    def __init__(
        self, partition: str, run_id: str, frames: AsyncGenerator[RunFrame], *, follow: bool, **options: Any
    ) -> None:
        super().__init__(partition, {}, **options)
        self._run_id = run_id
        self._frames = frames
        self._follows_reruns = follow

    def _opening(self) -> list[Frame]:
        return []

    async def _follow(self) -> AsyncGenerator[Sequence[Fact]]:
        position = 0
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                position = position if frame.event is None else frame.event.position
                for message in messages.frame_messages(self._run_id, frame):
                    # The time is used to measure the lag of readers. A frame without an event has no time of its own.
                    at = time.time() if frame.event is None else frame.event.at
                    yield (Fact(position, frame.seq, at, "", frame.kind, str(frame.seq), _frame(message)),)
                if frame.kind == "terminal" and not self._follows_reruns:
                    return


def _frame(message: dict[str, Any]) -> Frame:
    return Frame("event", None, dumps(message))
