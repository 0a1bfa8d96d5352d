"""Metrics of trainers: numbers of training steps, such as the loss. Decision 116."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from store.models.enums import Frozen
from store.models.queries import PastQuery, Whole

NotFinite = Literal["NaN", "Infinity", "-Infinity"]


class Metric(Frozen):
    """The last logged number of a name and a step."""

    name: str
    step: int
    value: float | None
    """The number; None if it is not finite."""
    mark: NotFinite | None = None
    """The kind of a number that is not finite; otherwise None."""
    position: int
    """The position of its event in the log."""


class MetricsQuery(PastQuery):
    """A read of the metrics of trainers."""

    names: list[str] | None = None
    """Only these names; None for all."""
    first_step: Whole | None = None
    last_step: Whole | None = None
    """The last step, included."""
    limit: int = Field(default=10_000, ge=1, le=100_000)
    """The maximum number of values. If there are more, those of the latest steps are returned."""
