"""Request bodies and queries of labels and notes, which Agent-lightning 0.3 does not have."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from store.models.queries import PastQuery, RolloutPastQuery

_ALL: Final = -1
_LAST: Final = 2**63 - 1


class AnnotationsQuery(RolloutPastQuery):
    """GET /rollouts/{rollout_id}/annotations."""

    limit: int = Field(default=_ALL, ge=_ALL, le=_LAST)
    """The maximum number of notes; -1 for all notes. If the rollout has more notes, the latest are returned."""


class LabelsQuery(PastQuery):
    """POST /labels/search."""

    rollout_id: list[str]
    """The ids of at most 1,000 rollouts."""
