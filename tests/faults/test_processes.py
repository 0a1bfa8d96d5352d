"""A store in the life of its process: forked, pickled, left open at the end."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store import open_store
from store.models import Rollout
from tests import databases

pytestmark = pytest.mark.slow

# A process that hangs does so for ever; a busy machine takes its time. No speed is claimed here.
PROMPT_SECONDS = 25.0

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

UNPICKLE = """
import asyncio, pickle, sys

async def main():
    store = pickle.loads(sys.stdin.buffer.read())
    await store.enqueue_rollout("from the other process")
    print(*sorted(rollout.input for rollout in (await store.query_rollouts()).items), sep="; ")
    await store.close()

asyncio.run(main())
"""

LEAVE = """
import asyncio, sys, time
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
try:
    if sys.argv[2] == "sync":
        from store.interface.store import SyncStore
        store = SyncStore(asyncio.run(main(sys.argv[1], sys.argv[2])))
        store.enqueue_rollout("sync")
        kept.append(store)
    else:
        kept.append(asyncio.run(main(sys.argv[1], sys.argv[2])))
finally:
    print(time.monotonic(), flush=True)
"""

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


def run(script: str, *args: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", "-c", script, *args]
    return subprocess.run(command, check=False, capture_output=True, input=given, timeout=60)


def seconds_to_leave(file: Path) -> float:
    """Run a test file in a session of its own, and return how long it went on after its last word."""
    command = [sys.executable, "-u", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    session = subprocess.Popen([*command, str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert session.stdout is not None
    with session, session.stdout as said:
        for line in said:
            if " in " in line and " passed" in line:
                break
        reported = time.monotonic()
        assert session.wait(timeout=60) == 0
    return time.monotonic() - reported


async def inputs_of(url: str) -> list[object]:
    async with await open_store(url) as store:
        report = await store.log.verify()
        assert report.ok, report.differences
        rollouts: list[Rollout] = list((await store.query_rollouts()).items)
        return [rollout.input for rollout in rollouts]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_a_fork_is_told_and_its_parent_goes_on(durable_url: str) -> None:
    done = run(FORK, durable_url)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == ["child 0", "rollouts 21 sound True"]
    assert await inputs_of(durable_url) == ["before", *range(20)]


async def test_a_pickled_store_opens_its_url_in_another_process(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await store.enqueue_rollout("from the first")
        done = run(UNPICKLE, given=pickle.dumps(store))
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode().strip() == "from the first; from the other process"
        await store.enqueue_rollout("after")
    assert len(await inputs_of(durable_url)) == 3


async def test_a_private_store_refuses_to_be_pickled() -> None:
    async with await open_store("memory://") as store:
        with pytest.raises(TypeError, match="no other process can reach it"):
            pickle.dumps(store)


@pytest.mark.parametrize("how,code", [("writing", 0), ("waiting", 3), ("sync", 0)])
async def test_a_process_that_leaves_a_store_open_ends_at_once_and_loses_nothing(
    durable_url: str, how: str, code: int
) -> None:
    await databases.prepare(durable_url)
    done = run(LEAVE, durable_url, how)
    ended = time.monotonic()
    assert (done.returncode, done.stderr.decode()) == (code, "")
    acknowledged, left = done.stdout.decode().split()
    assert acknowledged == "acknowledged"
    assert ended - float(left) < PROMPT_SECONDS
    assert set(range(50)) <= {given for given in await inputs_of(durable_url) if isinstance(given, int)}


async def test_a_test_session_that_leaves_stores_open_ends_at_once(durable_url: str, tmp_path: Path) -> None:
    await databases.prepare(durable_url)
    file = tmp_path / "test_leaving.py"
    file.write_text(TEST_FILE.format(url=durable_url))
    assert await asyncio.to_thread(seconds_to_leave, file) < PROMPT_SECONDS
    assert await inputs_of(durable_url) == ["kept"]
