"""Request bodies and queries of runs, which Agent-lightning 0.3 does not have.

`store.interface.runs` describes the fields: they are the arguments of the methods of the same names. A run is a rollout
that is executed in phases; a scope is the subject of a phase, such as a ticker. The phase graph declares the phases.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from store.models import OnActive, OnMissing, PhaseGraph, RunEvent, SearchIn
from store.models.enums import Frozen
from store.models.queries import PastQuery, RolloutPastQuery

_ALL: Final = -1
# The values are stored in the database and sent in responses, which both have 64-bit integers.
_LAST: Final = 2**63 - 1

# -- events of a run -------------------------------------------------------------------------------------------------


class AppendEventsBody(Frozen):
    """POST /rollouts/{rollout_id}/attempts/{attempt_id}/events."""

    events: list[RunEvent]
    key: str | None = None
    """Idempotency key, which the store keeps for ever: a repeated call with this key gets the first response."""


class RunGraphQuery(RolloutPastQuery):
    """GET /rollouts/{rollout_id}/graph."""

    view: str = "head"


class RunGraphBody(RunGraphQuery):
    """POST /rollouts/{rollout_id}/graph."""

    graph: PhaseGraph | None = None
    """The phase graph that assigns nodes to phases; by default the graph in the rollout's resources."""


# -- checkpoints and artifacts ---------------------------------------------------------------------------------------


class SaveCheckpointBody(Frozen):
    """POST /rollouts/{rollout_id}/checkpoints."""

    attempt_id: str
    scope: str
    name: str
    state: dict[str, Any] | None = None
    after_phase: str | None = None
    external: dict[str, Any] | None = None
    key: str | None = None
    graph: PhaseGraph | None = None


class LatestCheckpointQuery(RolloutPastQuery):
    """GET /rollouts/{rollout_id}/checkpoints/latest."""

    scope: str
    name: str
    view: str = "head"
    search: SearchIn = "rollout"
    """With `group`, the other runs of the same group (`rollbook.group`) are searched if this run has no checkpoint."""


class SaveArtifactBody(Frozen):
    """POST /rollouts/{rollout_id}/artifacts."""

    attempt_id: str
    scope: str
    name: str
    content: Any
    phase: str | None = None
    media_type: str | None = None
    key: str | None = None


class RetractArtifactBody(Frozen):
    """POST /rollouts/{rollout_id}/artifacts/{artifact_id}/retract; the body is optional."""

    reason: str | None = None
    key: str | None = None


class ScopeHistoryQuery(PastQuery):
    """GET /artifacts."""

    scope: str
    name: str | None = None
    limit: int = Field(default=100, ge=_ALL, le=_LAST)
    """The maximum number of artifacts; -1 for all."""


# -- re-runs ---------------------------------------------------------------------------------------------------------


class PlanForkBody(Frozen):
    """POST /rollouts/{rollout_id}/forks:plan."""

    node: str | None = None
    phase: str | None = None
    scopes: list[str] = Field(default_factory=list[str])
    base: str = "head"
    on_missing: OnMissing = "error"
    cascade: bool = True
    graph: PhaseGraph | None = None


class ForkBody(PlanForkBody):
    """POST /rollouts/{rollout_id}/forks."""

    state_patch: dict[str, Any] | None = None
    on_active: OnActive = "reject"
    expected_head: int | None = None
    request_id: str | None = None
    """The id of the request. A repeated request with the same id starts nothing and gets the first response."""
    reason: str | None = None
    confirm_side_effects: bool = False
    allow_graph_change: bool = False
    worker_id: str | None = None


class ResumeBody(Frozen):
    """POST /rollouts/{rollout_id}/resume; the body is optional."""

    from_attempt: str = "head"
    confirm_side_effects: bool = False
    request_id: str | None = None
    reason: str | None = None
    worker_id: str | None = None
    graph: PhaseGraph | None = None


class MoveHeadBody(Frozen):
    """POST /rollouts/{rollout_id}/head."""

    attempt_id: str
    reason: str | None = None
    request_id: str | None = None


class CompareQuery(Frozen):
    """GET /rollouts/{rollout_id}/compare."""

    a: int
    """The sequence id of the attempt before the change."""
    b: int
    """The sequence id of the attempt after the change."""
