"""The waterfall: every span once, in bounded responses, as of any event; and all fields of a span."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import orjson
import pytest

from store.dashboard.pages.waterfall import ROWS
from store.dashboard.views.span_fields import MOST_FIELDS, fields_of
from store.interface.store import Store
from store.models import AttemptedRollout, Event
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.dashboard.traces import START, a_span, answered, rewarded, span_id
from tests.server.api import Api


async def columns(api: Api, rollout: AttemptedRollout, **params: Any) -> dict[str, Any]:
    """Return a page of a rollout's spans."""
    query = "&".join(f"{name}={value}" for name, value in params.items())
    return (await api.get(f"//ui/rollouts/{rollout.rollout_id}/spans.json?{query}")).ok()


async def test_following_the_pages_gives_every_span_once_in_the_order_in_which_they_came(
    api: Api, store: Store
) -> None:
    rollout = await store.start_rollout("task")
    await store.add_many_spans([a_span(rollout, number) for number in range(1, 8)])
    ids: list[str] = []
    after: int | None = 0
    while after is not None:
        page = await columns(api, rollout, limit=3, after=after)
        assert len(page["columns"]["id"]) <= 3
        ids += page["columns"]["id"]
        after = page["next"]
    assert ids == [span_id(number) for number in range(1, 8)]


@ON_BOTH
async def test_columns_contain_the_facts_of_each_span_without_its_body(api: Api, store: Store) -> None:
    rollout = await store.start_rollout("task")
    kinds: list[tuple[str, dict[str, Any], str]] = [
        ("chat", answered("Who?", "a secret"), "model"),
        ("search", {"tool.name": "search", "agl.node_id": "n", "agl.scope": "s"}, "tool"),
        ("agentlightning.annotation", rewarded(0.5), "reward"),
        ("agentlightning.annotation", {"note": "secret"}, "annotation"),
        ("agentlightning.message", {}, "message"),
        ("agentlightning.exception", {}, "exception"),
        ("step", {}, "span"),
    ]
    spans = [
        a_span(rollout, number, name, 1 if number > 1 else None, attributes=attributes)
        for number, (name, attributes, _) in enumerate(kinds, 1)
    ]
    await store.add_many_spans([*spans[:-1], spans[-1].model_copy(update={"start_time": None, "end_time": None})])
    page = await columns(api, rollout)
    drawn = page["columns"]
    assert [drawn["names"][place] for place in drawn["name"]] == [name for name, _, _ in kinds]
    assert [drawn["kinds"][place] for place in drawn["kind"]] == [kind for _, _, kind in kinds]
    assert drawn["parent"] == [None, *[span_id(1)] * 6]
    assert drawn["start"][0] == START + 1
    assert drawn["end"][0] == START + 2
    assert drawn["start"][-1] is None
    assert drawn["end"][-1] is None
    assert drawn["reward"] == [None, None, 0.5, None, None, None, None]
    assert (drawn["tokens_in"][0], drawn["tokens_out"][0], drawn["model"][0]) == (12, 5, "small")
    assert "secret" not in str(page)


async def test_the_past_has_only_the_spans_that_were_there(api: Api, store: Store) -> None:
    rollout = await store.start_rollout("task")
    await store.add_many_spans([a_span(rollout, 1, "first")])
    at = (await api.get(f"//ui/rollouts/{rollout.rollout_id}/waterfall.json")).ok()["last"]
    await store.add_many_spans([a_span(rollout, 2, "second")])
    now = (await api.get(f"//ui/rollouts/{rollout.rollout_id}/waterfall.json")).ok()
    past = (await api.get(f"//ui/rollouts/{rollout.rollout_id}/waterfall.json?at={at}")).ok()
    assert [span["name"] for span in now["spans"]] == ["first", "second"]
    assert [span["name"] for span in past["spans"]] == ["first"]
    page = Read((await api.get(f"//ui/rollouts/{rollout.rollout_id}/waterfall?at={at}")).body)
    (until,) = page.marked("data-until")
    assert (await columns(api, rollout, until=until))["columns"]["id"] == [span_id(1)]


async def test_attempts_do_not_mix_and_are_chosen_by_number_or_id(api: Api, store: Store) -> None:
    first = await store.start_rollout("task")
    await store.add_many_spans([a_span(first, 1, "of the first")])
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
    second = await store.start_attempt(first.rollout_id)
    await store.add_many_spans([a_span(second, 1, "of the second")])
    assert (await columns(api, first))["columns"]["names"] == ["of the second"]
    for chosen in (1, first.attempt.attempt_id):
        assert (await columns(api, first, attempt=chosen))["columns"]["names"] == ["of the first"]
    missing = await api.get(f"//ui/rollouts/{first.rollout_id}/spans.json?attempt=3")
    assert missing.status == 404
    assert "Attempt 3" in missing.detail


@pytest.mark.parametrize("path", ["spans", "spans/0000000000000001"])
async def test_missing_rollouts_and_attempts_are_reported(api: Api, store: Store, path: str) -> None:
    queued = await store.enqueue_rollout("task")
    assert (await api.get(f"//ui/rollouts/{queued.rollout_id}/{path}.json")).status == 404
    assert (await api.get(f"//ui/rollouts/nobody/{path}")).status == 404
    page = Read((await api.get(f"//ui/rollouts/{queued.rollout_id}/waterfall")).body)
    assert "No attempt has started yet" in page.text


async def test_no_page_of_spans_is_large_even_if_names_are(api: Api, store: Store) -> None:
    rollout = await store.start_rollout("task")
    # As JSON each of these characters takes six bytes.
    await store.add_many_spans([a_span(rollout, number, f"{number}" + "\x01" * 1_000) for number in range(1, 501)])
    ids: list[str] = []
    after: int | None = 0
    while after is not None:
        answer = await api.get(f"//ui/rollouts/{rollout.rollout_id}/spans.json?limit=10000&after={after}")
        assert len(answer.body) < 2_000_000
        page = orjson.loads(answer.body)
        ids += page["columns"]["id"]
        after = page["next"]
    assert ids == [span_id(number) for number in range(1, 501)]


async def test_without_a_program_the_first_spans_are_a_table_that_leads_to_the_rest(api: Api, store: Store) -> None:
    rollout = await store.start_rollout("task")
    await store.add_many_spans([a_span(rollout, number, f"step {number}.") for number in range(1, ROWS + 3)])
    page = Read((await api.get(f"//ui/rollouts/{rollout.rollout_id}/waterfall")).body)
    assert f"step {ROWS}." in page.text
    assert f"step {ROWS + 1}." not in page.text
    (following,) = [link for link in page.links if "/spans?" in link]
    rest = Read((await api.get(f"/{following}")).body)
    assert f"step {ROWS + 1}." in rest.text
    assert f"step {ROWS + 2}." in rest.text
    assert f"step {ROWS}." not in rest.text


async def test_a_span_shows_all_it_holds_and_hostile_texts_stay_texts(api: Api, store: Store) -> None:
    rollout = await store.start_rollout("task")
    event = Event(name=HOSTILE, attributes={HOSTILE: HOSTILE}, timestamp=START + 1.5)
    hostile = a_span(rollout, 1, HOSTILE, span_id=HOSTILE, attributes={HOSTILE: HOSTILE, "list": ["x", "y"]})
    await store.add_many_spans([hostile.model_copy(update={"events": [event]})])
    for path in ("waterfall", "spans", f"spans/{quote(HOSTILE, safe='')}"):
        page = Read((await api.get(f"//ui/rollouts/{rollout.rollout_id}/{path}")).body)
        assert [mark for mark in page.marks if mark.get("src") == "x"] == []
        assert HOSTILE[:30] in page.text
    values = (await api.get(f"//ui/rollouts/{rollout.rollout_id}/spans/{quote(HOSTILE, safe='')}.json")).ok()
    assert {field["name"]: field["text"] for field in values["attributes"]}[HOSTILE] == HOSTILE
    assert values["events"][0]["name"] == HOSTILE


async def test_a_span_is_cut_until_all_of_it_is_asked_for(api: Api, store: Store) -> None:
    rollout = await store.start_rollout("task")
    attributes = {f"key.{number}": "v" * 20_000 for number in range(MOST_FIELDS + 50)}
    await store.add_many_spans([a_span(rollout, 1, attributes=attributes)])
    path = f"//ui/rollouts/{rollout.rollout_id}/spans/{span_id(1)}"
    cut, full = await api.get(path), await api.get(f"{path}?all=1")
    assert len(cut.body) < 2_000_000
    assert "Show all of it" in Read(cut.body).text
    assert len(full.body) > 20_000 * (MOST_FIELDS + 50)
    assert "Show all of it" not in Read(full.body).text


def test_attributes_are_ordered_by_their_numbers_and_json_is_laid_out() -> None:
    attributes = {
        "prompt.10": "ten",
        "prompt.2": "two",
        "json": '{"a":1}',
        "broken": "{a",
        "count": 3,
        "deep": "[" * 900 + "]" * 900,
    }
    texts = {field.name: field.text for field in fields_of(attributes)}
    assert list(texts) == ["broken", "count", "deep", "json", "prompt.2", "prompt.10"]
    assert texts["json"] == '{\n  "a": 1\n}'
    assert texts["broken"] == "{a"
    assert texts["count"] == "3"
    assert texts["deep"] == attributes["deep"]
