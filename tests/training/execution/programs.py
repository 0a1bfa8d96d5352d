"""Programs that train, in processes that tests interrupt and kill."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

# The module names what the fork server imports first.
import tests.faults.processes  # noqa: F401  # pyright: ignore[reportUnusedImport]

_CONTEXT = multiprocessing.get_context("forkserver")


class Program(psutil.Process):
    """A program that runs in a process forked from one with the imports, which saves a second of processor time.

    The processes that it starts are new interpreters, as for users.
    """

    def __init__(self, process: Any) -> None:
        super().__init__(process.pid)
        self._forked = process

    def exit_code(self, timeout: float | None = None) -> int | None:
        """Wait for the end, and return the exit code; None if the program still runs."""
        self._forked.join(timeout)
        return self._forked.exitcode


@contextmanager
def running(main: Callable[..., None], *arguments: str, log: Path) -> Generator[Program]:
    """Run `main(*arguments)` as a program that writes to a log; at the end, none of its processes is left."""
    process = _CONTEXT.Process(target=_run, args=(main, arguments, str(log)), daemon=False)
    process.start()
    program = Program(process)
    family: list[psutil.Process] = []
    try:
        yield program
    finally:
        if process.is_alive():
            with suppress(psutil.NoSuchProcess):
                family = program.children(recursive=True)
        process.kill()
        process.join()
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()


def _run(main: Callable[..., None], arguments: tuple[str, ...], log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    main(*arguments)
