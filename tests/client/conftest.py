"""Fixtures: one server for all tests, with a new store for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from store import open_store
from store.client import HTTPStore
from store.interface.store import Store
from tests.client.served import Served


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """The server of these tests."""
    with Served() as served:
        yield served


@pytest.fixture
async def behind() -> AsyncIterator[Store]:
    """The store behind the server."""
    async with await open_store("memory://", scan_debounce_seconds=0) as store:
        yield store


@pytest.fixture
def url(server: Served, behind: Store) -> Iterator[str]:
    """Where the server serves it."""
    with server.serving(behind) as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[HTTPStore]:
    """A client of it."""
    async with HTTPStore(url) as store:
        yield store
