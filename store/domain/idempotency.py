"""Idempotent calls: the reply to a call with a key is stored, and a repeat of the call gets the stored reply.

To decide a command means to record its events in the working set and to return its result. Decision 15.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from store.domain.annotations import AnnotateRollout
from store.domain.commands import (
    AmendRollout,
    Claim,
    Command,
    Enqueue,
    NumberSpans,
    PublishResources,
    RecordSpans,
    SpansOutcome,
    StartAttempt,
    StartRollout,
    UpdateAttempt,
)
from store.domain.decide import decide
from store.domain.events import Json
from store.domain.run_commands import AppendToRun, MoveHead
from store.domain.views import RolloutView
from store.domain.working_set import Answered, WorkingSet
from store.errors import Conflict


@dataclass(frozen=True, slots=True)
class Repeat:
    """The result of a repeated call: the stored reply to the first call."""

    position: int
    """The position of the last event in the log right after the first call was decided."""
    reply: Json
    """The ids and numbers of the first call's result. The rest of the result is read again at `position`."""


def decide_once(command: Command, working_set: WorkingSet) -> Any:
    """Decide a command as `decide` does. If its key has a stored reply, return `Repeat` instead.

    Raises:
        Conflict: the key was used for another request.
        StoreError: the command was refused.
    """
    idempotency = command.idempotency
    if idempotency is None:
        return decide(command, working_set)
    key = (idempotency.scope, idempotency.key)
    earlier = working_set.answered.get(key)
    if earlier is None:
        answer = decide(command, working_set)
        reply = _REPLIES[type(command)](command, answer)
        # A claim that found no rollout has no stored reply, so a repeat with the same key is executed.
        if reply is not None:
            working_set.keep_answer(key, Answered(idempotency.request_hash, working_set.next_position - 1, reply))
        return answer
    if earlier.request_hash != idempotency.request_hash:
        raise Conflict(
            f"idempotency key {idempotency.key!r} was used for another request", "make a new key for each call"
        )
    if isinstance(command, Claim) and not earlier.is_repeated:
        # A claim is undone if its caller stops waiting. But here a repeat of the call receives the claim. The mark in
        # the reply prevents that the claim is undone.
        working_set.keep_answer(
            key, Answered(earlier.request_hash, earlier.position, earlier.reply | {"repeated": True})
        )
    return Repeat(earlier.position, earlier.reply)


def is_repeat(command: Command, working_set: WorkingSet) -> bool:
    """Return whether the command has a key with a stored reply."""
    idempotency = command.idempotency
    return idempotency is not None and (idempotency.scope, idempotency.key) in working_set.answered


def is_keyed(command: Command) -> bool:
    """Return whether the command needs a key, because two executions can have more effect than one.

    A heartbeat, for example, needs no key.
    """
    return type(command) in _REPLIES


def _opened(_: Command, answer: RolloutView) -> Json:
    return {"rollouts": [answer.row.rollout_id]}


def _recorded(_: RecordSpans, answer: SpansOutcome) -> Json:
    reply: Json = {"recorded": answer.numbers}
    if answer.conflicts:
        reply["conflicts"] = answer.conflicts
    if answer.derived:
        reply["derived"] = answer.derived
    return reply


# For each type of command, the part of its result that is stored.
_REPLIES: dict[type[Command], Callable[[Any, Any], Json | None]] = {
    Enqueue: lambda _, views: {"rollouts": [view.row.rollout_id for view in views]},
    StartRollout: _opened,
    StartAttempt: _opened,
    Claim: lambda _, claims: {"rollouts": [claim.rollout.row.rollout_id for claim in claims]} if claims else None,
    AmendRollout: _opened,
    UpdateAttempt: lambda command, view: {"rollout": command.rollout_id, "attempt": view.row.attempt_id},
    RecordSpans: _recorded,
    NumberSpans: lambda _, numbers: {"numbers": numbers},
    PublishResources: lambda command, _: {"resources": command.resources_id},
    AppendToRun: lambda _, events: {"first": events.first, "last": events.last, "kind": events.kind},
    MoveHead: _opened,
    # The labels may be too long for a stored reply. A repeat reads the labels as they were after event `number` of the
    # rollout.
    AnnotateRollout: lambda command, view: {"rollout": command.rollout_id, "number": view.version},
}
