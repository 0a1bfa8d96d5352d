"""Verification and repair of labels and notes by the log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store import open_store
from store.db.queries import scan
from store.interface.store import Store
from store.models import AttemptedRollout
from store.testing import ManualClock
from store.testing.samples import make_span
from store.verification import compare
from tests.journal.copies import opened_copy
from tests.journal.database_helpers import ask, contents, run_sql, tamper
from tests.verification.filled import ON_SQLITE, Filled

TABLES = ("labels", "notes")


@pytest.fixture
async def annotated(copy_url: str, clock: ManualClock) -> AsyncIterator[Filled]:
    async with opened_copy(_annotate, copy_url, clock) as (url, store, first):
        yield Filled(url, store, first, clock)


async def _annotate(store: Store, _: ManualClock) -> AttemptedRollout:
    first = await store.start_rollout({"n": 1})
    other = await store.enqueue_rollout({"n": 2})
    await store.annotations.annotate(first.rollout_id, "odd", add_labels=["new", "good"])
    await store.annotations.annotate(first.rollout_id, "was the proxy", add_labels=["bad"], remove_labels=["good"])
    await store.annotations.annotate(other.rollout_id, add_labels=["new"])
    return first


async def content(filled: Filled) -> dict[str, list[list[str]]]:
    return await contents(filled.url, TABLES)


@ON_SQLITE
async def test_verify_reports_no_difference_in_unchanged_annotations(annotated: Filled) -> None:
    report = await annotated.report()
    assert report.differences == []
    assert {name: report.rows[name] for name in TABLES} == {"labels": 3, "notes": 2}


async def test_rebuild_restores_deleted_rows(annotated: Filled) -> None:
    before = await content(annotated)
    await run_sql(annotated.url, *(f"DELETE FROM {table}" for table in TABLES))
    assert {difference.check for difference in await annotated.differences()} == set(TABLES)
    assert (await annotated.store.log.rebuild()).written == {table: len(before[table]) for table in TABLES}
    assert await content(annotated) == before
    assert await annotated.differences() == []


@pytest.mark.parametrize(
    "table,column,value", [("labels", "position", "position + 1"), ("notes", "position", "position - 1")]
)
@ON_SQLITE
async def test_verify_reports_edited_rows_and_rebuild_corrects_them(
    annotated: Filled, table: str, column: str, value: str
) -> None:
    before = await content(annotated)
    await run_sql(annotated.url, f"UPDATE {table} SET {column} = {value}")
    assert {(difference.check, difference.field) for difference in await annotated.differences()} == {(table, column)}
    assert set((await annotated.store.log.rebuild()).written) == {table}
    assert await content(annotated) == before


async def test_rebuild_deletes_rows_without_an_event(annotated: Filled) -> None:
    before = await content(annotated)
    for owner in (annotated.first.rollout_id, "ro-nobody"):
        await run_sql(
            annotated.url,
            f"INSERT INTO labels (rollout_id, label, position) VALUES ('{owner}', 'good', 3)",
            f"INSERT INTO notes (rollout_id, version, position) VALUES ('{owner}', 999, 3)",
        )
    assert (await annotated.store.log.rebuild()).written == {"labels": 2, "notes": 2}
    assert await content(annotated) == before
    assert await annotated.differences() == []


@ON_SQLITE
async def test_annotations_of_a_large_rollout_are_compared_in_batches(
    annotated: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 12):
        await annotated.store.add_span(make_span(annotated.first.attempt, number))
        await annotated.store.annotations.annotate(
            annotated.first.rollout_id, f"note {number}", add_labels=[f"l{number}"]
        )
    report = await annotated.report()
    before = await content(annotated)
    monkeypatch.setattr(compare, "LARGE", 4)
    monkeypatch.setattr(compare, "BATCH", 5)
    monkeypatch.setattr(scan, "BATCH", 5)
    pieces = await annotated.report()
    assert (pieces.state_hash, pieces.rows, pieces.differences) == (report.state_hash, report.rows, [])
    await run_sql(annotated.url, "DELETE FROM notes WHERE version > 9", "DELETE FROM labels WHERE label = 'l5'")
    assert {difference.check for difference in await annotated.differences()} == set(TABLES)
    await annotated.store.log.rebuild()
    assert await content(annotated) == before


async def test_labels_written_through_another_store_object_are_read(annotated: Filled) -> None:
    rollout_id = annotated.first.rollout_id
    # The store keeps the labels that it has read.
    await annotated.store.annotations.annotate(rollout_id, add_labels=["new"])
    async with await open_store(annotated.url, clock=annotated.clock, scan_debounce_seconds=0) as other:
        done = await other.annotations.annotate(rollout_id, add_labels=["bad", "fast"], remove_labels=["new"])
        assert done.labels == ["bad", "fast"]
    again = await annotated.store.annotations.annotate(rollout_id, add_labels=["fast"], remove_labels=["new"])
    assert (again.labels, again.number) == (["bad", "fast"], None)
    assert await annotated.differences() == []


@ON_SQLITE
async def test_the_text_of_a_note_is_gone_once_its_payload_was_dropped(annotated: Filled) -> None:
    rollout_id = annotated.first.rollout_id
    before = await annotated.store.annotations.query(rollout_id)
    assert [note.text for note in before.notes] == ["odd", "was the proxy"]
    ((position,),) = await ask(annotated.url, "SELECT min(position) FROM notes")
    await tamper(annotated.url, f"DELETE FROM bodies WHERE position = {position}")
    left = await annotated.store.annotations.query(rollout_id)
    assert [note.text for note in left.notes] == [None, "was the proxy"]
    assert left.labels == before.labels
