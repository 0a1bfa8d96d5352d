"""Request bodies of scores, which Agent-lightning 0.3 does not have."""

from __future__ import annotations

from store.models.queries import PastQuery


class ScoresQuery(PastQuery):
    """POST /scores/search."""

    rollout_id: list[str]
    """The ids of at most 1,000 rollouts."""
    reward_version: str | None = None
    """Only scores of this version of a reward, such as `helpful@v2`."""
