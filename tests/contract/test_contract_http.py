"""The contract on a store behind a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from store import open_store
from store.client import HTTPStore
from store.testing import ManualClock
from store.testing.contract import StoreContract
from tests.client.served import Served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.mark.http
class TestHTTPStore(StoreContract):
    """The contract, over HTTP."""

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'rollbook.db'}"

    @pytest.fixture
    async def store(self, server: Served, store_url: str, clock: ManualClock) -> AsyncIterator[HTTPStore]:
        async with await open_store(store_url, clock=clock, scan_debounce_seconds=0) as behind:
            with server.serving(behind) as url:
                async with HTTPStore(url) as store:
                    yield store
