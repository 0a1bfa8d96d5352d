"""Processes of a verification that are forked from one that has imported the package."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Self

import pytest

# This module names the modules that the fork server imports first.
import tests.faults.processes  # noqa: F401  # pyright: ignore[reportUnusedImport]
from store.verification import pool

_CONTEXT = multiprocessing.get_context("forkserver")


class ForkedHelper:
    """A process that does the jobs of a verification, with what `pool` uses of `subprocess.Popen`."""

    def __init__(self) -> None:
        (orders, order_end), (answer_end, answers) = _CONTEXT.Pipe(duplex=False), _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_work, args=(orders, answers), daemon=True)
        self._process.start()
        self.stdin, self.stdout = (
            os.fdopen(os.dup(order_end.fileno()), "wb"),
            os.fdopen(os.dup(answer_end.fileno()), "rb"),
        )
        for end in (orders, order_end, answer_end, answers):
            end.close()

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return self._process.pid

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        try:
            self.stdin.close()
        finally:
            self._process.join()


def _work(orders: Connection, answers: Connection) -> None:
    sys.stdin, sys.stdout = os.fdopen(os.dup(orders.fileno())), os.fdopen(os.dup(answers.fileno()), "w")
    orders.close()
    answers.close()
    # The test kills the process, or closes the pipes.
    with contextlib.suppress(BrokenPipeError):
        pool.main()


@pytest.fixture
def forked_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a verification, which takes hundredths of a second."""
    forkserver.ensure_running()
    monkeypatch.setattr(pool, "start", ForkedHelper)
