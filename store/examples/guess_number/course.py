"""Configuration of a training, the results of its steps, and the criterion of success.

In a training, a model, the policy, learns a game of finding a secret number. In each step, one version of the policy
plays games, and the algorithm makes the next version from these games.
"""

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
    """The result of one step."""

    number: int
    """The number of the step, from 0."""
    success_rate: float
    """The fraction of the finished games in which the secret was found."""
    games: int
    """The number of games, including failed games."""
    failed: int
    """The number of games that did not finish."""
    calls: int
    """The number of calls that the policy learned from."""
    entropy: float
    """The mean entropy of the policy's choices of a token in the last pass over the calls, in nats."""
    first_games: dict[int, list[str]]
    """The guesses and hints of the first game with each secret. The keys are the secrets."""


@dataclass(frozen=True, slots=True)
class Exam:
    """The result of an exam: games that one version of the policy plays, but from which the policy does not learn."""

    version: int
    games: int
    success_rate: float
    """The fraction of the games in which the secret was found."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the fraction, by Wilson's method."""
        square = _NORMAL**2 / self.games
        middle = (self.success_rate + square / 2) / (1 + square)
        half = (
            _NORMAL
            * math.sqrt(self.success_rate * (1 - self.success_rate) / self.games + square / self.games / 4)
            / (1 + square)
        )
        return middle - half, middle + half


def gain(before: Exam, after: Exam) -> tuple[float, float, float]:
    """Return the difference between two exams, and the ends of its 95 % confidence interval by Newcombe's method."""
    (low, high), (later_low, later_high) = before.interval, after.interval
    gained = after.success_rate - before.success_rate
    return (
        gained,
        gained - math.hypot(after.success_rate - later_low, high - before.success_rate),
        gained + math.hypot(later_high - after.success_rate, before.success_rate - low),
    )


@dataclass(frozen=True, slots=True)
class Course:
    """The parameters of a training, and the required result."""

    game: Game = field(default_factory=Game)
    steps: int = 40
    samples: int = 8
    """The number of games with the same secret in each step. These games form a group and are compared."""
    learning: Learning = field(default_factory=Learning)
    transformer: Transformer | None = None
    """The configuration of a new language model that learns. None for the GRU, unless `pretrained` is given."""
    pretrained: Pretrained | None = None
    """The pretrained language model that learns. None for a new model."""
    examined: int = 0
    """The number of additional games with each secret in the exams of the first and of the last version; 0 for no
    exams."""
    seed: int = 0
    """The seed of the first weights, and of every choice of a token."""
    least: float = 0.40
    """The fraction of found secrets that the mean of the last five steps must exceed."""
    least_gain: float = 0.20
    """The minimum difference between the mean of the last five steps and the mean of the first three steps."""

    @property
    def tasks(self) -> list[dict[str, int]]:
        """One task for each secret."""
        rules = {"numbers": self.game.numbers, "guesses": self.game.guesses}
        return [{"secret": secret, **rules} for secret in range(1, self.game.numbers + 1)]

    def models(self) -> Models:
        """Return the kind of model that learns.

        Raises:
            TorchMissing: the course has a language model, and PyTorch is not installed.
            TransformersMissing: the course has a language model, and transformers is not installed.
            Invalid: the pretrained model cannot be loaded, or vLLM cannot serve it.
        """
        if self.pretrained is not None:
            return PretrainedModels(self.game, self.pretrained)
        return GruModels(self.game) if self.transformer is None else TransformerModels(self.game, self.transformer)

    def is_learned(self, steps: Sequence[StepResult]) -> bool:
        """Return whether the results of the steps meet the requirements `least` and `least_gain`."""
        return at_last(steps) > self.least and at_last(steps) - at_first(steps) >= self.least_gain


def at_first(steps: Sequence[StepResult]) -> float:
    """Return the mean of the fractions of found secrets in the first three steps."""
    return statistics.fmean(step.success_rate for step in steps[:_AT_FIRST])


def at_last(steps: Sequence[StepResult]) -> float:
    """Return the mean of the fractions of found secrets in the last five steps."""
    return statistics.fmean(step.success_rate for step in steps[-_AT_LAST:])


WHOLE: Final = Course()
QUICK: Final = Course(game=SMALL, steps=20, learning=Learning(rate=0.03), least=SMALL.by_luck, least_gain=0.15)
"""The parameters of a training on a smaller game, which takes a quarter of the time."""
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
"""The parameters of a training on the smaller game, in which a language model of Hugging Face learns."""


def pretrained(model: str, checkpoints: Path, vllm: str | None = None) -> Course:
    """Return the parameters of a training in which a pretrained model of Hugging Face learns the whole game.

    Args:
        model: the directory of the model, or the model's name on the Hugging Face Hub.
        checkpoints: the directory in which each version of the model is stored.
        vllm: the address of the vLLM server that serves the versions; None to serve the versions in this process.
    """
    return Course(
        learning=Learning(rate=1e-6, passes=1, entropy=0.0, rows=4),
        pretrained=Pretrained(model, checkpoints, vllm),
        examined=30,
    )
