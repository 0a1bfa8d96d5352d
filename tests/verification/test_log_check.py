"""Differences that `verify` finds in the log: every byte, every event and their order."""

from __future__ import annotations

import pytest

from store.db.dialect import ReadSession
from store.db.tables.core import metadata
from store.domain.events import BodyDropped
from store.sql.store import SQLStore
from store.verification import log_scan
from tests.journal.database_helpers import ask, blob, run_sql, tamper
from tests.verification.filled import ON_POSTGRES, ON_SQLITE, Filled, database_of, number_of, record


async def test_a_flipped_byte_in_an_event_is_found(filled: Filled) -> None:
    position = await number_of(filled, "span.recorded")
    await tamper(filled.url, f"UPDATE events SET data = replace(data, 'step', 'stop') WHERE position = {position}")
    differences = await filled.differences()
    broken = [difference for difference in differences if difference.check == "chain"]
    (commit,) = broken
    assert commit.field == "chain_hash"
    assert f"events {position} to" in commit.key
    # The row was folded from the event as it was, so it tells what the event said.
    (name,) = [difference for difference in differences if difference.check == "spans"]
    assert (name.field, name.expected, name.found) == ("name", "stop", "step")


COLUMNS_OF_EVENTS = [
    ("actor", "'somebody'"),
    ("at", "at + 1"),
    ("cause", "1"),
    ("command", "command + 1"),
    ("body_hash", None),
    ("shape", "2"),
    ("type", "'span.erased'"),
    ("version", "version + 1000"),
    ("stream", "'rollout/elsewhere'"),
]
COLUMNS_OF_COMMITS = ["recorded_at", "first_position", "last_position"]


@pytest.mark.parametrize("column, value", COLUMNS_OF_EVENTS)
@ON_SQLITE
async def test_every_column_of_an_event_is_part_of_the_chain(filled: Filled, column: str, value: str | None) -> None:
    position = await number_of(filled, "span.recorded")
    value = blob(bytes(32), filled.url) if value is None else value
    await tamper(filled.url, f"UPDATE events SET {column} = {value} WHERE position = {position}")
    assert "chain_hash" in {
        difference.field for difference in await filled.differences() if difference.check == "chain"
    }


@pytest.mark.parametrize("column", COLUMNS_OF_COMMITS)
@ON_SQLITE
async def test_every_number_of_a_commit_is_part_of_the_chain(filled: Filled, column: str) -> None:
    await tamper(filled.url, f"UPDATE commits SET {column} = {column} + 1 WHERE commit_id = 3")
    differences = [difference for difference in await filled.differences() if difference.check == "chain"]
    assert any(difference.key.startswith("commit 3") for difference in differences)


@ON_POSTGRES
async def test_every_column_of_the_log_is_part_of_the_chain_on_postgres(filled: Filled) -> None:
    # Each change is in a commit of its own, whose hash differs by it.
    query = "SELECT commit_id, min(position) FROM events GROUP BY commit_id ORDER BY commit_id"
    commits = iter(await ask(filled.url, query))
    changes: dict[str, str] = {}
    for column, value in COLUMNS_OF_EVENTS:
        commit_id, position = next(commits)
        literal = blob(bytes(32), filled.url) if value is None else value
        changes[commit_id] = f"UPDATE events SET {column} = {literal} WHERE position = {position}"
    for column in COLUMNS_OF_COMMITS:
        commit_id, _ = next(commits)
        changes[commit_id] = f"UPDATE commits SET {column} = {column} + 1 WHERE commit_id = {commit_id}"
    await tamper(filled.url, *changes.values())
    keys = [difference.key for difference in await filled.differences() if difference.check == "chain"]
    for commit_id, change in changes.items():
        assert any(key.startswith(f"commit {commit_id} ") for key in keys), (change, keys)


@ON_SQLITE
async def test_an_event_that_says_it_is_of_another_commit_is_found(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE events SET commit_id = 1 WHERE position = 4")
    difference = await filled.only("chain")
    assert (difference.key, difference.field, difference.found) == ("event 4", "commit_id", 1)


async def test_a_flipped_byte_in_a_body_is_found(filled: Filled) -> None:
    position = await number_of(filled, "rollout.enqueued")
    (row,) = await ask(filled.url, f"SELECT hex_of FROM ({_hex(filled.url)}) h WHERE position = {position}")
    body = bytearray(bytes.fromhex(row[0]))
    body[-3] ^= 1
    await tamper(filled.url, f"UPDATE bodies SET body = {blob(bytes(body), filled.url)} WHERE position = {position}")
    difference = await filled.only("bodies")
    assert difference.key == f"event {position}"
    assert difference.field == "body"


@ON_SQLITE
async def test_a_wrong_length_of_a_body_is_found(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE bodies SET raw_len = raw_len + 1 WHERE position = 1")
    difference = await filled.only("bodies")
    assert (difference.key, difference.field) == ("event 1", "raw_len")


@ON_SQLITE
async def test_a_body_that_is_gone_without_an_order_is_found(filled: Filled) -> None:
    await tamper(filled.url, "DELETE FROM bodies WHERE position = 1")
    difference = await filled.only("bodies")
    assert (difference.key, difference.field, difference.found) == ("event 1", None, None)


@ON_SQLITE
async def test_permission_to_drop_a_body_counts_only_with_the_event_that_ordered_it(filled: Filled) -> None:
    await tamper(filled.url, "DELETE FROM bodies WHERE position = 1", "INSERT INTO dropped VALUES (1, 2)")
    assert await _named(filled) == {("bodies", "event 1"), ("dropped", "1")}


async def _named(filled: Filled) -> set[tuple[str, str]]:
    return {(difference.check, difference.key) for difference in await filled.differences()}


@pytest.mark.parametrize("ordered_by", [2, 99999])
@ON_SQLITE
async def test_permission_to_drop_a_body_that_no_event_ordered_is_found(filled: Filled, ordered_by: int) -> None:
    await run_sql(filled.url, f"INSERT INTO dropped VALUES (1, {ordered_by})")
    assert (await filled.only("dropped")).key == "1"


async def test_a_body_that_an_event_ordered_dropped_may_be_gone(filled: Filled) -> None:
    before = await filled.report()
    last = await record(filled.url, filled.clock, BodyDropped(position=1, policy="older than a day"))
    await run_sql(filled.url, f"INSERT INTO dropped VALUES (1, {last})", "DELETE FROM bodies WHERE position = 1")
    report = await filled.report()
    assert report.differences == []
    assert (report.events, report.state_hash) == (before.events + 1, before.state_hash)
    # The order names one body, and no other.
    await tamper(filled.url, f"INSERT INTO dropped VALUES (2, {last})", "DELETE FROM bodies WHERE position = 2")
    assert await _named(filled) == {("bodies", "event 2"), ("dropped", "2")}


@pytest.mark.slow
async def test_a_body_that_no_event_claims_is_found(filled: Filled) -> None:
    one = blob(b"{}", filled.url)
    await tamper(filled.url, f"INSERT INTO bodies VALUES (20000, 0, 2, {one})")
    difference = await filled.only("bodies")
    assert (difference.key, difference.expected) == ("event 20000", None)


async def test_a_deleted_event_is_found(filled: Filled) -> None:
    position = await number_of(filled, "attempt.started")
    await tamper(filled.url, f"DELETE FROM events WHERE position = {position}")
    differences = await filled.differences()
    missing = [
        difference
        for difference in differences
        if difference.check == "chain" and difference.key == f"event {position}"
    ]
    assert len(missing) == 1
    # What follows in its stream no longer follows from what is left.
    assert any(difference.check == "events" and difference.key.startswith("rollout/") for difference in differences)


@ON_SQLITE
async def test_a_deleted_commit_is_found(filled: Filled) -> None:
    await tamper(filled.url, "DELETE FROM commits WHERE commit_id = 2")
    keys = {difference.key for difference in await filled.differences() if difference.check == "chain"}
    assert any(key.startswith("commit 3") for key in keys)


@ON_SQLITE
async def test_a_deleted_commit_with_all_its_events_is_found(filled: Filled) -> None:
    await tamper(
        filled.url,
        "DELETE FROM events WHERE commit_id = 2",
        "DELETE FROM bodies WHERE position NOT IN (SELECT position FROM events)",
        "DELETE FROM commits WHERE commit_id = 2",
    )
    differences = await filled.differences()
    assert any(difference.field == "chain_hash" and difference.key.startswith("commit 3") for difference in differences)


@ON_SQLITE
async def test_a_swapped_pair_of_events_is_found(filled: Filled) -> None:
    a = await number_of(filled, "span.recorded")
    b = a + 3
    ((type_b,),) = await ask(filled.url, f"SELECT type FROM events WHERE position = {b}")
    assert type_b == "span.recorded"
    await tamper(
        filled.url,
        f"UPDATE events SET position = -{a} WHERE position = {a}",
        f"UPDATE events SET position = {a} WHERE position = {b}",
        f"UPDATE events SET position = {b} WHERE position = -{a}",
    )
    differences = await filled.differences()
    assert any(difference.check == "chain" and f"events {a} to" in difference.key for difference in differences)


async def test_an_event_that_no_commit_holds_is_found(filled: Filled) -> None:
    await tamper(
        filled.url,
        "INSERT INTO events SELECT position + 1000, commit_id, 'worker/ghost', 1, command, 'worker.seen', 1, at, actor,"
        " cause, '{}', NULL FROM events WHERE position = 5",
    )
    differences = await filled.differences()
    assert [(difference.check, difference.key) for difference in differences] == [
        ("chain", "event 1005"),
        ("workers", "ghost"),
    ]


@ON_SQLITE
async def test_wrong_running_totals_are_found(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE commits SET spans = spans + 1 WHERE commit_id = 4")
    differences = await filled.differences()
    assert ("totals", "commit 4", "spans") in {
        (difference.check, difference.key, difference.field) for difference in differences
    }


@ON_SQLITE
async def test_damage_at_the_boundary_of_two_ranges_is_found(filled: Filled) -> None:
    assert isinstance(filled.store, SQLStore)

    async def first_end(session: ReadSession) -> int:
        until = await log_scan.bounds(session)
        first, _ = await log_scan.ranges(session, until, 2)
        return first.until.commit_id

    end = await filled.store.core.read(first_end, snapshot=True)
    zeros = blob(bytes(32), filled.url)
    for commit_id in (end, end + 1):
        changes = [
            ("commits", "chain_hash", zeros, f"commit_id = {commit_id}"),
            ("commits", "events", "events + 1", f"commit_id = {commit_id}"),
            ("commits", "last_position", "last_position + 1", f"commit_id = {commit_id}"),
            ("events", "cause", "17", f"commit_id = {commit_id}"),
        ]
        for table, column, value, where in changes:
            key = next(iter(metadata.tables[table].primary_key.columns)).name
            await tamper(filled.url, f"CREATE TABLE kept AS SELECT {key} AS number, {column} AS value FROM {table}")
            await tamper(filled.url, f"UPDATE {table} SET {column} = {value} WHERE {where}")
            # `differences` also asserts that the check by ranges finds the same as the check of the whole log.
            checks = {difference.check for difference in await filled.differences()}
            assert checks & {"chain", "totals"}, (commit_id, column)
            await tamper(
                filled.url,
                f"UPDATE {table} SET {column} = (SELECT value FROM kept WHERE number = {key}) WHERE {where}",
                "DROP TABLE kept",
            )
    assert (await filled.report()).ok


@ON_SQLITE
async def test_an_event_that_cannot_be_decoded_is_a_difference_and_no_crash(filled: Filled) -> None:
    stream = f"rollout/{filled.first.rollout_id}"
    await tamper(filled.url, f"UPDATE events SET data = '[1' WHERE stream = '{stream}' AND version = 2")
    differences = await filled.differences()
    assert any(difference.check == "events" and difference.key == f"{stream}, event 2" for difference in differences)


@ON_SQLITE
async def test_an_event_of_a_newer_version_is_a_difference_and_no_crash(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE events SET shape = 9 WHERE stream LIKE 'resources/%' AND version = 2")
    assert any(
        difference.check == "events" and "shape 9" in str(difference.found) for difference in await filled.differences()
    )


@ON_SQLITE
async def test_an_event_that_does_not_follow_is_a_difference_and_no_crash(filled: Filled) -> None:
    stream = f"rollout/{filled.first.rollout_id}"
    await tamper(
        filled.url,
        f"UPDATE events SET data = replace(data, 'queuing', 'running') WHERE stream = '{stream}'"
        " AND type = 'rollout.status_changed'",
    )
    assert any(
        difference.check == "events" and difference.key.startswith(stream) for difference in await filled.differences()
    )


@ON_SQLITE
async def test_an_event_of_an_unknown_kind_of_stream_is_a_difference_and_no_crash(filled: Filled) -> None:
    await tamper(filled.url, "UPDATE events SET stream = 'aaa/1', type = 'aaa.done' WHERE position = 1")
    assert any(difference.key == "aaa/1, event 1" for difference in await filled.differences())


def _hex(url: str) -> str:
    if database_of(url) == "sqlite":
        return "SELECT position, hex(body) AS hex_of FROM bodies"
    return "SELECT position, encode(body, 'hex') AS hex_of FROM bodies"
