"""Interface of execution strategies: the two sides of a training as functions, and the report.

The sides are the algorithm and the runners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store.errors import Invalid

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.running.runner import ExecutionEvent

AlgorithmSide = Callable[["Store", "ExecutionEvent"], Awaitable[None]]
"""Function that runs the algorithm on a store. The event is set when no runner is left, or at an interruption."""

RunnerSide = Callable[["Store", int, "ExecutionEvent"], Awaitable[None]]
"""Function that runs the rollouts of a store until the event is set.

The second argument is the number of the worker. If the call is cancelled, the function closes the worker's attempts as
failed; after `StopEvent.drain`, it puts their rollouts back into the queue.
"""


class RunnersGone(RuntimeError):
    """No runner is left, but the algorithm waits for one."""


@dataclass(slots=True)
class ExecutionReport:
    """Report about problems of the runners that did not stop the algorithm."""

    crashed: list[str] = field(default_factory=list[str])
    """Names and errors of runners that ended with an error or were killed from outside."""
    replaced: int = 0
    """The number of killed runners that were replaced."""
    moved: int = 0
    """The number of runners that ended because their machine was to be shut down, and were replaced."""
    killed: list[str] = field(default_factory=list[str])
    """Names of runners that did not end in time and were killed or left running at the end."""
    closed: list[str] = field(default_factory=list[str])
    """Ids of rollouts whose attempts were still running at the end, and were closed as failed."""


class ExecutionStrategy(ABC):
    """Base class of strategies. A strategy runs the two sides of a training on one store, and ends both."""

    n_runners: int = 1

    @property
    def has_algorithm_here(self) -> bool:
        """Whether the algorithm runs in this process."""
        return True

    def use_port(self, port: int) -> None:
        """Set the port of the server that the strategy starts for the store.

        Raises:
            Invalid: the strategy starts no server.
        """
        raise Invalid(
            "port",
            f"{type(self).__name__} has no server, so it cannot use port {port}; leave port out, or use strategy='cs'",
        )

    @abstractmethod
    def execute(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        """Run until the algorithm has ended, then end the runners; active attempts get some time to finish.

        Raises:
            KeyboardInterrupt: Ctrl+C was pressed; both sides have ended.
            SystemExit: the process received SIGTERM, and the program has no handler for it. Both sides have ended. The
                exit status is 143.
            RunnersGone: no runner is left, but the algorithm needs one.
            Exception: an exception that the algorithm raised.
        """
