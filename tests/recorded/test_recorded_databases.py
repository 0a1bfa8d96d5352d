"""This version reads, proves and repairs databases of an earlier version, and writes the same bytes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from store.client import HTTPStore
from store.db.schema import migrate
from store.db.tables.core import PROJECTIONS
from store.db.url import with_partition
from store.domain.events import (
    FACTS,
    BodyDropped,
    MetricsLogged,
    RewardScored,
    RolloutScanned,
    ScannerAdded,
    SpanNumbersReserved,
    StoreBlobsDropped,
    StoreBodiesDropped,
    StoreCopiedFrom,
)
from store.models import AttemptStatus, RolloutStatus
from store.runtime import context
from store.sql.api_keys import Keys, digest
from store.sql.store import SQLStore
from store.training import find_final_reward
from tests import postgres
from tests.client.served import Served
from tests.conftest import POSTGRES, SQLITE
from tests.journal.database_helpers import run_sql
from tests.recorded import recording, story
from tests.recorded.reads import answers

pytestmark = pytest.mark.slow

FACTS_RECORDED = recording.load_json(recording.FACTS)
YOUNGER = ("scans", "scores", "metrics")
"""The tables that are younger than the recording."""
for _name in ("main", "second"):
    FACTS_RECORDED[_name]["rows"] |= dict.fromkeys(YOUNGER, 0)
CLOCK_AT_END = FACTS_RECORDED["end"]

DAMAGE = {
    "rollouts": "UPDATE rollouts SET status = 'failed', spans = 77 WHERE status = 'succeeded'",
    "attempts": "DELETE FROM attempts WHERE sequence_id = 2",
    "spans": "UPDATE spans SET name = 'renamed'",
    "rewards": "UPDATE rewards SET value = value + 1",
    "resources": "UPDATE resources SET version = 9",
    "workers": "UPDATE workers SET status = 'unknown' WHERE status = 'busy'",
    "queue": "DELETE FROM queue",
    "run_events": "DELETE FROM run_events WHERE kind = 'result'",
    "forks": "UPDATE forks SET kind = 'branch'",
    "fork_masks": "DELETE FROM fork_masks",
    "checkpoints": "UPDATE checkpoints SET name = 'another'",
    "artifacts": "UPDATE artifacts SET scope = 'ELSEWHERE'",
    "run_keys": "DELETE FROM run_keys",
    "threads": "DELETE FROM threads",
    "thread_checkpoints": "UPDATE thread_checkpoints SET step = 99",
    "thread_writes": "DELETE FROM thread_writes",
    "labels": "UPDATE labels SET label = 'altered' WHERE label = 'to keep'",
    "notes": "DELETE FROM notes",
    "metrics": "INSERT INTO metrics (name, step, position, value) VALUES ('loss', 1, 3, 0.5)",
    "scans": "INSERT INTO scans (rollout_id, position, attempt_id, scanner, version) VALUES ('ro', 3, 'at', 'a', 'v1')",
    "scores": "INSERT INTO scores (rollout_id, position, attempt_id, name, version) VALUES ('ro', 3, 'at', 'a', 'v1')",
}
"""What makes rows of a projection wrong, by its table."""


@pytest.fixture(params=[SQLITE, POSTGRES])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of the test's own that holds nothing yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'recorded.db'}"
    create: Callable[[], str] = request.getfixturevalue("postgres_database")
    return postgres.with_partition(create(), "default")


class Copies:
    """Makes copies of the recorded databases, which were upgraded as an operator upgrades a database."""

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        self._request = request
        self._directory = directory
        self._originals: dict[str, str] = {}

    def _original(self, kind: str) -> str:
        """Return the URL of an upgraded database of a kind, which is never opened again."""
        if kind not in self._originals:
            if kind == "sqlite":
                url = f"sqlite:///{self._directory / 'recorded.db'}"
            else:
                server: str = self._request.getfixturevalue("postgres_server")
                url = postgres.with_partition(postgres.create_database(server), "default")
            recording.restore(url)
            asyncio.run(migrate(url))
            self._originals[kind] = url
        return self._originals[kind]

    @contextmanager
    def of(self, kind: str, directory: Path) -> Generator[str]:
        """Copy a database, into a directory if it is a file; yield the URL."""
        original = self._original(kind)
        if kind == "sqlite":
            shutil.copytree(self._directory, directory, dirs_exist_ok=True)
            yield f"sqlite:///{directory / 'recorded.db'}"
            return
        database = postgres.copy_database(original)
        yield postgres.with_partition(database, "default")
        postgres.drop_database(database)


@pytest.fixture(scope="module")
def copies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """The upgraded databases, each of which is restored and upgraded once."""
    return Copies(request, tmp_path_factory.mktemp("recorded"))


@pytest.fixture(params=[SQLITE, POSTGRES])
def url(request: pytest.FixtureRequest, copies: Copies, tmp_path: Path) -> Iterator[str]:
    """The URL of a restored copy that belongs to one test."""
    with copies.of(request.param, tmp_path / "copy") as url:
        yield url


@pytest.fixture(scope="module", params=[SQLITE, POSTGRES])
def read_url(request: pytest.FixtureRequest, copies: Copies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a restored copy that tests only read."""
    with copies.of(request.param, tmp_path_factory.mktemp("copy")) as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[SQLStore]:
    """The main partition of a restored copy."""
    async with await recording.opened(url, recording.clock_at(CLOCK_AT_END), create=False) as opened:
        yield opened


@pytest.fixture
async def read_store(read_url: str) -> AsyncIterator[SQLStore]:
    """The main partition of a restored copy that tests only read."""
    async with await recording.opened(read_url, recording.clock_at(CLOCK_AT_END), create=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server for the stores of these tests."""
    with Served() as serving:
        yield serving


_YOUNGER: list[tuple[set[str], set[str]]] = [
    ({"rollout_id", "status", "start_time", "rewards"}, {"reward", "rewards"}),
    ({"worker_id", "last_idle_time", "state"}, {"state"}),
    ({"store_id", "kind", "read_only"}, {"read_only"}),
    # The pages with the overview and with the administration.
    ({"ended", "failures", "verified"}, {"verified"}),
    ({"keys", "operations"}, {"operations"}),
    ({"keys", "quota"}, {"quota"}),
    ({"span_id", "is_answer", "skipped"}, {"invalid_rewards"}),
    # The tabs of a rollout.
    ({"span_id", "is_answer", "skipped"}, {"media", "results", "same_as", "speech", "tool_call_id"}),
    ({"task", "spans", "entries"}, {"turns", "outline", "group"}),
    ({"number", "cause", "body_hash"}, {"sentence", "cause_number"}),
    ({"adapter", "verdict", "kept"}, {"tokens", "has_spans"}),
    ({"name", "a", "b", "differs"}, {"others"}),
    # The page of a rollout.
    ({"annotations", "attempt", "attempts"}, {"invalid_rewards", "usage"}),
    # The page of a run.
    ({"attempts", "chosen", "scopes"}, {"tokens"}),
    (
        {"annotations", "attempt", "attempts"},
        {"invalid_rewards", "title", "neighbours", "span_times", "models", "scans"},
    ),
    # Notes; spans of the waterfall, also as columns; the page of a span.
    ({"number", "at", "actor", "text"}, {"span_id", "attempt_id"}),
    ({"span_id", "position", "kind", "sequence_id"}, {"span_kind", "attempt_id"}),
    ({"position", "names", "kinds", "sequence"}, {"span_kinds", "span_kind"}),
    ({"span", "attributes", "event_count"}, {"notes", "span_kind"}),
    # The pages of rewards and of rollouts.
    ({"charts", "histogram", "names"}, {"reward_version", "reward_versions"}),
    ({"by_status", "newer", "rollouts"}, {"reward_version"}),
    # The curves, their lines and the bars of the page of rewards.
    ({"charts", "histogram", "names"}, {"unrewarded", "markers", "resources_id", "resource_versions"}),
    ({"charts", "histogram", "names"}, {"usage_charts", "events_behind"}),
    ({"told", "unit", "width", "series"}, {"noun"}),
    ({"mode", "count", "mean", "median"}, {"version", "ended", "rewarded", "counted", "mean_counted"}),
    ({"mode", "count", "mean", "median"}, {"band_low", "band_high", "part"}),
    ({"least", "greatest", "label"}, {"low", "high"}),
    # The pages of groups.
    ({"groups", "total", "limit"}, {"unrewarded", "threshold", "tasks"}),
    ({"group", "rollouts", "limit"}, {"unrewarded", "threshold", "task", "signals", "pass_at_k"}),
    ({"group_id", "open", "newest_at"}, {"input_sha256", "rollout_id", "ended", "rewarded_ended", "counted"}),
    ({"group_id", "open", "newest_at"}, {"mean_counted", "passed", "has_variance", "deviation"}),
    ({"by_status", "newer", "rollouts"}, {"reward_version", "summary", "titles", "dimensions", "metadata"}),
    # The use of resources, and the facts of a comparison of two rollouts.
    (
        {"rollouts", "mean_reward", "rewarded"},
        {"ended", "rewarded_ended", "counted", "rewarded_only", "first_step", "last_step"},
    ),
    ({"name", "a", "b", "differs"}, {"difference"}),
    # The overview, its rows, and the pages of failures, workers and the log.
    (
        {"ended", "failures", "throughput"},
        {"health", "unrewarded", "stuck_causes", "failure_kinds", "failures_counted", "steps", "versions", "changes"}
        | {"scanners"},
    ),
    ({"per_minute", "last_hour"}, {"recent"}),
    ({"reason", "since", "attempt"}, {"cause", "step"}),
    ({"last_sign", "worker_rollout_id"}, {"step"}),
    ({"since", "attempts", "status"}, {"step"}),
    ({"span_id", "message", "worker_id"}, {"step", "span_name"}),
    ({"sayings", "left_out"}, {"spans", "steps"}),
    ({"message", "first_at", "newest"}, {"rollouts", "rollout_ids", "spans", "steps"}),
    ({"worker", "hour", "failure_rate"}, {"last_sign", "stuck"}),
    ({"outcome", "width", "rollout_id"}, {"y", "height"}),
    ({"rollout_status", "last_reward"}, {"reward"}),
    ({"commit_id", "stream", "data_length"}, {"sentence"}),
    # The rows that a verification counts.
    ({"labels", "notes", "rollouts"}, {"scans", "scores", "metrics"}),
]
"""Fields that are younger than the recording, each with fields by which their object is recognised."""


_YOUNGER_PAGES = {
    "/ui/admin/checks",
    "/ui/cost",
    "/ui/cohorts",
    "/ui/effects",
    "/ui/effects/{resources_id}",
    "/ui/admin/payload",
    "/ui/tasks",
    "/ui/tasks/{task}",
    "/ui/bulk",
    "/ui/rollouts.csv",
    "/ui/training",
    "/ui/rollouts/{rollout_id}/media/{span_id}/{key}",
    "/ui/rollouts/{rollout_id}/payload",
    "/ui/rollouts/{rollout_id}/search",
    "/ui/metrics",
    "/ui/sample",
    "/ui/scanners",
    "/ui/scatter",
    "/ui/search",
    "/ui/views",
    "/ui/webhooks",
    "GET /v1/agl/log/position",
    "GET /v1/agl/scanners",
    "GET /v1/agl/scores/versions",
    "GET /v1/agl/webhooks",
    "GET /v1/agl/webhooks/deliveries",
}
"""Pages that are younger than the recording."""


def without_additions(value: Any) -> Any:
    """Return an answer without the fields that are younger than the recording."""
    if isinstance(value, list):
        return [without_additions(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    added = {name for older, names in _YOUNGER if older <= fields.keys() for name in names}
    return {name: without_additions(item) for name, item in fields.items() if name not in added}


def differing(answers_now: dict[str, Any], file: Path) -> dict[str, tuple[Any, Any]]:
    """Return the answers that differ from the recorded ones, each with what was recorded."""
    recorded = recording.load_json(file)
    return {
        name: (answers_now.get(name), recorded.get(name))
        for name in sorted(recorded.keys() | answers_now.keys() - _YOUNGER_PAGES)
        if without_additions(answers_now.get(name)) != recorded.get(name)
    }


async def test_a_recorded_database_is_sound_and_has_the_recorded_hashes(read_url: str) -> None:
    for partition, url in (("main", read_url), ("second", with_partition(read_url, recording.SECOND))):
        async with await recording.opened(url, recording.clock_at(CLOCK_AT_END), create=False) as store:
            assert await recording.facts(store) == FACTS_RECORDED[partition]


async def test_a_rebuild_of_a_recorded_database_changes_nothing(store: SQLStore) -> None:
    report = await store.log.rebuild()
    assert (report.written, report.differences) == ({}, [])
    assert report.state_hash == FACTS_RECORDED["main"]["state_hash"]
    assert await recording.facts(store) == FACTS_RECORDED["main"]


async def test_a_rebuild_repairs_every_projection_of_a_recorded_database(url: str, store: SQLStore) -> None:
    assert DAMAGE.keys() == {table.name for table in PROJECTIONS}
    await run_sql(url, *DAMAGE.values())
    damaged = await store.log.verify()
    assert damaged.chain_head == FACTS_RECORDED["main"]["chain_head"]
    assert damaged.state_hash != FACTS_RECORDED["main"]["state_hash"]
    report = await store.log.rebuild()
    assert report.written.keys() == DAMAGE.keys()
    assert report.state_hash == FACTS_RECORDED["main"]["state_hash"]
    assert await recording.facts(store) == FACTS_RECORDED["main"]


async def test_reads_of_a_recorded_database_give_the_recorded_answers(read_url: str, served: Served) -> None:
    for file, reads_now in (await recording.read(read_url, served, CLOCK_AT_END)).items():
        assert differing(reads_now, file) == {}


async def test_a_client_of_a_recorded_database_gets_the_recorded_answers(read_store: SQLStore, served: Served) -> None:
    recorded = recording.load_json(recording.ANSWERS)
    with served.serving(read_store) as address:
        async with HTTPStore(address) as client:
            reads_now = await answers(client)
    assert {name: answer for name, answer in reads_now.items() if without_additions(answer) != recorded[name]} == {}


async def test_rollouts_of_a_recorded_database_have_the_rewards_of_their_spans(read_store: SQLStore) -> None:
    rollouts = await read_store.query_rollouts()
    for rollout in rollouts:
        spans = await read_store.query_spans(rollout.rollout_id, "latest")
        assert rollout.reward == find_final_reward(spans.items)
    assert {rollout.reward for rollout in rollouts} > {None}


async def test_a_call_that_was_made_before_is_answered_again(store: SQLStore) -> None:
    before = await store.query_rollouts()
    token = context.idempotency_key.set(story.REPEATED)
    repeated = await store.enqueue_rollout(story.REPEATED_INPUT, "test")
    context.idempotency_key.reset(token)
    assert [rollout.rollout_id for rollout in before if rollout.input == story.REPEATED_INPUT] == [repeated.rollout_id]
    assert (await store.query_rollouts()).total == before.total


async def test_the_recorded_keys_are_those_that_were_given_out(read_url: str) -> None:
    keys = await Keys.open(read_url, create=False)
    try:
        stored = {key.key_id: key for key in await keys.all()}
        unrevoked = {key.key_id for key in await keys.unrevoked()}
    finally:
        await keys.close()
    facts = FACTS_RECORDED["keys"]
    assert stored.keys() == {key["key_id"] for key in facts}
    assert unrevoked == {key["key_id"] for key in facts if not key["is_revoked"]}
    for key in facts:
        stored_key = stored[key["key_id"]]
        assert (stored_key.role, stored_key.partition, stored_key.name) == (key["role"], key["partition"], key["name"])
        assert stored_key.hash == digest(key["text"])


async def test_a_recorded_database_is_written_further(store: SQLStore) -> None:
    waiting = await store.query_rollouts(status_in=["queuing", "requeuing"])
    claimed = await store.dequeue_many_rollouts(99, "worker-new")
    assert {rollout.rollout_id for rollout in claimed} == {rollout.rollout_id for rollout in waiting}
    for rollout in claimed:
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    # The recorded story drew a number of one rollout, when draws were not in the log yet.
    amended = next(rollout for rollout in claimed if rollout.input == ["as", "a list"])
    drawn = await store.get_many_span_sequence_ids([(amended.rollout_id, "any"), ("ro-unknown", "any")])
    assert drawn == [2, 2]
    last = (await store.log.history(amended.rollout_id))[-1]
    assert (last.type, last.data) == (SpanNumbersReserved.type, {"first": 2, "until": 33})
    report = await store.log.verify()
    assert report.differences == []
    assert report.events > FACTS_RECORDED["main"]["events"]


# In the recorded databases, spans and reports of attempts have no actor. All other bytes are the same.
CHAIN_HEADS = {
    "main": "c8f388da483dad9f19a9a94343733da0f11c7bd3107bb6e12036130dc7e9cbca",
    "second": "9baa6c33ef902247640fd43c87387939ec10e6d7a5708771c6b7223d17eac3cd",
}


async def test_the_same_calls_at_the_same_times_write_the_same_bytes(empty_url: str) -> None:
    # The chain head covers every byte of the log. Keys are not in it.
    written = await recording.write(empty_url)
    expected = {name: {**FACTS_RECORDED[name], "chain_head": head} for name, head in CHAIN_HEADS.items()}
    assert written | {"keys": FACTS_RECORDED["keys"]} == FACTS_RECORDED | expected


def test_the_recording_has_every_type_of_event_and_every_status() -> None:
    types = FACTS_RECORDED["main"]["types"]
    # Nothing writes the first, and the others are younger than the recording.
    unrecorded = (
        BodyDropped,
        MetricsLogged,
        RewardScored,
        RolloutScanned,
        ScannerAdded,
        SpanNumbersReserved,
        StoreBodiesDropped,
        StoreBlobsDropped,
        StoreCopiedFrom,
    )
    assert types.keys() == FACTS.keys() - {fact.type for fact in unrecorded}
    rollouts = recording.load_json(recording.ANSWERS)["rollouts"]
    assert {rollout["status"] for rollout in rollouts} == set(get_args(RolloutStatus))
    attempts = {rollout["attempt"]["status"] for rollout in rollouts if "attempt" in rollout}
    assert attempts == set(get_args(AttemptStatus))
    assert {name for name, rows in FACTS_RECORDED["main"]["rows"].items() if not rows} == set(YOUNGER)
