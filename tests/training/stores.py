"""Fixtures of the training loop and of its proxy: stores in this process and behind a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from store import HTTPStore, open_store
from store.interface.store import Store
from store.testing import ManualClock
from tests.client.served import Served
from tests.conftest import POSTGRES, SQLITE

HTTP = pytest.param("http", id="http")
HTTP_IN_TORTURE = pytest.param("http", id="http", marks=pytest.mark.torture_only)
SQLITE_IN_TORTURE = pytest.param("sqlite", id="sqlite", marks=pytest.mark.torture_only)
POSTGRES_IN_TORTURE = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])


@pytest.fixture(scope="session")
def training_server() -> Iterator[Served]:
    """The server of these tests."""
    with Served() as served:
        yield served


@pytest.fixture
async def memory() -> AsyncIterator[Store]:
    """A store in memory, for what no database changes."""
    async with await open_store("memory://", scan_debounce_seconds=0.05) as store:
        yield store


class Place(NamedTuple):
    """Where a store is kept, and the server before it, if there is one."""

    url: str
    server: Served | None = None


ON_EACH_STORE = pytest.mark.parametrize("place", [SQLITE, POSTGRES, HTTP], indirect=True)
"""For tests of claims, waits and events. The contract tests the calls of the others on Postgres and over HTTP."""


@pytest.fixture(params=[SQLITE, POSTGRES_IN_TORTURE, HTTP_IN_TORTURE])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A file; on Postgres and over HTTP, a few tests run outside of torture (`ON_EACH_STORE`)."""
    return place_of(request, tmp_path)


def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return the place of an empty store for the parameter of a fixture."""
    if request.param == "postgres":
        return Place(request.getfixturevalue("postgres_url"))
    url = f"sqlite:///{tmp_path}/rollbook.db"
    return Place(url, request.getfixturevalue("training_server") if request.param == "http" else None)


@pytest.fixture
async def live(place: Place) -> AsyncIterator[Store]:
    """A store on the database of `place`, which may be behind a server."""
    async with _opened(place, scan_debounce_seconds=0.05) as store:
        yield store


@pytest.fixture
async def timed(place: Place, clock: ManualClock) -> AsyncIterator[Store]:
    """As `live`, with the clock of the test."""
    async with _opened(place, scan_debounce_seconds=0, clock=clock) as store:
        yield store


@asynccontextmanager
async def _opened(place: Place, **options: Any) -> AsyncGenerator[Store]:
    async with await open_store(place.url, **options) as store:
        if place.server is None:
            yield store
            return
        with place.server.serving(store) as url:
            async with HTTPStore(url) as over_http:
                yield over_http
