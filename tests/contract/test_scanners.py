"""Stores with scanners keep their promises, on each backend and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from store import open_store
from store.client import HTTPStore
from store.testing import ManualClock
from store.testing.contract import ScannersContract
from tests.client.served import Served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with Served() as served:
        yield served


class TestStore(ScannersContract):
    """The contract, on each backend in turn."""


@pytest.mark.http
class TestHTTPStore(ScannersContract):
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
