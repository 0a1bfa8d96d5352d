"""A store with something of everything, for tests of what proves it."""

from __future__ import annotations

from typing import Any

from store.db.url import parse
from store.interface.store import Store
from store.models import AttemptedRollout, Difference, VerifyReport
from store.testing import ManualClock
from tests.journal.given import ask


class Filled:
    """A store with something of everything, and what verify says of it."""

    def __init__(self, url: str, store: Store, first: AttemptedRollout, clock: ManualClock) -> None:
        self.url = url
        self.store = store
        self.first = first
        self.clock = clock

    async def differences(self, seal: Any = None) -> list[Difference]:
        return (await self.report(seal)).differences

    async def report(self, seal: Any = None) -> VerifyReport:
        report = await self.store.log.verify(seal)
        assert report.ok == (report.difference_count == 0) == (not report.differences)
        return report

    async def only(self, check: str) -> Difference:
        """Return the one difference there is."""
        (found,) = await self.differences()
        assert found.check == check, found
        return found


async def number_of(filled: Filled, type_: str) -> int:
    """Return the position of the first event of a type."""
    (row,) = await ask(filled.url, f"SELECT min(position) FROM events WHERE type = '{type_}'")
    return int(row[0])


def database_of(url: str) -> str:
    """Return which kind of database a URL names."""
    return parse(url).scheme
