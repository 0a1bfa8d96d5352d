"""The list of rollouts: no row is lost or repeated during changes, filters, columns and figures of the matches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, EnqueueRolloutRequest
from store.testing import ManualClock
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, failed, succeeded
from tests.dashboard.traces import a_span
from tests.server.api import Api


async def listed(api: Api, **params: Any) -> dict[str, Any]:
    """Return what the list shows."""
    return (await api.get(f"//ui/rollouts.json?{urlencode(params, doseq=True)}")).ok()


async def ids(api: Api, **params: Any) -> list[str]:
    """Return the ids that the list shows, in its order."""
    return [row["rollout_id"] for row in (await listed(api, **params))["rollouts"]]


async def enqueued(store: Store, count: int) -> list[str]:
    """Return the ids of new rollouts, the newest first."""
    rollouts = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(count)])
    return [rollout.rollout_id for rollout in reversed(rollouts)]


async def rewarded(store: Store, values: dict[str, float], **fields: Any) -> AttemptedRollout:
    """Return a rollout that succeeded with a reward of several named values."""
    begun = await store.start_rollout({"question": 1}, **fields)
    attributes = {
        f"agentlightning.reward.{number}.{part}": value
        for number, (name, reward) in enumerate(values.items())
        for part, value in (("name", name), ("value", reward))
    }
    await store.add_span(a_span(begun, 1, "agentlightning.annotation", attributes=attributes))
    await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="succeeded")
    return begun


async def linked(api: Api, path: str, rel: str) -> str | None:
    """Return where a page says the next or the previous one is."""
    page = Read((await api.get(f"/{path}")).body)
    return next((mark["href"] for mark in page.marks if mark.get("rel") == rel), None)


async def row_ids(api: Api, path: str) -> list[str]:
    """Return the ids that a page shows."""
    page = Read((await api.get(f"/{path}")).body)
    return [value.removeprefix("row-") for value in page.marked("id") if value.startswith("row-")]


@ON_BOTH
@pytest.mark.parametrize("order", ["", "&desc=0", "&sort=reward"])
async def test_following_the_pages_shows_every_rollout_once_there_and_back(api: Api, store: Store, order: str) -> None:
    rollout_ids = await enqueued(store, 7)
    path: str | None = f"/ui/rollouts?limit=3{order}"
    there: list[str] = []
    visited: list[str] = []
    while path is not None:
        visited.append(path)
        there += await row_ids(api, path)
        path = await linked(api, path, "next")
    assert len(visited) == 3
    assert sorted(there) == sorted(rollout_ids)
    back = await linked(api, visited[-1], "prev")
    assert back is not None
    assert await row_ids(api, back) == there[3:6]
    first = await linked(api, back, "prev")
    assert first is not None
    assert await row_ids(api, first) == there[:3]
    assert await linked(api, first, "prev") is None


async def test_a_page_past_the_first_stays_as_it_is_while_new_rollouts_come(api: Api, store: Store) -> None:
    rollout_ids = await enqueued(store, 6)
    second = await linked(api, "/ui/rollouts?limit=2", "next")
    assert second is not None
    assert await row_ids(api, second) == rollout_ids[2:4]
    new = await enqueued(store, 3)
    assert await row_ids(api, second) == rollout_ids[2:4]
    # Back from there no row is left out, though the first page is another one now.
    before = await linked(api, second, "prev")
    assert before is not None
    assert await row_ids(api, before) == rollout_ids[0:2]
    newest = await linked(api, before, "prev")
    assert newest is not None
    assert await row_ids(api, newest) == new[1:3]


async def test_refreshed_first_page_omits_and_counts_new_rollouts(api: Api, store: Store) -> None:
    rollout_ids = await enqueued(store, 3)
    page = Read((await api.get("//ui/rollouts?status=queuing")).body)
    (again,) = page.marked("data-again")
    new = await enqueued(store, 2)
    await failed(store)
    assert await row_ids(api, again) == rollout_ids
    told = Read((await api.get(f"/{again}")).body)
    assert "2 new" in told.text
    # It goes on being asked for like that, and no link of it but that to its own JSON stays in the past.
    assert told.marked("data-again") == [again]
    assert not [link for link in told.links if "upto" in link and ".json" not in link]
    (pill,) = [mark["href"] for mark in told.marks if mark.get("id") == "newer"]
    assert pill is not None
    assert await row_ids(api, pill) == [*new, *rollout_ids]


@ON_BOTH
async def test_statuses_are_counted_under_the_other_filters(api: Api, store: Store) -> None:
    await succeeded(store, mode="train")
    await failed(store, mode="train")
    await succeeded(store, mode="val")
    values = await listed(api, mode="train", status="failed")
    assert values["total"] == 1
    assert {name: count for name, count in values["by_status"].items() if count} == {"succeeded": 1, "failed": 1}
    assert (await listed(api, status=["failed", "succeeded"]))["total"] == 3


@ON_BOTH
async def test_each_filter_finds_its_rollouts(api: Api, store: Store) -> None:
    metadata = {"rollbook.group": "g/1", "rollbook.step": 4}
    await store.update_resources("prompts", {})
    one = await failed(store, AttemptError(type="KeyError"), worker="w 1", metadata=metadata, resources_id="prompts")
    other = await succeeded(store, worker_id="w 2", resources_id="none", metadata={"rollbook.step": 5})
    await store.annotations.annotate(one.rollout_id, add_labels=["odd one"])
    for name, value in (
        ("label", "odd one"),
        ("group", "g/1"),
        ("step", 4),
        ("resources", "prompts"),
        ("worker", "w 1"),
        ("error", "KeyError"),
        ("attempt", "failed"),
        ("q", one.rollout_id[3:]),
        ("id", one.rollout_id),
    ):
        assert await ids(api, **{name: value}) == [one.rollout_id], name
    assert await ids(api, id=[one.rollout_id, other.rollout_id]) == [other.rollout_id, one.rollout_id]
    assert await ids(api, worker="w 1", attempt="timeout") == []
    assert "odd one" in Read((await api.get("//ui/rollouts")).body).text


async def test_a_status_that_is_named_twice_counts_once(api: Api, store: Store) -> None:
    await failed(store)
    assert (await listed(api, status=["failed", "failed"]))["total"] == 1


@ON_BOTH
async def test_steps_lie_within_a_range_whose_ends_are_no_whole_numbers(api: Api, store: Store) -> None:
    by_step = {step: await succeeded(store, metadata={"rollbook.step": step}) for step in (-2, -1, 1, 2)}
    assert await ids(api, step_min=1.5) == [by_step[2].rollout_id]
    assert await ids(api, step_max=-1.5) == [by_step[-2].rollout_id]
    assert await ids(api, step_min=-1.5, step_max=1.5) == [by_step[1].rollout_id, by_step[-1].rollout_id]


async def test_invalid_list_parameters_are_refused_by_name(api: Api) -> None:
    for name, value in {
        "sort": "size",
        "desc": "2",
        "limit": "0",
        "after": "x",
        "step": "one",
        "attempt": "succeeded",
        "status": "failed&status=" + "&status=".join(f"{number};ls" for number in range(1_500)),
        "mode": "fast",
    }.items():
        answer = await api.get(f"//ui/rollouts.json?{name}={value}")
        assert answer.status == 422
        assert answer.json["field"] == name


async def test_form_marks_the_wrong_filters_and_keeps_the_others(api: Api, store: Store) -> None:
    await enqueued(store, 2)
    answer = await api.get("//ui/rollouts?mode=val&step=abc&reward_min=x&label=odd+one&sort=reward")
    assert answer.status == 422
    page = Read(answer.body)
    assert "step : 'abc' is not an integer" in page.text
    assert [mark["name"] for mark in page.marks if mark.get("aria-invalid")] == ["step", "reward_min"]
    assert {"error-step", "error-reward_min"} <= set(page.marked("id"))
    values = {mark["name"]: mark["value"] for mark in page.marks if "name" in mark and "value" in mark}
    assert (values["step"], values["reward_min"]) == ("abc", "x")
    assert (values["label"], values["sort"]) == ("odd one", "reward")
    assert not [mark for mark in page.marked("id") if mark.startswith("row-")]


async def test_each_applied_filter_can_be_removed_alone(api: Api, store: Store) -> None:
    await enqueued(store, 1)
    filters = "mode=val&step_min=300&step_max=315&reward_min=0.9499999999999998&duration_min=5&ended_min=1000"
    page = Read((await api.get(f"//ui/rollouts?{filters}&sort=reward")).body)
    for text in ("Mode val", "Steps 300 to 315", "Reward from 0.95", "Duration from 5 s", "1970-01-01 00:16:40"):
        assert text in page.text
    assert "/ui/rollouts?mode=val&reward_min=0.9499999999999998&duration_min=5&ended_min=1000&sort=reward" in page.links


@ON_BOTH
async def test_ranges_of_tokens_durations_and_end_times_leave_out_unknown_values(
    api: Api, store: Store, clock: ManualClock
) -> None:
    slow = await store.start_rollout({"question": 1})
    await store.add_span(a_span(slow, 1, attributes={"gen_ai.usage.output_tokens": 500}))
    clock.advance(30)
    await store.update_attempt(slow.rollout_id, slow.attempt.attempt_id, status="succeeded")
    quick = await succeeded(store)
    again = await succeeded(store)
    await store.update_rollout(again.rollout_id, status="requeuing")
    assert await ids(api, tokens_max=10_000) == [slow.rollout_id]
    assert await ids(api, tokens_min=501) == []
    assert await ids(api, duration_min=29.5) == [slow.rollout_id]
    # The rollout that waits again has not ended.
    assert await ids(api, duration_max=1) == [quick.rollout_id]
    assert (await ids(api, sort="duration"))[:2] == [slow.rollout_id, quick.rollout_id]
    ended = datetime.fromtimestamp(clock() / 1e6 - 1, UTC)
    assert quick.rollout_id in await ids(api, ended_min=f"{ended:%Y-%m-%dT%H:%M:%S}")
    assert await ids(api, ended_max=f"{ended:%Y-%m-%dT%H:%M:%S}") == []


@ON_BOTH
async def test_mean_of_the_matches_names_its_denominator(api: Api, store: Store) -> None:
    for reward in (1.0, 0.5):
        await rewarded(store, {"tests_pass": reward, "format": 1.0})
    await failed(store)
    await store.enqueue_rollout({"question": 1})
    summary = (await listed(api))["summary"]
    assert summary == {"rollouts": 4, "ended": 3, "rewarded": 2, "mean_reward": 0.5, "unrewarded": "failed:0"}
    assert "2 of 3 ended rewarded · mean 0.500 , failed as 0" in Read((await api.get("//ui/rollouts")).body).text
    assert (await listed(api, unrewarded="out"))["summary"]["mean_reward"] == 0.75
    assert (await listed(api, status="failed"))["summary"]["mean_reward"] == 0.0
    assert (await listed(api, status="queuing"))["summary"]["mean_reward"] is None


async def test_columns_are_chosen_in_the_address_and_show_dimensions_by_default(api: Api, store: Store) -> None:
    await rewarded(store, {"tests_pass": 0.25, "format": 1.0}, metadata={"repo": "flask", "rollbook.step": 3})
    page = Read((await api.get("//ui/rollouts")).body)
    headings = page.text[page.text.index("Task") :]
    assert "Reward format tests_pass Tokens out Duration" in headings
    assert "1.000" in headings
    assert {"dim:format", "meta:repo", "worker"} <= set(page.marked("value"))
    assert "meta:rollbook.step" not in page.marked("value")
    chosen = await api.get("//ui/rollouts?col=meta:repo&col=dim:tests_pass&sort=reward")
    text = Read(chosen.body).text
    assert "Task repo tests_pass" in text
    assert "flask 0.250" in text
    # The choice stays in the links to other orders and pages.
    assert [
        link for link in Read(chosen.body).links if "col=meta%3Arepo&col=dim%3Atests_pass" in link and "status=" in link
    ]
    values = await listed(api, col="meta:repo")
    assert list(values["metadata"].values()) == [{"repo": "flask"}]
    assert next(iter(values["dimensions"].values()))["format"] == 1.0
    assert (await api.get("//ui/rollouts.json?col=size")).json["field"] == "col"


async def test_links_to_resources_name_the_version_of_the_rollout(api: Api, store: Store) -> None:
    for _ in range(2):
        await store.update_resources("prompts", {})
    await succeeded(store, resources_id="prompts")
    await store.update_resources("prompts", {})
    (link,) = [link for link in Read((await api.get("//ui/rollouts")).body).links if "/resources/prompts" in link]
    assert link.endswith("?version=2")


async def test_empty_form_fields_are_neither_filters_nor_in_links(api: Api, store: Store) -> None:
    await enqueued(store, 2)
    page = Read((await api.get("//ui/rollouts?q=&mode=&group=&step=&limit=1")).body)
    # The navigation leads to the whole list; a way back to it would be another such link.
    assert page.links.count("/ui/rollouts") == 1
    assert not [link for link in page.links if "group=" in link and ".json" not in link]


async def test_rows_say_why_a_rollout_failed(api: Api, store: Store) -> None:
    await failed(store, AttemptError(type="KeyError"))
    assert "failed KeyError" in Read((await api.get("//ui/rollouts")).body).text


async def test_empty_list_explains_the_next_step(api: Api) -> None:
    assert "enqueue_rollout" in Read((await api.get("//ui/rollouts")).body).text
    assert "No rollout matches these filters." in Read((await api.get("//ui/rollouts?status=failed")).body).text


async def previewed(api: Api, store: Store, value: Any) -> str:
    """Return what is shown of an input."""
    rollout = await store.enqueue_rollout(value)
    values = (await api.get(f"//ui/previews.json?id={rollout.rollout_id}")).ok()
    return values["previews"][rollout.rollout_id]


async def test_an_input_is_known_by_how_it_begins(api: Api, store: Store) -> None:
    for value, text in (
        ("What is 2 + 2?", "What is 2 + 2?"),
        ({"question": "What is\n 2 + 2?"}, "What is 2 + 2?"),
        ({"question": 1, "of": "many", "with": {"x": 2}}, 'question: 1, of: many, with: {"x":2}'),
        ({"question": 1}, "1"),
        ([1, 2], "[1,2]"),
        (None, "null"),
        ("x" * 500, "x" * 119 + "…"),
        (HOSTILE, HOSTILE),
    ):
        assert await previewed(api, store, value) == text


@ON_BOTH
async def test_a_long_input_is_shown_though_only_its_beginning_is_read(api: Api, store: Store) -> None:
    # The first is stored compressed, the second cannot be.
    for value in ({"question": "é" * 300_000}, {"question": "".join(map(chr, range(0x4E00, 0x9FFF))) * 2}):
        text = await previewed(api, store, value)
        assert text.startswith('{"question":"' + value["question"][:20])
        assert len(text) == 120


async def test_previews_of_unknown_rollouts_are_omitted(api: Api, store: Store) -> None:
    rollout = await store.enqueue_rollout("yes")
    values = (await api.get(f"//ui/previews.json?id={rollout.rollout_id}&id=nobody")).ok()
    assert values["previews"] == {rollout.rollout_id: "yes"}
    assert "?id=" in Read((await api.get("//ui/previews")).body).text


async def test_texts_of_rollouts_are_escaped_in_lists(api: Api, store: Store) -> None:
    metadata = {"rollbook.group": HOSTILE, "rollbook.step": 1}
    begun = await failed(
        store, AttemptError(type=HOSTILE), worker=HOSTILE, metadata=metadata, resources_id=HOSTILE, input=HOSTILE
    )
    filtered = urlencode({"q": "", "group": HOSTILE, "worker": HOSTILE, "resources": HOSTILE, "error": HOSTILE})
    for path in ("//ui/rollouts", f"//ui/rollouts?{filtered}", f"//ui/previews?id={begun.rollout_id}"):
        page = Read((await api.get(path)).body)
        assert "img" not in page.tags[page.tags.index("main") :]
        assert begun.rollout_id in str(page.links)
    assert f"/ui/groups/{quote(HOSTILE, safe='')}" in Read((await api.get("//ui/rollouts?col=group")).body).links


async def test_command_has_the_filters_and_names_those_without_an_option(api: Api) -> None:
    page = Read(
        (await api.get("//ui/rollouts?status=failed&group=a+b&reward_max=0.5&worker=w&tokens_min=3&desc=0")).body
    )
    (command,) = (text for text in page.marked("data-copy") if text.startswith("rollbook "))
    options = "--status failed --group 'a b' --reward-max 0.5 -n 50"
    assert command == f"rollbook ls rollouts {options}  # without worker, range of tokens"
