"""Processes that a test starts and kills, and that end with the test."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import Callable, Coroutine, Generator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

# Children are forked from a process that has imported everything and has neither threads nor connections: they start
# in hundredths of a second, and are as clean as spawned ones.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *(
            "store.opening",
            "store.operations.run",
            "store.sql.store",
            "store.rescoring.worker",
            "store.server.app",
            "store.testing.samples",
            "store.training.running.runner",
            "store.verification.pool",
        ),
        *("tests.client.server_process", "tests.examples.guessing", "tests.faults.work", "tests.operations.work"),
        *("tests.faults.gap_hammer", "tests.faults.turn_taking"),
    ]
)

_LEAVE_SECONDS = 60


def start(main: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> BaseProcess:
    """Run a coroutine function of a module in a process of its own."""
    process = _CONTEXT.Process(target=_run, args=(main, args), daemon=True)
    process.start()
    return process


def _run(main: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...]) -> None:
    asyncio.run(main(*args))


class Killable:
    """A process that is ready, and that ends when it is killed or when the tests end."""

    def __init__(self, main: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Start `main(ready, *args)`, which calls `until_left(ready)` when it is ready, and wait until it does."""
        ready, its_end = _CONTEXT.Pipe()
        self._process = start(main, its_end, *args)
        its_end.close()
        # Raises EOFError if the process ends first.
        ready.recv()
        self._ready = ready

    def kill(self) -> None:
        """Kill it without a chance to finish anything."""
        kill(self._process)
        self._ready.close()


async def until_left(ready: Connection) -> None:
    """Let the test know that this process is ready, and return when the test process has ended."""
    ready.send(None)
    with contextlib.suppress(EOFError, OSError):
        await asyncio.to_thread(ready.recv)


@contextlib.contextmanager
def running(
    main: Callable[..., Coroutine[Any, Any, None]], *argument_lists: tuple[Any, ...]
) -> Generator[list[BaseProcess]]:
    """Run one process for each list of arguments; whatever happens, none is left."""
    started = [start(main, *args) for args in argument_lists]
    try:
        yield started
    finally:
        for process in started:
            kill(process)


def kill(process: BaseProcess) -> None:
    """Kill a process, as the kernel does when memory runs out; one that has left already is fine."""
    process.kill()
    process.join()


def leave(processes: list[BaseProcess], seconds: float = _LEAVE_SECONDS) -> list[int | None]:
    """Wait for processes to end by themselves and return their exit codes; None for one that did not."""
    for process in processes:
        process.join(seconds)
    return [process.exitcode for process in processes]
