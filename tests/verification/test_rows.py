"""Differences that `verify` finds in the tables: every row and column that disagrees with the log."""

from __future__ import annotations

from typing import Any

import pytest

from store.testing.samples import make_span
from tests.journal.database_helpers import SPAN, run_sql
from tests.verification.filled import ON_POSTGRES, ON_SQLITE, Filled

EDITS = [
    ("rollouts", "status", "'cancelled'"),
    ("rollouts", "config", "'{}'"),
    ("rollouts", "last_reward", "0.5"),
    ("rollouts", "plan_key", "'other'"),
    ("rollouts", "tokens_in", "tokens_in + 1"),
    ("attempts", "worker_id", "'thief'"),
    ("attempts", "released_position", "3"),
    ("attempts", "last_heartbeat_time", "1.5"),
    ("spans", "start_time", "-2.0"),
    ("spans", "parent_id", "'p'"),
    ("spans", "position", "position + 1"),
    ("rewards", "value", "1.0"),
    ("workers", "status", "'unknown'"),
    ("resources", "version", "9"),
    ("queue", "rollout_id", "'ro-nobody'"),
]


@pytest.mark.parametrize("table, column, value", EDITS)
@ON_SQLITE
async def test_an_edited_row_is_named_with_its_column(filled: Filled, table: str, column: str, value: str) -> None:
    await run_sql(filled.url, _edit((table, column, value)))
    differences = await filled.differences()
    assert {difference.check for difference in differences} == {table}
    assert all(difference.expected != difference.found for difference in differences)
    if table != "queue":
        assert {difference.field for difference in differences} == {column}


@pytest.mark.parametrize("table", ["rollouts", "attempts", "spans", "rewards", "resources", "workers", "queue"])
@ON_SQLITE
async def test_a_deleted_row_is_named(filled: Filled, table: str) -> None:
    await run_sql(filled.url, _deletion(table))
    differences = await filled.differences()
    assert differences
    assert {(difference.check, difference.field, difference.found) for difference in differences} == {
        (table, None, None)
    }


EXTRA_ROWS = [
    (f"spans {SPAN}", "'ro-a', 'at-a', 's', 1, 't', 'n', 'OK', 9999"),
    (f"spans {SPAN}", "'{first}', 'at-a', 's', 1, 't', 'n', 'OK', 9999"),
    ("rewards", "'zz', 77, 0, 'at-a', 'n', 1.0"),
    ("rewards", "'{first}', 9999, 0, 'at-a', 'n', 1.0"),
    ("workers", "'zz', 'idle', NULL, NULL, NULL, NULL, 1, 1, 1"),
    ("resources", "'aa', 1, 1, 1, 1, 1, 1, 1"),
    ("queue", "99999, 'ro-zzz'"),
    ("queue", "99998, '{first}'"),
]


@pytest.mark.parametrize("table, values", EXTRA_ROWS)
@ON_SQLITE
async def test_an_extra_row_is_named(filled: Filled, table: str, values: str) -> None:
    await run_sql(filled.url, f"INSERT INTO {table} VALUES ({values.format(first=filled.first.rollout_id)})")
    difference = await filled.only(table.partition(" ")[0])
    assert (difference.expected, difference.field) == (None, None)


@ON_POSTGRES
async def test_differences_in_every_table_are_named_on_postgres(filled: Filled) -> None:
    rollout_id = filled.first.rollout_id
    for table, values in EXTRA_ROWS:
        await run_sql(filled.url, f"INSERT INTO {table} VALUES ({values.format(first=rollout_id)})")
    extra = [(difference.check, difference.expected, difference.field) for difference in await filled.differences()]
    assert sorted(extra) == sorted((table.partition(" ")[0], None, None) for table, _ in EXTRA_ROWS)
    await filled.store.log.rebuild()
    await run_sql(filled.url, *map(_edit, EDITS))
    differences = await filled.differences()
    assert all(difference.expected != difference.found for difference in differences)
    expected = {(table, column) for table, column, _ in EDITS if table != "queue"}
    assert {(difference.check, difference.field) for difference in differences} == expected | {("queue", None)}
    await filled.store.log.rebuild()
    tables = dict.fromkeys(table for table, _, _ in EDITS)
    await run_sql(filled.url, *map(_deletion, tables))
    deleted = {(difference.check, difference.field, difference.found) for difference in await filled.differences()}
    assert deleted == {(table, None, None) for table in tables}


def _edit(change: tuple[str, str, str]) -> str:
    table, column, value = change
    key = _first_key(table)
    return f"UPDATE {table} SET {column} = {value} WHERE {key} = (SELECT min({key}) FROM {table})"


def _deletion(table: str) -> str:
    key = _first_key(table)
    return f"DELETE FROM {table} WHERE {key} = (SELECT max({key}) FROM {table})"


@ON_SQLITE
async def test_a_counter_behind_the_log_is_found(filled: Filled) -> None:
    rollout_id = filled.first.rollout_id
    await run_sql(filled.url, f"UPDATE span_counters SET value = 2 WHERE rollout_id = '{rollout_id}'")
    difference = await filled.only("counters")
    assert (difference.key, difference.field, difference.expected, difference.found) == (rollout_id, "value", 3, 2)


@ON_SQLITE
async def test_a_counter_ahead_of_the_log_is_fine(filled: Filled) -> None:
    for _ in range(3):
        await filled.store.get_next_span_sequence_id(filled.first.rollout_id, "any")
    await filled.store.get_next_span_sequence_id("ro-that-does-not-exist", "any")
    assert await filled.differences() == []


async def test_a_counter_row_that_is_missing_is_found(filled: Filled) -> None:
    # The rollout that waits has no spans: only its reservation shows that numbers were drawn.
    spans, waiting = filled.first.rollout_id, (await filled.store.enqueue_rollout("waits")).rollout_id
    await filled.store.get_next_span_sequence_id(waiting, "any")
    await run_sql(filled.url, "DELETE FROM span_counters")
    by_key = {difference.key: difference for difference in await filled.differences()}
    assert {(difference.check, difference.field, difference.found) for difference in by_key.values()} == {
        ("counters", None, None)
    }
    assert by_key[spans].expected == {"rollout_id": spans, "value": 3, "reserved": None}
    assert by_key[waiting].expected == {"rollout_id": waiting, "value": 32, "reserved": 32}


@pytest.mark.parametrize(
    "copy_url, change, expected",
    [
        ("postgres", "value = 40, reserved = 99", {("reserved", 35, 99)}),
        ("sqlite", "value = 3", {("value", 35, 3)}),
        ("sqlite", "reserved = NULL", {("value", 35, 6), ("reserved", 35, None)}),
        ("sqlite", "reserved = 0", {("value", 35, 6), ("reserved", 35, 0)}),
        ("sqlite", "reserved = 99", {("value", 35, 6), ("reserved", 35, 99)}),
        ("sqlite", "value = 40, reserved = 99", {("reserved", 35, 99)}),
    ],
    indirect=["copy_url"],
)
async def test_a_counter_that_contradicts_its_reservation_is_found(
    filled: Filled, change: str, expected: set[Any]
) -> None:
    rollout_id = filled.first.rollout_id
    for number in (4, 5, 6):
        assert await filled.store.get_next_span_sequence_id(rollout_id, "any") == number
    await run_sql(filled.url, f"UPDATE span_counters SET {change} WHERE rollout_id = '{rollout_id}'")
    differences = await filled.differences()
    assert {(difference.check, difference.key) for difference in differences} == {("counters", rollout_id)}
    assert {(difference.field, difference.expected, difference.found) for difference in differences} == expected


@ON_SQLITE
async def test_the_first_differences_are_named_and_all_are_counted(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from store.verification import differences

    monkeypatch.setattr(differences, "SHOWN", 20)
    await filled.store.add_many_spans([make_span(filled.first.attempt, number) for number in range(10, 40)])
    await run_sql(filled.url, "UPDATE spans SET name = 'renamed'")
    report = await filled.report()
    assert len(report.differences) == 20
    assert report.difference_count == 34


async def test_a_rollout_with_very_many_spans_is_compared_piece_by_piece(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from store.db.queries import scan
    from store.verification import compare

    for number in range(40, 60):
        await filled.store.add_span(make_span(filled.first.attempt, number, attributes={}, span_id=f"s{number}"))
    report = await filled.report()
    monkeypatch.setattr(compare, "LARGE", 4)
    monkeypatch.setattr(compare, "BATCH", 5)
    monkeypatch.setattr(scan, "BATCH", 5)
    pieces = await filled.report()
    assert (pieces.state_hash, pieces.rows, pieces.differences) == (report.state_hash, report.rows, [])

    rollout_id, attempt_id = filled.first.rollout_id, filled.first.attempt.attempt_id
    await run_sql(
        filled.url,
        "UPDATE spans SET name = 'renamed', position = 3 WHERE span_id = 's41'",
        "DELETE FROM spans WHERE span_id = 's42'",
        f"INSERT INTO spans {SPAN} VALUES ('{rollout_id}', '{attempt_id}', 'extra', 1, 't', 'n', 'OK', 5)",
        f"INSERT INTO rewards VALUES ('{rollout_id}', 9999, 0, '{attempt_id}', 'n', 1.0)",
        f"INSERT INTO rewards VALUES ('{rollout_id}', -5, 0, '{attempt_id}', 'n', 1.0)",
    )
    findings = {
        (difference.check, difference.key.rpartition("/")[2], difference.field)
        for difference in await filled.differences()
    }
    rewards = {("rewards", "0", None)}
    spans = {("spans", "s41", "name"), ("spans", "s41", "position"), ("spans", "s42", None), ("spans", "extra", None)}
    assert findings == spans | rewards
    await filled.store.log.rebuild()
    mended = await filled.report()
    assert (mended.differences, mended.state_hash) == ([], report.state_hash)


def _first_key(table: str) -> str:
    return {"workers": "worker_id", "resources": "resources_id", "queue": "position", "spans": "span_id"}.get(
        table, "position" if table == "rewards" else "rollout_id"
    )
