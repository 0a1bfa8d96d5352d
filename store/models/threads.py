"""Checkpoints of a LangGraph checkpointer. Values are bytes of its serializer, which the store does not interpret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Typed = tuple[str, bytes]
"""A serialized value: the name of the format, and the bytes."""


@dataclass(frozen=True, slots=True)
class ThreadWrite:
    """A write of a task to a channel on top of a checkpoint."""

    task_id: str
    number: int
    """The number among the task's writes; negative for errors, interrupts and the like, where only the last counts."""
    channel: str
    value: Typed
    task_path: str = ""


@dataclass(frozen=True, slots=True)
class ThreadCheckpoint:
    """The state of a graph at the end of a step, with the later writes on top of it."""

    thread_id: str
    ns: str
    """The namespace: empty for the graph itself, or else the namespace of a subgraph."""
    checkpoint_id: str
    parent_id: str | None
    checkpoint: Typed
    """The checkpoint without the values of its channels."""
    values: Mapping[str, Typed]
    """The values by channel."""
    metadata: Mapping[str, Any]
    writes: Sequence[ThreadWrite] = ()
    """The writes in the order in which a graph applies them: by path, task and number."""


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """The position of a checkpoint in its thread."""

    thread_id: str
    ns: str
    checkpoint_id: str
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """Summary of a thread for lists."""

    thread_id: str
    scope: str | None
    """The part of the thread's id after the rollout's id; None if the thread belongs to the whole rollout."""
    checkpoints: int
    """The number of checkpoints, including those of subgraphs."""
    latest: str | None
    """The id of the newest checkpoint of the graph itself."""
    step: int | None
    """The number of the graph's step at which that checkpoint was saved."""
    at: float
    """When the thread last changed, in seconds since the epoch."""
