"""Recorder that writes each call as a span of an attempt, after a check that the attempt is running.

In the proxy, only this module uses the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

from store.errors import StoreError, Unavailable
from store.interface.store import Store
from store.llm_proxy.attempt_calls import AttemptCalls, in_time
from store.llm_proxy.refusals import Refusal
from store.models import AttemptedRollout, OtelResource, Span, TraceStatus
from store.semconv import ATTEMPT_ID, ROLLOUT_ID

logger = logging.getLogger("store.training.proxy")

_ENDED_ATTEMPTS: Final = frozenset({"succeeded", "failed", "timeout"})
_ENDED_ROLLOUTS: Final = frozenset({"succeeded", "failed", "cancelled"})

OnEnded = Literal["refuse", "forward"]


class Recording:
    """The recording of one call. It is created when the call begins, and writes the span when the call ends."""

    def __init__(self, calls: AttemptCalls, rollout_id: str, attempt_id: str) -> None:
        self._calls = calls
        self._call = calls.begin()
        self._ids = (rollout_id, attempt_id)
        self._drawing: asyncio.Task[None] | None = None

    def begin_stream(self) -> asyncio.Task[None]:
        """Request the sequence number of the span in a task, which does not delay the call.

        A client may record spans, or leave, when it has a part of the response. The number must be smaller than theirs.
        """
        self._drawing = self._drawing or asyncio.create_task(self._draw())
        return self._drawing

    async def _draw(self) -> None:
        with suppress(Exception):  # `write` tries again, and reports the error
            await self._calls.draw(self._call)

    async def numbered(self) -> None:
        """Wait until the sequence number is drawn."""
        await asyncio.shield(self.begin_stream())

    async def write(
        self, name: str, attributes: dict[str, Any], start_time: float, end_time: float, status: TraceStatus
    ) -> None:
        """Store the span. A failure is only logged, because the client gets its response in any case."""
        rollout_id, attempt_id = self._ids
        try:
            span = Span.from_attributes(
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                name=name,
                attributes=attributes,
                start_time=start_time,
                end_time=end_time,
                status=status,
                resource=OtelResource(attributes={ROLLOUT_ID: rollout_id, ATTEMPT_ID: attempt_id}, schema_url=""),
            )
            await self._calls.end(self._call, span)
        except StoreError as error:
            logger.error("a call of attempt %s of rollout %s is not recorded: %s", attempt_id, rollout_id, error)

    def close(self) -> None:
        """End the recording, written or not."""
        self._calls.leave(self._call)


class CallRecorder:
    """Factory of recordings.

    Args:
        store: the store that receives the spans.
        on_ended: the handling of a call whose attempt has ended or does not exist: `refuse` the call, or `forward` it
            without a recording.
    """

    def __init__(self, store: Store | None, on_ended: OnEnded) -> None:
        self._store = store
        self._on_ended: OnEnded = on_ended
        self._attempts: dict[tuple[str, str], AttemptCalls] = {}
        """The attempts with running calls."""
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def store_id(self) -> str | None:
        """The id of the store; None without a store, or if the store has no id."""
        return getattr(self._store, "store_id", None)

    async def open(self, rollout_id: str, attempt_id: str) -> Recording | None:
        """Return the recording of a call that begins now, or None if the call is to be forwarded without a recording.

        Raises:
            Refusal: 409 if the proxy has no store, or if the attempt has ended or does not exist and `on_ended` is
                `refuse`; 503 or a status below 500 if the store reports an error.
        """
        if self._store is None:
            raise Refusal(409, "this proxy has no store for spans; call it without rollout and attempt", "no_store")
        try:
            async with in_time("get_rollout_by_id"):
                objection = await _objection(self._store, rollout_id, attempt_id)
        except Unavailable as error:
            raise Refusal(503, f"the store does not answer: {error}", "store", error.retry_after_seconds) from None
        except StoreError as error:
            raise Refusal(error.status if error.status < 500 else 503, str(error), "store") from None
        if objection is None:
            key = (rollout_id, attempt_id)
            calls = self._attempts.get(key)
            if calls is None:
                calls = self._attempts[key] = AttemptCalls(self._store, *key, partial(self._attempts.pop, key))
            return Recording(calls, rollout_id, attempt_id)
        if self._on_ended == "refuse":
            raise Refusal(409, objection, "attempt_over")
        return None

    async def finish(self, writing: Coroutine[Any, Any, None]) -> None:
        """Wait for a write. If the caller is cancelled, the write still runs to its end. Errors are only logged."""

        async def write() -> None:
            try:
                await writing
            except Exception:
                # The client gets its response even if the recording fails.
                logger.exception("a call is not recorded")

        task = asyncio.create_task(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def close(self) -> None:
        """Wait until all running writes have ended."""
        while self._writing:
            await asyncio.wait(self._writing)


async def _objection(store: Store, rollout_id: str, attempt_id: str) -> str | None:
    """Return the reason why calls of an attempt cannot be recorded, with a remedy; None if calls can be recorded."""
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        return f"rollout {rollout_id} of this call does not exist; check the URL, and the store of the proxy"
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    if attempt is None or attempt.attempt_id != attempt_id:
        attempts = await store.query_attempts(rollout_id)
        attempt = next((attempt for attempt in attempts if attempt.attempt_id == attempt_id), None)
    if attempt is None:
        return f"rollout {rollout_id} of this call has no attempt {attempt_id}; check the URL"
    if attempt.status in _ENDED_ATTEMPTS:
        return f"attempt {attempt_id} of rollout {rollout_id} has ended ({attempt.status}); start another attempt"
    if rollout.status in _ENDED_ROLLOUTS:
        return f"rollout {rollout_id} has ended ({rollout.status}); calls for it are refused"
    return None
