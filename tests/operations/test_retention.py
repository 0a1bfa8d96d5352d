"""`remove_payload`: the payload of finished rollouts is removed, all else is unchanged, and the log proves it."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from store import Invalid, NotFound, open_store
from store.adapters.messages import TraceToMessages
from store.adapters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet
from store.models.runs import RunEvent
from store.operations import RetentionPolicy, removal, remove_payload
from store.run_folders.exporting import export_run_folder
from store.semconv import DROPPED
from store.server.partitions import Partitions
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.faults import processes
from tests.journal.database_helpers import run_sql, tamper
from tests.operations.payloads import ON_SQLITE, Place, bodies_of, fill, opened, payload_rows, rows, verified
from tests.operations.work import remove_in_small_steps
from tests.server.api import speaking_to
from tests.torture import Rounds

pytestmark = pytest.mark.slow

ALL = RetentionPolicy.of(statuses=("succeeded", "failed", "cancelled"))


@pytest.fixture
async def place(durable_url: str, clock: ManualClock) -> Place:
    return await fill(durable_url, clock)


async def removed(place: Place, policy: RetentionPolicy = ALL, *, apply: bool = True, **options: Any) -> Any:
    return await remove_payload(place.url, policy, apply=apply, actor="cli", clock=place.clock, **options)


async def test_dry_run_counts_like_the_removal_and_only_payload_changes(place: Place, tmp_path: Path) -> None:
    before, rows_before = await verified(place.url), await payload_rows(place.url)
    active = await bodies_of(place.url, place.active)
    async with await opened(place) as store:
        await store.log.seal(tmp_path / "seal")
    counted = await removed(place, apply=False)
    assert (await verified(place.url)).events == before.events
    done = await removed(place)
    varying = {"is_applied", "seconds", "transactions", "longest_seconds", "size_before", "size_after"}
    assert done.model_dump(exclude=varying) == counted.model_dump(exclude=varying)
    assert (counted.transactions, done.rollouts) == (0, 2)
    after, rows_after = await verified(place.url), await payload_rows(place.url)
    # The state is the same; the log has one more event per transaction, and its old part is unchanged.
    assert after.state_hash == before.state_hash
    assert after.events == before.events + done.transactions
    async with await opened(place) as store:
        assert (await store.log.verify(tmp_path / "seal")).ok
    assert rows_before["bodies"] - rows_after["bodies"] == done.bodies > 10
    assert rows_before["blobs"] - rows_after["blobs"] == done.blobs > 3
    assert rows_after["dropped"] == done.events
    # The content that a running rollout has too stays, and so do its bodies and the note.
    async with await opened(place) as store:
        assert (await store.runs.query_artifacts(rollout_id=place.active))[0].name == "report"
        (note,) = (await store.annotations.query(place.task)).notes
        assert note.text == "look again"
    assert await bodies_of(place.url, place.active) == active
    again = await removed(place, vacuum=True)
    assert (again.events, again.blobs, again.transactions) == (0, 0, 0)


@ON_SQLITE
async def test_every_read_of_a_rollout_without_payload_works(place: Place, tmp_path: Path) -> None:
    async with await opened(place) as store:
        moment = (await store.log.history(place.task))[-1].position
        rollouts = {rollout_id: await store.get_rollout_by_id(rollout_id) for rollout_id in (place.task, place.run)}
    await removed(place)
    async with await opened(place) as store:
        for rollout_id, before in rollouts.items():
            for after in (
                await store.get_rollout_by_id(rollout_id),
                await store.get_rollout_by_id(rollout_id, as_at=moment if rollout_id == place.task else None),
                (await store.query_rollouts(rollout_id_in=[rollout_id]))[0],
            ):
                assert before is not None
                assert after is not None
                assert (after.input, after.metadata) == (None, {DROPPED: True})
                assert (after.status, after.reward, after.end_time) == (before.status, before.reward, before.end_time)
            spans = await store.query_spans(rollout_id)
            assert spans
            assert all(item.attributes == {DROPPED: True} for item in spans)
            assert all(event.body is None for event in await store.log.history(rollout_id) if "span" in event.type)
        events = [event async for event in store.log.tail()]
        assert events[-1].type == "store.blobs_dropped"
        assert events[-1].actor == "cli"
        for view in ("head", "raw"):
            page = await store.runs.query_events(place.run, view=view)
            told = [row for row in page.items if row.prompt_sha256 or row.source == "span"]
            assert told
            assert all(row.prompt is None and (row.extra or {}).get(DROPPED) for row in told)
        snapshot = await store.runs.get_checkpoint(place.run, scope="RIG", name="debated")
        assert snapshot is not None
        assert snapshot.state is None
        await store.runs.query_artifacts(rollout_id=place.run)
        await store.runs.list_lineage(place.run)
        await store.runs.get_graph(place.run)
        await store.runs.compare_attempts(place.run, 1, 2)
        for rollout_id in rollouts:
            spans = await store.query_spans(rollout_id)
            assert TracerTraceToTriplet().adapt(spans) == []
            assert LlmProxyTraceToTriplet().adapt(spans) == []
            assert TraceToMessages().adapt(spans) == []
        await export_run_folder(store, place.run, tmp_path / "folders")
        # A rollout without input may still be claimed.
        await store.update_rollout(place.task, status="requeuing")
        claimed = {rollout.rollout_id: rollout for rollout in await store.dequeue_many_rollouts(limit=10)}
        assert claimed[place.task].input is None
        assert isinstance(store, SQLStore)
        async with speaking_to(Partitions(store)) as api:
            for tab in ("", "/waterfall", "/events", "/training", "/raw"):
                answer = await api.get(f"//ui/rollouts/{place.task}{tab}")
                assert answer.status == 200, tab
                assert "removed by policy: status succeeded, failed, cancelled" in answer.body.decode(), tab
            span = (await store.query_spans(place.task))[0]
            answer = await api.get(f"//ui/rollouts/{place.task}/spans/{span.span_id}?attempt={span.attempt_id}")
            assert "Removed by policy: status succeeded, failed, cancelled" in answer.body.decode()
            for path in ("runs", f"runs/{place.run}", "rollouts", "audit"):
                assert (await api.get(f"//ui/{path}")).status == 200, path
            listed = (await api.get("/rollouts")).json
            assert {
                rollout["rollout_id"] for rollout in listed["items"] if DROPPED in (rollout["metadata"] or {})
            } == set(rollouts)


SELECTIONS: list[tuple[dict[str, Any], set[str]]] = [
    ({"older_than": 3599}, {"task", "run"}),
    ({"older_than": 3700}, set()),
    ({"statuses": ("succeeded",)}, {"task"}),
    ({"statuses": ("failed",), "groups": ("flow",)}, {"run"}),
    ({"statuses": ("failed",), "groups": ("g1",)}, set()),
    ({"labels": ("good",)}, {"task"}),
    ({"without_labels": ("good",)}, {"run"}),
    ({"modes": ("train",)}, set()),
    # The other rollouts of the first group and the running one of the second group were created later.
    ({"keep_last": 1}, {"task", "run"}),
    ({"keep_last": 2}, {"task"}),
    ({"keep_last": 4}, set()),
    ({"max_bytes": 10**9}, set()),
    ({"max_bytes": 0}, {"task", "run"}),
]


@pytest.mark.parametrize("policy, expected", SELECTIONS)
async def test_a_policy_selects_rollouts(file: Place, policy: dict[str, Any], expected: set[str]) -> None:
    await removed(file, RetentionPolicy.of(**policy))
    async with await opened(file) as store:
        rollouts = [await store.get_rollout_by_id(rollout_id) for rollout_id in (file.task, file.run)]
    marked = {rollout.rollout_id for rollout in rollouts if rollout is not None and DROPPED in (rollout.metadata or {})}
    names = {file.task: "task", file.run: "run"}
    assert {names[rollout_id] for rollout_id in marked} == expected


@pytest.fixture
async def file(tmp_path: Path, clock: ManualClock) -> Place:
    return await fill(f"sqlite:///{tmp_path / 'file.db'}", clock)


async def test_a_maximum_size_removes_the_rollouts_that_ended_first(file: Place) -> None:
    size = int((await rows(file.url, "SELECT sum(length(body)) FROM bodies"))[0])
    done = await removed(file, RetentionPolicy.of(max_bytes=size - 1))
    assert done.rollouts == 1
    assert await bodies_of(file.url, file.task) == 1  # the note
    assert await bodies_of(file.url, file.run) > 1


@pytest.mark.parametrize(
    "conditions, field",
    [
        ({}, "policy"),
        ({"statuses": ()}, "policy"),
        ({"statuses": ("running",)}, "statuses.0"),
        ({"older_than": 0}, "older_than"),
        ({"older_than": float("nan")}, "older_than"),
        ({"keep_last": 0}, "keep_last"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"labels": ("",)}, "labels.0"),
        ({"labels": ("a",), "without_labels": ("a",)}, "policy"),
        ({"modes": ("training",)}, "modes.0"),
        ({"younger_than": 5}, "younger_than"),
    ],
)
def test_an_invalid_policy_is_refused(conditions: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        RetentionPolicy.of(**conditions)
    assert refused.value.field == field


def test_a_policy_is_a_sentence() -> None:
    policy = RetentionPolicy.of(
        older_than=30 * 86400, statuses=("failed",), labels=("a", "b"), keep_last=3, max_bytes=10 * 10**9
    )
    assert str(policy) == "older than 30d; status failed; label a, b; keep last 3; max size 10GB"
    assert str(RetentionPolicy.of(older_than=5400)) == "older than 90m"


async def test_a_missing_store_is_not_created(bare_url: str) -> None:
    for apply in (False, True):
        with pytest.raises(NotFound):
            await remove_payload(bare_url, ALL, apply=apply)
    with pytest.raises(Invalid, match="not a database"):
        await remove_payload("http://localhost:1", ALL)


@pytest.fixture
def bare_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'none.db'}"


async def differences(place: Place) -> set[tuple[str, str, str | None]]:
    async with await open_store(place.url, read_only=True) as store:
        return {
            (difference.check, difference.key, difference.field)
            for difference in (await store.log.verify()).differences
        }


@ON_SQLITE
async def test_a_body_removed_by_hand_is_found(place: Place) -> None:
    await removed(place)
    (position,) = await rows(place.url, f"SELECT min(position) FROM events WHERE stream = 'rollout/{place.active}'")
    await tamper(place.url, f"DELETE FROM bodies WHERE position = {position}")
    assert await differences(place) == {("bodies", f"event {position}", None)}


@ON_SQLITE
async def test_a_forged_row_of_dropped_is_found(place: Place) -> None:
    await removed(place)
    (order,) = await rows(place.url, "SELECT max(event_position) FROM dropped")
    (first,) = await rows(place.url, f"SELECT min(position) FROM dropped WHERE event_position = {order}")
    inside = int(first) + 1
    await run_sql(place.url, f"INSERT INTO dropped VALUES ({inside}, {order})")
    key = f"rows of the event at {order}"
    assert await differences(place) == {("dropped", key, "count"), ("dropped", key, "sha256")}
    await tamper(
        place.url, f"DELETE FROM dropped WHERE position = {inside}", f"INSERT INTO dropped VALUES (1000000, {order})"
    )
    assert await differences(place) == {("dropped", "1000000", "event_position")}


@ON_SQLITE
async def test_a_removed_row_of_dropped_is_found(place: Place) -> None:
    await removed(place)
    (position,) = await rows(place.url, "SELECT min(position) FROM dropped")
    (order,) = await rows(place.url, f"SELECT event_position FROM dropped WHERE position = {position}")
    await tamper(place.url, f"DELETE FROM dropped WHERE position = {position}")
    key = f"rows of the event at {order}"
    assert {("dropped", key, "count"), ("dropped", key, "sha256"), ("bodies", f"event {position}", None)} <= (
        await differences(place)
    )


@ON_SQLITE
async def test_a_blob_removed_by_hand_is_found(place: Place) -> None:
    await removed(place)
    names = await rows(place.url, "SELECT hash FROM blobs")
    await tamper(place.url, "DELETE FROM blobs")
    problems = await differences(place)
    assert len(names) == len(problems) == 1
    assert {check for check, _, _ in problems} <= {"bodies", "blobs"}


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_a_removal_killed_at_any_moment_is_continued_by_the_same_call(place: Place, rounds: Rounds) -> None:
    before = await verified(place.url)
    counted = await removed(place, apply=False)
    bodies = (await payload_rows(place.url))["bodies"]
    for _ in range(rounds(100, few=1)):
        with processes.running(remove_in_small_steps, (place.url,)) as (process,):
            await asyncio.to_thread(process.join, random.uniform(0, 0.4))
    async with await open_store(place.url) as store:
        report = await store.log.verify()
    assert report.differences == []
    await removed(place)
    assert (await verified(place.url)).state_hash == before.state_hash
    after = await payload_rows(place.url)
    assert (bodies - after["bodies"], after["dropped"]) == (counted.bodies, counted.events)
    async with await opened(place) as store:
        left = await remove_payload(place.url, ALL)
    assert (left.events, left.blobs) == (0, 0)


async def test_writers_lose_nothing_while_payload_is_removed(place: Place) -> None:
    written: list[str] = []
    longest = 0.0
    async with await open_store(place.url) as store:
        # So many bodies that Postgres writes the rows of a transaction with COPY.
        first = (await store.query_attempts(place.task))[0]
        await store.add_many_spans([make_span(first, 10 + number) for number in range(600)])
        attempt = (await store.start_rollout("meanwhile")).attempt
        removing = asyncio.create_task(remove_payload(place.url, ALL, apply=True))
        while not removing.done() or len(written) < 20:
            began = time.monotonic()
            span = make_span(attempt, len(written) + 1, span_id=f"{len(written):016x}")
            await store.add_span(span)
            longest = max(longest, time.monotonic() - began)
            written.append(span.span_id)
        await removing
        assert [item.span_id for item in await store.query_spans(attempt.rollout_id, limit=-1)] == written
    print(f"\nthe longest write took {longest * 1000:.0f} ms")
    await verified(place.url)


async def test_a_blob_that_a_writer_refers_to_meanwhile_stays(file: Place) -> None:
    """The writer finds the blob, does not store it again, and the removal must then keep it."""
    async with await opened(file) as store:
        text = "Consider the balance sheet. " * 60 + "Bull"
        policy = RetentionPolicy.of(statuses=("failed",))
        dialect = removal.database(file.url, file.clock)
        await dialect.open(create=False)
        async with removal.remover(dialect, str(policy), actor=None) as removing:
            async with dialect.read() as session:
                payload = await removal.removal_queries.payload_of(session, [file.run])
            await removing.remove(payload)
            async with dialect.read(snapshot=True) as session:
                blobs = await removal.blobs_without_event(session)
            attempt = (await store.query_attempts(file.active))[0]
            await store.runs.append_events(
                file.active, attempt.attempt_id, [RunEvent(kind="thought", node_id="Bull", scope="RIG", prompt=text)]
            )
            await removing.remove_blobs(blobs)
        await dialect.close()
        page = await store.runs.query_events(file.active, view="raw")
        assert text in {row.prompt for row in page.items}
    await verified(file.url)
