"""Writes of a run: stored in full, repeated under a key, or refused with the name of the argument."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from store import open_store
from store.errors import Conflict, Invalid, NotFound, TooLarge
from store.interface.store import Store
from store.models.runs import RunEvent
from tests.conftest import SQLITE
from tests.journal.sample_run import GRAPH, LONG, result, run, tell

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For a claim about code that is the same on each database."""


async def started(store: Store) -> tuple[str, str]:
    begun = await store.start_rollout({})
    return begun.rollout_id, begun.attempt.attempt_id


async def bodies(store: Store, rollout_id: str) -> list[Any]:
    return [event.body for event in await store.log.history(rollout_id) if event.type == "run.event"]


async def test_run_event_is_returned_unchanged(store: Store) -> None:
    where = await started(store)
    sent = RunEvent.model_validate(
        {"kind": "mine", "node_id": "N", "scope": "RIG", "message": "m", "error": "e", "reason": "r", "own": {"a": [1]}}
    )
    await store.runs.append_events(*where, [sent])
    assert await bodies(store, where[0]) == [{"message": "m", "error": "e", "reason": "r", "own": {"a": [1]}}]


@pytest.mark.parametrize("length,is_blob", [(1023, False), (1024, True)])
async def test_a_text_of_a_kilobyte_is_a_blob(store: Store, length: int, is_blob: bool) -> None:
    where = await started(store)
    text = "é" * (length // 2) + "x" * (length % 2)
    await store.runs.append_events(*where, [RunEvent(kind="result", node_id="N", prompt=text, response=text)])
    (event,) = [event for event in await store.log.history(where[0]) if event.type == "run.event"]
    assert ("prompt_sha256" in event.data, "response_sha256" in event.data) == (is_blob, is_blob)
    assert event.body == (None if is_blob else {"prompt": text, "response": text})
    (row,) = (await store.runs.query_events(where[0])).items
    assert (row.prompt, row.response) == (text, text)


async def test_a_call_repeated_under_its_key_is_answered_by_a_store_opened_anew(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        where = await started(store)
        versions = await tell(store, *where, "Bull", "Bear", key="k")
        saved = await store.runs.save_checkpoint(*where, scope="rig", name="debated", state={"plan": "x"}, key="c")
        artifact = await store.runs.save_artifact(*where, scope="RIG", name="report", content=1, key="a")
        assert (
            await store.runs.save_checkpoint(*where, scope="rig", name="debated", state={}, key="no", graph=GRAPH)
            is None
        )
    async with await open_store(durable_url) as store:
        before = await store.log.history(where[0])
        assert await tell(store, *where, "Bull", "Bear", key="k") == versions
        again = await store.runs.save_checkpoint(*where, scope="rig", name="debated", state={"plan": "y"}, key="c")
        assert again == saved
        assert await store.runs.save_artifact(*where, scope="RIG", name="report", content=2, key="a") == artifact
        state = {"plan": "now it would be saved"}
        assert (
            await store.runs.save_checkpoint(*where, scope="rig", name="debated", state=state, key="no", graph=GRAPH)
            is None
        )
        assert await store.log.history(where[0]) == before


@ON_SQLITE
async def test_a_key_stands_for_one_kind_of_call(store: Store) -> None:
    where = await started(store)
    await tell(store, *where, "Bull", key="k")
    with pytest.raises(Conflict, match="'k'"):
        await store.runs.save_artifact(*where, scope="RIG", name="report", content=1, key="k")


async def test_equal_calls_at_once_under_one_key_are_one(store: Store) -> None:
    where = await started(store)
    answers = await asyncio.gather(*(tell(store, *where, "Bull", key="k") for _ in range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert len((await store.runs.query_events(where[0])).items) == 2


@ON_SQLITE
async def test_graph_determines_the_contents_of_a_checkpoint(store: Store) -> None:
    where = await started(store)
    saved = await store.runs.save_checkpoint(*where, scope="rig", name="debated", state={"plan": "buy"}, graph=GRAPH)
    assert saved is not None
    assert (saved.scope, saved.after_phase, saved.graph) == ("RIG", "debate", GRAPH.digest)
    assert (
        await store.runs.save_checkpoint(*where, scope="rig", name="debated", state={"plan": ""}, graph=GRAPH) is None
    )
    (rejected,) = [event for event in await store.log.history(where[0]) if event.type == "checkpoint.rejected"]
    assert "plan" in rejected.data["reason"]
    later = await store.runs.save_checkpoint(*where, scope="RIG", name="debated", state={"plan": "sell"}, graph=GRAPH)
    assert later is not None
    assert later.parent_id == saved.checkpoint_id


@ON_SQLITE
async def test_a_state_may_lie_elsewhere_but_not_nowhere(store: Store) -> None:
    where = await started(store)
    external = {"kind": "langgraph", "thread_id": "t"}
    saved = await store.runs.save_checkpoint(*where, scope="RIG", name="c", external=external)
    assert saved is not None
    assert saved.external == external
    with pytest.raises(Invalid, match="external"):
        await store.runs.save_checkpoint(*where, scope="RIG", name="c")


INVALID: list[tuple[Any, str]] = [
    (RunEvent(kind="phase.started", scope="RIG"), r"events\[0\].phase"),
    (RunEvent(kind="x" * 600), r"events\[0\].kind"),
    (RunEvent(kind="x", metrics={"tokens_in": "many"}), r"events\[0\].metrics.tokens_in"),
    (RunEvent(kind="x", metrics={"ok": True}), r"events\[0\].metrics.ok"),
    (RunEvent(kind="x", metrics={"latency_ms": math.nan}), r"events\[0\].metrics"),
    (RunEvent(kind="x", metrics={f"{n:0300}": n for n in range(60)}), r"events\[0\].metrics"),
    (RunEvent(kind="x", message="a\x00b"), r"events\[0\].message"),
    (RunEvent(kind="x", prompt="\ud800" * 2000), r"events\[0\].prompt"),
    ("no event", r"events\[0\]"),
]


@ON_SQLITE
async def test_invalid_run_event_is_refused_by_field_and_nothing_recorded(
    store: Store, subtests: pytest.Subtests
) -> None:
    where = await started(store)
    for event, field in INVALID:
        with subtests.test(event=ascii(event)[:80], field=field):
            with pytest.raises(Invalid, match=field):
                await store.runs.append_events(*where, [event, result("Bull")])
            assert (await store.runs.query_events(where[0])).items == []


@ON_SQLITE
async def test_too_many_events_for_one_call_are_refused(store: Store) -> None:
    where = await started(store)
    with pytest.raises(TooLarge, match="events"):
        await store.runs.append_events(*where, [result("Bull")] * 10_001)


@ON_SQLITE
async def test_missing_rollouts_attempts_and_artifacts_are_named(store: Store) -> None:
    rollout_id, attempt_id = await started(store)
    for where in (("ro-nobody", attempt_id), (rollout_id, "at-nobody")):
        with pytest.raises(NotFound, match="nobody"):
            await tell(store, *where, "Bull")
        with pytest.raises(NotFound, match="nobody"):
            await store.runs.save_artifact(*where, scope="RIG", name="report", content=1)
        with pytest.raises(NotFound, match="nobody"):
            await store.runs.move_head(*where)
    with pytest.raises(NotFound, match="ar-nobody"):
        await store.runs.retract_artifact(rollout_id, "ar-nobody")


async def test_a_retracted_artifact_says_so_and_can_be_retracted_again(store: Store) -> None:
    where = await started(store)
    artifact = await store.runs.save_artifact(*where, scope="RIG", name="report", content={"a": LONG}, media_type="x/y")
    assert (artifact.retracted, artifact.media_type) == (False, "x/y")
    for _ in range(2):
        taken = await store.runs.retract_artifact(where[0], artifact.artifact_id, reason="wrong")
        assert taken == artifact.model_copy(update={"retracted": True})
    assert [event.type for event in await store.log.history(where[0])].count("artifact.retracted") == 1


@ON_SQLITE
async def test_no_events_are_no_call(store: Store) -> None:
    where = await started(store)
    before = await store.log.history(where[0])
    assert await store.runs.append_events(*where, []) == []
    assert await store.log.history(where[0]) == before


async def test_a_move_of_the_head_asked_for_twice_is_one(store: Store) -> None:
    rerun = await run(store)
    attempts = (await store.query_attempts(rerun.rollout_id)).items
    before = await store.log.history(rerun.rollout_id)
    await store.runs.move_head(rerun.rollout_id, attempts[0].attempt_id, request_id="back")
    assert await store.log.history(rerun.rollout_id) == before
    await store.runs.move_head(rerun.rollout_id, attempts[1].attempt_id)
    assert (await store.runs.query_events(rerun.rollout_id)).head == 2
