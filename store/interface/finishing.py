"""Execution of `finish_attempt` by several calls, for stores that cannot do this in one call."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from store.errors import Conflict, Invalid, NotFound, QuotaExceeded, SpanConflict, StoreError
from store.models import UNSET, Attempt, AttemptedRollout, Span
from store.models.calls import FinishAttemptCall
from store.models.finished_attempts import FinishedAttempt
from store.runtime import context
from store.semconv import ORIGINAL_SPAN_ID

_ACTIVE: Final = frozenset({"preparing", "running"})
_REFUSALS: Final = (NotFound, Conflict, QuotaExceeded)


async def finish_by_parts(store: Any, call: FinishAttemptCall) -> FinishedAttempt:
    """Store the spans of a call, set the status and claim the next rollout, by other calls of the store.

    Raises:
        StoreError: an argument is invalid, or the store cannot be reached. Earlier parts may have been executed.
    """
    spans = await _Spans(store, call).stored()
    return FinishedAttempt(spans, await _end(store, call), await _claim(store, call))


def requeues(call: FinishAttemptCall) -> bool:
    """Return whether a call puts its rollout back into the queue.

    Raises:
        Invalid: the status is not `failed`.
    """
    if call.requeue and call.status != "failed":
        raise Invalid("requeue", f"is only allowed with the status failed, not {call.status!r}")
    return call.requeue


async def _end(store: Any, call: FinishAttemptCall) -> Attempt | StoreError:
    fields = {name: value for name in ("metadata", "error") if (value := getattr(call, name)) is not UNSET}
    if requeues(call) and (ended := await _put_back(store, call)) is not None:
        return ended
    with _keyed("status"):
        try:
            return await store.update_attempt(call.rollout_id, call.attempt_id, call.status, **fields)
        except _REFUSALS as error:
            return error


async def _put_back(store: Any, call: FinishAttemptCall) -> Attempt | None:
    """Put the rollout of an active attempt back into the queue. Return the attempt only if it ended before the call."""
    attempts = await store.query_attempts(call.rollout_id)
    attempt = next((attempt for attempt in attempts if attempt.attempt_id == call.attempt_id), None)
    if attempt is not None and attempt.status in {"succeeded", "failed"}:
        return attempt
    rollout = await store.get_rollout_by_id(call.rollout_id)
    if attempt is None or attempt.status not in _ACTIVE or not isinstance(rollout, AttemptedRollout):
        return None
    if rollout.attempt.attempt_id == call.attempt_id and rollout.status in _ACTIVE:
        # The rollout returns to the queue before its attempt ends. Otherwise the attempt's end would end the rollout.
        with _keyed("requeue"):
            await store.update_rollout(call.rollout_id, status="requeuing")
    return None


async def _claim(store: Any, call: FinishAttemptCall) -> AttemptedRollout | StoreError | None:
    if call.claim_as is None:
        return None
    with _keyed("claim"):
        try:
            return await store.dequeue_rollout(call.claim_as)
        except StoreError as error:
            # The other parts were executed, and the caller can claim a rollout later.
            return error


def span_of_attempt(span: Any, call: FinishAttemptCall, index: int) -> Span:
    """Return the span of a call with this index, after a check.

    Raises:
        Invalid: the value is not a span, or is a span of another attempt.
    """
    if type(span) is not Span and not isinstance(span, Span):
        raise Invalid(f"spans[{index}]", f"is {type(span).__name__}, not a Span")
    if span.attempt_id != call.attempt_id or span.rollout_id != call.rollout_id:
        raise Invalid(
            f"spans[{index}]",
            f"belongs to attempt {span.attempt_id} of rollout {span.rollout_id}; "
            f"give spans of attempt {call.attempt_id} of rollout {call.rollout_id}",
        )
    return span


class _Spans:
    """The spans of a call, and the outcome of each span."""

    def __init__(self, store: Any, call: FinishAttemptCall) -> None:
        self._store = store
        self._call = call
        self._outcomes: list[Span | StoreError | None] = [None] * len(call.spans)

    async def stored(self) -> list[Span | StoreError | None]:
        """Store the spans, and return the outcome of each."""
        spans: dict[int, Span] = {}
        for index, span in enumerate(self._call.spans):
            try:
                spans[index] = span_of_attempt(span, self._call, index)
            except Invalid as error:
                self._outcomes[index] = error
        if spans:
            if self._call.number:
                spans = await self._numbered(spans)
            await self._store_spans(spans, "spans")
        return self._outcomes

    async def _numbered(self, spans: Mapping[int, Span]) -> dict[int, Span]:
        ids = (self._call.rollout_id, self._call.attempt_id)
        with _keyed("numbers"):
            numbers = await self._store.get_many_span_sequence_ids([ids] * len(spans))
        return {
            index: span.model_copy(update={"sequence_id": number})
            for (index, span), number in zip(spans.items(), numbers, strict=True)
        }

    async def _store_spans(self, spans: Mapping[int, Span], key: str) -> None:
        indexes = list(spans)
        try:
            with _keyed(key):
                stored: list[Span] = await self._store.add_many_spans(list(spans.values()))
        except SpanConflict as error:
            for place, number in error.recorded:
                self._outcomes[indexes[place]] = spans[indexes[place]].model_copy(update={"sequence_id": number})
            for place, span_key in zip(error.indexes, error.spans, strict=True):
                self._outcomes[indexes[place]] = SpanConflict([span_key], [indexes[place]], [])
        except Invalid as error:
            if len(spans) == 1:
                self._outcomes[indexes[0]] = error
                return
            for index, span in spans.items():
                await self._store_spans({index: span}, f"{key}.{index}")
        except _REFUSALS as error:
            self._outcomes = [outcome or error for outcome in self._outcomes]
        else:
            # Of several spans with the same key, the first is stored.
            places = {_key(spans[index]): index for index in reversed(indexes)}
            for span in stored:
                self._outcomes[places[_key(span)]] = span


def _key(span: Span) -> tuple[str, object]:
    # A span that is stored under a derived id has its original id in an attribute.
    return span.trace_id, span.attributes.get(ORIGINAL_SPAN_ID, span.span_id)


@contextmanager
def _keyed(part: str) -> Generator[None]:
    """Give the calls of a block an idempotency key that is derived from the key of the current call, if it has one.

    Clients cannot send a derived key, because it contains a dot.
    """
    key = context.idempotency_key.get()
    token = context.idempotency_key.set(None if key is None else replace(key, key=f"{key.key}.{part}"))
    try:
        yield
    finally:
        context.idempotency_key.reset(token)
