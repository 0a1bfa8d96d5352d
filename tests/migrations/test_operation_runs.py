"""After the upgrade of an older store, the result of its last verification is known."""

from __future__ import annotations

from store.db.schema import migrate
from tests import databases
from tests.alembic_check import migrate_from_nothing


async def test_the_last_verification_is_kept(own_url: str) -> None:
    await migrate_from_nothing(own_url, "0011")
    database = await databases.connect(own_url)
    await database.execute("INSERT INTO verifications VALUES (1, 5000, 7, 2)")
    await migrate(own_url)
    columns = "operation, runner, attempted_at, runs, failures, error, started_at, ended_at, commit_id, differences"
    assert await database.rows(f"SELECT {columns} FROM operation_runs") == [
        ("verify", None, 5000, 1, 0, None, 5000, 5000, None, 2)
    ]
    await database.close()


async def test_a_store_that_was_never_verified_has_no_result(own_url: str) -> None:
    await migrate_from_nothing(own_url, "0011")
    await migrate(own_url)
    database = await databases.connect(own_url)
    assert await database.rows("SELECT * FROM operation_runs") == []
    await database.close()
