"""A store on each database, served on a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store.interface.store import Store
from store.server.partitions import Partitions
from tests.server.api import Api, speaking_to


@pytest.fixture
def store_url(durable_url: str) -> str:
    """The databases that a server is meant for."""
    return durable_url


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    """A client of a server of an empty store."""
    async with speaking_to(Partitions(store)) as api:
        yield api
