"""The pages of a rollout, now or as of an event, in all tabs, with their actions."""

from __future__ import annotations

from typing import Any

import orjson

from store.dashboard.pages.rollout_frame import MOST_ATTEMPTS
from store.dashboard.views.formats import NOTHING, duration
from store.models import AttemptError, PromptTemplate, RolloutConfig, Span
from store.runtime import context
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests.dashboard.filled import IMAGE
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, failed
from tests.dashboard.traces import START, a_span, answered
from tests.server.api import Answer, Api

TABS = ("", "/transcript", "/waterfall", "/events", "/training", "/raw")


def _span(rollout_id: str, attempt_id: str, number: int, name: str = "step", **attributes: Any) -> Span:
    return Span.from_attributes(
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=number,
        span_id=f"{number:016x}",
        name=name,
        start_time=100.0 + number,
        end_time=100.5 + number,
    )


async def _story(store: SQLStore) -> str:
    """Return a rollout that failed once and then succeeded, with spans and a reward."""
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout = await store.enqueue_rollout({"question": HOSTILE}, mode="train", config=config)
    for number in (1, 2):
        claimed = await store.dequeue_rollout(worker_id=f"w-{number}")
        assert claimed is not None
        attempt_id = claimed.attempt.attempt_id
        said = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": f"ask {number} {HOSTILE}"}
        spans = [
            _span(rollout.rollout_id, attempt_id, 10 * number + 1, "openai.chat.completion", **said),
            _span(rollout.rollout_id, attempt_id, 10 * number + 2, HOSTILE),
            _span(rollout.rollout_id, attempt_id, 10 * number + 3, "agentlightning.reward", reward=0.5),
        ]
        for span in spans:
            await store.add_span(span)
        if number == 1:
            error = AttemptError(type="ValueError", message=HOSTILE)
            await store.update_attempt(rollout.rollout_id, attempt_id, status="failed", error=error)
        else:
            await store.update_attempt(rollout.rollout_id, attempt_id, status="succeeded")
    return rollout.rollout_id


async def _twin(api: Api, rollout_id: str, tab: str = "", **params: Any) -> Any:
    query = "&".join(f"{name}={value}" for name, value in params.items())
    return (await api.get(f"//ui/rollouts/{rollout_id}{tab}.json{'?' if query else ''}{query}")).ok()


async def _act(api: Api, rollout_id: str, action: str) -> Answer:
    origin = {"Origin": api.url.rstrip("/"), "Content-Type": "application/x-www-form-urlencoded"}
    path = f"//ui/rollouts/{rollout_id}/{action}"
    return await api.send("POST", path, headers=origin, data=b"", allow_redirects=False)


@ON_BOTH
async def test_page_at_each_event_equals_the_state_of_the_store_then(store: SQLStore, api: Api) -> None:
    rollout_id = await _story(store)
    history = await store.log.history(rollout_id)
    for event in history:
        then = await store.get_rollout_by_id(rollout_id, at=event.number)
        attempts = (await store.query_attempts(rollout_id, at=event.number)).items
        assert then is not None
        twin = await _twin(api, rollout_id, "/raw", at=event.number)
        assert twin["rollout"]["status"] == then.status
        assert [(attempt["attempt_id"], attempt["status"]) for attempt in twin["attempts"]] == [
            (attempt.attempt_id, attempt.status) for attempt in attempts
        ]
        assert (twin["at"], twin["last"], twin["event"]["type"]) == (event.number, len(history), event.type)
        if attempts:
            spans = await store.query_spans(rollout_id, attempts[-1].attempt_id, at=event.number)
            assert [span["span_id"] for span in twin["index"]] == [span.span_id for span in spans.items]


async def test_every_tab_shows_the_moment_and_leads_to_the_others_at_it(store: SQLStore, api: Api) -> None:
    rollout_id = await _story(store)
    for tab in TABS:
        now = Read((await api.get(f"//ui/rollouts/{rollout_id}{tab}")).body)
        assert "Past state" not in now.text
        past = Read((await api.get(f"//ui/rollouts/{rollout_id}{tab}?at=6")).body)
        assert "Past state: event 6 of" in past.text
        for other in TABS:
            if other != "/transcript":
                assert f"/ui/rollouts/{rollout_id}{other}?at=6" in past.links
        assert past.marked("max") == [str((await _twin(api, rollout_id))["last"])]


@ON_BOTH
async def test_invalid_reward_is_a_fact_of_a_rollout_until_it_has_a_valid_one(store: SQLStore, api: Api) -> None:
    begun = await store.start_rollout(1)
    ids = (begun.rollout_id, begun.attempt.attempt_id)
    annotation, reward = "agentlightning.annotation", "agentlightning__reward__0__value"
    await store.add_span(_span(*ids, 1, annotation, **{reward: "NaN"}))
    await store.add_many_spans([_span(*ids, number) for number in range(2, 20)])
    await store.add_span(_span(*ids, 20, "graded", **{reward: "inf"}))
    last = (await _twin(api, begun.rollout_id))["last"]
    for tab in TABS:
        twin = await _twin(api, begun.rollout_id, tab)
        assert twin["summary"]["last_reward"] is None
        assert [(row["attempt_id"], row["span_id"], row["name"], row["value"]) for row in twin["invalid_rewards"]] == [
            (ids[1], f"{number:016x}", "primary", value) for number, value in ((1, "NaN"), (20, "inf"))
        ]
        page = Read((await api.get(f"//ui/rollouts/{begun.rollout_id}{tab}")).body)
        assert "Reward no valid reward primary NaN" in page.text
    await store.add_span(_span(*ids, 21, annotation, **{reward: 0.5}))
    assert (await _twin(api, begun.rollout_id))["invalid_rewards"] == []
    assert "Reward 0.5" in Read((await api.get(f"//ui/rollouts/{begun.rollout_id}")).body).text
    past = await _twin(api, begun.rollout_id, "/events", at=last)
    assert [row["value"] for row in past["invalid_rewards"]] == ["NaN", "inf"]


async def test_invalid_reward_inside_a_long_attempt_is_on_its_page_of_the_transcript(store: SQLStore, api: Api) -> None:
    begun = await store.start_rollout(1)
    spans = [_span(begun.rollout_id, begun.attempt.attempt_id, number) for number in range(1, 20)]
    spans[3].attributes["agentlightning.reward.0.value"] = "NaN"
    await store.add_many_spans(spans)
    assert [row["span_id"] for row in (await _twin(api, begun.rollout_id))["invalid_rewards"]] == [f"{4:016x}"]


async def test_an_event_that_there_is_not_is_refused(store: SQLStore, api: Api) -> None:
    rollout_id = await _story(store)
    for wrong in ("0", "1000", "x", "-1"):
        answer = await api.get(f"//ui/rollouts/{rollout_id}?at={wrong}")
        assert answer.status == 422, wrong
    assert (await api.get("//ui/rollouts/ro-none")).status == 404


async def test_the_latest_attempt_is_shown_unless_another_is_named(store: SQLStore, api: Api) -> None:
    rollout_id = await _story(store)
    attempts = (await store.query_attempts(rollout_id)).items
    assert (await _twin(api, rollout_id))["attempt"] == attempts[1].attempt_id
    for named in ("1", attempts[0].attempt_id):
        twin = await _twin(api, rollout_id, "", attempt=named)
        assert twin["attempt"] == attempts[0].attempt_id
        assert twin["entries"][0]["text"]["shown"] == f"ask 1 {HOSTILE}"
        page = Read((await api.get(f"//ui/rollouts/{rollout_id}?attempt={named}")).body)
        assert f"ValueError : {HOSTILE}" in page.text
        assert f"/ui/rollouts/{rollout_id}/events?attempt=1" in page.links
    assert (await api.get(f"//ui/rollouts/{rollout_id}?attempt=3")).status == 422


async def test_texts_of_a_rollout_are_escaped_in_every_tab(store: SQLStore, api: Api) -> None:
    rollout_id = await _story(store)
    for tab in (*TABS, "/raw?span=" + f"{22:016x}", "?attempt=1"):
        page = Read((await api.get(f"//ui/rollouts/{rollout_id}{tab}")).body)
        assert page.tags.count("img") == 1, tab  # the sign of the house
        assert not page.marked("onerror")
    raw = Read((await api.get(f"//ui/rollouts/{rollout_id}/raw")).body)
    assert HOSTILE in raw.text


async def test_no_page_is_larger_than_two_megabytes_unasked(store: SQLStore, api: Api) -> None:
    started = await store.start_rollout({"context": "x" * 1_000_000})
    rollout_id, attempt_id = started.rollout_id, started.attempt.attempt_id
    said = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "y" * 500_000}
    await store.add_many_spans(
        [_span(rollout_id, attempt_id, number, **{**said, "gen_ai.prompt.0.content": f"{number}{'y' * 500_000}"})
         for number in range(1, 9)]
    )  # fmt: skip
    for tab in TABS:
        for suffix in ("", ".json"):
            if not (suffix and not tab):
                assert len((await api.get(f"//ui/rollouts/{rollout_id}{tab}{suffix}")).body) < 2_000_000, tab
    cut = (await _twin(api, rollout_id))["entries"][0]
    assert len(cut["text"]["shown"]) < cut["text"]["length"] == 500_001
    entry = (await _twin(api, rollout_id, "", full=cut["span_id"]))["entries"][0]
    assert len(entry["text"]["shown"]) > 100_000


@ON_BOTH
async def test_the_log_can_be_paged_and_filtered_by_type(store: SQLStore, api: Api) -> None:
    rollout_id = await _story(store)
    history = await store.log.history(rollout_id)
    first = await _twin(api, rollout_id, "/events", limit=4)
    assert [event["number"] for event in first["events"]] == [1, 2, 3, 4]
    assert first["more"]
    rest = await _twin(api, rollout_id, "/events", after=4)
    assert [event["number"] for event in rest["events"]] == [event.number for event in history[4:]]
    assert not rest["more"]
    spans = await _twin(api, rollout_id, "/events", type="span.recorded")
    assert [event["number"] for event in spans["events"]] == [e.number for e in history if e.type == "span.recorded"]
    assert ["span.recorded", 6] in spans["types"]
    assert (await _twin(api, rollout_id, "/events", type="no.such"))["events"] == []
    events = {event["number"]: event for event in first["events"]}
    assert events[1]["body_hash"] == history[0].body_hash
    assert events[2]["actor"] == "worker:w-1"


async def test_waiting_rollout_shows_its_place_in_the_queue(store: SQLStore, api: Api) -> None:
    rollouts = [await store.enqueue_rollout(number) for number in range(3)]
    page = Read((await api.get(f"//ui/rollouts/{rollouts[2].rollout_id}")).body)
    assert "2 rollouts are ahead of it in the queue. No worker has ever requested work" in page.text
    await store.dequeue_rollout(worker_id="w-1")
    await store.update_worker("w-2")
    page = Read((await api.get(f"//ui/rollouts/{rollouts[1].rollout_id}")).body)
    assert "This rollout is next in the queue. " in page.text
    assert "of 2 workers are idle" in page.text
    twin = await _twin(api, rollouts[2].rollout_id)
    assert twin["waiting"]["ahead"] == 1
    ended = await failed(store)
    assert (await _twin(api, ended.rollout_id))["waiting"] is None


async def test_rollout_is_cancelled_and_retried_from_its_page(store: SQLStore, api: Api) -> None:
    rollout = await store.enqueue_rollout(1)
    page = Read((await api.get(f"//ui/rollouts/{rollout.rollout_id}")).body)
    assert "cancel-it" in page.marked("id")
    assert "retry-it" not in page.marked("id")
    assert (await _act(api, rollout.rollout_id, "cancel")).status == 303
    assert (await _act(api, rollout.rollout_id, "cancel")).status == 409
    assert (await _act(api, rollout.rollout_id, "retry")).status == 303
    assert (await _act(api, rollout.rollout_id, "retry")).status == 409
    current = await store.get_rollout_by_id(rollout.rollout_id)
    assert current is not None
    assert current.status == "requeuing"
    changes = [event for event in await store.log.history(rollout.rollout_id) if event.type == "rollout.status_changed"]
    assert [(event.data["to"], event.actor) for event in changes] == [
        ("cancelled", "dashboard"),
        ("requeuing", "dashboard"),
    ]
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id


async def test_nothing_is_offered_in_the_past(store: SQLStore, api: Api) -> None:
    rollout_id = await _story(store)
    ids = Read((await api.get(f"//ui/rollouts/{rollout_id}?at=3")).body).marked("id")
    assert not {"cancel-it", "retry-it"} & set(ids)


async def test_a_call_is_of_whom_its_task_acts_for_unless_it_says_so_itself(store: SQLStore) -> None:
    token = context.actor.set("key:k-1")
    try:
        first = await store.enqueue_rollout(1)
        second = await store.start_rollout(2, worker_id="w-1")
    finally:
        context.actor.reset(token)
    third = await store.enqueue_rollout(3)
    named = [(await store.log.history(rollout.rollout_id))[0].actor for rollout in (first, second, third)]
    assert named == ["key:k-1", "worker:w-1", None]


async def test_the_lane_of_an_attempt_that_was_cancelled_ends_with_the_rollout(store: SQLStore, api: Api) -> None:
    started = await store.start_rollout(1, config=RolloutConfig(max_attempts=2))
    await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="failed")
    second = await store.start_attempt(started.rollout_id)
    await store.update_rollout(started.rollout_id, status="cancelled")
    ended = await store.get_rollout_by_id(started.rollout_id)
    assert ended is not None
    assert ended.end_time is not None
    page = Read((await api.get(f"//ui/rollouts/{started.rollout_id}")).body)
    (label,) = [text for text in page.marked("aria-label") if text.startswith("preparing after")]
    assert label == f"preparing after {duration(ended.end_time - second.attempt.start_time)}"


async def test_an_attempt_before_those_that_are_shown_is_found_and_the_lanes_are_of_the_newest(
    api: Api, store: SQLStore, clock: ManualClock
) -> None:
    config = RolloutConfig(max_attempts=MOST_ATTEMPTS + 9)
    rollout = await store.start_rollout("task", config=config)
    first = rollout.attempt.attempt_id
    for number in range(1, MOST_ATTEMPTS + 3):
        clock.advance(1)
        if number == MOST_ATTEMPTS + 2:
            span = _span(rollout.rollout_id, rollout.attempt.attempt_id, 1)
            await store.add_span(span.model_copy(update={"start_time": None, "end_time": None}))
            clock.advance(1)
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed")
        if number < MOST_ATTEMPTS + 2:
            rollout = await store.start_attempt(rollout.rollout_id)
    path = f"//ui/rollouts/{rollout.rollout_id}"
    for attempt in ("1", first):
        values = (await api.get(f"{path}.json?attempt={attempt}")).ok()
        assert (values["attempt"], len(values["attempts"])) == (first, MOST_ATTEMPTS)
    assert (await api.get(f"{path}.json?attempt={MOST_ATTEMPTS + 3}")).status == 422
    page = Read((await api.get(path)).body)
    assert page.marked("data-status").count("running") == 1


@ON_BOTH
async def test_head_has_the_title_the_neighbours_in_the_group_and_the_times_by_kind(store: SQLStore, api: Api) -> None:
    task = {"question": "6 times 7? Answer with a number."}
    group: dict[str, Any] = {"rollbook.group": "g-1", "rollbook.step": 3}
    first = await store.start_rollout(task, metadata=group)
    lone = await store.start_rollout("Sort the list.")
    second = await store.start_rollout(task, metadata=group)
    third = await store.start_rollout(task, metadata=group)
    spans = [
        a_span(second, 1, "invoke_agent solver", end_time=START + 11),
        a_span(second, 2, "step", 1, attributes={"input.value": "x" * 9_000, "openinference.span.kind": "RETRIEVER"}),
        a_span(second, 3, "step", 1, attributes={"openinference.span.kind": "CHAIN"}),
        a_span(second, 4, "generate", 3, attributes={**answered("Q", "A"), "gen_ai.operation.name": "chat"}),
        a_span(second, 5, "bash", 3, attributes={"text": 'no "openinference.span.kind":"LLM" here'}, status="ERROR"),
    ]
    await store.add_many_spans(spans)
    twin = await _twin(api, second.rollout_id)
    assert twin["title"] == "6 times 7?"
    assert twin["models"] == ["small"]
    assert twin["neighbours"] == {
        "group_id": "g-1",
        "previous": first.rollout_id,
        "next": third.rollout_id,
        "number": 2,
        "total": 3,
    }
    assert {time["kind"]: (time["seconds"], time["spans"]) for time in twin["span_times"]} == {
        "agent": (10, 1),
        "chain": (1, 1),
        "llm": (1, 1),
        "retriever": (1, 1),
        "other": (1, 1),
        "error": (1, 1),
        "idle": (7, 0),
    }
    page = Read((await api.get(f"//ui/rollouts/{second.rollout_id}")).body)
    assert "6 times 7?" in page.text
    assert "2 of 3 in the group" in page.text
    assert {f"/ui/rollouts/{first.rollout_id}", f"/ui/rollouts/{third.rollout_id}"} <= set(page.links)
    alone = (await _twin(api, lone.rollout_id))["neighbours"]
    assert (alone["previous"], alone["next"]) == (first.rollout_id, second.rollout_id)
    assert (alone["number"], alone["total"]) == (None, None)
    edge = (await _twin(api, first.rollout_id))["neighbours"]
    assert (edge["previous"], edge["next"], edge["number"]) == (None, second.rollout_id, 1)


async def test_facts_of_a_rollout_lead_to_its_version_and_leave_unknown_tokens_open(store: SQLStore, api: Api) -> None:
    resources = await store.add_resources({"prompt": PromptTemplate(template="Solve.", engine="f-string")})
    rollout = await store.start_rollout("task", resources_id=resources.resources_id)
    page = Read((await api.get(f"//ui/rollouts/{rollout.rollout_id}")).body)
    assert f"/ui/resources/{resources.resources_id}?version=1" in page.links
    assert f"Tokens {NOTHING}" in page.text
    assert "0 in" not in page.text


async def test_image_of_a_message_has_a_route_of_its_own_and_only_images_have(store: SQLStore, api: Api) -> None:
    begun = await store.start_rollout(1)
    ids = (begun.rollout_id, begun.attempt.attempt_id)
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in (IMAGE, "data:text/html;base64,PGI+")]
    prompt = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": orjson.dumps(parts).decode()}
    await store.add_span(_span(*ids, 1, "openai.chat.completion", **prompt))
    last = (await _twin(api, begun.rollout_id))["last"]
    twin = await _twin(api, begun.rollout_id)
    image, other = twin["turns"][0]["media"]
    assert (image["is_image"], image["media_type"], other["is_image"]) == (True, "image/png", False)
    assert IMAGE[-40:] not in orjson.dumps(twin).decode()
    path = f"//ui/rollouts/{begun.rollout_id}/media/{image['span_id']}"
    answer = await api.get(f"{path}/{image['key']}")
    assert (answer.status, answer.body[:4], answer.headers["content-type"]) == (200, b"\x89PNG", "image/png")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert (await api.get(f"{path}/{other['key']}")).status == 404
    assert (await api.get(f"{path}/{image['key']}?at={last - 4}")).status in {404, 422}
    page = Read((await api.get(f"//ui/rollouts/{begun.rollout_id}")).body)
    assert [source for source in page.marked("src") if "/media/" in source] == [
        f"/ui/rollouts/{begun.rollout_id}/media/{image['span_id']}/{image['key']}"
    ]
    assert "1 attachment, text/html · 3 B" in page.text


async def test_events_are_sentences_with_the_numbers_of_attempts_and_causes(store: SQLStore, api: Api) -> None:
    rollout_id = await _story(store)
    events = (await _twin(api, rollout_id, "/events"))["events"]
    sentences = {event["number"]: event["sentence"] for event in events}
    assert sentences[1].startswith("enqueued, for train")
    claim = next(event for event in events if event["type"] == "attempt.started")
    assert claim["sentence"] == "attempt 1 claimed by w-1 → preparing"
    moved = next(event for event in events if event["cause"] is not None)
    assert events[moved["cause_number"] - 1]["position"] == moved["cause"]
    # A later page knows the number of the attempt, although its start is on an earlier page.
    later = (await _twin(api, rollout_id, "/events", after=claim["number"], limit=2))["events"]
    assert "attempt 1" in later[-1]["sentence"] or "attempt 1" in later[0]["sentence"]
    page = Read((await api.get(f"//ui/rollouts/{rollout_id}/events")).body)
    assert sentences[2] in page.text


@ON_BOTH
async def test_reward_states_its_place_among_the_rewarded_rollouts_of_its_group(store: SQLStore, api: Api) -> None:
    rollouts: list[str] = []
    for reward in (0.2, 0.8, 0.5, None):
        begun = await store.start_rollout(1, metadata={"rollbook.group": "g"})
        rollouts.append(begun.rollout_id)
        if reward is not None:
            value = {"agentlightning__reward__0__value": reward}
            await store.add_span(_span(begun.rollout_id, begun.attempt.attempt_id, 1, "graded", **value))
    group = (await _twin(api, rollouts[1]))["group"]
    assert (group["rank"], group["rewarded"], group["rollouts"]) == (1, 3, 4)
    assert [round(group[name], 6) for name in ("mean", "advantage", "deviation", "normalised")] == [0.5, 0.3, 0.3, 1.0]
    assert (await _twin(api, rollouts[3]))["group"] is None
    assert "1 of 3 rewarded" in Read((await api.get(f"//ui/rollouts/{rollouts[1]}")).body).text


async def test_times_of_raw_data_are_readable(store: SQLStore, api: Api) -> None:
    begun = await store.start_rollout(1)
    await store.add_span(_span(begun.rollout_id, begun.attempt.attempt_id, 1))
    raw = Read((await api.get(f"//ui/rollouts/{begun.rollout_id}/raw?span={1:016x}")).body)
    assert "1970-01-01 00:01:41.000 UTC 101.0" in raw.text


@ON_BOTH
async def test_number_of_a_span_leads_to_its_page_of_the_transcript(api: Api, store: SQLStore) -> None:
    begun = await store.start_rollout("task")
    calls = answered("Which page?", "The second.")
    spans = [a_span(begun, number, "chat", attributes=calls if number > 200 else {}) for number in range(1, 204)]
    await store.add_many_spans(spans)
    path = f"//ui/rollouts/{begun.rollout_id}"
    for number, offset in ((1, 0), (200, 0), (201, 200), (999, 200)):
        assert (await api.get(f"{path}.json?sequence={number}")).ok()["spans"]["offset"] == offset
    page = Read((await api.get(f"{path}?sequence=201")).body)
    assert f"/ui/rollouts/{begun.rollout_id}/search" in page.marked("action")
