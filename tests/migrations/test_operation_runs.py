"""After the upgrade of an older store, the result of its last verification is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.db.schema import migrate
from store.db.url import parse
from tests import databases, postgres
from tests.alembic_check import migrate_from_scratch
from tests.conftest import SQLITE


async def test_the_last_verification_is_kept(isolated_url: str) -> None:
    await migrate_from_scratch(isolated_url, "0011")
    database = await databases.connect(isolated_url)
    await database.execute("INSERT INTO verifications VALUES (1, 5000, 7, 2)")
    await migrate(isolated_url)
    columns = "operation, runner, attempted_at, runs, failures, error, started_at, ended_at, commit_id, differences"
    assert await database.rows(f"SELECT {columns} FROM operation_runs") == [
        ("verify", None, 5000, 1, 0, None, 5000, 5000, None, 2)
    ]
    await database.close()


@pytest.mark.parametrize(
    "isolated_url",
    [SQLITE, pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])],
    indirect=True,
)
async def test_a_store_that_was_never_verified_has_no_result(isolated_url: str) -> None:
    await migrate_from_scratch(isolated_url, "0011")
    await migrate(isolated_url)
    database = await databases.connect(isolated_url)
    assert await database.rows("SELECT * FROM operation_runs") == []
    await database.close()


async def test_roles_that_read_or_write_the_old_table_may_use_the_new_one(
    postgres_database: Callable[..., str],
) -> None:
    url = postgres.with_partition(postgres_database(), "default")
    await migrate_from_scratch(url, "0011")
    role = f"app_{parse(url).text.split('/')[-1][:8]}"
    reader, writer = f"{role}_reader", f"{role}_writer"
    postgres.execute(
        url,
        f"CREATE ROLE {reader}; CREATE ROLE {writer}; GRANT SELECT ON rollbook_default.verifications TO {reader};"
        f" GRANT SELECT, UPDATE ON rollbook_default.verifications TO {writer}",
    )
    try:
        await migrate(url)
        held = "SELECT has_table_privilege('{}', 'rollbook_default.operation_runs', '{}')"
        for user, privilege, expected in (
            (reader, "SELECT", True),
            (reader, "INSERT", False),
            (writer, "SELECT", True),
            (writer, "UPDATE", True),
        ):
            assert postgres.execute(url, held.format(user, privilege)) == ("t" if expected else "f"), (user, privilege)
    finally:
        postgres.execute(url, f"DROP OWNED BY {reader}, {writer}; DROP ROLE {reader}, {writer}")
