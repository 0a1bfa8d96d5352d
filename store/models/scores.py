"""Scores: values of versioned rewards, which reward functions give to attempts after their end. Decision 94."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from store.models.enums import Frozen
from store.semconv import PRIMARY

Number = Annotated[float, Field(allow_inf_nan=False)]


class ScoreError(Frozen):
    """The reason why a reward function gave no value."""

    type: str
    """The class of the error, such as `ValueError`."""
    message: str


class NewScore(Frozen):
    """A score to record: a value, or an error."""

    rollout_id: str
    attempt_id: str
    name: str
    """The name of the reward: one line of 1 to 64 bytes, without @."""
    version: str
    """The version of the reward: one line of 1 to 64 bytes, without @."""
    value: Number | None = None
    dimensions: dict[str, Number] = Field(default_factory=dict[str, Number])
    """Further numbers of the reward by name, at most 64."""
    error: ScoreError | None = None
    """The error if there is no value."""
    code_sha256: str | None = None
    """The hash of the source of the function, in hex."""
    explanation: str | None = None
    """A text about the value, up to 64 KiB. It is payload, so it can be removed later."""

    @property
    def rewards(self) -> dict[str, float]:
        """The value as `primary` and the dimensions by name; empty without a value."""
        return {} if self.value is None else {PRIMARY: self.value} | self.dimensions | {PRIMARY: self.value}


class Score(NewScore):
    """A recorded score."""

    number: int
    """The number of the score's event in the rollout's history."""
    at: float
    """When the store recorded the score, in seconds since the epoch."""


class RewardVersion(Frozen):
    """A version of a reward, and its scores in the store."""

    name: str
    version: str
    code_sha256: list[str]
    """The hashes of the code that computed the scores, sorted."""
    scores: int
    """The number of attempts with a value."""
    failures: int
    """The number of attempts with an error instead of a value."""
