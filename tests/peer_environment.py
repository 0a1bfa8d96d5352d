"""Environments with Agent-lightning: created once, cached in the checkout, and separate from ours."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REQUIREMENT = "agentlightning==0.3.0"
_INSTALL_SECONDS = 600
_INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")


class PeerMissing(RuntimeError):
    """The peer could not be installed; the text says why."""


class PeerEnvironment:
    """A virtual environment under `.cache`.

    Args:
        name: of its directory.
        installs: the arguments of `pip install`, once for each run of it.
        stamp: a text that changes when the environment has to be made anew.
    """

    def __init__(self, name: str, *installs: list[str], stamp: str = REQUIREMENT) -> None:
        self._home = ROOT / ".cache" / name
        self._installs = installs
        self._stamp = stamp

    def python(self) -> Path:
        """Return the interpreter that has the peer, installing it at first.

        Raises:
            PeerMissing: there is no index to install from, or something does not fit this Python.
        """
        self._home.parent.mkdir(exist_ok=True)
        # Several processes of one test run may want it at the same time.
        with self._home.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._installed()

    def _installed(self) -> Path:
        interpreter, installed = self._home / "bin" / "python", self._home / "installed"
        if installed.exists() and installed.read_text() == self._stamp:
            return interpreter
        print(
            f"installing {REQUIREMENT} into {self._home.relative_to(ROOT)}, which takes a minute or two …", flush=True
        )
        _run(sys.executable, "-m", "venv", "--clear", str(self._home))
        for arguments in self._installs:
            # What is imported is compiled then; all the rest need not be.
            _run(str(interpreter), *_INSTALL, *arguments)
        installed.write_text(self._stamp)
        return interpreter


def _run(*command: str) -> None:
    # `tests.conftest` replaces the authorities, which pip needs.
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    if authorities := os.environ.get("ROLLBOOK_TEST_AUTHORITIES"):
        environment["SSL_CERT_FILE"] = authorities
    options: dict[str, Any] = {"timeout": _INSTALL_SECONDS, "cwd": ROOT, "env": environment}
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, **options)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or error.stderr.splitlines()
        raise PeerMissing(f"{REQUIREMENT} could not be installed: {' '.join(said[-2:])}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"{REQUIREMENT} could not be installed: {error}") from error
