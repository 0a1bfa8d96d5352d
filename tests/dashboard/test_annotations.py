"""Labels and notes on the pages of a rollout, and the rights to add them."""

from __future__ import annotations

from store.db.queries.annotations import labels_in_use, labels_of
from store.interface.store import Store
from store.sql.store import SQLStore
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.dashboard.traces import a_span, answered, span_id
from tests.server.api import Api


async def test_labels_and_notes_are_on_the_page_and_in_its_twin(store: Store, api: Api) -> None:
    rollout = await store.enqueue_rollout({"q": 1})
    await store.annotations.annotate(rollout.rollout_id, "first", add_labels=["infra"])
    await store.annotations.annotate(rollout.rollout_id, "second")
    twin = (await api.get(f"//ui/rollouts/{rollout.rollout_id}.json")).ok()["annotations"]
    assert twin["labels"] == ["infra"]
    assert [note["text"] for note in twin["notes"]] == ["second", "first"]
    page = Read((await api.get(f"//ui/rollouts/{rollout.rollout_id}")).body)
    assert "/ui/rollouts?label=infra" in page.links
    assert page.text.index("second") < page.text.index("first")


async def test_past_shows_earlier_annotations_without_a_form(store: Store, api: Api) -> None:
    rollout = await store.enqueue_rollout({"q": 1})
    await store.annotations.annotate(rollout.rollout_id, "first", add_labels=["infra"])
    await store.annotations.annotate(rollout.rollout_id, "second", remove_labels=["infra"])
    path = f"//ui/rollouts/{rollout.rollout_id}"
    twin = (await api.get(f"{path}.json?at=2")).ok()["annotations"]
    assert twin["labels"] == ["infra"]
    assert [note["text"] for note in twin["notes"]] == ["first"]
    assert "note-it" not in Read((await api.get(f"{path}?at=2")).body).marked("id")
    assert "note-it" in Read((await api.get(path)).body).marked("id")


async def test_hostile_labels_and_notes_stay_text(store: Store, api: Api) -> None:
    rollout = await store.enqueue_rollout({"q": 1})
    label = HOSTILE[:60]
    await store.annotations.annotate(rollout.rollout_id, HOSTILE, add_labels=[label])
    for path in (f"//ui/rollouts/{rollout.rollout_id}", "//ui/rollouts"):
        answer = await api.get(path)
        assert answer.status == 200
        page = Read(answer.body)
        assert all("onerror" not in mark for mark in page.marks)
        assert b"<script>alert" not in answer.body
    assert HOSTILE in Read((await api.get(f"//ui/rollouts/{rollout.rollout_id}")).body).text


async def say(api: Api, rollout_id: str, **form: str) -> str:
    """Send the form and return where it leads."""
    path = f"//ui/rollouts/{rollout_id}/annotate"
    answer = await api.send("POST", path, data=form, allow_redirects=False)
    assert answer.status == 303, answer
    return answer.headers["location"]


async def test_the_form_makes_one_event_in_the_visitors_name(store: Store, api: Api) -> None:
    rollout = await store.enqueue_rollout({"q": 1})
    await store.annotations.annotate(rollout.rollout_id, add_labels=["new"])
    note = "two\r\nlines "
    led = await say(api, rollout.rollout_id, add="infra, needs review,", remove="new", note=note, tab="events")
    assert led == f"/ui/rollouts/{rollout.rollout_id}/events"
    state = await store.annotations.query(rollout.rollout_id)
    assert state.labels == ["infra", "needs review"]
    assert [(note.number, note.text, note.actor) for note in state.notes] == [(3, "two\nlines", "dashboard")]


async def test_note_on_a_span_is_on_the_page_of_the_span_and_leads_back_to_it(store: Store, api: Api) -> None:
    rollout = await store.start_rollout("task")
    await store.add_many_spans([a_span(rollout, 1), a_span(rollout, 2)])
    attempt_id = rollout.attempt.attempt_id
    led = await say(api, rollout.rollout_id, note=HOSTILE, tab="waterfall", span=span_id(1), attempt=attempt_id)
    place = f"/ui/rollouts/{rollout.rollout_id}/waterfall?span={span_id(1)}&attempt={attempt_id}"
    assert led == f"{place}#entry-{span_id(1)}"
    spans = f"//ui/rollouts/{rollout.rollout_id}/spans"
    assert [note["text"] for note in (await api.get(f"{spans}/{span_id(1)}.json")).ok()["notes"]] == [HOSTILE]
    assert (await api.get(f"{spans}/{span_id(2)}.json")).ok()["notes"] == []
    page = Read((await api.get(f"{spans}/{span_id(1)}")).body)
    assert HOSTILE in page.text
    assert "img" not in [tag for tag, mark in zip(page.tags, page.marks, strict=True) if "onerror" in mark]
    head = Read((await api.get(f"//ui/rollouts/{rollout.rollout_id}")).body)
    assert f"/ui/rollouts/{rollout.rollout_id}/waterfall?attempt={attempt_id}&span={span_id(1)}" in head.links


async def test_note_on_a_call_is_in_its_block_of_the_transcript(store: Store, api: Api) -> None:
    rollout = await store.start_rollout("task")
    calls = [a_span(rollout, number, "chat", attributes=answered(f"Q {number}", "A")) for number in (1, 2)]
    await store.add_many_spans(calls)
    ids = {"span_id": span_id(2), "attempt_id": rollout.attempt.attempt_id}
    await store.annotations.annotate(rollout.rollout_id, note=HOSTILE, **ids)
    html = (await api.get(f"//ui/rollouts/{rollout.rollout_id}")).body.decode()
    before, _, after = html.partition('class="notes span-notes"')
    assert "span-notes" not in after
    assert before.rindex("Turn 2") > before.rindex("Turn 1")
    assert HOSTILE in Read(after.encode()).text


async def test_a_form_that_says_nothing_records_nothing(store: Store, api: Api) -> None:
    rollout = await store.enqueue_rollout({"q": 1})
    assert await say(api, rollout.rollout_id, note=" ", add=" , ") == f"/ui/rollouts/{rollout.rollout_id}"
    assert len(await store.log.history(rollout.rollout_id)) == 1


async def test_a_form_leads_to_no_other_place(store: Store, api: Api) -> None:
    rollout = await store.enqueue_rollout({"q": 1})
    for tab in ("//evil.example", "../../login", "nothing"):
        assert await say(api, rollout.rollout_id, note="x", tab=tab) == f"/ui/rollouts/{rollout.rollout_id}", tab


async def test_the_list_is_narrowed_by_a_label_and_shows_labels(store: Store, api: Api) -> None:
    first, second = [await store.enqueue_rollout({"q": number}) for number in (1, 2)]
    await store.annotations.annotate(first.rollout_id, add_labels=["infra", "new"])
    await store.annotations.annotate(second.rollout_id, add_labels=["new"])
    page = (await api.get("//ui/rollouts.json?label=infra")).ok()
    assert [row["rollout_id"] for row in page["rollouts"]] == [first.rollout_id]
    assert page["labels"] == {first.rollout_id: ["infra", "new"]}
    assert (await api.get("//ui/rollouts.json?label=none")).ok()["rollouts"] == []


@ON_BOTH
async def test_labels_in_use_are_found_once_each_and_in_order(store: SQLStore) -> None:
    assert await store.core.look(lambda session: labels_in_use(session, limit=9)) == []
    rollouts = [await store.enqueue_rollout({"q": number}) for number in range(3)]
    for number, rollout in enumerate(rollouts):
        await store.annotations.annotate(rollout.rollout_id, add_labels=["all", *(["some"] if number else [])])
    await store.annotations.annotate(rollouts[0].rollout_id, add_labels=["gone"])
    await store.annotations.annotate(rollouts[0].rollout_id, remove_labels=["gone"])
    assert await store.core.look(lambda session: labels_in_use(session, limit=9)) == ["all", "some"]
    assert await store.core.look(lambda session: labels_in_use(session, limit=1)) == ["all"]
    ids = [rollout.rollout_id for rollout in rollouts]
    of_each = await store.core.look(lambda session: labels_of(session, rollout_ids=ids[:2]))
    assert of_each == {ids[0]: ["all"], ids[1]: ["all", "some"]}
