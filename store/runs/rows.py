"""A run event as planning, comparing and drawing see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

RESULTS: Final = frozenset({"result", "tool_result"})
"""Kinds of events that end one execution of a node."""
UNDRAWN: Final = frozenset({"log", "system"})
"""Kinds of events that are about no node of the pipeline, whatever node they name."""
ERROR: Final = "error"
"""The status of a result that failed."""


@dataclass(frozen=True, slots=True)
class Told:
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
