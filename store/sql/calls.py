"""Execution of the calls of a SQL store: one table from the type of a call to the function that executes it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from store.domain.commands import Command
from store.domain.idempotency import Repeat
from store.models import AttemptedRollout, Worker
from store.models.calls import (
    AddResourcesCall,
    ChangingCall,
    DequeueManyRolloutsCall,
    DequeueRolloutCall,
    EnqueueManyRolloutsCall,
    EnqueueRolloutCall,
    FinishAttemptCall,
    LogMetricsCall,
    NextSpanCall,
    NextSpansCall,
    StartAttemptCall,
    StartRolloutCall,
    UpdateAttemptCall,
    UpdateResourcesCall,
    UpdateRolloutCall,
    UpdateWorkerCall,
)
from store.models.finished_attempts import FinishedAttempt
from store.runtime import context
from store.sql import replies
from store.sql.commands import rollouts as commands
from store.sql.commands import trainer_metrics
from store.sql.core import SQLCore
from store.sql.finishing import Finishing
from store.sql.lost_workers import LostWorkers
from store.sql.mapping import rollouts as mapping
from store.sql.queries import SQLReads
from store.sql.queue import SQLQueue
from store.validation.json_limits import MAX_CALL_ITEMS


class CoreUser(Protocol):
    """A part of a SQL store."""

    core: SQLCore


class CallingStore(CoreUser, Protocol):
    """The parts of a SQL store that execute its calls."""

    queue: SQLQueue
    lost_workers: LostWorkers


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A call that is one command: the call becomes the command, and the writer's answer becomes the result."""

    command: Callable[[Any], Command]
    """Checks a call, and returns its command."""
    result: Callable[[Any], Any]
    """Returns the result from the writer's answer."""
    repeated: replies.Answer | None = None
    """Returns the result of a call with the idempotency key of an earlier call; None for calls without such keys."""
    sweeps: bool = True

    async def __call__(self, part: CoreUser, call: ChangingCall[Any]) -> Any:
        """Execute a call."""
        core, command = part.core, self.command(call)
        answer = await (core.swept_call(command) if self.sweeps else core.call(command))
        if self.repeated is not None and isinstance(answer, Repeat):
            return await self.repeated(SQLReads(core), answer)
        return self.result(answer)


COMMANDS: Final[dict[type[ChangingCall[Any]], CommandCall]] = {
    StartRolloutCall: CommandCall(commands.start_rollout, mapping.attempted_of_view, replies.attempted),
    EnqueueRolloutCall: CommandCall(
        commands.enqueue_one, lambda views: mapping.rollout_of_view(views[0]), replies.rollout
    ),
    EnqueueManyRolloutsCall: CommandCall(
        commands.enqueue, lambda views: list(map(mapping.rollout_of_view, views)), replies.rollouts
    ),
    StartAttemptCall: CommandCall(commands.start_attempt, mapping.attempted_of_view, replies.attempted),
    UpdateRolloutCall: CommandCall(commands.amend_rollout, mapping.rollout_of_view, replies.rollout),
    UpdateAttemptCall: CommandCall(commands.update_attempt, mapping.attempt_of_view, replies.attempt),
    NextSpanCall: CommandCall(commands.number_span, lambda numbers: numbers[0], replies.number, sweeps=False),
    NextSpansCall: CommandCall(commands.number_spans, list[int], replies.numbers, sweeps=False),
    AddResourcesCall: CommandCall(commands.publish, mapping.resources_of_view, replies.resources, sweeps=False),
    UpdateResourcesCall: CommandCall(commands.publish, mapping.resources_of_view, replies.resources),
    LogMetricsCall: CommandCall(trainer_metrics.log_metrics, lambda _: None, sweeps=False),
    UpdateWorkerCall: CommandCall(commands.beat, mapping.worker_of_view, sweeps=False),
}
"""The calls that are one command."""


async def dequeue_many(store: CallingStore, call: DequeueManyRolloutsCall) -> list[AttemptedRollout]:
    """Claim rollouts from the head of the queue."""
    # One call claims at most `MAX_CALL_ITEMS` rollouts. A caller that needs more rollouts must call again.
    claims = await store.queue.claim(min(call.limit, MAX_CALL_ITEMS), call.worker_id, call.wait_seconds)
    if isinstance(claims, Repeat):
        return await replies.claims(SQLReads(store.core), claims)
    return store.queue.hand_out(claims)


async def dequeue(store: CallingStore, call: DequeueRolloutCall) -> AttemptedRollout | None:
    """Claim the rollout at the head of the queue."""
    claimed = await dequeue_many(store, DequeueManyRolloutsCall(1, call.worker_id, call.wait_seconds))
    return claimed[0] if claimed else None


async def finish_attempt(store: CallingStore, call: FinishAttemptCall) -> FinishedAttempt:
    """Store the last spans of an attempt, end it and claim a rollout."""
    finishing = Finishing(store.core, store.queue, call)
    finishing.command.identify(context.actor.get(), context.idempotency_key.get())
    return await finishing.result(await store.core.swept_call(finishing.command))


async def update_worker(store: CallingStore, call: UpdateWorkerCall) -> Worker:
    """Record a heartbeat of a worker, and search for lost workers."""
    worker = await COMMANDS[UpdateWorkerCall](store, call)
    await store.lost_workers.search_if_due()
    return worker


CALLS: Final[dict[type[ChangingCall[Any]], Callable[[Any, Any], Coroutine[Any, Any, Any]]]] = {
    **COMMANDS,
    DequeueRolloutCall: dequeue,
    DequeueManyRolloutsCall: dequeue_many,
    FinishAttemptCall: finish_attempt,
    UpdateWorkerCall: update_worker,
}
"""The functions that execute calls, by the type of the call. Each takes the store and the call."""
