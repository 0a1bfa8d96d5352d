"""The contract on a `memory://` store, and the differences from a store on SQLite."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store import Closed, InMemoryLightningStore, Store, open_store
from store.db.drivers.sqlite.dialect import SQLite
from store.db.drivers.sqlite.writer import SQLiteWriter
from store.db.url import parse
from store.sql.store import SQLStore
from store.testing.contract import ClosingContract, StatisticsContract
from store.verification import pool


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files, empty at first."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def suffixes(directory: Path) -> set[str]:
    """Return what follows `.db` in the names of the files."""
    return {path.name.partition(".db")[2] for path in directory.iterdir()}


@pytest.fixture
def store_url() -> str:
    return "memory://"


@pytest.fixture
async def memory(directory: Path, store_url: str) -> AsyncIterator[SQLStore]:
    async with await SQLStore.open(store_url) as opened:
        yield opened


class TestMemory(ClosingContract, StatisticsContract):
    """Parts of the contract that depend on the file of the store and on its name."""


async def test_memory_has_the_dialect_of_sqlite(memory: SQLStore) -> None:
    async with InMemoryLightningStore() as other:
        assert type(memory.core.dialect) is type(other.core.dialect) is SQLite


@pytest.mark.parametrize("url, synchronous", [("memory://", 0), ("sqlite:///run.db", 2)])
async def test_only_the_commits_of_a_file_wait_for_the_disk(
    url: str, synchronous: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    dialect = SQLite(parse(url), None)
    await dialect.open(create=True)
    writer = await dialect.writer()
    assert isinstance(writer, SQLiteWriter)
    assert writer.do(lambda connection: connection.execute("PRAGMA synchronous").fetchone()) == (synchronous,)
    await writer.close()
    await dialect.close()


async def test_close_leaves_no_file(directory: Path, memory: SQLStore) -> None:
    await memory.enqueue_rollout(1)
    assert (await memory.query_rollouts()).total == 1
    assert suffixes(directory) >= {"", "-wal"}
    await memory.close()
    assert suffixes(directory) == set()


async def test_reads_during_close_raise_closed(memory: SQLStore) -> None:
    async def read() -> None:
        while True:
            await memory.query_rollouts()

    reading = [asyncio.ensure_future(read()) for _ in range(4)]
    await memory.enqueue_rollout(1)
    await memory.close()
    assert [type(error) for error in await asyncio.gather(*reading, return_exceptions=True)] == [Closed] * 4


async def test_stores_with_the_same_url_are_independent(memory: Store, store_url: str) -> None:
    await memory.enqueue_rollout(1)
    async with await open_store(store_url, create=False) as other:
        assert (await other.query_rollouts()).total == 0
        await other.enqueue_rollout(2)
    assert [rollout.input for rollout in await memory.query_rollouts()] == [1]


async def test_memory_cannot_be_pickled(memory: SQLStore, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="memory:// store cannot be pickled"):
        pickle.dumps(memory)
    assert memory.capabilities["zero_copy"] is False  # pyright: ignore[reportTypedDictNotRequiredAccess]
    async with await open_store(f"sqlite:///{tmp_path / 'run.db'}") as file:
        assert file.capabilities["zero_copy"] is True  # pyright: ignore[reportTypedDictNotRequiredAccess]
        copy: Store = pickle.loads(pickle.dumps(file))
        await copy.close()


async def test_servers_watch_no_partition_of_memory(memory: SQLStore) -> None:
    await memory.enqueue_rollout(1)
    assert await memory.core.dialect.watched_partitions() == []


async def test_verify_starts_no_process_for_a_private_file(memory: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORTHWHILE", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    await memory.enqueue_rollout(1)
    async with pool.team(memory.core.dialect, memory.store_id, 1) as team:
        assert len(team) == 0
    assert (await memory.log.verify()).ok
