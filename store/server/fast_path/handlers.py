"""The calls of the fast path. Each call converts the body to a command, and the result to the response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from store.domain.commands import Command, Idempotency, RecordSpans, SpansOutcome
from store.domain.decide_runs import AppendedEvents
from store.domain.views import AttemptView, ClaimView, RolloutView
from store.models import UNSET, Span
from store.planning import run_changes
from store.server.call import Call
from store.server.unread_claims import release_if_unread
from store.sql.commands import rollouts as rollout_commands
from store.sql.commands.spans import record_spans, stored_span
from store.sql.database import database_of
from store.sql.mapping import rollouts as rollout_mapping
from store.validation.json_limits import MAX_CALL_ITEMS
from store.wire import paths
from store.wire.bodies import DequeueBody, EnqueueBody, NextSpanBody, UpdateAttemptBody
from store.wire.encoding import dumps
from store.wire.run_bodies import AppendEventsBody

_ENQUEUE: Final[Any] = EnqueueBody.__pydantic_validator__
_DEQUEUE: Final[Any] = DequeueBody.__pydantic_validator__
_UPDATE_ATTEMPT: Final[Any] = UpdateAttemptBody.__pydantic_validator__
_SPAN: Final[Any] = Span.__pydantic_validator__
_NEXT_SPAN: Final[Any] = NextSpanBody.__pydantic_validator__
_APPEND: Final[Any] = AppendEventsBody.__pydantic_validator__
_NOTHING_SET: Final[dict[str, Any]] = dict.fromkeys(UpdateAttemptBody.model_fields, UNSET)


@dataclass(frozen=True, slots=True)
class Handler:
    """One call on the fast path."""

    begin: Callable[[Call, bytes], tuple[Command, Any] | None]
    """Return the command of a call and a value for `end`. None, or an exception, hands the call to the application."""
    end: Callable[[Call, Any, Any], bytes | None]
    """Return the response, from that value and the writer's result. None hands the call to the application."""


def _begin_enqueue(_: Call, body: bytes) -> tuple[Command, None] | None:
    request: EnqueueBody = _ENQUEUE.validate_json(body)
    return (rollout_commands.enqueue(request.rollouts), None) if request.rollouts else None


def _end_enqueue(_: Call, __: None, created: list[RolloutView]) -> bytes:
    return dumps([rollout_mapping.rollout_of_view(view) for view in created])


def _begin_dequeue(call: Call, body: bytes) -> tuple[Command, Idempotency | None] | None:
    request: DequeueBody = _DEQUEUE.validate_json(body)
    if request.wait_seconds != 0 or not 0 < request.limit <= MAX_CALL_ITEMS:
        return None
    return rollout_commands.claim(request.limit, request.worker_id), call.idempotency(body)


def _end_dequeue(call: Call, idempotency: Idempotency | None, claims: list[ClaimView]) -> bytes:
    database = database_of(call.store)
    assert database is not None  # the fast path has a database
    claimed = database.queue.hand_out(claims)
    if claimed:
        release_if_unread(call, claimed, idempotency)
    return dumps(claimed)


def _begin_update_attempt(call: Call, body: bytes) -> tuple[Command, None]:
    request: UpdateAttemptBody = _UPDATE_ATTEMPT.validate_json(body)
    fields = {name: getattr(request, name) for name in request.model_fields_set}
    # A null raises an error, so that the application refuses it with its own text.
    return rollout_commands.update_attempt(**call.ids, **_NOTHING_SET | fields), None


def _end_update_attempt(_: Call, __: None, attempt: AttemptView) -> bytes:
    return dumps(rollout_mapping.attempt_of_view(attempt))


def _begin_add_span(_: Call, body: bytes) -> tuple[Command, tuple[Span, RecordSpans]]:
    span: Span = _SPAN.validate_json(body)
    command = record_spans([span])
    return command, (span, command)


def _end_add_span(_: Call, submitted: tuple[Span, RecordSpans], recorded: SpansOutcome) -> bytes | None:
    # The application processes a repeat or a conflict: it logs the span or refuses it.
    span, command = submitted
    return dumps(stored_span(span, command.items[0])) if recorded.numbers else None


def _begin_next_span(_: Call, body: bytes) -> tuple[Command, None]:
    request: NextSpanBody = _NEXT_SPAN.validate_json(body)
    return rollout_commands.number_spans([request.rollout_id]), None


def _end_next_span(_: Call, __: None, numbers: list[int]) -> bytes:
    return b'{"sequence_id":%d}' % numbers[0]


def _begin_append(call: Call, body: bytes) -> tuple[Command, None] | None:
    request: AppendEventsBody = _APPEND.validate_json(body)
    return (run_changes.append(**call.ids, events=request.events, key=request.key), None) if request.events else None


def _end_append(_: Call, __: None, appended: AppendedEvents) -> bytes:
    return dumps({"versions": appended.versions})


HANDLERS: Final = {
    paths.ENQUEUE: Handler(_begin_enqueue, _end_enqueue),
    paths.DEQUEUE: Handler(_begin_dequeue, _end_dequeue),
    paths.ATTEMPT: Handler(_begin_update_attempt, _end_update_attempt),
    paths.SPANS: Handler(_begin_add_span, _end_add_span),
    paths.NEXT_SPAN: Handler(_begin_next_span, _end_next_span),
    paths.ATTEMPT_EVENTS: Handler(_begin_append, _end_append),
}
"""The handlers of the calls, by the path templates of their POST requests."""
