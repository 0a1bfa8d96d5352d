"""Triggers make the log append-only, and `verify` reports a missing trigger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Text

from store.db.schema import triggers
from store.db.schema.postgres import PREFIX
from store.db.tables.core import LOG, metadata
from store.db.url import parse
from tests import databases
from tests.databases import Database

REFUSED = "the log is append-only"
COMMIT = ", ".join(metadata.tables["commits"].columns.keys())
EVENT = "position, stream, " + ", ".join(sorted({*metadata.tables["events"].columns.keys()} - {"position", "stream"}))
LOG_TABLES = [table.name for table in LOG]


@pytest.fixture
async def log(durable_url: str) -> AsyncIterator[Database]:
    """A partition with a commit of three events, the last of which lets the body of the first go."""
    await databases.prepare(durable_url)
    database = await databases.connect(durable_url)
    await databases.fill_log(database)
    await databases.fill_blobs(database)
    await databases.fill_dictionaries(database)
    await databases.fill_blocks(database)
    await database.execute("INSERT INTO dropped (position, event_position) VALUES (1, 3)")
    yield database
    await database.close()


@pytest.fixture
async def postgres_log(postgres_url: str) -> AsyncIterator[Database]:
    await databases.prepare(postgres_url)
    database = await databases.connect(postgres_url)
    await databases.fill_log(database)
    await databases.fill_blobs(database)
    await databases.fill_dictionaries(database)
    await databases.fill_blocks(database)
    await database.execute("INSERT INTO dropped (position, event_position) VALUES (1, 3)")
    yield database
    await database.close()


@pytest.fixture
async def sqlite_log(tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    await databases.prepare(url)
    database = await databases.connect(url)
    await databases.fill_log(database)
    await databases.fill_blobs(database)
    await databases.fill_dictionaries(database)
    await databases.fill_blocks(database)
    yield database
    await database.close()


async def missing(database: Database, url: str) -> list[str]:
    """Return what verify would say about triggers and unique keys."""
    guards = triggers.guards(database.kind, PREFIX + parse(url).partition)
    return triggers.missing(guards, await database.rows(guards.in_place.text, *guards.in_place.args({})))


async def refuses(database: Database, statement: str) -> None:
    """Assert that the triggers refuse a statement and that it changes nothing."""
    others = ("SELECT * FROM blobs", "SELECT * FROM data_blocks", "SELECT * FROM dictionaries ORDER BY codec")
    before = await databases.read_log(database), [await database.rows(query) for query in others]
    with pytest.raises(Exception, match=REFUSED):
        await database.execute(statement)
    assert (await databases.read_log(database), [await database.rows(query) for query in others]) == before


@pytest.mark.parametrize("column", metadata.tables["events"].columns.keys())
async def test_no_column_of_an_event_can_be_changed(log: Database, column: str) -> None:
    await refuses(log, f"UPDATE events SET {column} = {column} WHERE position = 2")


@pytest.mark.parametrize("table", LOG_TABLES)
async def test_no_row_of_the_log_can_be_changed(log: Database, table: str) -> None:
    key = metadata.tables[table].primary_key.columns[0]
    other = f"{key.name} || '0'" if isinstance(key.type, Text) else f"{key.name} + 100"
    await refuses(log, f"UPDATE {table} SET {key.name} = {other}")


@pytest.mark.parametrize("table", ["commits", "events", "data_blocks", "dictionaries", "blobs", "dropped"])
async def test_no_row_of_the_log_can_be_deleted(log: Database, table: str) -> None:
    await refuses(log, f"DELETE FROM {table}")


@pytest.mark.parametrize("table", LOG_TABLES)
async def test_no_table_of_the_log_can_be_emptied_at_once(postgres_log: Database, table: str) -> None:
    await refuses(postgres_log, f"TRUNCATE {table}")
    await refuses(postgres_log, f"TRUNCATE {table} CASCADE")


@pytest.mark.parametrize("table", LOG_TABLES)
async def test_a_delete_without_where_takes_no_short_cut_past_the_triggers(sqlite_log: Database, table: str) -> None:
    await sqlite_log.execute("INSERT INTO dropped (position, event_position) VALUES (7, 3)")
    await refuses(sqlite_log, f"DELETE FROM {table}")


@pytest.mark.parametrize("statement", ["INSERT OR REPLACE INTO", "REPLACE INTO", "INSERT OR IGNORE INTO"])
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(f"commits ({COMMIT}) SELECT {COMMIT} FROM commits", id="commit"),
        pytest.param(f"events ({EVENT}) SELECT {EVENT} FROM events", id="position"),
        pytest.param(f"events ({EVENT}) SELECT position + 9{EVENT[8:]} FROM events", id="version"),
        pytest.param(f"events ({EVENT}) SELECT position - 9, 'new'{EVENT[16:]} FROM events", id="past position"),
        pytest.param("bodies SELECT * FROM bodies", id="body"),
        pytest.param("dictionaries SELECT * FROM dictionaries", id="dictionary"),
        pytest.param("data_blocks SELECT * FROM data_blocks", id="block"),
        pytest.param("data_blocks SELECT last_position, 9, body FROM data_blocks", id="block that overlaps"),
        pytest.param("blobs SELECT * FROM blobs", id="blob"),
        pytest.param("dropped SELECT 1, 2", id="dropped"),
    ],
)
async def test_an_insert_over_a_row_is_refused_since_replace_fires_no_delete_trigger(
    sqlite_log: Database, statement: str, values: str
) -> None:
    await sqlite_log.execute("INSERT INTO dropped (position, event_position) VALUES (1, 3)")
    await refuses(sqlite_log, f"{statement} {values}")


@pytest.mark.parametrize("table", ["commits", "data_blocks", "blobs", "dropped"])
async def test_an_upsert_is_refused_even_before_there_is_a_conflict(postgres_log: Database, table: str) -> None:
    key = metadata.tables[table].primary_key.columns[0]
    none, other = ("= ''", "'9'") if isinstance(key.type, Text) else ("< 0", "9")
    await refuses(
        postgres_log,
        f"INSERT INTO {table} SELECT * FROM {table} WHERE {key.name} {none}"
        f" ON CONFLICT ({key.name}) DO UPDATE SET {key.name} = {other}",
    )


async def test_the_data_of_an_event_may_be_replaced_by_a_reference_to_its_block(log: Database) -> None:
    await log.execute("UPDATE events SET data = '@1' WHERE position = 2")
    assert await log.rows("SELECT position, data FROM events ORDER BY position") == [(1, "{}"), (2, "@1"), (3, "{}")]
    # The data is never replaced a second time.
    await refuses(log, "UPDATE events SET data = '@1' WHERE position = 2")
    await refuses(log, "UPDATE events SET data = '{}' WHERE position = 2")
    await refuses(log, "UPDATE events SET data = '@1' WHERE position <= 2")
    await log.execute("UPDATE events SET data = '@1' WHERE position = 1")


@pytest.mark.parametrize(
    "change",
    [
        "data = '@1' WHERE position = 3",
        "data = '@1'",
        "data = '@2' WHERE position = 2",
        "data = '@01' WHERE position = 2",
        "data = '@1 ' WHERE position = 2",
        "data = '@' WHERE position = 2",
        "data = '@x' WHERE position = 2",
        "data = '@99999999999999999999999' WHERE position = 2",
        "data = '{\"a\":1}' WHERE position = 2",
        *(
            f"data = '@1', {name} = {value} WHERE position = 2"
            for name, value in {
                "commit_id": "2",
                "stream": "'rollout/b'",
                "version": "7",
                "command": "4",
                "type": "'rollout.enqueued'",
                "shape": "2",
                "at": "1001",
                "actor": "'me'",
                "cause": "1",
                "body_hash": "NULL",
            }.items()
        ),
    ],
)
async def test_another_change_of_an_event_is_refused(log: Database, change: str) -> None:
    await refuses(log, f"UPDATE events SET {change}")


async def test_an_upsert_over_an_event_is_refused(log: Database) -> None:
    values = f"INSERT INTO events ({EVENT}) SELECT {EVENT} FROM events WHERE position = 2"
    await refuses(log, f"{values} ON CONFLICT (position) DO UPDATE SET at = 7")


async def test_a_body_may_be_stored_in_another_form(log: Database) -> None:
    await log.execute("UPDATE bodies SET codec = 17, body = body WHERE position = 1")
    await log.execute("UPDATE bodies SET codec = 0 WHERE position = 2")
    assert await log.rows("SELECT position, codec FROM bodies ORDER BY position") == [(1, 17), (2, 0)]


@pytest.mark.parametrize(
    "change",
    [
        "body = body",
        "codec = codec, body = body",
        "codec = 17, raw_len = raw_len + 1",
        "codec = 17, position = position + 100",
        "codec = 18",
        "codec = 2",
    ],
)
async def test_another_change_of_a_body_is_refused(log: Database, change: str) -> None:
    await refuses(log, f"UPDATE bodies SET {change} WHERE position = 2")


async def test_an_upsert_over_a_body_is_refused(log: Database) -> None:
    values = "INSERT INTO bodies SELECT position, codec, raw_len, body FROM bodies WHERE position = 2"
    await refuses(log, f"{values} ON CONFLICT (position) DO UPDATE SET body = excluded.body")


async def test_only_a_dictionary_that_no_body_needs_can_be_emptied(log: Database) -> None:
    empty = "x''" if log.kind == "sqlite" else "''"
    await refuses(log, f"UPDATE dictionaries SET content = {empty} WHERE codec = 16")
    await refuses(log, f"UPDATE dictionaries SET content = {empty}")
    await refuses(log, f"UPDATE dictionaries SET content = {empty}, codec = 30 WHERE codec = 17")
    await log.execute(f"UPDATE dictionaries SET samples = {empty}, content = {empty} WHERE codec = 17")
    await refuses(log, "UPDATE bodies SET codec = 17 WHERE position = 1")


@pytest.mark.parametrize("codec", [15, 16, 17])
async def test_the_number_of_a_dictionary_is_never_used_again(log: Database, codec: int) -> None:
    columns = "type, hash, trained_at, samples, content"
    insert = f"INSERT INTO dictionaries (codec, {columns}) SELECT {codec}, {columns} FROM dictionaries LIMIT 1"
    if log.kind == "sqlite":
        await refuses(log, insert)
    elif codec > 15:  # Postgres refuses a row with the same key. `compact` takes numbers in ascending order.
        with pytest.raises(Exception, match="duplicate key"):
            await log.execute(insert)


async def test_a_replicas_session_is_refused_too(postgres_log: Database) -> None:
    await postgres_log.execute("SET session_replication_role = replica")
    await refuses(postgres_log, "DELETE FROM events")
    await refuses(postgres_log, "DELETE FROM bodies")


async def test_a_body_goes_once_an_event_ordered_it(log: Database) -> None:
    await log.execute("DELETE FROM bodies WHERE position = 1")
    assert await log.rows("SELECT position FROM bodies") == [(2,)]


async def test_a_body_that_no_event_dropped_stays(log: Database) -> None:
    await refuses(log, "DELETE FROM bodies WHERE position = 2")
    # One of them may go: all stay.
    await refuses(log, "DELETE FROM bodies")


@pytest.mark.parametrize("event", [1, 99], ids=["an event that orders nothing", "no event"])
async def test_a_line_in_dropped_alone_lets_no_body_go(log: Database, event: int) -> None:
    await log.execute(f"INSERT INTO dropped (position, event_position) VALUES (2, {event})")
    await refuses(log, "DELETE FROM bodies WHERE position = 2")


async def append(log: Database, type_: str) -> None:
    await log.execute(
        "INSERT INTO events (position, commit_id, stream, version, command, type, shape, at, data)"
        f" VALUES (4, 2, 'store', 2, 0, '{type_}', 1, 1, '{{}}')"
    )


async def test_an_event_of_the_store_lets_several_bodies_go(log: Database) -> None:
    await append(log, "store.bodies_dropped")
    await log.execute("INSERT INTO dropped (position, event_position) VALUES (2, 4)")
    await log.execute("DELETE FROM bodies")
    assert await log.rows("SELECT position FROM bodies") == []
    await refuses(log, "DELETE FROM blobs")


async def test_blobs_go_while_the_last_event_orders_it(log: Database) -> None:
    await append(log, "store.blobs_dropped")
    await refuses(log, "DELETE FROM bodies WHERE position = 2")
    await log.execute("DELETE FROM blobs")
    assert await log.rows("SELECT hash FROM blobs") == []


async def test_blobs_stay_once_another_event_follows(log: Database) -> None:
    await append(log, "store.blobs_dropped")
    await log.execute(
        "INSERT INTO events (position, commit_id, stream, version, command, type, shape, at, data)"
        " VALUES (5, 3, 'rollout/a', 3, 0, 'rollout.amended', 1, 1, '{}')"
    )
    await refuses(log, "DELETE FROM blobs")


async def test_one_statement_may_order_and_delete(postgres_log: Database) -> None:
    await postgres_log.execute(
        "WITH event AS (INSERT INTO events (position, commit_id, stream, version, command, type, shape, at, data)"
        " VALUES (4, 2, 'store', 2, 0, 'body.dropped', 1, 1, '{}')), line AS (INSERT INTO dropped VALUES (2, 4))"
        " DELETE FROM bodies WHERE position = 2"
    )
    assert await postgres_log.rows("SELECT position FROM bodies") == [(1,)]


async def test_search_path_of_the_session_does_not_affect_the_trigger(
    postgres_log: Database, postgres_url: str
) -> None:
    await postgres_log.execute("SET search_path TO public")
    with pytest.raises(Exception, match=REFUSED):
        await postgres_log.execute(f'DELETE FROM "{PREFIX}{parse(postgres_url).partition}".bodies WHERE position = 2')


async def test_appending_is_allowed(log: Database) -> None:
    await log.execute(
        "INSERT INTO events (position, commit_id, stream, version, command, type, shape, at, data)"
        " VALUES (7, 2, 'rollout/a', 3, 0, 'rollout.amended', 1, 1, '{}')"
    )
    assert await log.rows("SELECT max(position) FROM events") == [(7,)]


async def test_a_sound_partition_misses_nothing(log: Database, durable_url: str) -> None:
    assert await missing(log, durable_url) == []


async def test_every_trigger_that_is_dropped_is_named(durable_url: str) -> None:
    await databases.prepare(durable_url)
    database = await databases.connect(durable_url)
    names = triggers.trigger_names(database.kind)
    tables = [guard.table for guard in triggers.expected(database.kind) if guard.kind == "trigger"]
    told: list[str] = []
    for name, table in zip(names, tables, strict=True):
        await database.execute(f"DROP TRIGGER {name}" + (f" ON {table}" if database.kind == "postgresql" else ""))
        told.append(f"table {table}: trigger {name} is missing")
        assert await missing(database, durable_url) == told
    await database.close()


async def test_a_trigger_that_lets_something_pass_is_named(log: Database, durable_url: str) -> None:
    if log.kind == "sqlite":
        await log.execute("DROP TRIGGER events_refuse_delete")
        # Two statements, no transaction: the second holds semicolons of its own.
        await log.rows(
            "CREATE TRIGGER events_refuse_delete BEFORE DELETE ON events WHEN OLD.position > 5"
            " BEGIN SELECT RAISE(ABORT, 'the log is append-only: DELETE of events refused'); END"
        )
        name = "events_refuse_delete"
    else:
        await log.execute(
            "DROP TRIGGER events_refuse_change ON events; CREATE TRIGGER events_refuse_change BEFORE UPDATE OR TRUNCATE"
            " ON events FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        name = "events_refuse_change"
    assert await missing(log, durable_url) == [f"table events: trigger {name} was changed or disabled"]


@pytest.mark.parametrize("state", ["DISABLE TRIGGER", "ENABLE REPLICA TRIGGER", "ENABLE TRIGGER"])
async def test_a_trigger_that_does_not_always_fire_is_named(
    postgres_log: Database, postgres_url: str, state: str
) -> None:
    await postgres_log.execute(f"ALTER TABLE events {state} events_refuse_change")
    told = ["table events: trigger events_refuse_change was changed or disabled"]
    assert await missing(postgres_log, postgres_url) == told


async def test_a_function_that_refuses_nothing_is_named(postgres_log: Database, postgres_url: str) -> None:
    await postgres_log.execute(
        "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    assert await missing(postgres_log, postgres_url) == [
        f"table {table}: trigger {table}_refuse_change was changed or disabled" for table in LOG_TABLES
    ]


async def test_a_unique_key_that_is_dropped_is_named(postgres_log: Database, postgres_url: str) -> None:
    await postgres_log.execute(
        "ALTER TABLE events DROP CONSTRAINT uq_events_stream_version; ALTER TABLE rollouts DROP CONSTRAINT pk_rollouts"
    )
    assert await missing(postgres_log, postgres_url) == [
        "table events: (stream, version) is not unique any more",
        "table rollouts: (rollout_id) is not unique any more",
    ]


async def test_a_table_rebuilt_without_its_unique_key_is_named(sqlite_log: Database, tmp_path: Path) -> None:
    columns = "rollout_id TEXT PRIMARY KEY, plan_key TEXT"
    await sqlite_log.execute(f"DROP TABLE rollouts; CREATE TABLE rollouts ({columns})")
    told = [
        "table rollouts: (plan_key) is not unique any more",
        "table rollouts: the index on (first_position) is missing",
        "table rollouts: the index on (group_id, first_position) WHERE group_id IS NOT NULL is missing",
    ]
    assert await missing(sqlite_log, f"sqlite:///{tmp_path / 'run.db'}") == told
