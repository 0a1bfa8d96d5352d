"""Long-lived runners on a Ray cluster: each rollout ends once, with success, whatever is drained or killed."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from store import open_store
from store.interface.store import Store
from store.models import EnqueueRolloutRequest, RolloutConfig
from tests.ray import fleet, game
from tests.ray.conftest import DRAINED, LOST, Cluster, drain, until_no_actor
from tests.torture import IS_TORTURE
from tests.training.execution.drained import Notes
from tests.training.execution.programs import Program, running
from tests.training.training_helpers import until

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1800)]

LONG = 600


class Place:
    """A store on Postgres, the notes of its agents, and the runners of a cluster.

    Attributes:
        store: the store.
        notes: the notes.
        log: the file with the output of the runners.
    """

    def __init__(self, store: Store, url: str, cluster: Cluster, directory: Path) -> None:
        self.store = store
        self.notes = Notes(str(directory))
        self.log = directory / "log"
        self._url = url
        self._cluster = cluster

    def runners(self, *arguments: str) -> AbstractContextManager[Program]:
        """Start the command with arguments. It ends with the block at the latest."""
        return running(fleet.command, "--db", self._url, "--ray", self._cluster.address, *arguments, log=self.log)

    def elastic(self, *limits: int) -> AbstractContextManager[Program]:
        """Start runners that follow the queue quickly."""
        return running(fleet.elastic, self._url, self._cluster.address, json.dumps(limits), log=self.log)

    async def tasks(self, count: int, seconds: float, attempts: int = 1, **fields: str) -> list[str]:
        """Enqueue tasks."""
        task = {"place": str(self.notes.place), "seconds": seconds, **fields}
        config = RolloutConfig(max_attempts=attempts, retry_condition=["unresponsive"])
        requests = [EnqueueRolloutRequest(input=task, config=config)] * count
        return [rollout.rollout_id for rollout in await self.store.enqueue_many_rollouts(requests)]

    async def shorten(self, rollout_ids: list[str]) -> None:
        """Make the next attempts at rollouts short."""
        for rollout_id in rollout_ids:
            await self.store.update_rollout(rollout_id, input={"place": str(self.notes.place), "seconds": 0})

    async def until_noted(self, name: str, count: int) -> None:
        """Wait until agents have noted `count` rollouts."""

        async def has_count() -> bool:
            return len(self.notes.read(name)) >= count

        await until(has_count)

    async def check(self, rollout_ids: list[str], *reasons: tuple[str, str | None]) -> None:
        """Check that each rollout succeeded once; its other attempts have one of these statuses and reasons."""
        await self.store.wait_for_rollouts(rollout_ids, timeout=300)
        for rollout_id in rollout_ids:
            attempts = await self.store.query_attempts(rollout_id)
            ends = [(attempt.status, (attempt.metadata or {}).get("reason")) for attempt in attempts]
            assert (ends[-1], {*ends[:-1]} <= set(reasons)) == (("succeeded", None), True), ends
        assert Counter(self.notes.read("ends")) == Counter(rollout_ids)
        assert (await self.store.log.verify()).ok

    async def workers(self) -> set[str]:
        """Return the names of the workers that have been active."""
        return {worker.worker_id for worker in await self.store.query_workers()}


@pytest.fixture
async def place(cluster: Cluster, postgres_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    """A place whose actors must have ended after the test."""
    async with await open_store(postgres_url) as store:
        yield Place(store, postgres_url, cluster, tmp_path)
    assert not await asyncio.to_thread(cluster.has_actors)


async def end(program: Program, name: str = "SIGTERM") -> int | None:
    """End runners by a signal, and return their exit code."""
    program.send_signal(signal.Signals[name])
    return await asyncio.to_thread(program.exit_code, 60)


async def test_number_of_actors_follows_the_queue(place: Place, cluster: Cluster, tmp_path: Path) -> None:
    with place.elastic(1, 4, 2) as program:
        await until(lambda: _has_actors(cluster, 1))
        rollout_ids = await place.tasks(24, 0.3)
        await until(lambda: _has_actors(cluster, 4))
        await place.store.wait_for_rollouts(rollout_ids)
        (long,) = await place.tasks(1, 0, file="end")
        await until(lambda: _has_actors(cluster, 1))
        assert (await place.store.query_rollouts(status_in=["running"], limit=0)).total == 1, "the others were idle"
        (tmp_path / "end").touch()
        await place.store.wait_for_rollouts([long])
        assert await end(program) == 143
    await place.check([*rollout_ids, long])
    assert "runners: 1 → 4, because rollouts wait or run: " in place.log.read_text()


async def _has_actors(cluster: Cluster, count: int) -> bool:
    return len(await asyncio.to_thread(cluster.actors)) == count


async def test_node_that_is_taken_back_loses_no_attempt(place: Place, cluster: Cluster) -> None:
    with place.runners("-n", "3") as program:
        rollout_ids = await place.tasks(1200 if IS_TORTURE else 60, 0.2)
        await place.until_noted("ends", 20)
        node, *_ = cluster.nodes
        rollout_ids += (long := await place.tasks(3, LONG))
        await until(lambda: _is_empty(place.store, 3))
        await place.shorten(long)
        drain(cluster, node, 12)
        await until_no_actor(cluster, node, 12)
        cluster.kill_node(node)
        # The agents on the other nodes would work for ten minutes.
        assert await end(program) == 143
    with place.runners("--max", "4") as program:
        await place.check(rollout_ids, DRAINED)
        assert await end(program) == 143
    log = place.log.read_text()
    assert log.count(f"ends, because node {node.node_id[:8]} is about to be shut down; runner") == 1
    assert "lost" not in log


async def _is_empty(store: Store, running_count: int) -> bool:
    waiting = await store.query_rollouts(status_in=["queuing", "requeuing"], limit=0)
    return not waiting.total and (await store.query_rollouts(status_in=["running"], limit=0)).total == running_count


async def test_sigterm_returns_work_to_the_queue_and_kill_leaves_no_actor(place: Place, cluster: Cluster) -> None:
    rollout_ids = await place.tasks(3, LONG, attempts=2)
    with place.runners("-n", "3", "--grace", "1") as program:
        await place.until_noted("begun", 3)
        began = time.monotonic()
        assert await end(program) == 143
        assert time.monotonic() - began < 20
    for rollout_id in rollout_ids:
        (attempt,) = await place.store.query_attempts(rollout_id)
        assert (attempt.status, (attempt.metadata or {})["reason"]) == DRAINED
    with place.runners("-n", "3") as program:
        await place.until_noted("begun", 6)
        program.kill()
    assert not await asyncio.to_thread(cluster.has_actors)
    await place.shorten(rollout_ids)
    with place.runners("-n", "2") as program:
        await place.check(rollout_ids, DRAINED, LOST)
        assert await end(program, "SIGINT") == 130


async def test_killed_actor_is_replaced_and_its_attempt_is_repeated_at_once(place: Place, cluster: Cluster) -> None:
    rollout_ids = await place.tasks(2, LONG, attempts=2)
    with place.runners("-n", "2") as program:
        await place.until_noted("begun", 2)
        await place.shorten(rollout_ids)
        busy = await place.store.query_workers(status_in=["busy"])
        (pid, other) = [(worker.heartbeat_stats or {})["pid"] for worker in busy]
        psutil.Process(pid).kill()
        await place.until_noted("ends", 1)
        psutil.Process(other).kill()
        await place.check(rollout_ids, LOST)
        assert await end(program) == 143
    assert place.log.read_text().count("was lost") == place.log.read_text().count("is lost and replaced") == 2


async def test_training_moves_its_runners_from_a_node_that_is_taken_back(
    cluster: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    # The games must last until the notice of the node has arrived, on a fast machine too.
    games = 3000 if IS_TORTURE else 900
    log = tmp_path / "log"
    async with await open_store(postgres_url) as store:
        with running(
            game.main, postgres_url, str(games), cluster.address, json.dumps({"n_runners": 3}), log=log
        ) as program:
            await until(lambda: _has_successes(store, games // 20))
            node, *_ = cluster.nodes
            drain(cluster, node, 12)
            await until_no_actor(cluster, node, 12)
            cluster.kill_node(node)
            assert await asyncio.to_thread(program.exit_code, 300) == 0, log.read_text()
        rollouts = await store.query_rollouts()
        assert Counter(rollout.status for rollout in rollouts) == {"succeeded": games}
        attempts = await asyncio.gather(*(store.query_attempts(rollout.rollout_id) for rollout in rollouts))
        others = [attempt.status for one in attempts for attempt in one if attempt.status != "succeeded"]
        assert set(others) <= {"failed"}, "the watchdog and the driver reported none"
        assert (await store.log.verify()).ok
    report = json.loads(log.read_text().splitlines()[-1])
    assert (report["crashed"], report["replaced"], report["killed"]) == ([], 0, [])
    assert (
        f"ends, because node {node.node_id[:8]} is about to be shut down; runner 3 takes its place" in log.read_text()
    )


async def _has_successes(store: Store, number: int) -> bool:
    return (await store.query_rollouts(status_in=["succeeded"], limit=0)).total >= number


async def test_store_on_loopback_is_refused_on_several_machines(
    cluster: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    cluster.add_node(node_ip_address="127.0.0.2")
    log = tmp_path / "log"
    with running(fleet.command, "--db", postgres_url, "--ray", cluster.address, log=log) as program:
        assert await asyncio.to_thread(program.exit_code, 60) == 2
    assert "leads each machine to itself, and the cluster has several" in log.read_text()
