"""Trainings on Ray that cannot start: one error that names the cause, and no actor is left."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import store as package
from store import InMemoryLightningStore
from store.errors import Incompatible, Invalid, Unavailable
from store.llm_proxy import LLMProxy
from store.training.algorithms.algorithm import algo
from store.training.execution import RayExecutionStrategy, RunnersGone, ray_strategy
from store.training.running.agent import rollout
from store.training.trainer import Trainer
from tests.ray.conftest import Cluster
from tests.training.execution.sides import RETRIED, Serve, Train

FIREWALL = """
import os, socket

_connect = socket.socket.connect
_blocked = int(os.environ["BLOCKED_PORT"])

def connect(self, address):
    if isinstance(address, tuple) and address[1] == _blocked:
        raise ConnectionRefusedError(111, "a firewall refuses the connection")
    return _connect(self, address)

socket.socket.connect = connect
"""


@pytest.fixture
def store() -> Iterator[InMemoryLightningStore]:
    """A store of this process."""
    memory = InMemoryLightningStore(scan_debounce_seconds=0.05)
    yield memory
    memory.sync.close()


@rollout
async def agent(task: int) -> float:
    """Return the task as reward."""
    return float(task)


@algo
async def nothing(store: Any) -> None:
    """Enqueue nothing."""


def on(cluster: Cluster, **settings: Any) -> RayExecutionStrategy:
    """Return a strategy whose actors run on a cluster."""
    plain: dict[str, Any] = {"address": cluster.address}
    return RayExecutionStrategy(**(plain | settings))


def statuses(store: InMemoryLightningStore) -> list[str]:
    """Return the status of each rollout."""
    return [rollout.status for rollout in store.sync.query_rollouts()]


def test_strategy_without_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.training.execution.ray_cluster.find_spec", dict[str, Any]().get)
    with pytest.raises(Invalid, match=r"pip install 'rollbook\[ray\]'"):
        Trainer(strategy="ray")


def test_killed_actor_is_replaced_and_a_crash_is_not(cluster: Cluster, store: InMemoryLightningStore) -> None:
    report = on(cluster).execute(Train([1, "die", 2], config=RETRIED), Serve(), store)
    assert statuses(store) == 3 * ["succeeded"]
    assert report.replaced == len(report.crashed) == 1
    with pytest.raises(RunnersGone, match="the runner is broken"):
        on(cluster, graceful_timeout=0.1).execute(Train(["crash"]), Serve(), store)
    assert not cluster.has_actors()


def test_lost_actor_is_replaced_although_its_report_fails(
    cluster: Cluster, store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise LookupError("the report is broken")

    monkeypatch.setattr(ray_strategy, "close_orphans", refuse)
    report = on(cluster).execute(Train([1, "die"], config=RETRIED), Serve(), store)
    assert statuses(store) == 2 * ["succeeded"]
    assert report.replaced == len(report.crashed) == 1


def test_runner_whose_result_cannot_be_read_is_lost(cluster: Cluster, store: InMemoryLightningStore) -> None:
    class Unreadable(Unavailable):
        def __reduce__(self) -> Any:
            return int, ("no number",)

    class Broken(Serve):
        async def __call__(self, *_: Any) -> None:
            raise Unreadable("the runner is broken")

    with pytest.raises(RunnersGone, match=r"runner 0 \(.*\) was lost: .*no number"):
        on(cluster, restarts=0).execute(Train(["for ever"]), Broken(), store)


def test_unresponsive_actor_is_killed_and_reported(cluster: Cluster, store: InMemoryLightningStore) -> None:
    strategy = on(cluster, graceful_timeout=0.1, terminate_timeout=0.1)
    report = strategy.execute(Train(["stubborn"], leaves_open=1), Serve(), store)
    assert report.killed == ["runner 0"]
    assert report.closed == [rollout.rollout_id for rollout in store.sync.query_rollouts()]
    assert report.replaced == 0


def test_agent_with_a_lock_is_refused_before_the_cluster_is_used(store: InMemoryLightningStore) -> None:
    pytest.importorskip("ray")

    class Locked(Serve):
        lock = threading.Lock()

    with pytest.raises(Invalid, match=r"agent: cannot be sent to another process: .*lock"):
        RayExecutionStrategy(address="192.0.2.1:1").execute(Train([]), Locked(), store)


def test_cluster_that_does_not_answer_is_unavailable(store: InMemoryLightningStore, unused_tcp_port: int) -> None:
    pytest.importorskip("ray")
    strategy = RayExecutionStrategy(address=f"127.0.0.1:{unused_tcp_port}")
    with pytest.raises(Unavailable, match=rf"no Ray cluster answers at 127\.0\.0\.1:{unused_tcp_port}"):
        strategy.execute(Train([]), Serve(), store)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"address": "ray://head:10001"}, "address: .*Ray Client.*ray job submit"),
        ({"address": "head"}, "address: 'head' is neither host:port nor 'auto'"),
        ({"placement": "tight"}, "placement: 'tight' is neither 'spread' nor 'pack'"),
        ({"n_runners": 0}, "n_runners: 0 is below 1"),
        ({"resources": {"GPU": -1}}, "resources: the amount -1 of 'GPU'"),
        ({"resources": {"GPU": 1.5}}, "resources: the amount 1.5 of 'GPU' is above 1"),
        ({"managed_store": False}, "managed_store: False .* cannot open memory://.*postgresql://"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    store: InMemoryLightningStore, settings: dict[str, Any], message: str
) -> None:
    pytest.importorskip("ray")
    with pytest.raises(Invalid, match=message):
        RayExecutionStrategy(**settings).execute(Train([]), Serve(), store)


def test_file_that_nodes_would_open_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    strategy = RayExecutionStrategy(managed_store=False)
    trainer = Trainer(algorithm=nothing, store=f"sqlite:///{tmp_path}/run.db", strategy=strategy)
    with pytest.raises(Invalid, match=r"other nodes cannot open sqlite:///.*leave managed_store out"):
        trainer.fit(agent)
    trainer.close()


def test_resource_that_no_node_has_is_refused(
    cluster: Cluster, store: InMemoryLightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_strategy, "NODE_PATIENCE_SECONDS", 0.0)
    with pytest.raises(Invalid, match=r"resources: an actor needs 1 CPU, 2 GPU, and no node .* has that.*2 CPU"):
        on(cluster, resources={"GPU": 2}).execute(Train([1]), Serve(), store)
    with pytest.raises(Invalid, match="algorithm_resources: an actor needs 1 brain"):
        on(cluster, algorithm_resources={"brain": 1}).execute(Train([1]), Serve(), store)
    with pytest.raises(Invalid, match=r"strategy: Ray refuses runner 0: The precision .* cannot go beyond 0\.0001"):
        on(cluster, num_cpus=0.00001, graceful_timeout=0.1).execute(Train(["for ever"]), Serve(), store)
    assert set(statuses(store)) <= {"queuing"}


def test_node_that_cannot_reach_the_store_ends_the_training(
    cluster: Cluster, store: InMemoryLightningStore, unused_tcp_port: int, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FIREWALL)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    node = cluster.add_node(env_vars={"BLOCKED_PORT": str(unused_tcp_port), "PYTHONPATH": path})
    message = rf"runner \d on .*, node {node.node_id[:8]}, .* cannot reach the store at http://.*firewall"
    with pytest.raises(Unavailable, match=message):
        on(cluster, server_port=unused_tcp_port, n_runners=4, num_cpus=2).execute(Train(["for ever"]), Serve(), store)
    assert not cluster.has_actors()


def test_other_version_of_rollbook_on_a_node_is_refused(
    cluster: Cluster, store: InMemoryLightningStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(package.__file__).parent
    shutil.copytree(source, tmp_path / "old" / "store", ignore=shutil.ignore_patterns("__pycache__", "examples"))
    old = tmp_path / "old" / "store" / "__init__.py"
    old.write_text(old.read_text().replace(f'__version__ = "{package.__version__}"', '__version__ = "0.0.9"'))
    monkeypatch.chdir(tmp_path / "old")  # Ray adds the directory of the program to the path of the actors
    with pytest.raises(Incompatible, match=rf"has Rollbook 0\.0\.9 .*this process has Rollbook {package.__version__}"):
        on(cluster).execute(Train([1]), Serve(), store)
    assert not cluster.has_actors()


def test_module_that_a_node_lacks_is_named(
    cluster: Cluster, store: InMemoryLightningStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        "from tests.training.execution.sides import Serve\n\nclass Mine(Serve): ...\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        mine = import_module("only_here").Mine()
    with pytest.raises(Incompatible, match=r"cannot load its code: No module named 'only_here'.*runtime_env"):
        on(cluster).execute(Train([1]), mine, store)
    assert not cluster.has_actors()


def test_proxy_on_loopback_is_refused_if_runners_are_on_other_machines(cluster: Cluster) -> None:
    cluster.add_node(node_ip_address="127.0.0.2")

    trainer = Trainer(algorithm=nothing, llm_proxy=LLMProxy(), strategy=on(cluster))
    with pytest.raises(Invalid, match=r"llm_proxy: listens only on this machine.*create it with host='[0-9.]+'"):
        trainer.fit(agent)
    trainer.close()
