"""Verification and repair of the tables of threads; random calls agree with a model."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from store import open_store
from store.db.tables import core as core_tables
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.verification import pool
from tests.journal.database_helpers import ask, run_sql, tamper
from tests.threads.langgraph_samples import ON_BOTH, checkpoint, write
from tests.verification.forked_helpers import forked_helpers

__all__ = ["forked_helpers"]

THREADS = [table.name for table in core_tables.THREADS]
LONG = b"long " * 1000
Model = dict[str, tuple[dict[tuple[str, str], bytes], dict[tuple[str, str, str, int], bytes]]]


async def content(url: str) -> dict[str, list[list[str]]]:
    return {table: sorted(await ask(url, f"SELECT * FROM {table}")) for table in THREADS}


@pytest.fixture
async def filled(store_url: str, clock: ManualClock) -> AsyncIterator[SQLStore]:
    """A store with a thread, its copy, one that was pruned and one that was deleted."""
    async with await open_store(store_url, clock=clock) as store:
        assert isinstance(store, SQLStore)
        for thread_id in ("t", "u", "v"):
            for number in range(3):
                values = {"said": ("msgpack", LONG), "short": ("msgpack", b"short")}
                await store.threads.save_checkpoint(checkpoint(number, thread_id, values=values))
                await store.threads.save_writes(thread_id, [write(0), write(-1)], checkpoint_id=f"cp-{number:04}")
        await store.threads.copy("t", "w")
        await store.threads.prune("u", [("", "cp-0000"), ("", "cp-0001")])
        await store.threads.delete("v")
        yield store


@ON_BOTH
async def test_untampered_threads_are_sound(filled: SQLStore) -> None:
    report = await filled.log.verify()
    assert report.differences == []
    expected = {"threads": 4, "thread_checkpoints": 7, "thread_writes": 14}
    assert {name: count for name, count in report.rows.items() if name in THREADS} == expected


@pytest.mark.parametrize("table", THREADS)
async def test_deleted_rows_of_threads_come_back_as_they_were(filled: SQLStore, store_url: str, table: str) -> None:
    before, hashed = await content(store_url), (await filled.log.verify()).state_hash
    await run_sql(store_url, f"DELETE FROM {table}")
    damaged = await filled.log.verify()
    assert {difference.check for difference in damaged.differences} == {table}
    assert damaged.state_hash != hashed
    report = await filled.log.rebuild()
    assert (report.written, report.state_hash) == ({table: len(before[table])}, hashed)
    assert await content(store_url) == before
    assert (await filled.log.verify()).differences == []


@pytest.mark.parametrize(
    "table,column,value",
    [
        ("threads", "stream_version", "99"),
        ("thread_checkpoints", "run_id", "'x'"),
        ("thread_checkpoints", "step", "step + 1"),
        ("thread_checkpoints", "body_position", "1"),
        ("thread_writes", "channel", "'other'"),
        ("thread_writes", "position", "position + 1"),
    ],
)
async def test_edited_rows_of_threads_are_named_and_become_right_again(
    filled: SQLStore, store_url: str, table: str, column: str, value: str
) -> None:
    before = await content(store_url)
    await run_sql(store_url, f"UPDATE {table} SET {column} = {value}")
    assert {(difference.check, difference.field) for difference in (await filled.log.verify()).differences} == {
        (table, column)
    }
    assert set((await filled.log.rebuild()).written) == {table}
    assert await content(store_url) == before


@ON_BOTH
async def test_rows_of_threads_that_no_event_accounts_for_go(filled: SQLStore, store_url: str) -> None:
    before = await content(store_url)
    for owner in ("t", "nobody"):
        await run_sql(
            store_url,
            "INSERT INTO thread_checkpoints (thread_id, ns, checkpoint_id, position, body_position)"
            f" VALUES ('{owner}', '', 'x', 1, 1)",
            "INSERT INTO thread_writes (thread_id, ns, checkpoint_id, task_id, number, channel, task_path, position,"
            f" body_position) VALUES ('{owner}', '', 'x', 'task', 0, 'said', '', 1, 1)",
        )
    assert (await filled.log.rebuild()).written == {"thread_checkpoints": 2, "thread_writes": 2}
    assert await content(store_url) == before


async def test_missing_and_unreferenced_blobs_are_reported(filled: SQLStore, store_url: str) -> None:
    (name,) = [row[0] for row in await ask(store_url, "SELECT hash FROM blobs")]
    await tamper(store_url, f"UPDATE blobs SET hash = '{'0' * 64}' WHERE hash = '{name}'")
    problems = {
        (difference.key, difference.found)
        for difference in (await filled.log.verify()).differences
        if difference.check == "blobs"
    }
    assert (name, None) in problems
    assert ("0" * 64, "a blob to which no event refers") in problems


@ON_BOTH
@pytest.mark.slow
@pytest.mark.usefixtures("forked_helpers")
async def test_other_processes_prove_threads_as_this_one_does(
    filled: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await filled.log.verify()
    monkeypatch.setattr(pool, "WORTHWHILE", 0)
    assert (await filled.log.verify()).model_copy(update={"seconds": here.seconds}) == here


async def play(store: SQLStore, clock: ManualClock, calls: int, seed: int) -> Model:
    """Make random calls, and return what the threads hold after them by a model of plain dicts."""
    dice, model = random.Random(seed), Model()
    for number in range(calls):
        clock.advance(0.001)
        thread_id, ns = dice.choice("abc"), dice.choice(["", "child:1"])
        checkpoints, writes = model.setdefault(thread_id, ({}, {}))
        key = (ns, f"cp-{dice.randrange(12):04}")
        match dice.choices(["keep", "write", "prune", "runs", "copy", "delete"], [8, 8, 2, 1, 1, 1])[0]:
            case "keep":
                value = dice.choice([LONG, b"%d" % number])
                stored = checkpoint(
                    int(key[1][3:]),
                    thread_id,
                    ns,
                    values={"said": ("msgpack", value)},
                    metadata={"run_id": dice.choice(["r1", "r2"]), "number": number},
                )
                await store.threads.save_checkpoint(stored)
                checkpoints[key] = value
            case "write":
                task, at, value = dice.choice(["x", "y"]), dice.choice([-1, 0, 1]), dice.choice([LONG, b"%d" % number])
                await store.threads.save_writes(thread_id, [write(at, task, value)], ns=ns, checkpoint_id=key[1])
                if at < 0 or (*key, task, at) not in writes:
                    writes[*key, task, at] = value
            case "prune":
                await store.threads.prune(thread_id, [key])
                forget(model, thread_id, {key})
            case "runs":
                await delete_run(store, model, dice.choice(["r1", "r2"]))
            case "copy":
                target = dice.choice([letter for letter in "abcd" if letter != thread_id])
                await store.threads.copy(thread_id, target)
                into = model.setdefault(target, ({}, {}))
                into[0].update(checkpoints)
                into[1].update(writes)
            case _:
                await store.threads.delete(thread_id)
                model[thread_id] = ({}, {})
    return model


async def delete_run(store: SQLStore, model: Model, run_id: str) -> None:
    gone: dict[str, set[tuple[str, str]]] = {}
    async for stored in store.threads.iterate_checkpoints():
        if stored.metadata["run_id"] == run_id:
            gone.setdefault(stored.thread_id, set()).add((stored.ns, stored.checkpoint_id))
    assert await store.threads.delete_runs([run_id]) == sum(map(len, gone.values()))
    for owner, keys in gone.items():
        forget(model, owner, keys)


def forget(model: Model, thread_id: str, keys: set[tuple[str, str]]) -> None:
    checkpoints, writes = model[thread_id]
    for key in keys:
        checkpoints.pop(key, None)
    for key in [key for key in writes if key[:2] in keys]:
        del writes[key]


async def held(store: SQLStore) -> Model:
    """Return what the threads hold, as far as it can be read: writes without their checkpoint are not."""
    model = Model()
    async for stored in store.threads.iterate_checkpoints():
        checkpoints, writes = model.setdefault(stored.thread_id, ({}, {}))
        checkpoints[stored.ns, stored.checkpoint_id] = stored.values["said"][1]
        for written in stored.writes:
            writes[stored.ns, stored.checkpoint_id, written.task_id, written.number] = written.value[1]
    return model


def readable(model: Model) -> Model:
    return {
        thread_id: (checkpoints, {key: value for key, value in writes.items() if key[:2] in checkpoints})
        for thread_id, (checkpoints, writes) in model.items()
        if checkpoints
    }


@ON_BOTH
@pytest.mark.slow
@pytest.mark.torture
async def test_after_random_calls_the_threads_are_those_of_a_model_and_the_log_proves_them(
    store_url: str, clock: ManualClock, rounds: Callable[[int], int]
) -> None:
    async with await open_store(store_url, clock=clock) as store:
        assert isinstance(store, SQLStore)
        model = await play(store, clock, rounds(2000), seed=62)
        assert await held(store) == readable(model)
        before, report = await content(store_url), await store.log.verify()
        assert report.differences == []
        assert len(before["thread_writes"]) == sum(len(writes) for _, writes in model.values())
        await run_sql(store_url, *(f"DELETE FROM {table}" for table in THREADS))
        assert (await store.log.rebuild()).state_hash == report.state_hash
        assert await content(store_url) == before


@pytest.mark.postgres
async def test_the_same_calls_come_to_the_same_state_on_both_databases(tmp_path: Path, postgres_url: str) -> None:
    hashes: set[str] = set()
    for url in (f"sqlite:///{tmp_path / 'one.db'}", postgres_url):
        clock = ManualClock()
        async with await open_store(url, clock=clock) as store:
            assert isinstance(store, SQLStore)
            await play(store, clock, 60, seed=7)
            hashes.add((await store.log.verify()).state_hash)
    assert len(hashes) == 1
