"""Agent that notes in a directory when it begins and ends a task. It needs no resources."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from store.training.running.agent import rollout
from store.training.tracing.emitters import emit_message
from tests.training.execution.drained import Notes


@rollout
async def work(task: dict[str, Any], rollout: Any) -> float:
    """Work for the seconds of the task, then until the task's file exists. Note the beginning and the end."""
    notes = Notes(task["place"])
    emit_message("at work")
    notes.add("begun", rollout.rollout_id)
    await asyncio.sleep(task["seconds"])
    while not Path(task["place"], task.get("file", "")).exists():  # noqa: ASYNC110, ASYNC240 - of the test's process
        await asyncio.sleep(0.02)
    notes.add("ends", rollout.rollout_id)
    return 1.0
