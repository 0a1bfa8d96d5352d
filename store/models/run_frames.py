"""What follows a run: frames, each of which says where its reader stands after it, and what they make of a view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from store.models.enums import AttemptStatus, Frozen, RolloutStatus
from store.models.phases import Mask
from store.models.runs import Fork, RunEventRow

RunFrameKind = Literal["hello", "event", "fork", "status", "terminal", "reset", "heartbeat"]
RunOutcome = Literal["succeeded", "failed", "cancelled"]


class RunFrame(Frozen):
    """One message about a run that is followed. What a kind does not say is None.

    `hello` comes first, and again after each new connection. `event` adds to the view. `fork` takes away from it what
    the fork hides, see `apply_frames`. `reset` empties it: all of it is told again. `status` and `terminal` say how the
    run stands; a run that has ended may go on, by a fork or a retry. `heartbeat` only says that nothing happened;
    a server's streams hold it, `runs.follow` leaves it out.
    """

    kind: RunFrameKind
    seq: int
    """Where the reader stands: the version up to which it has been told; `after` of whoever goes on from here."""
    until: int | None = None
    """Where it is not None, the reader is being told the view as it was after this version, and stands in the middle of
    that: whoever goes on from here gives it along with `seq`."""
    view: str | None = None
    """hello: which view is followed."""
    last_seq: int | None = None
    """hello: the version of the run's last event at that moment."""
    head_attempt: int | None = None
    """hello: the attempt whose view is the head's; None while none has started."""
    event: RunEventRow | None = None
    attempt: int | None = None
    """fork: the one that begins; status and terminal: the one they are about, where it is one."""
    base: int | None = None
    """fork: the attempt that it builds on."""
    base_seq: int | None = None
    """fork: the version beyond which nothing of the base counts."""
    masks: list[Mask] | None = None
    """fork: what of the base it hides."""
    plan: Fork | None = None
    """fork: all that is known of it."""
    attempt_status: AttemptStatus | None = None
    """hello and status."""
    rollout_status: RolloutStatus | None = None
    """hello and status."""
    outcome: RunOutcome | None = None
    """terminal: how it ended."""
    error: str | None = None
    """terminal: why it failed, as far as that is known."""


def apply_frames(events: Iterable[RunEventRow], frames: Iterable[RunFrame]) -> list[RunEventRow]:
    """Return the events of a view after some frames, from those that it held before them.

    It gives what `runs.query_events` returns of the same view at the last frame's `seq`, wherever the reader began.
    """
    held = list(events)
    for frame in frames:
        match frame.kind:
            case "event" if frame.event is not None:
                held.append(frame.event)
            case "fork":
                held = [event for event in held if _stays(event, frame)]
            case "reset":
                held = []
            case _:
                pass
    return held


def _stays(event: RunEventRow, fork: RunFrame) -> bool:
    if fork.base_seq is not None and event.version > fork.base_seq:
        return False
    masks = fork.masks or ()
    return not any(mask.hides(event.scope, event.node_id, event.parent_node_id, event.phase) for mask in masks)
