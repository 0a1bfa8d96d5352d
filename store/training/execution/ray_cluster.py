"""Connection to a Ray cluster: its nodes, and the start of actors on them. Ray is imported when it is first used."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal

from store.errors import Incompatible, Invalid, Unavailable
from store.training.execution.ray_actor import SideActor

Placement = Literal["spread", "pack"]

_STRATEGIES: Final[Mapping[Placement, str]] = {"spread": "SPREAD", "pack": "DEFAULT"}
_METHODS_AT_ONCE: Final = 4
_CONNECT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_ADDRESS: Final = "RAY_ADDRESS"


def require_ray() -> Any:
    """Return the module `ray`.

    Raises:
        Invalid: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise Invalid("ray", "Ray is not installed, on which the runners would run; run pip install 'rollbook[ray]'")
    return import_module("ray")


class Demand:
    """Resources of a node that an actor reserves.

    Args:
        name: the name of the argument in error messages.
        resources: amounts by the names that Ray uses, such as `CPU`, `GPU`, `memory` or the name of a custom resource.

    Raises:
        Invalid: an amount is negative or not a number, or is more than one GPU and not a whole number.
    """

    def __init__(self, name: str, resources: Mapping[str, Any]) -> None:
        for resource, amount in resources.items():
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < math.inf:
                raise Invalid(name, f"the amount {amount!r} of {resource!r} is not a number from 0")
            if resource == "GPU" and amount > 1 and amount % 1:
                raise Invalid(name, f"the amount {amount!r} of 'GPU' is above 1, so it must be a whole number")
        self.name = name
        self.resources = {resource: float(amount) for resource, amount in resources.items() if amount}

    def __str__(self) -> str:
        return ", ".join(f"{amount:g} {resource}" for resource, amount in self.resources.items()) or "nothing"

    def fits(self, node: Mapping[str, float]) -> bool:
        """Return whether an empty node with these resources could run the actor."""
        return all(node.get(resource, 0.0) >= amount for resource, amount in self.resources.items())

    def options(self) -> dict[str, Any]:
        """Return the options of Ray that reserve the resources."""
        custom = dict(self.resources)
        options: dict[str, Any] = {"num_cpus": custom.pop("CPU", 0), "num_gpus": custom.pop("GPU", 0)}
        if memory := custom.pop("memory", 0):
            options["memory"] = memory
        return options | {"resources": custom}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster to which this process is connected."""

    ray: Any
    """The module `ray`."""
    is_local: bool
    """Whether the cluster was started for this training, on this machine only."""
    placement: Placement
    runtime_env: Mapping[str, Any] | None
    """The environment of each actor, if the job has none; None otherwise."""

    @property
    def host(self) -> str:
        """The address at which the nodes reach this machine."""
        return "127.0.0.1" if self.is_local else self.ray.util.get_node_ip_address()

    def nodes(self) -> list[dict[str, Any]]:
        """Return the live nodes, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def draining_nodes(self) -> dict[str, float | None]:
        """Return the ids of live nodes that are about to be shut down, with the remaining seconds.

        The seconds are None if the node has no deadline, and is shut down when its actors have ended.
        """
        # Ray has no public function for this. Ray Train calls the same function to detect preemptions.
        nodes: dict[str, int] = import_module("ray._private.state").state.get_draining_nodes()
        return {node: deadline / 1000 - time.time() if deadline else None for node, deadline in nodes.items()}

    @property
    def has_other_machines(self) -> bool:
        """Whether nodes have another address than this machine."""
        return any(node["NodeManagerAddress"] != self.host for node in self.nodes()) and not self.is_local

    async def require(self, demand: Demand, patience: float) -> None:
        """Return when a node has the resources of an actor, whether or not they are free.

        Args:
            demand: the resources.
            patience: the maximum number of seconds to wait for such a node.

        Raises:
            Invalid: no node has the resources.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            nodes = [node["Resources"] for node in self.nodes()]
            if any(demand.fits(node) for node in nodes):
                return
            if loop.time() >= deadline:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        raise Invalid(
            demand.name,
            f"an actor needs {demand}, and no node of the cluster has that; there are nodes with "
            f"{'; '.join(sorted({_described(node) for node in nodes}))}; ask for less, or add a node",
        )

    def start_actor(self, part: str, demand: Demand) -> Any:
        """Return a new actor, which starts when a node has the resources."""
        options = demand.options() | {
            # The supervisor replaces lost actors. So Ray never restarts an actor.
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": _METHODS_AT_ONCE,
            "scheduling_strategy": _STRATEGIES[self.placement],
        }
        if self.runtime_env is not None:
            options["runtime_env"] = dict(self.runtime_env)
        return self.ray.remote(**options)(SideActor).remote(part)


@contextmanager
def connected(
    address: str | None, placement: Placement, runtime_env: Mapping[str, Any] | None, cpus: float
) -> Generator[Cluster]:
    """Connect to a cluster during a block. A connection that exists already is used, and stays open.

    Args:
        address: `host:port` of a cluster, or `auto` for the one of this machine. None for the value of `RAY_ADDRESS`;
            without the variable, a cluster is started on this machine.
        placement: the order in which nodes are filled.
        runtime_env: the environment of the actors, as Ray describes it.
        cpus: the minimum number of CPUs of a cluster that is started here.

    Raises:
        Invalid: the address is one of Ray Client, or Ray refuses `runtime_env`.
        Incompatible: the cluster has another version of Ray or Python.
        Unavailable: the cluster cannot be reached.
    """
    ray = require_ray()
    handler = signal.getsignal(signal.SIGTERM)
    is_connected = ray.is_initialized()
    where = address or os.environ.get(_ADDRESS) or "local"
    is_local = where == "local" and not is_connected
    if not is_connected:
        _check_address(where)
        settings = {"num_cpus": max(os.cpu_count() or 1, math.ceil(cpus)), "include_dashboard": False}
        try:
            ray.init(where, runtime_env=runtime_env and dict(runtime_env), **(settings if is_local else {}))
        except (ConnectionError, OSError, RuntimeError, ValueError, TypeError, ray.exceptions.RayError) as error:
            ray.shutdown()
            _restore(handler)
            raise _refusal(where, error) from error
    try:
        # Ray replaces the handler of SIGTERM by one that exits at once, but the training has to end its parts first.
        _restore(signal.SIG_DFL if is_connected and _is_of_ray(handler) else handler)
        yield Cluster(ray, is_local, placement, runtime_env if is_connected else None)
    finally:
        if not is_connected:
            ray.shutdown()
        _restore(handler)


def _check_address(address: str) -> None:
    if address in {"local", "auto"}:
        return
    if "://" in address:
        raise Invalid(
            "address",
            f"{address!r} is an address of Ray Client, and the nodes must reach the store and the proxy of this "
            "process; start the program on a node of the cluster, for example by `ray job submit`",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise Invalid("address", f"{address!r} is neither host:port nor 'auto'")
    # Ray would try for a minute, and then end the process.
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise Unavailable(f"no Ray cluster answers at {address}: {error}; start one with `ray start --head`") from error


def _refusal(address: str, error: Exception) -> Exception:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return Incompatible(f"this process does not match the Ray cluster: {text}", "install the same versions")
    if isinstance(error, (ValueError, TypeError)):
        return Invalid("runtime_env", text)
    return Unavailable(f"the Ray cluster at {address} cannot be used: {text}")


def _restore(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _is_of_ray(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("ray.")


def _described(node: Mapping[str, float]) -> str:
    # Ray adds resources such as `node:10.0.0.2`, by which tasks choose a node.
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(node.items()) if ":" not in name)
