"""Verification of data outside the log: signals, triggers, indexes, and the description of the store."""

from __future__ import annotations

import zlib

import pytest

from store.models import RolloutConfig
from tests.journal.database_helpers import ask, blob, run_sql, tamper
from tests.verification.filled import ON_POSTGRES, ON_SQLITE, Filled, database_of


def is_sqlite(filled: Filled) -> bool:
    return database_of(filled.url) == "sqlite"


@ON_SQLITE
async def test_heartbeats_are_not_compared(filled: Filled) -> None:
    await run_sql(filled.url, "DELETE FROM worker_signals", "DELETE FROM attempt_signals")
    assert await filled.differences() == []


@pytest.mark.parametrize(
    "copy_url, change",
    [
        ("sqlite", "DELETE FROM watch"),
        ("sqlite", "UPDATE watch SET check_at = check_at + 1"),
        ("postgres", "UPDATE watch SET check_at = check_at + 1"),
    ],
    indirect=["copy_url"],
)
async def test_a_check_of_the_watchdog_that_is_missing_or_late_is_found(filled: Filled, change: str) -> None:
    watched = await filled.store.start_rollout({"w": 1}, config=RolloutConfig(unresponsive_seconds=30))
    filled.clock.advance(10)
    await filled.store.update_attempt(
        watched.rollout_id, watched.attempt.attempt_id, last_heartbeat_time=filled.clock.seconds
    )
    filled.clock.advance(25)
    # This sweep moves the check to a later time, because of the heartbeat.
    await filled.store.query_rollouts()
    assert await filled.differences() == []
    ((before,),) = await ask(filled.url, "SELECT check_at FROM watch")
    await run_sql(filled.url, change)
    difference = await filled.only("watch")
    assert (difference.key, difference.field, difference.expected) == (watched.rollout_id, "check_at", int(before))
    report = await filled.store.log.rebuild()
    assert report.written == {"watch": 1}
    assert [finding.check for finding in report.differences] == ["watch"]
    assert await ask(filled.url, "SELECT check_at FROM watch") == [[before]]


@ON_SQLITE
async def test_an_earlier_check_of_the_watchdog_is_harmless(filled: Filled) -> None:
    await filled.store.start_rollout({"w": 1}, config=RolloutConfig(timeout_seconds=30))
    await run_sql(filled.url, "UPDATE watch SET check_at = 5")
    assert await filled.differences() == []


@ON_SQLITE
async def test_a_check_of_a_rollout_without_limit_is_found(filled: Filled) -> None:
    rollout_id = filled.first.rollout_id
    await run_sql(filled.url, f"INSERT INTO watch VALUES ('{rollout_id}', 5)")
    assert (await filled.only("watch")).found == 5
    assert (await filled.store.log.rebuild()).written == {"watch": 1}
    assert await filled.differences() == []


@pytest.mark.parametrize("rebuilds", [True, False])
async def test_a_lost_epoch_of_the_queue_is_found_and_restored(filled: Filled, *, rebuilds: bool) -> None:
    waiting = {row[1] for row in await ask(filled.url, "SELECT * FROM queue")}
    await run_sql(filled.url, "DELETE FROM queue_epoch")
    assert (await filled.only("queue_epoch")).key == "1"
    if rebuilds:
        # `verify` has written its result, and each write restores the row.
        await run_sql(filled.url, "DELETE FROM queue_epoch")
        assert (await filled.store.log.rebuild()).written == {"queue_epoch": 1}
        assert await filled.differences() == []
    claimed = [await filled.store.dequeue_rollout() for _ in waiting]
    assert {rollout.rollout_id for rollout in claimed if rollout is not None} == waiting
    assert await filled.differences() == []


@ON_SQLITE
async def test_another_row_of_the_epoch_is_found_and_removed(filled: Filled) -> None:
    await run_sql(filled.url, "INSERT INTO queue_epoch VALUES (2, 7)")
    assert (await filled.only("queue_epoch")).found == {"id": 2, "epoch": 7}
    await filled.store.enqueue_rollout("works")
    assert (await filled.store.log.rebuild()).written == {"queue_epoch": 1}
    assert await filled.differences() == []


async def test_a_trigger_of_another_program_is_found(filled: Filled) -> None:
    if is_sqlite(filled):
        text = "CREATE TRIGGER eats AFTER INSERT ON queue BEGIN DELETE FROM queue WHERE position = NEW.position; END"
        await run_sql(filled.url, text)
    else:
        await run_sql(
            filled.url,
            "CREATE FUNCTION eat() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$",
            "CREATE TRIGGER eats BEFORE INSERT ON queue FOR EACH ROW EXECUTE FUNCTION eat()",
        )
    difference = await filled.only("guards")
    assert difference.key == "table queue: trigger eats is not part of the store"
    assert difference.expected is None


@ON_POSTGRES
async def test_a_rule_that_rewrites_statements_is_found(filled: Filled) -> None:
    # SQLite has no rules.
    await run_sql(filled.url, "CREATE RULE eats AS ON INSERT TO queue DO INSTEAD NOTHING")
    assert (await filled.only("guards")).key == "table queue: rule eats is not part of the store"


async def test_a_trigger_on_a_table_of_another_program_is_no_difference(filled: Filled) -> None:
    await run_sql(filled.url, "CREATE TABLE theirs (id integer)")
    if is_sqlite(filled):
        await run_sql(filled.url, "CREATE TRIGGER theirs_1 AFTER INSERT ON theirs BEGIN DELETE FROM theirs; END")
    assert await filled.differences() == []


async def test_a_dropped_index_is_found(filled: Filled) -> None:
    await run_sql(filled.url, "DROP INDEX ix_rollouts_first_position")
    assert (await filled.only("guards")).key == "table rollouts: the index on (first_position) is missing"


@pytest.mark.parametrize("other", ["", "CREATE INDEX ix_bodies_codec ON bodies (codec)", "… WHERE codec >= 17"])
async def test_dropped_or_changed_partial_index_is_reported(filled: Filled, other: str) -> None:
    text = other.replace("…", "CREATE INDEX ix_bodies_codec ON bodies (codec)")
    await run_sql(filled.url, "DROP INDEX ix_bodies_codec", *filter(None, [text]))
    difference = await filled.only("guards")
    condition = "codec >= 16" if is_sqlite(filled) else "(codec >= 16)"
    assert difference.key == f"table bodies: the index on (codec) WHERE {condition} is missing"


@ON_SQLITE
async def test_bytes_after_a_compressed_body_are_found(filled: Filled) -> None:
    ((length, codec),) = await ask(filled.url, "SELECT raw_len, codec FROM bodies WHERE position = 1")
    hexed = "hex(body)" if is_sqlite(filled) else "encode(body, 'hex')"
    ((stored,),) = await ask(filled.url, f"SELECT {hexed} FROM bodies WHERE position = 1")
    raw = bytes.fromhex(stored)
    raw = zlib.decompress(raw) if codec == "1" else raw
    assert len(raw) == int(length)
    for rest, differences in ((b"", 0), (b"more", 1)):
        body = blob(zlib.compress(raw) + rest, filled.url)
        await tamper(filled.url, f"UPDATE bodies SET codec = 1, body = {body} WHERE position = 1")
        findings = await filled.differences()
        assert [(difference.check, difference.key, difference.found) for difference in findings] == [
            ("bodies", "event 1", "4 bytes after it")
        ] * differences


@pytest.mark.parametrize("change,field", [("store_id = 'other'", "store_id"), ("log_format = 0", "log_format")])
@ON_SQLITE
async def test_another_description_of_the_open_store_is_found(filled: Filled, change: str, field: str) -> None:
    await run_sql(filled.url, f"UPDATE store_info SET {change}")
    assert (await filled.only("store_info")).field == field


OUT_OF_RANGE = [
    ("events", "body_hash = {}"),
    ("events", "data = '[1, \"\\u0000\"]'"),
    ("events", "data = 'no JSON'"),
    ("events", "type = 'span.recorded', data = '{{\"sequence_id\": \"x\"}}'"),
    ("events", "at = 9223372036854775807, version = 9223372036854775807"),
    ("events", "shape = 32000, command = -1"),
    ("bodies", "body = {}"),
    ("bodies", "codec = 32000, raw_len = -1"),
    ("commits", "chain_hash = {}"),
    ("commits", "first_position = 9223372036854775807, recorded_at = -9223372036854775808"),
    ("commits", "events = -9223372036854775808"),
]


@pytest.mark.parametrize("table,change", OUT_OF_RANGE)
@ON_SQLITE
async def test_values_outside_of_their_range_are_differences(filled: Filled, table: str, change: str) -> None:
    key = "commit_id" if table == "commits" else "position"
    await tamper(filled.url, f"UPDATE {table} SET {change.format(blob(b'', filled.url))} WHERE {key} = 1")
    assert not (await filled.report()).ok


@ON_POSTGRES
async def test_values_outside_of_their_range_are_differences_on_postgres(filled: Filled) -> None:
    restore: list[str] = []
    for table, change in OUT_OF_RANGE:
        key = "commit_id" if table == "commits" else "position"
        saved = f"CREATE TABLE saved AS SELECT * FROM {table} WHERE {key} = 1"
        update = f"UPDATE {table} SET {change.format(blob(b'', filled.url))} WHERE {key} = 1"
        await tamper(filled.url, *restore, saved, update)
        assert not (await filled.report()).ok, (table, change)
        restore = [
            f"DELETE FROM {table} WHERE {key} = 1",
            f"INSERT INTO {table} SELECT * FROM saved",
            "DROP TABLE saved",
        ]
    await tamper(filled.url, *restore)
    assert (await filled.report()).ok
