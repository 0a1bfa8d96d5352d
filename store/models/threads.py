"""Threads of a LangGraph checkpointer: conversations or executions of a graph, stored as checkpoints.

Values are bytes that LangGraph's serializer wrote. The store does not interpret them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Typed = tuple[str, bytes]
"""A serialized value: the name of the format, and the bytes."""


@dataclass(frozen=True, slots=True)
class ThreadWrite:
    """A value that a task wrote to a channel of the graph after a checkpoint."""

    task_id: str
    number: int
    """The number of the write among the task's writes. Errors, interrupts and similar writes have negative numbers.

    A later write with the same negative number replaces the earlier one.
    """
    channel: str
    value: Typed
    task_path: str = ""


@dataclass(frozen=True, slots=True)
class ThreadCheckpoint:
    """The state of a graph at the end of a step, with the writes that tasks made after that step."""

    thread_id: str
    ns: str
    """The namespace of a subgraph, or an empty text for the graph itself."""
    checkpoint_id: str
    parent_id: str | None
    checkpoint: Typed
    """The serialized checkpoint without the values of its channels."""
    values: Mapping[str, Typed]
    """The values of the channels, by the channel's name."""
    metadata: Mapping[str, Any]
    writes: Sequence[ThreadWrite] = ()
    """The writes in the order in which a graph applies them: by `task_path`, then `task_id`, then `number`."""


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """The ids of a checkpoint and of its parent, which give its place in its thread."""

    thread_id: str
    ns: str
    checkpoint_id: str
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """Summary of a thread for lists."""

    thread_id: str
    scope: str | None
    """The subject within the rollout, such as a ticker: the part of the thread's id after the rollout's id.

    None if the thread belongs to the whole rollout.
    """
    checkpoints: int
    """The number of checkpoints, including those of subgraphs."""
    latest: str | None
    """The id of the newest checkpoint of the graph itself."""
    step: int | None
    """The number of the graph's step at which the checkpoint `latest` was saved."""
    at: float
    """When the thread last changed, in seconds since the epoch."""
