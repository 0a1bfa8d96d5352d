"""Both strategies: the order in which their parts end, and the release of all resources."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from store import InMemoryLightningStore
from store.errors import Invalid
from store.models import Rollout
from store.training.execution import (
    ClientServerExecutionStrategy,
    ExecutionStrategy,
    RunnersGone,
    SharedMemoryExecutionStrategy,
    algorithm_store,
)
from tests.training.execution.sides import COMPUTED, Serve, Train

pytestmark = pytest.mark.slow


@pytest.fixture
def store() -> Iterator[InMemoryLightningStore]:
    """A store of this process."""
    with_log = InMemoryLightningStore(scan_debounce_seconds=0.05)
    yield with_log
    with_log.sync.close()


@pytest.fixture(params=["shm", "cs"])
def new_kind(request: pytest.FixtureRequest) -> str:
    """The strategy, with processes that are new interpreters."""
    return request.param


@pytest.fixture
def kind(new_kind: str, forked_parts: None) -> str:
    """The strategy, with forked processes."""
    return new_kind


def strategy(kind: str, n_runners: int = 1, *, grace: float = 10.0, terminate: float = 10.0) -> ExecutionStrategy:
    """Return a strategy."""
    if kind == "shm":
        return SharedMemoryExecutionStrategy(n_runners, graceful_delay=grace, join_timeout=terminate)
    return ClientServerExecutionStrategy(
        "both", server_port=0, n_runners=n_runners, graceful_timeout=grace, terminate_timeout=terminate
    )


def rollouts(store: InMemoryLightningStore) -> list[Rollout]:
    """Return all rollouts."""
    return list(store.sync.query_rollouts())


def statuses(store: InMemoryLightningStore) -> list[str]:
    """Return the status of each rollout, in the order of their creation."""
    return [rollout.status for rollout in rollouts(store)]


def reasons(store: InMemoryLightningStore) -> list[Any]:
    """Return why the last attempt of each rollout failed."""
    latest = [store.sync.get_latest_attempt(rollout.rollout_id) for rollout in rollouts(store)]
    return [attempt and (attempt.metadata or {}).get("reason") for attempt in latest]


def test_when_the_algorithm_ends_the_runners_do(store: InMemoryLightningStore, new_kind: str) -> None:
    children = psutil.Process().children()
    report = strategy(new_kind, 2, grace=60, terminate=60).execute(Train(list(range(20))), Serve(), store)
    assert statuses(store) == 20 * ["succeeded"]
    assert (report.crashed, report.killed, report.closed, report.replaced) == ([], [], [], 0)
    assert not [child for child in psutil.Process().children() if child not in children and _works(child)]
    for thread in [worker for worker in threading.enumerate() if worker.name.startswith("runner")]:
        thread.join(10)
        assert not thread.is_alive()


def _works(child: psutil.Process) -> bool:
    """Say whether a process is more than the tracker that Python's multiprocessing leaves."""
    return "resource_tracker" not in " ".join(child.cmdline())


def test_each_runner_has_a_label_of_its_own(store: InMemoryLightningStore, kind: str) -> None:
    strategy(kind, 3).execute(Train(3 * ["until stopped"], leaves_open=3), Serve(), store)
    assert statuses(store) == 3 * ["succeeded"]
    workers = Counter(worker.worker_id.rpartition("-")[2] for worker in store.sync.query_workers())
    assert workers == Counter(["0", "1", "2"])


def test_a_runner_that_has_done_its_share_does_not_end_the_algorithm(store: InMemoryLightningStore, kind: str) -> None:
    strategy(kind, 2).execute(Train([1, 2]), Serve(max_rollouts=1), store)
    assert statuses(store) == 2 * ["succeeded"]


@pytest.mark.parametrize("waits", ["waits", "polls", "follows"])
def test_algorithm_waiting_for_ended_runners_raises_runners_gone(
    store: InMemoryLightningStore, kind: str, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    monkeypatch.setattr(algorithm_store, "STANDSTILL_SECONDS", 0.1)
    with pytest.raises(RunnersGone, match="1 rollouts wait, but every runner has reached max_rollouts and ended"):
        strategy(kind).execute(Train([1, 2], waits=waits), Serve(max_rollouts=1), store)
    assert statuses(store) == ["succeeded", "queuing"]


def test_an_algorithm_that_computes_after_the_last_runner_finishes(
    store: InMemoryLightningStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithm_store, "STANDSTILL_SECONDS", 0.1)
    strategy(kind).execute(Train([1, 2], but_first=1, computes=0.3), Serve(max_rollouts=1), store)
    assert statuses(store) == ["succeeded", "queuing"]
    latest = store.sync.get_latest_resources()
    assert latest is not None
    assert latest.resources == {"weights": COMPUTED}


def test_crash_of_the_last_runner_is_raised_to_the_algorithm(store: InMemoryLightningStore, kind: str) -> None:
    with pytest.raises(RunnersGone, match="the runner is broken"):
        strategy(kind, 2, grace=0.1).execute(Train(4 * ["crash"]), Serve(), store)
    assert "running" not in statuses(store)


def test_a_runner_that_crashes_leaves_the_others_at_work(store: InMemoryLightningStore, kind: str) -> None:
    report = strategy(kind, 2).execute(Train(["crash", *range(5)], waits_for=5), Serve(), store)
    assert statuses(store).count("succeeded") == 5
    assert [crash.partition(": ")[2].splitlines()[-1] for crash in report.crashed] == [
        "RuntimeError: the runner is broken"
    ]


def test_error_of_the_algorithm_is_raised_and_the_runners_end(store: InMemoryLightningStore, kind: str) -> None:
    with pytest.raises(LookupError, match="the algorithm is lost"):
        strategy(kind, grace=0.1).execute(Train(["for ever"], leaves_open=1, fails=True), Serve(), store)
    assert reasons(store) == ["interrupted"]


def test_attempts_at_work_in_the_end_are_finished(store: InMemoryLightningStore, kind: str) -> None:
    report = strategy(kind).execute(Train(["until stopped", 1], leaves_open=1), Serve(), store)
    assert statuses(store) == ["succeeded", "queuing"], "and no further one is begun"
    assert report.closed == []


def test_attempts_that_go_on_beyond_the_grace_are_interrupted(store: InMemoryLightningStore, kind: str) -> None:
    report = strategy(kind, grace=0.2, terminate=60).execute(Train(["for ever"], leaves_open=1), Serve(), store)
    assert reasons(store) == ["interrupted"]
    assert report.killed == []


def test_sides_that_only_this_process_has_are_refused_by_name(store: InMemoryLightningStore) -> None:
    async def local(store: Any, worker_id: int, event: Any) -> None: ...

    with pytest.raises(Invalid, match=r"agent: cannot be sent to another process.*top of a module"):
        strategy("cs").execute(Train([]), local, store)
    strategy("shm").execute(Train([]), local, store)
