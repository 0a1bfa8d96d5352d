"""Fixtures of the tests of verification."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store import open_store
from store.testing import ManualClock
from tests.journal.given import fill
from tests.verification.filled import Filled


@pytest.fixture
async def filled(durable_url: str, clock: ManualClock) -> AsyncIterator[Filled]:
    async with await open_store(durable_url, clock=clock, scan_debounce_seconds=0) as store:
        yield Filled(durable_url, store, await fill(store, clock), clock)
