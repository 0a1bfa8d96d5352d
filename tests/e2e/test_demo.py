"""The demo as a user runs it: processes on a real database, some of which are killed."""

from __future__ import annotations

import asyncio
import io
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from store import open_store
from store.examples.doc_search.agent import RESULTS, SearchAgent, as_resource
from store.examples.doc_search.algorithm import Job, SearchOutcome, Tuning
from store.examples.doc_search.bm25f import Ranking, Searcher
from store.examples.doc_search.console import Paper
from store.examples.doc_search.corpus import FIELDS, split_words
from store.examples.doc_search.job import run as run_job
from store.examples.doc_search.library import Library, open_library
from store.examples.doc_search.report import print_next_steps
from store.interface.store import Store
from store.models import AttemptedRollout, EnqueueRolloutRequest
from store.training import Runner, Trainer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("doc-search")]

SMALL = Job(rounds=2, training_queries=100, queries_per_round=8, held_out_queries=15)
SMALL_JOB = f"""
import sys
from store.examples.doc_search.job import run
from store.examples.doc_search.algorithm import Job
if __name__ == "__main__":
    sys.exit(run(sys.argv[1], {SMALL!r}, runners=2, quiet=True))
"""
JOB = """
import sys
from store.examples.doc_search import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
"""

Start = Callable[[str, str], subprocess.Popen[str]]


@pytest.fixture
def cache(request: pytest.FixtureRequest) -> Path:
    """Where the parsed library is kept from one test run to the next."""
    pytest_cache: pytest.Cache = request.config.cache  # pyright: ignore[reportAssignmentType]  None only without plugin
    return pytest_cache.mkdir("doc-search")


@pytest.fixture
def start(cache: Path, tmp_path: Path) -> Start:
    """A function that starts a job on a database, as a process group of its own."""

    def start(job: str, db_url: str) -> subprocess.Popen[str]:
        program = tmp_path / "job.py"
        program.write_text(job)
        return subprocess.Popen(
            [sys.executable, str(program), db_url],
            env=os.environ | {"XDG_CACHE_HOME": str(cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


@pytest.fixture
def library(cache: Path) -> tuple[Library, Path]:
    return open_library(cache / "rollbook")


async def run(start: Start, job: str, db_url: str) -> tuple[int, str, str]:
    """Run a job to its end; return its exit code and what it said."""
    process = start(job, db_url)
    said, complaints = await asyncio.to_thread(process.communicate, timeout=250)
    return process.returncode, said, complaints


async def test_a_killed_job_continues_loses_a_runner_and_proves_its_log(
    start: Start, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'demo.db'}"
    async with await open_store(url) as store:
        job = start(SMALL_JOB, url)
        await _until(job, lambda: _ended(store, 5))
        await _stop(job, signal.SIGKILL)
        assert (await store.query_rollouts(status_in=["succeeded"], limit=0)).total < SMALL.rollouts
        code, report, progress = await run(start, SMALL_JOB.replace("quiet=True", "quiet=False"), url)
        assert code == 0, progress + report
        assert "This run was started before" in report
        await _check_survival(store, SMALL, report, progress)
        await _check(store, 1)
        events = (await store.log.verify()).events
        # The same command again executes nothing.
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        capsys.readouterr()
        assert await asyncio.to_thread(run_job, url, SMALL, quiet=True) == 0
        again = capsys.readouterr().out
        assert "Start a new run: rollbook demo --new" in again
        assert _results(again) == _results(report)
        assert (await store.log.verify()).events == events


@pytest.mark.torture_only
async def test_the_whole_job_survives_the_loss_of_a_runner_and_proves_its_log(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'demo.db'}"
    code, report, progress = await run(start, JOB, url)
    assert code == 0, progress + report
    async with await open_store(url) as store:
        await _check_survival(store, Job(), report, progress)


async def _check_survival(store: Store, size: Job, report: str, progress: str) -> None:
    """Check the report of a job that lost a runner, and the rollouts in the store."""
    assert f"{size.rollouts:,} of {size.rollouts:,} rollouts succeeded" in report
    assert "every row is the fold of its events" in report
    assert " 0 rows changed, state hash as before" in report
    assert "Known-item search" in report
    assert f"killed {socket.gethostname()}-" in progress
    assert "is lost and replaced" in progress
    rollouts = await store.query_rollouts()
    assert len(rollouts) == size.rollouts
    assert {rollout.status for rollout in rollouts} == {"succeeded"}
    retried = [one for one in rollouts if isinstance(one, AttemptedRollout) and one.attempt.sequence_id > 1]
    assert retried
    assert any(one.rollout_id in report for one in retried)
    spans = [span.name for span in await store.query_spans(retried[0].rollout_id, "latest")]
    assert spans[:4] == ["index", "retrieve", "rank", "agentlightning.message"]
    assert spans[-2:] == ["agentlightning.annotation", "agentlightning.attempt"]
    assert len({(rollout.metadata or {})["rollbook.key"] for rollout in rollouts}) == size.rollouts


@pytest.mark.timeout(600)
@pytest.mark.torture_only
async def test_a_job_that_was_stopped_or_killed_goes_on_where_it_was_and_the_next_one_is_added(
    start: Start, durable_url: str
) -> None:
    async with await open_store(durable_url) as store:
        for part, signal_ in ((0.25, signal.SIGINT), (0.5, signal.SIGKILL)):
            job = start(SMALL_JOB, durable_url)
            await _until(job, lambda part=part: _ended(store, round(part * SMALL.rollouts)))
            await _stop(job, signal_)
        assert (await store.query_rollouts(status_in=["succeeded"], limit=0)).total < SMALL.rollouts
        code, report, errors = await run(start, SMALL_JOB, durable_url)
        assert (code, errors) == (0, "")
        assert f"{SMALL.rollouts} of {SMALL.rollouts} rollouts succeeded" in report
        assert "This run was started before" in report
        await _check(store, 1)
        events = (await store.log.verify()).events
        code, again, errors = await run(start, SMALL_JOB, durable_url)
        assert (code, errors) == (0, "")
        assert "Start a new run: rollbook demo --new" in again
        assert _results(again) == _results(report)
        assert (await store.log.verify()).events == events
        code, report, errors = await run(start, SMALL_JOB.replace("quiet", "new=True, quiet"), durable_url)
        assert (code, errors) == (0, "")
        assert "This run was started before" not in report
        await _check(store, 2)


async def _stop(job: subprocess.Popen[str], signal_: signal.Signals) -> None:
    """Send a signal to a job and its runners, and check how they end."""
    processes = psutil.Process(job.pid).children(recursive=True)
    os.killpg(job.pid, signal_)
    _, errors = await asyncio.to_thread(job.communicate, timeout=250)
    expected = (130, "interrupted:") if signal_ == signal.SIGINT else (-signal.SIGKILL, "")
    assert (job.returncode, errors[:12]) == expected
    assert psutil.wait_procs(processes, timeout=250)[1] == []


def _results(report: str) -> str:
    """Return a report up to and including the table of the rounds, which contains durations."""
    return report[: report.index("The runner that was killed")]


async def _check(store: Store, jobs: int) -> None:
    """Every rollout of the plans is there, and has succeeded, once."""
    count = jobs * SMALL.rollouts
    rollouts = await store.query_rollouts()
    assert len(rollouts) == len({(one.metadata or {})["rollbook.key"] for one in rollouts}) == count
    assert Counter(one.status for one in rollouts) == {"succeeded": count}
    ends = [
        event async for event in store.log.tail(types=["attempt.status_changed"]) if event.data["to"] == "succeeded"
    ]
    assert len(ends) == count
    assert (await store.log.verify()).ok


@pytest.mark.torture_only
async def test_a_job_runs_in_memory(start: Start) -> None:
    code, report, errors = await run(start, SMALL_JOB, "memory://")
    assert (code, errors) == (0, "")
    assert "Try next" not in report


def test_the_report_of_a_job_in_memory_names_no_next_steps() -> None:
    outcome = SearchOutcome(Ranking.plain(len(FIELDS)))
    for url, has_steps in (("memory://", False), ("sqlite:///demo.db", True)):
        printed = io.StringIO()
        print_next_steps(Paper(Console(file=printed)), url, outcome)
        assert ("Try next" in printed.getvalue()) == has_steps


async def test_rewards_that_went_through_the_store_are_those_of_searching_directly(
    library: tuple[Library, Path],
) -> None:
    shelf, path = library
    # A job of two rounds would look for a runner to kill, and these are threads.
    job = Job(rounds=1, training_queries=20, queries_per_round=4, held_out_queries=10)
    rng = random.Random(job.seed)
    training, held_out = job.tasks(shelf, rng)
    tuning = Tuning(job, rng, path.stem, _Silent())
    runner = {"type": Runner, "concurrency": 4}
    trainer = Trainer(algorithm=tuning, store="memory://", strategy="shm", n_runners=2, runner=runner)
    await asyncio.to_thread(trainer.fit, SearchAgent(path), training, held_out, quiet=True)
    trainer.close()
    outcome = tuning.outcome
    assert outcome.before == _rewards(shelf, Ranking.plain(len(FIELDS)), held_out)
    assert outcome.after == _rewards(shelf, outcome.tuned, held_out)
    assert outcome.rollouts == job.rollouts


async def test_a_rollout_of_another_library_fails_alone(library: tuple[Library, Path]) -> None:
    shelf, path = library
    query = shelf.queries[0]
    task = {"query": query.text, "document": query.answer, "name": shelf.names[query.answer]}
    tasks = [task, task | {"name": "gone.since"}, {"query": "no document"}, "not a task", task]
    async with await open_store("memory://") as store:
        resources = await store.add_resources(as_resource(Ranking.plain(len(FIELDS))))
        requests = [EnqueueRolloutRequest(input=input_, resources_id=resources.resources_id) for input_ in tasks]
        requests.append(EnqueueRolloutRequest(input=task, resources_id="rs-unknown"))
        await store.enqueue_many_rollouts(requests)
        runner = Runner[object](max_rollouts=len(requests))
        with runner.run_context(agent=SearchAgent(path), store=store, worker_id=0):
            await runner.iter()
        ended = await store.query_rollouts()
    good, bad = "succeeded", "failed"
    assert [rollout.status for rollout in ended] == [good, bad, bad, bad, good, bad]


class _Silent:
    def begin(self, title: str, total: int) -> None: ...
    def advance(self, by: int) -> None: ...
    def end(self, outcome: str) -> None: ...
    def say(self, text: str) -> None: ...


def _rewards(library: Library, ranking: Ranking, tasks: list[Any]) -> list[float]:
    searcher = Searcher(library.index, ranking)
    rewards: list[float] = []
    for task in tasks:
        scores = searcher.retrieve(split_words(str(task["query"])), RESULTS)
        numbers = [number for number, _ in searcher.rank(scores, RESULTS)]
        rewards.append(1 / (numbers.index(task["document"]) + 1) if task["document"] in numbers else 0.0)
    return rewards


async def _ended(store: Store, count: int) -> bool:
    return (await store.query_rollouts(status_in=["succeeded"], limit=0)).total >= count


async def _until(job: subprocess.Popen[str], happened: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 250
    while not await happened():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline, "it did not happen within 250 s"
        await asyncio.sleep(0.02)
