"""What a LangGraph checkpointer keeps: values as its serializer wrote them, of which the store knows only the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Typed = tuple[str, bytes]
"""A value as a serializer wrote it: the name of the form, and the bytes."""


@dataclass(frozen=True, slots=True)
class ThreadWrite:
    """What a task has written to a channel on top of a checkpoint."""

    task_id: str
    number: int
    """Among the task's writes; negative for errors, interrupts and the like, of which the last one counts."""
    channel: str
    value: Typed
    task_path: str = ""


@dataclass(frozen=True, slots=True)
class ThreadCheckpoint:
    """The state of a graph at the end of a step, with what was written on top of it since."""

    thread_id: str
    ns: str
    """The namespace: empty for the graph itself, else that of a subgraph."""
    checkpoint_id: str
    parent_id: str | None
    checkpoint: Typed
    """All but the values of its channels."""
    values: Mapping[str, Typed]
    """By channel."""
    metadata: Mapping[str, Any]
    writes: Sequence[ThreadWrite] = ()
    """In the order in which a graph applies them: by path, task and number."""


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """Where a checkpoint stands in its thread."""

    thread_id: str
    ns: str
    checkpoint_id: str
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """A thread, as a list of threads shows it."""

    thread_id: str
    scope: str | None
    """What follows the rollout's id in the thread's; None for the rollout as a whole."""
    checkpoints: int
    """How many there are, those of subgraphs included."""
    latest: str | None
    """The id of the newest checkpoint of the graph itself."""
    step: int | None
    """The number of the graph's step at which it was taken."""
    at: float
    """When something last happened to the thread, in seconds since the epoch."""
