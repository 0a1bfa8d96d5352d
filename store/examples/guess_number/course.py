"""Configuration of a training, the results of its steps, and the criterion of success."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from store.examples.guess_number.game import SMALL, Game
from store.examples.guess_number.policy import Learning

_AT_FIRST: Final = 3
_AT_LAST: Final = 5


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step."""

    number: int
    """The number of the step, from 0."""
    found: float
    """The fraction of its games that found the secret."""
    games: int
    failed: int
    """The number of games that did not finish."""
    calls: int
    """The number of calls that the policy learned from."""
    entropy: float
    """The entropy, in nats, of the policy's choice of a word before the last pass over the calls."""
    shown: dict[int, list[str]]
    """The words of the first game about each secret, hints included."""


@dataclass(frozen=True, slots=True)
class Course:
    """The parameters of a training, and the required result."""

    game: Game = field(default_factory=Game)
    steps: int = 40
    samples: int = 8
    """The number of games about each secret in each step, which form a group."""
    learning: Learning = field(default_factory=Learning)
    seed: int = 0
    """The seed of the weights, and of every choice of a word."""
    least: float = 0.40
    """The fraction of found secrets that the last five steps must exceed."""
    least_gain: float = 0.20
    """The required difference between the last five and the first three steps."""

    @property
    def tasks(self) -> list[dict[str, int]]:
        """One task for each secret."""
        rules = {"numbers": self.game.numbers, "guesses": self.game.guesses}
        return [{"secret": secret, **rules} for secret in range(1, self.game.numbers + 1)]

    def is_learned(self, steps: Sequence[StepResult]) -> bool:
        """Return whether steps meet the requirements."""
        return at_last(steps) > self.least and at_last(steps) - at_first(steps) >= self.least_gain


def at_first(steps: Sequence[StepResult]) -> float:
    """Return the mean fraction of the first steps."""
    return statistics.fmean(step.found for step in steps[:_AT_FIRST])


def at_last(steps: Sequence[StepResult]) -> float:
    """Return the mean fraction of the last steps."""
    return statistics.fmean(step.found for step in steps[-_AT_LAST:])


WHOLE: Final = Course()
QUICK: Final = Course(game=SMALL, steps=20, learning=Learning(rate=0.03), least=SMALL.by_luck, least_gain=0.15)
"""A smaller game, which is learned in a quarter of the time."""
