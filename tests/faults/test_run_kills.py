"""SIGKILL while runs append events: each call is stored in full or not at all, and acknowledged calls are stored."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import orjson
import pytest

from store import open_store
from store.interface.store import Store
from store.models.runs import RunEvent
from tests import databases
from tests.faults import processes
from tests.faults.work import Ledger
from tests.torture import Rounds

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(1800)]

EVENTS_PER_CALL = 5
CALLERS = 4
UNTOUCHED_SECONDS = 0.2
"""A teller is killed at a random instant of so many seconds after its first answer."""

LONG = "Consider the balance sheet. " * 60


async def tell(url: str, path: Path, rollout_id: str, attempt_id: str) -> None:
    """Append run events for ever, several calls at a time, each under a key of its own; note each answer."""
    ledger = Ledger(path)
    store = await open_store(url)
    name = path.name
    await asyncio.gather(*(_tell(store, ledger, rollout_id, attempt_id, f"{name} {n}") for n in range(CALLERS)))


async def _tell(store: Store, ledger: Ledger, rollout_id: str, attempt_id: str, name: str) -> None:
    turn = 0
    while True:
        turn += 1
        key = f"{name} {turn}"
        versions = await store.runs.append_events(rollout_id, attempt_id, call(key), key=key)
        ledger.note(key, versions)


def call(key: str) -> list[RunEvent]:
    """Return the events of one call."""
    return [RunEvent(kind="result", node_id=key, scope=str(n), prompt=f"{LONG}{n}") for n in range(EVENTS_PER_CALL)]


async def test_killed_tellers_leave_whole_calls_and_lose_none_they_acknowledged(
    durable_url: str, rounds: Rounds, tmp_path: Path
) -> None:
    async with await open_store(durable_url) as store:
        run = await store.start_rollout({})
        where = (run.rollout_id, run.attempt.attempt_id)
        acknowledged: dict[str, list[int]] = {}
        kills = rounds(100, few=2)
        for number in range(kills):
            ledger = tmp_path / f"w{number}"
            with processes.running(tell, (durable_url, ledger, *where)):
                await asyncio.to_thread(answered, ledger)
                await asyncio.sleep(random.uniform(0, UNTOUCHED_SECONDS))
            acknowledged |= read(ledger)
            by_key = await versions_by_node(durable_url)
            assert {key: by_key.get(key) for key in acknowledged} == acknowledged
            assert {len(versions) for versions in by_key.values()} <= {EVENTS_PER_CALL}
            assert all(versions == list(range(versions[0], versions[-1] + 1)) for versions in by_key.values())
        report = await store.log.verify()
        assert report.differences == []
        key = max(acknowledged)
        assert await store.runs.append_events(*where, call(key), key=key) == acknowledged[key]
        print(f"\n{kills} kills: {len(acknowledged):,} calls acknowledged, {len(by_key):,} found")  # pyright: ignore[reportPossiblyUnboundVariable] (there is a round)


def answered(path: Path) -> None:
    """Wait for the first answer."""
    deadline = time.monotonic() + 60
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < deadline, "nothing is answered"
        time.sleep(0.005)


def read(path: Path) -> dict[str, list[int]]:
    """Return a ledger; a last line that was cut off by the kill was no answer yet."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return dict(orjson.loads(line) for line in lines)


async def versions_by_node(url: str) -> dict[str, list[int]]:
    """Return the versions of each call's events, by the node they are about."""
    database = await databases.connect(url)
    try:
        by_node: dict[str, list[int]] = {}
        for node, version in await database.rows("SELECT node_id, version FROM run_events ORDER BY version"):
            by_node.setdefault(node, []).append(version)
        return by_node
    finally:
        await database.close()
