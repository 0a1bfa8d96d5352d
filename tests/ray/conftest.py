"""Fixtures of the tests on a Ray cluster of several nodes, which run where Ray is installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

# Ray would write a token to the home directory, and report its use.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

NODES = 3
CPUS = 2
"""The number of CPUs that a node offers. They limit the number of runners, and nothing else."""
DRAINED = ("failed", "drained")
"""Status and reason of the attempts that a drained runner gave back."""
LOST = ("unresponsive", "interrupted")
"""Status and reason of the attempts of a lost runner that were reported. The watchdog gives no reason."""
_PROMPTLY = {
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
    "health_check_initial_delay_ms": 0,
    "health_check_timeout_ms": 2000,
}
"""Settings with which a dead node is detected in seconds, like a lost connection."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder if Ray is missing, unless ROLLBOOK_REQUIRE_RAY is set."""
    for item in items:
        if item.path.parent != Path(__file__).parent or "cluster" not in getattr(item, "fixturenames", ()):
            continue
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group("ray"))
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # caused by Ray itself
        if find_spec("ray") is None and not os.environ.get("ROLLBOOK_REQUIRE_RAY"):
            item.add_marker(pytest.mark.skip(reason="Ray is not installed: make test-ray"))


class Cluster:
    """A Ray cluster of several nodes on this machine.

    Attributes:
        address: its address.
    """

    def __init__(self, ray_cluster: Any) -> None:
        self._cluster = ray_cluster
        self.address: str = ray_cluster.address
        self.nodes: list[Any] = []
        """The live nodes for runners. The node of the drivers is not among them."""

    def add_node(self, **settings: Any) -> Any:
        """Add a node, and return Ray's object for it."""
        node = self._cluster.add_node(**({"num_cpus": CPUS} | settings))
        self.nodes.append(node)
        return node

    def kill_node(self, node: Any) -> None:
        """Kill all processes of a node."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def await_deaths(self) -> None:
        """Return when the cluster knows that the killed nodes are dead. Until then it may start actors on them."""
        self._cluster.wait_for_nodes()

    def actors(self, node: Any = None) -> list[psutil.Process]:
        """Return the processes of actors of trainings: of all nodes, or of one node."""
        parents = (
            [psutil.Process()]
            if node is None
            else [psutil.Process(process.pid) for _, process in node.live_processes()]
        )
        children = [child for parent in parents for child in parent.children(recursive=True)]
        return [child for child in children if "SideActor" in _title(child)]

    def has_actors(self, seconds: float = 30) -> bool:
        """Wait until no actor is left, at most `seconds`. Return whether actors are left."""
        deadline = time.monotonic() + seconds
        while (is_any := bool(self.actors())) and time.monotonic() < deadline:
            time.sleep(0.05)
        return is_any


def drain(cluster: Cluster, node: Any, seconds: int) -> None:
    """Announce that a node is shut down after some seconds, as a cloud does before it takes a machine back."""
    command = ["-c", "import sys; from ray.scripts.scripts import main; sys.exit(main())", "drain-node"]
    options = [
        f"--address={cluster.address}",
        f"--node-id={node.node_id}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=taken back",
        f"--deadline-remaining-seconds={seconds}",
    ]
    subprocess.run([sys.executable, *command, *options], check=True, capture_output=True)


async def until_no_actor(cluster: Cluster, node: Any, seconds: float) -> None:
    """Wait until no actor is on a node."""
    async with asyncio.timeout(seconds):
        while cluster.actors(node):  # noqa: ASYNC110 - processes of the machine
            await asyncio.sleep(0.05)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture(scope="session")
def head() -> Iterator[Cluster]:
    """The cluster, with the node of the drivers only."""
    # The paths of Ray's sockets have to be short.
    directory = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="r", dir="/tmp")
    Path(directory, "ray").mkdir()
    ray_cluster = import_module("ray.cluster_utils").Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "_system_config": _PROMPTLY,
        },
    )
    try:
        yield Cluster(ray_cluster)
    finally:
        ray_cluster.shutdown()
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def cluster(head: Cluster) -> Iterator[Cluster]:
    """The cluster with three nodes for runners. Nodes that a test adds are removed after the test."""
    while len(head.nodes) < NODES:
        head.add_node()
    usual = list(head.nodes)
    yield head
    for node in [node for node in head.nodes if node not in usual]:
        head.kill_node(node)
    head.await_deaths()
    assert not head.has_actors()
