"""The upgrade of a store without runs equals a new store."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from store import open_store
from store.db.schema import migrate
from store.db.url import parse
from store.models import AttemptedRollout, RolloutConfig
from store.testing import ManualClock
from store.testing.samples import make_span
from tests import databases
from tests.alembic_check import migrate_from_scratch
from tests.databases import Database

_BEFORE = "0003"
_LATER_TABLES = ("blobs", "run_events", "forks", "fork_masks", "checkpoints", "artifacts", "run_keys")
# The columns that 0003 knew, in their order: those that came later stand at the end.
_LATER_COLUMNS = {"rollouts": 2, "attempts": 5, "span_counters": 1}
NODE = {
    "agl.node_id": "Trader",
    "agl.scope": "RIG",
    "agl.phase": "debate",
    "gen_ai.usage.input_tokens": 12,
    "gen_ai.response.model": "m",
}


async def fill(url: str, clock: ManualClock) -> None:
    """Write what 0003 could hold: a retry, a released claim's like, spans with and without a node."""
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as store:
        config = RolloutConfig(max_attempts=3, retry_condition=["failed"])
        first: AttemptedRollout = await store.start_rollout({"n": 1}, config=config)
        await store.add_span(make_span(first.attempt, 1, attributes=NODE))
        await store.add_span(make_span(first.attempt, 2, end_time=None, attributes={"agl.node_id": "Judge"}))
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
        again = await store.dequeue_rollout()
        assert again is not None
        await store.add_span(make_span(again.attempt, 3))
        await store.enqueue_rollout({"n": 2})


async def copy_log(source: Database, target: Database, later: Mapping[str, int] = _LATER_COLUMNS) -> None:
    """Copy all but the tables and columns that came later; `later` has the number of such columns by table."""
    tables = ("commits", "events", "bodies", "rollouts", "attempts", "spans", "rewards", "queue", "span_counters")
    for table in (*tables, "watch"):
        rows = await source.rows(f"SELECT * FROM {table}")
        for row in rows:
            columns = row[: len(row) - later.get(table, 0)]
            values = ", ".join(_literal(value, target.kind) for value in columns)
            await target.execute(f"INSERT INTO {table} VALUES ({values})")


def _literal(value: object, kind: str) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'" if kind == "sqlite" else f"'\\x{value.hex()}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case _:
            return repr(value)


@pytest.fixture
async def old(isolated_url: str, clock: ManualClock, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store of revision 0003 with a history."""
    filled_url = f"sqlite:///{tmp_path_factory.mktemp('filled') / 'filled.db'}"
    await fill(filled_url, clock)
    await migrate_from_scratch(isolated_url, _BEFORE)
    source, target = await databases.connect(filled_url), await databases.connect(isolated_url)
    await copy_log(source, target)
    if target.kind == "postgresql":
        ((last_event, last_commit),) = await target.rows(
            "SELECT (SELECT max(position) FROM events), (SELECT max(commit_id) FROM commits)"
        )
        await target.execute(f"SELECT setval('event_seq', {last_event}), setval('commit_seq', {last_commit})")
    await source.close()
    await target.close()
    return isolated_url


async def test_an_upgraded_store_equals_its_log_and_continues(old: str, clock: ManualClock) -> None:
    await migrate(old)
    async with await open_store(old) as store:
        report = await store.log.verify()
        assert report.differences == []
        assert report.rows["run_events"] == 2
    async with await open_store(old, clock=clock, scan_debounce_seconds=0) as store:
        (first, _) = (await store.query_rollouts()).items
        attempts = (await store.query_attempts(first.rollout_id)).items
        await store.update_attempt(first.rollout_id, attempts[-1].attempt_id, status="failed")
        assert await store.dequeue_many_rollouts(5) != []
        database = await databases.connect(old)
        ours = f"rollout_id = '{first.rollout_id}'"
        assert await database.rows(f"SELECT head FROM rollouts WHERE {ours}") == [(3,)]
        query = f"SELECT sequence_id, tries, head_before FROM attempts WHERE {ours} ORDER BY sequence_id"
        assert await database.rows(query) == [(1, 1, None), (2, 2, 1), (3, 3, 2)]
        await database.close()
        assert (await store.log.verify()).ok


@pytest.mark.new_partition
async def test_an_app_role_from_before_may_use_the_new_tables(postgres_url: str) -> None:
    await migrate_from_scratch(postgres_url, _BEFORE)
    owner, role = await databases.connect(postgres_url), f"app_{parse(postgres_url).partition}"
    await owner.execute(f"CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency TO {role}")
    try:
        await migrate(postgres_url)
        for table in _LATER_TABLES:
            rights = await owner.rows(
                f"SELECT has_table_privilege('{role}', '{table}', 'INSERT'),"
                f" has_table_privilege('{role}', '{table}', 'DELETE')"
            )
            assert rights == [(True, table != "blobs")]
    finally:
        await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await owner.close()
