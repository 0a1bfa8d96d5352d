"""Results of scanners are compared with the log, repaired from it, and copied with their scanners."""

from __future__ import annotations

from pathlib import Path

from store import open_store
from store.models.queries import RolloutQuery
from store.models.scanners import NewScan, NewScanner
from store.operations.part_copy import copy_rollouts
from tests.journal.database_helpers import contents, run_sql


async def test_results_are_verified_repaired_and_copied(tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    async with await open_store(url, scan_debounce_seconds=0) as store:
        rollout = await store.start_rollout({"n": 1})
        await store.scanners.add(NewScanner(name="loops", version="v1", kind="regex", definition={"pattern": "a"}))
        scan = NewScan(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id, is_match=True)
        await store.scanners.record("loops", "v1", [scan])
        before = await contents(url, ["scans"])
        await run_sql(url, "UPDATE scans SET is_match = 0")
        assert {difference.check for difference in (await store.log.verify()).differences} == {"scans"}
        await store.log.rebuild()
        assert await contents(url, ["scans"]) == before
        scanners = await store.scanners.query()
    await copy_rollouts(url, target, RolloutQuery())
    async with await open_store(target) as copy:
        assert await copy.scanners.query() == scanners
        assert (await copy.log.verify()).differences == []
