"""Streams of one run: the frames of `store.models.run_frames`, written as `{"v": 1, "kind": …, "seq": …}`.

There are two more kinds of frames. Each of them is the last frame of its stream:

    gap        the log lacks events that the reader has read, because the database was restored or replaced
    error      the reason why the stream ends; `retryable` states whether resuming at `seq` may help; `code` is
               `future_cursor` if the reader's `after` is an event that the run does not have
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar, cast

from pydantic import Field

from store.errors import Invalid
from store.interface.store import Store
from store.models import RunFrame
from store.models.enums import Frozen
from store.server.call import Call
from store.server.streaming.feed import Fact, Feeding, Frame, last_frame
from store.server.streaming.run_pages import SharedRuns
from store.sql.database import database_of
from store.wire.encoding import dumps

_WRITTEN: Final = 500
"""The number of latest events whose JSON is kept, because all readers at the end of the run get the same events."""

_PLACE: Final = re.compile(r"(\d{1,18})(?:@([1-9]\d{0,17}))?")


class RunStreamQuery(Frozen):
    """GET /rollouts/{rollout_id}/events/stream."""

    after: int = Field(default=0, ge=0)
    """The `seq` of the last frame that was processed. A `Last-Event-ID` replaces this field and `until`."""
    until: int | None = Field(default=None, ge=1)
    """The `until` of the last frame that was processed, if that frame had one."""
    view: str = "head"
    bodies: bool = True
    """Whether to include messages, prompts, responses and errors."""
    follow: bool = True
    """Whether to continue after the run's end, because a part of the run may be run again."""


Q = TypeVar("Q", bound=RunStreamQuery)


@asynccontextmanager
async def run_feed(
    runs: SharedRuns, call: Call, rollout_id: str, query: RunStreamQuery, **options: Any
) -> AsyncGenerator[RunFeed]:
    """Provide a reader's stream of a run, until the block ends.

    Raises:
        StoreError: the run cannot be followed; see `StoreRuns.follow`.
    """
    store, partition = call.store, call.scope["rollbook.partition"]
    async with AsyncExitStack() as stack:
        position, facts = 0, dict[int, Fact]()
        if (database := database_of(store)) is not None:
            shared = await stack.enter_async_context(runs.use(database, rollout_id, bodies=query.bodies))
            following = database.runs.following(shared, rollout_id, query.view, query.after, query.until)
            batches = following.batches(query.view)
            position, facts = shared.position, shared.facts
        else:
            followed = store.runs.follow(rollout_id, **query.model_dump(exclude={"follow"}))
            batches = _one_by_one(cast("AsyncGenerator[RunFrame]", followed))
        await stack.enter_async_context(aclosing(batches))
        (hello,) = await anext(batches)
        yield RunFeed(store, batches, hello, partition, facts, position=position, follow=query.follow, **options)


async def _one_by_one(frames: AsyncGenerator[RunFrame]) -> AsyncGenerator[Sequence[RunFrame]]:
    async with aclosing(frames):
        async for frame in frames:
            yield (frame,)


def resumed(call: Call, query: Q) -> Q:
    """Return the query of a request. If the request has a `Last-Event-ID`, the query begins after that frame.

    Raises:
        Invalid: `Last-Event-ID` is not the id of a frame.
    """
    # A browser that reconnects repeats its first URL, and sends its current position in this header.
    last_event_id = (call.header(b"last-event-id") or b"").decode("latin-1")
    if not last_event_id:
        return query
    match = _PLACE.fullmatch(last_event_id)
    if match is None:
        raise Invalid("Last-Event-ID", f"{last_event_id!r} is not the id of a frame")
    after, until = match.groups()
    return query.model_copy(update={"after": int(after), "until": int(until) if until else None})


class RunFeed(Feeding):
    """A stream of a run to one reader.

    Args:
        store: the store of the run.
        batches: the frames after the first.
        hello: the first frame.
        facts: the encoded events by version. Several readers may share this dictionary.
        position: the position of the log when the stream begins.
        follow: whether to continue after the run's end.
        options: the other arguments of `Feeding`.
    """

    def __init__(
        self,
        store: Store,
        batches: AsyncGenerator[Sequence[RunFrame]],
        hello: RunFrame,
        partition: str,
        facts: dict[int, Fact],
        *,
        position: int,
        follow: bool,
        **options: Any,
    ) -> None:
        super().__init__(partition, **options)
        self._store = store
        self._batches = batches
        self._hello = hello
        self._facts = facts
        self._position = position
        self._continues_after_end = follow
        self._seq = hello.seq

    def _opening(self) -> list[Frame]:
        more = {"store_id": getattr(self._store, "store_id", ""), "partition": self.partition}
        return [encoded(self._hello, **more, heartbeat_seconds=self._heartbeat_seconds)]

    async def _follow(self) -> AsyncGenerator[Sequence[Fact]]:
        async with aclosing(self._batches) as batches:
            async for frames in batches:
                yield list(map(self._fact, frames))
                # A frame that is not an event is the only one of its batch.
                if frames[-1].kind == "terminal" and not self._continues_after_end:
                    return

    def _fact(self, frame: RunFrame) -> Fact:
        """Return an encoded frame. An event is encoded once for all readers at the end of the run."""
        if frame.event is None or frame.until is not None:
            return self._new_fact(frame)
        fact = self._facts.get(frame.seq)
        if fact is None:
            fact = self._facts[frame.seq] = self._new_fact(frame)
            if len(self._facts) > _WRITTEN:
                del self._facts[next(iter(self._facts))]
        return fact

    def _new_fact(self, frame: RunFrame) -> Fact:
        event, written = frame.event, encoded(frame)
        position = self._position if event is None else event.position
        # The time is used to measure the lag of readers. A frame without an event has no time of its own.
        at = time.time() if event is None else event.at
        return Fact(position, frame.seq, at, "", frame.kind, written.cursor or "", written)

    def _take(self, fact: Fact) -> None:
        self._seq, self._position = fact.number, max(fact.position, self._position)

    def _beat(self) -> list[Frame]:
        return [encoded(RunFrame(kind="heartbeat", seq=self._seq))]

    def farewell(self, error: Exception) -> Frame:
        return last_frame(error, partial(ending, seq=self._seq))


def encoded(frame: RunFrame, **more: Any) -> Frame:
    """Return an encoded frame without the fields that its kind does not have."""
    fields = {name: value for name, value in frame.__dict__.items() if value is not None}
    place = str(frame.seq) if frame.until is None else f"{frame.seq}@{frame.until}"
    return Frame(frame.kind, place, dumps({"v": 1, **fields, **more}))


def ending(kind: str, /, *, seq: int, **more: Any) -> Frame:
    """Return the last frame of a stream. A field `kind` of an error becomes the field `error_kind` of the frame."""
    if "kind" in more:
        more["error_kind"] = more.pop("kind")
    return Frame(kind, str(seq), dumps({"v": 1, "kind": kind, "seq": seq, **more}))
