"""Verification and repair of the run tables and the blobs by the log."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import pytest

from store.db.queries import scan
from store.db.tables import core as core_tables
from store.interface.store import Store
from store.models import AttemptedRollout, Difference
from store.testing import ManualClock
from store.testing.samples import make_span
from store.verification import compare
from tests.journal.copies import opened_copy
from tests.journal.database_helpers import ask, blob, contents, run_sql, tamper
from tests.journal.sample_run import LONG, NODE, run, tell
from tests.verification.filled import ON_POSTGRES, ON_SQLITE, Filled

RUNS = [table.name for table in core_tables.RUNS]


@pytest.fixture
async def played(copy_url: str, clock: ManualClock) -> AsyncIterator[Filled]:
    async with opened_copy(_run, copy_url, clock) as (url, store, first):
        yield Filled(url, store, first, clock)


async def _run(store: Store, _: ManualClock) -> AttemptedRollout:
    return await run(store)


async def content(filled: Filled) -> dict[str, list[list[str]]]:
    return await contents(filled.url, (*RUNS, "rollouts", "attempts"))


def fields(differences: list[Difference]) -> set[tuple[str, str | None]]:
    return {(difference.check, difference.field) for difference in differences}


@ON_SQLITE
async def test_untampered_run_is_sound(played: Filled) -> None:
    report = await played.report()
    assert report.differences == []
    expected = {"run_events": 15, "forks": 1, "fork_masks": 5, "checkpoints": 1, "artifacts": 2, "run_keys": 8}
    assert {name: count for name, count in report.rows.items() if name in RUNS} == expected


@pytest.mark.parametrize("table", RUNS)
@ON_SQLITE
async def test_deleted_rows_of_runs_come_back_as_they_were(played: Filled, table: str) -> None:
    before = await content(played)
    await run_sql(played.url, f"DELETE FROM {table}")
    assert fields(await played.differences()) == {(table, None)}
    report = await played.store.log.rebuild()
    assert report.written == {table: len(before[table])}
    assert await content(played) == before
    assert await played.differences() == []


EDITS = [
    ("run_events", "attempt", "7"),
    ("run_events", "node_id", "'other'"),
    ("run_events", "metrics", "'{}'"),
    ("forks", "base_version", "base_version + 1"),
    ("forks", "scopes", "NULL"),
    ("fork_masks", "scope", "NULL"),
    ("checkpoints", "name", "'other'"),
    ("artifacts", "retracted", "NULL"),
    ("run_keys", "last_version", "99"),
    ("rollouts", "head", "2"),
    ("rollouts", "run_version", "NULL"),
    ("attempts", "base", "9"),
    ("attempts", "fork_version", "NULL"),
    ("attempts", "tries", "5"),
]


@pytest.mark.parametrize("table,column,value", EDITS)
@ON_SQLITE
async def test_edited_rows_of_runs_are_named_and_become_right_again(
    played: Filled, table: str, column: str, value: str
) -> None:
    before = await content(played)
    await run_sql(played.url, f"UPDATE {table} SET {column} = {value}")
    assert fields(await played.differences()) == {(table, column)}
    assert set((await played.store.log.rebuild()).written) == {table}
    assert await content(played) == before


@ON_POSTGRES
async def test_rows_of_all_run_tables_become_right_again_on_postgres(played: Filled) -> None:
    before = await content(played)
    await run_sql(played.url, *(f"DELETE FROM {table}" for table in RUNS))
    assert fields(await played.differences()) == {(table, None) for table in RUNS}
    assert (await played.store.log.rebuild()).written == {table: len(before[table]) for table in RUNS}
    assert await content(played) == before
    await run_sql(played.url, *(f"UPDATE {table} SET {column} = {value}" for table, column, value in EDITS))
    assert fields(await played.differences()) == {(table, column) for table, column, _ in EDITS}
    assert set((await played.store.log.rebuild()).written) == {table for table, _, _ in EDITS}
    assert await content(played) == before


async def test_rebuild_deletes_rows_without_an_event(played: Filled) -> None:
    before = await content(played)
    rollout_id = played.first.rollout_id
    for owner in (rollout_id, "ro-nobody"):
        await run_sql(
            played.url,
            f"INSERT INTO run_events (rollout_id, version, position, attempt, kind) VALUES ('{owner}', 999, 5, 1, 'x')",
            "INSERT INTO checkpoints (rollout_id, version, position, attempt, checkpoint_id, scope, name)"
            f" VALUES ('{owner}', 999, 5, 1, 'cp-x', 'RIG', 'x')",
            "INSERT INTO artifacts (rollout_id, version, position, attempt, artifact_id, scope, name)"
            f" VALUES ('{owner}', 999, 5, 1, 'ar-x', 'RIG', 'x')",
            f"INSERT INTO fork_masks (rollout_id, version, ordinal, children) VALUES ('{owner}', 999, 0, 1)",
            f"INSERT INTO run_keys (rollout_id, key, kind, version, last_version) VALUES ('{owner}', 'x', 'x', 1, 1)",
        )
    written = (await played.store.log.rebuild()).written
    assert written == {"run_events": 2, "fork_masks": 2, "checkpoints": 2, "artifacts": 2, "run_keys": 2}
    assert await content(played) == before
    assert await played.differences() == []


@ON_SQLITE
async def test_a_long_run_is_compared_and_mended_piece_by_piece(
    played: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout_id, attempt = played.first.rollout_id, played.first.attempt
    for number in range(2, 12):
        await tell(played.store, rollout_id, attempt.attempt_id, "Bull", "Bear")
        await played.store.add_span(make_span(attempt, number, attributes=NODE))
    report = await played.report()
    monkeypatch.setattr(compare, "LARGE", 4)
    monkeypatch.setattr(compare, "BATCH", 5)
    monkeypatch.setattr(scan, "BATCH", 5)
    pieces = await played.report()
    assert (pieces.state_hash, pieces.rows, pieces.differences) == (report.state_hash, report.rows, [])
    before = await content(played)
    history = [event.version for event in (await played.store.runs.query_events(rollout_id, view="raw")).items]
    await run_sql(
        played.url,
        f"DELETE FROM run_events WHERE version = {history[20]}",
        f"UPDATE run_events SET kind = 'other' WHERE version = {history[50]}",
        "DELETE FROM run_keys",
        "UPDATE artifacts SET retracted = NULL",
        *(
            f"INSERT INTO run_events (rollout_id, version, position, attempt, kind) VALUES ('{rollout_id}', {n}, 5, 1,"
            " 'x')"
            for n in (-3, 9999)
        ),
    )
    findings = {(difference.check, difference.key.rpartition("/")[2]) for difference in await played.differences()}
    assert {("run_events", str(number)) for number in (history[20], history[50], -3, 9999)} <= findings
    await played.store.log.rebuild()
    assert await content(played) == before
    assert (await played.report()).state_hash == report.state_hash


async def blobs_of(filled: Filled) -> dict[str, str]:
    """Return the hashes of a prompt, a checkpoint's state and an artifact's content."""
    url, blobs = filled.url, dict[str, str]()
    ((blobs["prompt"],),) = await ask(
        url, "SELECT min(prompt_sha256) FROM run_events WHERE prompt_sha256 IS NOT NULL AND node_id = 'Bull'"
    )
    for what in ("checkpoint", "artifact"):
        digest = "lower(hex(e.body_hash))" if url.startswith("sqlite") else "encode(e.body_hash, 'hex')"
        ((blobs[what],),) = await ask(
            url, f"SELECT min({digest}) FROM events e JOIN {what}s c ON c.position = e.position"
        )
    return blobs


@ON_SQLITE
async def test_repeated_contents_are_stored_once(played: Filled) -> None:
    ((count,),) = await ask(played.url, "SELECT count(*) FROM blobs")
    # A prompt of each of four nodes, the second of one of them being equal; a state; the content of two artifacts.
    assert count == "6"


async def test_blobs_that_are_missing_are_named(played: Filled) -> None:
    blobs = await blobs_of(played)
    await tamper(played.url, *(f"DELETE FROM blobs WHERE hash = '{name}'" for name in blobs.values()))
    differences = await played.differences()
    assert {(difference.check, difference.found) for difference in differences} == {("blobs", None), ("bodies", None)}
    ((prompt,),) = [[difference.key] for difference in differences if difference.check == "blobs"]
    assert blobs["prompt"] in prompt
    assert sum(difference.check == "bodies" for difference in differences) >= 2


@pytest.mark.parametrize("what", ["prompt", "checkpoint", "artifact"])
@ON_SQLITE
async def test_a_blob_that_was_changed_is_named(played: Filled, what: str) -> None:
    name = (await blobs_of(played))[what]
    await tamper(played.url, f"UPDATE blobs SET body = {blob(b'{}', played.url)}, codec = 0 WHERE hash = '{name}'")
    assert ("blobs", name, "body") in {
        (difference.check, difference.key, difference.field) for difference in await played.differences()
    }


@ON_SQLITE
async def test_a_blob_whose_length_is_wrong_is_named(played: Filled) -> None:
    name = (await blobs_of(played))["prompt"]
    await tamper(played.url, f"UPDATE blobs SET raw_len = raw_len + 1 WHERE hash = '{name}'")
    difference = await played.only("blobs")
    assert (difference.key, difference.field, difference.expected) == (name, "raw_len", len(LONG + "Bull"))


async def test_a_blob_that_no_event_names_is_left_over(played: Filled) -> None:
    name = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    await run_sql(played.url, f"INSERT INTO blobs VALUES ('{name}', 0, 2, {blob(b'{}', played.url)})")
    difference = await played.only("blobs")
    assert (difference.key, difference.expected, difference.found) == (name, None, "a blob to which no event refers")


@ON_SQLITE
async def test_history_and_tail_carry_the_bodies_that_lie_in_blobs(played: Filled) -> None:
    history = await played.store.log.history(played.first.rollout_id)
    bodies = {event.type: event.body for event in history if event.type in {"checkpoint.saved", "artifact.saved"}}
    assert bodies == {"checkpoint.saved": {"state": {"plan": "buy", "long": LONG}}, "artifact.saved": {"content": LONG}}
    tailed = [event async for event in played.store.log.tail(types=["artifact.saved"])]
    assert [event.body for event in tailed] == [{"content": LONG}] * 2


@ON_SQLITE
async def test_the_head_is_read_in_the_past(played: Filled) -> None:
    history = await played.store.log.history(played.first.rollout_id)
    (moved,) = [event for event in history if event.type == "rollout.head_moved"]
    now = await played.store.runs.query_events(played.first.rollout_id)
    then = await played.store.runs.query_events(played.first.rollout_id, as_at=moved.position - 1)
    assert (now.head, then.head) == (1, 2)


@ON_SQLITE
async def test_bytes_after_a_compressed_blob_are_found(played: Filled) -> None:
    name = (await blobs_of(played))["prompt"]
    body = blob(zlib.compress((LONG + "Bull").encode()) + b"more", played.url)
    await tamper(played.url, f"UPDATE blobs SET body = {body}, codec = 1 WHERE hash = '{name}'")
    difference = await played.only("blobs")
    assert (difference.key, difference.found) == (name, "4 bytes after it")
