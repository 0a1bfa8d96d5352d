"""Fixtures of the tests of verification."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.testing import ManualClock
from tests.conftest import POSTGRES, SQLITE
from tests.journal.copies import opened_copy
from tests.journal.database_helpers import fill
from tests.verification.filled import Filled


@pytest.fixture(params=[SQLITE, POSTGRES])
def copy_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL for `opened_copy`, which makes a database of its own on Postgres."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rollbook.db'}"
    return request.getfixturevalue("postgres_server")


@pytest.fixture
async def filled(copy_url: str, clock: ManualClock) -> AsyncIterator[Filled]:
    """An open store with something of everything."""
    async with opened_copy(fill, copy_url, clock) as (url, store, first):
        yield Filled(url, store, first, clock)
