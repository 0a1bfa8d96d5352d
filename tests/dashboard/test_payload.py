"""Pages that remove payload: they count and search first, and each removal is an operation with a stored result."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.db.queries import operation_runs
from store.db.queries.operation_runs import OperationRun
from store.db.url import with_partition
from store.interface.store import Store
from store.models import AttemptedRollout, PromptTemplate, Span
from store.operations.policy import RetentionPolicy
from store.operations.requested import RemoveByPolicy
from store.operations.schedule import Schedule
from store.server.partitions import Partitions
from store.server.process import scheduler as scheduling
from store.server.process.scheduler import Scheduler
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests.conftest import SQLITE
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, succeeded
from tests.operations.test_runs import claimed
from tests.server.api import Answer, Api, speaking_to
from tests.server.forked_operations import forked_operations
from tests.server.keyed import bearer, isolated_database, keyed_server

__all__ = ["forked_operations"]

pytestmark = pytest.mark.usefixtures("forked_operations")

SECRET = "jane@example.org"
ALL_STATUSES = {"status": "succeeded\nfailed\ncancelled"}


@pytest.fixture(params=[SQLITE])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return isolated_database(request, tmp_path)


@asynccontextmanager
async def _serving(store: Store, url: str, archives: Path | None = None, **settings: Any) -> AsyncGenerator[Api]:
    """Serve a store whose server runs operations."""
    partitions = Partitions(store, url, open_store)
    scheduler = Scheduler(partitions, url, Schedule(None, None, archive_directory=archives))
    try:
        async with speaking_to(partitions, scheduler=scheduler, **settings) as api:
            yield api
    finally:
        await scheduler.close()
        await partitions.close()


@pytest.fixture
async def api(store: Store, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Api]:
    # On a loaded machine, a removal takes longer than a page waits.
    monkeypatch.setattr("store.dashboard.pages.payload._WAIT_SECONDS", 60)
    async with _serving(store, store_url, tmp_path) as api:
        yield api


async def _page(api: Api, page: str, **params: Any) -> Answer:
    return await api.get(f"//ui/{page}", params=params)


async def _sent(api: Api, path: str, **fields: Any) -> Answer:
    return await api.send("POST", f"//ui/{path}", data=fields, allow_redirects=False)


async def _runs(store: Store) -> dict[str, OperationRun]:
    assert isinstance(store, SQLStore)
    return await store.core.look(operation_runs.all_runs)


async def _ended(store: Store, operation: str) -> OperationRun:
    """Wait until an operation has ended, and return its run."""
    async with asyncio.timeout(60):
        while True:
            run = (await _runs(store)).get(operation)
            if run is not None and run.runner is None:
                return run
            await asyncio.sleep(0.05)


async def _removals(store: Store) -> list[dict[str, Any]]:
    """Return the events that record removals."""
    return [
        {"type": event.type, "actor": event.actor, **event.data}
        async for event in store.log.tail()
        if event.type.startswith("store.")
    ]


async def _span(store: Store, rollout: AttemptedRollout) -> Span:
    """Add a span with payload, and return it."""
    span = Span.from_attributes(
        name="call",
        attributes={"prompt": SECRET},
        sequence_id=1,
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
    )
    recorded = await store.add_span(span)
    assert recorded is not None
    return recorded


async def _input(store: Store, rollout: AttemptedRollout) -> Any:
    current = await store.get_rollout_by_id(rollout.rollout_id)
    assert current is not None
    return current.input


@ON_BOTH
async def test_a_policy_is_counted_before_its_payload_is_removed(api: Api, store: Store) -> None:
    old = await succeeded(store, input={"question": SECRET})
    active = await store.start_rollout({"question": 2})
    page = (await _page(api, "admin/payload.json", status=["succeeded", "failed"], mode="")).ok()
    assert (page["policy"], page["report"]["rollouts"], page["report"]["is_applied"]) == (
        "status succeeded, failed",
        1,
        False,
    )
    assert await _input(store, old) == {"question": SECRET}
    read = Read((await _page(api, "admin/payload", status=["succeeded", "failed"])).body)
    assert "/ui/admin/payload/remove" in read.marked("action")
    assert "succeeded\nfailed" in read.marked("value")
    answer = await _sent(api, "admin/payload/remove", status="succeeded\nfailed")
    assert answer.status == 303
    ended = await _ended(store, "remove")
    assert (ended.error, ended.runs) == (None, 1)
    assert (ended.detail or "").startswith("payload of 1 rollout, ")
    assert (await _input(store, old), await _input(store, active)) == (None, {"question": 2})
    assert {(removal["type"], removal["actor"], removal["policy"]) for removal in await _removals(store)} == {
        ("store.bodies_dropped", "dashboard", "status succeeded, failed")
    }
    assert (await store.log.verify()).ok
    assert "Remove payload by a policy" in Read((await _page(api, "admin")).body).text
    nothing = Read((await _page(api, "admin/payload", status="succeeded")).body)
    assert "No payload fulfils these conditions." in nothing.text
    assert "/ui/admin/payload/remove" not in nothing.marked("action")


INVALID: list[tuple[dict[str, str], str]] = [
    ({"older_than_days": "soon"}, "'soon' is not a number"),
    ({"older_than_days": "-1"}, "must be between 0"),
    ({"older_than_days": "0"}, "must be more than 0"),
    ({"max_mb": "nan"}, "must be between 0"),
    ({"keep_last": "0"}, "must lie between 1"),
    ({"older_than_days": "1000000000"}, "between 0 and 36,500"),
    ({"status": "running"}, "Input should be 'succeeded'"),
    ({"mode": "other"}, "Input should be 'train'"),
    ({"group": "a\0b"}, "(U+0000)"),
    ({"label": "a", "without_label": "a"}, "no rollout both has and lacks the label"),
    ({"group": "\n".join(map(str, range(11)))}, "at most 10 values"),
]
"""Conditions of a policy, and part of the message of each."""


async def test_an_invalid_condition_is_named_and_nothing_is_removed(
    api: Api, store: Store, subtests: pytest.Subtests
) -> None:
    rollout = await succeeded(store)
    for fields, text in INVALID:
        with subtests.test(fields=fields):
            page = await _page(api, "admin/payload", **fields)
            assert page.status == 422
            notice = re.search(r'<p class="notice bad"[^>]*>(.*?)</p>', page.body.decode())
            assert notice is not None
            assert "By a policy" in Read(page.body).text
            assert text in html.unescape(notice[1])
            for action in ("remove", "archive"):
                refused = await _sent(api, f"admin/payload/{action}", file="a.archive", **fields)
                assert refused.status == 422, action
    assert (await _sent(api, "admin/payload/remove")).status == 422
    assert await _runs(store) == {}
    assert await _input(store, rollout) == {"question": 1}


async def test_payload_is_moved_into_an_archive_in_the_directory_of_the_server(
    api: Api, store: Store, tmp_path: Path
) -> None:
    rollout = await succeeded(store, input={"question": SECRET})
    read = Read((await _page(api, "admin/payload", keep_last="", **ALL_STATUSES)).body)
    assert any(value.endswith(".archive") for value in read.marked("value"))
    for name in ("", "../a.archive", "a/b.archive", ".archive", "a.db", "a.archive.partial", "a b.archive"):
        assert (await _sent(api, "admin/payload/archive", file=name, **ALL_STATUSES)).status == 422, name
    assert (await _sent(api, "admin/payload/archive", file="old.archive", **ALL_STATUSES)).status == 303
    ended = await _ended(store, "archive")
    assert (ended.error, "old.archive" in (ended.detail or "")) == (None, True)
    assert await _input(store, rollout) is None
    async with await open_store(f"sqlite:///{tmp_path / 'old.archive'}", read_only=True) as archive:
        assert await _input(archive, rollout) == {"question": SECRET}
        assert (await archive.log.verify()).ok
    later = await succeeded(store)
    assert (await _sent(api, "admin/payload/archive", file="old.archive", **ALL_STATUSES)).status == 303
    assert "the policy now also selects 1 rollout that the file does not contain" in (
        (await _ended(store, "archive")).detail or ""
    )
    assert await _input(store, later) == {"question": 1}
    again = await _sent(api, "admin/payload/archive", file="old.archive", status="succeeded")
    assert again.status == 409
    assert "old.archive" in Read(again.body).text
    assert (await _ended(store, "archive")).failures == 1


async def test_a_server_without_a_directory_makes_no_archives(store: Store, store_url: str) -> None:
    await succeeded(store)
    async with _serving(store, store_url) as api:
        page = Read((await _page(api, "admin/payload", **ALL_STATUSES)).body)
        assert "/ui/admin/payload/archive" not in page.marked("action")
        assert "--archive-dir" in page.text
        refused = await _sent(api, "admin/payload/archive", file="a.archive", **ALL_STATUSES)
        assert (refused.status, "--archive-dir" in Read(refused.body).text) == (409, True)


@ON_BOTH
async def test_a_text_is_searched_in_payload_and_in_rows(api: Api, store: Store) -> None:
    rollout = await succeeded(store, input={"question": f"Write to {SECRET.upper()} {HOSTILE}"})
    await succeeded(store, input={"question": 2})
    await store.add_resources({"prompt": PromptTemplate(template=SECRET, engine="f-string")})
    answer = await _sent(api, "admin/payload/search", text=SECRET, ignore_case="1")
    read = Read(answer.body)
    assert answer.status == 200
    assert "1 event of 1 rollout contains" in read.text
    assert HOSTILE[:20] in read.text
    assert "1 place that keeps the text" in read.text
    assert f"/ui/rollouts/{rollout.rollout_id}" in read.links
    values = [(name, value or "") for mark in read.marks for name, value in mark.items()]
    assert [name for name, value in values if "jane" in value] == ["value"]
    assert await _runs(store) == {}


async def test_the_payload_with_a_text_is_removed_for_a_reason(
    api: Api, store: Store, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    rollout = await succeeded(store, input={"question": f"Write to {SECRET.upper()} {HOSTILE}"})
    other = await succeeded(store, input={"question": 2})
    await store.add_resources({"prompt": PromptTemplate(template=SECRET, engine="f-string")})
    assert (await _sent(api, "admin/payload/search", text=SECRET, ignore_case="1")).status == 200
    refused = await _sent(api, "admin/payload/forget", text=SECRET, ignore_case="1", reason=f"by {SECRET}")
    assert (refused.status, "leave the text out" in Read(refused.body).text) == (409, True)
    for reason in ("", " ", "x" * 201):
        assert (await _sent(api, "admin/payload/forget", text=SECRET, reason=reason)).status == 422
    answer = await _sent(api, "admin/payload/forget", text=SECRET, ignore_case="1", reason="request 17")
    assert answer.status == 303
    ended = await _ended(store, "forget")
    assert (ended.error, ended.detail, ended.failures) == (None, "payload of 1 event of 1 rollout (request 17)", 1)
    assert "jane" not in str(answer.headers)
    assert "jane" not in caplog.text
    assert (await _input(store, rollout), await _input(store, other)) == (None, {"question": 2})
    assert [removal["reason"] for removal in await _removals(store)] == ["request 17"]
    files = list(Path(store_url.removeprefix("sqlite:///")).parent.glob("*.db*"))
    assert files
    assert not any(SECRET.upper().encode() in file.read_bytes() for file in files)
    clean = Read((await _sent(api, "admin/payload/search", text="Write to", ignore_case="1")).body)
    assert "0 events of 0 rollouts contain" in clean.text
    # A removal that was stopped may have left the text in the files.
    assert "Clean the database" in clean.text
    assert "/ui/admin/payload/forget" in clean.marked("action")


async def test_a_text_that_is_too_short_is_refused(api: Api) -> None:
    assert (await _sent(api, "admin/payload/search", text="ab")).status == 422
    assert (await _sent(api, "admin/payload/forget", text="ab", reason="request 17")).status == 422


async def test_a_large_log_is_searched_with_the_command(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await succeeded(store)
    for limit, most in (("SEARCHED_AT_MOST", 1), ("SEARCHED_AT_MOST", 200_000), ("SEARCHED_BYTES_AT_MOST", 1)):
        monkeypatch.setattr(f"store.dashboard.pages.payload.{limit}", most)
        answer = await _sent(api, "admin/payload/search", text=SECRET)
        expected = (200, False) if most > 1 else (409, True)
        assert (answer.status, "rollbook forget --match" in Read(answer.body).text) == expected
    monkeypatch.setattr("store.dashboard.pages.payload.COUNTED_AT_MOST", 1)
    refused = await _page(api, "admin/payload", **ALL_STATUSES)
    assert (refused.status, "rollbook retention" in Read(refused.body).text) == (409, True)


@pytest.mark.parametrize("choice", ["input", "span", "event"])
async def test_payload_of_single_events_is_removed(api: Api, store: Store, choice: str) -> None:
    rollout = await succeeded(store, input={"question": SECRET})
    span = await _span(store, rollout)
    page = f"rollouts/{rollout.rollout_id}/payload"
    query = {"span": {"span": span.span_id}, "event": {"event": "1"}}.get(choice, {})
    form = Read((await _page(api, f"{page}", **query)).body)
    assert f"/ui/{page}" in form.marked("action")
    assert (await _page(api, f"{page}.json", **query)).ok()["choice"] == (choice if query else "everything")
    assert (await _sent(api, page, choice=choice, **query)).status == 422
    answer = await _sent(api, page, choice=choice, reason="request 17", **query)
    ended = await _ended(store, "redact")
    assert (answer.status, answer.headers["location"]) == (303, f"/ui/rollouts/{rollout.rollout_id}")
    assert ended.error is None
    (current,) = await store.query_spans(rollout.rollout_id)
    assert ("prompt" in current.attributes) == (choice != "span")
    assert await _input(store, rollout) == ({"question": SECRET} if choice == "span" else None)
    assert [removal["reason"] for removal in await _removals(store)] == ["request 17"]
    assert (await store.log.verify()).ok


async def test_an_event_without_payload_is_an_error_of_the_page(api: Api, store: Store) -> None:
    rollout = await succeeded(store)
    answer = await _sent(api, f"rollouts/{rollout.rollout_id}/payload", choice="span", span="none", reason="request 17")
    assert (answer.status, "no such event with payload" in Read(answer.body).text) == (409, True)
    assert (await _ended(store, "redact")).failures == 1


async def test_an_invalid_choice_of_events_is_refused(api: Api, store: Store) -> None:
    rollout = await succeeded(store)
    page = f"rollouts/{rollout.rollout_id}/payload"
    for fields in ({"choice": "other"}, {}, {"choice": "span"}, {"choice": "event"}, {"choice": "event", "event": "0"}):
        assert (await _sent(api, page, reason="request 17", **fields)).status == 422, fields
    missing = await _sent(api, "rollouts/ro-none/payload", choice="everything", reason="request 17")
    assert (missing.status, (await _page(api, "rollouts/ro-none/payload")).status) == (404, 404)
    assert await _runs(store) == {}


async def test_pages_link_to_the_removal_of_their_payload(api: Api, store: Store) -> None:
    rollout = await succeeded(store)
    span = await _span(store, rollout)
    removal = f"/ui/rollouts/{rollout.rollout_id}/payload"
    of_span = f"rollouts/{rollout.rollout_id}/spans/{span.span_id}"
    assert f"{removal}?span={span.span_id}" in Read((await _page(api, of_span)).body).links
    assert removal in Read((await _page(api, f"rollouts/{rollout.rollout_id}/raw")).body).links
    assert f"{removal}?event=1" in Read((await _page(api, f"rollouts/{rollout.rollout_id}/events")).body).links
    assert "/ui/admin/payload" in Read((await _page(api, "admin")).body).links


async def test_a_removal_of_the_same_kind_is_refused_while_one_runs(api: Api, store: Store, store_url: str) -> None:
    await succeeded(store)
    assert await claimed(store_url, "remove", "elsewhere:1")
    refused = await _sent(api, "admin/payload/remove", **ALL_STATUSES)
    assert (refused.status, "running already, in elsewhere:1" in Read(refused.body).text) == (409, True)


async def test_of_two_removals_of_one_kind_at_once_one_is_refused(api: Api, store: Store) -> None:
    await succeeded(store)
    answers = await asyncio.gather(*(_sent(api, "admin/payload/remove", **ALL_STATUSES) for _ in range(2)))
    assert sorted(answer.status for answer in answers) == [303, 409]
    (refused,) = [answer for answer in answers if answer.status == 409]
    assert "is running already" in Read(refused.body).text
    assert (await _ended(store, "remove")).runs == 1


async def test_a_removal_that_was_stopped_with_its_server_can_be_repeated(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "_RECORD_SECONDS", 60.0)
    rollout = await succeeded(store)
    removal = RemoveByPolicy(policy=RetentionPolicy.of(statuses=("succeeded",)))
    partitions = Partitions(store, store_url)
    scheduler = Scheduler(partitions, store_url, Schedule(None, None))
    assert isinstance(store, SQLStore)
    assert await scheduler.remove(store, "default", removal, "cli", wait_seconds=0) is None
    async with asyncio.timeout(60):
        while "remove" not in await _runs(store):  # noqa: ASYNC110 (no event tells of the claim)
            await asyncio.sleep(0.01)
    await scheduler.close()
    stopped = (await _runs(store))["remove"]
    # The removal may have ended before it was stopped.
    assert stopped.runner is None
    assert stopped.error in {None, "the server was stopped; request the removal again"}
    scheduler = Scheduler(partitions, store_url, Schedule(None, None))
    outcome = await scheduler.remove(store, "default", removal, "cli", wait_seconds=60)
    await scheduler.close()
    assert outcome is not None
    assert outcome.state == "done"
    assert await _input(store, rollout) is None
    assert (await store.log.verify()).ok


async def test_payload_of_another_partition_is_removed(store: Store, store_url: str) -> None:
    url = with_partition(store_url, "other")
    async with await open_store(url) as other:
        rollouts = [await succeeded(target) for target in (store, other)]
        async with _serving(store, store_url) as api:
            answer = await api.send(
                "POST", "//p/other/ui/admin/payload/remove", data=ALL_STATUSES, allow_redirects=False
            )
            assert answer.status == 303, answer
            assert answer.headers["location"] == "/p/other/ui/admin"
            assert (await _ended(other, "remove")).error is None
        assert await _input(store, rollouts[0]) == {"question": 1}
        assert await _input(other, rollouts[1]) is None


async def test_only_an_admin_sees_and_removes(store: Store, store_url: str, clock: ManualClock, tmp_path: Path) -> None:
    rollout = await succeeded(store)
    partitions = Partitions(store, store_url)
    scheduler = Scheduler(partitions, store_url, Schedule(None, None, archive_directory=tmp_path))
    pages = ("admin/payload", f"rollouts/{rollout.rollout_id}/payload")
    actions = (
        "admin/payload/remove",
        "admin/payload/archive",
        "admin/payload/search",
        "admin/payload/forget",
        pages[1],
    )
    async with keyed_server(store, store_url, clock, scheduler=scheduler) as keyed:
        for role in ("reader", "runner", "algorithm"):
            key = await keyed.key(role)
            for page in pages:
                assert (await keyed.ask(key, path=f"//ui/{page}.json")).status == 403, (role, page)
            for action in actions:
                data = {"text": "abc", "reason": "x", "choice": "everything", "file": "a.archive", **ALL_STATUSES}
                assert (await keyed.ask(key, "POST", f"//ui/{action}", data=data)).status == 403, (role, action)
            read = Read((await keyed.ask(key, path=f"//ui/rollouts/{rollout.rollout_id}/events")).body)
            assert not [link for link in read.links if "/payload" in link]
        bound = await keyed.key("admin", partition="default")
        sent = {"headers": bearer(bound), "allow_redirects": False}
        data = {"file": "a.archive", **ALL_STATUSES}
        refused = await keyed.api.send("POST", "//ui/admin/payload/archive", data=data, **sent)
        assert (refused.status, "for all partitions" in Read(refused.body).text) == (403, True)
        removed = await keyed.api.send("POST", "//ui/admin/payload/remove", data=ALL_STATUSES, **sent)
        assert removed.status == 303
        await _ended(store, "remove")
    await scheduler.close()
    assert [removal["actor"][:4] for removal in await _removals(store)] == ["key:"]


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_a_server_that_runs_no_operations_removes_nothing(
    store: Store, store_url: str, *, is_read_only: bool
) -> None:
    rollout = await succeeded(store)
    async with speaking_to(Partitions(store, store_url), is_read_only=is_read_only) as api:
        assert "By a policy" not in Read((await _page(api, "admin/payload")).body).text
        for page in ("admin/payload", f"rollouts/{rollout.rollout_id}/payload"):
            read = Read((await _page(api, f"{page}", **ALL_STATUSES)).body)
            assert "This server cannot remove payload" in read.text
            assert not [
                action for action in read.marked("action") if action.endswith(("/remove", "/archive", "/forget"))
            ]
        refused = await _sent(api, "admin/payload/remove", **ALL_STATUSES)
        assert refused.status == (501 if is_read_only else 409)
        assert "rollbook" in Read(refused.body).text
    assert await _input(store, rollout) == {"question": 1}


async def test_the_pages_of_a_store_in_memory_are_notes() -> None:
    async with await open_store("memory://") as store, speaking_to(Partitions(store)) as api:
        assert (await _page(api, "admin/payload.json", status="succeeded")).ok()["report"] is None
        refused = await _sent(api, "admin/payload/search", text=SECRET)
        assert (refused.status, "in memory" in Read(refused.body).text) == (409, True)
