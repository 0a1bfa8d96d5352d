"""The whole example: training on a game of finding a number, report, chart, and verification of the store's log."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from store.errors import Invalid
from store.examples.guess_number import report
from store.examples.guess_number.agent import guesser
from store.examples.guess_number.course import Course, StepResult
from store.examples.guess_number.grpo import Grpo, NothingToLearnFrom
from store.examples.guess_number.inference import NotLoaded
from store.examples.guess_number.language_model import TransformersMissing
from store.examples.guess_number.policy import TorchMissing, torch
from store.runtime.ids import span_id
from store.training import AgentFails, LLMProxy, Runner, RunnersGone, TracerTraceToTriplet, Trainer

OK, FAILED, NOT_INTACT, INTERRUPTED = 0, 1, 3, 130

_GAMES_AT_ONCE: Final = 32


def run(
    db: str,
    course: Course,
    *,
    name: str | None = None,
    runners: int = 2,
    chart: Path | None = None,
    quiet: bool = False,
) -> int:
    """Train with a database as the store, and print the result.

    A run is one training. Finished games of an interrupted run stay in the database.

    Args:
        db: the URL of the database. A missing database is created. Earlier runs in the database are kept.
        course: the parameters of the training.
        name: the name of the run. If the database contains an interrupted run with this name, the run is continued; the
            course must then be the same. None for a new run.
        runners: the number of processes that play games. With 0, this process plays the games.
        chart: the file to which the chart is written. An existing file is overwritten. None for no chart.
        quiet: whether to print only the result and no progress.

    Returns:
        The exit code for a shell. 0: the result meets the requirements of the course, and the log was verified. 1: the
        training failed, or the result does not meet the requirements. 3: `verify` found a difference between the log
        and the tables. 130: the training was interrupted.

    Raises:
        StoreError: the database cannot be opened, or its connection was lost.
        OSError: the chart cannot be written.
    """
    began = time.perf_counter()
    name = name or f"guess-number-{span_id()[:6]}"
    try:
        torch()
        algorithm = Grpo(name, course, _silent if quiet else _progress_printer(course.steps))
    except (TorchMissing, TransformersMissing, Invalid) as error:
        _note(str(error))
        return FAILED
    if not quiet:
        _note(f"run {name}")
    with contextlib.closing(_trainer(db, algorithm, runners)) as trainer:
        try:
            trainer.fit(guesser, course.tasks, quiet=True)
        except KeyboardInterrupt:
            _note(f"interrupted: finished games are kept; the same command with --run {name} continues")
            return INTERRUPTED
        except (AgentFails, NotLoaded, NothingToLearnFrom, RunnersGone) as error:
            _note(str(error))
            return FAILED
        store = trainer.store
        verified = asyncio.run(store.log.verify())
    for line in report.lines(algorithm, verified, time.perf_counter() - began):
        sys.stdout.write(f"{line}\n")
    if chart is not None:
        chart.write_text(report.chart(algorithm), encoding="utf-8")
        sys.stdout.write(f"chart: {chart}\n")
    if not verified.ok:
        return NOT_INTACT
    if lacking := report.shortfall(algorithm.steps, course):
        _note(lacking)
        return FAILED
    return OK


def _trainer(db: str, algorithm: Grpo, runners: int) -> Trainer:
    strategy: dict[str, Any] = {"type": "cs", "n_runners": runners, "server_port": 0} if runners else {"type": "shm"}
    return Trainer(
        algorithm=algorithm,
        store=db,
        runner={"type": Runner, "concurrency": -(-_GAMES_AT_ONCE // max(runners, 1))},
        # A game is won or lost as a whole, so each call of the game gets the reward of the game.
        adapter=TracerTraceToTriplet(reward_match="broadcast"),
        strategy=strategy,
        llm_proxy=LLMProxy(),
    )


def _progress_printer(steps: int) -> Callable[[StepResult], None]:
    """Return a function that prints the result of each step, with its duration in seconds."""
    times = [time.perf_counter()]

    def print_step(step: StepResult) -> None:
        times.append(time.perf_counter())
        _note(report.progress(step, steps, times[-1] - times[-2]))

    return print_step


def _silent(_: StepResult) -> None:
    pass


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
