"""The calls of one attempt that run at the same time, and their spans. A span costs one commit. Decision 101."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from store.errors import TimedOut, Unavailable
from store.interface.numbering import record
from store.interface.store import Store
from store.models import Span

_PAUSES: Final = (0.05, 0.2, 0.8, 2.0)
"""Pauses between the tries to write spans, in seconds."""
_LONGEST: Final = 30.0
"""The time limit of a store call in seconds, including retries. Without a limit, a client could wait for ever."""

T = TypeVar("T")


class RunningCall:
    """A call of an attempt, from its beginning until its span is stored."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The sequence id of the span. None until it is drawn, or if the store numbers the span when it stores it."""
        self.error: Exception | None = None
        """The reason why the span is not stored."""


class AttemptCalls:
    """The running calls of one attempt in the order of their beginnings, which is the order of their numbers.

    A call gets its number in the commit that stores its span, unless an earlier call without a number still runs. In
    this case, the earlier calls and this call draw numbers first. Spans of calls that end while other spans are being
    stored are stored together afterwards.

    Args:
        store: the store that receives the spans.
        rollout_id: the rollout of the attempt.
        attempt_id: the id of the attempt.
        on_idle: called when the last running call has been removed.
    """

    def __init__(self, store: Store, rollout_id: str, attempt_id: str, on_idle: Callable[[], object]) -> None:
        self._target = store
        self._on_idle = on_idle
        self._ids = (rollout_id, attempt_id)
        self._running: list[RunningCall] = []
        self._ended: dict[RunningCall, Span] = {}
        """The spans that are to be stored."""
        self._turn = asyncio.Lock()

    def begin(self) -> RunningCall:
        """Add a call that begins now."""
        call = RunningCall()
        self._running.append(call)
        return call

    async def draw(self, call: RunningCall) -> None:
        """Draw the number of a call now, so that every span that is recorded later has a greater number.

        Raises:
            StoreError: the store gave no number.
        """
        async with in_time("get_next_span_sequence_id"), self._turn:
            if call.number is None:
                await self._draw(self._unnumbered_until(call))

    async def end(self, call: RunningCall, span: Span) -> None:
        """Store the span of a call, and return when it is stored. The span gets the call's number.

        Raises:
            StoreError: the store refused the span, or could not be reached.
        """
        self._ended[call] = span
        try:
            async with in_time("record_spans"):
                await self._turn.acquire()
        except TimedOut:
            self._ended.pop(call, None)
            raise
        try:
            # While this call waited for its turn, another call may have stored this span together with its own span.
            if call in self._ended:
                await self._store_ended()
        finally:
            self._turn.release()
        if call.error is not None:
            raise call.error

    def leave(self, call: RunningCall) -> None:
        """Remove a call."""
        self._running.remove(call)
        if not self._running:
            self._on_idle()

    async def _store_ended(self) -> None:
        calls = [call for call in self._running if call in self._ended]
        spans = [self._ended.pop(call) for call in calls]
        try:
            await self._store(calls, spans)
        except Exception as error:  # noqa: BLE001 - `end` raises the error
            if len(calls) > 1 and not isinstance(error, Unavailable):
                # A single span may be the reason why the store refused all of them.
                for call, span in zip(calls, spans, strict=True):
                    try:
                        await self._store([call], [span])
                    except Exception as own_error:  # noqa: BLE001 - `end` raises the error
                        call.error = own_error
                return
            for call in calls:
                call.error = error

    async def _store(self, calls: list[RunningCall], spans: list[Span]) -> None:
        """Store the spans of calls. The calls are in the order of their beginnings."""
        unnumbered = self._unnumbered_until(calls[-1])
        if unnumbered == calls:
            await _with_retries("record_spans", lambda: record(self._target, spans))
            return
        await self._draw(unnumbered)
        numbered = [
            span.model_copy(update={"sequence_id": call.number}) for call, span in zip(calls, spans, strict=True)
        ]
        if len(numbered) == 1:
            await _with_retries("add_span", lambda: self._target.add_span(numbered[0]))
        else:
            await _with_retries("add_many_spans", lambda: self._target.add_many_spans(numbered))

    def _unnumbered_until(self, last: RunningCall) -> list[RunningCall]:
        """Return the calls without a number that began before `last`, and `last` itself if it has no number."""
        until = self._running.index(last) + 1
        return [call for call in self._running[:until] if call.number is None]

    async def _draw(self, calls: list[RunningCall]) -> None:
        if len(calls) > 1:
            pairs = [self._ids] * len(calls)
            numbers = await _with_retries(
                "get_many_span_sequence_ids", lambda: self._target.get_many_span_sequence_ids(pairs)
            )
        else:
            numbers = [
                await _with_retries(
                    "get_next_span_sequence_id", lambda: self._target.get_next_span_sequence_id(*self._ids)
                )
                for _ in calls
            ]
        for call, number in zip(calls, numbers, strict=True):
            call.number = number


async def _with_retries(operation: str, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call of the store. While the store is unavailable, the call is repeated, at most 4 times.

    Raises:
        TimedOut: the call and its repetitions took longer than 30 seconds.
    """
    async with in_time(operation):
        for pause in _PAUSES:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(pause)
        return await call()


@asynccontextmanager
async def in_time(operation: str) -> AsyncGenerator[None]:
    """Raise `TimedOut` if the block of the `with` statement takes longer than 30 seconds."""
    try:
        async with asyncio.timeout(_LONGEST):
            yield
    except TimeoutError:
        raise TimedOut(operation, _LONGEST) from None
