"""Processes of operations that are forked from one that has imported the package."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import sys
from asyncio import StreamReader, StreamWriter
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any, Self

import pytest

# This module names the modules that the fork server imports first.
import tests.faults.processes  # noqa: F401  # pyright: ignore[reportUnusedImport]
from store.operations import run

_CONTEXT = multiprocessing.get_context("forkserver")


class ForkedOperation:
    """A process that runs one operation, with what the scheduler uses of `asyncio.subprocess.Process`."""

    def __init__(self, process: Any, stdin: StreamWriter, stdout: StreamReader) -> None:
        self._process = process
        self.stdin, self.stdout = stdin, stdout
        self.pid: int = process.pid

    @classmethod
    async def start(cls, *_: str, **options: Any) -> Self:
        """Start a process, whatever the command."""
        assert options["stdin"] == options["stdout"] == asyncio.subprocess.PIPE
        ours, theirs = socket.socketpair()
        with theirs:
            process = _CONTEXT.Process(target=_operate, args=(theirs,), daemon=True)
            process.start()
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, writer, reader)

    @property
    def returncode(self) -> int | None:
        """The exit code of the process; None while it runs."""
        code: int | None = self._process.exitcode
        return code

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    async def wait(self) -> int | None:
        """Wait until the process has ended."""
        await asyncio.to_thread(wait, [self._process.sentinel])
        self.stdin.close()
        return self.returncode


def _operate(pipe: socket.socket) -> None:
    os.dup2(pipe.fileno(), 0)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(os.dup(0), "w")
    pipe.close()
    run.main()


@pytest.fixture
def forked_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of operations, which takes hundredths of a second.

    The tests of the scheduler start interpreters, as a server does.
    """
    forkserver.ensure_running()
    monkeypatch.setattr("store.server.process.scheduler.asyncio.create_subprocess_exec", ForkedOperation.start)
