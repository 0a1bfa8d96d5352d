"""`forget`: the payload that contains a text is found, and removed for ever from tables and files."""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from store import Invalid, NotFound, open_store
from store.models import PromptTemplate, RunEvent
from store.operations import ForgetReport, Search, forget
from store.operations.removal import Remover
from store.semconv import DROPPED
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.cli.conftest import runner
from tests.faults import processes
from tests.journal import sample_run
from tests.operations.payloads import ON_SQLITE, SECRET, Place, fill, opened, payload_rows, verified
from tests.operations.work import forget_secret
from tests.torture import Rounds


@pytest.fixture
async def place(durable_url: str, clock: ManualClock) -> Place:
    return await fill(durable_url, clock)


async def forgotten(place: Place, text: str, *, reason: str | None = None, ignore_case: bool = False) -> ForgetReport:
    search = Search.of(text=text, ignore_case=ignore_case)
    return await forget(place.url, search, reason=reason, actor="cli", clock=place.clock)


@ON_SQLITE
async def test_a_search_finds_each_payload_and_changes_nothing(place: Place) -> None:
    before = await verified(place.url)
    report = await forgotten(place, SECRET)
    assert (report.is_applied, report.bodies, report.blobs, report.until) == (False, 0, 0, before.events)
    ours = [(match.type, match.field) for match in report.matches if match.stream == f"rollout/{place.active}"]
    assert ours == [("rollout.started", "input.text"), ("span.recorded", "attributes.text")]
    assert all(SECRET in match.excerpt for match in report.matches)
    assert report.kept == []
    assert (await verified(place.url)).chain_head == before.chain_head


async def test_matching_payload_is_removed_and_everything_else_stays(place: Place) -> None:
    before = await verified(place.url)
    counts = await payload_rows(place.url)
    report = await forgotten(place, SECRET)
    done = await forgotten(place, SECRET, reason="request 17")
    assert (done.is_applied, done.is_clean) == (True, True)
    assert done.matches == report.matches
    assert done.rollouts == len({match.stream for match in report.matches})
    after = await verified(place.url)
    # One transaction removed the bodies, and at most one the blobs.
    assert after.state_hash == before.state_hash
    left = await payload_rows(place.url)
    assert left["bodies"] == counts["bodies"] - done.bodies
    assert left["blobs"] == counts["blobs"] - done.blobs
    assert left["dropped"] == len(report.matches)
    async with await opened(place) as store:
        rollout = await store.get_rollout_by_id(place.active)
        assert rollout is not None
        assert (rollout.input, rollout.metadata) == (None, {DROPPED: True})
        event = [event async for event in store.log.tail()][-1]
        assert (event.data["policy"], event.data["reason"], event.actor) == ("redact", "request 17", "cli")
    again = await forgotten(place, SECRET, reason="request 17")
    assert (again.matches, again.bodies, again.blobs) == ([], 0, 0)
    if place.url.startswith("sqlite"):
        path = Path(place.url.removeprefix("sqlite:///"))
        files = [path, *(Path(f"{path}{side}") for side in ("-wal", "-shm"))]
        assert not any(SECRET.encode() in file.read_bytes() for file in files if file.exists())


@ON_SQLITE
async def test_a_long_text_that_several_events_share_is_removed_with_all_of_them(place: Place) -> None:
    report = await forgotten(place, sample_run.LONG[:1000])
    streams = [match.stream for match in report.matches]
    assert set(streams) == {f"rollout/{place.run}", f"rollout/{place.active}"}
    assert {"run.event", "checkpoint.saved", "artifact.saved"} <= {match.type for match in report.matches}
    done = await forgotten(place, sample_run.LONG[:1000], reason="request 17")
    assert done.blobs > 3
    assert (await forgotten(place, sample_run.LONG[:1000])).matches == []
    await verified(place.url)


@pytest.mark.parametrize(
    "value, text, ignore_case",
    [
        ({"name": "Zoë Müller"}, "Zoë Mü", False),
        ({"name": "ZOË MÜLLER"}, "zoë müller", True),
        ({"name": "Straße 7"}, "STRASSE 7", True),
        ({"quoted": 'she wrote "yes\\no"\n'}, '"yes\\no"\n', False),
        ({"deep": [{"list": [0, ["call 555-0199"]]}]}, "555-0199", False),
        ({"card": 4111111111111111}, "4111111111111111", False),
        ({"amount": 12.75}, "12.75", False),
        ({"key of 4711": None}, "of 4711", False),
        ("x" * 50_000 + "needle" + "y" * 50_000, "needle", False),
    ],
)
async def test_texts_keys_and_numbers_match(
    value: Any, text: str, ignore_case: bool, tmp_path: Path, clock: ManualClock
) -> None:
    place = Place(f"sqlite:///{tmp_path / 'file.db'}", clock, "", "", "")
    async with await opened(place) as store:
        rollout = await store.enqueue_rollout(value)
        await store.enqueue_rollout({"other": "words and 17"})
    report = await forgotten(place, text, ignore_case=ignore_case)
    assert [(match.stream, match.number) for match in report.matches] == [(f"rollout/{rollout.rollout_id}", 1)]
    assert len(report.matches[0].excerpt) <= len(text) + 48
    if ignore_case:
        assert (await forgotten(place, text)).matches == []


@ON_SQLITE
async def test_places_that_cannot_be_removed_are_named(place: Place) -> None:
    async with await opened(place) as store:
        attempt = (await store.query_attempts(place.active))[0]
        await store.add_span(make_span(attempt, 2, name="call of Mx. Doe"))
        await store.add_resources({"prompt": PromptTemplate(template="Mx. Doe", engine="f-string")})
    done = await forgotten(place, "Mx. Doe", reason="request 17")
    assert done.matches == []
    assert [(match.type, match.field) for match in done.kept] == [
        ("span.recorded", "name"),
        ("resources.published", "resources.prompt.template"),
    ]
    await verified(place.url)


@pytest.mark.parametrize(
    "response, text",
    [
        ('{"price": 12.50}', "12.50"),
        ('{"iban": 12345678901234567890123}', "12345678901234567890123"),
        ('{"a":"Jane Doe","a":"x"}', "Jane Doe"),
        ("no JSON: Jane Doe", "jane doe"),
    ],
)
async def test_the_answer_of_a_model_is_searched_as_a_text(
    response: str, text: str, tmp_path: Path, clock: ManualClock
) -> None:
    place = Place(f"sqlite:///{tmp_path / 'file.db'}", clock, "", "", "")
    async with await opened(place) as store:
        attempt = (await store.start_rollout("task")).attempt
        long = f"{response}{' ' * 5000}"
        event = RunEvent(kind="thought", node_id="Bull", scope="RIG", response=long)
        await store.runs.append_events(attempt.rollout_id, attempt.attempt_id, [event])
    report = await forgotten(place, text, ignore_case=True)
    assert [match.type for match in report.matches] == ["run.event"]
    done = await forgotten(place, text, ignore_case=True, reason="request 17")
    assert (done.blobs, done.bodies) == (1, 0)
    await verified(place.url)


@ON_SQLITE
async def test_blobs_that_a_stopped_call_did_not_reach_are_removed_by_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped(*_: Any) -> None:
        raise ConnectionError("stopped")

    text = sample_run.LONG[:1000]
    before = await payload_rows(place.url)
    with monkeypatch.context() as patched:
        patched.setattr(Remover, "remove_blobs", stopped)
        with pytest.raises(ConnectionError):
            await forgotten(place, text, reason="request 17")
    assert (await payload_rows(place.url))["blobs"] == before["blobs"]
    report = await forgotten(place, text)
    assert report.matches
    done = await forgotten(place, text, reason="request 17")
    assert done.blobs > 3
    assert (await forgotten(place, text)).matches == []
    await verified(place.url)


@pytest.mark.parametrize("values", [{"text": "ab"}, {"text": "x" * 1001}, {}, {"text": "abc", "regex": True}])
def test_an_invalid_search_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        Search.of(**values)


@ON_SQLITE
async def test_an_invalid_reason_and_a_missing_store_are_refused(place: Place, tmp_path: Path) -> None:
    for reason in ("", "x" * 201, f"they wrote {SECRET}"):
        with pytest.raises(Invalid, match="reason"):
            await forgotten(place, SECRET, reason=reason)
    with pytest.raises(NotFound):
        await forget(f"sqlite:///{tmp_path / 'none.db'}", Search.of(text="abc"))
    with pytest.raises(Invalid, match="not a database"):
        await forget("http://127.0.0.1:1", Search.of(text="abc"))
    assert (await forgotten(place, SECRET)).matches


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_removal_killed_at_any_instant_is_completed_by_the_same_call(durable_url: str, rounds: Rounds) -> None:
    async with await open_store(durable_url) as store:
        attempt = (await store.start_rollout("other")).attempt
    began = time.monotonic()
    with processes.running(forget_secret, (durable_url,)) as undisturbed:
        assert await asyncio.to_thread(processes.leave, undisturbed) == [0]
    needed = time.monotonic() - began
    for number in range(rounds(100, few=1)):
        async with await open_store(durable_url) as store:
            await store.enqueue_rollout({"text": SECRET})
            spans = [make_span(attempt, 100 * number + index, attributes={"text": SECRET}) for index in range(1, 100)]
            await store.add_many_spans(spans)
        with processes.running(forget_secret, (durable_url,)) as (process,):
            await asyncio.to_thread(process.join, random.uniform(0, needed))
        await forget(durable_url, Search.of(text=SECRET), reason="request 17")
        assert (await forget(durable_url, Search.of(text=SECRET))).matches == []
        await verified(durable_url)


def test_every_command_of_the_page_works(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = asyncio.run(fill(f"sqlite:///{tmp_path / 'file.db'}", clock))
    rollbook = runner(file.url, monkeypatch)
    page = Path(__file__).parents[2] / "docs/retention.md"
    section = page.read_text().partition("### By a text")[2].partition("\n### ")[0]
    typed = [line.removeprefix("$ rollbook ") for line in section.splitlines() if line.startswith("$ rollbook ")]
    assert len(typed) == 2
    ours = {"jane@example.org": SECRET}
    searched, removed = (rollbook(*(ours.get(word, word) for word in shlex.split(line))) for line in typed)
    assert (searched.code, removed.code) == (0, 0)
    assert f"rollout/{file.active} event 1 rollout.started input.text: {SECRET}" in searched.out
    assert "nothing was removed" in searched.err
    assert SECRET not in removed.out
    assert rollbook("forget", "--match", SECRET, "--json").json["matches"] == []
    assert rollbook("verify").code == 0
    for refused in (["--yes"], ["--reason", "request 17"], ["--rewrite"]):
        assert rollbook("forget", "--match", "text", *refused).code == 2
