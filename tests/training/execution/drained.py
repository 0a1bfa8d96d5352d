"""Runners that tests end by signals: each completed execution of a task adds a line to a file."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from store.models import NamedResources, Rollout
from store.training.bundle import RunnerBundle
from store.training.execution import ClientServerExecutionStrategy
from store.training.running.agent import LitAgent
from store.training.running.runner import Runner
from store.training.tracing.emitters import emit_message

NAMES = ("begun", "cancelled", "ends")


class Notes:
    """The files to which agents append the ids of their rollouts.

    Attributes:
        place: the directory of the files.
    """

    def __init__(self, place: str) -> None:
        self.place = Path(place)

    def add(self, name: str, rollout_id: str) -> None:
        """Append a line in one write, so that lines of several processes do not mix."""
        file = os.open(self.place / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{rollout_id}\n".encode())
        os.close(file)

    def read(self, name: str) -> list[str]:
        """Return the ids in a file."""
        path = self.place / name
        return path.read_text().split() if path.exists() else []


class Working(LitAgent[Any]):
    """Agent that works for the seconds that the task names."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.notes = Notes(place)

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> float:
        emit_message("at work")
        self.notes.add("begun", rollout.rollout_id)
        try:
            await asyncio.sleep(task["seconds"])
        except asyncio.CancelledError:
            self.notes.add("cancelled", rollout.rollout_id)
            if not task.get("finishes"):
                raise
        self.notes.add("ends", rollout.rollout_id)
        return 1.0


class Blocking(LitAgent[Any]):
    """Agent like `Working`, but in a thread, which cannot be cancelled."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.notes = Notes(place)

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> float:
        emit_message("at work")
        self.notes.add("begun", rollout.rollout_id)
        time.sleep(task["seconds"])
        self.notes.add("ends", rollout.rollout_id)
        return 1.0


def main(url: str, place: str, kind: str, runners: str, grace: str) -> None:
    """Run an agent until a signal, with three attempts at once in each process."""
    agent = Working(place) if kind == "async" else Blocking(place)
    runner = {"type": Runner, "concurrency": 3, "heartbeat_interval": 1.0, "poll_interval": 2.0, "grace_seconds": 2.0}
    bundle = RunnerBundle(agent, runner, announce=partial(print, flush=True))
    strategy = ClientServerExecutionStrategy("runner", n_runners=int(runners), graceful_timeout=float(grace))
    try:
        strategy.run_runners(bundle, url)
    except KeyboardInterrupt:
        sys.exit(130)
