"""Frames: the messages to a reader that follows a run, and the function that applies them to the events of a view.

A version is the number of an event in its run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from store.models.enums import AttemptStatus, Frozen, RolloutStatus
from store.models.phases import Mask
from store.models.runs import Fork, RunEventRow

RunFrameKind = Literal["hello", "event", "fork", "status", "terminal", "reset", "heartbeat"]
RunOutcome = Literal["succeeded", "failed", "cancelled"]


class RunFrame(Frozen):
    """One message to a reader that follows a run. Fields that a kind does not use are None.

    `hello` comes first, and again after each new connection. `event` adds an event to the view. `fork` removes the
    events that the fork hides, see `apply_frames`. `reset` empties the view; the frames after `reset` contain all
    events of the view again. `status` gives the status of the run or of an attempt. `terminal` gives a final status,
    but the run may still continue by a fork or a retry. `heartbeat` means that nothing happened. A server sends
    heartbeats in its streams; `runs.follow` leaves them out.
    """

    kind: RunFrameKind
    seq: int
    """The reader's position: the reader has the events up to this version.

    To continue later, pass this version as `after`.
    """
    until: int | None = None
    """If this is not None, the reader is still receiving the view as it was at this version, and has a part of it.

    To continue later, pass this version as `until`, together with `seq` as `after`.
    """
    view: str | None = None
    """hello: the view that is followed."""
    last_seq: int | None = None
    """hello: the version of the run's last event when the frame was made."""
    head_attempt: int | None = None
    """hello: the number of the head attempt; None before the first attempt."""
    event: RunEventRow | None = None
    attempt: int | None = None
    """fork: the number of the new attempt. status and terminal: the number of the attempt that the frame describes.

    In status and terminal, None means that the frame describes only the run.
    """
    base: int | None = None
    """fork: the number of the attempt on which the new attempt builds."""
    base_seq: int | None = None
    """fork: a version; the new attempt's view does not contain events of the base after this version."""
    masks: list[Mask] | None = None
    """fork: the masks, which select the events of the base that the fork hides."""
    plan: Fork | None = None
    """fork: the complete plan; `base`, `base_seq` and `masks` repeat parts of it."""
    attempt_status: AttemptStatus | None = None
    """hello and status: the status of the attempt."""
    rollout_status: RolloutStatus | None = None
    """hello and status: the status of the rollout, which is the task that the run executes."""
    outcome: RunOutcome | None = None
    """terminal: the final status of the attempt, or of the run if `attempt` is None."""
    error: str | None = None
    """terminal: the reason of a failure, if known."""


def apply_frames(events: Iterable[RunEventRow], frames: Iterable[RunFrame]) -> list[RunEventRow]:
    """Return the events of a view after some frames.

    For a new reader and for a reader that continues, the result equals the events that `runs.query_events` returns for
    the view at the last frame's `seq`.

    Args:
        events: the events of the view before the frames; empty for a new reader.
        frames: the next frames, in order.
    """
    view_events = list(events)
    for frame in frames:
        match frame.kind:
            case "event" if frame.event is not None:
                view_events.append(frame.event)
            case "fork":
                view_events = [event for event in view_events if _is_visible(event, frame)]
            case "reset":
                view_events = []
            case _:
                pass
    return view_events


def _is_visible(event: RunEventRow, fork: RunFrame) -> bool:
    if fork.base_seq is not None and event.version > fork.base_seq:
        return False
    masks = fork.masks or ()
    return not any(mask.hides(event.scope, event.node_id, event.parent_node_id, event.phase) for mask in masks)
