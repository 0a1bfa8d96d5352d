"""Servers of one or several processes, as a shell starts them, for tests that signal and kill them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import psutil

HANG = 200
SCRIPT = "from store.cli import main; main()"


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
        found: list[psutil.Process] = []
        for child in psutil.Process(self.process.pid).children():
            # A worker may have ended meanwhile.
            with suppress(psutil.NoSuchProcess):
                if "--multiprocessing-fork" in child.cmdline():
                    found.append(child)
        return found

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
        found = re.search(r"http://\S+", told)
        assert found, (told, await process.communicate())
        yield Fleet(process, found[0], told)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def until(happened: Callable[[], bool]) -> None:
    """Return once something has happened."""
    async with asyncio.timeout(HANG):
        while not happened():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)
