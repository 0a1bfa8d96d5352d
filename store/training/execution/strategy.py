"""What runs an algorithm beside its runners: the two sides as functions, and what is told of how it went."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.training.runner import ExecutionEvent

AlgorithmSide = Callable[["Store", "ExecutionEvent"], Awaitable[None]]
"""Trains on a store; the event is set when it should end."""

RunnerSide = Callable[["Store", int, "ExecutionEvent"], Awaitable[None]]
"""Runs the rollouts of a store as one worker, until the event is set; cancelled, it closes what it runs as failed."""


class RunnersGone(RuntimeError):
    """No runner is left, while the algorithm waits for them."""


@dataclass(slots=True)
class ExecutionReport:
    """How the runners fared. What went wrong here did not keep the algorithm from its end."""

    crashed: list[str] = field(default_factory=list[str])
    """Runners that ended with an error, and which; those that were killed from outside."""
    replaced: int = 0
    """How many runners were started anew after somebody had killed them."""
    killed: list[str] = field(default_factory=list[str])
    """Runners that did not leave in time and were killed, or left behind, at the end."""
    closed: list[str] = field(default_factory=list[str])
    """Rollouts whose attempts were still running at the end, and were closed as failed."""


class ExecutionStrategy(ABC):
    """Runs the two sides of a training on one store, and ends both."""

    n_runners: int = 1

    @abstractmethod
    def execute(self, algorithm: AlgorithmSide, runner: RunnerSide, store: Store) -> ExecutionReport:
        """Run until the algorithm has ended, and then end the runners: those that are at work finish, for a while.

        Raises:
            KeyboardInterrupt: Ctrl+C; both sides were ended before.
            SystemExit: the same after SIGTERM, with 143, unless the program has a handler of its own.
            RunnersGone: no runner is left, and the algorithm needs one.
            Exception: what the algorithm raised.
        """
