"""Report of a training on a game of finding a number, in words and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from store.examples.guess_number.chart import draw
from store.examples.guess_number.course import Course, Exam, StepResult, at_first, at_last, gain
from store.examples.guess_number.game import FOUND, Game

if TYPE_CHECKING:
    from store.examples.guess_number.grpo import Grpo
    from store.models import VerifyReport


def sentence(algorithm: Grpo) -> str:
    """Return a summary of the result, with the success of two simple strategies for comparison."""
    steps, game = algorithm.steps, algorithm.course.game
    return (
        f"A policy of {algorithm.size:,} weights, starting from {algorithm.models.first_weights}, was trained in "
        f"{len(steps)} steps of {steps[0].games} games to find a number from 1 to {game.numbers} in {game.guesses} "
        f"guesses. It found {percent(at_first(steps))} of the numbers at the beginning, and {percent(at_last(steps))} "
        f"at the end. Ignoring the hints would find {percent(game.by_luck)}, and halving the range "
        f"{percent(game.by_halving)}."
    )


def chart(algorithm: Grpo) -> str:
    """Return the chart of the training as SVG."""
    steps, course = algorithm.steps, algorithm.course
    marks = [("ignoring the hints", course.game.by_luck), ("halving the range", course.game.by_halving)]
    return draw([step.success_rate for step in steps], marks, sentence(algorithm))


def progress(step: StepResult, steps: int, seconds: float) -> str:
    """Return a line about one step. `steps` is the number of all steps, and `seconds` is the duration of this step."""
    return (
        f"step {step.number + 1:{len(str(steps))}} of {steps}: found in {percent(step.success_rate):>5} of"
        f" {step.games} games, learned from {step.calls} calls, entropy {step.entropy:.2f}, {seconds:.1f} s"
    )


def lines(algorithm: Grpo, verified: VerifyReport, seconds: float) -> Iterator[str]:
    """Yield the lines of the final report. `seconds` is the duration of the whole training."""
    steps, course = algorithm.steps, algorithm.course
    yield sentence(algorithm)
    yield from _exams(algorithm.exams)
    yield "This example is small on purpose: it shows how games become new weights, not how well a policy can play."
    for step in (steps[0], steps[-1]):
        yield ""
        yield f"From step {step.number + 1}:"
        yield from (
            f"  secret {secret:>2}: {_game(step.first_games[secret], course.game, secret)}"
            for secret in _sample_secrets(step)
        )
    yield ""
    games, failed = sum(step.games for step in steps), sum(step.failed for step in steps)
    yield (
        f"{games:,} rollouts ({failed:,} failed), {algorithm.calls:,} calls of the policy in {algorithm.batches:,} "
        f"batches, {seconds:.0f} s"
    )
    yield f"weights: {algorithm.weights_id(0)} to {algorithm.weights_id(len(steps))}, in the store"
    result = "every row is the fold of its events" if verified.ok else f"{verified.difference_count:,} DIFFERENCES"
    yield f"verify: {verified.events:,} events in {verified.commits:,} commits: {result}"


def _exams(exams: Sequence[Exam]) -> Iterator[str]:
    for exam in exams:
        low, high = exam.interval
        yield (
            f"policy@{exam.version} in {exam.games} games that it did not learn from: reward {exam.success_rate:.3f}, "
            f"95 % interval {low:.3f} to {high:.3f}"
        )
    if len(exams) > 1:
        gained, low, high = gain(exams[0], exams[-1])
        yield f"gain: {gained:.3f}, 95 % interval {low:.3f} to {high:.3f}"


def shortfall(steps: Sequence[StepResult], course: Course) -> str | None:
    """Return a description of the requirements and the result, or None if the result meets the requirements."""
    if course.is_learned(steps):
        return None
    return (
        f"not learned: the number was found in {percent(at_first(steps))} of the first games and in "
        f"{percent(at_last(steps))} of the last games. Required in the last games: more than {percent(course.least)}, "
        f"and at least {100 * course.least_gain:.0f} percentage points more than in the first games"
    )


def percent(part: float) -> str:
    """Return a fraction as text in percent."""
    return f"{100 * part:.0f} %"


def _sample_secrets(step: StepResult) -> list[int]:
    """Return at most three secrets of a step: the smallest, one in the middle, and the greatest."""
    secrets = sorted(step.first_games)
    return sorted({secrets[0], secrets[len(secrets) // 2], secrets[-1]})


def _game(words: Sequence[str], game: Game, secret: int) -> str:
    guesses = words[::2]
    verdicts = [game.judge(secret, guess) for guess in guesses]
    text = ", ".join(f"{guess} {verdict or '(no number)'}" for guess, verdict in zip(guesses, verdicts, strict=True))
    return text if verdicts and verdicts[-1] == FOUND else f"{text}: lost"
