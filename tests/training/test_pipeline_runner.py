"""A runner of a pipeline claims posted runs and requested re-runs, and resumes runs whose process died."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

import pytest

from store.errors import AttemptActive, Conflict, SideEffectsUnconfirmed
from store.interface import rerun_requests
from store.interface.delegating import DelegatingStore
from store.interface.liveness import close_orphans, live_runners
from store.interface.rerun_requests import LABEL, request_rerun
from store.interface.runs import StoreRuns
from store.interface.store import Store
from store.models import (
    AttemptedRollout,
    AttemptNode,
    Checkpoint,
    LightningStoreCapabilities,
    Phase,
    PhaseGraph,
    Rollout,
    RunEvent,
    ScopeKind,
    any_of,
)
from store.planning.run_state import CUT_OFF
from store.runtime.process import this_process
from store.training import Pipeline, PipelineBundle, PipelineRunner, SharedMemoryExecutionStrategy, Step
from store.training.running.runner import ExecutionEvent
from store.training.running.stop_event import StopEvent
from tests.training.stores import ON_EACH_STORE

pytestmark = pytest.mark.slow

GRAPH = PhaseGraph(
    name="desk",
    version="1",
    scope_kinds={"ticker": ScopeKind(normalise="upper"), "book": ScopeKind(fixed="BOOK")},
    phases=[
        Phase(
            name="research",
            scope_kind="ticker",
            nodes=["Analyst"],
            produces=[Checkpoint(name="report", when=any_of("news"))],
            cascade=["decision"],
        ),
        Phase(
            name="debate",
            scope_kind="ticker",
            nodes=["Bull"],
            after=["research"],
            requires="report",
            cascade=["decision"],
        ),
        Phase(name="decision", scope_kind="book", nodes=["Manager"], side_effects="unsafe"),
    ],
)
INPUT = {"date": "2026-11-20", "tickers": ["rig", "TSDD"]}
PART: dict[str, Any] = {"node": "Bull", "scopes": ["RIG"], "confirm_side_effects": True}


def desk(ran: list[tuple[str, str]], *, fails_in: str | None = None, waits_in: str | None = None) -> Pipeline:
    """Return a pipeline that notes what it runs, and never ends the phase `waits_in`."""
    pipeline = Pipeline(GRAPH)

    async def play(step: Step) -> None:
        ran.append((step.phase.name, step.scope))
        if step.phase.name == fails_in:
            raise LookupError(f"no data of {step.scope}")
        if step.phase.name == waits_in:
            await asyncio.Event().wait()
        async with step.node(step.phase.nodes[0]) as call:
            call.response = step.state["news"] = f"{step.phase.name} of {step.scope}"

    for name in GRAPH.by_name:
        pipeline.phase(name)(play)
    return pipeline


@asynccontextmanager
async def running(store: Store, *runners: PipelineRunner) -> AsyncGenerator[None]:
    """Let runners work until the block ends."""
    stopped = threading.Event()
    tasks = [asyncio.create_task(runner.serve(store, number, stopped)) for number, runner in enumerate(runners)]
    try:
        yield
    finally:
        stopped.set()
        await asyncio.gather(*tasks)


def runner(pipeline: Pipeline, **options: Any) -> PipelineRunner:
    return PipelineRunner(pipeline, heartbeat_interval=1.0, poll_interval=0.5, interval_jitter=0, **options)


async def posted(store: Store) -> Rollout:
    await store.add_resources({"phases": GRAPH})
    return await store.enqueue_rollout(INPUT)


async def until(store: Store, run: Rollout, is_there: Callable[[AttemptedRollout], bool]) -> AttemptedRollout:
    async with asyncio.timeout(90):
        while True:
            rollout = await store.get_rollout_by_id(run.rollout_id)
            if isinstance(rollout, AttemptedRollout) and is_there(rollout):
                return rollout
            await asyncio.sleep(0.02)


async def ended(store: Store, run: Rollout, attempt: int, status: str = "succeeded") -> AttemptedRollout:
    return await until(store, run, lambda rollout: (rollout.attempt.sequence_id, rollout.status) == (attempt, status))


async def until_closed(store: Store, run: Rollout) -> None:
    async with asyncio.timeout(90):
        while True:
            if await rerun_requests.open_request(store, run.rollout_id) is None:
                return
            await asyncio.sleep(0.02)


async def lineage(store: Store, run: Rollout) -> list[AttemptNode]:
    return await store.runs.list_lineage(run.rollout_id)


def a_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


async def orphaned(store: Store, *, until_phase: str) -> AttemptedRollout:
    """Return a run whose process died in a phase."""
    process = a_process()
    stats = this_process() | {"pid": process.pid, "pid_started": None, "pipeline": "desk"}
    await store.update_worker("dead", stats)
    run = await posted(store)
    claimed = await store.dequeue_rollout("dead")
    assert claimed is not None
    assert claimed.rollout_id == run.rollout_id

    async def say(*events: RunEvent) -> None:
        await store.runs.append_events(run.rollout_id, claimed.attempt.attempt_id, list(events))

    for phase in GRAPH.phases:
        for scope in ["BOOK"] if phase.scope_kind == "book" else ["RIG", "TSDD"]:
            await say(RunEvent(kind="phase.started", phase=phase.name, scope=scope))
            if phase.name == until_phase:
                process.kill()
                process.communicate()
                return claimed
            if phase.produces:
                await store.runs.save_checkpoint(
                    run.rollout_id,
                    claimed.attempt.attempt_id,
                    scope=scope,
                    name="report",
                    state={"news": "calm"},
                    after_phase=phase.name,
                )
            await say(RunEvent(kind="phase.completed", phase=phase.name, scope=scope))
    raise AssertionError(until_phase)


@ON_EACH_STORE
async def test_a_posted_run_is_executed_and_a_requested_rerun_by_one_of_two_runners(live: Store) -> None:
    ran: list[tuple[str, str]] = []
    run = await posted(live)
    async with running(live, runner(desk(ran)), runner(desk(ran))):
        first = await ended(live, run, 1)
        # Six of its runner's heartbeats, but not less than a second.
        assert first.config.unresponsive_seconds == pytest.approx(6.0)
        assert sorted(ran) == [
            *(("debate", ticker) for ticker in ("RIG", "TSDD")),
            ("decision", "BOOK"),
            *(("research", ticker) for ticker in ("RIG", "TSDD")),
        ]
        ran.clear()
        answer = await request_rerun(live, run.rollout_id, **PART, state_patch={"news": "a strike"})
        assert (answer.attempt, answer.message, len(answer.runners)) == (2, None, 2)
        await ended(live, run, 2)
        again = await request_rerun(live, run.rollout_id, request_id=answer.request_id, **PART)
        assert again.attempt == 2
    assert sorted(ran) == [("debate", "RIG"), ("decision", "BOOK")]
    assert [(node.kind, node.is_head) for node in await lineage(live, run)] == [("first", False), ("rerun", True)]
    assert (await live.annotations.query(run.rollout_id)).labels == []
    assert await live_runners(live, "desk") == [], "a runner that was stopped takes no requests"


async def test_without_a_live_runner_the_head_stays_and_the_next_runner_takes_the_request(live: Store) -> None:
    ran: list[tuple[str, str]] = []
    run = await posted(live)
    async with running(live, runner(desk(ran))):
        await ended(live, run, 1)
    answer = await request_rerun(live, run.rollout_id, **PART)
    assert answer.attempt is None
    assert "No runner of this pipeline is live" in (answer.message or "")
    (only,) = await lineage(live, run)
    assert only.is_head
    rollout = await live.get_rollout_by_id(run.rollout_id)
    assert rollout is not None
    assert rollout.status == "succeeded"
    with pytest.raises(Conflict, match="waits for a runner"):
        await request_rerun(live, run.rollout_id, **PART)
    await live.annotations.annotate(run.rollout_id, "a note of a user")
    async with running(live, runner(desk(ran))):
        await ended(live, run, 2)


async def test_a_request_that_the_run_no_longer_allows_is_refused_with_the_reason(live: Store) -> None:
    run = await posted(live)
    async with running(live, runner(desk([]))):
        await ended(live, run, 1)
    await request_rerun(live, run.rollout_id, **PART)
    await live.runs.fork(run.rollout_id, phase="decision", confirm_side_effects=True)
    async with running(live, runner(desk([]), orphans="fail")):
        await until_closed(live, run)
    noted = await live.annotations.query(run.rollout_id)
    assert noted.labels == []
    assert (noted.notes[-1].text or "").startswith("Re-run refused: attempt 2 of")


async def test_the_error_of_a_phase_is_the_error_of_the_run(live: Store) -> None:
    run = await posted(live)
    async with running(live, runner(desk([], fails_in="debate"))):
        await ended(live, run, 1, "failed")
    (event,) = [
        event
        for event in await live.log.history(run.rollout_id)
        if event.data.get("to") == "failed" and "error" in event.data
    ]
    assert event.data["error"]["type"] == "LookupError"
    assert event.data["error"]["message"].startswith("no data of")


def test_a_pipeline_is_the_runners_side_of_a_strategy(tmp_path: Any) -> None:
    from store import open_store

    ran: list[tuple[str, str]] = []

    async def post(store: Store, event: ExecutionEvent) -> None:
        run = await posted(store)
        await ended(store, run, 1)

    store = asyncio.run(open_store(f"sqlite:///{tmp_path}/rollbook.db"))
    options = {"heartbeat_interval": 1.0, "poll_interval": 0.5}
    SharedMemoryExecutionStrategy(1).execute(post, PipelineBundle(desk(ran), options), store)
    store.sync.close()
    assert len(ran) == 5


async def test_a_run_whose_process_died_is_resumed_and_repeats_nothing_that_was_done(live: Store) -> None:
    ran: list[tuple[str, str]] = []
    run = await orphaned(live, until_phase="debate")
    async with running(live, runner(desk(ran))):
        await ended(live, run, 2)
    assert sorted(ran) == [("debate", "RIG"), ("debate", "TSDD"), ("decision", "BOOK")]
    first, second = await lineage(live, run)
    assert (first.status, second.kind, second.is_head) == ("unresponsive", "resume", True)


async def test_a_run_of_a_drained_runner_returns_to_the_queue_and_is_continued_without_repeats(live: Store) -> None:
    ran: list[tuple[str, str]] = []
    stopped = StopEvent()
    run = await posted(live)
    draining = asyncio.create_task(runner(desk(ran, waits_in="debate")).serve(live, 0, stopped))
    for attempt in (1, 2):
        await until(live, run, lambda rollout, at=attempt: rollout.attempt.sequence_id == at and len(ran) >= 2 + 2 * at)
        stopped.drain()
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        rollout = await until(live, run, lambda rollout: rollout.status == "requeuing")
        assert (rollout.attempt.status, rollout.attempt.metadata or {})[0] == "failed"
        assert (rollout.attempt.metadata or {})["reason"] == "drained"
        stopped = StopEvent()
        if attempt == 1:
            draining = asyncio.create_task(runner(desk(ran, waits_in="debate")).serve(live, 0, stopped))
    async with running(live, runner(desk(ran), resumes=0), runner(desk(ran), resumes=0)):
        await ended(live, run, 3)
    assert Counter(phase for phase, _ in ran) == {"research": 2, "debate": 6, "decision": 1}
    assert [(node.kind, node.base, node.is_head) for node in await lineage(live, run)] == [
        ("first", None, False),
        ("resume", 1, False),
        ("resume", 2, True),
    ]


async def drained(store: Store, ran: list[tuple[str, str]]) -> Rollout:
    """Return a run whose runner was drained in the phase with unsafe side effects."""
    stopped = StopEvent()
    run = await posted(store)
    draining = asyncio.create_task(runner(desk(ran, waits_in="decision")).serve(store, 0, stopped))
    await until(store, run, lambda _: len(ran) == 5)
    stopped.drain()
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    return run


async def test_a_drained_run_with_unsafe_side_effects_fails_unless_they_are_confirmed(live: Store) -> None:
    ran: list[tuple[str, str]] = []
    run = await drained(live, ran)
    async with running(live, runner(desk(ran))):
        await ended(live, run, 1, "failed")
    async with running(live, runner(desk(ran), confirm_side_effects=True)):
        await ended(live, run, 2)
    assert len(ran) == 6


class Interleaved(DelegatingStore):
    """A store with calls of others before it releases a claim, after it refuses to resume, or before it sets a limit.

    Attributes:
        passed: set once these calls were made.
    """

    def __init__(self, target: Store, moment: str, calls: Callable[[], Awaitable[Any]]) -> None:
        self._target, self._moment, self._calls = target, moment, calls
        self.passed = asyncio.Event()
        self._runs = copy(target.runs)
        self._runs.release_claim = self._release_claim
        self._runs.resume = self._resume

    @property
    def target(self) -> Store:
        return self._target

    @property
    def runs(self) -> StoreRuns:
        return self._runs

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._target.capabilities

    async def close(self) -> None:
        """Leave the other store open."""

    async def update_rollout(self, rollout_id: str, *args: Any, **fields: Any) -> Rollout:
        if "config" in fields:
            await self._reach("limit")
        return await self._target.update_rollout(rollout_id, *args, **fields)

    async def _release_claim(self, rollout_id: str, attempt_id: str) -> bool:
        await self._reach("release")
        return await self._target.runs.release_claim(rollout_id, attempt_id)

    async def _resume(self, rollout_id: str, **options: Any) -> Any:
        try:
            return await self._target.runs.resume(rollout_id, **options)
        except SideEffectsUnconfirmed:
            await self._reach("refusal")
            raise

    async def _reach(self, moment: str) -> None:
        if moment == self._moment and not self.passed.is_set():
            await self._calls()
            self.passed.set()


@pytest.mark.parametrize("moment", ["release", "refusal"])
async def test_a_drained_run_that_a_user_cancels_stays_cancelled_and_has_no_open_attempt(
    memory: Store, moment: str
) -> None:
    run = await drained(memory, [])
    store = Interleaved(memory, moment, lambda: memory.update_rollout(run.rollout_id, status="cancelled"))
    ran: list[tuple[str, str]] = []
    async with running(store, runner(desk(ran))):
        await store.passed.wait()
    rollout = await memory.get_rollout_by_id(run.rollout_id)
    assert (rollout and rollout.status, ran) == ("cancelled", [])
    assert {attempt.status for attempt in await memory.query_attempts(run.rollout_id)} == {"failed"}


async def test_a_drained_run_is_not_failed_by_one_runner_while_another_has_claimed_it(memory: Store) -> None:
    run = await drained(memory, [])
    store = Interleaved(memory, "refusal", lambda: memory.dequeue_rollout("other"))
    async with running(store, runner(desk([]))):
        await store.passed.wait()
    rollout = await memory.get_rollout_by_id(run.rollout_id)
    assert isinstance(rollout, AttemptedRollout)
    assert (rollout.status, rollout.attempt.worker_id, rollout.attempt.status) == ("preparing", "other", "preparing")


async def test_a_runner_that_is_cancelled_before_it_limits_the_silence_of_a_run_returns_the_run(
    memory: Store,
) -> None:
    run = await posted(memory)

    async def cancel() -> None:
        serving.cancel()
        await asyncio.sleep(0.05)

    store = Interleaved(memory, "limit", cancel)
    serving = asyncio.create_task(runner(desk([])).serve(store))
    await asyncio.gather(serving, return_exceptions=True)
    rollout = await memory.get_rollout_by_id(run.rollout_id)
    assert (rollout and rollout.status, store.passed.is_set()) == ("queuing", True)
    assert len(await memory.query_attempts(run.rollout_id)) == 0


async def test_by_policy_or_for_unsafe_side_effects_it_stays_failed_with_the_reason(live: Store) -> None:
    left = await orphaned(live, until_phase="debate")
    async with running(live, runner(desk([]), orphans="fail")):
        await ended(live, left, 1, "failed")
        await asyncio.sleep(0.6)
    (event,) = [event for event in await live.log.history(left.rollout_id) if event.data.get("to") == "unresponsive"]
    assert event.data["error"]["message"] == CUT_OFF
    unsafe = await orphaned(live, until_phase="decision")
    async with running(live, runner(desk([]), resumes=0), runner(desk([]))):
        await ended(live, unsafe, 1, "failed")
        await ended(live, left, 2)
        await asyncio.sleep(0.6)
        assert len(await lineage(live, unsafe)) == 1
    async with running(live, runner(desk([]), confirm_side_effects=True)):
        await ended(live, unsafe, 2)


async def test_a_rerun_of_an_orphan_supersedes_it_and_of_a_live_attempt_is_refused(live: Store) -> None:
    run = await orphaned(live, until_phase="decision")
    await request_rerun(live, run.rollout_id, **PART)
    assert (await lineage(live, run))[0].status == "running", "the attempt ends when a runner takes the request"
    async with running(live, runner(desk([]))):
        await ended(live, run, 2)
    first, second = await lineage(live, run)
    assert first.status in {"failed", "unresponsive"}, "superseded, or closed just before"
    assert (second.kind, second.status) == ("rerun", "succeeded")
    await live.update_worker("alive", this_process() | {"pipeline": "desk"})
    await live.start_attempt(run.rollout_id, worker_id="alive")
    with pytest.raises(AttemptActive):
        await request_rerun(live, run.rollout_id, **PART)
    assert await close_orphans(live) == []
    assert LABEL not in (await live.annotations.query(run.rollout_id)).labels
