"""Single calls of a `FallbackStore`: lost answers, the watchdog, other attempts, directories and stores that refuse."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.errors import Invalid, Unavailable
from store.interface.delegating import DelegatingRuns
from store.interface.store import Store
from store.models import AttemptedRollout, RunEvent, Span
from store.pipelines.fallback.fallback_store import FallbackStore
from store.runtime.process import started_at, this_process
from store.semconv import CHANGED
from store.training.tracing.spool import process_name
from tests.run_folders.folder_samples import all_events
from tests.training.test_fallback import GRAPH, journals, posted
from tests.training.unreliable import Unreliable

JOURNAL = Path(__file__).parent / "data" / "fallback_journal.jsonl"
"""The calls in a journal that version 0.1 wrote: one of each method. `ROLLOUT` and `ATTEMPT` stand for the ids."""


class AwayRuns(DelegatingRuns):
    """Runs that can be taken away with their store."""

    def __init__(self, store: Away) -> None:
        super().__init__(store.target.runs)
        self._store = store

    async def _do(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        self._store.check(method, before=True)
        result = await getattr(self.target, method)(*args, **kwargs)
        self._store.check(method, before=False)
        return result

    async def append_events(self, *args: Any, **kwargs: Any) -> Any:
        return await self._do("append_events", *args, **kwargs)

    async def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        return await self._do("save_checkpoint", *args, **kwargs)

    async def save_artifact(self, *args: Any, **kwargs: Any) -> Any:
        return await self._do("save_artifact", *args, **kwargs)

    async def retract_artifact(self, *args: Any, **kwargs: Any) -> Any:
        return await self._do("retract_artifact", *args, **kwargs)

    async def find_artifacts(self, *args: Any, **kwargs: Any) -> Any:
        return await self._do("find_artifacts", *args, **kwargs)

    async def get_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        return await self._do("get_checkpoint", *args, **kwargs)


class Away(Unreliable):
    """A store whose runs can be taken away, and whose answers can be lost after each call was executed."""

    loses = False

    def check(self, name: str, *, before: bool) -> None:
        if self.is_down and (before != self.loses):
            raise Unavailable(f"{name} of a store that was taken away")

    @property
    def runs(self) -> Any:
        return AwayRuns(self)

    async def get_rollout_by_id(self, *args: Any, **kwargs: Any) -> Any:
        self.check("get_rollout_by_id", before=not self.loses)
        return await super().get_rollout_by_id(*args, **kwargs)

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Any:
        self.check("update_attempt", before=True)
        result = await self.target.update_attempt(*args, **kwargs)
        self.check("update_attempt", before=False)
        return result


@pytest.fixture
def away(store: Store) -> Away:
    """A store that can be taken away."""
    return Away(store)


async def claimed(store: Store) -> AttemptedRollout:
    await posted(store)
    run = await store.dequeue_rollout("w1")
    assert run is not None
    return run


def about(scope: str, **more: Any) -> RunEvent:
    return RunEvent(kind="result", node_id="Analyst", scope=scope, response=f"of {scope}", **more)


async def say(store: Store, run: AttemptedRollout, *scopes: str) -> list[int]:
    where = run.rollout_id, run.attempt.attempt_id
    return await store.runs.append_events(*where, [about(scope) for scope in scopes])


def a_dead_process() -> str:
    """Return the name of the directory of a process that has ended."""
    process = subprocess.Popen(["sleep", "0.01"])
    name = process_name(this_process() | {"pid": process.pid, "pid_started": started_at(process.pid)})
    process.wait()
    return name


async def scopes(store: Store, run: AttemptedRollout, view: str = "head") -> list[str | None]:
    return [row.scope for row in await all_events(store, run.rollout_id, view)]


@pytest.mark.parametrize("loses", [False, True])
async def test_each_call_has_its_effect_once_whether_it_was_refused_or_its_answer_was_lost(
    away: Away, tmp_path: Path, *, loses: bool
) -> None:
    run = await claimed(away.target)
    where = run.rollout_id, run.attempt.attempt_id
    away.loses = loses
    async with FallbackStore(away, tmp_path, patience=0.5).working() as store:
        store.begin(run, GRAPH)
        artifact = await store.runs.save_artifact(*where, scope="RIG", name="kept", content=[1])
        await say(store, run, "A")
        away.is_down = True
        assert await say(store, run, "B", "C") == [0, 0]
        saved = await store.runs.save_checkpoint(*where, scope="rig", name="report", state={"news": "calm", "x": 1})
        assert saved is not None
        assert saved.scope == "RIG"
        assert await store.runs.save_checkpoint(*where, scope="rig", name="report", state={"news": ""}) is None
        wrong = await store.runs.save_artifact(*where, scope="RIG", name="wrong", content="no")
        await store.runs.save_artifact(*where, scope="RIG", name="right", content={"a": 1})
        assert (await store.runs.retract_artifact(run.rollout_id, wrong.artifact_id)).retracted
        artifacts_before = await store.runs.query_artifacts(run.rollout_id)
        assert [(row.artifact_id == artifact.artifact_id, row.name) for row in artifacts_before] == [
            (True, "kept"),
            (False, "right"),
        ]
        snapshot = await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="report")
        assert snapshot is not None
        assert snapshot.state == {"news": "calm", "x": 1}
        with pytest.raises(Invalid):
            await store.runs.append_events(*where, [RunEvent(kind="phase.started", scope="RIG")])
        reported = await store.update_attempt(*where, status="succeeded")
        assert reported.status == "succeeded"
        assert store.has_recorded
        assert not await store.settle()
        away.is_down = False
        assert await store.settle()
        assert not store.has_recorded
    assert await scopes(away.target, run) == ["A", "B", "C"]
    checkpoints = await away.target.runs.list_checkpoints(run.rollout_id)
    assert [(checkpoint.scope, checkpoint.name) for checkpoint in checkpoints] == [("RIG", "report")]
    artifacts = await away.target.runs.query_artifacts(run.rollout_id)
    assert [(row.name, row.content) for row in artifacts] == [("kept", [1]), ("right", {"a": 1})]
    types = [event.type for event in await away.target.log.history(run.rollout_id)]
    assert [types.count(type_) for type_ in ("artifact.saved", "artifact.retracted", "checkpoint.rejected")] == [
        3,
        1,
        1,
    ]
    changes = [
        event for event in await away.target.log.history(run.rollout_id) if event.type == "attempt.status_changed"
    ]
    assert [event.data["to"] for event in changes] == ["running", "succeeded"]
    assert (await away.target.log.verify()).ok
    assert journals(tmp_path) == []
    # The folder is an export of the run, without the files of the outage.
    folder = tmp_path / "daily/2026-11-20/5f2c9a01"
    assert len(list((folder / "RIG/report").iterdir())) == 3


async def test_spans_with_values_that_are_not_json_survive_an_outage(away: Away, tmp_path: Path) -> None:
    run = await claimed(away.target)
    where: dict[str, Any] = {"rollout_id": run.rollout_id, "attempt_id": run.attempt.attempt_id}
    async with FallbackStore(away, tmp_path, patience=0.5).working() as store:
        store.begin(run, GRAPH)
        away.is_down = True
        for value in (math.nan, "half \ud83d", 2**80):
            await store.record_spans([Span.from_attributes(**where, attributes={"value": value})], number=True)
        away.is_down = False
        assert await store.settle()
    spans = await away.target.query_spans(run.rollout_id)
    assert [span.attributes["value"] for span in spans] == ["NaN", "half \ufffd", str(2**80)]
    assert all(CHANGED in span.attributes for span in spans)


async def test_a_run_that_the_watchdog_has_closed_meanwhile_goes_on(away: Away, tmp_path: Path) -> None:
    run = await claimed(away.target)
    where = run.rollout_id, run.attempt.attempt_id
    async with FallbackStore(away, tmp_path, patience=0.5).working() as store:
        store.begin(run, GRAPH)
        away.is_down = True
        await say(store, run, "A")
        beat = await store.update_attempt(*where, last_heartbeat_time=1.0)
        assert beat.status == run.attempt.status
        await away.target.update_attempt(*where, status="unresponsive")
        away.is_down = False
        assert await store.settle()
        rollout = await away.target.get_rollout_by_id(run.rollout_id)
        assert isinstance(rollout, AttemptedRollout)
        assert (rollout.status, rollout.attempt.status) == ("running", "running")
        await say(store, run, "B")
        await store.update_attempt(*where, status="succeeded")
    rollout = await away.target.get_rollout_by_id(run.rollout_id)
    assert rollout is not None
    assert (rollout.status, await scopes(away.target, run)) == ("succeeded", ["A", "B"])


@pytest.mark.parametrize("is_closed_first", [False, True])
async def test_an_attempt_of_a_dead_process_is_closed_after_its_calls_were_imported(
    away: Away, tmp_path: Path, *, is_closed_first: bool
) -> None:
    run = await claimed(away.target)
    died = FallbackStore(away, tmp_path, patience=0.5)
    died.begin(run, GRAPH)
    away.is_down = True
    await say(died, run, "A")
    (journal,) = journals(tmp_path)
    gone = await asyncio.to_thread(a_dead_process)
    journal.parent.rename(journal.parent.with_name(gone))
    if is_closed_first:
        await away.target.update_attempt(run.rollout_id, run.attempt.attempt_id, status="unresponsive")
    away.is_down = False
    async with FallbackStore(away, tmp_path).working():
        rollout = await away.target.get_rollout_by_id(run.rollout_id)
        assert isinstance(rollout, AttemptedRollout)
        assert (rollout.status, rollout.attempt.status) == ("failed", "unresponsive")
        assert await scopes(away.target, run) == ["A"]
    assert journals(tmp_path) == []


async def test_journal_of_version_0_1_is_imported(away: Away, tmp_path: Path) -> None:
    run = await claimed(away.target)
    away.is_down = True
    dead = FallbackStore(away, tmp_path, patience=0.5)
    dead.begin(run, GRAPH)
    await say(dead, run, "not in the journal of version 0.1")
    away.is_down = False
    (journal,) = journals(tmp_path)
    calls = JOURNAL.read_text().replace("ROLLOUT", run.rollout_id).replace("ATTEMPT", run.attempt.attempt_id)
    journal.write_text(f"{journal.read_text().splitlines()[0]}\n{calls}")
    journal.parent.rename(journal.parent.with_name(await asyncio.to_thread(a_dead_process)))
    async with FallbackStore(away, tmp_path).working():
        assert journals(tmp_path) == []
    assert await scopes(away.target, run) == ["A", "B"]
    checkpoint = await away.target.runs.get_checkpoint(run.rollout_id, scope="RIG", name="report")
    assert checkpoint is not None
    assert checkpoint.state == {"news": "calm", "x": 1}
    artifacts = await away.target.runs.query_artifacts(run.rollout_id)
    assert [(artifact.name, artifact.content) for artifact in artifacts] == [("right", {"a": 1})]
    assert [span.attributes for span in await away.target.query_spans(run.rollout_id)] == [{"value": 1}]
    rollout = await away.target.get_rollout_by_id(run.rollout_id)
    assert rollout is not None
    assert rollout.status == "succeeded"


async def test_the_part_of_an_attempt_that_was_superseded_meanwhile_stays_in_its_own_view(
    away: Away, tmp_path: Path
) -> None:
    run = await claimed(away.target)
    where = run.rollout_id, run.attempt.attempt_id
    await say(away.target, run, "A")
    async with FallbackStore(away, tmp_path, patience=0.5).working() as store:
        store.begin(run, GRAPH)
        away.is_down = True
        await say(store, run, "B")
        await away.target.update_attempt(*where, status="unresponsive")
        resumed = await away.target.runs.resume(run.rollout_id)
        away.is_down = False
        assert await store.settle()
    assert await scopes(away.target, run, "own:1") == ["A", "B"]
    assert "B" not in await scopes(away.target, run, "head")
    rollout = await away.target.get_rollout_by_id(run.rollout_id)
    assert isinstance(rollout, AttemptedRollout)
    assert rollout.attempt.attempt_id == resumed.attempt.attempt_id


async def test_a_runner_that_ends_during_the_outage_leaves_its_calls_to_the_next_one(
    away: Away, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("store.pipelines.fallback.fallback_store.LEAVE_SECONDS", 0.05)
    run = await claimed(away.target)
    async with FallbackStore(away, tmp_path, patience=0.5).working() as store:
        store.begin(run, GRAPH)
        away.is_down = True
        await say(store, run, "A")
    (left,) = journals(tmp_path)
    assert left.parent.name == "left"
    assert str(left) in caplog.text
    async with await open_store("memory://") as another, FallbackStore(another, tmp_path).working() as store:
        assert not store.has_recorded
    assert "the store has no such run" in caplog.text
    assert journals(tmp_path) == [left]
    away.is_down = False
    async with FallbackStore(away, tmp_path).working():
        assert await scopes(away.target, run) == ["A"]
    assert journals(tmp_path) == []


async def test_a_directory_that_cannot_be_written_is_reported_and_other_runs_are_not_recorded(
    away: Away, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, other = await claimed(away.target), await claimed(away.target)
    (tmp_path / ".fallback").write_text("in the way")
    async with FallbackStore(away, tmp_path, patience=0.5).working() as store:
        store.begin(run, GRAPH)
        away.is_down = True
        with pytest.raises(Unavailable, match="cannot be written"):
            await say(store, run, "A")
        with pytest.raises(Unavailable, match="taken away"):
            await say(store, other, "A")
        assert not store.has_recorded
        away.is_down = False
        await say(store, run, "B")
    assert await scopes(away.target, run) == ["B"]
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_a_read_that_only_the_store_can_answer_waits_for_it(away: Away, tmp_path: Path) -> None:
    first = await claimed(away.target)
    where = first.rollout_id, first.attempt.attempt_id
    await away.target.runs.save_artifact(*where, scope="RIG", name="of the first attempt", content=1)
    await away.target.update_attempt(*where, status="failed")
    run = (await away.target.runs.resume(first.rollout_id)).rollout
    async with FallbackStore(away, tmp_path, patience=0.2).working() as store:
        store.begin(run, GRAPH)
        away.is_down = True
        await store.runs.save_artifact(run.rollout_id, run.attempt.attempt_id, scope="RIG", name="own", content=2)
        reading = asyncio.create_task(store.runs.query_artifacts(run.rollout_id))
        await asyncio.sleep(0.3)
        assert not reading.done()
        away.is_down = False
        assert "own" in [artifact.name for artifact in await reading]


def test_a_patience_that_is_no_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="positive"):
        FallbackStore(None, tmp_path, patience=0)  # pyright: ignore[reportArgumentType]
