"""After the upgrade of an older store, its payload can be compressed with dictionaries."""

from __future__ import annotations

from collections.abc import Callable

from store.db.schema import migrate
from store.db.url import parse
from tests import postgres
from tests.alembic_check import migrate_from_scratch


async def test_users_of_bodies_have_the_same_access_to_dictionaries(postgres_database: Callable[..., str]) -> None:
    url = postgres.with_partition(postgres_database(), "default")
    await migrate_from_scratch(url, "0012")
    role = f"app_{parse(url).text.split('/')[-1][:8]}"
    reader, writer = f"{role}_reader", f"{role}_writer"
    postgres.execute(
        url,
        f"CREATE ROLE {reader}; CREATE ROLE {writer}; GRANT SELECT ON rollbook_default.bodies TO {reader};"
        f" GRANT SELECT, INSERT ON rollbook_default.bodies TO {writer}",
    )
    try:
        await migrate(url)
        held = "SELECT has_table_privilege('{}', 'rollbook_default.dictionaries', '{}')"
        for user, privilege, expected in (
            (reader, "SELECT", True),
            (reader, "INSERT", False),
            (writer, "SELECT", True),
            (writer, "INSERT", True),
            (writer, "UPDATE", False),
        ):
            assert postgres.execute(url, held.format(user, privilege)) == ("t" if expected else "f"), (user, privilege)
    finally:
        postgres.execute(url, f"DROP OWNED BY {reader}, {writer}; DROP ROLE {reader}, {writer}")
