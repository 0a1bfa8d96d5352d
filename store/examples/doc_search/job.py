"""The whole job: it opens the library of documents and queries, runs the trainer, and prints the final report."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from store.examples.doc_search.agent import SearchAgent
from store.examples.doc_search.algorithm import AT_ONCE, Job, JobFailed, Tuning
from store.examples.doc_search.console import Paper, ShownProgress
from store.examples.doc_search.library import Library, cache_directory, open_library
from store.examples.doc_search.live import Asking, RankingLearner, ask_and_learn
from store.examples.doc_search.report import (
    db_option,
    print_next_steps,
    print_proof,
    print_result,
    print_size,
    print_survival,
)
from store.examples.doc_search.runs import end
from store.opening import open_store
from store.training.execution import ClientServerExecutionStrategy, RunnersGone
from store.training.execution.blocking import run_blocking
from store.training.running.early_failure import AgentFails
from store.training.running.runner import Runner
from store.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from store.interface.store import Store
    from store.models import HistoryEvent

OK, FAILED, NOT_INTACT, INTERRUPTED = 0, 1, 3, 130


@dataclass(frozen=True, slots=True)
class _Report:
    """The values that the report needs besides the store and the results."""

    db_url: str
    library: Library
    job: Job
    started: float
    describe: Callable[[HistoryEvent], str] | None


def run(
    db_url: str,
    job: Job,
    *,
    runners: int = 4,
    new: bool = False,
    quiet: bool = False,
    describe: Callable[[HistoryEvent], str] | None = None,
) -> int:
    """Run the job, and return the exit code that the docstring of `doc_search.main` describes."""
    errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    progress = ShownProgress(errors, quiet=quiet)
    started = time.perf_counter()
    try:
        with contextlib.closing(progress), _library(progress) as (library, path), _trainer_log(quiet=quiet):
            rng = random.Random(job.seed)
            tasks = job.tasks(library, rng)
            tuning = Tuning(job, rng, path.stem, progress)
            report = _Report(db_url, library, job, started, describe)
            if not new and (code := asyncio.run(_report_again(report, tuning, tasks))) is not None:
                return code
            with contextlib.closing(_trainer(db_url, tuning, runners)) as trainer:
                trainer.fit(SearchAgent(path), *tasks, quiet=True)
                progress.close()
                return asyncio.run(_print_report(report, trainer.store, tuning))
    except (JobFailed, RunnersGone, AgentFails) as error:
        errors.print(str(error))
        return FAILED
    except KeyboardInterrupt:
        errors.print("interrupted: finished rollouts are kept; the same command continues the run")
        return INTERRUPTED


def run_live(db_url: str, *, seed: int = 0, quiet: bool = False) -> int:
    """Run queries and learn from the results until Ctrl+C.

    Return the exit code for a shell: 130 after Ctrl+C, or 1 if a query failed.
    """
    errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    progress = ShownProgress(errors, quiet=quiet)
    try:
        with contextlib.closing(progress), _library(progress) as (library, path):
            tasks, _ = Job(seed=seed).tasks(library, random.Random(seed))
            run_blocking(lambda: _live(db_url, path, tasks, seed, progress))
    except ExceptionGroup as failed:
        errors.print(f"a query failed: {failed.exceptions[0]!r}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


async def _live(db_url: str, path: Path, tasks: list[Any], seed: int, progress: ShownProgress) -> None:
    runner: Runner[Any] = Runner()
    async with open_store(db_url) as store:
        learner = RankingLearner(store, seed, progress.say)
        with runner.run_context(agent=SearchAgent(path), store=store, worker_id=0):
            asking = Asking(runner, tasks, random.Random())
            try:
                await ask_and_learn(asking, learner)
            finally:
                learned = learner.learned
                Paper(Console(highlight=False, markup=False, emoji=False)).line(
                    f"sent {asking.sent:,} queries; version {learned.version} is published and was learned from "
                    f"{learned.total:,} rollouts; the same command continues from there"
                )


def _trainer(db_url: str, tuning: Tuning, runners: int) -> Trainer:
    strategy = ClientServerExecutionStrategy("both", "localhost", 0, managed_store=True, n_runners=runners)
    return Trainer(algorithm=tuning, store=db_url, runner={"type": Runner, "concurrency": AT_ONCE}, strategy=strategy)


@contextlib.contextmanager
def _trainer_log(*, quiet: bool) -> Generator[None]:
    """Within the `with` statement, show the trainer's warnings, such as for a killed runner. `quiet` hides them."""
    logger = logging.getLogger("store.training")
    before = logger.level
    logger.setLevel(logging.CRITICAL if quiet else logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _library(progress: ShownProgress) -> Generator[tuple[Library, Path]]:
    """Yield the library and the path of its file.

    The file is in the user's cache directory, or in a temporary directory if the cache directory cannot be written.
    """

    def say() -> None:
        progress.say(f"reading the standard library of Python {platform.python_version()} (kept for the next time)")

    try:
        opened = open_library(cache_directory(), on_reading=say)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="rollbook-") as directory:
            yield open_library(Path(directory), on_reading=say)
    else:
        yield opened


async def _report_again(report: _Report, tuning: Tuning, tasks: tuple[list[Any], list[Any]]) -> int | None:
    """Print the report of a finished run, and return the exit code; return None if the job must be run."""
    async with open_store(report.db_url) as store:
        if not await tuning.find_finished(store):
            return None
        tuning.set_store(store)
        await tuning.run(*tasks)
        return await _print_report(report, store, tuning)


async def _print_report(report: _Report, store: Store, tuning: Tuning) -> int:
    outcome, job, db_url = tuning.outcome, report.job, report.db_url
    paper = Paper(Console(highlight=False, markup=False, emoji=False))
    print_result(paper, report.library, outcome, job)
    survived = await print_survival(paper, store, outcome, job, report.describe)
    # The run is marked as ended only here. So if the job is killed before this line and started again, the run is
    # continued and the report is printed again.
    if not outcome.is_repeated:
        await end(store, outcome.run, outcome.summary())
    # A repeated report is printed at once. The proof was printed when the run finished.
    intact = outcome.is_repeated or await print_proof(paper, store)
    await print_size(paper, store, db_url, outcome.run)
    print_next_steps(paper, db_url, outcome)
    if outcome.is_repeated:
        paper.heading(f"{outcome.run} finished earlier. Its report was printed again; no rollout was executed.")
        seed = f" --seed {job.seed}" if job.seed else ""
        paper.line(f"Start a new run: rollbook demo --new{seed}{db_option(db_url)}")
    else:
        paper.heading(f"Took {time.perf_counter() - report.started:.1f} s.")
    if not intact:
        return NOT_INTACT
    return OK if survived else FAILED
