"""Bodies of requests about the results of scanners."""

from __future__ import annotations

from pydantic import Field

from store.models.enums import Frozen
from store.models.queries import PastQuery


class ScansQuery(PastQuery):
    """POST /scans/search."""

    rollout_id: list[str]
    """The ids of at most 1,000 rollouts."""
    scanner: str | None = None
    """Only results of this version of a scanner, such as `loops@v1`."""


class UnscannedQuery(Frozen):
    """POST /scans/unscanned."""

    name: str
    version: str
    limit: int = 1000
    after: str | None = None
    """The id of the last rollout of the page before."""
    retry_errors: bool = False
    """Whether attempts with an error are returned again."""
    changed_after: int | None = Field(default=None, ge=0, le=2**63 - 1)
    """Only rollouts with an event after this position of the log."""
