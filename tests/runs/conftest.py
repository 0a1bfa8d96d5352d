"""Fixtures: stores of runs on each backend, in process and behind a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store import open_store
from store.client import HTTPStore
from store.interface.store import Store
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests.client.served import Served
from tests.conftest import POSTGRES, SQLITE
from tests.torture import IS_TORTURE

MEMORY = pytest.param("memory", id="memory", marks=pytest.mark.repeat)
MEMORY_HTTP = pytest.param("memory http", id="memory-http", marks=pytest.mark.http)
SQLITE_HTTP = pytest.param("sqlite http", id="sqlite-http", marks=pytest.mark.http)
POSTGRES_HTTP = pytest.param("postgres http", id="postgres-http", marks=[pytest.mark.http, pytest.mark.postgres])


@dataclass(frozen=True, slots=True)
class Way:
    """How a test reaches its store."""

    url: str
    server: Served | None
    """None where the store is opened in the test's own process alone."""


@pytest.fixture(scope="session")
def runs_server() -> Iterator[Served]:
    """The server of all these tests."""
    with Served() as served:
        yield served


# A store in memory is one on SQLite, and a server calls the same store as a test does. The others are for long runs.
_WAYS = [MEMORY, SQLITE, POSTGRES, SQLITE_HTTP, POSTGRES_HTTP] if IS_TORTURE else [SQLITE, POSTGRES_HTTP]

ON_SQLITE = pytest.mark.parametrize("way", _WAYS if IS_TORTURE else [SQLITE], indirect=True)
"""For modules about graphs and plans, which are made of events in Python; the other modules read them from Postgres."""


@pytest.fixture(params=_WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    """Each way to a store in turn; a module that needs fewer names them, `parametrize("way", …, indirect=True)`."""
    kind, _, distance = request.param.partition(" ")
    server: Served | None = request.getfixturevalue("runs_server") if distance else None
    match kind:
        case "memory":
            return Way("memory://", server)
        case "sqlite":
            return Way(f"sqlite:///{tmp_path / 'rollbook.db'}", server)
        case _:
            return Way(request.getfixturevalue("postgres_url"), server)


@pytest.fixture
def store_url(way: Way) -> str:
    """The URL of the database, which does not exist yet."""
    return way.url


@pytest.fixture
async def behind(store_url: str, clock: ManualClock) -> AsyncIterator[SQLStore]:
    """The store on the database."""
    async with await open_store(store_url, clock=clock, scan_debounce_seconds=0) as opened:
        assert isinstance(opened, SQLStore)
        yield opened


@pytest.fixture
async def store(behind: SQLStore, way: Way) -> AsyncIterator[Store]:
    """That store, or a client of a server of it."""
    if way.server is None:
        yield behind
        return
    with way.server.serving(behind) as url:
        async with HTTPStore(url) as distant:
            yield distant
