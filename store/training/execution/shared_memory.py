"""Strategy that runs the algorithm and the runners as threads of one process, which share the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from store.errors import Invalid
from store.training.execution.algorithm_store import AlgorithmStore
from store.training.execution.blocking import run_blocking
from store.training.execution.parts import Part, TaskPart, ThreadPart
from store.training.execution.strategy import AlgorithmSide, ExecutionReport, ExecutionStrategy, RunnerSide
from store.training.execution.supervisor import Supervisor, close_open
from store.training.running.stop_event import StopEvent

if TYPE_CHECKING:
    from store.interface.store import Store


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """Strategy that runs the algorithm in the calling thread, and each runner in a thread with its own event loop.

    Args:
        n_runners: the number of runners.
        main_thread: the side that runs in the calling thread: "algorithm", or "runner" if there is only one runner.
        join_timeout: the maximum number of seconds to wait for the end of an interrupted thread. After that, the thread
            is left running.
        graceful_delay: the maximum number of seconds for which active attempts may continue at the end, before they are
            interrupted.
        poll_interval: accepted for compatibility with Agent-lightning and not used.
        managed_store: accepted for compatibility and not used, because every store may be used from any thread.

    Raises:
        Invalid: `n_runners` is below 1, `main_thread` is unknown, or several runners would share the calling thread.
    """

    def __init__(
        self,
        n_runners: int = 1,
        main_thread: Literal["algorithm", "runner"] = "algorithm",
        join_timeout: float = 15.0,
        graceful_delay: float = 10.0,
        poll_interval: float = 0.05,
        managed_store: bool | None = None,  # noqa: FBT001 - Agent-lightning's signature
    ) -> None:
        del poll_interval, managed_store
        if n_runners < 1:
            raise Invalid("n_runners", f"{n_runners} is below 1")
        if main_thread not in {"algorithm", "runner"}:
            raise Invalid("main_thread", f"{main_thread!r} is neither 'algorithm' nor 'runner'")
        if main_thread == "runner" and n_runners != 1:
            raise Invalid("main_thread", f"only one runner can use the calling thread, not {n_runners}")
        self.n_runners = n_runners
        self._main_thread = main_thread
        self._join_timeout = join_timeout
        self._graceful_delay = graceful_delay

    def execute(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        """Run until the algorithm has ended; see `ExecutionStrategy`."""
        return run_blocking(lambda: self._execute(algorithm, runner, store))

    async def _execute(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        stop_training, stop_running = StopEvent(), StopEvent()
        is_runner_here = self._main_thread == "runner"
        kind: type[TaskPart | ThreadPart] = ThreadPart if is_runner_here else TaskPart
        training = kind(
            "the algorithm", partial(algorithm, AlgorithmStore(store, stop_training), stop_training), stop_training
        )
        kind = TaskPart if is_runner_here else ThreadPart
        runners: list[Part] = [
            kind(f"runner {number}", partial(runner, store, number, stop_running), stop_running)
            for number in range(self.n_runners)
        ]
        supervisor = Supervisor(
            training,
            runners,
            store,
            graceful_timeout=self._graceful_delay,
            terminate_timeout=self._join_timeout,
        )
        try:
            await supervisor.run()
        finally:
            supervisor.report.closed += await close_open(store, supervisor.workers)
        return supervisor.report
