"""Spans that a process could not send before its end are stored by the next process."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from store.interface.store import Store
from store.models import AttemptedRollout, Span
from store.training import Runner, Tracer
from store.training.running.spool_replay import replay
from store.training.tracing.spool import SpanSpool, SpoolFile
from tests.training.doing import returning
from tests.training.training_helpers import names_of, started

DIE = """
import os, signal, sys
from store.training.tracing.spool import SpanSpool, SpoolFile
from store.models import Span
directory, rollout_id, attempt_id = sys.argv[1:]
file = SpoolFile(SpanSpool(directory), rollout_id, attempt_id)
ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
file.append([Span.from_attributes(name=name, attributes={}, sequence_id=0, **ids) for name in ("a", "b")])
with file.path.open("ab") as torn:
    torn.write(b'{"rollout_id": "' + rollout_id.encode())
os.kill(os.getpid(), signal.SIGKILL)
"""


async def die(directory: Path, rollout: AttemptedRollout) -> None:
    """Have a process die that kept two spans, and was about to keep another."""
    command = [sys.executable, "-c", DIE, str(directory), rollout.rollout_id, rollout.attempt.attempt_id]
    assert await asyncio.to_thread(subprocess.call, command) < 0


def files(directory: Path) -> list[Path]:
    """Return the files of a spool."""
    return sorted(directory.rglob("*.jsonl"))


@pytest.mark.slow
async def test_starting_runner_stores_the_spool_of_a_dead_process(live: Store, tmp_path: Path) -> None:
    rollout = await started(live)
    await die(tmp_path, rollout)
    stop = threading.Event()
    stop.set()
    runner: Runner[Any] = Runner(tracer=Tracer(spool=SpanSpool(tmp_path)))
    with runner.run_context(agent=returning(1.0), store=live, worker_id=0):
        await runner.iter(event=stop)
    assert await names_of(live, rollout) == ["a", "b"]
    assert files(tmp_path) == []


@pytest.mark.slow
async def test_an_attempt_that_ended_gets_its_spans_and_stays_ended(memory: Store, tmp_path: Path) -> None:
    rollout = await started(memory)
    await die(tmp_path, rollout)
    await memory.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed")
    await replay(memory, SpanSpool(tmp_path))
    assert await names_of(memory, rollout) == ["a", "b"]
    (attempt,) = await memory.query_attempts(rollout.rollout_id)
    assert attempt.status == "failed"


@pytest.mark.slow
async def test_a_file_stays_where_its_attempt_was_given_up_and_the_log_says_where(
    memory: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollout = await started(memory)
    await die(tmp_path, rollout)
    await memory.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="unresponsive")
    await replay(memory, SpanSpool(tmp_path))
    assert await names_of(memory, rollout) == []
    (file,) = files(tmp_path)
    assert str(file) in caplog.text


async def test_files_of_a_process_that_lives_are_left_alone(memory: Store, tmp_path: Path) -> None:
    rollout = await started(memory)
    rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
    span = Span.from_attributes(name="mine", attributes={}, sequence_id=0, rollout_id=rollout_id, attempt_id=attempt_id)
    SpoolFile(SpanSpool(tmp_path), rollout_id, attempt_id).append([span])
    (tmp_path / "not a process").mkdir()
    (tmp_path / "not a process" / "x.jsonl").touch()
    await replay(memory, SpanSpool(tmp_path))
    assert await names_of(memory, rollout) == []
    assert len(files(tmp_path)) == 2


def test_a_spool_and_its_directory_go_along_to_other_processes(tmp_path: Path) -> None:
    tracer: Tracer = pickle.loads(pickle.dumps(Tracer(spool=SpanSpool(tmp_path, max_bytes=7))))
    assert tracer.spool.max_bytes == 7
    assert tracer.spool.directory().parent == tmp_path
