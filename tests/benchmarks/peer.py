"""The peer's environment: made once, kept in the checkout's cache, and never mixed with ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.protocol import ROOT

REQUIREMENT = "agentlightning==0.3.0"
_HOME = ROOT / ".cache" / "bench-peer"
_INSTALL_SECONDS = 600


class PeerMissing(RuntimeError):
    """The peer could not be installed; the text says why."""


def python() -> Path:
    """Return the interpreter that has the peer, installing it at first.

    Raises:
        PeerMissing: there is no index to install from, or something does not fit this Python.
    """
    interpreter, installed = _HOME / "bin" / "python", _HOME / "installed"
    if installed.exists() and installed.read_text() == REQUIREMENT:
        return interpreter
    print(f"installing {REQUIREMENT} into {_HOME.relative_to(ROOT)}, which takes a minute or two …", flush=True)
    _run(sys.executable, "-m", "venv", "--clear", str(_HOME))
    _run(str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT)
    installed.write_text(REQUIREMENT)
    return interpreter


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or error.stderr.splitlines()
        raise PeerMissing(f"{REQUIREMENT} could not be installed: {' '.join(said[-2:])}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"{REQUIREMENT} could not be installed: {error}") from error
