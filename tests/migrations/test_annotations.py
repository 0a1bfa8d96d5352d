"""The upgrade of a store without annotations equals a new store."""

from __future__ import annotations

import pytest

from store import open_store
from store.db.schema import migrate
from store.db.url import parse
from store.testing import ManualClock
from tests import databases
from tests.alembic_check import migrate_from_scratch

_BEFORE = "0005"


async def test_an_upgraded_store_takes_annotations(isolated_url: str, clock: ManualClock) -> None:
    await migrate_from_scratch(isolated_url, _BEFORE)
    await migrate(isolated_url)
    async with await open_store(isolated_url, clock=clock, scan_debounce_seconds=0) as store:
        rollout = await store.enqueue_rollout({"n": 1})
        await store.annotations.annotate(rollout.rollout_id, "odd", add_labels=["new"])
        report = await store.log.verify()
        assert report.differences == []
        assert (report.rows["labels"], report.rows["notes"]) == (1, 1)


@pytest.mark.new_partition
async def test_an_app_role_from_before_may_use_the_new_tables(postgres_url: str) -> None:
    await migrate_from_scratch(postgres_url, _BEFORE)
    owner, role = await databases.connect(postgres_url), f"app_{parse(postgres_url).partition}"
    await owner.execute(f"CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency TO {role}")
    try:
        await migrate(postgres_url)
        for table in ("labels", "notes"):
            rights = await owner.rows(
                f"SELECT has_table_privilege('{role}', '{table}', 'INSERT'),"
                f" has_table_privilege('{role}', '{table}', 'DELETE')"
            )
            assert rights == [(True, True)]
    finally:
        await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await owner.close()
