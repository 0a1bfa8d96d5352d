"""The demo as its user runs it: whole processes on a real database, some of which die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from store import open_store
from store.examples.doc_search.agent import RESULTS, SPANS
from store.examples.doc_search.algorithm import Plan, Tuning
from store.examples.doc_search.bm25f import Ranking, Searcher
from store.examples.doc_search.corpus import Query, split_words
from store.examples.doc_search.fleet import Fleet, RunnersKeepDying
from store.examples.doc_search.library import Library, open_library
from store.models import AttemptedRollout, EnqueueRolloutRequest, PromptTemplate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SMALL = Plan(rounds=2, training_queries=100, queries_per_round=20, held_out_queries=30, runners=2)
SMALL_JOB = f"""
import sys
from store.examples.doc_search.job import run
from store.examples.doc_search.algorithm import Plan
sys.exit(run(sys.argv[1], {SMALL!r}, quiet=True))
"""
WHOLE_JOB = """
import sys
from store.examples.doc_search import main
sys.exit(main(sys.argv[1]))
"""
OPEN = ("queuing", "requeuing", "preparing", "running")


@pytest.fixture
def cache(request: pytest.FixtureRequest) -> Path:
    """Where the parsed library is kept from one test run to the next."""
    pytest_cache: pytest.Cache = request.config.cache  # pyright: ignore[reportAssignmentType]  None only without plugin
    return pytest_cache.mkdir("doc-search")


@pytest.fixture
def start(cache: Path) -> Callable[[str, str], subprocess.Popen[str]]:
    """A function that starts a job on a database, as a process group of its own."""

    def start(job: str, db_url: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", job, db_url],
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


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory / 'demo.db'}"


async def test_the_whole_job_survives_the_loss_of_a_runner_and_proves_what_it_stored(
    start: Callable[[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    job = start(WHOLE_JOB, sqlite_url(tmp_path))
    said, progress = job.communicate(timeout=280)
    assert job.returncode == 0, progress
    assert "4,840 of 4,840 rollouts succeeded" in said
    assert "every row is the fold of its events" in said
    assert " 0 rows changed, state hash as before" in said
    assert "Known-item search" in said
    assert "killed runner" in progress
    async with await open_store(sqlite_url(tmp_path)) as store:
        rollouts = await store.query_rollouts()
        assert len(rollouts) == Plan().rollouts == 4_840
        assert {rollout.status for rollout in rollouts} == {"succeeded"}
        retried = [one for one in rollouts if isinstance(one, AttemptedRollout) and one.attempt.sequence_id > 1]
        assert retried
        assert retried[0].rollout_id in said or any(one.rollout_id in said for one in retried)
        spans = await store.query_spans(retried[0].rollout_id, "latest")
        assert [span.name for span in spans] == list(SPANS)
        statistics = await store.statistics()
        assert statistics.get("total_spans", 0) >= 4 * 4_840


async def test_a_second_job_on_the_same_database_adds_to_the_first(
    start: Callable[[str, str], subprocess.Popen[str]], durable_url: str
) -> None:
    for _ in range(2):
        job = start(SMALL_JOB, durable_url)
        _, complaints = await asyncio.to_thread(job.communicate, timeout=120)
        assert (job.returncode, complaints) == (0, "")
    async with await open_store(durable_url) as store:
        rollouts = await store.query_rollouts()
        assert [rollout.status for rollout in rollouts] == ["succeeded"] * 2 * SMALL.rollouts
        assert (await store.verify()).ok


async def test_rewards_that_went_through_the_store_are_those_of_searching_directly(
    library: tuple[Library, Path], durable_url: str
) -> None:
    shelf, path = library
    async with await open_store(durable_url) as store:
        with Fleet(durable_url, path, "test") as fleet:
            tuning = Tuning(store, fleet, shelf, SMALL, "test", _Silent())
            await tuning.run()
    outcome = tuning.outcome
    assert outcome.before == _rewards(shelf, Ranking.plain(len(outcome.tuned.weights)), outcome.held_out)
    assert outcome.after == _rewards(shelf, outcome.tuned, outcome.held_out)
    assert outcome.rollouts == SMALL.rollouts
    assert outcome.loss
    assert set(outcome.loss.rollout_ids) & set(outcome.retried)


async def test_ctrl_c_ends_all_processes_and_leaves_nothing_in_the_queue(
    start: Callable[[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    url = sqlite_url(tmp_path)
    job = start(WHOLE_JOB, url)
    runners = await _runners_at_work(job, url)
    os.killpg(job.pid, signal.SIGINT)
    _, said = await asyncio.to_thread(job.communicate, timeout=30)
    assert (job.returncode, said.splitlines()[-1][:12]) == (130, "interrupted:")
    assert psutil.wait_procs(runners, timeout=5)[1] == []
    async with await open_store(url) as store:
        assert not await store.query_rollouts(status_in=OPEN)
        assert await store.query_rollouts(status_in=["cancelled"])
        assert (await store.verify()).ok


async def test_runners_end_when_whoever_started_them_is_killed(
    start: Callable[[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    url = sqlite_url(tmp_path)
    job = start(WHOLE_JOB, url)
    runners = await _runners_at_work(job, url)
    job.kill()
    job.communicate()
    assert psutil.wait_procs(runners, timeout=10)[1] == []


async def test_a_rollout_of_another_library_fails_alone(library: tuple[Library, Path], tmp_path: Path) -> None:
    shelf, path = library
    url = sqlite_url(tmp_path)
    query = shelf.queries[0]
    task = {"query": query.text, "document": query.answer, "name": shelf.names[query.answer]}
    tasks = [task, task | {"name": "gone.since"}, {"query": "no document"}, "not a task", task]
    async with await open_store(url) as store:
        ranking = PromptTemplate(template=Ranking.plain(7).to_json(), engine="f-string")
        resources = await store.add_resources({"ranking": ranking})
        with Fleet(url, path, "test") as fleet:
            fleet.start()
            requests = [EnqueueRolloutRequest(input=task, resources_id=resources.resources_id) for task in tasks]
            requests.append(EnqueueRolloutRequest(input=task, resources_id="rs-unknown"))
            enqueued = await store.enqueue_many_rollouts(requests)
            ended = await store.wait_for_rollouts([rollout.rollout_id for rollout in enqueued], timeout=30)
    good, bad = "succeeded", "failed"
    assert [rollout.status for rollout in ended] == [good, bad, bad, bad, good, bad]


async def test_runners_that_die_are_replaced_until_they_keep_dying(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    async with await open_store(url):
        with Fleet(url, tmp_path / "no-such.library", "test") as fleet:
            first = {fleet.start(), fleet.start()}
            with pytest.raises(RunnersKeepDying, match=r"exit code 1.*(?s:.*)No such file.*no-such\.library"):
                await _replace_for_ever(fleet)
            assert not fleet.members & first


def test_a_database_that_runners_cannot_share_is_refused(start: Callable[[str, str], subprocess.Popen[str]]) -> None:
    job = start(WHOLE_JOB, "memory://")
    said, complaint = job.communicate(timeout=30)
    assert (job.returncode, said) == (2, "")
    assert "sqlite:///FILE" in complaint


class _Silent:
    def begin(self, title: str, total: int) -> None: ...
    def advance(self, by: int) -> None: ...
    def end(self, outcome: str) -> None: ...
    def say(self, text: str) -> None: ...


def _rewards(library: Library, ranking: Ranking, queries: list[Query]) -> list[float]:
    searcher = Searcher(library.index, ranking)
    rewards: list[float] = []
    for query in queries:
        found = [number for number, _ in searcher.rank(searcher.retrieve(split_words(query.text), RESULTS), RESULTS)]
        rewards.append(1 / (found.index(query.answer) + 1) if query.answer in found else 0.0)
    return rewards


async def _replace_for_ever(fleet: Fleet) -> None:
    while True:
        fleet.replace_the_lost()
        await asyncio.sleep(0.05)


async def _runners_at_work(job: subprocess.Popen[str], url: str) -> list[psutil.Process]:
    """Wait until runners have answered something, and return all of them."""
    deadline = time.monotonic() + 60
    while len(psutil.Process(job.pid).children()) < Plan().runners:
        await _a_moment(job, deadline)
    async with await open_store(url) as store:
        while not await store.query_rollouts(status_in=["succeeded"], limit=1):
            await _a_moment(job, deadline)
    return psutil.Process(job.pid).children()


async def _a_moment(job: subprocess.Popen[str], deadline: float) -> None:
    assert job.poll() is None, job.communicate()
    assert time.monotonic() < deadline, "no runner answered anything within a minute"
    await asyncio.sleep(0.05)
