"""Idempotent calls: the reply to a call with a key is stored, and a repeat of the call gets the stored reply.

To decide a command means to record its events in the working set, which contains the loaded states, and to return its
result. The working set also contains the stored replies to earlier calls. Decision 15.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from store.domain.commands import (
    AmendRollout,
    AnnotateRollout,
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
from store.domain.decide_annotations import AnnotationView
from store.domain.decide_runs import AppendedEvents
from store.domain.events import Json
from store.domain.run_commands import AppendToRun, MoveHead
from store.domain.views import ClaimView, RolloutView
from store.domain.working_set import Answered, WorkingSet
from store.errors import Conflict


@dataclass(frozen=True, slots=True)
class Repeat:
    """The result of a repeated call: the stored reply to the first call."""

    position: int
    """The position of the last event in the log when the first call had been decided."""
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
    known = working_set.answered.get(key)
    if known is None:
        answer = decide(command, working_set)
        reply = _REPLIES[type(command)](command, answer)
        # A claim that found no rollout has no stored reply, so a repeat with the same key is executed.
        if reply is not None:
            working_set.keep_answer(key, Answered(idempotency.request_hash, working_set.next_position - 1, reply))
        return answer
    if known.request_hash != idempotency.request_hash:
        raise Conflict(
            f"idempotency key {idempotency.key!r} was used for another request", "make a new key for each call"
        )
    if isinstance(command, Claim) and not known.is_repeated:
        # The claim of a caller that has stopped waiting is undone. Now another call with the key gets the claim, so the
        # reply is marked, and the claim is kept.
        working_set.keep_answer(key, Answered(known.request_hash, known.position, known.reply | {"repeated": True}))
    return Repeat(known.position, known.reply)


def is_repeat(command: Command, working_set: WorkingSet) -> bool:
    """Return whether the command has a key with a stored reply."""
    given = command.idempotency
    return given is not None and (given.scope, given.key) in working_set.answered


def is_keyed(command: Command) -> bool:
    """Return whether the command needs a key, because two executions can change more than one execution.

    A heartbeat, for example, needs no key.
    """
    return type(command) in _REPLIES


def _enqueued(_: Enqueue, answer: list[RolloutView]) -> Json:
    return {"rollouts": [view.row[0] for view in answer]}


def _opened(_: Command, answer: RolloutView) -> Json:
    return {"rollouts": [answer.row[0]]}


def _claimed(_: Claim, answer: list[ClaimView]) -> Json | None:
    return {"rollouts": [view.rollout.row[0] for view in answer]} if answer else None


def _updated(command: UpdateAttempt, answer: Any) -> Json:
    return {"rollout": command.rollout_id, "attempt": answer.row[1]}


def _recorded(_: RecordSpans, answer: SpansOutcome) -> Json:
    reply: Json = {"recorded": answer.numbers}
    if answer.conflicts:
        reply["conflicts"] = answer.conflicts
    if answer.derived:
        reply["derived"] = answer.derived
    return reply


def _numbered(_: NumberSpans, answer: list[int]) -> Json:
    return {"numbers": answer}


def _appended(_: AppendToRun, answer: AppendedEvents) -> Json:
    return {"first": answer.first, "last": answer.last, "kind": answer.kind}


def _annotated(command: AnnotateRollout, answer: AnnotationView) -> Json:
    # The labels may be too long for a stored reply. For a repeat, the labels are read as they were after the event with
    # this number.
    return {"rollout": command.rollout_id, "number": answer.version}


def _published(command: PublishResources, _: Any) -> Json:
    return {"resources": command.resources_id}


_REPLIES: dict[type[Command], Callable[[Any, Any], Json | None]] = {
    Enqueue: _enqueued,
    StartRollout: _opened,
    StartAttempt: _opened,
    Claim: _claimed,
    AmendRollout: _opened,
    UpdateAttempt: _updated,
    RecordSpans: _recorded,
    NumberSpans: _numbered,
    PublishResources: _published,
    AppendToRun: _appended,
    MoveHead: _opened,
    AnnotateRollout: _annotated,
}
