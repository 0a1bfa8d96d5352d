"""Following a run from any position equals reading it again, whatever happens in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from store.errors import Invalid, NotFound
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, RolloutConfig, RunEvent, RunFrame
from tests.runs.following import PATIENCE, Reader, kinds_after, last_of
from tests.runs.trading import FUND, MARKET
from tests.runs.trading_runs import auto_run, begin, complete_rerun, do_phase, ended, rerun, say, seen
from tests.torture import IS_TORTURE

Happening = Callable[[Store, AttemptedRollout], Awaitable[object]]


async def _idle(store: Store, run: AttemptedRollout) -> None:
    del store, run


async def _rerun(store: Store, run: AttemptedRollout) -> None:
    await complete_rerun(store, run, "risk", "RIG")


async def _two_reruns(store: Store, run: AttemptedRollout) -> None:
    await complete_rerun(store, run, "debate_and_trader", "RIG")
    await complete_rerun(store, run, "risk", "TSDD")


async def _undone(store: Store, run: AttemptedRollout) -> None:
    await complete_rerun(store, run, "analysts", "RIG")
    await store.runs.move_head(run.rollout_id, run.attempt.attempt_id)


async def _branch(store: Store, run: AttemptedRollout) -> None:
    await complete_rerun(store, run, "risk", "RIG")
    await complete_rerun(store, run, "risk", "TSDD", base="attempt:1")


async def _late_words(store: Store, run: AttemptedRollout) -> None:
    again = (await rerun(store, run, phase="risk", scopes=["RIG"])).rollout
    await say(store, run, [RunEvent(kind="log", message="too late"), RunEvent(kind="result", node_id="X", scope="RIG")])
    await do_phase(store, again, "risk", "RIG", tokens=20)


async def _started_anew(store: Store, run: AttemptedRollout) -> None:
    again = await store.start_attempt(run.rollout_id)
    await do_phase(store, again, "scan", MARKET)


HAPPENINGS: list[Happening] = [_idle, _rerun, _two_reruns, _undone, _branch, _late_words, _started_anew]


# A server's readers go the same way through the log, whatever happened: three cases are enough there.
BEHIND_SERVER = (_two_reruns, _undone, _branch)
CASES = [
    *(pytest.param("sqlite", happening, id=f"sqlite-{happening.__name__}") for happening in HAPPENINGS),
    *(
        pytest.param(
            "postgres http",
            happening,
            id=f"postgres-http-{happening.__name__}",
            marks=[
                *(pytest.mark.http, pytest.mark.postgres),
                *([] if happening in BEHIND_SERVER else [pytest.mark.torture_only]),
            ],
        )
        for happening in HAPPENINGS
    ),
]


@pytest.mark.parametrize("way,happening", CASES, indirect=["way"])
@pytest.mark.slow
@pytest.mark.torture
async def test_going_on_from_anywhere_equals_reading_afresh(store: Store, happening: Happening) -> None:
    run = await auto_run(store, tickers=("RIG", "TSDD"))
    before = Reader(store, run)
    await before.read()
    await happening(store, run)
    last = await last_of(store, run)
    head = (await seen(store, run)).items
    afresh = Reader(store, run)
    await afresh.read()
    assert afresh.events == head
    chosen = random.Random(7)
    for after in {0, before.seq, last, *chosen.sample(range(1, last), 10 if IS_TORTURE else 2)}:
        held = await store.runs.query_events(run.rollout_id, limit=-1, at=after) if after else None
        reader = Reader(store, run, seq=after)
        reader.events = [] if held is None else list(held.items)
        await reader.read(last)
        assert reader.events == head, after


async def test_a_reader_that_leaves_and_comes_back_all_the_time_holds_the_view(store: Store) -> None:
    run = await auto_run(store, tickers=("RIG",))
    await complete_rerun(store, run, "risk", "RIG")
    await _undone(store, run)
    last = await last_of(store, run)
    reader, step = Reader(store, run), 0
    while reader.seq < last:
        # Each hello is a frame too, so that two at least are needed to move.
        step += 1
        await reader.read(last, most=2 + step % 17)
    assert reader.events == (await seen(store, run)).items


@pytest.mark.parametrize("view", ["raw", "attempt:1", "own:2"])
async def test_other_views_are_followed_as_they_are_read(store: Store, view: str) -> None:
    run = await auto_run(store, tickers=("RIG",))
    await _late_words(store, run)
    reader = Reader(store, run, view)
    await reader.read()
    assert reader.events == (await seen(store, run, view)).items
    half = Reader(store, run, view, seq=reader.seq // 2)
    await half.read()
    assert half.events == [event for event in reader.events if event.version > reader.seq // 2]
    assert "fork" not in {frame.kind for frame in reader.frames}


async def test_without_bodies_events_come_as_they_are_read_without(store: Store) -> None:
    run = await auto_run(store, tickers=("RIG",))
    reader = Reader(store, run)
    await reader.read(bodies=False)
    assert reader.events == (await seen(store, run, bodies=False)).items
    assert {event.response for event in reader.events} == {None}


async def test_the_frames_of_a_run_and_of_its_rerun(store: Store) -> None:
    run = await begin(store)
    reader = Reader(store, run)
    (hello, status) = await reader.read()
    assert (hello.kind, hello.view, hello.seq, hello.head_attempt) == ("hello", "head", 0, 1)
    assert (status.kind, status.attempt, status.attempt_status) == ("status", 1, "preparing")
    await do_phase(store, run, "scan", MARKET)
    await ended(store, run)
    plan = await store.runs.plan_fork(run.rollout_id, phase="scan")
    again = await rerun(store, run, phase="scan")
    await ended(store, again.rollout, "failed")
    frames = await reader.read(kind="terminal")
    told = [frame for frame in frames if frame.kind not in {"hello", "event"}]
    by_kind = [frame.kind for frame in told]
    assert by_kind.count("terminal") == 2, by_kind
    assert by_kind.index("terminal") < by_kind.index("fork")
    first, second = [frame for frame in told if frame.kind == "terminal"]
    assert (first.outcome, first.attempt, first.error) == ("succeeded", 1, None)
    assert (second.outcome, second.attempt, second.error) == ("failed", 2, "unknown error")
    (fork,) = [frame for frame in told if frame.kind == "fork"]
    assert (fork.attempt, fork.base, fork.base_seq, fork.masks) == (2, 1, plan.ground, plan.masks)
    assert fork.plan is not None
    assert fork.plan == again.fork
    assert reader.events == []
    versions = [frame.seq for frame in frames]
    assert versions == sorted(versions)


async def test_moved_head_resets_the_reader(store: Store) -> None:
    run = await auto_run(store, tickers=("RIG",))
    await _undone(store, run)
    reader = Reader(store, run, seq=await last_of(store, run) - 1)
    frames = await reader.read()
    assert [frame.kind for frame in frames if frame.kind != "event"] == ["hello", "reset", "status"]
    assert frames[1].seq == 0
    assert reader.events == (await seen(store, run, "attempt:1")).items


async def test_retry_resets_the_reader(store: Store) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    run = await begin(store, config=config)
    await do_phase(store, run, "scan", MARKET)
    await ended(store, run, "failed")
    before = await last_of(store, run)
    again = await store.dequeue_rollout()
    assert again is not None
    await do_phase(store, again, "scan", MARKET)
    reader = Reader(store, run, seq=before)
    reader.events = (await store.runs.query_events(run.rollout_id, limit=-1, at=before)).items
    frames = await reader.read()
    assert "reset" in {frame.kind for frame in frames}
    assert "terminal" not in {frame.kind for frame in frames}
    assert reader.events == (await seen(store, run)).items


async def test_terminal_frame_has_the_error_of_a_failed_run(store: Store) -> None:
    run = await begin(store)
    error = AttemptError(type="ValueError", message="no such ticker")
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="failed", error=error)
    terminal = await _terminal(store, run)
    assert (terminal.outcome, terminal.error) == ("failed", "no such ticker")


async def test_a_cancelled_run_has_ended(store: Store) -> None:
    run = await begin(store)
    await store.update_rollout(run.rollout_id, status="cancelled")
    terminal = await _terminal(store, run)
    assert (terminal.outcome, terminal.error) == ("cancelled", None)


async def _terminal(store: Store, run: AttemptedRollout) -> RunFrame:
    frames = await Reader(store, run).read(10**9, most=3)
    assert [frame.kind for frame in frames] == ["hello", "status", "terminal"]
    return frames[-1]


async def test_reader_at_the_end_waits_for_the_next_event(store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "scan", MARKET)
    last = await last_of(store, run)
    reader = Reader(store, run, seq=last)
    following = asyncio.ensure_future(reader.read(last + 1))
    (version,) = await say(store, run, [RunEvent(kind="log", message="more")])
    async with asyncio.timeout(PATIENCE):
        frames = await following
    assert [(frame.kind, frame.seq) for frame in frames] == [("hello", last), ("event", version)]


async def test_reader_beyond_the_last_event_is_refused(store: Store) -> None:
    run = await begin(store)
    last = await last_of(store, run)
    with pytest.raises(Invalid, match=f"{last + 1} is beyond the last event of the rollout, which has number {last}"):
        await Reader(store, run, seq=last + 1).read()


async def test_missing_runs_attempts_and_views_cannot_be_followed(store: Store) -> None:
    run = await begin(store)
    with pytest.raises(NotFound, match="Attempt 7 not found"):
        await Reader(store, run, "attempt:7").read()
    with pytest.raises(Invalid, match="is none of head, raw"):
        await Reader(store, run, "tail").read()
    with pytest.raises(Invalid, match="after"):
        await Reader(store, run, seq=-1).read(1)
    gone = run.model_copy(update={"rollout_id": "ro-none"})
    with pytest.raises(NotFound, match="ro-none"):
        await Reader(store, gone).read(1)


async def test_a_run_that_waits_in_the_queue_is_followed_from_there(store: Store) -> None:
    queued = await store.enqueue_rollout({"date": "2026-11-20"})
    run = AttemptedRollout.model_construct(rollout_id=queued.rollout_id)
    assert await kinds_after(store, run, 0, 2) == ["hello", "status"]
    reader = Reader(store, run)
    following = asyncio.ensure_future(reader.read(10**9, most=5))
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    await do_phase(store, claimed, "scan", FUND)
    async with asyncio.timeout(PATIENCE):
        frames = await following
    assert {frame.kind for frame in frames} <= {"hello", "status", "event"}
    assert [event.attempt for event in reader.events] == [1] * len(reader.events)
