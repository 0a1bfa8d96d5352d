"""Forks of a process that uses a store.

Each test runs a script in its own process, because a fork of the test process would copy the threads of other
tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store import open_store
from tests.torture import Rounds

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]

# Threads of the parent read and write while it forks. Each child uses the same store object.
DURING_CALLS = """
import asyncio, os, sys, threading
from store import open_store
from store.integrations.by_url import StoreByURL
from store.interface.store import Store

store, forks, done = StoreByURL(sys.argv[1]), int(sys.argv[2]), threading.Event()
errors = []

async def call_until_done(method, *arguments):
    try:
        while not done.is_set():
            await store.call(method, *arguments)
    except BaseException as error:
        errors.append(error)

async def open_files():
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [os.readlink(link) for link in links if os.path.islink(link) and ".db" in os.readlink(link)]

async def use_in_child(number):
    inherited = await open_files() if os.path.exists("/proc/self/fd") and sys.argv[1].startswith("sqlite") else []
    assert not inherited, inherited
    await store.call(Store.enqueue_rollout, f"child {number}")
    await store.call(Store.query_rollouts)
    await store.close()

async def fill():
    for number in range(40):
        await store.call(Store.enqueue_rollout, f"before {number}")

asyncio.run(fill())
calls = [(Store.query_rollouts,), (Store.query_rollouts,), (Store.statistics,), (Store.enqueue_rollout, "beside")]
threads = [threading.Thread(target=asyncio.run, args=(call_until_done(*call),)) for call in calls]
for thread in threads:
    thread.start()
codes = []
for number in range(forks):
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(use_in_child(number))
            code = 0
        finally:
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
for thread in threads:
    thread.join()
assert not errors, errors
print(codes.count(0))
"""

# A fork begins while another thread opens the store.
DURING_OPENING = """
import asyncio, os, sys, threading
from store.integrations import by_url
from store.interface.store import Store

store, opening, forking = by_url.StoreByURL(sys.argv[1]), threading.Event(), threading.Event()
open_store = by_url.open_store

async def open_during_fork(*arguments, **options):
    opening.set()
    forking.wait()
    return await open_store(*arguments, **options)

async def enqueue(value):
    await store.call(Store.enqueue_rollout, value)
    await store.close()

by_url.open_store = open_during_fork
# The function that is registered last is called first.
os.register_at_fork(before=forking.set)
thread = threading.Thread(target=asyncio.run, args=(enqueue("parent"),))
thread.start()
opening.wait()
child = os.fork()
if not child:
    code = 1
    try:
        asyncio.run(enqueue("child"))
        code = 0
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
"""

OPENED_AGAIN = """
import asyncio, os, sys
from store import open_store
from store.errors import WrongProcess

async def main(url, closes):
    store = await open_store(url)
    await store.enqueue_rollout("parent")
    if closes:
        await store.close()
    return store

async def use_in_child(url):
    try:
        async with await open_store(url) as store:
            await store.enqueue_rollout("child")
    except WrongProcess as error:
        assert "close the store before the fork" in str(error)
        return 7
    return 0

store = asyncio.run(main(sys.argv[1], sys.argv[2] == "closed"))
child = os.fork()
if not child:
    code = 1
    try:
        code = asyncio.run(use_in_child(sys.argv[1]))
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
asyncio.run(store.close())
"""


def run(script: str, *args: str) -> str:
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


@pytest.mark.torture
async def test_forks_during_calls_damage_nothing_and_disturb_no_call(durable_url: str, rounds: Rounds) -> None:
    forks = rounds(200, few=3)
    assert run(DURING_CALLS, durable_url, str(forks)) == str(forks)
    async with await open_store(durable_url) as store:
        report = await store.log.verify()
        assert report.ok, report.differences
        inputs = {rollout.input for rollout in (await store.query_rollouts()).items}
        assert inputs >= {f"before {number}" for number in range(40)} | {f"child {number}" for number in range(forks)}


async def test_fork_waits_until_another_thread_has_opened_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    assert run(DURING_OPENING, url) == "0"
    async with await open_store(url) as store:
        assert {rollout.input for rollout in (await store.query_rollouts()).items} == {"parent", "child"}


@pytest.mark.parametrize("state", ["open", "closed"])
async def test_a_child_opens_the_store_of_its_parent_again(durable_url: str, state: str) -> None:
    is_refused = state == "open" and durable_url.startswith("sqlite")
    assert run(OPENED_AGAIN, durable_url, state) == ("7" if is_refused else "0")
    async with await open_store(durable_url) as store:
        inputs = [rollout.input for rollout in (await store.query_rollouts()).items]
    assert inputs == (["parent"] if is_refused else ["parent", "child"])
