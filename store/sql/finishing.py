"""The end of an attempt, with its last spans and the next claim, as one group of commands. Decision 95."""

from __future__ import annotations

from typing import Any, Final

from store.domain.commands import Claim, Command, CommandGroup, NewSpan, RecordSpans, SpansOutcome
from store.domain.idempotency import Repeat
from store.errors import Invalid, SpanConflict, StoreError
from store.interface.finishing import requeues, span_of_attempt
from store.models import Attempt, AttemptedRollout, Span
from store.models.calls import FinishAttemptCall, UpdateAttemptCall
from store.models.finished_attempts import FinishedAttempt
from store.sql import replies
from store.sql.commands import rollouts as commands
from store.sql.commands import spans as span_commands
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as mapping
from store.sql.queries import SQLReads
from store.sql.queue import SQLQueue
from store.validation.json_limits import check_call


class Finishing:
    """One call of `finish_attempt` of a SQL store.

    Args:
        core: the core of the store.
        queue: the queue of the store.
        call: the call.

    Raises:
        Invalid: an argument is invalid.
    """

    def __init__(self, core: SQLCore, queue: SQLQueue, call: FinishAttemptCall) -> None:
        self._core = core
        self._queue = queue
        self._call = call
        check_call(len(call.spans), 0, "spans")
        self._spans: list[Span | StoreError | None] = [None] * len(call.spans)
        self._indexes: list[int] = []
        """For each span in the command, its index in the call."""
        items = self._items()
        self._record = RecordSpans(items=items, number=call.number, rename=span_commands.renamed) if items else None
        ends = UpdateAttemptCall(
            call.rollout_id, call.attempt_id, call.status, metadata=call.metadata, error=call.error
        )
        end = commands.update_attempt(ends)
        end.requeues = requeues(call)
        parts: list[Command] = [end]
        if self._record is not None:
            parts.insert(0, self._record)
        if call.claim_as is not None:
            parts.append(commands.claim(1, call.claim_as))
        self.command: Final = CommandGroup(parts=parts)
        """The command of the call. Its result is the argument of `result`."""

    def _items(self) -> list[NewSpan]:
        items: list[NewSpan] = []
        size = 0
        for index, span in enumerate(self._call.spans):
            try:
                item = span_commands.new_span(span_of_attempt(span, self._call, index), f"spans[{index}].")
            except Invalid as error:
                self._spans[index] = error
                continue
            size += item.body.raw_len
            self._indexes.append(index)
            items.append(item)
        check_call(0, size, "spans")
        return items

    async def result(self, answers: list[Any]) -> FinishedAttempt:
        """Return the result of the call from the results and errors of its commands."""
        pairs = zip(self.command.parts, answers, strict=True)
        return self._result(
            [
                await self._repeated(part, answer) if isinstance(answer, Repeat) else self._made(part, answer)
                for part, answer in pairs
            ]
        )

    def first_result(self, answers: list[Any]) -> FinishedAttempt | None:
        """Return the same as `result` without reading the database; None if the database must be read."""
        if any(type(answer) is Repeat for answer in answers):
            return None
        return self._result(list(map(self._made, self.command.parts, answers)))

    async def _repeated(self, part: Command, answer: Repeat) -> Any:
        reads = SQLReads(self._core)
        if isinstance(part, RecordSpans):
            outcome = replies.recorded(answer)
            part.derive(outcome.derived)
            return outcome
        if isinstance(part, Claim):
            return (await replies.claims(reads, answer))[0]
        return await replies.attempt(reads, answer)

    def _made(self, part: Command, answer: Any) -> Any:
        if isinstance(answer, StoreError | SpansOutcome):
            return answer
        if isinstance(part, Claim):
            claimed = self._queue.hand_out(answer)
            return claimed[0] if claimed else None
        return mapping.attempt_of_view(answer)

    def _result(self, results: list[Any]) -> FinishedAttempt:
        if self._record is not None:
            self._note_spans(self._record, results.pop(0))
        attempt: Attempt | StoreError = results.pop(0)
        claimed: AttemptedRollout | StoreError | None = results.pop() if results else None
        return FinishedAttempt(self._spans, attempt, claimed)

    def _note_spans(self, record: RecordSpans, outcome: SpansOutcome | StoreError) -> None:
        if isinstance(outcome, StoreError):
            for index in self._indexes:
                self._spans[index] = outcome
            return
        self._core.writer_statistics.span_conflicts += len(outcome.conflicts)
        for place, number in outcome.numbers:
            index = self._indexes[place]
            span = span_commands.stored_span(self._call.spans[index], record.items[place])
            is_numbered = span.sequence_id == number
            self._spans[index] = span if is_numbered else span.model_copy(update={"sequence_id": number})
        for place in outcome.conflicts:
            index = self._indexes[place]
            self._spans[index] = SpanConflict([record.items[place].key], [index])
