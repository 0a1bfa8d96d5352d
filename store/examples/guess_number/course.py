"""Configuration of a training, the results of its steps, and the criterion of success."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from store.examples.guess_number.game import SMALL, Game
from store.examples.guess_number.language_model import Pretrained, PretrainedModels, Transformer, TransformerModels
from store.examples.guess_number.models import GruModels, Models
from store.examples.guess_number.policy import Learning

_AT_FIRST: Final = 3
_AT_LAST: Final = 5
_NORMAL: Final = statistics.NormalDist().inv_cdf(0.975)


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
class Exam:
    """The games of one version that are only played, not learned from."""

    version: int
    games: int
    found: float
    """The fraction of the games that found the secret."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the fraction, by Wilson's method."""
        square = _NORMAL**2 / self.games
        middle = (self.found + square / 2) / (1 + square)
        half = _NORMAL * math.sqrt(self.found * (1 - self.found) / self.games + square / self.games / 4) / (1 + square)
        return middle - half, middle + half


def gain(before: Exam, after: Exam) -> tuple[float, float, float]:
    """Return the gain between two exams, and its 95 % confidence interval by Newcombe's method."""
    (low, high), (later_low, later_high) = before.interval, after.interval
    gained = after.found - before.found
    return (
        gained,
        gained - math.hypot(after.found - later_low, high - before.found),
        gained + math.hypot(later_high - after.found, before.found - low),
    )


@dataclass(frozen=True, slots=True)
class Course:
    """The parameters of a training, and the required result."""

    game: Game = field(default_factory=Game)
    steps: int = 40
    samples: int = 8
    """The number of games about each secret in each step, which form a group."""
    learning: Learning = field(default_factory=Learning)
    transformer: Transformer | None = None
    """The language model that learns, built from a config; None for the GRU."""
    pretrained: Pretrained | None = None
    """The language model of a directory that learns instead."""
    examined: int = 0
    """The number of games about each secret that the first and the last version play, in addition, to be compared."""
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

    def models(self) -> Models:
        """Return the kind of model that learns.

        Raises:
            TorchMissing: PyTorch is not installed.
            TransformersMissing: transformers is needed, and not installed.
            Invalid: the directory contains no model.
        """
        if self.pretrained is not None:
            return PretrainedModels(self.game, self.pretrained)
        return GruModels(self.game) if self.transformer is None else TransformerModels(self.game, self.transformer)

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
TRANSFORMER: Final = Course(
    game=SMALL,
    steps=40,
    samples=24,
    learning=Learning(rate=0.006, passes=3, entropy=0.005),
    transformer=Transformer(),
    examined=60,
    least=SMALL.by_luck,
    least_gain=0.15,
)
"""The smaller game, learned by a language model of Hugging Face."""


def pretrained(model: str, checkpoints: Path, vllm: str | None = None) -> Course:
    """Return the parameters of a training of a model of Hugging Face on the whole game.

    Args:
        model: the directory of the model, or its name at the hub.
        checkpoints: the directory for the versions of the model.
        vllm: the address of the vLLM that serves the versions; None to serve them in this process.
    """
    return Course(
        learning=Learning(rate=1e-6, passes=1, entropy=0.0, rows=4),
        pretrained=Pretrained(model, checkpoints, vllm),
        examined=30,
    )
