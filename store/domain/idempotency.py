"""Idempotent calls: replies are stored next to the log, and a repeated call gets the stored reply."""

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
    """The result of a repeated call: the reply of the first call and its position."""

    position: int
    """The position of the last event when the call was first decided."""
    reply: Json
    """Ids and numbers of the reply, without its payload."""


def decide_once(command: Command, working_set: WorkingSet) -> Any:
    """Decide a command as `decide` does. If its key is known, return `Repeat` and do not execute it again.

    Raises:
        Conflict: the key was used for another request.
    """
    idempotency = command.idempotency
    if idempotency is None:
        return decide(command, working_set)
    key = (idempotency.scope, idempotency.key)
    known = working_set.answered.get(key)
    if known is None:
        answer = decide(command, working_set)
        reply = _REPLIES[type(command)](command, answer)
        # A claim that found nothing may be tried again under its key.
        if reply is not None:
            working_set.keep_answer(key, Answered(idempotency.request_hash, working_set.next_position - 1, reply))
        return answer
    if known.request_hash != idempotency.request_hash:
        raise Conflict(
            f"idempotency key {idempotency.key!r} was used for another request", "make a new key for each call"
        )
    if isinstance(command, Claim) and not known.is_repeated:
        # A caller has the reply now, so the claim must not be released any more.
        working_set.keep_answer(key, Answered(known.request_hash, known.position, known.reply | {"repeated": True}))
    return Repeat(known.position, known.reply)


def is_keyed(command: Command) -> bool:
    """Return whether a repeat would change more than one call does, so that the command needs a key.

    A repeated heartbeat, for example, changes nothing more.
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


def _recorded(_: RecordSpans, answer: list[tuple[int, int]]) -> Json:
    return {"recorded": answer}


def _numbered(_: NumberSpans, answer: list[int]) -> Json:
    return {"numbers": answer}


def _appended(_: AppendToRun, answer: AppendedEvents) -> Json:
    return {"first": answer.first, "last": answer.last, "kind": answer.kind}


def _annotated(command: AnnotateRollout, answer: AnnotationView) -> Json:
    # The labels may be too long for a stored reply, so a repeat reads them at the event with this number.
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
