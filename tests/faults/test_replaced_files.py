"""A SQLite file that is deleted, moved or replaced while it is open: no call is acknowledged and then lost."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from store import open_store
from store.errors import Incompatible


def delete(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def restore_a_copy(path: Path) -> None:
    """Do as an operator who restores a backup under a running server."""
    copy = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    copy.replace(path)


def create_again(path: Path) -> None:
    delete(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (name)")


def delete_the_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


CHANGES: list[tuple[Callable[[Path], None], str]] = [
    (delete, r"run\.db was deleted or moved"),
    (move, r"run\.db was deleted or moved"),
    (restore_a_copy, r"run\.db was replaced by another file"),
    (create_again, r"run\.db was replaced by another file"),
]


@pytest.mark.parametrize("change,said", CHANGES, ids=[change.__name__ for change, _ in CHANGES])
async def test_calls_are_refused_once_the_file_is_gone(
    tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "run.db"
    async with await open_store(f"sqlite:///{path}") as store:
        rollout = await store.enqueue_rollout("before")
        await store.query_rollouts()
        change(path)
        for call in (
            lambda: store.enqueue_rollout("lost"),
            lambda: store.add_resources({}),
            store.query_rollouts,
            lambda: store.get_rollout_by_id(rollout.rollout_id),
            store.statistics,
        ):
            with pytest.raises(Incompatible, match=f"{said} while the store was open.*restart"):
                await call()


async def test_writes_are_refused_once_the_write_ahead_log_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    async with await open_store(f"sqlite:///{path}") as store:
        delete_the_log(path)
        with pytest.raises(
            Incompatible, match=r"run\.db-wal, which contains the latest commits, was (deleted|replaced)"
        ):
            await store.enqueue_rollout("lost")
    path = tmp_path / "other.db"
    async with await open_store(f"sqlite:///{path}") as store:
        await store.enqueue_rollout("before")
        delete_the_log(path)
        with pytest.raises(
            Incompatible, match=r"other\.db-wal, which contains the latest commits, was (deleted|replaced)"
        ):
            await store.enqueue_rollout("lost")


async def test_an_open_store_works_on_a_file_that_was_put_back(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    async with await open_store(f"sqlite:///{path}") as store:
        await store.enqueue_rollout("before")
        move(path)
        with pytest.raises(Incompatible):
            await store.query_rollouts()
        path.with_name("elsewhere.db").rename(path)
        await store.enqueue_rollout("after")
        assert [one.input for one in (await store.query_rollouts()).items] == ["before", "after"]
        assert (await store.log.verify()).ok


async def test_links_and_relative_paths_lead_to_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "data" / "run.db")
    async with await open_store(f"sqlite:///{tmp_path}/data/run.db") as created:
        await created.enqueue_rollout("made")
    monkeypatch.chdir(tmp_path)
    async with await open_store("sqlite:///link.db") as store:
        await store.enqueue_rollout("through the link")
        monkeypatch.chdir(tmp_path / "elsewhere")
        await store.enqueue_rollout("from elsewhere")
        assert (await store.query_rollouts()).total == 3
        shutil.copy(tmp_path / "data" / "run.db", tmp_path / "data" / "copy.db")
        _link_to(tmp_path / "data" / "copy.db").replace(link)
        with pytest.raises(Incompatible, match=r"link\.db was replaced"):
            await store.enqueue_rollout("into the other file")


def _link_to(target: Path) -> Path:
    link = target.with_name("new link")
    link.symlink_to(target)
    return link


async def test_a_file_that_several_processes_open_and_close_stays_in_place(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    async with await open_store(url) as store:
        for number in range(3):
            async with await open_store(url) as other:
                await other.enqueue_rollout(f"other {number}")
            await store.enqueue_rollout(f"store {number}")
        assert (await store.query_rollouts()).total == 6


async def test_calls_that_a_replaced_file_refuses_are_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.db"
    async with await open_store(f"sqlite:///{path}") as store:
        await store.enqueue_rollout("before")
        restore_a_copy(path)
        for _ in range(5):
            refused = await asyncio.gather(*(store.enqueue_rollout("lost") for _ in range(20)), return_exceptions=True)
            assert {type(error) for error in refused} == {Incompatible}
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["the database refuses calls"]
    assert not any(record.exc_info for record in caplog.records)
