"""Strategy that runs only the algorithm, on a store that needs no runners."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from store.training.execution.algorithm_store import AlgorithmStore
from store.training.execution.blocking import run_blocking
from store.training.execution.strategy import AlgorithmSide, ExecutionReport, ExecutionStrategy, RunnerSide
from store.training.execution.supervisor import ungrouped

if TYPE_CHECKING:
    from store.interface.store import Store


class ReplayExecutionStrategy(ExecutionStrategy):
    """Strategy that runs the algorithm in the calling thread, without runners. The store is a `ReplayStore`."""

    n_runners: int = 0

    def execute(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        """Run until the algorithm has ended; see `ExecutionStrategy`. The runners' side is not used."""
        del runner
        event = threading.Event()

        async def train() -> None:
            try:
                await algorithm(AlgorithmStore(store, event), event)
            except BaseExceptionGroup as group:
                raise ungrouped(group) from None

        run_blocking(train)
        return ExecutionReport()
