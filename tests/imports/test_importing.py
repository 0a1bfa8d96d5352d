"""The writer of imports: what it stores, what a repeated import adds, and what it refuses."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest

from store.errors import Invalid
from store.imports import SOURCE_KEY, ForeignAttempt, ForeignRollout, ImportResult, Skipped, import_rollouts, rollouts
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, Span
from store.testing.samples import make_prompt
from tests.imports.samples import START, cancelled, extended, foreign, retried, spans_of, torn


def counts(report: ImportResult) -> tuple[int, int, int, int]:
    return report.imported, report.continued, report.unchanged, report.skipped


async def content(store: Store) -> list[tuple[Any, ...]]:
    """Return all that an import has stored, without the ids and times that the store chooses."""
    rollouts: list[tuple[Any, ...]] = []
    for rollout in await store.query_rollouts(sort_by="plan_key"):
        attempts = [
            (attempt.sequence_id, attempt.status, attempt.metadata, attempt.rewards)
            for attempt in await store.query_attempts(rollout.rollout_id)
        ]
        spans = [
            span.model_dump(exclude={"rollout_id", "attempt_id"})
            for span in await store.query_spans(rollout.rollout_id)
        ]
        rollouts.append((rollout.input, rollout.mode, rollout.status, rollout.metadata, attempts, spans))
    return rollouts


async def only(store: Store) -> AttemptedRollout:
    (rollout,) = await store.query_rollouts()
    assert isinstance(rollout, AttemptedRollout)
    return rollout


async def test_import_stores_rollouts_once_with_their_rewards_and_never_queues_them(store: Store) -> None:
    await store.add_resources(make_prompt("unused"))
    records = [foreign("a", reward=0.25), retried("b"), cancelled("c")]
    report = await import_rollouts(store, records, source="test")
    assert (counts(report), report.spans, report.skips) == ((3, 0, 0, 0), 7, [])
    assert await store.dequeue_rollout("runner") is None
    first, second, third = await store.query_rollouts(sort_by="plan_key")
    assert isinstance(first, AttemptedRollout)
    assert (first.input, first.mode, first.status, first.resources_id) == (
        {"question": "a"},
        "train",
        "succeeded",
        None,
    )
    assert (first.reward, first.rewards) == (0.25, {"total": 0.25, "style": 0.5})
    assert first.metadata == {
        "model": "qwen",
        "rollbook.group": "group a",
        "rollbook.step": 3,
        "rollbook.key": "import:test:a",
        SOURCE_KEY: {"format": "test", "key": "a", "start_time": START, "end_time": START + 10},
    }
    assert first.attempt.metadata == {"host": "a"}
    spans = await store.query_spans(first.rollout_id)
    assert [(span.sequence_id, span.start_time, span.end_time) for span in spans] == [
        (1, START, START + 0.5),
        (2, START + 9, START + 9),
    ]
    assert (second.status, second.reward) == ("succeeded", 0.75)
    attempts = await store.query_attempts(second.rollout_id)
    assert [attempt.status for attempt in attempts] == ["timeout", "succeeded"]
    assert [span.sequence_id for span in await store.query_spans(second.rollout_id)] == [1, 2, 3, 4]
    assert third.status == "cancelled"
    before = await content(store)
    again = await import_rollouts(store, reversed(records), source="test")
    assert (counts(again), again.spans) == ((0, 0, 3, 0), 0)
    assert await content(store) == before


class _Interrupted(Exception):
    pass


class _Stopping:
    """A store that raises an exception instead of a call, or after it."""

    def __init__(self, store: Store, calls: int, *, is_executed: bool) -> None:
        self._store = store
        self._left = calls
        self._is_executed = is_executed

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0 and not self._is_executed:
                raise _Interrupted
            result = await method(*arguments, **options)
            if self._left < 0:
                raise _Interrupted
            return result

        return call


async def test_import_that_stops_at_any_call_is_continued_without_loss_and_without_doubles(
    request: pytest.FixtureRequest, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "_SPANS_PER_CALL", 2)
    # Every call on one backend, and some on the others: the import makes the same calls on each.
    stride = 1 if cast("Any", request).node.name.endswith("[sqlite]") else 5
    records = [foreign("a", count=5), retried("b"), cancelled("c")]
    expected: list[tuple[Any, ...]] = []
    total = 0
    calls = 0
    while True:
        stopping: Any = _Stopping(store, calls // 2, is_executed=calls % 2 == 1)
        source = f"stop {calls}"
        try:
            await import_rollouts(stopping, records, source=source)
        except _Interrupted:
            continued = await import_rollouts(store, records, source=source)
        else:
            continued = None
        stored = [rollout for rollout in await content(store) if rollout[3][SOURCE_KEY]["format"] == source]
        for rollout in stored:
            rollout[3].pop(SOURCE_KEY)
            rollout[3].pop("rollbook.key")
        expected = expected or stored
        assert stored == expected
        if continued is None:
            break
        assert continued.skips == []
        total += continued.imported + continued.continued
        calls += stride
    assert calls > 20
    assert total > calls // stride
    assert await store.dequeue_rollout("runner") is None


async def test_two_imports_at_the_same_time_store_every_rollout_once(store: Store) -> None:
    records = [foreign(f"{number}") for number in range(20)]
    await asyncio.gather(*(import_rollouts(store, records, source="test") for _ in range(2)))
    assert len(await store.query_rollouts()) == 20
    for rollout in await store.query_rollouts():
        assert len(await store.query_spans(rollout.rollout_id)) == 2
        assert len(await store.query_attempts(rollout.rollout_id)) == 1


async def test_dry_run_changes_nothing_and_reports_as_the_import_does(sqlite_store: Store) -> None:
    torn_line = Skipped(place="line 3", reason="is torn")
    records = [foreign("a"), foreign("b"), torn_line, foreign("a"), foreign("b"), extended("b"), extended("c")]
    await import_rollouts(sqlite_store, records[:1], source="test")
    before = await content(sqlite_store)
    dry = await import_rollouts(sqlite_store, records, source="test", is_dry_run=True)
    assert await content(sqlite_store) == before
    report = await import_rollouts(sqlite_store, records, source="test")
    assert counts(dry) == counts(report) == (2, 0, 3, 1)
    assert (dry.spans, dry.extended, dry.skips) == (report.spans, report.extended, report.skips) == (6, 1, [torn_line])


async def test_spans_of_a_later_copy_are_added_once_to_the_imported_rollout(store: Store) -> None:
    for record, extensions, unchanged in (
        (foreign("a"), 0, 0),
        (extended("a"), 1, 0),
        (extended("a"), 0, 1),
        (foreign("a"), 0, 1),
    ):
        report = await import_rollouts(store, [record], source="test")
        assert (report.extended, report.unchanged) == (extensions, unchanged)
    rollout = await only(store)
    assert (rollout.status, rollout.reward) == ("succeeded", 1.0)
    assert [(span.sequence_id, span.name) for span in await store.query_spans(rollout.rollout_id)] == [
        (1, "step"),
        (2, "agentlightning.annotation"),
        (3, "credit"),
    ]


async def test_a_rollout_whose_source_has_changed_is_skipped(sqlite_store: Store) -> None:
    await import_rollouts(sqlite_store, [foreign("a", sha256="1")], source="test")
    report = await import_rollouts(
        sqlite_store, [foreign("a", sha256="2", reward=9.0), foreign("a", sha256="1")], source="test"
    )
    assert counts(report) == (0, 0, 1, 1)
    assert "content has changed" in report.skips[0].reason
    assert (await only(sqlite_store)).reward == 1.0


async def test_a_rollout_whose_metadata_was_replaced_is_not_imported_again(sqlite_store: Store) -> None:
    await import_rollouts(sqlite_store, [foreign("a")], source="test")
    await sqlite_store.update_rollout((await only(sqlite_store)).rollout_id, metadata={"mine": 1})
    assert counts(await import_rollouts(sqlite_store, [foreign("a"), foreign("b")], source="test")) == (1, 0, 1, 0)


async def test_a_rollout_that_ran_again_after_its_import_is_not_changed(sqlite_store: Store) -> None:
    await import_rollouts(sqlite_store, [foreign("a")], source="test")
    rollout = await only(sqlite_store)
    await sqlite_store.update_rollout(rollout.rollout_id, status="queuing")
    assert counts(await import_rollouts(sqlite_store, [foreign("a")], source="test")) == (0, 0, 1, 0)
    assert (await only(sqlite_store)).status == "queuing"
    await sqlite_store.dequeue_rollout("runner")
    assert counts(await import_rollouts(sqlite_store, [foreign("a")], source="test")) == (0, 0, 1, 0)
    assert (await only(sqlite_store)).status == "preparing"


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"key": ""}, "key"),
        ({"attempts": []}, "attempts"),
        ({"attempts": [ForeignAttempt("running")]}, "running"),
        ({"attempts": [ForeignAttempt("succeeded", metadata={"loss": float("inf")})]}, "metadata"),
        ({"input": float("nan")}, "input"),
        ({"metadata": {"x": "\ud800"}}, "surrogate"),
        ({"step": "three"}, "rollbook.step"),
        ({"is_cancelled": True}, "without an error"),
    ],
)
async def test_a_rollout_that_cannot_be_stored_is_skipped_and_leaves_nothing(
    sqlite_store: Store, fields: dict[str, Any], reason: str
) -> None:
    bad = foreign("bad", **{name: value for name, value in fields.items() if name != "key"})
    if "key" in fields:
        bad = ForeignRollout(fields["key"], bad.place, bad.input, bad.attempts)
    report = await import_rollouts(sqlite_store, [foreign("a"), bad, foreign("b")], source="test")
    assert counts(report) == (2, 0, 0, 1)
    assert report.skips[0].place == "line bad"
    assert re.search(reason, report.skips[0].reason)
    assert len(await sqlite_store.query_rollouts()) == 2


ODD_SPANS = pytest.mark.parametrize(
    "name, attributes, change",
    [
        ("n" * 9000, {}, "name"),
        ("odd", {"text": "a\x00b"}, "text"),
        ("odd", {"loss": float("nan")}, "loss"),
        ("odd", {"text": "x" * 17_000_000}, "text"),
    ],
)


@ODD_SPANS
async def test_a_span_that_no_store_accepts_is_changed_and_marked(
    sqlite_store: Store, name: str, attributes: dict[str, Any], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "_SPANS_PER_CALL", 3)
    odd = Span.from_attributes(name=name, attributes=attributes)
    attempts = [ForeignAttempt("succeeded", [*spans_of("a", 1, 1.0, count=2), odd, *spans_of("b", 1, 2.0, count=2)])]
    report = await import_rollouts(sqlite_store, [foreign("a", attempts=attempts)], source="test")
    assert (counts(report), report.spans, report.skips) == ((1, 0, 0, 0), 5, [])
    rollout = await only(sqlite_store)
    assert (rollout.status, rollout.reward) == ("succeeded", 2.0)
    spans = await sqlite_store.query_spans(rollout.rollout_id)
    assert [span.sequence_id for span in spans] == [1, 2, 3, 4, 5]
    assert change in str(spans[2].attributes["rollbook.changed"])


class _Recording:
    """A store that records the names of its calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._store, name)


@ODD_SPANS
async def test_nothing_is_written_after_the_end_of_an_attempt(
    sqlite_store: Store, name: str, attributes: dict[str, Any], change: str
) -> None:
    recording: Any = _Recording(sqlite_store)
    odd = Span.from_attributes(name=name, attributes=attributes)
    await import_rollouts(recording, [foreign("a", attempts=[ForeignAttempt("succeeded", [odd])])], source="test")
    assert recording.calls[-1] == "finish_attempt"
    (span,) = await sqlite_store.query_spans((await only(sqlite_store)).rollout_id)
    assert change in str(span.attributes["rollbook.changed"])


async def test_a_plan_key_of_a_rollout_that_waits_in_the_queue_is_skipped(sqlite_store: Store) -> None:
    await sqlite_store.enqueue_rollout(1, metadata={"rollbook.key": "import:test:a"})
    report = await import_rollouts(sqlite_store, [foreign("a")], source="test")
    assert counts(report) == (0, 0, 0, 1)
    assert "no import created" in report.skips[0].reason


async def test_an_error_of_the_reader_ends_the_import_after_the_records_before_it(sqlite_store: Store) -> None:
    with pytest.raises(Invalid, match="damaged"):
        await import_rollouts(sqlite_store, torn(foreign("a"), foreign("b")), source="test")
    assert len(await sqlite_store.query_rollouts()) == 2


async def test_an_error_of_an_attempt_is_stored_with_its_status(sqlite_store: Store) -> None:
    error = AttemptError(type="ProviderError", message="503")
    await import_rollouts(sqlite_store, [foreign("a", attempts=[ForeignAttempt("failed", error=error)])], source="test")
    rollout = await only(sqlite_store)
    assert rollout.status == "failed"
    history = await sqlite_store.log.history(rollout.rollout_id)
    assert any("ProviderError" in str(event.data) for event in history)
