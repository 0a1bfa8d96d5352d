"""Actions on several rollouts: previews, one event for each rollout, and exports."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from store.dashboard.pages import bulk
from store.interface.store import Store
from store.models import EnqueueRolloutRequest
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, failed, succeeded
from tests.dashboard.traces import member
from tests.server.api import Answer, Api


async def preview(api: Api, query: str) -> dict[str, Any]:
    """Return the preview of an action."""
    return (await api.get(f"//ui/bulk.json?{query}")).ok()


async def send(api: Api, preview: dict[str, Any], **fields: Any) -> Answer:
    """Send the form of a preview."""
    form = {"action": preview["action"], "upto": preview["position"], "expected": preview["changing"]} | fields
    headers = {"Origin": api.url, "Accept": "text/html"}
    return await api.send("POST", "//ui/bulk", data=form, headers=headers, allow_redirects=False)


async def statuses(store: Store) -> dict[str, str]:
    return {rollout.rollout_id: rollout.status for rollout in await store.query_rollouts()}


async def test_retry_of_a_selection_queues_its_ended_rollouts_with_one_event_each(api: Api, store: Store) -> None:
    first, second = await failed(store), await failed(store)
    kept = await succeeded(store)
    shown = await preview(api, "action=retry&status=failed")
    assert (shown["selected"], shown["changing"], shown["unchanged"]) == (2, 2, {})
    # A rollout that fails after the preview is not a part of what was confirmed.
    later = await failed(store)
    before = {one.rollout_id: len(await store.log.history(one.rollout_id)) for one in (first, second)}
    answer = await send(api, shown, status="failed")
    assert answer.status == 303, answer.body
    assert "Queued%20again%3A%202%20rollouts" in answer.headers["set-cookie"]
    assert await statuses(store) == {
        first.rollout_id: "requeuing",
        second.rollout_id: "requeuing",
        kept.rollout_id: "succeeded",
        later.rollout_id: "failed",
    }
    for rollout_id, events in before.items():
        history = await store.log.history(rollout_id)
        assert len(history) == events + 1
        assert history[-1].actor == "dashboard"


async def test_cancel_leaves_ended_rollouts_and_names_them_before(api: Api, store: Store) -> None:
    ended = await succeeded(store)
    waiting = await store.enqueue_rollout({"question": 1})
    query = f"id={ended.rollout_id}&id={waiting.rollout_id}"
    shown = await preview(api, f"action=cancel&{query}")
    assert (shown["selected"], shown["changing"], shown["unchanged"]) == (2, 1, {"succeeded": 1})
    page = Read((await api.get(f"//ui/bulk?action=cancel&{query}")).body)
    assert "1 of 2 selected rollouts will not change, because they have ended" in page.text
    await send(api, shown, id=[ended.rollout_id, waiting.rollout_id])
    assert await statuses(store) == {ended.rollout_id: "succeeded", waiting.rollout_id: "cancelled"}


async def test_label_is_recorded_for_each_rollout_of_the_selection(api: Api, store: Store) -> None:
    chosen = [await succeeded(store) for _ in range(3)]
    other = await store.enqueue_rollout({"question": 1})
    shown = await preview(api, "action=label&status=succeeded")
    await send(api, shown, status="succeeded", add="odd, seen", note="see run 3")
    labels = await store.annotations.query_labels([one.rollout_id for one in (*chosen, other)])
    assert labels == {one.rollout_id: ["odd", "seen"] for one in chosen}
    assert [note.text for note in (await store.annotations.query(chosen[0].rollout_id)).notes] == ["see run 3"]
    nothing = await send(api, shown, status="succeeded")
    assert "Nothing%20was%20recorded" in nothing.headers["set-cookie"]


async def test_selection_that_grew_since_the_preview_is_refused(api: Api, store: Store) -> None:
    await failed(store)
    running = await store.start_rollout({"question": 1})
    shown = await preview(api, "action=retry&status=failed")
    await store.update_attempt(running.rollout_id, running.attempt.attempt_id, status="failed")
    refused = await send(api, shown, status="failed")
    assert refused.status == 409
    assert "2 rollouts would change, and the preview showed 1" in Read(refused.body).text
    assert set((await statuses(store)).values()) == {"failed"}


async def test_invalid_filters_and_large_selections_change_nothing(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    shown = await preview(api, "action=cancel")
    assert (await send(api, shown, step="abc")).status == 422
    assert (await send(api, shown, action="delete")).status == 422
    assert (await send(api, shown, upto="")).status == 422
    monkeypatch.setattr(bulk, "MOST_ROLLOUTS", 2)
    assert (await send(api, shown)).status == 422
    assert (await api.get("//ui/bulk.json?action=cancel")).json["field"] == "selection"
    assert set((await statuses(store)).values()) == {"queuing"}


@ON_BOTH
async def test_csv_has_rewards_and_how_missing_ones_count(api: Api, store: Store) -> None:
    await member(store, "g-1", 0.5, step=3)
    await failed(store, input=f"={HOSTILE}", metadata={"repo": "flask", "rollbook.step": 3})
    await store.enqueue_rollout({"question": 1})
    answer = await api.get("//ui/rollouts.csv?step=3")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert [row["status"] for row in rows] == ["failed", "succeeded"]
    assert [row["reward"] for row in rows] == ["", "0.5"]
    assert [row["counted_reward (failed as 0)"] for row in rows] == ["0.0", "0.5"]
    assert [row["tokens_out"] for row in rows] == ["", "5"]
    assert [row["metadata.repo"] for row in rows] == ["flask", ""]
    assert rows[0]["title"] == f"'={HOSTILE}"
    assert (await api.get("//ui/rollouts.csv?step=abc")).status == 422
