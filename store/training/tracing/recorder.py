"""Recorders, which send the finished spans of an attempt to the store in batches, in the order of their ends.

The thread of the agent only appends a span to a queue. The span thread of the process converts, numbers and stores the
span. Errors in the span thread are logged and counted, and never reach the agent. While the store cannot be reached,
spans wait in a spool, a file on this machine. Decision 74.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from store.errors import Closed, Invalid, SpanConflict, StoreError
from store.interface.numbering import record
from store.interface.store import Store
from store.models import Span
from store.otel.repair import converted, derived_span_id, fitting, id_change, reduced, repaired, with_derived_id
from store.runtime import process
from store.semconv import CHANGED
from store.training.tracing.span_thread import span_thread
from store.training.tracing.spool import SpanSpool, SpoolFile
from store.validation.json_limits import MAX_CALL_BYTES

logger = logging.getLogger("store.training.recorder")

BATCH: Final = 100
"""Maximum size of a batch. A full batch is written without waiting for more spans."""

LINGER_SECONDS: Final = 0.5
"""A span waits at most this many seconds for further spans, so that they are written in one batch."""

FLUSH_SECONDS: Final = 10.0
"""An agent that emits a reward waits at most this many seconds for the store."""

LOOP_SECONDS: Final = 2.0
"""`FLUSH_SECONDS` for waits that block an event loop. It is short, because the store's server may run in this loop."""

WRITE_SECONDS: Final = 5.0
"""A call of the store that writes spans may take at most this many seconds."""

_RETRY_SECONDS: Final = 0.5
# A call of the store may have 16 MiB, in which the JSON of a span has other names for some fields.
_SPAN_BYTES: Final = MAX_CALL_BYTES - 64 * 1024

_Identity = tuple[int, str, int | None]
"""The trace id, name and start time of a span."""

_REMEDIES: Final[Sequence[Callable[[Span, Invalid], Span]]] = (
    lambda span, _: repaired(span),
    lambda span, _: fitting(span, _SPAN_BYTES),
    lambda span, error: reduced(span, str(error)),
)
"""The remedies for a span that the store refuses, from the smallest change to the largest."""


class Recorder(Protocol):
    """Receiver of the finished spans of an attempt, or of a trace without an attempt."""

    def put(self, span: ReadableSpan) -> None:
        """Accept a span. Any thread may call this; the call neither raises nor waits."""
        ...

    def has(self, span_id: int) -> bool:
        """Return whether a span with this id was accepted."""
        ...

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until earlier spans are stored or in the spool; return False if that takes longer than `seconds`."""
        ...

    async def flushed(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait like `flush`, without blocking the event loop."""
        ...


@dataclass(frozen=True, slots=True)
class RecordedSpans:
    """Result of recording the spans of an attempt."""

    spans: list[Span]
    """The stored spans, ordered by sequence id."""
    lost: int = 0
    """The number of spans that the store refused or that could not be converted or spooled."""
    left: int = 0
    """The number of spans that are still in the spool file."""
    unsent: list[Span] = field(default_factory=list[Span])
    """The last spans, without numbers, which the caller stores."""


def storable(span: Span) -> Span:
    """Return a span whose values every store accepts, and whose JSON fits into a call; changes of values are marked."""
    return fitting(repaired(span), _SPAN_BYTES)


class LocalRecorder:
    """Recorder in memory for a trace that does not belong to an attempt; spans are numbered 1, 2, 3 …"""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def put(self, span: ReadableSpan) -> None:
        """Append a span."""
        self._spans.append(span)

    def has(self, span_id: int) -> bool:
        """Return whether a span with this id was appended."""
        return any(span.context is not None and span.context.span_id == span_id for span in self._spans)

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Return True, because there is nothing to wait for."""
        del seconds
        return True

    async def flushed(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Return True, because there is nothing to wait for."""
        return self.flush(seconds)

    def spans(self) -> list[Span]:
        """Return the appended spans."""
        return [
            repaired(converted(span, "", "")).model_copy(update={"sequence_id": number})
            for number, span in enumerate(self._spans, 1)
        ]


def _copy_with_derived_id(span: ReadableSpan, context: SpanContext) -> tuple[ReadableSpan, int]:
    """Return a copy of a span with another id and a mark, and the id. Equal spans get equal ids."""
    span_id = f"{context.span_id:016x}"
    derived = int(derived_span_id(context.trace_id, span_id, span.name, span.start_time), 16)
    copied: Any = copy(span)
    copied._context = SpanContext(  # noqa: SLF001 - the SDK has no public way
        context.trace_id, derived, context.is_remote, context.trace_flags, context.trace_state
    )
    copied._attributes = {**(span.attributes or {}), CHANGED: [id_change(span_id)]}  # noqa: SLF001 - as above
    return copied, derived


@dataclass(eq=False)
class _Progress:
    """State of an attempt's spans in the span thread."""

    spans: list[Span] = field(default_factory=list[Span])
    lost: int = 0
    is_unsure: bool = False
    """Whether a span was stored by a call whose response was lost, so its sequence id is unknown."""


class StoreRecorder:
    """Recorder that sends the spans of one attempt to a store.

    Args:
        store: the store.
        rollout_id: the rollout of the spans.
        attempt_id: the attempt of the spans.
        spool: the spool for the spans while the store cannot be reached.
    """

    def __init__(self, store: Store, rollout_id: str, attempt_id: str, spool: SpanSpool) -> None:
        self._store = store
        self._rollout_id = rollout_id
        self._attempt_id = attempt_id
        self._file = SpoolFile(spool, rollout_id, attempt_id)
        self._thread = span_thread()
        self._queue: deque[ReadableSpan] = deque()
        # An agent may return spans that were already traced, so the accepted spans are remembered.
        self._seen: dict[int, _Identity] = {}
        # The lock is re-entrant because a finaliser may end a span at any time, even during `put`.
        self._lock = threading.RLock()
        self._is_awaited = False
        self._is_open = True
        self._is_writing = False
        """Whether spans were taken from the queue that are not stored yet."""
        self._progress = _Progress()
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._work: set[asyncio.Task[None]] = set()

    def put(self, span: ReadableSpan) -> None:
        """Accept a span, unless it was accepted before or the attempt is closed.

        A forked child does not have the thread that stores spans. Its spans are not accepted, and a warning is logged.
        """
        if self._thread.process != process.number:
            logger.warning("span %r of attempt %s ended in a forked process", span.name, self._attempt_id)
            return
        context = span.get_span_context()
        if context is None:
            return
        span_id, identity = context.span_id, (context.trace_id, span.name, span.start_time)
        with self._lock:
            if not self._is_open:
                return
            if self._seen.setdefault(span_id, identity) is not identity:
                if self._seen[span_id] == identity:
                    return
                span, span_id = _copy_with_derived_id(span, context)
                if span_id in self._seen:
                    return
                logger.warning("span %r of attempt %s has the id of another span", span.name, self._attempt_id)
                self._seen[span_id] = identity
            self._queue.append(span)
            waiting = len(self._queue)
            is_first, self._is_awaited = not self._is_awaited, True
        if waiting == BATCH:
            self._thread.call_soon(self._write_now)
        elif is_first:
            self._thread.call_soon(self._write_later)

    def has(self, span_id: int) -> bool:
        """Return whether a span with this id was accepted."""
        return span_id in self._seen

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until earlier spans are stored or in the spool.

        Return False if that takes longer than `seconds`, or if the caller runs in the span thread, which must not wait
        for itself.
        """
        if self._thread.is_current:
            return False
        with suppress(RuntimeError):  # no event loop runs in this thread
            asyncio.get_running_loop()
            seconds = min(seconds, LOOP_SECONDS)
        flushed = self._thread.submit(self._drain())
        try:
            flushed.result(seconds)
        except (TimeoutError, CancelledError):
            return self._is_late(seconds)
        return True

    async def flushed(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait like `flush`, without blocking the event loop."""
        draining = asyncio.wrap_future(self._thread.submit(self._drain()))
        # Draining continues if the agent is cancelled.
        done, _ = await asyncio.wait({draining}, timeout=seconds)
        if not done or draining.cancelled() or draining.exception() is not None:
            return self._is_late(seconds)
        return True

    def _is_late(self, seconds: float) -> bool:
        logger.warning("spans of attempt %s are not stored after %g s", self._attempt_id, seconds)
        return False

    async def add(self, spans: Sequence[Span]) -> None:
        """Store spans that already have sequence ids, after all earlier spans.

        Raises:
            StoreError: as `add_many_spans`.
        """
        await asyncio.wrap_future(self._thread.submit(self._add(spans)))

    def take_last(self) -> RecordedSpans | None:
        """Stop accepting spans, and return the result with the last spans, which the caller stores.

        Return None if earlier spans are not stored yet, or too many spans are left for one call; then use `close`.
        """
        with self._lock:
            self._is_open = False
            if self._is_writing or self._file.waiting or self._progress.is_unsure or len(self._queue) > BATCH:
                return None
            unsent = self._take()
        return RecordedSpans(self._progress.spans, self._progress.lost, unsent=unsent)

    async def store_last(self, unsent: Sequence[Span], wait_seconds: float) -> RecordedSpans:
        """Store the last spans after a call that was to store them failed; return the result as `close` does."""

        async def work() -> RecordedSpans:
            async with self._writing:
                if not await self._try(list(unsent)):
                    self._spool_batch(list(unsent))
            return await self._close(wait_seconds)

        return await asyncio.wrap_future(self._thread.submit(work()))

    async def note_last(
        self, unsent: Sequence[Span], results: Sequence[Span | StoreError | None], wait_seconds: float
    ) -> RecordedSpans:
        """Note the results of the call that stored the last spans, and return the result as `close` does.

        Spans that the store has refused are changed and stored, if possible.
        """
        stored = [span for span in results if isinstance(span, Span)]
        if len(stored) == len(unsent):
            self._progress.spans += stored
            return RecordedSpans(self._progress.spans, self._progress.lost)

        async def work() -> RecordedSpans:
            self._progress.spans += stored
            self._progress.is_unsure |= None in results
            async with self._writing:
                for span, error in zip(unsent, results, strict=True):
                    if isinstance(error, SpanConflict):
                        await self._resolve([span], 0)
                    elif isinstance(error, StoreError):
                        await self._isolate([span], error, 0)
            return await self._close(wait_seconds)

        return await asyncio.wrap_future(self._thread.submit(work()))

    async def close(self, wait_seconds: float) -> RecordedSpans:
        """Stop accepting spans, and return the result for the accepted spans.

        Args:
            wait_seconds: the maximum number of seconds to wait for a store that cannot be reached.
        """
        with self._lock:
            self._is_open = False
        return await asyncio.wrap_future(self._thread.submit(self._close(wait_seconds)))

    def _write_later(self) -> None:
        if self._timer is None:
            self._timer = self._thread.loop.call_later(LINGER_SECONDS, self._write_now)

    def _write_now(self) -> None:
        self._begin(self._drain())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._thread.loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _drain(self) -> None:
        if self._file.waiting:
            # These spans must follow the spans in the spool, so they are spooled, too. Another task retries the store.
            while batch := self._take():
                self._spool_batch(batch)
            return
        async with self._writing:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            while batch := self._take():
                try:
                    # Spooled spans must be stored first, because sequence ids follow the order in which spans ended.
                    if self._file.waiting or not await self._try(batch):
                        self._spool_batch(batch)
                except asyncio.CancelledError:
                    self._spool_batch(batch)
                    raise

    def _take(self) -> list[Span]:
        with self._lock:
            taken = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if not self._queue:
                self._is_awaited = False
            self._is_writing = bool(taken)
        batch: list[Span] = []
        for span in taken:
            try:
                batch.append(converted(span, self._rollout_id, self._attempt_id))
            except Exception:
                logger.exception("span %r of attempt %s cannot be converted for the store", span.name, self._attempt_id)
                self._progress.lost += 1
        # An empty batch ends the draining. So if no span of this batch could be converted, take the next batch.
        return batch or (self._take() if taken else batch)

    async def _try(self, batch: list[Span], tried: int = 0) -> bool:
        """Store spans; return False if the store cannot be reached. Only spans that the store refuses are lost.

        Args:
            batch: the spans.
            tried: the number of `_REMEDIES` that were applied to the spans.
        """
        conflicts: list[Span] = []
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                numbers = await record(self._store, batch)
        except SpanConflict as error:
            conflicts = [batch[index] for index in error.indexes]
            numbers = [(index, number) for index, number in error.recorded]
        except (ConnectionError, TimeoutError, Closed) as error:
            if not self._file.waiting:
                reason = str(error) or f"no answer within {WRITE_SECONDS:g} s"
                logger.warning("the spans of attempt %s wait for the store: %s", self._attempt_id, reason)
            return False
        except Exception as error:  # noqa: BLE001 - storing spans must not cause errors in the agent
            return await self._isolate(batch, error, tried)
        stored = dict(numbers)
        self._progress.is_unsure |= len(stored) + len(conflicts) < len(batch)
        self._progress.spans += [
            span.model_copy(update={"sequence_id": stored[index]})
            for index, span in enumerate(batch)
            if index in stored
        ]
        if conflicts:
            await self._resolve(conflicts, tried)
        return True

    async def _resolve(self, conflicts: list[Span], tried: int) -> None:
        """Store conflicting spans under derived ids."""
        if tried > len(_REMEDIES):
            logger.error(
                "%d spans of attempt %s are lost: the store has other spans with their ids",
                len(conflicts),
                self._attempt_id,
            )
            self._progress.lost += len(conflicts)
            return
        names = sorted({span.name for span in conflicts})
        logger.warning(
            "spans %s of attempt %s get new ids: the store has other spans with their ids", names, self._attempt_id
        )
        batch = [with_derived_id(span) for span in conflicts]
        if not await self._try(batch, len(_REMEDIES) + 1):
            self._spool_batch(batch)

    async def _isolate(self, batch: list[Span], error: Exception, tried: int) -> bool:
        """Change the values that the store refused, or store the halves of a refused batch separately.

        So only those spans are lost that the store refuses even without most of their attributes.
        """
        if isinstance(error, Invalid) and tried < len(_REMEDIES) and (tried == 0 or len(batch) == 1):
            logger.warning("spans of attempt %s are changed to be storable: %s", self._attempt_id, error)
            return await self._try([_REMEDIES[tried](span, error) for span in batch], tried + 1)
        if len(batch) == 1:
            logger.error("span %r of attempt %s is lost: %s", batch[0].name, self._attempt_id, error)
            self._progress.lost += 1
            return True
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            if self._file.waiting or not await self._try(half, tried):
                self._spool_batch(half)
        return True

    def _spool_batch(self, batch: list[Span]) -> None:
        # A spool file contains JSON, so values that are not JSON are changed first.
        batch = [storable(span) for span in batch]
        was_empty = not self._file.waiting
        if not self._file.append(batch):
            self._progress.lost += len(batch)
        elif was_empty:
            self._begin(self._replay())

    async def _replay(self) -> None:
        """Store the spooled spans as soon as the store can be reached."""
        while self._file.waiting:
            await asyncio.sleep(_RETRY_SECONDS)
            async with self._writing:
                while lines := self._file.peek(BATCH):
                    if not await self._try([Span.model_validate_json(line) for line in lines]):
                        break
                    self._file.taken(lines)

    async def _add(self, spans: Sequence[Span]) -> None:
        await self._drain()
        try:
            stored = await self._store.add_many_spans(spans)
        except Invalid:
            stored = await self._store.add_many_spans([storable(span) for span in spans])
        except SpanConflict as error:
            stored = [spans[index].model_copy(update={"sequence_id": number}) for index, number in error.recorded]
            await self._resolve([spans[index] for index in error.indexes], 0)
        self._progress.spans += stored

    async def _close(self, wait_seconds: float) -> RecordedSpans:
        deadline = self._thread.loop.time() + wait_seconds
        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(deadline, self._thread.loop.time() + WRITE_SECONDS)):
                await self._drain()
                while self._work and self._file.waiting:
                    await asyncio.wait(set(self._work), timeout=_RETRY_SECONDS)
                    if self._thread.loop.time() > deadline:
                        break
        for task in set(self._work):
            task.cancel()
        left = self._file.waiting
        if left:
            logger.error("%d spans of attempt %s are left in %s", left, self._attempt_id, self._file.path)
        lost = self._progress.lost + len(self._queue)
        spans = self._progress.spans
        if self._progress.is_unsure:
            with suppress(StoreError):
                spans = list(await self._store.query_spans(self._rollout_id, self._attempt_id))
        return RecordedSpans(spans, lost, left)
