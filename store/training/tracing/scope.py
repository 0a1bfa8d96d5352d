"""The scope of the running code, stored in a context variable: the attempt that the code belongs to."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from opentelemetry import trace

from store.errors import WrongProcess
from store.runtime import process
from store.training.tracing.recorder import Recorder

P = ParamSpec("P")
T = TypeVar("T")

_current: Final[contextvars.ContextVar[AttemptScope | None]] = contextvars.ContextVar("rollbook_scope", default=None)


@dataclass(eq=False, slots=True, kw_only=True)
class AttemptScope:
    """An attempt whose agent runs in this process, or a trace without an attempt."""

    name: str
    rollout_id: str | None
    """The id of the rollout; None for a trace without an attempt, whose spans stay in this process."""
    attempt_id: str | None
    worker_id: str | None
    tracer: trace.Tracer
    """Tracer for spans of this attempt; any OpenTelemetry tracer of the same provider works as well."""
    recorder: Recorder
    """Receiver of the finished spans."""
    runner: Any = None
    """The runner of the attempt, if there is one."""
    is_open: bool = True
    """Whether the attempt is still running; spans that end later are not recorded."""
    process: int = field(default_factory=lambda: process.number)
    """The id of the process in which the attempt runs; a forked child cannot record spans of the attempt."""


def current_scope() -> AttemptScope | None:
    """Return the attempt that the calling code belongs to, or None outside of attempts.

    Raises:
        WrongProcess: this process was forked during the attempt, so it cannot record spans.
    """
    return _scope("recording a span")


def _scope(operation: str) -> AttemptScope | None:
    scope = _current.get()
    if scope is None or not scope.is_open:
        return None
    if scope.process != process.number:
        raise WrongProcess(scope.process, process.number, operation)
    return scope


def require_scope(operation: str) -> AttemptScope:
    """Return the attempt that the calling code belongs to.

    Raises:
        RuntimeError: the code does not belong to an attempt.
        WrongProcess: this process was forked during the attempt, so it cannot record spans.
    """
    scope = _scope(operation)
    if scope is None:
        raise RuntimeError(
            f"{operation} outside of an attempt: no trace context is open here. In a thread of your own, run the "
            "function as `run_in_scope(function)`; to build the span without recording it, pass propagate=False"
        )
    return scope


@contextmanager
def entered(scope: AttemptScope) -> Generator[AttemptScope]:
    """Make a scope the current scope during a block."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def run_in_scope(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that runs in the current attempt, below the current span.

    Use this function for threads and executors, which start with an empty context:
    `pool.submit(run_in_scope(work), item)`. Asyncio tasks and `asyncio.to_thread` do not need the function.
    """
    context = contextvars.copy_context()

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        # Several threads may call this function at once, but a context can be entered only once at a time. So each call
        # copies the context.
        return context.copy().run(function, *args, **kwargs)

    return run
