"""The audit page: all events in order, and their proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store import Seal
from store.dashboard.pages import audit
from store.dashboard.views.formats import time_text
from store.dashboard.views.log_sentences import sentences
from store.db.queries import log_list
from store.db.queries.log_list import LogRow
from store.interface.store import Store
from store.models import AttemptError, LoggedEvent
from store.narration.events import Narrator
from tests import databases
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, failed, succeeded
from tests.server.api import Api


async def logged(store: Store) -> list[LoggedEvent]:
    """Return the whole log, newest first."""
    return [event async for event in store.log.tail()][::-1]


async def walked(api: Api, query: str = "") -> list[Any]:
    """Return all events that the pages show, page by page."""
    rows, before = list[Any](), ""
    while True:
        page = (await api.get(f"//ui/audit.json?limit=3{query}{before}")).ok()
        rows += page["events"]
        if page["next_before"] is None:
            return rows
        before = f"&before={page['next_before']}"


@ON_BOTH
async def test_the_pages_are_the_log_newest_first_without_gaps(api: Api, store: Store) -> None:
    await succeeded(store)
    await failed(store)
    await store.update_worker("w-2", {"cpu": 1})
    rows = await walked(api)
    for event, row in zip(await logged(store), rows, strict=True):
        assert (row["position"], row["stream"], row["version"]) == (event.position, event.stream, event.number)
        assert (row["type"], row["actor"], row["cause"]) == (event.type, event.actor, event.cause)
        assert (row["commit_id"], row["at"] / 1e6, row["data"]) == (event.commit_id, event.at, event.data)


async def test_events_are_described_as_the_command_line_describes_them(api: Api, store: Store) -> None:
    run = await failed(store, AttemptError(type="ToolError", message="exited with 137"), worker="w-1")
    narrator = Narrator(time_text)
    history = [(event.position, narrator.describe(event)) for event in await store.log.history(run.rollout_id)]
    rows = {row["position"]: row["sentence"] for row in await walked(api, f"&stream=rollout/{run.rollout_id}")}
    assert rows == dict(history)
    assert "attempt 1 reported failed: ToolError: exited with 137" in rows.values()
    assert "attempt 1 reported failed: ToolError" in Read((await api.get("//ui/audit")).body).text


async def test_data_changed_beside_the_log_is_shown_as_it_is(api: Api, store: Store) -> None:
    await succeeded(store)
    rows = await walked(api)
    changed = [
        LogRow(row["position"], 1, row["stream"], 1, row["type"], row["at"], None, None, data, len(data))
        for row in rows
        for data in ("{}", "[]", "null", '{"attempt_id": 1, "sequence": []}', "{")
    ]
    assert set(sentences(changed, [])) <= {row["position"] for row in rows}


@ON_BOTH
async def test_events_are_found_by_stream_type_and_actor(api: Api, store: Store) -> None:
    first = await succeeded(store)
    await failed(store, worker="w-1")
    log = await logged(store)
    expected = {
        f"&stream=rollout/{first.rollout_id}": [
            event for event in log if event.stream == f"rollout/{first.rollout_id}"
        ],
        "&type=attempt.started": [event for event in log if event.type == "attempt.started"],
        "&actor=worker:w-1": [event for event in log if event.actor == "worker:w-1"],
        "&actor=worker:w-1&type=worker.seen": [event for event in log if event.type == "worker.seen"],
    }
    for query, events in expected.items():
        assert events
        assert [row["position"] for row in await walked(api, query)] == [event.position for event in events], query
    nothing = await api.get("//ui/audit?actor=nobody")
    assert "No event matches" in Read(nothing.body).text


async def test_rare_events_are_searched_in_bounded_steps(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_list, "LOOKED_AT", 4)
    await store.enqueue_rollout({"question": 1})
    for _ in range(5):
        await succeeded(store)
    page = (await api.get("//ui/audit.json?type=rollout.enqueued")).ok()
    last = page["position"]
    assert (page["events"], page["looked_back_to"], page["next_before"]) == ([], last - 3, last - 3)
    assert "there are older events" in Read((await api.get("//ui/audit?type=rollout.enqueued")).body).text
    assert [row["position"] for row in await walked(api, "&type=rollout.enqueued")] == [1]


async def test_a_stream_leads_to_its_page(api: Api, store: Store) -> None:
    run = await failed(store, worker="a b")
    await store.update_resources("r#1", {})
    pages = {row["stream"]: row["page"] for row in await walked(api)}
    assert pages == {
        f"rollout/{run.rollout_id}": f"/ui/rollouts/{run.rollout_id}",
        "worker/a b": "/ui/workers/a%20b",
        "resources/r#1": "/ui/resources/r%231",
    }
    links = Read((await api.get("//ui/audit")).body).links
    assert set(pages.values()) <= set(links)


async def test_long_data_is_cut_and_says_so(api: Api, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_list, "SHOWN", 12)
    await store.enqueue_rollout({"question": 1})
    (row,) = await walked(api)
    assert row["data"] is None
    assert len(row["data_begins"]) == 12
    assert row["data_length"] > 12
    assert "characters in total" in Read((await api.get("//ui/audit")).body).text


async def test_the_words_of_strangers_stay_words_in_the_log(api: Api, store: Store) -> None:
    await failed(store, worker=HOSTILE)
    await store.update_resources(HOSTILE, {})
    read = Read((await api.get("//ui/audit")).body)
    assert not [mark for mark in read.marks if "onerror" in mark]
    assert f"worker:{HOSTILE}" in read.marked("title")
    assert f"resources/{HOSTILE}" in read.marked("title")


async def test_empty_log_explains_how_to_begin(api: Api) -> None:
    page = (await api.get("//ui/audit.json")).ok()
    assert (page["events"], page["total"], page["chain_head"], page["next_before"]) == ([], 0, "", None)
    assert "enqueue_rollout" in Read((await api.get("//ui/audit")).body).text


async def test_verification_reports_the_chain_head_of_the_page(api: Api, store: Store) -> None:
    await succeeded(store)
    head = (await api.get("//ui/audit.json")).ok()["chain_head"]
    asked = Read((await api.get("//ui/audit/verify")).body)
    assert "Verify now" in asked.text
    report = Read((await api.send("POST", "//ui/audit/verify")).body)
    assert "Intact" in report.text
    assert head in report.text
    assert head == (await store.log.verify()).chain_head


async def test_verification_reports_rows_changed_beside_the_log(api: Api, store: Store, store_url: str) -> None:
    run = await succeeded(store)
    database = await databases.connect(store_url)
    await database.execute("UPDATE rollouts SET status = 'queuing'")
    await database.close()
    read = Read((await api.send("POST", "//ui/audit/verify")).body)
    assert "Not intact" in read.text
    assert run.rollout_id in read.text
    assert "rollbook rebuild" in read.text


async def test_a_large_log_is_left_to_the_command_line(api: Api, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "VERIFIED_AT_MOST", 1)
    await succeeded(store)
    asked = Read((await api.get("//ui/audit/verify")).body)
    assert "Verify now" not in asked.text
    assert "rollbook verify" in asked.text
    refused = await api.send("POST", "//ui/audit/verify")
    assert refused.status == 409
    assert "rollbook verify" in Read(refused.body).text


async def test_a_seal_from_the_page_seals_the_log(api: Api, store: Store, tmp_path: Path) -> None:
    await succeeded(store)
    answer = await api.get("//ui/audit/seal")
    assert answer.headers["content-disposition"].startswith("attachment; ")
    file = tmp_path / "kept.json"
    file.write_bytes(answer.body)
    assert Seal.model_validate_json(answer.body).chain_head == (await store.log.verify()).chain_head
    await succeeded(store)
    report = await store.log.verify(file)
    assert report.ok
    assert report.seal_checked
