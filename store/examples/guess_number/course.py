"""What is trained, how long, and what counts as learned."""

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
    """What a step came to."""

    number: int
    """From 0."""
    found: float
    """In which part of its games the secret was found."""
    games: int
    failed: int
    """How many games came to no end."""
    calls: int
    """From how many calls it was learned."""
    entropy: float
    """Of the choice of a word, before the last pass over them, in nats."""
    shown: dict[int, list[str]]
    """What was said in the first game about each secret, hints included."""


@dataclass(frozen=True, slots=True)
class Course:
    """How long and how to train, and what is demanded of it."""

    game: Game = field(default_factory=Game)
    steps: int = 40
    samples: int = 8
    """Games about each secret in each step: a group."""
    learning: Learning = field(default_factory=Learning)
    seed: int = 0
    """Of the weights, and of every choice of a word."""
    least: float = 0.40
    """The last five steps must find more."""
    least_gain: float = 0.20
    """And so much more than the first three."""

    @property
    def tasks(self) -> list[dict[str, int]]:
        """One for each secret."""
        rules = {"numbers": self.game.numbers, "guesses": self.game.guesses}
        return [{"secret": secret, **rules} for secret in range(1, self.game.numbers + 1)]

    def is_learned(self, steps: Sequence[StepResult]) -> bool:
        """Say whether steps show what is demanded."""
        return at_last(steps) > self.least and at_last(steps) - at_first(steps) >= self.least_gain


def at_first(steps: Sequence[StepResult]) -> float:
    """Return what the first steps found, on average."""
    return statistics.fmean(step.found for step in steps[:_AT_FIRST])


def at_last(steps: Sequence[StepResult]) -> float:
    """Return what the last steps found, on average."""
    return statistics.fmean(step.found for step in steps[-_AT_LAST:])


WHOLE: Final = Course()
QUICK: Final = Course(game=SMALL, steps=20, learning=Learning(rate=0.03), least=SMALL.by_luck, least_gain=0.15)
"""A smaller game, which is learned in a quarter of the calls' time."""
