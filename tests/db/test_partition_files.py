"""A SQLite file is a partition only if it states this: a name like that of a partition is not enough."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from store import open_store
from store.db.drivers.sqlite.dialect import SQLite
from store.db.schema.partitions import migrate, names
from store.db.url import parse
from store.errors import Incompatible, NotFound
from store.models import RolloutConfig
from store.operations import copy_store, drop_partition


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'run.db'}"


async def write(url: str) -> None:
    """Create a store with an attempt that the watchdog has to end."""
    async with await open_store(url) as store:
        await store.start_rollout(url, config=RolloutConfig(timeout_seconds=100))


async def inputs(url: str) -> list[object]:
    async with await open_store(url, read_only=True) as store:
        return [rollout.input for rollout in await store.query_rollouts()]


async def watched(url: str) -> list[str]:
    return sorted(await SQLite(parse(url), None).watched_partitions())


def forget_membership(path: Path) -> None:
    """Turn a file into one of an older version."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE partition_file")


@pytest.mark.parametrize("kind", ["copied by rollbook", "copied by hand", "older copy", "store of its own"])
async def test_file_named_like_a_partition_is_no_partition(url: str, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "run.old.db"
    await write(url)
    if kind == "store of its own":
        await write(f"sqlite:///{other}")
    elif kind == "copied by rollbook":
        await copy_store(url, f"sqlite:///{other}")
    else:
        if kind == "older copy":
            forget_membership(tmp_path / "run.db")
        shutil.copy(tmp_path / "run.db", other)
    await write(f"{url}?partition=real")
    assert await names(url) == ["default", "real"]
    assert await watched(url) == ["default", "real"]
    assert [done.partition for done in await migrate(url)] == ["default", "real"]
    with pytest.raises(
        NotFound, match=r"run\.old\.db is .*, and not the partition old of run\.db; to read it, open it by"
    ):
        await inputs(f"{url}?partition=old")
    with pytest.raises(NotFound, match="not the partition old"):
        await drop_partition(url, "old", confirm="old")
    with pytest.raises(Incompatible, match="not the partition old"):
        await open_store(f"{url}?partition=old")
    assert len(await inputs(f"sqlite:///{other}")) == 1


async def test_partition_of_another_database_is_no_partition(url: str, tmp_path: Path) -> None:
    for database in (url, f"sqlite:///{tmp_path / 'exp.db'}"):
        await write(database)
        await write(f"{database}?partition=old")
    (tmp_path / "run.old.db").rename(tmp_path / "run.new.db")
    (tmp_path / "exp.old.db").rename(tmp_path / "run.old.db")
    assert await names(url) == ["default"]
    (tmp_path / "run.new.db").replace(tmp_path / "run.old.db")
    assert await names(url) == ["default", "old"]


async def test_partitions_of_different_databases_have_different_files(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / main}?partition=a" for main in ("exp.2026-01-01", "exp.2026-01-02", "exp.db")]
    for partition in urls:
        await write(partition)
    for partition in urls:
        assert await inputs(partition) == [partition]
        assert await names(partition) == ["a"]
    with pytest.raises(Incompatible, match=r"exp\.a\.db is .*, and not the partition a of exp;"):
        await open_store(f"sqlite:///{tmp_path / 'exp'}?partition=a")


async def test_database_can_be_renamed_with_all_its_files(url: str, tmp_path: Path) -> None:
    await write(f"{url}?partition=a")  # before the default partition exists
    await write(url)
    await write(f"{url}?partition=b")
    for suffix in (".db", ".a.db", ".b.db"):
        (tmp_path / f"run{suffix}").rename(tmp_path / f"new{suffix}")
    assert await names(f"sqlite:///{tmp_path / 'new.db'}") == ["a", "b", "default"]


async def test_partitions_of_an_older_version_stay_partitions(url: str, tmp_path: Path) -> None:
    for partition in (url, f"{url}?partition=a", f"{url}?partition=b"):
        await write(partition)
    for name in ("run.db", "run.a.db", "run.b.db"):
        forget_membership(tmp_path / name)
    assert await names(url) == await watched(url) == ["a", "b", "default"]
    await migrate(url)
    (tmp_path / "run.a.db").rename(tmp_path / "run.c.db")
    assert await names(url) == ["b", "default"]


async def test_file_that_an_older_version_named_without_suffix_is_reported(tmp_path: Path) -> None:
    url, older = f"sqlite:///{tmp_path / 'exp.sqlite'}?partition=a", tmp_path / "exp.a.db"
    await write(url)
    (tmp_path / "exp.sqlite.a.db").rename(older)
    forget_membership(older)
    with pytest.raises(
        Incompatible, match=r"exp\.a\.db was stored by an older version.*mv '.*' '.*exp\.sqlite\.a\.db'"
    ):
        await open_store(url)
    older.rename(tmp_path / "exp.sqlite.a.db")
    assert await inputs(url) == [url]
