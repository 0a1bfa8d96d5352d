"""Fixtures of the tests of exports: one log, on SQLite, on Postgres and behind a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from store import open_store
from store.client import HTTPStore
from store.interface.store import Store
from store.operations import copy_store
from tests.client.served import Served
from tests.conftest import POSTGRES, SQLITE
from tests.exports.agents import fill


@pytest.fixture(scope="session")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a file that tests only read."""
    url = f"sqlite:///{tmp_path_factory.mktemp('exports') / 'agents.db'}"
    asyncio.run(fill(url))
    return url


@pytest.fixture(scope="session")
def postgres_copy(sqlite_url: str, postgres_server: str) -> str:
    """The URL of a partition with the same log."""
    url = f"{postgres_server}?partition=e{uuid4().hex[:12]}"
    asyncio.run(copy_store(sqlite_url, url))
    return url


@pytest.fixture(params=[SQLITE, POSTGRES])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of the store, on each database in turn."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_copy")


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[Store]:
    """The store on SQLite."""
    async with await open_store(sqlite_url, read_only=True) as store:
        yield store


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """A server."""
    with Served() as served:
        yield served


@pytest.fixture(params=[SQLITE, POSTGRES, pytest.param("http", id="http")])
def place(request: pytest.FixtureRequest) -> tuple[str, Served | None]:
    """The URL of the store on each database in turn; and on SQLite with the server that serves it."""
    name = "postgres_copy" if request.param == "postgres" else "sqlite_url"
    server = request.getfixturevalue("server") if request.param == "http" else None
    return request.getfixturevalue(name), server


@pytest.fixture
async def any_store(place: tuple[str, Served | None]) -> AsyncIterator[Store]:
    """The store on each database, and behind a server."""
    url, server = place
    async with await open_store(url, read_only=True) as store:
        if server is None:
            yield store
            return
        with server.serving(store) as address:
            async with HTTPStore(address, read_only=True) as client:
                yield client


def content(directory: Path) -> dict[str, bytes]:
    """Return the files of an export by their paths."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
