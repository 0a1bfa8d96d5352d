"""A store from before the reservation of span numbers continues its numbers."""

from __future__ import annotations

from pathlib import Path

from store import open_store
from store.db.schema import migrate
from store.testing import ManualClock
from store.testing.samples import make_span
from tests import databases
from tests.alembic_check import migrate_from_scratch
from tests.migrations.test_runs import copy_log

_BEFORE = "0006"


async def test_an_upgraded_store_goes_on_counting(isolated_url: str, clock: ManualClock, tmp_path: Path) -> None:
    filled_url = f"sqlite:///{tmp_path / 'filled.db'}"
    async with await open_store(filled_url, clock=clock, scan_debounce_seconds=0) as store:
        first = await store.start_rollout("task")
        await store.add_span(make_span(first.attempt, 3))
    await migrate_from_scratch(isolated_url, _BEFORE)
    source, target = await databases.connect(filled_url), await databases.connect(isolated_url)
    await copy_log(source, target, later={"span_counters": 1})
    # Two numbers were drawn without an event, as before the revision.
    await target.execute("UPDATE span_counters SET value = 5")
    if target.kind == "postgresql":
        ((last, commits),) = await target.rows("SELECT max(position), max(commit_id) FROM events")
        await target.execute(f"SELECT setval('event_seq', {last}), setval('commit_seq', {commits})")
    await source.close()
    await target.close()
    await migrate(isolated_url)
    async with await open_store(isolated_url, clock=clock, scan_debounce_seconds=0) as store:
        assert (await store.log.verify()).differences == []
        assert await store.get_next_span_sequence_id(first.rollout_id, "any") == 6
        assert (await store.log.history(first.rollout_id))[-1].data == {"first": 6, "until": 37}
        assert (await store.log.verify()).differences == []
