"""The frames of a stream over SSE or a WebSocket. The frames are written only as fast as the reader reads them.

Every frame is `{"v": 1, "kind": …, "cursor": …, "position": …, "seq": …, …}`. A reader resumes from the `cursor` of its
last frame. `position` is the event's position in the log, and `seq` its version in its own stream; a frame without an
event repeats both values of the last event.

    hello      first: the store and the reader's query
    event      one event of the log, with all fields of `LoggedEvent`
    heartbeat  nothing happened for a while
    gap        last: the log lacks events that the reader has read, because the database was restored or replaced
    error      last: the reason why the stream ends; `retryable` states whether resuming at the cursor may help
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, cast

from store.errors import Closed, Incompatible, Invalid, StoreError
from store.interface.store import Store
from store.journal.tail import parse
from store.models import LoggedEvent
from store.wire.encoding import dumps
from store.wire.errors import error_body

logger = logging.getLogger("store.server.streams")

# The limits on the number and the size in bytes of queued events. The queue does not include the page that the store
# has read.
_QUEUED: Final = 64
_QUEUED_BYTES: Final = 256 * 1024
_TOGETHER_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Frame:
    """One message of a stream, with the reader's cursor after this message."""

    kind: str
    cursor: str | None
    text: bytes
    """The JSON of the frame."""

    @cached_property
    def head(self) -> bytes:
        """The lines of a server-sent event before the text. Its id is the cursor, which a browser sends again."""
        named = b"event: " + self.kind.encode() + b"\ndata: "
        return named if self.cursor is None else b"id: " + self.cursor.encode() + b"\n" + named


@dataclass(frozen=True, slots=True)
class Fact:
    """An event of the log, ready to be sent."""

    position: int
    number: int
    at: float
    stream: str
    type: str
    cursor: str
    frame: Frame


Write = Callable[[list[Frame]], Awaitable[None]]
Follow = Callable[[], AsyncGenerator[Fact]]
"""A function that begins to follow the log from a reader's cursor."""


@dataclass(frozen=True, slots=True)
class TailQuery:
    """The query of a reader."""

    after: str | None
    """The cursor of the last event that the reader has processed."""
    types: list[str] | None
    rollout_id: str | None


class Batch(NamedTuple):
    """Events that are available at the same time."""

    facts: Sequence[Fact]
    size: int
    """The size of their frames in bytes."""

    @classmethod
    def several(cls, facts: Sequence[Fact]) -> list[Batch]:
        """Return events in batches that a queue holds and that are written at once."""
        batches: list[Batch] = []
        start, size = 0, 0
        for index, fact in enumerate(facts):
            length = len(fact.frame.text)
            if index > start and (size + length > _TOGETHER_BYTES or index - start == _QUEUED):
                batches.append(Batch(facts[start:index], size))
                start, size = index, 0
            size += length
        if facts:
            batches.append(Batch(facts[start:] if start else facts, size))
        return batches


class _Queue(asyncio.Queue["Batch | Exception | None"]):
    """A queue of the events for one reader, limited by their number and their total size."""

    def __init__(self) -> None:
        super().__init__()
        self._facts = 0
        self._bytes = 0

    def full(self) -> bool:
        return self._facts >= _QUEUED or self._bytes >= _QUEUED_BYTES

    def _put(self, item: Batch | Exception | None) -> None:
        if isinstance(item, Batch):
            self._facts += len(item.facts)
            self._bytes += item.size
        super()._put(item)

    def _get(self) -> Batch | Exception | None:
        item = super()._get()
        if isinstance(item, Batch):
            self._facts -= len(item.facts)
            self._bytes -= item.size
        return item


class Feeding(ABC):
    """A stream to one reader.

    Args:
        partition: the partition of the log.
        heartbeat_seconds: the longest time without a frame.
        together: whether several available events may be written at once.
    """

    def __init__(self, partition: str, *, heartbeat_seconds: float, together: bool) -> None:
        self.partition = partition
        self.untaken: Fact | None = None
        """The oldest event that the reader has not read yet; None while the reader is at the end of the log."""
        self._heartbeat_seconds = heartbeat_seconds
        self._most_bytes = _TOGETHER_BYTES if together else 0

    @abstractmethod
    def _opening(self) -> list[Frame]:
        """Return the first frames."""

    @abstractmethod
    def _follow(self) -> AsyncGenerator[Sequence[Fact]]:
        """Yield the events that follow the first frames, those that are available at the same time together."""

    @abstractmethod
    def _take(self, fact: Fact) -> None:
        """Record that the reader has read all events up to this event."""

    @abstractmethod
    def _beat(self) -> list[Frame]:
        """Return the frames to write when nothing has happened for a while."""

    @abstractmethod
    def farewell(self, error: Exception) -> Frame:
        """Return the last frame of a stream that ended with an error."""

    async def run(self, write: Write) -> None:
        """Write frames until the stream ends. The stream ends with an error, unless no more events can follow.

        Raises:
            StoreError: the store or `write` ended the stream.
        """
        await _written(write, self._opening())
        queue = _Queue()
        reading = asyncio.ensure_future(self._read(queue))
        try:
            while await self._write_next(write, queue):
                pass
        finally:
            reading.cancel()
            # Wait until the task has released the store.
            await asyncio.wait((reading,))

    async def _read(self, queue: _Queue) -> None:
        try:
            async with aclosing(self._follow()) as follow:
                async for facts in follow:
                    for batch in Batch.several(facts):
                        await queue.put(batch)
            await queue.put(None)
        except Exception as error:  # noqa: BLE001 - `_write_next` raises the error
            await queue.put(error)

    async def _write_apart(self, write: Write, batch: Batch) -> None:
        """Write events as messages of their own, after each of which the reader's cursor is known."""
        for fact in batch.facts:
            self.untaken = self.untaken or fact
            await write([fact.frame])
            self._take(fact)
        self.untaken = None

    async def _write_next(self, write: Write, queue: _Queue) -> bool:
        """Write the available frames, and return whether more frames may follow."""
        try:
            async with asyncio.timeout(self._heartbeat_seconds):
                item = await queue.get()
        except TimeoutError:
            await _written(write, self._beat())
            return True
        frames: list[Frame] = []
        size = 0
        last: Fact | None = None
        while isinstance(item, Batch):
            if not self._most_bytes:
                await self._write_apart(write, item)
                return True
            last = item.facts[-1]
            self.untaken = self.untaken or item.facts[0]
            frames += [fact.frame for fact in item.facts]
            size += item.size
            if size >= self._most_bytes or queue.empty():
                break
            item = queue.get_nowait()
        if last is not None:
            await _written(write, frames)
            self._take(last)
            self.untaken = None
        if isinstance(item, Exception):
            raise item
        return item is not None


async def _written(write: Write, frames: list[Frame]) -> None:
    if frames:
        await write(frames)


class Feed(Feeding):
    """A stream of the log to one reader.

    Args:
        store: the store of the log.
        query: the reader's query.
        follow: follows the log.
        partition: the partition of the log.
        options: the other arguments of `Feeding`.
    """

    def __init__(self, store: Store, query: TailQuery, follow: Follow, partition: str, **options: Any) -> None:
        super().__init__(partition, **options)
        self._store = store
        self._query = query
        self._facts = follow
        self._cursor = query.after
        self._position = 0 if query.after is None else parse(query.after).position
        self._seq = 0

    def _opening(self) -> list[Frame]:
        hello = self._frame(
            "hello",
            store_id=getattr(self._store, "store_id", ""),
            partition=self.partition,
            rollout=self._query.rollout_id,
            types=self._query.types,
            heartbeat_seconds=self._heartbeat_seconds,
        )
        return [hello]

    async def _follow(self) -> AsyncGenerator[Sequence[Fact]]:
        async with aclosing(self._facts()) as facts:
            async for fact in facts:
                yield (fact,)

    def _take(self, fact: Fact) -> None:
        self._cursor, self._position, self._seq = fact.cursor, fact.position, fact.number

    def _beat(self) -> list[Frame]:
        return [self._frame("heartbeat")]

    def farewell(self, error: Exception) -> Frame:
        return last_frame(error, self._frame)

    def _frame(self, kind: str, /, **more: Any) -> Frame:
        return frame(kind, self._cursor, self._position, self._seq, **more)


def frame(kind: str, cursor: str | None, position: int, seq: int, /, **more: Any) -> Frame:
    """Return a frame without an event.

    An error may have a field `kind`, for example the kind of the object that was not found. In the frame, this field is
    `error_kind`.
    """
    if "kind" in more:
        more["error_kind"] = more.pop("kind")
    fields = {"v": 1, "kind": kind, "cursor": cursor, "position": position, "seq": seq, **more}
    return Frame(kind, cursor, dumps(fields))


def last_frame(error: Exception, write: Callable[..., Frame]) -> Frame:
    """Return the last frame of a stream that ended with an error. A bug is logged with its traceback.

    Args:
        error: the error.
        write: returns a frame of a kind, with the fields of the error.
    """
    if isinstance(error, Incompatible):
        return write("gap", **error_body(error), retryable=False)
    if isinstance(error, StoreError):
        return write("error", **error_body(error), retryable=error.retryable or isinstance(error, Closed))
    logger.error("a stream failed on %s", type(error).__name__, exc_info=error)
    return write("error", detail="Internal server error", error_type=type(error).__name__, retryable=True)


def fact_of(event: LoggedEvent) -> Fact:
    """Return an event ready to be sent."""
    fields = {"v": 1, "kind": "event", "seq": event.number, **vars(event)}
    sent = Frame("event", event.cursor, dumps(fields))
    return Fact(event.position, event.number, event.at, event.stream, event.type, event.cursor, sent)


async def begin(store: Store, after: str | None, types: list[str] | None, rollout_id: str | None) -> TailQuery:
    """Check the query of a reader, and return it.

    Args:
        store: the store of the log.
        after: a cursor, or the version of an event if a rollout is given; 0 and None are the beginning.
        types: only these event types.
        rollout_id: only this rollout.

    Raises:
        Invalid: `after` is not a cursor, or is a version that the rollout does not have yet.
        Incompatible: `after` is a cursor of another log.
        Unsupported: the store keeps no log.
    """
    if after and rollout_id is not None and after.isdecimal():
        after = await _cursor_of(store, rollout_id, int(after))
    # No event matches an empty list of types, so this call only checks the cursor.
    async for _ in store.log.tail(after or None, types=[]):
        break
    return TailQuery(after or None, types, rollout_id)


async def _cursor_of(store: Store, rollout_id: str, version: int) -> str | None:
    if version == 0:
        return None
    last = 0
    async with aclosing(cast("AsyncGenerator[LoggedEvent]", store.log.tail(rollout_id=rollout_id))) as events:
        async for event in events:
            if event.number == version:
                return event.cursor
            last = event.number
    raise Invalid("after", f"{version} is beyond the last event of the rollout, which has number {last}")
