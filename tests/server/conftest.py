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
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a file: most of what a server adds to a store has nothing to do with the database.

    A test whose claim depends on the database has the mark `ON_BOTH_DATABASES`. A module may also override this by
    `durable_url`.
    """
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path / 'rollbook.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def patient_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scrape measure all partitions, however busy the machine is."""
    monkeypatch.setattr(gauges, "_SCRAPE_SECONDS", 600.0)


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    """A client of a server of an empty store."""
    async with speaking_to(Partitions(store)) as api:
        yield api
