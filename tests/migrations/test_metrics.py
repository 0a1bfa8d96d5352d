"""A store from before there were metrics is upgraded to what a new one would be."""

from __future__ import annotations

from store import open_store
from store.db.schema import migrate
from store.testing import ManualClock
from tests.alembic_check import migrate_from_scratch


async def test_upgraded_store_logs_metrics(isolated_url: str, clock: ManualClock) -> None:
    await migrate_from_scratch(isolated_url, "0016")
    await migrate(isolated_url)
    async with await open_store(isolated_url, clock=clock, scan_debounce_seconds=0) as store:
        await store.log_metrics(1, {"loss": 0.5})
        report = await store.log.verify()
        assert (report.differences, report.rows["metrics"]) == ([], 1)
