"""Algorithm and runners as processes: kills, ignored signals, other machines, and wrong servers."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from store import InMemoryLightningStore, StoreServer
from store.errors import Incompatible, Invalid, Unavailable
from store.training.execution import ClientServerExecutionStrategy
from store.training.execution.processes import opened
from tests.postgres import free_port
from tests.training.execution.sides import RETRIED, Serve, Train


@pytest.fixture
def store() -> Iterator[InMemoryLightningStore]:
    """A store of this process."""
    memory = InMemoryLightningStore(scan_debounce_seconds=0.05)
    yield memory
    memory.sync.close()


def processes(**settings: Any) -> ClientServerExecutionStrategy:
    """Return a strategy whose server has a port of its own."""
    plain: dict[str, Any] = {"role": "both", "server_port": 0}
    return ClientServerExecutionStrategy(**(plain | settings))


def statuses(store: InMemoryLightningStore) -> list[str]:
    """Return the status of each rollout."""
    return [rollout.status for rollout in store.sync.query_rollouts()]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_parts")
def test_a_runner_that_is_killed_is_replaced_and_its_task_is_done(store: InMemoryLightningStore) -> None:
    report = processes().execute(Train([1, "die", 2], config=RETRIED), Serve(), store)
    assert statuses(store) == 3 * ["succeeded"]
    assert report.replaced == 1
    assert ["SIGKILL" in crash for crash in report.crashed] == [True]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_parts")
def test_unresponsive_runner_is_killed_and_reported_after_the_training(
    store: InMemoryLightningStore,
) -> None:
    strategy = processes(graceful_timeout=0.1, terminate_timeout=0.1)
    report = strategy.execute(Train(["stubborn"], leaves_open=1), Serve(), store)
    assert report.killed == ["runner 0"]
    (rollout,) = store.sync.query_rollouts()
    assert report.closed == [rollout.rollout_id]
    (attempt,) = store.sync.query_attempts(rollout.rollout_id)
    assert (rollout.status, attempt.status, attempt.metadata) == ("failed", "failed", {"reason": "interrupted"})
    end = store.sync.log.history(rollout.rollout_id)[-2:]
    assert [event.data.get("error", {}).get("type") for event in end if event.type.startswith("attempt")] == [
        "interrupted"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_parts")
def test_the_algorithm_may_be_the_other_process(store: InMemoryLightningStore) -> None:
    processes(main_process="runner").execute(Train([1, 2]), Serve(), store)
    assert statuses(store) == 2 * ["succeeded"], "the store of this process has seen it"
    for rollout in store.sync.query_rollouts():
        (attempt,) = store.sync.query_attempts(rollout.rollout_id)
        assert attempt.metadata == {"pid": os.getpid()}


@pytest.mark.slow
def test_runners_elsewhere_work_for_an_algorithm_that_has_none_of_its_own(
    store: InMemoryLightningStore,
) -> None:
    ended: list[Any] = []
    port = free_port()

    def elsewhere() -> None:
        # The patience begins when the runners start. A server on a loaded machine may need longer than that to start.
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
                break
            time.sleep(0.01)
        strategy = ClientServerExecutionStrategy("runner", server_port=port, server_patience=2, terminate_timeout=0.2)
        try:
            ended.append(strategy.execute(Train([]), Serve(), store))
        except Unavailable as error:
            ended.append(error)

    runner = threading.Thread(target=elsewhere)
    runner.start()
    algorithm = ClientServerExecutionStrategy("algorithm", server_port=port, graceful_timeout=0.5)
    algorithm.execute(Train([1, 2, "until stopped"], leaves_open=1, but_first=2), Serve(), store)
    runner.join(60)
    assert not runner.is_alive(), "when the server is gone the runners end"
    assert isinstance(ended[0], Unavailable)
    assert sorted(statuses(store)) == ["failed", "succeeded", "succeeded"]


def test_taken_port_is_refused_with_the_name_of_its_owner(store: InMemoryLightningStore) -> None:
    server = StoreServer(store, port=0)
    store.sync.thread.get().wait(server.start())
    port = int(server.endpoint.rpartition(":")[2])
    with pytest.raises(RuntimeError, match=f"address already in use.*a Rollbook server of the store {store.store_id}"):
        processes(server_port=port).execute(Train([]), Serve(), store)
    store.sync.thread.get().wait(server.stop())


async def test_a_process_that_meets_another_store_than_its_own_leaves() -> None:
    async with StoreServer(InMemoryLightningStore(), port=0) as server:
        with pytest.raises(Incompatible, match="another training uses the port"):
            async with opened(server.endpoint, "another"):
                pass
        await server.target.close()


def test_a_store_in_memory_that_is_not_served_is_refused(store: InMemoryLightningStore) -> None:
    with pytest.raises(Invalid, match="managed_store"):
        processes(managed_store=False).execute(Train([]), Serve(), store)
