"""Types of run events for planning, comparisons and graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

RESULTS: Final = frozenset({"result", "tool_result"})
"""Kinds of events that end one execution of a node."""
UNDRAWN: Final = frozenset({"log", "system"})
"""Kinds of events that do not belong to a node of the pipeline, even if they have a node id."""
ERROR: Final = "error"
"""The status of a result that failed."""


@dataclass(frozen=True, slots=True)
class ViewEvent:
    """One event of a view, without payload."""

    version: int
    attempt: int
    kind: str
    scope: str | None = None
    node_id: str | None = None
    parent_node_id: str | None = None
    phase: str | None = None
    node_exec: str | None = None
    status: str | None = None
    metrics: Mapping[str, Any] | None = None
    response_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events of a view with equal values in these fields, on which plans depend. `count` is the number of events."""

    kind: str
    scope: str | None = None
    node_id: str | None = None
    parent_node_id: str | None = None
    phase: str | None = None
    count: int = 1


class Placed(Protocol):
    """An object with the fields that determine the phase of an event."""

    @property
    def node_id(self) -> str | None: ...

    @property
    def parent_node_id(self) -> str | None: ...

    @property
    def phase(self) -> str | None: ...
