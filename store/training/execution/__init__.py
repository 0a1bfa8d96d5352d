"""Execution strategies, which run an algorithm and its runners in threads, or in processes on one or more machines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.training.execution.client_server import ClientServerExecutionStrategy
    from store.training.execution.shared_memory import SharedMemoryExecutionStrategy
    from store.training.execution.strategy import ExecutionReport, ExecutionStrategy, RunnersGone

# The names are imported at first use, because processes of runners import this package but need no strategy.
_LATE = {
    "ClientServerExecutionStrategy": "store.training.execution.client_server",
    "ExecutionReport": "store.training.execution.strategy",
    "ExecutionStrategy": "store.training.execution.strategy",
    "RunnersGone": "store.training.execution.strategy",
    "SharedMemoryExecutionStrategy": "store.training.execution.shared_memory",
}

__all__ = [
    "ClientServerExecutionStrategy",
    "ExecutionReport",
    "ExecutionStrategy",
    "RunnersGone",
    "SharedMemoryExecutionStrategy",
]

# With this function, a type checker would accept any name, so the function is hidden from type checkers.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_LATE[name]), name)
        return value
