"""`drop_partition` removes one partition completely, and only while no other process uses it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from store import Conflict, Incompatible, Invalid, NotFound, open_store
from store.db.schema.partitions import names
from store.db.url import parse, with_partition
from store.operations import backup_store, drop_partition
from store.sql.api_keys import Keys
from tests import databases, postgres
from tests.conftest import POSTGRES, SQLITE
from tests.faults import processes
from tests.operations.work import drop


@pytest.fixture(params=[SQLITE, POSTGRES])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with the partitions `default`, `first` and `second`."""
    if request.param == "sqlite":
        of_database = f"sqlite:///{tmp_path / 'run.db'}"
    else:
        create: Callable[[], str] = request.getfixturevalue("postgres_database")
        of_database = create()
    for name in ("default", "first", "second"):
        await create_partition(of_database, name)
    return of_database


async def create_partition(url: str, name: str) -> str:
    """Make a partition with a rollout, and return the id of its store."""
    async with await open_store(with_partition(url, name)) as store:
        await store.enqueue_rollout(name)
        return getattr(store, "store_id", "")


def files(url: str) -> list[str]:
    path = parse(url).path
    return [] if path is None else sorted(file.name for file in path.parent.iterdir())


async def test_a_partition_is_dropped_and_the_others_stay(url: str) -> None:
    report = await drop_partition(url, "first", confirm="first")
    assert (report.partition, report.url, report.revoked_keys) == ("first", with_partition(url, "first"), [])
    assert await names(url) == ["default", "second"]
    if parse(url).path is not None:
        assert [path for path in files(url) if path.startswith("run.first")] == []
        assert report.size_bytes is not None
        assert report.size_bytes > 100_000
    for name in ("default", "second"):
        async with await open_store(with_partition(url, name), create=False) as store:
            assert [rollout.input for rollout in await store.query_rollouts()] == [name]
            assert (await store.log.verify()).ok
    with pytest.raises(NotFound, match="there is no partition first"):
        await drop_partition(url, "first", confirm="first")
    # A new partition of that name is another store.
    first, again = await create_partition(url, "first"), await create_partition(url, "first")
    assert first == again


async def test_the_keys_of_the_partition_are_revoked(url: str) -> None:
    keys = await Keys.open(url, create=False)
    ids = {}
    for partition in ("first", "second", None):
        key, _ = await keys.create("runner", partition=partition)
        ids[partition] = key.key_id
    before, _ = await keys.create("runner", partition="first")
    await keys.revoke(before.key_id)
    report = await drop_partition(with_partition(url, "second"), "first", confirm="first")
    assert report.revoked_keys == [ids["first"]]
    assert {row.key_id for row in await keys.unrevoked()} == {ids["second"], ids[None]}
    await keys.close()
    async with await open_store(url) as store:
        assert (await store.log.verify()).ok


@pytest.mark.parametrize(
    "name,confirm,match",
    [
        ("first", "second", "'second' is not 'first'"),
        ("first", "", "give the name of the partition twice"),
        ("default", "default", "the default partition stores the keys"),
        ("First", "First", "must match"),
        ("../run", "../run", "must match"),
    ],
)
async def test_unconfirmed_or_forbidden_drop_is_refused(full: str, name: str, confirm: str, match: str) -> None:
    before = files(full)
    with pytest.raises(Invalid, match=match):
        await drop_partition(full, name, confirm=confirm)
    assert files(full) == before


@pytest.mark.parametrize("url", ["memory://", "http://127.0.0.1:4747"])
async def test_only_partitions_of_a_database_are_dropped(url: str) -> None:
    with pytest.raises(Invalid, match="is not a database"):
        await drop_partition(url, "first", confirm="first")


async def test_a_partition_that_is_open_elsewhere_is_refused(url: str) -> None:
    async with await open_store(with_partition(url, "first")) as store:
        (rollout,) = await store.query_rollouts()
        waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60))
        # On Postgres, the wait begins to listen in the background.
        while parse(url).path is None and "1" not in postgres.execute(url, _SHARED):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        holder = "have .* open" if parse(url).path is not None else r"use rollbook_first \(pid \d+ postgres 127"
        with pytest.raises(Conflict, match=f"other processes {holder}"):
            await drop_partition(url, "first", confirm="first")
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        await waiting
    await drop_partition(url, "first", confirm="first")


_SHARED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"


async def test_a_transaction_of_another_process_is_waited_for_and_then_refused(
    postgres_database: Callable[..., str],
) -> None:
    url = postgres_database()
    await create_partition(url, "first")
    reader = await databases.connect(with_partition(url, "first"))
    await reader.execute("BEGIN; SELECT count(*) FROM rollouts")
    with pytest.raises(Conflict, match="other processes use rollbook_first"):
        await drop_partition(url, "first", confirm="first")
    await reader.execute("COMMIT")
    await reader.close()
    assert await names(url) == ["first"]
    await drop_partition(url, "first", confirm="first")


async def test_schema_or_file_that_is_not_a_store_is_not_dropped(
    tmp_path: Path, postgres_database: Callable[..., str]
) -> None:
    on_postgres = postgres_database()
    postgres.execute(on_postgres, "CREATE SCHEMA rollbook_first; CREATE TABLE rollbook_first.mine (id int)")
    (tmp_path / "run.first.db").write_text("notes " * 1000)
    for url in (on_postgres, f"sqlite:///{tmp_path / 'run.db'}"):
        with pytest.raises(Incompatible):
            await drop_partition(url, "first", confirm="first")
    assert files(f"sqlite:///{tmp_path / 'run.db'}") == ["run.first.db"]


async def test_a_role_that_does_not_own_the_schema_drops_nothing(postgres_database: Callable[..., str]) -> None:
    url = postgres_database()
    await create_partition(url, "first")
    role = f"app_{url.rpartition('/')[2][:8]}"
    postgres.execute(url, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA rollbook_first TO {role}")
    try:
        with pytest.raises(Incompatible, match="use the URL of its owner"):
            await drop_partition(url.replace("postgres@", f"{role}@"), "first", confirm="first")
    finally:
        postgres.execute(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_the_rest_of_a_partition_is_dropped_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    await create_partition(url, "first")
    (tmp_path / "run.first.db").unlink()
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"run.first.db{suffix}").write_bytes(b"rest")
    report = await drop_partition(url, "first", confirm="first")
    assert (report.size_bytes, files(url)) == (8, [])


@pytest.mark.slow
async def test_a_drop_that_was_killed_is_finished_by_the_next(url: str) -> None:
    for _ in range(3):
        with processes.running(drop, (url, "first")) as (process,):
            await asyncio.to_thread(process.join, random.uniform(0, 0.3))
        # Postgres may still execute what the killed process has sent.
        while True:
            with contextlib.suppress(Conflict, NotFound):
                await drop_partition(url, "first", confirm="first")
            if "first" not in await names(url):
                break
            await asyncio.sleep(0.1)
        assert await names(url) == ["default", "second"]
        assert [path for path in files(url) if "first" in path and not path.endswith(".lock")] == []
        await create_partition(url, "first")


async def test_keys_in_a_backup_are_not_revoked(tmp_path: Path) -> None:
    source, url = f"sqlite:///{tmp_path / 'source.db'}", f"sqlite:///{tmp_path / 'run.db'}"
    await create_partition(source, "default")
    keys = await Keys.open(source, create=False)
    await keys.create("runner", partition="first")
    await keys.close()
    await backup_store(source, tmp_path / "run.db")
    await create_partition(url, "first")
    before = (tmp_path / "run.db").read_bytes()
    with pytest.raises(Incompatible, match="is a backup or an archive"):
        await drop_partition(url, "first", confirm="first")
    assert (tmp_path / "run.db").read_bytes() == before
    assert (tmp_path / "run.first.db").exists()
