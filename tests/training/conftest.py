"""Fixtures of the training loop."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from pathlib import Path

import pytest

# The fork server belongs to this process, and this module names the modules that it imports first.
import tests.faults.processes  # noqa: F401  # pyright: ignore[reportUnusedImport]
from tests.training.stores import live, memory, place, timed, training_server

__all__ = ["forked_parts", "live", "memory", "place", "timed", "training_server"]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """The URL of a file of SQLite: the loop works alike on every database. Tests marked `ON_EACH_STORE` show so."""
    return f"sqlite:///{tmp_path / 'rollbook.db'}"


@pytest.fixture
def forked_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a training from a process that has imported the package, in hundredths of a second.

    As new interpreters, they share no threads or connections with this process. Their parent is another process.
    """
    # A training starts its processes while SIGINT is blocked, and the fork server would keep it blocked.
    forkserver.ensure_running()
    monkeypatch.setattr("store.training.execution.processes._CONTEXT", multiprocessing.get_context("forkserver"))
