"""Interface of execution strategies: the two sides of a training as functions, and the report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.runner import ExecutionEvent

AlgorithmSide = Callable[["Store", "ExecutionEvent"], Awaitable[None]]
"""Function that runs the algorithm on a store; the event is set when no runner is left, or at an interrupt."""

RunnerSide = Callable[["Store", int, "ExecutionEvent"], Awaitable[None]]
"""Function that runs rollouts as one worker until the event is set; if cancelled, it closes its attempts as failed."""


class RunnersGone(RuntimeError):
    """No runner is left, but the algorithm waits for one."""


@dataclass(slots=True)
class ExecutionReport:
    """Report about the runners. The algorithm continued in spite of the problems in it."""

    crashed: list[str] = field(default_factory=list[str])
    """Names and errors of runners that ended with an error or were killed from outside."""
    replaced: int = 0
    """The number of killed runners that were replaced."""
    killed: list[str] = field(default_factory=list[str])
    """Names of runners that did not end in time and were killed or left running at the end."""
    closed: list[str] = field(default_factory=list[str])
    """Ids of rollouts whose attempts were still running at the end, and were closed as failed."""


class ExecutionStrategy(ABC):
    """Base class of strategies. A strategy runs the two sides of a training on one store, and ends both."""

    n_runners: int = 1

    @abstractmethod
    def execute(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        """Run until the algorithm has ended, then end the runners; active attempts get some time to finish.

        Raises:
            KeyboardInterrupt: Ctrl+C; both sides have ended.
            SystemExit: SIGTERM, unless the program has its own handler; both sides have ended. The status is 143.
            RunnersGone: no runner is left, but the algorithm needs one.
            Exception: the algorithm raised it.
        """
