"""Fixtures: stores and their dashboards, over plain HTTP (`api`) or in a browser (`page`, `site`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from store import open_store
from store.interface.store import Store
from store.server.partitions import Partitions
from store.sql.store import SQLStore
from tests.client.served import Served
from tests.conftest import SQLITE
from tests.dashboard.browsing import Site, Watch, clear, running, watched
from tests.server.api import Api, speaking_to


@pytest.fixture(params=[SQLITE])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An SQLite file, or a partition of Postgres in tests marked `ON_BOTH` (`tests.dashboard.page_helpers`)."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rollbook.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    """A client of a server of an empty store; a page is `await api.get("//ui/rollouts.json")`."""
    async with speaking_to(Partitions(store)) as api:
        yield api


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """One server for all tests with a browser, in a thread of its own."""
    with Served() as served:
        yield served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The browser of this test process."""
    async with running() as browser:
        yield browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tab(browser: Browser) -> AsyncIterator[tuple[Page, Watch]]:
    """One tab for all tests. In a new one, the browser would load and compile all scripts again."""
    async with watched(browser) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def page(tab: tuple[Page, Watch], site: Site) -> AsyncIterator[Page]:
    """An empty tab; the test fails if a request left the origin or the console shows an error.

    Its module says `pytestmark = BROWSER` (`tests.dashboard.browsing`).
    """
    page, watch = tab
    await clear(page, watch)
    yield page
    try:
        watch.check()
    finally:
        # The page is left before its site is gone.
        await clear(page, watch)


@pytest.fixture
def site_url(tmp_path: Path) -> str:
    """The database behind a browser. One is enough: what each database answers is tested without a browser."""
    return f"sqlite:///{tmp_path / 'site.db'}"


@pytest_asyncio.fixture(loop_scope="session")
async def site(server: Served, site_url: str) -> AsyncIterator[Site]:
    """An empty store and its dashboard."""
    async with await open_store(site_url, scan_debounce_seconds=0) as store:
        assert isinstance(store, SQLStore)
        with server.serving(store) as url:
            yield Site(url, store)
