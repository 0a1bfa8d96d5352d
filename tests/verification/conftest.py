"""Fixtures of the tests of verification."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store.testing import ManualClock
from tests.journal.copies import opened_copy
from tests.journal.given import fill
from tests.verification.filled import Filled


@pytest.fixture
async def filled(durable_url: str, clock: ManualClock) -> AsyncIterator[Filled]:
    async with opened_copy(fill, durable_url, clock) as (url, store, first):
        yield Filled(url, store, first, clock)
