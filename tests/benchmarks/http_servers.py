"""The measured servers, each in its own process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peer_environment import ROOT
from tests.postgres import free_port

PYTHON = Path(sys.executable)
_START_SECONDS = 180
_STOP_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    url: str
    pid: int

    @property
    def where(self) -> dict[str, Any]:
        """The arguments by which the client finds it."""
        return {"url": self.url, "pid": self.pid}


@contextmanager
def rollbook(database: str) -> Generator[Server]:
    """Run `rollbook serve` on a database."""
    with _serving(str(PYTHON.parent / "rollbook"), "serve", "--db", database) as server:
        yield server


@contextmanager
def upstream(python: Path) -> Generator[Server]:
    """Run Agent-lightning's own server, on its store in memory."""
    # Beside the interpreter, whose name may be a link out of the environment.
    command = [str(python.parent / "agl"), "store", "--host", "127.0.0.1", "--log-level", "WARNING"]
    with _serving(*command) as server:
        yield server


@contextmanager
def echo() -> Generator[Server]:
    """Run the application that does nothing with a span but validate and return it."""
    with _serving(str(PYTHON), "-m", "tests.benchmarks.http_echo") as server:
        yield server


@contextmanager
def _serving(*command: str) -> Generator[Server]:
    port = free_port()
    # Agent-lightning reads where its store is from the environment, and litellm a list of prices from the network.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AGL_", "OTEL_"))}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**inherited, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        try:
            server = Server(f"http://127.0.0.1:{port}", process.pid)
            deadline = time.monotonic() + _START_SECONDS
            while not _is_healthy(server.url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{' '.join(command)} does not answer:\n{log.read()[-4000:]}")
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_healthy(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/agl/health", timeout=5) as answer:
        return answer.status == 200
    return False
