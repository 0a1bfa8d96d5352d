"""The job as a whole: library, store, runners, algorithm, and the report at the end."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import tempfile
import time
from pathlib import Path

from rich.console import Console

from store import open_store
from store.errors import StoreError
from store.examples.doc_search.algorithm import JobFailed, Plan, Tuning
from store.examples.doc_search.console import Paper, ShownProgress
from store.examples.doc_search.fleet import Fleet, RunnersKeepDying
from store.examples.doc_search.library import Library, cache_directory, open_library
from store.examples.doc_search.report import print_next_steps, print_proof, print_result, print_size, print_survival
from store.ids import span_id

OK, FAILED, USAGE, NOT_INTACT, INTERRUPTED = 0, 1, 2, 3, 130

_SECONDS_TO_TIDY_UP = 5.0


def run(db_url: str, plan: Plan, *, quiet: bool = False) -> int:
    """Run the job and return the exit code, as `doc_search.main` says."""
    errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if db_url.startswith("memory:"):
        errors.print("the runners are processes of their own: give a database they can share, such as sqlite:///FILE")
        return USAGE
    progress = ShownProgress(errors, quiet=quiet)
    started = time.perf_counter()
    try:
        with contextlib.ExitStack() as until_the_end:
            until_the_end.callback(progress.close)
            library, path = _library(until_the_end, progress, plan)
            return asyncio.run(_run(db_url, library, path, plan, progress, started))
    except (JobFailed, RunnersKeepDying) as error:
        errors.print(str(error))
        return FAILED
    except KeyboardInterrupt:
        errors.print("interrupted: what was still waiting is cancelled, what was done is kept")
        return INTERRUPTED


def _library(until_the_end: contextlib.ExitStack, progress: ShownProgress, plan: Plan) -> tuple[Library, Path]:
    def say() -> None:
        progress.say(f"reading the standard library of Python {platform.python_version()} (kept for the next time)")

    try:
        library, path = open_library(cache_directory(), on_reading=say)
    except OSError:
        directory = until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-"))
        library, path = open_library(Path(directory))
    if len(library.queries) < plan.queries_needed:
        raise JobFailed(f"the sources of this Python's standard library give {len(library.queries)} queries, too few")
    return library, path


async def _run(db_url: str, library: Library, path: Path, plan: Plan, progress: ShownProgress, started: float) -> int:
    name = f"doc-search-{span_id()[:6]}"
    async with await open_store(db_url) as store:
        with Fleet(db_url, path, name) as fleet:
            tuning = Tuning(store, fleet, library, plan, name, progress)
            try:
                await tuning.run()
            except (asyncio.CancelledError, JobFailed, RunnersKeepDying):
                fleet.stop()
                # What went wrong matters more than what cannot be tidied up after it.
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(_SECONDS_TO_TIDY_UP):
                        await tuning.cancel_what_is_open()
                raise
        progress.close()
        paper = Paper(Console(highlight=False, markup=False, emoji=False))
        print_result(paper, library, tuning.outcome, plan)
        survived = await print_survival(paper, store, tuning.outcome, plan)
        intact = await print_proof(paper, store)
        await print_size(paper, store, db_url, name)
        print_next_steps(paper, db_url, tuning.outcome)
        paper.heading(f"Took {time.perf_counter() - started:.1f} s.")
    if not intact:
        return NOT_INTACT
    return OK if survived else FAILED
