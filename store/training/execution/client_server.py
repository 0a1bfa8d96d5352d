"""Strategy that runs the algorithm and the runners in processes, on one or several machines, connected by a server.

The sides of a training are the algorithm and the runners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Never

from store.errors import Invalid, StoreError, Unavailable
from store.interface.store import Store
from store.training.execution import environment
from store.training.execution.algorithm_store import AlgorithmStore
from store.training.execution.blocking import run_blocking
from store.training.execution.fleet import Fleet, run_beside
from store.training.execution.parts import Part, TaskPart
from store.training.execution.pickling import pack
from store.training.execution.processes import ProcessAssignment, ProcessPart, opened
from store.training.execution.strategy import AlgorithmSide, ExecutionReport, ExecutionStrategy, RunnerSide
from store.training.execution.supervisor import Supervisor, close_open, settle
from store.training.running.stop_event import StopEvent

if TYPE_CHECKING:
    from store.training.execution.environment import Role

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0


class ClientServerExecutionStrategy(ExecutionStrategy):
    """Strategy that runs the algorithm with a server for the store. Each runner is a process that uses the server.

    The runners may run on this machine (role `both`) or on other machines: start the same program there with role
    `runner`, and here with role `algorithm`. Objects for a process are pickled, so agents must be defined at the top
    level of a module.

    Args:
        role: the sides that this process starts; None for the value of `AGL_CURRENT_ROLE`, by default both.
        server_host: the host on which the server listens, or at which this process reaches the server. None for the
            value of `AGL_SERVER_HOST`, by default localhost.
        server_port: the port of the server, 0 for any free port; None for the value of `AGL_SERVER_PORT`, by default
            any free port for the role `both`, and 4747 for the other roles.
        managed_store: whether to start a server for the store; None for the value of `AGL_MANAGED_STORE`, by default
            true. If false, each process opens the store itself, from a server or a database.
        n_runners: the number of runners that this process starts.
        main_process: the side that runs in this process and not in a child process: "algorithm", or "runner" to debug
            with a single runner.
        graceful_timeout: the maximum number of seconds for which active attempts may continue at the end, and after
            SIGTERM with role `runner`.
        terminate_timeout: seconds after which an interrupted process that has not ended is killed.
        allowed_exit_codes: accepted for compatibility with Agent-lightning and not used.
        restarts: the maximum number of killed runners that are replaced.
        server_patience: for role `runner`, seconds without a response of the server after which the runners end.

    Raises:
        Invalid: an argument or an environment variable is invalid.
    """

    def __init__(
        self,
        role: Role | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        *,
        managed_store: bool | None = None,
        n_runners: int = 1,
        main_process: Literal["algorithm", "runner"] = "algorithm",
        graceful_timeout: float = 10.0,
        terminate_timeout: float = 10.0,
        allowed_exit_codes: Collection[int] = (0, -15),
        restarts: int = 3,
        server_patience: float = 60.0,
    ) -> None:
        del allowed_exit_codes
        self.role = environment.role(role)
        self.server_host = environment.host(server_host)
        self.server_port = environment.port(server_port, self.role)
        self.managed_store = environment.managed(managed_store)
        if n_runners < 1:
            raise Invalid("n_runners", f"{n_runners} is below 1")
        if main_process not in {"algorithm", "runner"}:
            raise Invalid("main_process", f"{main_process!r} is neither 'algorithm' nor 'runner'")
        if main_process == "runner" and (self.role != "both" or n_runners != 1):
            raise Invalid("main_process", "'runner' needs role 'both' and one runner")
        self.n_runners = n_runners
        self._main_process = main_process
        self._graceful_timeout = graceful_timeout
        self._terminate_timeout = terminate_timeout
        self._restarts = restarts
        self._server_patience = server_patience

    @property
    def has_algorithm_here(self) -> bool:
        """Whether the algorithm runs in this process."""
        return self.role != "runner" and self._main_process == "algorithm"

    def use_port(self, port: int) -> None:
        self.server_port = port

    def execute(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        """Run the sides of this process's role until the algorithm has ended; see `ExecutionStrategy`.

        With role `runner`, the store is used only if `managed_store` is false.

        Raises:
            Invalid: a side cannot be sent to another process, or another process cannot open this store.
            RuntimeError: the port is in use; the message contains the program that uses the port.
            Unavailable: with role `runner`, the server cannot be reached.
        """
        if self.role == "runner":
            return self.run_runners(runner, None if self.managed_store else store)
        return run_blocking(lambda: self._run_algorithm(algorithm, runner, store))

    async def _run_algorithm(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        closed: list[str] = []
        try:
            async with self._served(store) as target:
                supervisor = self._supervisor(algorithm, runner, store, target)
                grace = 0.0
                try:
                    await supervisor.run()
                    grace = self._graceful_timeout
                finally:
                    closed += await close_open(store, supervisor.workers)
                    if self.managed_store:
                        # Runners on other machines lose the store when the server stops. So attempts may end first.
                        await settle(store, grace)
        finally:
            if self.managed_store:
                # The server has stopped, so no runner can claim rollouts, and all active attempts can be closed.
                closed += await close_open(store)
        supervisor.report.closed += closed
        return supervisor.report

    def _supervisor(
        self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store, target: str | Store
    ) -> Supervisor:
        store_id = str(getattr(store, "store_id", ""))
        stopped = StopEvent()
        create: Callable[[int], Part] | None = None
        if self._main_process == "runner":
            assignment = ProcessAssignment(
                "algorithm", pack("algorithm", algorithm), 0, pack("managed_store", target), store_id
            )
            training: Part = ProcessPart("the algorithm", assignment)
            runners: list[Part] = [TaskPart("runner 0", partial(runner, store, 0, stopped), stopped)]
        else:
            create = _creator(runner, target, store_id) if self.role == "both" else None
            work = partial(algorithm, AlgorithmStore(store, stopped), stopped)
            training = TaskPart("the algorithm", work, stopped)
            runners = [] if create is None else [create(number) for number in range(self.n_runners)]
        return Supervisor(
            training,
            runners,
            store,
            graceful_timeout=self._graceful_timeout,
            terminate_timeout=self._terminate_timeout,
            create=create,
            replacements=self._restarts,
        )

    @contextlib.asynccontextmanager
    async def _served(self, store: Store) -> AsyncGenerator[str | Store]:
        """Serve the store and yield the server's URL; yield the store itself if `managed_store` is false."""
        if not self.managed_store:
            yield store
            return
        async with served(store, self.server_host, self.server_port) as url:
            yield url

    def run_runners(
        self, runner: RunnerSide, place: str | Store | None = None, fleet: Fleet | None = None
    ) -> ExecutionReport:
        """Run only the runners' side, until each runner has reached its `max_rollouts`, or SIGTERM.

        After SIGTERM, the runners claim nothing more, attempts may continue for `graceful_timeout` seconds, and the
        rollouts of the remaining attempts return to the queue. After Ctrl+C or a second SIGTERM, the rollouts of all
        attempts return at once.

        Args:
            runner: the runners' side, called once for each worker.
            place: the URL of the store, or a store; None for the server at `server_host` and `server_port`.
            fleet: settings of runners whose number follows the queue, until SIGTERM; None for `n_runners`.

        Raises:
            KeyboardInterrupt, SystemExit: Ctrl+C or SIGTERM ended the runners.
            Invalid: the side cannot be sent to another process.
            Unavailable: the server does not answer.
            StoreError: the store refused the last runner.
            RunnersGone: all runners ended with other errors, or too many runners of a fleet were lost.
        """
        target = place or f"http://{self.server_host}:{self.server_port}"
        draining = asyncio.Event()
        return run_blocking(lambda: self._run_runners(runner, target, fleet, draining), draining.set)

    async def _run_runners(
        self, runner: RunnerSide, target: str | Store, fleet: Fleet | None, draining: asyncio.Event
    ) -> ExecutionReport:
        stopped = StopEvent()
        count = self.n_runners if fleet is None else fleet.limits.minimum
        async with opened(target) as local_store:
            create: Callable[[int], Part] | None = None
            if fleet is None and count == 1:
                parts: list[Part] = [TaskPart("runner 0", partial(runner, local_store, 0, stopped), stopped)]
            else:
                create = _creator(runner, target, "", self._graceful_timeout)
                parts = [create(number) for number in range(count)]
            supervisor = Supervisor(
                None,
                parts,
                local_store,
                graceful_timeout=self._graceful_timeout,
                terminate_timeout=self._terminate_timeout,
                create=create,
                replacements=self._restarts if fleet is None else fleet.losses,
                drain=draining,
                is_elastic=fleet is not None,
            )
            url = str(target if isinstance(target, str) else getattr(target, "url", ""))
            watches = [] if fleet is None else [fleet.follow_queue(supervisor, local_store)]
            return await run_beside(supervisor.run(), self._watch_server(url), *watches)

    async def _watch_server(self, url: str) -> Never:
        """Raise an error after `server_patience` seconds without a response of the server.

        If the URL belongs to a database, the call waits until it is cancelled.

        Raises:
            Unavailable: the server does not respond.
        """
        if not url.startswith("http"):
            await asyncio.Event().wait()
        from store.client import HTTPStore

        loop = asyncio.get_running_loop()
        async with HTTPStore(url, retry_seconds=0.0) as store:
            answered_at = loop.time()
            while loop.time() - answered_at <= self._server_patience:
                await asyncio.sleep(min(_LOOK_SECONDS, self._server_patience / 4))
                try:
                    await store.statistics()
                except StoreError as error:
                    logger.warning("the server does not answer: %s", error)
                else:
                    answered_at = loop.time()
        raise Unavailable(f"the server at {url} has not answered for {self._server_patience:g} s")


@contextlib.asynccontextmanager
async def served(store: Store, host: str, port: int) -> AsyncGenerator[str]:
    """Serve a store during a block, and yield the server's URL.

    Raises:
        PortTaken: another program listens on the port.
    """
    # Processes of runners import this module but need no server, so the server is imported here.
    from store.server.store_server import StoreServer

    server = StoreServer(store, host, port)
    await server.start()
    try:
        yield server.endpoint
    finally:
        await server.stop()


def _creator(
    runner: RunnerSide, target: str | Store, store_id: str, grace: float | None = None
) -> Callable[[int], Part]:
    """Return a function that returns the process of a runner. See `ProcessAssignment` for `store_id` and `grace`.

    Raises:
        Invalid: the side or the store cannot be sent to another process.
    """
    work, store = pack("agent", runner), pack("managed_store", target)

    def create(number: int) -> Part:
        return ProcessPart(f"runner {number}", ProcessAssignment("runner", work, number, store, store_id, grace))

    return create
