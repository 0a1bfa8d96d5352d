"""A store, served on a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.interface.store import Store
from store.server.metrics import gauges
from store.server.partitions import Partitions
from tests.server.api import Api, speaking_to


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """A file: most of what a server adds to a store has nothing to do with the database.

    A module whose claims depend on the database overrides this by `durable_url`.
    """
    return f"sqlite:///{tmp_path / 'rollbook.db'}"


@pytest.fixture
def patient_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scrape measure all partitions, however busy the machine is."""
    monkeypatch.setattr(gauges, "_SCRAPE_SECONDS", 600.0)


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    """A client of a server of an empty store."""
    async with speaking_to(Partitions(store)) as api:
        yield api
