"""Request bodies and queries of runs, which Agent-lightning 0.3 does not have.

The fields are the arguments of the methods in `store.interface.runs`. That module describes the arguments.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from store.models import OnMissing, PhaseGraph, SearchIn
from store.models.enums import Frozen
from store.models.queries import PastQuery, RolloutPastQuery

_ALL: Final = -1
# The values are stored in the database and sent in responses, which both have 64-bit integers.
_LAST: Final = 2**63 - 1


class RunGraphQuery(RolloutPastQuery):
    """GET /rollouts/{rollout_id}/graph."""

    view: str = "head"


class RunGraphBody(RunGraphQuery):
    """POST /rollouts/{rollout_id}/graph."""

    graph: PhaseGraph | None = None
    """The phase graph that assigns nodes to phases; by default the graph in the rollout's resources."""


class LatestCheckpointQuery(RolloutPastQuery):
    """GET /rollouts/{rollout_id}/checkpoints/latest."""

    scope: str
    name: str
    view: str = "head"
    search: SearchIn = "rollout"
    """With `group`, the other runs of the same group (`rollbook.group`) are searched if this run has no checkpoint."""


class ScopeHistoryQuery(PastQuery):
    """GET /artifacts."""

    scope: str
    name: str | None = None
    limit: int = Field(default=100, ge=_ALL, le=_LAST)
    """The maximum number of artifacts; -1 for all."""


class PlanForkBody(Frozen):
    """POST /rollouts/{rollout_id}/forks:plan."""

    node: str | None = None
    phase: str | None = None
    scopes: list[str] = Field(default_factory=list[str])
    base: str = "head"
    on_missing: OnMissing = "error"
    cascade: bool = True
    graph: PhaseGraph | None = None


class CompareQuery(Frozen):
    """GET /rollouts/{rollout_id}/compare."""

    a: int
    """The sequence id of the attempt before the change."""
    b: int
    """The sequence id of the attempt after the change."""
