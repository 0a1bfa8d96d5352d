"""Tests that a server and `rollbook ui` do not change backups and archives. A changed file cannot be restored."""

# ruff: noqa: ASYNC240 (the files are small, and nothing else runs in the loop)

# These tests use private names of the modules that they test.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import shutil
import signal
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from store import open_store
from store.cli.commands import serve
from store.db.queries import operation_runs
from store.db.url import with_partition
from store.errors import Conflict
from store.interface.store import Store
from store.models import RolloutConfig
from store.operations import backup_store, restore_store
from store.operations.schedule import Schedule
from store.server.auth.keyring import KeyRing
from store.server.partitions import Partitions
from store.server.process.scheduler import Scheduler
from store.sql.api_keys import Keys
from store.sql.store import SQLStore
from tests.migrations.test_alembic_commands import run as run_alembic
from tests.server.forked_operations import forked_operations
from tests.server.test_serving import finish, serving

__all__ = ["forked_operations"]

pytestmark = pytest.mark.slow

INI = str(Path(__file__).parents[2] / "alembic.ini")


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """The URL of a store with a rollout that has a time limit."""
    url = f"sqlite:///{tmp_path / 'run.db'}"
    async with await open_store(url) as store:
        await store.start_rollout("task", config=RolloutConfig(timeout_seconds=0.1))
    return url


@pytest.mark.parametrize("command", [["serve", "--read-only"], ["ui"]], ids=" ".join)
async def test_the_use_of_a_key_does_not_change_a_backup(url: str, tmp_path: Path, command: list[str]) -> None:
    keys = await Keys.open(url, create=True)
    _, key = await keys.create("admin")
    await keys.close()
    file = tmp_path / "monday.backup"
    await backup_store(url, file)
    before = file.read_bytes()
    with serving(*command, "--db", f"sqlite:///{file}", "--port", "0") as (process, server):
        root = server.removesuffix("/ui/")
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{root}/v1/agl/rollouts") as answer:
            assert answer.status == 200
            assert len((await answer.json())["items"]) == 1
            async with session.get(f"{root}/ui/admin") as page:
                assert page.status == 200, await page.text()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert file.read_bytes() == before
    await restore_store(file, f"sqlite:///{tmp_path / 'restored.db'}")


async def test_backup_with_the_name_of_a_partition_is_not_served_and_not_changed(url: str, tmp_path: Path) -> None:
    file = tmp_path / "monday.backup"
    await backup_store(url, file)
    partition = Path(shutil.copy(file, tmp_path / "run.monday.db"))
    before = partition.read_bytes()
    with serving("serve", "--db", url, "--port", "0") as (process, server):
        async with aiohttp.ClientSession() as session:
            for path in ("/v1/agl/rollouts", "/ui", "/ui/admin"):
                async with session.get(f"{server}/p/monday{path}") as answer:
                    assert answer.status == 404, await answer.text()
            async with session.get(f"{server}/metrics") as answer:
                assert "monday" not in await answer.text()
        process.send_signal(signal.SIGTERM)
        code, logged = finish(process)
    assert code == 0
    assert not [entry for entry in logged if entry["level"] in {"warning", "error"}]
    assert partition.read_bytes() == before


@pytest.mark.usefixtures("forked_operations")
async def test_no_attempt_of_a_backup_is_watched_and_no_operation_runs_on_it(url: str, tmp_path: Path) -> None:
    await backup_store(url, tmp_path / "run.monday.backup")
    partition = Path(shutil.copy(tmp_path / "run.monday.backup", tmp_path / "run.monday.db"))
    before = partition.read_bytes()
    async with await SQLStore.open(url) as root, await SQLStore.open(with_partition(url, "second")) as second:
        await second.start_rollout("task", config=RolloutConfig(timeout_seconds=60))
        assert sorted(await root.core.dialect.watched_partitions()) == ["default", "second"]

        async def open_partition(name: str) -> Store:
            return await SQLStore.open(name, create=False)

        partitions = Partitions(root, url, open_partition)
        scheduler = Scheduler(partitions, url, Schedule(sample_seconds=0.2, verify_at=None))
        running = asyncio.create_task(scheduler.run())
        async with asyncio.timeout(200):
            while (await second.core.look(operation_runs.all_runs)).get("verify_sample") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])
        await scheduler.close()
        await partitions.close()
    assert partition.read_bytes() == before


async def test_operation_on_a_sealed_file_is_refused(url: str, tmp_path: Path) -> None:
    file = tmp_path / "monday.backup"
    await backup_store(url, file)
    backup_url = f"sqlite:///{file}"
    async with await SQLStore.open(backup_url, read_only=True) as backup:
        partitions = Partitions(backup, backup_url, partial(SQLStore.open, create=False, read_only=True))
        scheduler = Scheduler(partitions, backup_url, Schedule(sample_seconds=0.2, verify_at=None))
        with pytest.raises(Conflict, match="the partition default is only read"):
            await scheduler.start(backup, "default", "verify")
        await scheduler.close()
        await partitions.close()


async def test_keys_of_an_older_file_are_read_before_it_is_upgraded(url: str) -> None:
    keys = await Keys.open(url, create=True)
    await keys.create("reader")
    await keys.close()
    assert "FAILED" not in await asyncio.to_thread(run_alembic, INI, url, "downgrade", "-1")
    assert await serve._has_keys(url)


async def test_a_server_of_a_partition_beside_a_backup_uses_its_keys(url: str, tmp_path: Path) -> None:
    keys = await Keys.open(url, create=True)
    _, key = await keys.create("reader")
    await keys.close()
    file = tmp_path / "monday.db"
    await backup_store(url, file)
    before = file.read_bytes()
    partition = with_partition(f"sqlite:///{file}", "second")
    async with await SQLStore.open(partition):
        ring = await KeyRing.open(partition)
        assert ring.find(key).role == "reader"
        await ring.close()
    assert file.read_bytes() == before
