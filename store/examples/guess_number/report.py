"""Report of a training, in words and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from store.examples.guess_number.chart import draw
from store.examples.guess_number.course import Course, StepResult, at_first, at_last
from store.examples.guess_number.game import FOUND, Game
from store.examples.guess_number.policy import Policy

if TYPE_CHECKING:
    from store.examples.guess_number.grpo import Grpo
    from store.models import VerifyReport


def sentence(steps: Sequence[StepResult], course: Course) -> str:
    """Return a summary of the result, and the results of simple players."""
    game = course.game
    return (
        f"In {len(steps)} steps of {steps[0].games} games each, a policy of {Policy(len(game.words)).size:,} weights "
        f"learned from random weights to find a number from 1 to {game.numbers} in {game.guesses} guesses: in "
        f"{percent(at_first(steps))} of its games at the beginning, in {percent(at_last(steps))} at the end. "
        f"Ignoring the hints finds {percent(game.by_luck)}, halving the range {percent(game.by_halving)}."
    )


def chart(steps: Sequence[StepResult], course: Course) -> str:
    """Return the chart, as SVG."""
    marks = [("ignoring the hints", course.game.by_luck), ("halving the range", course.game.by_halving)]
    return draw([step.found for step in steps], marks, sentence(steps, course))


def progress(step: StepResult, steps: int, seconds: float) -> str:
    """Return a line about one step."""
    return (
        f"step {step.number + 1:{len(str(steps))}} of {steps}: found in {percent(step.found):>5} of {step.games} "
        f"games, learned from {step.calls} calls, entropy {step.entropy:.2f}, {seconds:.1f} s"
    )


def lines(algorithm: Grpo, verified: VerifyReport, seconds: float) -> Iterator[str]:
    """Yield the lines of the final report."""
    steps, course = algorithm.steps, algorithm.course
    yield sentence(steps, course)
    yield "It is small on purpose: it shows the way from a game to new weights, not what can be learned on it."
    for step in (steps[0], steps[-1]):
        yield ""
        yield f"From step {step.number + 1}:"
        yield from (f"  secret {secret:>2}: {_game(step.shown[secret], course.game, secret)}" for secret in _some(step))
    yield ""
    games, failed = sum(step.games for step in steps), sum(step.failed for step in steps)
    yield (
        f"{games:,} rollouts ({failed:,} failed), {algorithm.calls:,} calls of the policy in {algorithm.batches:,} "
        f"batches, {seconds:.0f} s"
    )
    yield f"weights: {algorithm.weights_id(0)} to {algorithm.weights_id(len(steps))}, in the store"
    found = "every row is the fold of its events" if verified.ok else f"{verified.difference_count:,} DIFFERENCES"
    yield f"verify: {verified.events:,} events in {verified.commits:,} commits: {found}"


def shortfall(steps: Sequence[StepResult], course: Course) -> str | None:
    """Return a description of the unmet requirements; None if the result meets all."""
    if course.is_learned(steps):
        return None
    return (
        f"not learned: found in {percent(at_last(steps))} of the last games after {percent(at_first(steps))} of the "
        f"first; the requirement is more than {percent(course.least)}, and {percent(course.least_gain)} more than in "
        "the first games"
    )


def percent(part: float) -> str:
    """Return a fraction in percent."""
    return f"{100 * part:.0f} %"


def _some(step: StepResult) -> list[int]:
    """Return three secrets of a step: the first, one in the middle, the last."""
    secrets = sorted(step.shown)
    return sorted({secrets[0], secrets[len(secrets) // 2], secrets[-1]})


def _game(spoken: Sequence[str], game: Game, secret: int) -> str:
    guesses = spoken[::2]
    verdicts = [game.judge(secret, guess) for guess in guesses]
    shown = ", ".join(f"{guess} {verdict or '(no number)'}" for guess, verdict in zip(guesses, verdicts, strict=True))
    return shown if verdicts and verdicts[-1] == FOUND else f"{shown}: lost"
