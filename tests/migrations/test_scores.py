"""A store from before there were scores is upgraded to what a new one would be."""

from __future__ import annotations

from typing import Any

import pytest

from store import open_store
from store.db.schema import migrate
from store.db.url import parse
from store.models import NewScore
from store.testing import ManualClock
from tests import databases
from tests.alembic_check import migrate_from_scratch

_BEFORE = "0015"


async def test_upgraded_store_records_scores(isolated_url: str, clock: ManualClock) -> None:
    await migrate_from_scratch(isolated_url, _BEFORE)
    await migrate(isolated_url)
    async with await open_store(isolated_url, clock=clock, scan_debounce_seconds=0) as store:
        rollout = await store.start_rollout({"n": 1})
        ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        await store.annotations.record_scores([NewScore(**ids, name="a", version="v1", value=1)])
        report = await store.log.verify()
        assert report.differences == []
        assert report.rows["scores"] == 1


@pytest.mark.new_partition
async def test_app_role_from_before_may_use_the_new_table(postgres_url: str) -> None:
    await migrate_from_scratch(postgres_url, _BEFORE)
    owner, role = await databases.connect(postgres_url), f"app_{parse(postgres_url).partition}"
    await owner.execute(f"CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency TO {role}")
    try:
        await migrate(postgres_url)
        rights = await owner.rows(
            f"SELECT has_table_privilege('{role}', 'scores', 'INSERT'),"
            f" has_table_privilege('{role}', 'scores', 'DELETE')"
        )
        assert rights == [(True, True)]
    finally:
        await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await owner.close()
