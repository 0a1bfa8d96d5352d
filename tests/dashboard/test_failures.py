"""The failures page: grouping by message, and links to the attempts."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from store.dashboard.views.failed_attempts import alike
from store.interface.store import Store
from store.models import AttemptError, RolloutConfig
from store.testing import ManualClock
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, failed, rewarded
from tests.server.api import Api


@pytest.mark.parametrize(
    "one, other",
    [
        ("429: try again in 20 s", "429: try again in 1.5 s"),
        ("no row 17", "no row 4"),
        ("object at 0x7f3a", "object at 0x11"),
        ("span 00f067aa0ba902b7 is gone", "span 11f067aa0ba902b7 is gone"),
        ("of 123e4567-e89b-12d3-a456-426614174000", "of 523e4567-e89b-12d3-a456-426614174fff"),
    ],
)
def test_messages_that_differ_in_numbers_and_ids_are_alike(one: str, other: str) -> None:
    assert alike(one) == alike(other)


@pytest.mark.parametrize("one, other", [("no answer", "no reward"), ("facade", "decade"), ("", "1")])
def test_messages_that_differ_in_words_are_not(one: str, other: str) -> None:
    assert alike(one) != alike(other)


async def kinds(api: Api, query: str = "") -> list[dict[str, Any]]:
    """Return the kinds of failures that the page shows."""
    return (await api.get(f"//ui/failures.json{query}")).ok()["kinds"]


async def test_attempts_are_counted_by_type_and_message(api: Api, store: Store, clock: ManualClock) -> None:
    first = clock()
    for seconds in (5, 17):
        clock.advance(1)
        await failed(store, AttemptError(type="RateLimitError", message=f"try again in {seconds} s"))
    newest = await failed(
        store, AttemptError(type="RateLimitError", message="quota used up", span_id="5b"), worker="w-2"
    )
    await failed(store, AttemptError(type="KeyError", message="'reward'"))
    limited, key = await kinds(api)
    assert (limited["type"], limited["status"], limited["count"], limited["rollouts"]) == (
        "RateLimitError",
        "failed",
        3,
        3,
    )
    assert limited["workers"] == 2
    assert first < limited["first_at"] <= limited["last_at"]
    assert [(saying["message"], saying["count"]) for saying in limited["sayings"]] == [
        ("try again in # s", 2),
        ("quota used up", 1),
    ]
    assert limited["newest"]["rollout_id"] == newest.rollout_id
    # What was said once is told as it was.
    assert [saying["message"] for saying in key["sayings"]] == ["'reward'"]


async def test_attempts_out_of_time_and_silent_ones_are_kinds_of_their_own(
    api: Api, store: Store, clock: ManualClock
) -> None:
    await failed(store)
    for config in (RolloutConfig(timeout_seconds=5), RolloutConfig(unresponsive_seconds=5)):
        await store.start_rollout({"question": 1}, config=config, worker_id="w-1")
    clock.advance(10)
    pairs = {(kind["status"], kind["type"]) for kind in await kinds(api)}
    assert pairs == {("failed", None), ("timeout", None), ("unresponsive", None)}
    text = Read((await api.get("//ui/failures")).body).text
    assert "past the time limit" in text
    assert "no sign of life" in text
    assert "no error reported" in text


@ON_BOTH
async def test_each_kind_leads_to_as_many_rollouts_as_it_says(api: Api, store: Store, clock: ManualClock) -> None:
    for error in (None, AttemptError(type="KeyError"), AttemptError(type="Key"), AttemptError(type='Odd"Error')):
        await failed(store, error)
    await failed(store, AttemptError(type="Key", message='"type":"KeyError"'))
    await store.start_rollout({"question": 1}, config=RolloutConfig(timeout_seconds=5))
    clock.advance(10)
    page = Read((await api.get("//ui/failures")).body)
    links = [link for link in page.links if link.startswith("/ui/rollouts?attempt=")]
    totals = [(await api.get(f"/{link.replace('?', '.json?', 1)}")).ok()["total"] for link in links]
    assert totals == [kind["rollouts"] for kind in await kinds(api)] == [2, 1, 1, 1, 1]


@ON_BOTH
async def test_they_are_filtered_by_type_status_and_words(api: Api, store: Store) -> None:
    await failed(store, AttemptError(type="KeyError", message="'reward'"))
    await failed(store, AttemptError(type="ValueError", message="no answer"))
    assert [kind["type"] for kind in await kinds(api, "?type=KeyError")] == ["KeyError"]
    assert [kind["type"] for kind in await kinds(api, "?q=answer")] == ["ValueError"]
    assert await kinds(api, "?status=timeout") == []
    assert "No failed attempt matches." in Read((await api.get("//ui/failures?status=timeout")).body).text


@ON_BOTH
async def test_they_are_filtered_by_step_span_and_worker(api: Api, store: Store) -> None:
    for step, worker in ((1, "w-1"), (2, "w-2"), (None, "w-2")):
        metadata = {} if step is None else {"rollbook.step": step}
        begun = await store.start_rollout("task", worker_id=worker, metadata=metadata)
        span = rewarded(begun, 0.0).model_copy(update={"name": f"execute_tool {worker}"})
        await store.add_span(span)
        error = AttemptError(type="ToolError", message=f"exited with {step}", span_id=span.span_id)
        await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="failed", error=error)
    for query, count in (
        ("?step_min=2", 1),
        ("?step_max=2", 2),
        ("?step_min=1&step_max=1", 1),
        ("?worker=w-2", 2),
        ("?span=execute_tool%20w-1", 1),
        ("?step_min=2&worker=w-1", 0),
    ):
        assert sum(kind["count"] for kind in await kinds(api, query)) == count, query
        links = [
            link for link in Read((await api.get(f"//ui/failures{query}")).body).links if "rollouts?attempt" in link
        ]
        if "span" not in query and count:
            assert (await api.get(f"/{links[0].replace('?', '.json?', 1)}")).ok()["total"] == count, query
    refused = await api.get("//ui/failures?step_min=x&worker=w-1")
    assert refused.status == 422
    assert "/ui/failures?worker=w-1" in Read(refused.body).links


async def test_page_states_that_only_the_newest_failures_are_counted(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.dashboard.views.failed_attempts.MOST", 2)
    for number in range(3):
        await failed(store, AttemptError(type=f"Error{number}"))
    values = (await api.get("//ui/failures.json")).ok()
    assert (values["looked_at"], values["total"]) == (2, 3)
    assert {kind["type"] for kind in values["kinds"]} == {"Error1", "Error2"}
    assert "of the newest 2 of 3" in Read((await api.get("//ui/failures")).body).text


async def test_texts_of_errors_are_escaped(api: Api, store: Store) -> None:
    await failed(store, AttemptError(type=HOSTILE, message=HOSTILE, span_id=HOSTILE), worker=HOSTILE)
    for query in ("", f"?type={quote(HOSTILE)}", f"?q={quote(HOSTILE)}"):
        page = Read((await api.get(f"//ui/failures{query}")).body)
        assert "img" not in page.tags[page.tags.index("main") :]
        assert HOSTILE in page.text


async def test_an_error_whose_type_is_empty_is_one_without_a_type(api: Api, store: Store) -> None:
    for error in (AttemptError(type="", message="gone"), None, AttemptError(type="KeyError", message='"type":""')):
        await failed(store, error)
    counts = {kind["type"]: kind["rollouts"] for kind in await kinds(api)}
    assert counts == {None: 2, "KeyError": 1}
    links = [link for link in Read((await api.get("//ui/failures")).body).links if "error=%28none%29" in link]
    assert (await api.get(f"/{links[0].replace('?', '.json?')}")).ok()["total"] == 2
