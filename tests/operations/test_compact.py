"""`compact`: the space of removed payload is freed, and nothing else changes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from store import Incompatible, Invalid, NotFound, open_store
from store.db.schema import migrate
from store.db.url import parse
from store.operations import RetentionPolicy, compact, remove_payload
from store.testing import ManualClock
from tests import postgres
from tests.cli.conftest import runner
from tests.faults import processes
from tests.operations.payloads import Place, fill, verified
from tests.operations.work import compact_store, compact_until_full
from tests.torture import Rounds

MEGABYTE = 1_000_000

CANCELLED = RetentionPolicy.of(statuses=("cancelled",))


@pytest.fixture
async def filled(durable_url: str, clock: ManualClock) -> Place:
    """A store with six large payloads, of which four belong to cancelled rollouts."""
    place = await fill(durable_url, clock)
    async with await open_store(place.url, clock=clock) as store:
        for number in range(6):
            # Random digits, which cannot be compressed.
            digits = random.Random(number).randbytes(MEGABYTE // 4).hex()
            rollout = await store.start_rollout({"text": digits})
            if number % 3:
                await store.update_rollout(rollout.rollout_id, status="cancelled")
    return place


@pytest.fixture
async def place(filled: Place) -> Place:
    """A store in which two thirds of the payload are removed."""
    await remove_payload(filled.url, CANCELLED, apply=True)
    return filled


async def test_the_space_is_freed_and_nothing_else_changes(filled: Place) -> None:
    # Postgres may free a part of the space by itself after the removal.
    size = (await remove_payload(filled.url, CANCELLED, apply=True)).size_before
    before = await verified(filled.url)
    # A full rewrite returns the space on both databases.
    report = await compact(filled.url, rewrite=True)
    assert report.is_complete
    assert size - report.size_after > MEGABYTE
    after = await verified(filled.url)
    assert (after.chain_head, after.state_hash) == (before.chain_head, before.state_hash)
    again = await compact(filled.url)
    assert again.is_complete
    # Postgres adds its maps of free space.
    assert again.size_after - report.size_after < MEGABYTE


async def test_no_write_is_lost_that_is_acknowledged_meanwhile(place: Place) -> None:
    written: list[str] = []
    done = asyncio.Event()

    async def write() -> None:
        async with await open_store(place.url) as store:
            while not done.is_set() or len(written) < 10:
                written.append((await store.enqueue_rollout(len(written))).rollout_id)
                # With this pause, there are few writes.
                await asyncio.sleep(0.005)

    writing = asyncio.create_task(write())
    for _ in range(2):
        await compact(place.url, rewrite=True)
    done.set()
    await writing
    async with await open_store(place.url) as store:
        rollouts = await store.query_rollouts(rollout_id_in=written, limit=-1)
        assert len(rollouts) == len(written)
    await verified(place.url)


@pytest.mark.slow
async def test_a_full_disk_is_reported_and_changes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    place = await fill(f"sqlite:///{tmp_path / 'file.db'}", clock)
    before = await verified(place.url)
    size = (tmp_path / "file.db").stat().st_size
    with processes.running(compact_until_full, (place.url, size // 2)) as compacting:
        assert await asyncio.to_thread(processes.leave, compacting) == [0]
    assert (await verified(place.url)).state_hash == before.state_hash
    assert (await compact(place.url)).is_complete


async def test_a_missing_store_and_a_server_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await compact(f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(Invalid, match="not a database"):
        await compact("http://127.0.0.1:1")


async def test_a_role_that_does_not_own_the_tables_is_refused(postgres_database: Callable[..., str]) -> None:
    url = postgres.with_partition(postgres_database(), "default")
    async with await open_store(url):
        pass
    role = f"app_{parse(url).text.split('/')[-1][:8]}"
    postgres.execute(url, f"CREATE ROLE {role} LOGIN")
    try:
        await migrate(url, app_role=role)
        with pytest.raises(Incompatible, match="does not own the tables"):
            await compact(url.replace("postgres@", f"{role}@"))
    finally:
        postgres.execute(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_compaction_killed_at_any_instant_changes_nothing(place: Place, rounds: Rounds) -> None:
    before = await verified(place.url)
    began = time.monotonic()
    with processes.running(compact_store, (place.url,)) as undisturbed:
        assert await asyncio.to_thread(processes.leave, undisturbed) == [0]
    needed = time.monotonic() - began
    for _ in range(rounds(100, few=1)):
        with processes.running(compact_store, (place.url,)) as (process,):
            await asyncio.to_thread(process.join, random.uniform(needed / 2, needed))
        async with await open_store(place.url) as store:
            report = await store.log.verify()
        assert (report.differences, report.state_hash) == ([], before.state_hash)
    assert (await compact(place.url)).is_complete


def test_the_command_prints_both_sizes(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = asyncio.run(fill(f"sqlite:///{tmp_path / 'file.db'}", clock))
    rollbook = runner(place.url, monkeypatch)
    done = rollbook("compact", "--full")
    assert done.code == 0, done.err
    assert "on disk" in done.out
    assert rollbook("compact", "--json").json["is_complete"] is True
