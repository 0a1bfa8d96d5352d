"""Strategy that runs the runners, and optionally the algorithm, as actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from store.errors import Invalid, StoreError
from store.interface.store import Store
from store.runtime.urls import scheme_of, without_passwords
from store.training.execution import environment
from store.training.execution.algorithm_store import AlgorithmStore
from store.training.execution.blocking import run_blocking
from store.training.execution.client_server import served
from store.training.execution.fleet import Fleet, run_beside
from store.training.execution.fleet_size import FleetLimits
from store.training.execution.parts import Part, TaskPart
from store.training.execution.pickling import pack
from store.training.execution.processes import opened
from store.training.execution.ray_cluster import Cluster, Demand, Placement, connected, require_ray
from store.training.execution.ray_nodes import SHARED_SCHEMES, check_shared, follow_nodes
from store.training.execution.ray_parts import ActorAssignment, RayPart, pack_for_nodes
from store.training.execution.strategy import AlgorithmSide, ExecutionReport, ExecutionStrategy, RunnerSide
from store.training.execution.supervisor import Supervisor, close_open
from store.training.running.orphans import close_orphans
from store.training.running.stop_event import StopEvent

if TYPE_CHECKING:
    from store.llm_proxy import LLMProxy

logger = logging.getLogger(__name__)

NODE_PATIENCE_SECONDS: Final = 10.0
"""The maximum number of seconds to wait for a node that has the resources of an actor. Some clusters add nodes on
demand."""
_RESTARTS_PER_RUNNER: Final = 3
_REPORT_SECONDS: Final = 10.0
_PAUSES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses between the reports of a lost actor."""


@runtime_checkable
class _UsesProxy(Protocol):
    llm_proxy: LLMProxy | None


class RayExecutionStrategy(ExecutionStrategy):
    """Strategy that runs each runner as an actor of a Ray cluster. By default, this process serves the store.

    A lost actor is replaced, and its attempts are reported at once, so that their rollouts are repeated. Rollouts
    without limits and retries are repeated when heartbeats of the actor are missing. Actors end with this process,
    which must run on a node of the cluster.

    Args:
        n_runners: the number of runners. Each is one process; `Runner(concurrency=…)` runs several rollouts in it.
        address: `host:port` of the cluster, or `auto` for the one of this machine. None for the value of `RAY_ADDRESS`;
            without the variable, a cluster is started on this machine for the time of the training.
        num_cpus: the CPUs that a runner reserves. They limit how many runners a node gets, and nothing else.
        resources: further resources that a runner reserves, by Ray's names, such as `{"GPU": 0.5, "browser": 1}`.
        placement: `spread` distributes runners evenly over the nodes. `pack` leaves the choice to Ray's default, which
            fills a node to a half before it uses the next one.
        runtime_env: the environment of the actors, as for `ray.init`.
        algorithm_resources: the resources that the algorithm reserves, such as `{"GPU": 1}`. The algorithm then runs as
            an actor, too. None: the algorithm runs in this process.
        managed_store: whether to serve the store from this process; None for the value of `AGL_MANAGED_STORE`, by
            default true. If false, each actor opens the store by its URL, on Postgres or from another server. The
            server listens on the host `AGL_SERVER_HOST`, by default on the address of this node, or on loopback if the
            cluster was started here. It requires no keys.
        server_port: the port of the server; None for the value of `AGL_SERVER_PORT`, by default any free port.
        graceful_timeout: the maximum number of seconds for which active attempts may continue at the end.
        terminate_timeout: seconds after which an interrupted actor that has not ended is killed.
        restarts: the maximum number of lost runners that are replaced; None for three per runner.

    Raises:
        Invalid: an argument or an environment variable is invalid, or Ray is not installed.
    """

    def __init__(
        self,
        n_runners: int = 1,
        *,
        address: str | None = None,
        num_cpus: float = 1.0,
        resources: Mapping[str, float] | None = None,
        placement: Placement = "spread",
        runtime_env: Mapping[str, Any] | None = None,
        algorithm_resources: Mapping[str, float] | None = None,
        managed_store: bool | None = None,
        server_port: int | None = None,
        graceful_timeout: float = 10.0,
        terminate_timeout: float = 10.0,
        restarts: int | None = None,
    ) -> None:
        require_ray()
        if n_runners < 1:
            raise Invalid("n_runners", f"{n_runners} is below 1")
        if placement not in {"spread", "pack"}:
            raise Invalid("placement", f"{placement!r} is neither 'spread' nor 'pack'")
        self.n_runners = n_runners
        self.managed_store = environment.managed(managed_store)
        self.server_port = environment.port(server_port, "both")
        self._address = address
        self._demand = Demand("resources", {"CPU": num_cpus, **(resources or {})})
        self._algorithm_demand = (
            None if algorithm_resources is None else Demand("algorithm_resources", algorithm_resources)
        )
        self._placement: Placement = placement
        self._runtime_env = runtime_env
        self._graceful_timeout = graceful_timeout
        self._terminate_timeout = terminate_timeout
        self._restarts = _RESTARTS_PER_RUNNER * n_runners if restarts is None else restarts

    @property
    def has_algorithm_here(self) -> bool:
        return self._algorithm_demand is None

    def use_port(self, port: int) -> None:
        self.server_port = port

    def execute(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        """Run until the algorithm has ended; see `ExecutionStrategy`.

        Raises:
            Invalid: a side cannot be sent to a node, a node cannot open the store or reach the proxy, or no node has
                the resources.
            Incompatible: a node has other versions, or lacks modules of the agent.
            Unavailable: the cluster cannot be reached, or a node cannot reach the store.
            PortTaken: another program listens on the port.
        """
        work = pack_for_nodes("agent", runner)
        training = None if self._algorithm_demand is None else pack_for_nodes("algorithm", algorithm)
        target = None if self.managed_store else _shared(store)
        cpus = self.n_runners * self._demand.resources.get("CPU", 0.0)
        if self._algorithm_demand is not None:
            cpus += self._algorithm_demand.resources.get("CPU", 0.0)
        with connected(self._address, self._placement, self._runtime_env, cpus) as cluster:
            _check_proxy(algorithm, cluster)
            return run_blocking(lambda: self._execute(cluster, training or algorithm, work, store, target))

    async def _execute(
        self, cluster: Cluster, algorithm: AlgorithmSide | bytes, work: bytes, store: Store, target: str | bytes | None
    ) -> ExecutionReport:
        await cluster.require(self._demand, NODE_PATIENCE_SECONDS)
        if self._algorithm_demand is not None:
            await cluster.require(self._algorithm_demand, NODE_PATIENCE_SECONDS)
        async with self._served(cluster, store, target) as place, self._patient(store, place) as patient_store:
            losses = _Losses(store)
            training = self._training(cluster, algorithm, patient_store, place, losses)
            # An algorithm that is an actor gets its place first. Runners could take it for the whole training.
            first = training if isinstance(training, RayPart) else None
            create = self._creator(cluster, work, patient_store, place, losses, first)
            supervisor = self._supervisor(training, create, patient_store)
            try:
                await run_beside(supervisor.run(), follow_nodes(supervisor, cluster))
            finally:
                losses.end()
                supervisor.report.closed += await close_open(store, supervisor.workers)
        return supervisor.report

    @contextlib.asynccontextmanager
    async def _patient(self, store: Store, place: str | bytes) -> AsyncGenerator[Store]:
        """Open the store for this process so that calls are repeated while Postgres is restarted, as the runners do.

        Other databases fail only with this process, so their calls are not repeated. With `managed_store=False`, the
        store is used directly.
        """
        if isinstance(place, bytes) or not self.managed_store or scheme_of(_url(store)) != "postgresql":
            yield store
            return
        async with opened(place, str(getattr(store, "store_id", ""))) as client:
            yield client

    @contextlib.asynccontextmanager
    async def _served(self, cluster: Cluster, store: Store, target: str | bytes | None) -> AsyncGenerator[str | bytes]:
        if target is not None:
            yield target
            return
        async with served(store, os.environ.get(environment.HOST) or cluster.host, self.server_port) as url:
            yield url

    def run_runners(self, runner: RunnerSide, url: str, fleet: Fleet | None = None) -> ExecutionReport:
        """Run only the runners' side, until SIGTERM; see `ClientServerExecutionStrategy.run_runners`.

        Args:
            runner: the runners' side, called once for each worker.
            url: the URL of a store that the nodes reach.
            fleet: settings of runners whose number follows the queue; None for `n_runners`.

        Raises:
            KeyboardInterrupt, SystemExit: Ctrl+C or SIGTERM ended the runners.
            Invalid: the nodes cannot reach the store, the side cannot be sent to them, or none has the resources.
            Incompatible: a node has other versions, or lacks modules of the agent.
            Unavailable: the cluster or the store cannot be reached.
            StoreError: the store refused the last runner.
            RunnersGone: too many runners were lost.
        """
        work = pack_for_nodes("agent", runner)
        fleet = fleet or Fleet(FleetLimits(self.n_runners, self.n_runners))
        draining = asyncio.Event()
        cpus = fleet.limits.maximum * self._demand.resources.get("CPU", 0.0)
        check_shared(url)
        with connected(self._address, self._placement, self._runtime_env, cpus) as cluster:
            check_shared(url, cluster)
            return run_blocking(lambda: self._run_runners(cluster, work, url, fleet, draining), draining.set)

    async def _run_runners(
        self, cluster: Cluster, work: bytes, url: str, fleet: Fleet, draining: asyncio.Event
    ) -> ExecutionReport:
        async with opened(url) as store:
            await cluster.require(self._demand, NODE_PATIENCE_SECONDS)
            losses = _Losses(store)
            create = self._creator(cluster, work, store, _shared(store), losses)
            supervisor = self._supervisor(None, create, store, fleet, draining)
            try:
                return await run_beside(
                    supervisor.run(), fleet.follow_queue(supervisor, store), follow_nodes(supervisor, cluster)
                )
            finally:
                losses.end()

    def _creator(
        self,
        cluster: Cluster,
        work: bytes,
        store: Store,
        target: str | bytes,
        losses: _Losses,
        first: RayPart | None = None,
    ) -> Callable[[int], Part]:
        """Return a function that returns a new runner."""
        store_id = str(getattr(store, "store_id", ""))
        reference = cluster.ray.put(work)

        runners: dict[int, RayPart] = {}

        def create(number: int) -> Part:
            assignment = ActorAssignment("runner", reference, number, target, store_id, self._demand)
            # A new runner that cannot start does not end the runners that have started.
            predecessor = runners.get(number) or next((part for part in runners.values() if part.has_started), None)
            runners[number] = part = RayPart(f"runner {number}", assignment, cluster, losses.report, predecessor, first)
            return part

        return create

    def _training(
        self,
        cluster: Cluster,
        algorithm: AlgorithmSide | bytes,
        store: Store,
        target: str | bytes,
        losses: _Losses,
    ) -> Part:
        if isinstance(algorithm, bytes):
            assert self._algorithm_demand is not None  # only an algorithm with a demand is pickled
            store_id = str(getattr(store, "store_id", ""))
            assignment = ActorAssignment("algorithm", algorithm, 0, target, store_id, self._algorithm_demand)
            return RayPart("the algorithm", assignment, cluster, losses.report)
        stopped = StopEvent()
        return TaskPart("the algorithm", partial(algorithm, AlgorithmStore(store, stopped), stopped), stopped)

    def _supervisor(
        self,
        training: Part | None,
        create: Callable[[int], Part],
        store: Store,
        fleet: Fleet | None = None,
        drain: asyncio.Event | None = None,
    ) -> Supervisor:
        count = self.n_runners if fleet is None else fleet.limits.minimum
        return Supervisor(
            training,
            [create(number) for number in range(count)],
            store,
            graceful_timeout=self._graceful_timeout,
            terminate_timeout=self._terminate_timeout,
            create=create,
            replacements=self._restarts if fleet is None else fleet.losses,
            drain=drain,
            is_elastic=fleet is not None,
        )


def _url(store: Store) -> str:
    return str(getattr(store, "url", ""))


def _shared(store: Store) -> str | bytes:
    """Return the URL of a store that nodes can open, or the pickled client of a server, which has its key.

    Raises:
        Invalid: the store exists only on this machine.
    """
    url = _url(store)
    if scheme_of(url) not in SHARED_SCHEMES:
        text = without_passwords(url) or f"a {type(store).__name__}"
        raise Invalid(
            "managed_store",
            f"False lets each node open the store, but other nodes cannot open {text}; use a postgresql:// URL, or "
            "leave managed_store out, so that this process serves the store",
        )
    return url if scheme_of(url) == "postgresql" else pack("managed_store", store)


def _check_proxy(algorithm: AlgorithmSide, cluster: Cluster) -> None:
    proxy = algorithm.llm_proxy if isinstance(algorithm, _UsesProxy) else None
    if proxy is not None and proxy.is_local and cluster.has_other_machines:
        raise Invalid(
            "llm_proxy",
            f"listens only on this machine, and the runners are on several; create it with host={cluster.host!r} and "
            "an api_key",
        )


class _Losses:
    """Reports of lost actors to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._later = set[asyncio.Task[None]]()

    async def report(self, process: Mapping[str, Any]) -> None:
        """Report the attempts of a lost process as unresponsive, so that they are repeated; see `close_orphans`.

        A process whose node is lost may live a little longer, and claim again. So the report is repeated for half a
        minute.
        """
        await self._close_attempts(process)
        task = asyncio.create_task(self._repeat(process))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _repeat(self, process: Mapping[str, Any]) -> None:
        for pause in _PAUSES_SECONDS:
            await asyncio.sleep(pause)
            await self._close_attempts(process)

    async def _close_attempts(self, process: Mapping[str, Any]) -> None:
        def is_dead(worker: Mapping[str, Any]) -> bool:
            return all(worker.get(name) == value for name, value in process.items())

        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                await close_orphans(self._store, is_dead)
        except (StoreError, TimeoutError) as error:
            logger.warning("attempts of a lost runner are repeated only after their heartbeats are missing: %s", error)

    def end(self) -> None:
        """End the repetition of reports."""
        for task in self._later:
            task.cancel()
