"""Trainings on a Ray cluster of several nodes: nodes, actors, the driver and the database are killed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.responses import Response

from store import open_store
from store.interface.store import Store
from store.models import PromptTemplate, Worker
from tests.llm_proxy.model_server import Asked, chats, model_server
from tests.postgres import PostgresServer, with_partition
from tests.ray import game
from tests.ray.conftest import CPUS, DRAINED, LOST, NODES, Cluster, drain, until_no_actor
from tests.torture import IS_TORTURE
from tests.training.execution import resumed
from tests.training.execution.programs import Program, running
from tests.training.training_helpers import until

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1800 if IS_TORTURE else 180)]

GAMES = 4_800 if IS_TORTURE else 360


def playing(
    cluster: Cluster, url: str, tmp_path: Path, games: int = GAMES, **options: Any
) -> AbstractContextManager[Program]:
    """Run the training of `game` as a program; its output is in the file `log`."""
    return running(
        game.main, url, str(games), cluster.address, json.dumps(options), str(tmp_path), log=tmp_path / "log"
    )


async def successes(store: Store, number: int) -> None:
    """Wait until `number` rollouts have succeeded."""
    await until(lambda: _has_successes(store, number))


async def _has_successes(store: Store, number: int) -> bool:
    return (await store.query_rollouts(status_in=["succeeded"], limit=0)).total >= number


async def busy(store: Store) -> list[Worker]:
    """Return the workers that have an attempt."""
    return list(await store.query_workers(status_in=["busy"]))


def pid_of(worker: Worker) -> int:
    """Return the process id of a worker."""
    return (worker.heartbeat_stats or {})["pid"]


async def report_of(program: Program, log: Path) -> dict[str, Any]:
    """Wait for the end of a training, and return the numbers of its report."""
    code = await asyncio.to_thread(program.exit_code, 900)
    output = await asyncio.to_thread(log.read_text)
    assert code == 0, output
    return json.loads(output.splitlines()[-1])


async def check(store: Store, games: int) -> Counter[tuple[str, Any]]:
    """Check that each game succeeded in one attempt; count the other attempts by their status and reason."""
    assert Counter(rollout.status for rollout in await store.query_rollouts()) == {"succeeded": games}
    others = Counter[tuple[str, Any]]()
    for rollout in await store.query_rollouts():
        attempts = await store.query_attempts(rollout.rollout_id)
        assert [attempt.status for attempt in attempts].count("succeeded") == 1
        others.update(
            (attempt.status, (attempt.metadata or {}).get("reason"))
            for attempt in attempts
            if attempt.status != "succeeded"
        )
    assert (await store.log.verify()).ok
    return others


async def test_death_of_a_node_and_of_an_actor_costs_no_rollout(
    cluster: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    if IS_TORTURE:
        cluster.add_node()
    async with await open_store(postgres_url) as store:
        with playing(cluster, postgres_url, tmp_path) as program:
            await until(lambda: _are_on_all_nodes(store, cluster))
            await successes(store, GAMES // 5)
            dead_node, *_, last_node = cluster.nodes
            victim = next(worker for worker in await busy(store) if dead_node.node_id[:8] not in worker.worker_id)
            psutil.Process(pid_of(victim)).kill()
            await successes(store, GAMES // 3)
            if IS_TORTURE:
                await asyncio.to_thread(drain, cluster, last_node, 12)
                await until_no_actor(cluster, last_node, 12)
                cluster.kill_node(last_node)
            lost_count = len(cluster.actors(dead_node))
            cluster.kill_node(dead_node)
            report = await report_of(program, tmp_path / "log")
        assert LOST in (others := set(await check(store, GAMES)))
        assert others <= {LOST, DRAINED}
    # The replacements of the lost runners wait for a node until the end. If Ray gives them a place on the dead node
    # first, they are lost before they start.
    assert sum(victim.worker_id.split("-")[-2] in crash for crash in report["crashed"]) == 1
    started = [crash for crash in report["crashed"] if "never ran" not in crash]
    assert (len(started), len(report["crashed"])) == (1 + lost_count, report["replaced"])
    assert sum(f"node {dead_node.node_id[:8]}" in crash for crash in report["crashed"]) == lost_count
    assert (report["killed"], report["moved"] > 0) == ([], IS_TORTURE)
    output = await asyncio.to_thread((tmp_path / "log").read_text)
    assert re.search(r"\(runner \d on \S+, node \w{8}, actor \w{8} pid=\d+\).* looks for 1", output)


async def _are_on_all_nodes(store: Store, cluster: Cluster) -> bool:
    nodes = {worker.worker_id.split("-")[-3] for worker in await store.query_workers()}
    return nodes == {node.node_id[:8] for node in cluster.nodes}


async def test_actors_of_a_killed_driver_end_and_the_next_one_continues(
    cluster: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    games = GAMES // 2
    async with await open_store(postgres_url) as store:
        with playing(cluster, postgres_url, tmp_path, games) as program:
            await successes(store, games // 4)
            assert cluster.actors()
            program.kill()
            await asyncio.to_thread(program.exit_code, 60)
        assert not await asyncio.to_thread(cluster.has_actors)
        with playing(cluster, postgres_url, tmp_path, games) as program:
            report = await report_of(program, tmp_path / "log")
        assert set(await check(store, games)) == {LOST}, "the runners of the second training report them"
    assert report["rollouts"] == games
    assert report["earlier"] >= games // 4


async def test_crash_of_postgres_loses_no_attempt(
    cluster: Cluster, private_postgres: PostgresServer, tmp_path: Path
) -> None:
    games = GAMES // 2
    url = with_partition(private_postgres.url)
    async with await open_store(url) as store:
        with playing(cluster, url, tmp_path, games) as program:
            await successes(store, games // 4)
            private_postgres.stop("immediate")
            await asyncio.sleep(1)
            private_postgres.restart()
            report = await report_of(program, tmp_path / "log")
        assert await check(store, games) == {}, "and no attempt was repeated"
    assert report["crashed"] == []


async def test_cancellation_reaches_the_agents_on_every_node(
    cluster: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    async with await open_store(postgres_url) as store:
        with playing(cluster, postgres_url, tmp_path, 200, patient=True, n_runners=4) as program:
            await until(lambda: _are_running(store, 200))
            await asyncio.gather(
                *(
                    store.update_rollout(rollout.rollout_id, status="cancelled")
                    for rollout in await store.query_rollouts()
                )
            )
            report = await report_of(program, tmp_path / "log")
        assert await _are_on_all_nodes(store, cluster)
        delays = [
            float((tmp_path / rollout.rollout_id).read_text()) - (rollout.end_time or 0.0)
            for rollout in await store.query_rollouts()
        ]
    print(f"seconds until {len(delays)} agents were cancelled: at most {max(delays):.2f}")
    assert max(delays) < 5
    assert (report["crashed"], report["killed"]) == ([], [])


async def _are_running(store: Store, number: int) -> bool:
    return (await store.query_rollouts(status_in=["running"], limit=0)).total == number


async def test_algorithm_gets_its_place_before_the_runners_and_hooks_run_in_the_runners(
    cluster: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1, resources={"brain": 1})
    # One runner per CPU: if the algorithm did not start first, a runner would take its only place.
    options = {"algorithm_resources": {"CPU": 1, "brain": 1}, "placement": "pack", "n_runners": NODES * CPUS + 1}
    async with await open_store(postgres_url) as store:
        with playing(cluster, postgres_url, tmp_path, 32, **options) as program:
            await until(lambda: _has_successes(store, 1))
            node_processes = {process.pid for process in cluster.actors(node)}
            await report_of(program, tmp_path / "log")
        await check(store, 32)
        published = await store.get_latest_resources()
        assert published is not None
        process = published.resources["process"]
        assert isinstance(process, PromptTemplate)
        pid = json.loads(process.template)["pid"]
        pids = {pid_of(worker) for worker in await store.query_workers()}
        written = {int((tmp_path / rollout.rollout_id).read_text()) for rollout in await store.query_rollouts()}
    assert written <= pids
    assert pid in node_processes


async def test_runners_call_models_through_the_proxy_of_the_driver(
    cluster: Cluster, postgres_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    async def answer(asked: Asked) -> Response | None:
        return await chats()(asked)

    async with model_server() as model, await open_store(postgres_url) as store:
        model.will(answer)
        with running(game.proxied, cluster.address, postgres_url, "32", model.url, log=log) as program:
            report = await report_of(program, log)
        assert report["rows"] == [["train", 0, f"{resumed.RUN}/0 v1", 32, 15.5]]
        for rollout in await store.query_rollouts():
            names = [span.name for span in await store.query_spans(rollout.rollout_id)]
            assert sum(name.startswith("openai.chat") for name in names) == 1


@pytest.mark.parametrize(
    "number, code", [("SIGINT", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.torture_only)]
)
async def test_signals_end_driver_and_actors_and_leave_nothing_at_work(
    cluster: Cluster, postgres_url: str, tmp_path: Path, number: str, code: int
) -> None:
    async with await open_store(postgres_url) as store:
        with running(game.endless, cluster.address, postgres_url, log=tmp_path / "log") as program:
            await until(lambda: _are_running(store, 2))
            program.send_signal(signal.Signals[number])
            assert await asyncio.to_thread(program.exit_code, 60) == code, (tmp_path / "log").read_text()
        for rollout in await store.query_rollouts():
            (attempt,) = await store.query_attempts(rollout.rollout_id)
            assert (attempt.status, (attempt.metadata or {}).get("reason")) == ("failed", "interrupted")
    assert not await asyncio.to_thread(cluster.has_actors)
