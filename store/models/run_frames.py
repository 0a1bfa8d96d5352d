"""Frames of a run that is followed, and their application to the events of a view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from store.models.enums import AttemptStatus, Frozen, RolloutStatus
from store.models.phases import Mask
from store.models.runs import Fork, RunEventRow

RunFrameKind = Literal["hello", "event", "fork", "status", "terminal", "reset", "heartbeat"]
RunOutcome = Literal["succeeded", "failed", "cancelled"]


class RunFrame(Frozen):
    """One message about a run that is followed. Fields that a kind does not use are None.

    `hello` comes first, and again after each new connection. `event` adds an event to the view. `fork` removes the
    events that the fork hides, see `apply_frames`. `reset` empties the view; all of its events follow. `status` and
    `terminal` give the status of the run; a run that has ended may continue by a fork or a retry. `heartbeat` only
    means that nothing happened; a server sends it in its streams, `runs.follow` leaves it out.
    """

    kind: RunFrameKind
    seq: int
    """The reader's position: the version up to which it has the events; pass it as `after` to continue."""
    until: int | None = None
    """If not None, the reader is receiving the view as of this version and has only a part of it: pass it along with
    `seq` to continue."""
    view: str | None = None
    """hello: the view that is followed."""
    last_seq: int | None = None
    """hello: the version of the run's last event at that moment."""
    head_attempt: int | None = None
    """hello: the attempt that is the head; None before the first attempt."""
    event: RunEventRow | None = None
    attempt: int | None = None
    """fork: the new attempt; status and terminal: the attempt that they are about, if it is one."""
    base: int | None = None
    """fork: the attempt that the new one builds on."""
    base_seq: int | None = None
    """fork: the version after which events of the base do not count."""
    masks: list[Mask] | None = None
    """fork: the events of the base that it hides."""
    plan: Fork | None = None
    """fork: the whole plan."""
    attempt_status: AttemptStatus | None = None
    """hello and status."""
    rollout_status: RolloutStatus | None = None
    """hello and status."""
    outcome: RunOutcome | None = None
    """terminal: the final status."""
    error: str | None = None
    """terminal: the reason of a failure, if known."""


def apply_frames(events: Iterable[RunEventRow], frames: Iterable[RunFrame]) -> list[RunEventRow]:
    """Return the events of a view after some frames, from its events before them.

    The result equals that of `runs.query_events` for the view at the last frame's `seq`, wherever the reader began.
    """
    held = list(events)
    for frame in frames:
        match frame.kind:
            case "event" if frame.event is not None:
                held.append(frame.event)
            case "fork":
                held = [event for event in held if _is_visible(event, frame)]
            case "reset":
                held = []
            case _:
                pass
    return held


def _is_visible(event: RunEventRow, fork: RunFrame) -> bool:
    if fork.base_seq is not None and event.version > fork.base_seq:
        return False
    masks = fork.masks or ()
    return not any(mask.hides(event.scope, event.node_id, event.parent_node_id, event.phase) for mask in masks)
