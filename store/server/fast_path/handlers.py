"""The calls of the fast path. Each call converts the body to a command, and the result to the response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from store.domain.commands import Command, Idempotency, RecordSpans, SpansOutcome
from store.domain.views import ClaimView
from store.models import AttemptedRollout, Span
from store.models.calls import (
    AppendEventsCall,
    ChangingCall,
    DequeueManyRolloutsCall,
    EnqueueManyRolloutsCall,
    FinishAttemptCall,
    NextSpanCall,
    UpdateAttemptCall,
)
from store.server.call import Call
from store.server.unread_claims import release_if_unread
from store.sql.calls import COMMANDS, CommandCall
from store.sql.commands import rollouts as rollout_commands
from store.sql.commands.spans import check_recorded, record_spans, stored_span
from store.sql.database import database_of
from store.sql.finishing import Finishing
from store.sql.run_calls import APPEND_EVENTS
from store.validation.json_limits import MAX_CALL_ITEMS
from store.wire import finished_attempts, paths
from store.wire.bodies import SpansBatchBody
from store.wire.calls import body_of, call_of, path_of, route_of
from store.wire.encoding import dumps, recorded_body

_SPAN: Final[Any] = Span.__pydantic_validator__
_SPANS: Final[Any] = SpansBatchBody.__pydantic_validator__
_FINISH: Final[Any] = body_of(FinishAttemptCall).__pydantic_validator__
_DEQUEUE: Final[Any] = body_of(DequeueManyRolloutsCall).__pydantic_validator__


@dataclass(frozen=True, slots=True)
class Handler:
    """One call on the fast path."""

    begin: Callable[[Call, bytes], tuple[Command, Any] | None]
    """Return the command of a call and a value for `end`. None, or an exception, hands the call to the application."""
    end: Callable[[Call, Any, Any], bytes | None]
    """Return the response, from that value and the writer's result. None hands the call to the application."""


def _of_command(kind: type[ChangingCall[Any]], execution: CommandCall, items: str | None = None) -> Handler:
    """Return the handler of a call that is one command.

    Args:
        kind: the type of the call.
        execution: the conversion of the call to a command, and of the writer's answer to the result.
        items: a field with items, without which the call executes no command.
    """
    validator: Any = body_of(kind).__pydantic_validator__
    key = route_of(kind).key

    def begin(request: Call, body: bytes) -> tuple[Command, None] | None:
        # If a field must not be null, null raises an error here, so that the application refuses it with its own text.
        call = call_of(kind, request.ids, validator.validate_json(body))
        return None if items is not None and not getattr(call, items) else (execution.command(call), None)

    def end(_: Call, __: None, answer: Any) -> bytes:
        result = execution.result(answer)
        return dumps(result if key is None else {key: result})

    return Handler(begin, end)


def _begin_dequeue(request: Call, body: bytes) -> tuple[Command, Idempotency | None] | None:
    call = _DEQUEUE.validate_json(body)
    if call.wait_seconds != 0 or not 0 < call.limit <= MAX_CALL_ITEMS:
        return None
    return rollout_commands.claim(call.limit, call.worker_id), request.idempotency(body)


def _end_dequeue(call: Call, idempotency: Idempotency | None, claims: list[ClaimView]) -> bytes:
    database = database_of(call.store)
    assert database is not None  # the fast path has a database
    claimed = database.queue.hand_out(claims)
    if claimed:
        release_if_unread(call, claimed, idempotency)
    return dumps(claimed)


def _begin_add_span(_: Call, body: bytes) -> tuple[Command, tuple[Span, RecordSpans]]:
    span: Span = _SPAN.validate_json(body)
    command = record_spans([span])
    return command, (span, command)


def _end_add_span(_: Call, submitted: tuple[Span, RecordSpans], recorded: SpansOutcome) -> bytes | None:
    # The application processes a repeat or a conflict: it logs the span or refuses it.
    span, command = submitted
    return dumps(stored_span(span, command.items[0])) if recorded.numbers else None


def _begin_add_spans(_: Call, body: bytes) -> tuple[Command, tuple[list[Span], RecordSpans]] | None:
    batch: SpansBatchBody = _SPANS.validate_json(body)
    if not batch.spans:
        return None
    command = record_spans(batch.spans, number=batch.number)
    return command, (batch.spans, command)


def _end_add_spans(call: Call, submitted: tuple[list[Span], RecordSpans], outcome: SpansOutcome) -> bytes:
    spans, command = submitted
    if len(outcome.numbers) < len(spans):
        database = database_of(call.store)
        assert database is not None  # the fast path has a database
        database.core.writer_statistics.span_conflicts += len(outcome.conflicts)
        check_recorded(command, outcome)
    facts = {index: command.items[index].fact for index, _ in outcome.numbers}
    return recorded_body(
        spans, outcome.numbers, {index: (fact.span_id, fact.parent_id) for index, fact in facts.items()}
    )


def _begin_finish(request: Call, body: bytes) -> tuple[Command, tuple[Finishing, Idempotency | None]]:
    database = database_of(request.store)
    assert database is not None  # the fast path has a database
    call = call_of(FinishAttemptCall, request.ids, _FINISH.validate_json(body))
    finishing, idempotency = Finishing(database.core, database.queue, call), request.idempotency(body)
    admitted = request.scope.get("rollbook.admission")
    finishing.command.identify(None if admitted is None else admitted.actor, idempotency)
    return finishing.command, (finishing, idempotency)


def _end_finish(call: Call, submitted: tuple[Finishing, Idempotency | None], answers: list[Any]) -> bytes | None:
    finishing, idempotency = submitted
    # The application answers a call that is repeated.
    finished = finishing.first_result(answers)
    if finished is not None and isinstance(finished.claimed, AttemptedRollout):
        release_if_unread(call, [finished.claimed], idempotency)
    return None if finished is None else finished_attempts.encode(finished)


HANDLERS: Final = {
    path_of(EnqueueManyRolloutsCall): _of_command(
        EnqueueManyRolloutsCall, COMMANDS[EnqueueManyRolloutsCall], "rollouts"
    ),
    path_of(DequeueManyRolloutsCall): Handler(_begin_dequeue, _end_dequeue),
    path_of(FinishAttemptCall): Handler(_begin_finish, _end_finish),
    path_of(UpdateAttemptCall): _of_command(UpdateAttemptCall, COMMANDS[UpdateAttemptCall]),
    paths.SPANS: Handler(_begin_add_span, _end_add_span),
    paths.SPANS_BATCH: Handler(_begin_add_spans, _end_add_spans),
    path_of(NextSpanCall): _of_command(NextSpanCall, COMMANDS[NextSpanCall]),
    path_of(AppendEventsCall): _of_command(AppendEventsCall, APPEND_EVENTS, "events"),
}
"""The handlers of the calls, by the path templates of their POST requests."""
