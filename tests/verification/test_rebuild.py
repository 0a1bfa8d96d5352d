"""Rows that `rebuild` restores, rows that it leaves unchanged, and no effect on readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from store import open_store
from store.db.tables.core import metadata
from store.db.url import parse
from store.errors import Corrupt, ReadOnly
from store.interface.store import Store
from store.models import AttemptedRollout, Difference, EnqueueRolloutRequest, RolloutConfig
from store.testing import ManualClock
from store.testing.samples import make_sdk_span, make_span
from tests.faults import processes
from tests.journal.copies import opened_copy
from tests.journal.database_helpers import REWARD, SPAN, ask, claimed, contents, fill, run_sql, tamper, untouched
from tests.verification.filled import ON_POSTGRES, ON_SQLITE, rebuild_until_repair

TABLES = ("rollouts", "attempts", "spans", "rewards", "resources", "workers", "queue")


class Filled:
    def __init__(self, url: str, store: Store, first: AttemptedRollout) -> None:
        self.url = url
        self.store = store
        self.first = first

    async def content(self) -> dict[str, list[list[str]]]:
        return await contents(self.url, (*TABLES, "watch"))


@pytest.fixture
async def filled(copy_url: str, clock: ManualClock) -> AsyncIterator[Filled]:
    async with opened_copy(fill, copy_url, clock) as (url, store, first):
        yield Filled(url, store, first)


async def differences(store: Store) -> list[Difference]:
    return (await store.log.verify()).differences


async def test_a_sound_store_is_left_as_it_is(store: Store, clock: ManualClock) -> None:
    await fill(store, clock)
    before = await store.log.verify()
    report = await store.log.rebuild()
    assert (report.written, report.differences) == ({}, [])
    assert (report.events, report.streams, report.rows) == (before.events, before.streams, before.rows)
    assert report.state_hash == before.state_hash == (await store.log.verify()).state_hash


async def test_an_empty_store_is_left_as_it_is(store: Store) -> None:
    assert (await store.log.rebuild()).written == {}


@pytest.mark.parametrize("table", TABLES)
@ON_SQLITE
async def test_rebuild_restores_deleted_rows(filled: Filled, table: str) -> None:
    before = await filled.content()
    await run_sql(filled.url, f"DELETE FROM {table}")
    report = await filled.store.log.rebuild()
    assert report.written == {table: len(before[table])}
    assert await filled.content() == before
    await untouched(filled.store)


EDITS = {
    "rollouts": "status = 'failed', spans = 0, last_position = 1",
    "attempts": "worker_id = 'thief', end_at = 5",
    "spans": "name = 'renamed', start_time = NULL",
    "rewards": "value = value + 1",
    "resources": "version = 77",
    "workers": "status = 'busy', current_rollout_id = 'ro-x'",
    "queue": "position = position + 100000",
}


@pytest.mark.parametrize("table, change", EDITS.items())
@ON_SQLITE
async def test_edited_rows_become_right_again(filled: Filled, table: str, change: str) -> None:
    before = await filled.content()
    await run_sql(filled.url, f"UPDATE {table} SET {change}")
    report = await filled.store.log.rebuild()
    assert set(report.written) == {table}
    assert report.differences
    assert await filled.content() == before


@ON_POSTGRES
async def test_rows_of_all_tables_become_right_again_on_postgres(filled: Filled) -> None:
    before = await filled.content()
    await run_sql(filled.url, *(f"DELETE FROM {table}" for table in TABLES))
    report = await filled.store.log.rebuild()
    assert report.written == {table: len(before[table]) for table in TABLES}
    assert await filled.content() == before
    await untouched(filled.store)
    await run_sql(filled.url, *(f"UPDATE {table} SET {change}" for table, change in EDITS.items()))
    report = await filled.store.log.rebuild()
    assert report.written.keys() == EDITS.keys()
    assert {difference.check for difference in report.differences} == EDITS.keys()
    assert await filled.content() == before


async def test_extra_rows_go(filled: Filled) -> None:
    before = await filled.content()
    rollout_id, attempt_id = filled.first.rollout_id, filled.first.attempt.attempt_id
    await run_sql(
        filled.url,
        f"INSERT INTO spans {SPAN} VALUES ('{rollout_id}', '{attempt_id}', 'extra', 9, 't', 'n', 'OK', 5)",
        f"INSERT INTO spans {SPAN} VALUES ('ro-nobody', 'at-a', 'extra', 9, 't', 'n', 'OK', 99999)",
        f"INSERT INTO rewards VALUES ('{rollout_id}', 99999, 0, '{attempt_id}', 'n', 1.0)",
        f"INSERT INTO rewards VALUES ('{rollout_id}', 2, 0, '{attempt_id}', 'n', 1.0)",
        "INSERT INTO workers VALUES ('zz', 'idle', NULL, NULL, NULL, NULL, 1, 1, 1)",
        "INSERT INTO resources VALUES ('zz', 1, 1, 1, 1, 1, 1, 1)",
        "INSERT INTO queue VALUES (99999, 'ro-nobody')",
        f"INSERT INTO queue VALUES (99998, '{rollout_id}')",
        _copy("rollouts", rollout_id, rollout_id="'ro-nobody'", plan_key="NULL"),
        _copy("attempts", rollout_id, attempt_id="'at-nobody'", sequence_id="2"),
    )
    report = await filled.store.log.rebuild()
    assert report.written == {
        "rollouts": 1,
        "attempts": 1,
        "spans": 2,
        "rewards": 2,
        "resources": 1,
        "workers": 1,
        "queue": 2,
    }
    assert await filled.content() == before


async def test_rebuild_restores_rows_with_swapped_unique_values(filled: Filled) -> None:
    before = await filled.content()
    await run_sql(
        filled.url,
        "UPDATE rollouts SET plan_key = 'spare' WHERE plan_key = 'k1'",
        "UPDATE rollouts SET plan_key = 'k1' WHERE plan_key = 'k3'",
        "UPDATE rollouts SET plan_key = 'k3' WHERE plan_key = 'spare'",
    )
    assert (await filled.store.log.rebuild()).written == {"rollouts": 2}
    assert await filled.content() == before


@ON_SQLITE
async def test_a_wrong_row_that_holds_the_plan_key_of_a_missing_one_gives_way(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from store.verification import rebuild

    # Each stream in a transaction of its own, so that the holder of the key is not mended along by chance.
    monkeypatch.setattr(rebuild, "_STREAMS_AT_ONCE", 1)
    before = await filled.content()
    await run_sql(
        filled.url,
        "UPDATE rollouts SET plan_key = 'spare' WHERE plan_key = 'k1'",
        "UPDATE rollouts SET plan_key = 'k1' WHERE plan_key = 'k3'",
        "UPDATE rollouts SET plan_key = 'k3' WHERE plan_key = 'spare'",
    )
    await filled.store.log.rebuild()
    assert await filled.content() == before


async def test_rebuilt_queue_rows_can_be_claimed(filled: Filled) -> None:
    ids = {row[1] for row in await ask(filled.url, "SELECT * FROM queue")}
    # The writer has seen the queue empty before the rows come back to their old places.
    await run_sql(filled.url, "DELETE FROM queue")
    assert await filled.store.dequeue_rollout() is None
    await filled.store.log.rebuild()
    assert {(await claimed(filled.store)).rollout_id for _ in ids} == ids
    await untouched(filled.store)


@ON_SQLITE
async def test_counters_only_ever_rise(filled: Filled) -> None:
    rollout_id = filled.first.rollout_id
    await run_sql(filled.url, f"UPDATE span_counters SET value = 1 WHERE rollout_id = '{rollout_id}'")
    await filled.store.log.rebuild()
    assert await filled.store.get_next_span_sequence_id(rollout_id, "any") == 4
    await filled.store.log.rebuild()
    assert await filled.store.get_next_span_sequence_id(rollout_id, "any") == 5


@pytest.mark.parametrize("rebuilds", [False, True])
async def test_no_number_is_drawn_again_after_a_lost_counter(filled: Filled, *, rebuilds: bool) -> None:
    store, rollout_id = filled.store, filled.first.rollout_id
    empty = (await store.enqueue_rollout("without spans")).rollout_id
    pairs = [(rollout_id, "any"), (empty, "any"), (empty, "any")]
    assert await store.get_many_span_sequence_ids(pairs) == [4, 1, 2]
    await run_sql(filled.url, f"DELETE FROM span_counters WHERE rollout_id IN ('{rollout_id}', '{empty}')")
    if rebuilds:
        await store.log.rebuild()
        assert await differences(filled.store) == []
    assert await store.get_many_span_sequence_ids(pairs) == [36, 33, 34]
    assert await differences(filled.store) == []


@ON_SQLITE
async def test_a_counter_that_a_span_wrote_anew_is_behind_no_reservation(filled: Filled) -> None:
    store, rollout_id = filled.store, filled.first.rollout_id
    assert await store.get_next_span_sequence_id(rollout_id, "any") == 4
    await run_sql(filled.url, f"DELETE FROM span_counters WHERE rollout_id = '{rollout_id}'")
    await store.add_span(make_span(filled.first.attempt, 2, span_id="late"))
    assert {(difference.check, difference.field) for difference in await differences(filled.store)} == {
        ("counters", "value"),
        ("counters", "reserved"),
    }
    assert await store.get_next_span_sequence_id(rollout_id, "any") == 36
    assert await differences(filled.store) == []


@ON_SQLITE
async def test_span_number_skips_reserved_numbers_after_a_lost_counter(filled: Filled) -> None:
    store, first = filled.store, filled.first
    assert await store.get_next_span_sequence_id(first.rollout_id, "any") == 4
    await run_sql(filled.url, f"DELETE FROM span_counters WHERE rollout_id = '{first.rollout_id}'")
    span = await store.add_otel_span(first.rollout_id, first.attempt.attempt_id, make_sdk_span())
    assert span is not None
    assert span.sequence_id == 36
    assert await differences(filled.store) == []


async def test_a_rebuild_corrects_a_counter_and_never_lowers_it(filled: Filled) -> None:
    store, rollout_id = filled.store, filled.first.rollout_id
    await store.get_next_span_sequence_id(rollout_id, "any")
    for change, following in (("value = 1", 36), ("value = 90, reserved = 99", 91), ("reserved = 0", 123)):
        await run_sql(filled.url, f"UPDATE span_counters SET {change} WHERE rollout_id = '{rollout_id}'")
        await store.log.rebuild()
        assert await differences(filled.store) == []
        assert await store.get_next_span_sequence_id(rollout_id, "any") == following
        assert await differences(filled.store) == []


async def test_watchdog_times_out_attempts_of_rebuilt_rows(filled: Filled, clock: ManualClock) -> None:
    config = RolloutConfig(timeout_seconds=30)
    watched = await filled.store.start_rollout({"w": 1}, config=config)
    before = await filled.content()
    await run_sql(filled.url, "DELETE FROM watch")
    report = await filled.store.log.rebuild()
    assert report.written == {"watch": 1}
    assert [(difference.check, difference.key) for difference in report.differences] == [("watch", watched.rollout_id)]
    assert await filled.content() == before
    clock.advance(31)
    await filled.store.query_rollouts()
    latest = await filled.store.get_latest_attempt(watched.rollout_id)
    assert latest is not None
    assert latest.status == "timeout"


@ON_SQLITE
async def test_a_heartbeat_that_is_a_signal_counts_for_when_the_watchdog_looks(
    filled: Filled, clock: ManualClock
) -> None:
    silent = await filled.store.start_rollout({"w": 1}, config=RolloutConfig(unresponsive_seconds=30))
    early = clock.seconds - 20
    await filled.store.update_attempt(silent.rollout_id, silent.attempt.attempt_id, last_heartbeat_time=early)
    await run_sql(filled.url, "DELETE FROM watch")
    await filled.store.log.rebuild()
    ((check_at,),) = await ask(filled.url, f"SELECT check_at FROM watch WHERE rollout_id = '{silent.rollout_id}'")
    assert int(check_at) == round((early + 30) * 1_000_000)


@ON_SQLITE
async def test_a_damaged_log_is_refused(filled: Filled) -> None:
    stream = f"rollout/{filled.first.rollout_id}"
    await tamper(filled.url, f"UPDATE events SET type = 'rollout.enqueued' WHERE stream = '{stream}' AND version = 3")
    with pytest.raises(Corrupt, match=stream):
        await filled.store.log.rebuild()


@ON_SQLITE
async def test_a_store_open_for_reading_refuses_to_rebuild(filled: Filled) -> None:
    async with await open_store(filled.url, read_only=True, create=False) as reader:
        with pytest.raises(ReadOnly):
            await reader.log.rebuild()


@pytest.mark.slow
async def test_appends_go_on_during_a_rebuild_and_its_result_is_right(
    durable_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with await open_store(durable_url) as store:
        await _many(store, rollouts=150, spans=8)
        await run_sql(durable_url, "UPDATE spans SET name = 'x'", "DELETE FROM attempts", "DELETE FROM rewards")
        pauses: list[float] = []
        done = asyncio.Event()

        async def append(worker_id: str) -> int:
            count = 0
            while not done.is_set():
                began = time.perf_counter()
                started = await store.start_rollout({"live": count}, worker_id=worker_id)
                await store.add_span(make_span(started.attempt, attributes=REWARD))
                await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="succeeded")
                pauses.append((time.perf_counter() - began) / 3)
                count += 1
            return count

        appending = [asyncio.create_task(append(f"w{number}")) for number in range(4)]
        while not pauses:  # noqa: ASYNC110 (it ends with the first of these calls)
            await asyncio.sleep(0.005)
        before = len(pauses)
        report = await store.log.rebuild()
        during = pauses[before:]
        done.set()
        assert sum(await asyncio.gather(*appending)) > 0
        assert report.written["attempts"] >= 150
        assert report.written["spans"] >= 1200
        assert during
        await untouched(store)
        assert (await store.log.rebuild()).written == {}
    with capsys.disabled():
        print(
            f"\nrebuild under load on {parse(durable_url).scheme}: {sum(report.written.values()):,} rows mended in"
            f" {report.seconds:.2f} s; {len(during)} lifecycles meanwhile, longest call {max(during) * 1000:.0f} ms"
        )


@pytest.mark.slow
async def test_a_rebuild_killed_half_way_leaves_rows_that_are_as_they_were_or_right(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await _many(store, rollouts=60, spans=8)
        right = {row[2]: row for row in await ask(durable_url, "SELECT * FROM spans")}
    await run_sql(durable_url, "UPDATE spans SET name = 'edited'", "DELETE FROM attempts")
    wrong = [len(right)]
    for repairs in (1, 2, 3):
        rebuilding = await asyncio.to_thread(processes.Killable, rebuild_until_repair, durable_url, repairs)
        rebuilding.kill()
        rows = await ask(durable_url, "SELECT * FROM spans")
        for row in rows:
            name = right[row[2]].index("step")
            assert row in (right[row[2]], [*right[row[2]][:name], "edited", *right[row[2]][name + 1 :]])
        wrong.append(sum(row != right[row[2]] for row in rows))
    # The repair that was killed changes nothing. The ones before it are not lost.
    assert wrong[0] == wrong[1] > wrong[2] > wrong[3] > 0
    async with await open_store(durable_url) as store:
        await store.log.rebuild()
        await untouched(store)
        assert {row[2]: row for row in await ask(durable_url, "SELECT * FROM spans")} == right


def _copy(table: str, of_rollout: str, **values: str) -> str:
    """Return the statement that inserts a copy of a rollout's rows, some columns replaced."""
    names = [str(column.name) for column in metadata.tables[table].columns]
    columns = ", ".join(values.get(name, name) for name in names)
    return f"INSERT INTO {table} SELECT {columns} FROM {table} WHERE rollout_id = '{of_rollout}'"


async def _many(store: Store, *, rollouts: int, spans: int) -> None:
    requests = [EnqueueRolloutRequest(input={"number": number}) for number in range(rollouts)]
    await store.enqueue_many_rollouts(requests)

    async def work(claim: AttemptedRollout) -> None:
        await store.add_many_spans(
            [make_span(claim.attempt, number, attributes=REWARD) for number in range(1, spans + 1)]
        )
        await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status="succeeded")

    # Concurrent calls share commits.
    await asyncio.gather(*map(work, await store.dequeue_many_rollouts(rollouts, "w1")))
