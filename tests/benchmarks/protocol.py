"""The protocol between processes: requests and responses as lines of JSON over a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


def serve(target: Any) -> None:
    """Answer commands from stdin with an object's methods, coroutines or not, until its end, all in one event loop.

    What is printed meanwhile goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            asked = json.loads(line)
            answers.write(json.dumps(runner.run(_outcome(target, **asked))) + "\n")
            answers.flush()


async def _outcome(target: Any, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    async def call() -> Any:
        result = getattr(target, command)(**arguments)
        return await result if inspect.isawaitable(result) else result

    (outcome,) = await asyncio.gather(call(), return_exceptions=True)
    if isinstance(outcome, BaseException):
        return {"error": "".join(traceback.format_exception(outcome))}
    return {"answer": outcome}


class Side:
    """A process that runs one of this directory's modules as a server of commands."""

    def __init__(self, python: Path, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python), "-m", f"tests.benchmarks.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )

    def tell(self, command: str, **arguments: Any) -> None:
        """Send a command; its answer is fetched by `answer`."""
        assert self._process.stdin is not None
        # A process that is no more says why in `answer`.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"command": command, "arguments": arguments}) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the oldest command that has none yet."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideFailed(f"the process ended with {self._process.wait()}:\n{self._error_output()}")
        answer = json.loads(line)
        if "error" in answer:
            raise SideFailed(answer["error"])
        return answer["answer"]

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send a command and return its answer."""
        self.tell(command, **arguments)
        return self.answer()

    def _error_output(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class SideFailed(RuntimeError):
    """A command failed in the other process; the text is its traceback."""
