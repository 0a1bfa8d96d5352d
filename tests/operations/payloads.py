"""Stores whose payload is removed, and the data that must not change by it."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from store import open_store
from store.db.url import parse
from store.interface.store import Store
from store.models import VerifyReport
from store.testing import ManualClock
from store.testing.samples import make_span
from tests import postgres
from tests.journal import database_helpers, sample_run
from tests.journal.database_helpers import ask

ON_SQLITE = pytest.mark.parametrize("durable_url", ["sqlite"], indirect=True)
"""Operations are the same Python code for all databases, and need a test on Postgres only where its SQL differs."""

SECRET = "the number of the account is 4711-0815"
"""Payload that occurs nowhere in `data`."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and the rollouts in it."""

    url: str
    clock: ManualClock
    task: str
    """A finished rollout with spans and rewards."""
    run: str
    """A finished run with events, checkpoints, artifacts and a fork."""
    active: str
    """A rollout that runs. One of its artifacts has the content of an artifact of `run`."""


_originals: list[tuple[Path, Place]] = []
"""The file that was filled first in this process. Other tests get copies of it."""


_servers: dict[str, Place] = {}
"""The store that was filled first on each server of Postgres. Other tests get copies of its database."""
_databases: list[str] = []
"""The URL of the last copy, which is dropped before the next one is made."""


async def fill(url: str, clock: ManualClock) -> Place:
    """Make a store with payload of every kind, and move the clock to an hour later.

    On Postgres, the store is in a database of its own on the same server.
    """
    path = parse(url).path
    if path is None:
        place = await asyncio.to_thread(_copy_database, await _on_server(url))
        clock.advance((place.clock() - clock()) / 1_000_000)
        return replace(place, clock=clock)
    if not _originals:
        original = Path(tempfile.mkdtemp(prefix="rollbook-tests-")) / "original.db"
        atexit.register(shutil.rmtree, original.parent)
        _originals.append((original, await _fill(f"sqlite:///{original}", ManualClock())))
    original, place = _originals[0]
    shutil.copy(original, path)
    clock.advance((place.clock() - clock()) / 1_000_000)
    return replace(place, url=url, clock=clock)


async def _on_server(url: str) -> Place:
    server = urlsplit(url).netloc
    if server not in _servers:
        database = await asyncio.to_thread(postgres.create_database, url)
        if postgres.EXTERNAL_URL:
            atexit.register(postgres.drop_database, database)
        _servers[server] = await _fill(postgres.with_partition(database), ManualClock())
    return _servers[server]


def _copy_database(place: Place) -> Place:
    while _databases:
        postgres.drop_database(_databases.pop())
    copy = postgres.copy_database(place.url)
    _databases.append(copy)
    if postgres.EXTERNAL_URL:
        atexit.register(postgres.drop_database, copy)
    return replace(place, url=f"{copy}?{urlsplit(place.url).query}")


async def _fill(url: str, clock: ManualClock) -> Place:
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as store:
        first = await database_helpers.fill(store, clock)
        run = await sample_run.run(store)
        active = await store.start_rollout({"text": SECRET}, metadata={"rollbook.group": "flow"})
        await store.runs.save_artifact(
            active.rollout_id, active.attempt.attempt_id, scope="RIG", name="report", content=sample_run.LONG, key="a"
        )
        await store.add_span(make_span(active.attempt, 1, attributes={"text": SECRET}))
        await store.annotations.annotate(first.rollout_id, "look again", add_labels=["good"])
        clock.advance(3600)
        return Place(url, clock, first.rollout_id, run.rollout_id, active.rollout_id)


async def opened(place: Place) -> Store:
    """Open the store of a place."""
    return await open_store(place.url, clock=place.clock, scan_debounce_seconds=0)


async def verified(url: str) -> VerifyReport:
    """Return the report of a verification that finds no difference, after a rebuild that repairs nothing."""
    async with await open_store(url) as store:
        rebuilt = await store.log.rebuild()
        report = await store.log.verify()
    assert report.differences == []
    assert sum(rebuilt.written.values()) == 0
    assert rebuilt.state_hash == report.state_hash
    return report


async def rows(url: str, statement: str) -> list[Any]:
    """Return the first column of a query."""
    return [row[0] for row in await ask(url, statement)]


async def payload_rows(url: str) -> dict[str, int]:
    """Return the numbers of rows of the tables with payload."""
    return {
        table: int((await rows(url, f"SELECT count(*) FROM {table}"))[0]) for table in ("bodies", "blobs", "dropped")
    }


async def bodies_of(url: str, rollout_id: str) -> int:
    """Return the number of bodies of a rollout."""
    query = f"SELECT count(*) FROM bodies b JOIN events e USING (position) WHERE e.stream = 'rollout/{rollout_id}'"
    return int((await rows(url, query))[0])
