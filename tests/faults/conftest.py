"""A store with a writer that tests can pause and let fail."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store.sql.store import SQLStore
from tests.conftest import SQLITE
from tests.faults.sessions import Trouble, troubled_store

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For tests of code that is the same on both databases."""


@pytest.fixture
def trouble() -> Trouble:
    """What happens at each step of the writer; nothing, until a test says otherwise."""
    return Trouble()


@pytest.fixture
async def troubled(durable_url: str, trouble: Trouble) -> AsyncIterator[SQLStore]:
    """A store whose writer meets the trouble."""
    store = await troubled_store(durable_url, trouble)
    yield store
    trouble.holds = False
    await store.close()
