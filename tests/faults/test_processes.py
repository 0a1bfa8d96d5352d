"""A store in a process that forks, pickles it, or exits without closing it."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from store import open_store
from store.models import Rollout
from tests import databases
from tests.conftest import SQLITE
from tests.faults import processes
from tests.faults.work import use_pickled

pytestmark = pytest.mark.slow

# A process that does not end by itself waits for 600 s or for ever. A busy machine takes its time.
HANG_SECONDS = 240

FORK = """
import asyncio, os, sys
from store import open_store
from store.errors import WrongProcess

async def begin(url):
    store = await open_store(url)
    await store.enqueue_rollout("before")
    await store.query_rollouts()
    return store

async def use(store):
    for call in (store.enqueue_rollout("child"), store.query_rollouts(), store.dequeue_rollout("w", wait_seconds=1),
                 store.wait_for_rollouts(["ro-1"]), store.log.verify(), store.close()):
        try:
            await call
        except WrongProcess as error:
            assert "call open_store(url) again in the child" in str(error)
        else:
            raise AssertionError("a fork used the store of its parent")

async def go_on(store):
    for number in range(20):
        await store.enqueue_rollout(number)
    print("rollouts", len((await store.query_rollouts()).items), "sound", (await store.log.verify()).ok)
    await store.close()

store = asyncio.run(begin(sys.argv[1]))
child = os.fork()
if child:
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    asyncio.run(go_on(store))
else:
    asyncio.run(use(store))
"""

LEAVE = """
import asyncio, sys
from store import open_store

async def main(url, how):
    store = await open_store(url)
    await asyncio.gather(*(store.enqueue_rollout(number) for number in range(50)))
    await store.query_rollouts()
    print("acknowledged", flush=True)
    if how == "writing":
        store.calls = [asyncio.create_task(store.enqueue_rollout(number)) for number in range(50, 100)]
        await asyncio.sleep(0.001)
    elif how == "waiting":
        await store.dequeue_many_rollouts(50)
        store.claim = asyncio.create_task(store.dequeue_rollout("w", wait_seconds=600))
        store.end = asyncio.create_task(store.wait_for_rollouts(["ro-1"]))
        await asyncio.sleep(0.1)
        raise SystemExit(3)
    return store

kept = []
if sys.argv[2] == "sync":
    from store.interface.store import SyncStore
    store = SyncStore(asyncio.run(main(sys.argv[1], sys.argv[2])))
    store.enqueue_rollout("sync")
    kept.append(store)
else:
    kept.append(asyncio.run(main(sys.argv[1], sys.argv[2])))
"""

LEAVING = (("writing", 0), ("waiting", 3), ("sync", 0))
"""How a process leaves its store, and its exit code."""

TEST_FILE = """
from store import open_store

stores = []

async def test_left_open():
    store = await open_store({url!r})
    stores.append(store)
    await store.enqueue_rollout("kept")
    assert (await store.query_rollouts()).items
    await store.dequeue_rollout("w", wait_seconds=0.05)
    await store.dequeue_rollout("w", wait_seconds=0.05)
"""


def run(script: str, *args: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", "-c", script, *args]
    return subprocess.run(command, check=False, capture_output=True, timeout=HANG_SECONDS)


def run_session(file: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a test file in a session of its own, with no more plugins than it needs."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-o", "asyncio_mode=auto", str(file)],
        check=False,
        capture_output=True,
        timeout=HANG_SECONDS,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


async def inputs_of(url: str) -> list[object]:
    async with await open_store(url) as store:
        report = await store.log.verify()
        assert report.ok, report.differences
        rollouts: list[Rollout] = list((await store.query_rollouts()).items)
        return [rollout.input for rollout in rollouts]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_fork_raises_an_error_and_its_parent_continues(durable_url: str) -> None:
    done = run(FORK, durable_url)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == ["child 0", "rollouts 21 sound True"]
    assert await inputs_of(durable_url) == ["before", *range(20)]


async def test_a_pickled_store_opens_its_url_in_another_process(durable_url: str, tmp_path: Path) -> None:
    async with await open_store(durable_url) as store:
        await store.enqueue_rollout("from the first")
        with processes.running(use_pickled, (pickle.dumps(store), tmp_path / "inputs")) as running:
            assert await asyncio.to_thread(processes.leave, running, HANG_SECONDS) == [0]
        assert orjson.loads((tmp_path / "inputs").read_bytes()) == ["from the first", "from the other process"]
        await store.enqueue_rollout("after")
    assert len(await inputs_of(durable_url)) == 3


async def test_a_private_store_refuses_to_be_pickled() -> None:
    async with await open_store("memory://") as store:
        with pytest.raises(TypeError, match="no other process can reach it"):
            pickle.dumps(store)


@pytest.mark.parametrize(
    "durable_url,how,code",
    [
        *(pytest.param("sqlite", how, code, id=f"sqlite-{how}") for how, code in LEAVING),
        *(
            pytest.param("postgres", how, code, id=f"postgres-{how}", marks=marks)
            for (how, code), marks in zip(LEAVING, ((), (), pytest.mark.torture_only), strict=True)
        ),
    ],
    indirect=["durable_url"],
)
async def test_a_process_that_leaves_a_store_open_ends_at_once_and_loses_nothing(
    durable_url: str, how: str, code: int
) -> None:
    await databases.prepare(durable_url)
    done = await asyncio.to_thread(run, LEAVE, durable_url, how)
    assert (done.returncode, done.stderr.decode(), done.stdout.decode()) == (code, "", "acknowledged\n")
    assert set(range(50)) <= {input_ for input_ in await inputs_of(durable_url) if isinstance(input_, int)}


@pytest.mark.parametrize(
    "durable_url",
    [SQLITE, pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])],
    indirect=True,
)
async def test_a_test_session_that_leaves_stores_open_ends_at_once(durable_url: str, tmp_path: Path) -> None:
    await databases.prepare(durable_url)
    file = tmp_path / "test_leaving.py"
    file.write_text(TEST_FILE.format(url=durable_url))
    done = await asyncio.to_thread(run_session, file)
    assert (done.returncode, b"1 passed" in done.stdout) == (0, True), done.stdout.decode()
    assert await inputs_of(durable_url) == ["kept"]
