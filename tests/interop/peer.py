"""Agent-lightning in its own environment, the scripts that run there, and servers for them.

ROLLBOOK_INTEROP chooses the environment: `release` (the default) has the versions that were current when
Agent-lightning 0.3.0 was released, `today` those that `pip install` selects now.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.peer_environment import REQUIREMENT, ROOT, PeerEnvironment
from tests.postgres import free_port

HERE = Path(__file__).parent
RELEASE = HERE / "release.txt"
ENVIRONMENT = os.environ.get("ROLLBOOK_INTEROP", "release")

# What is longer than that hangs.
_SCRIPT_SECONDS = 400
_START_SECONDS = 90
_STOP_SECONDS = 30


def environment() -> PeerEnvironment:
    """Return Agent-lightning's environment, with this checkout and what it needs in it as well."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    stamp = hashlib.sha256(repr((RELEASE.read_text(), needs)).encode()).hexdigest()
    ours = ["--editable", str(ROOT)]
    if ENVIRONMENT == "today":
        return PeerEnvironment("interop-today", [REQUIREMENT, *ours], stamp=stamp)
    pins = str(RELEASE)
    # The list is complete; without looking for what else might be needed it takes half the time.
    return PeerEnvironment("interop-release", ["--no-deps", "-r", pins], [*ours, "-c", pins], stamp=stamp)


class Peer:
    """Runs the scripts of `inside`.

    Args:
        python: of the environment.
        reports: a directory for what the scripts write.
    """

    def __init__(self, python: Path, reports: Path) -> None:
        self._python = python
        self._reports = reports
        self._outcomes: dict[tuple[str, str], dict[str, str | None]] = {}

    def outcomes(self, script: str, url: str, without: Collection[str] = ()) -> Mapping[str, str | None]:
        """Return what each claim of a script raised against a URL, None where it holds; the script runs once.

        Args:
            script: name of the module.
            url: of the server, or of the database for a script that needs none.
            without: claims to leave out.
        """
        if (script, url) not in self._outcomes:
            report = self._reports / f"{script}-{len(self._outcomes)}.json"
            self._outcomes[script, url] = {}
            self.run(script, "--url", url, "--report", str(report), "--without", *without, served_at=url)
            self._outcomes[script, url] = json.loads(report.read_text())
        return self._outcomes[script, url]

    def run(self, script: str, *arguments: str, served_at: str | None = None, **variables: str) -> str:
        """Run a script to its end and return what it printed; `served_at` and `variables` as in `started`.

        Raises:
            AssertionError: it failed or did not end; the text is what it printed.
        """
        with self.started(script, *arguments, served_at=served_at, **variables) as process:
            return finished(process)

    @contextmanager
    def started(
        self, script: str, *arguments: str, served_at: str | None = None, **variables: str
    ) -> Generator[subprocess.Popen[str]]:
        """Run a script; in the end nothing is left of it and of what it started.

        Args:
            script: name of the module.
            arguments: of the command line.
            served_at: the server its spans go to; today's OpenTelemetry has to be told at the start.
            variables: of the environment.
        """
        if served_at is not None and ENVIRONMENT == "today":
            variables["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{served_at}/v1/traces"
        command = [str(self._python), "-m", f"tests.interop.inside.{script}", *arguments]
        with _running(command, variables) as process:
            yield process

    @contextmanager
    def server(self) -> Generator[str]:
        """Run Agent-lightning's own server, on its store in memory, and yield its URL."""
        # Beside the interpreter, whose name may be a link out of the environment.
        with _serving(str(self._python.parent / "agl"), "store", "--host", "127.0.0.1") as url:
            yield url


@contextmanager
def rollbook(database: str) -> Generator[str]:
    """Run `rollbook serve` on a database and yield its URL."""
    with _serving(str(Path(sys.executable).parent / "rollbook"), "serve", "--db", database) as url:
        yield url


def claims(*scripts: str) -> list[str]:
    """Return the names of the claims in scripts, which themselves cannot be imported here."""
    trees = [ast.parse((HERE / "inside" / f"{script}.py").read_text()) for script in scripts]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.AsyncFunctionDef)]
    return [function.name for function in functions if not function.name.startswith("_")]


def finished(process: subprocess.Popen[str]) -> str:
    """Wait for a script and return what it printed.

    Raises:
        AssertionError: it failed or did not end; the text is what it printed.
    """
    try:
        said, _ = process.communicate(timeout=_SCRIPT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"no end within {_SCRIPT_SECONDS} s:\n{error.output}") from error
    assert process.returncode == 0, said[-6000:]
    return said


@contextmanager
def _serving(*command: str) -> Generator[str]:
    port = free_port()
    with tempfile.TemporaryFile("w+") as log, _running([*command, "--port", str(port)], {}, log.fileno()) as process:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_SECONDS
        while not _is_healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise RuntimeError(f"{' '.join(command)} does not answer:\n{log.read()[-4000:]}")
            time.sleep(0.1)
        yield url


def _is_healthy(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/agl/health", timeout=5) as answer:
        return answer.status == 200
    return False


@contextmanager
def _running(
    command: list[str], variables: Mapping[str, str], output: int = subprocess.PIPE
) -> Generator[subprocess.Popen[str]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AGL_", "OTEL_"))}
    process = subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        # litellm would fetch a list of prices from the network when it is imported.
        env={**inherited, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **variables},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_STOP_SECONDS)
        # Its session outlives it if it left children behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
