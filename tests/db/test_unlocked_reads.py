"""Reads of a SQLite file that SQLite reads without locks. They notice later changes by its owner."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from store import Store, open_store
from store.db.schema import read_only_uri, sqlite, sqlite_files
from store.errors import StoreError, Unavailable
from store.sql.store import SQLStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


@pytest.fixture
async def owner(path: Path) -> AsyncIterator[Store]:
    """The store of a process that writes. Commits are copied into the file when it is closed."""
    async with await open_store(f"sqlite:///{path}") as store:
        await store.enqueue_rollout(1)
    async with await open_store(f"sqlite:///{path}") as store:
        await store.query_rollouts()
        yield store


@pytest.fixture
async def reader(owner: Store, path: Path) -> AsyncIterator[SQLStore]:
    """A reader that does not see the write-ahead log of the owner, because it has opened another name of the file."""
    second = path.with_name("second.db")
    second.hardlink_to(path)
    assert read_only_uri(second).endswith("immutable=1")
    store = await open_store(f"sqlite:///{second}", read_only=True)
    assert isinstance(store, SQLStore)
    yield store
    await store.close()


async def test_reader_sees_rows_that_were_written_after_it_opened_the_file(owner: Store, reader: SQLStore) -> None:
    assert len(await reader.query_rollouts()) == 1
    version = reader.core.dialect.state()
    assert reader.core.dialect.state() == version
    for number in range(200):
        await owner.enqueue_rollout(number)
    await owner.close()
    assert len(await reader.query_rollouts()) == 201
    assert reader.core.dialect.state() != version
    assert (await reader.log.verify()).ok


async def test_follower_gets_events_that_were_written_after_it_opened_the_file(owner: Store, reader: SQLStore) -> None:
    position = await reader.core.position()

    async def follow() -> int:
        while True:
            with suppress(Unavailable):  # the file changed during a read
                return await reader.core.news_after(position)

    following = asyncio.create_task(follow())
    await owner.enqueue_rollout(2)
    await owner.close()
    assert await asyncio.wait_for(following, 10) > position


async def test_change_during_a_read_is_an_error_that_can_be_retried(owner: Store, reader: SQLStore) -> None:
    await owner.enqueue_rollout(2)
    with pytest.raises(Unavailable, match="was changed by another process while it was read; try again"):
        async with reader.core.dialect.read():
            await owner.close()
    assert len(await reader.query_rollouts()) == 2


async def test_error_of_a_read_without_locks_advises_no_restoration(owner: Store, reader: SQLStore, path: Path) -> None:
    await owner.close()
    assert len(await reader.query_rollouts()) == 1
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(200_000))
    with pytest.raises(StoreError) as damaged:
        await reader.query_rollouts()
    assert "cannot be read without locks" in str(damaged.value)
    assert "restore" not in str(damaged.value)


@pytest.mark.parametrize(
    "sides,is_unlocked",
    [({}, True), ({"-wal": b""}, True), ({"-wal": b"x"}, False), ({"-wal": b"", "-shm": b"x"}, False)],
    ids=["none", "empty log", "log", "shared memory"],
)
def test_file_is_read_with_locks_if_its_log_exists_beside_the_actual_file(
    path: Path, sides: dict[str, bytes], is_unlocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / "store").mkdir()
    actual = path.parent / "store" / "run.db"
    sqlite.prepare_sqlite(actual, create=True, read_only=False)
    path.symlink_to(actual)
    for suffix, content in sides.items():
        actual.with_name(f"run.db{suffix}").write_bytes(content)
    assert sqlite_files.unlocked_state(path) is None

    def access(file: str, mode: int) -> bool:
        return Path(file).exists() and (mode != os.W_OK or Path(file) != actual.parent)

    monkeypatch.setattr(os, "access", access)
    assert (sqlite_files.unlocked_state(path) is not None) == is_unlocked
