"""Fixtures of the training loop and of its proxy: stores in this process and behind a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from store import HTTPStore, open_store
from store.interface.store import Store
from tests.client.served import Served
from tests.conftest import POSTGRES, SQLITE

HTTP = pytest.param("http", id="http")
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


@pytest.fixture(params=[SQLITE, POSTGRES, HTTP])
async def live(request: pytest.FixtureRequest, tmp_path: object) -> AsyncIterator[Store]:
    """A store on each database, and one behind a server."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
    else:
        url = f"sqlite:///{tmp_path}/rollbook.db"
    async with await open_store(url, scan_debounce_seconds=0.05) as store:
        if request.param != "http":
            yield store
            return
        served: Served = request.getfixturevalue("training_server")
        with served.serving(store) as at:
            async with HTTPStore(at) as over_http:
                yield over_http
