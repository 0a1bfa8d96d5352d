"""Result of the call that ends an attempt and claims the next rollout."""

from __future__ import annotations

from dataclasses import dataclass

from store.errors import StoreError
from store.models.rollouts import Attempt, AttemptedRollout
from store.models.spans import Span


@dataclass(frozen=True, slots=True)
class FinishedAttempt:
    """Results of the parts of `finish_attempt`. The result of a refused part is its error."""

    spans: list[Span | StoreError | None]
    """For each span of the call: its stored form, None if it was stored already, or the error of a refused span."""
    attempt: Attempt | StoreError
    """The attempt after its end."""
    claimed: AttemptedRollout | StoreError | None
    """The claimed rollout; None if the queue is empty, or if the call claims none."""
