"""Servers of one or several processes, as a shell starts them, for tests that signal and kill them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import psutil

from store.cli import main
from tests.faults import processes

HANG = 200
SCRIPT = "from store.cli import main; main()"
# The context of `processes`, whose server has the imports.
_CONTEXT = multiprocessing.get_context("forkserver")


class ForkedCommand:
    """A command in a process of its own, with the part of the interface of `Popen` that tests use.

    The process is forked from one with the imports of the tests. A fresh interpreter takes a second of processor time,
    which the tests of workers and of systemd spend.

    Args:
        arguments: those of the command.
        environment: that of the process, by default the one of this process.
        directory: the working directory of the process, by default the one of this process.
    """

    def __init__(
        self, *arguments: str, environment: dict[str, str] | None = None, directory: Path | None = None
    ) -> None:
        output, its_output = _CONTEXT.Pipe(duplex=False)
        errors, its_errors = _CONTEXT.Pipe(duplex=False)
        details = (arguments, dict(os.environ) if environment is None else environment, str(directory or Path.cwd()))
        self._process = _CONTEXT.Process(target=_command, args=(its_output, its_errors, *details), daemon=True)
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
    output: Connection, errors: Connection, arguments: tuple[str, ...], environment: dict[str, str], directory: str
) -> None:
    """Run a command as a shell does: with its own output, environment and directory."""
    for pipe, descriptor in ((output, 1), (errors, 2)):
        os.dup2(pipe.fileno(), descriptor)
        pipe.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = ["rollbook", *arguments]
    main()


class Fleet:
    """A server of several processes.

    Attributes:
        url: where it listens.
        process: the parent.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str, told: str) -> None:
        self.process = process
        self.url = url
        self.told = told

    def workers(self) -> list[psutil.Process]:
        """The processes that serve, by their age."""
        pool: list[psutil.Process] = []
        for child in psutil.Process(self.process.pid).children():
            # A worker may have ended meanwhile.
            with suppress(psutil.NoSuchProcess):
                if "--multiprocessing-fork" in child.cmdline():
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
        async with asyncio.timeout(HANG):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@asynccontextmanager
async def fleet(db: str, *options: str, workers: int = 2, port: int = 0, script: str = SCRIPT) -> AsyncGenerator[Fleet]:
    """Give a running server; whatever happens, all of it is gone afterwards."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, "serve", "--db", db, "--port", str(port), "--workers", str(workers)),
        *options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A group of its own, so that a test may signal all of it, as a terminal does.
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(HANG):
            told = (await process.stdout.readline()).decode()
        match = re.search(r"http://\S+", told)
        assert match, (told, await process.communicate())
        yield Fleet(process, match[0], told)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def until(happened: Callable[[], bool]) -> None:
    """Return once something has happened."""
    async with asyncio.timeout(HANG):
        while not happened():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)
