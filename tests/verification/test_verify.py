"""`verify` reports every change, removal and addition that bypasses the store."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from store import open_store
from store.db.schema import triggers
from store.db.tables import core as core_tables
from store.interface.store import Store
from store.models import RolloutConfig, VerifyReport
from store.models.calls import EnqueueRolloutCall
from store.runtime.progress import OperationProgress
from store.sql.commands import rollouts as rollout_commands
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_prompt
from tests.journal.database_helpers import fill, run_sql, tamper
from tests.verification.filled import ON_SQLITE, Filled, database_of


async def test_untampered_store_is_sound(store: Store, clock: ManualClock) -> None:
    await fill(store, clock)
    report = await store.log.verify()
    assert report.ok
    assert report.differences == []
    assert report.events == report.last_position
    assert report.rows == {
        "rollouts": 5,
        "attempts": 3,
        "spans": 4,
        "rewards": 3,
        "resources": 2,
        "workers": 2,
        "queue": 3,
        **{table.name: 0 for table in (*core_tables.RUNS, *core_tables.THREADS, *core_tables.ANNOTATIONS)},
        **{table.name: 0 for table in core_tables.SCORES},
        "metrics": 0,
    }
    assert not report.seal_checked


@pytest.mark.parametrize("step", ["comparing the tables", "checking the log"])
@ON_SQLITE
async def test_progress_ends_with_all_events(filled: Filled, step: str) -> None:
    seen: list[OperationProgress] = []
    report = await filled.store.log.verify(on_progress=seen.append)
    counts = [
        (progress.done, progress.total) for progress in seen if progress.step == step and progress.total is not None
    ]
    assert counts == sorted(counts)
    assert counts[-1] == (report.events, report.events)
    if step == "comparing the tables":
        seen.clear()
        await filled.store.log.rebuild(on_progress=seen.append)
        assert {progress.step for progress in seen} == {step}
        assert (seen[-1].done, seen[-1].total) == (report.events, report.events)


@ON_SQLITE
async def test_an_error_of_the_progress_function_ends_the_call(filled: Filled) -> None:
    calls: list[str] = []

    def stop(progress: OperationProgress) -> None:
        calls.append(progress.step)
        raise KeyError(progress.step)

    for work in (filled.store.log.verify, filled.store.log.rebuild):
        with pytest.raises(KeyError):
            await work(on_progress=stop)
    assert calls == 2 * ["comparing the tables"]


async def test_an_empty_store_is_sound(store: Store) -> None:
    report = await store.log.verify()
    assert report.ok
    assert (report.commits, report.events, report.streams, report.chain_head) == (0, 0, 0, "00" * 32)


async def test_the_state_hash_is_that_of_the_rows_and_not_of_their_places(durable_url: str) -> None:
    reports: list[VerifyReport] = []
    for url in ("memory://", durable_url):
        async with await open_store(url, clock=ManualClock(), scan_debounce_seconds=0) as store:
            await store.update_resources("r", make_prompt())
            if url != "memory://" and database_of(url) == "postgresql":
                await run_sql(url, "SELECT nextval('event_seq'), nextval('commit_seq')")
            await store.update_worker("w")
            reports.append(await store.log.verify())
            assert reports[-1].ok
    assert reports[0].state_hash == reports[1].state_hash
    if database_of(durable_url) == "postgresql":
        assert reports[0].last_position != reports[1].last_position
        assert reports[0].chain_head != reports[1].chain_head


async def test_another_row_is_another_state_hash(store: Store) -> None:
    empty = (await store.log.verify()).state_hash
    await store.enqueue_rollout({"q": 1})
    assert (await store.log.verify()).state_hash != empty


async def test_verify_goes_on_while_others_write(filled: Filled) -> None:
    async def write() -> None:
        for _ in range(20):
            await filled.store.enqueue_rollout({"more": True})

    writing = asyncio.create_task(write())
    while not writing.done():
        assert (await filled.report()).ok
    await writing


@ON_SQLITE
async def test_a_store_open_for_reading_can_be_verified(filled: Filled) -> None:
    async with await open_store(filled.url, read_only=True, create=False) as reader:
        assert (await reader.log.verify()).chain_head == (await filled.report()).chain_head


@ON_SQLITE
async def test_a_cut_tail_is_found_with_a_seal(filled: Filled, tmp_path: Path) -> None:
    await filled.store.log.seal(tmp_path / "seal.json")
    last = (await filled.report()).commits
    await tamper(
        filled.url,
        f"DELETE FROM events WHERE commit_id = {last}",
        "DELETE FROM bodies WHERE position NOT IN (SELECT position FROM events)",
        f"DELETE FROM commits WHERE commit_id = {last}",
    )
    await filled.store.log.rebuild()
    # Without the seal nothing tells that there was more; the rows were made to fit.
    assert await filled.differences() == []
    (difference,) = await filled.differences(tmp_path / "seal.json")
    assert (difference.check, difference.key) == ("seal", f"commit {last}")
    assert f"ends at commit {last - 1}" in difference.found


@ON_SQLITE
async def test_later_events_do_not_break_a_seal(filled: Filled, tmp_path: Path) -> None:
    seal = await filled.store.log.seal(tmp_path / "seal.json")
    await filled.store.enqueue_rollout({"later": True})
    report = await filled.report(seal)
    assert report.ok
    assert report.seal_checked


@ON_SQLITE
async def test_another_history_before_the_seal_is_found(filled: Filled, tmp_path: Path) -> None:
    seal = await filled.store.log.seal(tmp_path / "seal.json")
    forged = seal.model_copy(update={"chain_head": "11" * 32})
    (difference,) = await filled.differences(forged)
    assert (difference.check, difference.field, difference.found) == ("seal", "chain_hash", seal.chain_head)


@ON_SQLITE
async def test_a_seal_of_another_store_is_found(filled: Filled, tmp_path: Path) -> None:
    seal = await filled.store.log.seal(tmp_path / "seal.json")
    (difference,) = await filled.differences(seal.model_copy(update={"store_id": "other"}))
    assert (difference.check, difference.field) == ("seal", "store_id")


async def test_a_dropped_trigger_is_found(filled: Filled) -> None:
    name = triggers.trigger_names(database_of(filled.url))[0]
    table = next(guard.table for guard in triggers.expected(database_of(filled.url)) if guard.name == name)
    await run_sql(
        filled.url, f"DROP TRIGGER {name}" if database_of(filled.url) == "sqlite" else f"DROP TRIGGER {name} ON {table}"
    )
    difference = await filled.only("guards")
    assert name in difference.key


CHANGES_OF_THE_LOG = [
    "UPDATE events SET at = at WHERE position = 1",
    "DELETE FROM events WHERE position = 1",
    "UPDATE commits SET writer = 'me'",
    "DELETE FROM commits",
    "UPDATE bodies SET raw_len = 0",
    "DELETE FROM bodies WHERE position = 1",
]
OF_POSTGRES = ["TRUNCATE events", "TRUNCATE commits", "TRUNCATE bodies"]
OF_SQLITE = [
    "REPLACE INTO events SELECT * FROM events WHERE position = 1",
    "REPLACE INTO bodies SELECT * FROM bodies WHERE position = 1",
    "REPLACE INTO commits SELECT * FROM commits WHERE commit_id = 1",
    "INSERT OR REPLACE INTO bodies (position, codec, raw_len, body) VALUES (1, 0, 2, '{}')",
]


async def test_the_database_refuses_to_change_the_log(filled: Filled, subtests: pytest.Subtests) -> None:
    changes = OF_SQLITE if database_of(filled.url) == "sqlite" else OF_POSTGRES
    for statement in (*CHANGES_OF_THE_LOG, *changes):
        with subtests.test(statement=statement):
            with pytest.raises((sqlite3.IntegrityError, subprocess.CalledProcessError)) as refused:
                await run_sql(filled.url, statement)
            assert "append-only" in f"{refused.value} {getattr(refused.value, 'stderr', '')}"
    assert await filled.differences() == []


async def test_a_negative_limit_in_an_old_log_is_read_judged_and_verified(tmp_path: Path, clock: ManualClock) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    command = rollout_commands.enqueue_one(EnqueueRolloutCall(1, config=RolloutConfig(timeout_seconds=1)))
    (item,) = command.items
    old = replace(command, items=[replace(item, config=item.config | {"timeout_seconds": -5.0})])
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as store:
        assert isinstance(store, SQLStore)
        await store.core.call(old)
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as store:
        assert [rollout.config.timeout_seconds for rollout in await store.query_rollouts()] == [-5.0]
        assert await store.dequeue_rollout() is not None
        clock.advance(0.001)
        assert [rollout.status for rollout in await store.query_rollouts()] == ["failed"]
        assert (await store.log.verify()).ok
        assert (await store.log.rebuild()).differences == []
