"""Servers of one or several processes, as a shell starts them, for tests that signal and kill them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from store.cli import main
from store.server.process import workers as worker_processes
from store.server.process.workers import Seat, Work
from tests.faults import processes

HANG = 200
SCRIPT = "from store.cli import main; main()"
# The context of `processes`, whose server has the imports.
_CONTEXT = multiprocessing.get_context("forkserver")


class ForkedCommand:
    """A command in a process of its own, with the part of the interface of `Popen` that tests use.

    The process is forked from one with the imports of the tests. A fresh interpreter takes a second of processor time,
    which the test of systemd spends.

    Args:
        arguments: those of the command.
        environment: that of the process, by default the one of this process.
        directory: the working directory of the process, by default the one of this process.
        before: a function of a module that the process calls first.
        leads: whether the process leads a process group of its own, and may start processes.
    """

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        directory: Path | None = None,
        before: Callable[[], None] | None = None,
        leads: bool = False,
    ) -> None:
        output, its_output = _CONTEXT.Pipe(duplex=False)
        errors, its_errors = _CONTEXT.Pipe(duplex=False)
        details = (arguments, dict(os.environ) if environment is None else environment, str(directory or Path.cwd()))
        self._process = _CONTEXT.Process(
            target=_command, args=(its_output, its_errors, *details, before, leads), daemon=not leads
        )
        self._process.start()
        for written in (its_output, its_errors):
            written.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(connection.fileno())) for connection in (output, errors))
        for read in (output, errors):
            read.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        processes.kill(self._process)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Read the output and the errors until the process ends, and return them."""
        with ThreadPoolExecutor(2) as readers:
            output, errors = readers.submit(self.stdout.read), readers.submit(self.stderr.read)
            self._process.join(timeout)
            if self._process.exitcode is None:
                processes.kill(self._process)
                raise TimeoutError(f"the command did not end within {timeout:g} s")
            return output.result(), errors.result()

    def end(self) -> None:
        """Kill the process if it runs, and close its pipes."""
        processes.kill(self._process)
        self.stdout.close()
        self.stderr.close()


def _command(
    output: Connection,
    errors: Connection,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    directory: str,
    before: Callable[[], None] | None,
    leads: bool,
) -> None:
    """Run a command as a shell does: with its own output, environment and directory, and its process group."""
    if leads:
        os.setsid()
    for pipe, descriptor in ((output, 1), (errors, 2)):
        os.dup2(pipe.fileno(), descriptor)
        pipe.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    if before is not None:
        before()
    sys.argv = ["rollbook", *arguments]
    main()


class Fleet:
    """A server of several processes.

    Attributes:
        url: where it listens.
        process: the parent.
        told: the first line of its output.
    """

    def __init__(self, process: ForkedCommand, url: str, told: str) -> None:
        self.process = process
        self.url = url
        self.told = told

    def workers(self) -> list[psutil.Process]:
        """The processes that serve, by their age."""
        pool: list[psutil.Process] = []
        for child in psutil.Process(self.process.pid).children():
            # A worker may have ended meanwhile.
            with suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    pool.append(child)
        return pool

    async def measured(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """What the metrics say, by name and labels."""
        async with session.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
            assert answer.status == 200, text
            lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was logged."""
        _, errors = await asyncio.to_thread(self.process.communicate, HANG)
        assert self.process.returncode is not None
        return self.process.returncode, errors


class _ForkedWorker(ForkProcess):
    """A worker with a copy of the listening socket, because a listener closes in each fork of its process."""

    _args: tuple[Work, Seat]

    def start(self) -> None:
        work, seat = self._args
        with seat.listener.dup() as listener:
            self._args = (work, replace(seat, listener=listener))
            super().start()

    def run(self) -> None:
        # A worker notices by the end of its connection that its parent is gone.
        for connection in _OF_PARENT:
            connection.close()
        super().run()


class _ForkContext(ForkContext):
    Process = _ForkedWorker

    def Pipe(self, duplex: bool = True) -> tuple[Any, Any]:  # noqa: N802 (the name in the base class)
        """Return a connection of the parent and one of the worker."""
        pair = super().Pipe(duplex)
        _OF_PARENT.append(pair[0])
        return pair


_OF_PARENT: list[Any] = []
"""The connections of this parent to its workers."""


def fork_workers() -> None:
    """Fork the workers of this process's server, which has the imports and no threads yet."""
    worker_processes.__dict__["_CONTEXT"] = _ForkContext()


@asynccontextmanager
async def fleet(
    db: str,
    *options: str,
    workers: int = 2,
    port: int = 0,
    before: Callable[[], None] = fork_workers,
) -> AsyncGenerator[Fleet]:
    """Give a running server; whatever happens, all of it is gone afterwards.

    Args:
        db: the URL of its store.
        options: more options of `rollbook serve`.
        workers: the number of its workers.
        port: where it listens.
        before: a function of a module that the parent calls first. By default, its workers are forked. As new
            interpreters, which they are for users, each takes a second of processor time.
    """
    process = ForkedCommand(
        *("serve", "--db", db, "--port", str(port), "--workers", str(workers)), *options, before=before, leads=True
    )
    try:
        told = await asyncio.to_thread(process.stdout.readline)
        match = re.search(r"http://\S+", told)
        assert match, (told, process.communicate(HANG))
        yield Fleet(process, match[0], told)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.end()


def socket_directories(server: Fleet) -> list[Path]:
    """Where the workers meet: the directories of their Unix sockets."""
    sockets = [connection.laddr for worker in server.workers() for connection in worker.net_connections("unix")]
    paths = {Path(address).parent for address in sockets if isinstance(address, str) and "rollbook-workers" in address}
    assert len(paths) == 1
    return list(paths)


def spawn_workers() -> None:
    """Leave the workers new interpreters, as they are for users."""


async def until(happened: Callable[[], bool]) -> None:
    """Return once something has happened."""
    async with asyncio.timeout(HANG):
        while not happened():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)
