"""The revisions form one line, equal the tables of the code, and leave the log unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory

from store.db.schema import HEAD, history, migrate, prepare_sqlite, triggers
from store.db.schema.postgres import PREFIX, migrating_postgres
from store.db.schema.sqlite import migrating_sqlite
from store.db.tables.core import metadata
from store.db.url import parse
from tests import databases, postgres
from tests.alembic_check import check, migrate_from_scratch
from tests.databases import Database

pytestmark = pytest.mark.new_partition

SCRIPTS = ScriptDirectory(str(history.MIGRATIONS))
REVISIONS = sorted(script.revision for script in SCRIPTS.walk_revisions())

_POSTGRES_CATALOG = """
SELECT 'column', c.relname || '.' || a.attname, concat_ws(' ', a.attnum, format_type(a.atttypid, a.atttypmod),
    a.attnotnull, l.collname, pg_get_expr(d.adbin, d.adrelid), a.attstorage)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_collation l ON l.oid = a.attcollation
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'r' AND a.attnum > 0
UNION ALL SELECT 'options', relname, concat_ws(' ', relkind, reloptions::text) FROM pg_class
WHERE relnamespace = $1::regnamespace
UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = $1::regnamespace
UNION ALL SELECT 'index', c.relname, pg_get_indexdef(c.oid) FROM pg_class c
WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'i'
UNION ALL SELECT 'sequence', c.relname, concat_ws(' ', s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmax,
    s.seqmin, s.seqcache, s.seqcycle)
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid WHERE c.relnamespace = $1::regnamespace
UNION ALL SELECT 'trigger', t.tgname, t.tgenabled::text || ' ' || pg_get_triggerdef(t.oid)
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = $1::regnamespace
UNION ALL SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1::regnamespace
"""


async def schema_of(database: Database, url: str) -> dict[tuple[str, str], str]:
    """Return every object of a partition by kind and name, with its definition."""
    if database.kind == "sqlite":
        rows = await database.rows("SELECT type, name, coalesce(sql, '') FROM sqlite_master")
        return {(kind, name): re.sub(r"\W+", " ", sql).strip() for kind, name, sql in rows}
    name = PREFIX + parse(url).partition
    rows = await database.rows(_POSTGRES_CATALOG.replace("$1", f"'{name}'"))
    return {(kind, object_name): definition.replace(name, "schema") for kind, object_name, definition in rows}


def another(url: str) -> str:
    """Return the URL of another partition of the same database."""
    parsed = parse(url)
    if parsed.path is not None:
        return f"sqlite:///{parsed.path.with_name('another.db')}"
    assert parsed.dsn is not None
    return postgres.with_partition(parsed.dsn)


async def upgrade(url: str, revision: str) -> None:
    """Upgrade a partition to a revision."""
    parsed = parse(url)
    if parsed.path is not None:
        with migrating_sqlite(parsed.path) as connection:
            history.run_migrations(connection, revision)
    else:
        assert parsed.dsn is not None
        schema = PREFIX + parsed.partition
        async with migrating_postgres(parsed.dsn, schema) as connection, history.turn_in_loop():
            await connection.run_sync(history.run_migrations, revision)


def test_the_head_constant_is_alembics_head() -> None:
    assert SCRIPTS.get_heads() == [HEAD]


def test_the_history_is_one_line_of_consecutive_numbers() -> None:
    assert [int(revision) for revision in REVISIONS] == list(range(1, len(REVISIONS) + 1))
    assert all(len(revision) == 4 for revision in REVISIONS)
    downs = {script.revision: script.down_revision for script in SCRIPTS.walk_revisions()}
    assert downs == dict(zip(REVISIONS, [None, *REVISIONS], strict=False))


async def test_a_new_partition_equals_one_that_went_through_all_migrations(durable_url: str) -> None:
    migrated_url = another(durable_url)
    await databases.prepare(durable_url)
    await migrate_from_scratch(migrated_url)
    created, migrated = await databases.connect(durable_url), await databases.connect(migrated_url)
    expected = await schema_of(created, durable_url)
    assert await schema_of(migrated, migrated_url) == expected
    assert {name for kind, name in expected if kind in {"table", "options"}} >= metadata.tables.keys()
    for table in ("alembic_version", "queue_epoch"):
        assert await created.rows(f"SELECT * FROM {table}") == await migrated.rows(f"SELECT * FROM {table}")
    guards = triggers.guards(migrated.kind, PREFIX + parse(migrated_url).partition)
    rows = await migrated.rows(guards.in_place.text, *guards.in_place.args({}))
    assert triggers.missing(guards, rows) == []
    await created.close()
    await migrated.close()


async def test_alembic_finds_a_difference_only_if_a_migrated_partition_has_one(durable_url: str) -> None:
    await migrate_from_scratch(durable_url)
    assert await check(durable_url) is None
    database = await databases.connect(durable_url)
    await database.execute("ALTER TABLE rollouts ADD COLUMN unknown TEXT")
    await database.close()
    assert "unknown" in str(await check(durable_url))


@pytest.mark.slow
async def test_each_revision_leaves_every_row_of_the_log_as_it_was(isolated_url: str) -> None:
    await migrate_from_scratch(isolated_url, REVISIONS[0])
    database = await databases.connect(isolated_url)
    await databases.fill_log(database)
    before = await databases.read_log(database)
    for revision in REVISIONS[1:]:
        await upgrade(isolated_url, revision)
        assert await databases.read_log(database) == before, revision
        assert await database.rows("SELECT version_num FROM alembic_version") == [(revision,)]
    await database.close()


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.torture_only
async def test_an_upgrade_leaves_every_row_of_the_log_as_it_was(isolated_url: str, revision: str) -> None:
    await migrate_from_scratch(isolated_url, revision)
    database = await databases.connect(isolated_url)
    await databases.fill_log(database)
    before = await databases.read_log(database)
    await migrate(isolated_url)
    assert await databases.read_log(database) == before
    assert await database.rows("SELECT version_num FROM alembic_version") == [(HEAD,)]
    await database.close()


async def test_sequences_are_the_partitions_own_and_have_no_cache(postgres_url: str) -> None:
    await databases.prepare(postgres_url)
    database = await databases.connect(postgres_url)
    sequences = await database.rows(
        "SELECT sequencename::text, start_value, increment_by, cache_size, cycle FROM pg_sequences"
        f" WHERE schemaname = '{PREFIX}{parse(postgres_url).partition}' ORDER BY 1"
    )
    assert sequences == [("commit_seq", 1, 1, 1, False), ("event_seq", 1, 1, 1, False)]
    await database.close()


HEARTBEATS = (
    ("attempt_signals VALUES ('ro', 'at', 1.0, 1)", "attempt_signals SET beat_time = {n}, stamped_at = {n}"),
    ("worker_signals VALUES ('w', '{{}}', 1, 1, 1, 1)", "worker_signals SET last_heartbeat_at = {n}"),
    ("span_counters VALUES ('ro', 1, NULL)", "span_counters SET value = {n}"),
)


async def test_a_heartbeat_touches_no_index(postgres_url: str, subtests: pytest.Subtests) -> None:
    await databases.prepare(postgres_url)
    database = await databases.connect(postgres_url)
    for insert, update in HEARTBEATS:
        table = insert.partition(" ")[0]
        with subtests.test(table=table):
            await database.execute(f"INSERT INTO {insert}")
            # A transaction cannot prune what it killed itself: as many updates as fit on the first page.
            await database.execute("BEGIN")
            for n in range(20):
                await database.execute(f"UPDATE {update.format(n=n)}")
            ((hot, updated),) = await database.rows(
                f"SELECT pg_stat_get_xact_tuples_hot_updated('{table}'::regclass),"
                f" pg_stat_get_xact_tuples_updated('{table}'::regclass)"
            )
            await database.execute("ROLLBACK")
            assert hot == updated == 20
    await database.close()


def test_an_up_to_date_file_is_opened_without_writing_to_it(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first = prepare_sqlite(path, create=True, read_only=False)
    content: Any = path.read_bytes()
    assert prepare_sqlite(path, create=True, read_only=False) == first
    assert path.read_bytes() == content
