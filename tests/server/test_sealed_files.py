"""A server and the dashboard only read backups and archives, which could otherwise not be restored."""

# ruff: noqa: ASYNC240 (the files are small, and nothing else runs in the loop)

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import aiohttp
import pytest

from store import open_store
from store.models import RolloutConfig
from store.operations import backup_store, restore_store
from store.sql.api_keys import Keys
from tests.server.test_serving import finish, serving

pytestmark = pytest.mark.slow


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
    _, key = await keys.create("reader")
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
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert file.read_bytes() == before
    await restore_store(file, f"sqlite:///{tmp_path / 'restored.db'}")


async def test_a_backup_among_the_partitions_is_only_read(url: str, tmp_path: Path) -> None:
    file = tmp_path / "monday.backup"
    await backup_store(url, file)
    partition = Path(shutil.copy(file, tmp_path / "run.monday.db"))
    before = partition.read_bytes()
    with serving("serve", "--db", url, "--port", "0") as (process, server):
        async with aiohttp.ClientSession() as session:
            place = f"{server}/p/monday/v1/agl"
            async with session.get(f"{place}/rollouts") as answer:
                assert answer.status == 200
                (rollout,) = (await answer.json())["items"]
                # The time limit of the attempt has passed, and the server does not end it.
                assert rollout["status"] == "preparing"
            async with session.post(f"{place}/queues/rollouts/enqueue", json={"rollouts": [{"input": 1}]}) as answer:
                assert answer.status == 400
                assert (await answer.json())["error_type"] == "ReadOnly"
            async with session.get(f"{server}/metrics") as answer:
                assert 'rollbook_partition_up{partition="monday"} 1' in await answer.text()
        process.send_signal(signal.SIGTERM)
        code, logged = finish(process)
    assert code == 0
    assert not [each for each in logged if each["level"] in {"warning", "error"}]
    assert partition.read_bytes() == before
