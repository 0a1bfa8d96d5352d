"""The domain reads no clock and no random numbers, so the same log gives the same state everywhere."""

from __future__ import annotations

import ast
import asyncio
import builtins
import hashlib
import os
import random
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

import pytest

import store.domain
from store import open_store
from store.models import LLM, EnqueueRolloutRequest, RolloutConfig
from store.models.threads import ThreadCheckpoint, ThreadWrite
from store.sql.commands import threads as thread_commands
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.domain.run_story import artifact, checkpoint, events, fork, move_head, phase, rejected, retract
from tests.domain.story import (
    Story,
    amend,
    attempt,
    beat,
    claim,
    enqueue,
    number,
    publish,
    record,
    release,
    report,
    span,
    start,
)

PURE = sorted(Path(store.domain.__file__ or "").parent.glob("*.py"))
# What a pure module may use: data structures, types, and the parts of the project that are pure themselves.
ALLOWED = {
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "functools",
    "hashlib",
    "heapq",
    "operator",
    "typing",
    "orjson",
}
ALLOWED_INTERNAL = {"store.domain", "store.errors"}
SURROUNDINGS = [
    {"PYTHONHASHSEED": "0", "TZ": "UTC", "LANG": "C", "LC_ALL": "C"},
    {"PYTHONHASHSEED": "4242", "TZ": "Pacific/Chatham", "LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"},
]


@pytest.mark.parametrize("module", PURE, ids=lambda path: path.stem)
def test_a_pure_module_imports_nothing_that_reaches_the_world(module: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    internal = {
        name for name in imported if any(name == prefix or name.startswith(f"{prefix}.") for prefix in ALLOWED_INTERNAL)
    }
    assert imported - internal <= ALLOWED


def forbidden(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("the domain reached for the world")


def test_deciding_reads_no_clock_throws_no_dice_and_touches_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in {
        time: ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"),
        random: ("random", "randint", "choice", "getrandbits"),
        os: ("urandom", "getpid", "open", "stat"),
        uuid: ("uuid4", "uuid1"),
        socket: ("socket", "gethostname"),
        builtins: ("open", "print", "input"),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    story = tell_all_commands()
    monkeypatch.undo()
    assert {event.fact.type for event in story.log} == {
        "rollout.enqueued",
        "rollout.started",
        "rollout.amended",
        "rollout.status_changed",
        "attempt.started",
        "attempt.status_changed",
        "attempt.amended",
        "claim.released",
        "span.numbers_reserved",
        "span.recorded",
        "resources.published",
        "resources.replaced",
        "worker.seen",
        "worker.status_changed",
        "run.event",
        "phase.started",
        "checkpoint.saved",
        "checkpoint.rejected",
        "artifact.saved",
        "artifact.retracted",
        "attempt.forked",
        "rollout.head_moved",
        "thread.checkpoint_saved",
        "thread.writes_saved",
        "thread.copied",
        "thread.pruned",
        "thread.deleted",
    }


def tell_all_commands() -> Story:
    """Return a story in which every command has its part."""
    story = Story()
    story.tell(publish("rs1"), publish("rs1"), beat("w1"), number("r1"))
    story.tell(enqueue("r1", "r2", timeout_seconds=5.0, max_attempts=2, retry_condition=["timeout"]))
    story.tell(start("r3", worker_id="w1"))
    (claimed,) = story.claim("w2")
    story.tell(release(claimed), claim(["b1"], "w2"))
    story.tell(record(span(1, "b1"), span(2, "b1")), number("r1"), report("running", rollout_id="r1", metadata={}))
    story.passes(6).sweep()
    story.tell(attempt("b2", "r2"), amend("r2", "cancelled", mode="val"))
    return tell_of_runs(story)


def tell_of_runs(story: Story) -> Story:
    """Add every command about runs."""
    told = [events("Trader", "Judge", attempt_id="b1", key="k"), phase(attempt_id="b1"), checkpoint(attempt_id="b1")]
    story.tell(*told, rejected(attempt_id="b1"), artifact(attempt_id="b1"), retract())
    fork(story, "b3", supersede=True, request_id="q")
    story.tell(move_head("b1"))
    return tell_of_threads(story)


def tell_of_threads(story: Story) -> Story:
    """Add every command about threads."""
    saved = ThreadCheckpoint("r1:RIG", "", "cp-1", None, ("json", b"{}"), {"said": ("json", b"1")}, {"step": 1})
    written = ThreadWrite("task", 0, "said", ("json", b"2"))
    story.tell(thread_commands.checkpoint(saved, "b1"), thread_commands.writes("r1:RIG", "", "cp-1", [written], "b1"))
    story.tell(thread_commands.copy("r1:RIG", "t"), thread_commands.prune("t", [("", "cp-1")], "keep_latest"))
    story.tell(thread_commands.delete("r1:RIG"))
    return story


def test_same_commands_give_the_same_log() -> None:
    assert tell_all_commands().log == tell_all_commands().log


# Told in another process: which log the story comes to.
_TELL = """
import hashlib
from tests.domain.test_purity import tell_all_commands

print(hashlib.sha256(repr(tell_all_commands().log).encode()).hexdigest())
"""


@pytest.mark.slow
def test_log_does_not_depend_on_interpreter_settings() -> None:
    here = hashlib.sha256(repr(tell_all_commands().log).encode()).hexdigest()
    assert [_run(_TELL, environment=surrounding) for surrounding in SURROUNDINGS] == [[here], [here]]


# Told in another process: fold the file's log anew, hold the tables against it, print what they come to.
_REPLAY = """
import asyncio, sys
from store import open_store

async def replay(url):
    async with await open_store(url) as store:
        rebuilt, verified = await store.log.rebuild(), await store.log.verify()
        assert rebuilt.written == {} and verified.ok, verified.differences
        print(verified.state_hash, rebuilt.state_hash, verified.chain_head)

asyncio.run(replay(sys.argv[1]))
"""


@pytest.mark.slow
async def test_state_of_a_log_does_not_depend_on_interpreter_settings(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'told.db'}"
    state_hash, chain_head = await _fill(url)
    told = [await asyncio.to_thread(_run, _REPLAY, url, environment=surrounding) for surrounding in SURROUNDINGS]
    assert told == [[state_hash, state_hash, chain_head]] * len(SURROUNDINGS)


async def _fill(url: str) -> tuple[str, str]:
    clock = ManualClock()
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as opened:
        await opened.add_resources({"llm": LLM(endpoint="http://localhost/v1", model="İıß")})
        config = RolloutConfig(timeout_seconds=1.1, max_attempts=3, retry_condition=["timeout"])
        metadata = {"rollbook.group": "Ğ", "rollbook.step": 3}
        requests = [EnqueueRolloutRequest(input={"n": n}, config=config, metadata=metadata) for n in range(5)]
        await opened.enqueue_many_rollouts(requests)
        claims = await opened.dequeue_many_rollouts(limit=3, worker_id="wörker")
        for claimed in claims:
            reward = {"agentlightning.reward.0.value": 0.1, "gen_ai.usage.input_tokens": 7}
            await opened.add_span(make_span(claimed.attempt, 1, attributes=reward, start_time=1e-7, end_time=1e22))
        clock.advance(2)
        await opened.dequeue_rollout("İ")
        await opened.update_rollout(claims[0].rollout_id, status="cancelled")
        report = await opened.log.verify()
        assert report.ok, report.differences
        return report.state_hash, report.chain_head


def _run(program: str, *arguments: str, environment: dict[str, str]) -> list[str]:
    """Return the words that a program prints under another interpreter."""
    checkout = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": checkout},
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
