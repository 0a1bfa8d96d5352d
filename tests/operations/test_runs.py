"""A scheduled operation is run by one process at a time, and its result or error is stored in the database."""

# ruff: noqa: ASYNC240 (the files are small, and nothing else runs in the loop)

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.db.dialect import dialect_for
from store.db.queries import operation_runs
from store.db.queries.operation_runs import Operation, OperationRun, RunResult
from store.db.url import parse
from store.errors import NotFound
from store.models import EnqueueRolloutRequest, Seal, VerifyReport
from store.operations import RetentionPolicy, compression, copy_store, restore_store
from store.operations.run import RunOrder, RunOutcome, run
from store.runtime.clock import system_clock
from store.sql.store import SQLStore
from store.verification import verify as verification
from tests.journal.database_helpers import ask, run_sql, tamper
from tests.operations.conftest import MakeURL
from tests.operations.filled_stores import assert_equal
from tests.operations.payloads import ON_SQLITE
from tests.operations.work import ENOUGH

pytestmark = pytest.mark.slow

POLICY = RetentionPolicy.of(older_than=0.001)


@pytest.fixture
async def url(durable_url: str) -> str:
    """The URL of a store with a few rollouts."""
    async with await open_store(durable_url) as store:
        for number in range(3):
            rollout = await store.start_rollout({"question": number})
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    return durable_url


async def runs(url: str) -> dict[str, OperationRun]:
    """Return the last run of each operation."""
    async with await SQLStore.open(url, read_only=True) as store:
        return await store.core.look(operation_runs.all_runs)


async def ordered(url: str, operation: Operation, **fields: Any) -> RunOutcome:
    """Run an operation after its last run."""
    last = (await runs(url)).get(operation)
    return await run(RunOrder(url=url, operation=operation, seen=None if last is None else last.attempted_at, **fields))


async def claimed(url: str, operation: Operation, runner: str, lease_seconds: float = 60) -> OperationRun | None:
    """Claim an operation as another process does."""
    last = (await runs(url)).get(operation)
    parsed = parse(url)
    dialect = dialect_for(parsed)(parsed, None)
    await dialect.open(create=False)
    try:
        seen = None if last is None else last.attempted_at
        return await operation_runs.claim(dialect, operation, runner, seen=seen, lease_seconds=lease_seconds)
    finally:
        await dialect.close()


@pytest.mark.parametrize("operation", ["verify", "verify_sample"])
async def test_the_result_of_a_verification_is_stored(url: str, operation: Operation) -> None:
    before = system_clock()
    outcome = await ordered(url, operation)
    assert (outcome.state, outcome.differences) == ("done", 0)
    by_operation = await runs(url)
    assert by_operation.keys() == {operation}
    last = by_operation[operation]
    assert before <= last.attempted_at <= (last.started_at or 0) <= (last.ended_at or 0) <= system_clock()
    ((commit_id,),) = await ask(url, "SELECT max(commit_id) FROM commits")
    assert (last.runner, last.lease_until, last.runs, last.failures, last.error) == (None, None, 1, 0, None)
    assert (last.commit_id, last.differences, last.version) == (int(commit_id), 0, "0.1.0")


@ON_SQLITE
async def test_the_results_are_no_part_of_the_log_and_of_the_state(url: str) -> None:
    async with await open_store(url) as store:
        before = await store.log.verify()
        await ordered(url, "verify_sample")
        after = await store.log.verify()
    assert (after.ok, after.chain_head, after.state_hash) == (True, before.chain_head, before.state_hash)
    assert (await runs(url))["verify"].runs == 2


@ON_SQLITE
async def test_differences_of_a_sample_are_followed_by_a_verification_of_the_whole_store(url: str) -> None:
    await run_sql(url, "UPDATE rollouts SET status = 'failed'")
    outcome = await ordered(url, "verify_sample")
    assert (outcome.state, outcome.differences) == ("done", 3)
    by_operation = await runs(url)
    assert by_operation["verify"].differences == 3
    assert 1 <= (by_operation["verify_sample"].differences or 0) <= 3


async def test_a_sample_that_cannot_be_read_is_followed_by_a_verification_of_the_whole_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'wrong.db'}"
    async with await open_store(url) as store:
        await store.enqueue_rollout(1)
    # SQLite stores a value of any type in any column.
    await run_sql(url, "UPDATE rollouts SET first_position = 'x', input_position = X'FF'")
    assert (await ordered(url, "verify_sample")).differences
    assert (await runs(url))["verify"].differences


async def test_only_one_of_several_processes_runs_an_operation(url: str) -> None:
    order = RunOrder(url=url, operation="verify", seen=None)
    outcomes = await asyncio.gather(*(run(order) for _ in range(3)))
    assert sorted(outcome.state for outcome in outcomes) == ["done", "skipped", "skipped"]
    # An order that was written before the last run is void, so a late server does not repeat it.
    assert (await run(order)).state == "skipped"
    assert (await runs(url))["verify"].runs == 1


async def test_an_operation_of_a_killed_process_is_free_when_its_lease_has_ended(url: str) -> None:
    first = await claimed(url, "verify", "elsewhere:1")
    assert first is not None
    assert first.state(system_clock()) == "running"
    assert (await ordered(url, "verify")).state == "skipped"
    await run_sql(url, f"UPDATE operation_runs SET lease_until = {system_clock() - 1}")
    assert (await runs(url))["verify"].state(system_clock()) == "interrupted"
    assert (await ordered(url, "verify")).state == "done"


async def test_a_process_that_was_taken_over_stores_nothing(url: str) -> None:
    assert await claimed(url, "backup", "slow:1", lease_seconds=0.001)
    await asyncio.sleep(0.01)
    assert await claimed(url, "backup", "fast:2")
    parsed = parse(url)
    dialect = dialect_for(parsed)(parsed, None)
    await dialect.open(create=False)
    assert not await operation_runs.renew(dialect, "backup", "slow:1", lease_seconds=60)
    await operation_runs.fail(dialect, "backup", "too late", runner="slow:1")
    await operation_runs.succeed(dialect, "backup", RunResult(1, 1, None, "too late"), runner="slow:1")
    assert await operation_runs.renew(dialect, "backup", "fast:2", lease_seconds=60)
    await dialect.close()
    last = (await runs(url))["backup"]
    assert (last.runner, last.runs, last.detail) == ("fast:2", 0, None)


async def test_a_lease_is_extended_while_the_operation_works(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verify, renew = verification.verify, operation_runs.renew
    renewed = asyncio.Event()
    leases: list[int] = []

    async def lease() -> int:
        return (await runs(url))["verify"].lease_until or 0

    async def renew_and_notify(*arguments: Any, **named: Any) -> bool:
        has_claim = await renew(*arguments, **named)
        renewed.set()
        return has_claim

    async def verify_slowly(*arguments: Any) -> VerifyReport:
        leases.append(await lease())
        renewed.clear()
        await renewed.wait()
        leases.append(await lease())
        return await verify(*arguments)

    monkeypatch.setattr(operation_runs, "renew", renew_and_notify)
    monkeypatch.setattr(verification, "verify", verify_slowly)
    outcome = await ordered(url, "verify", lease_seconds=0.15)
    assert outcome.state == "done", outcome
    assert 0 < leases[0] < leases[1]


@pytest.mark.parametrize("operation", ["verify", "compress"])
@ON_SQLITE
async def test_a_claim_that_is_extended_after_the_result_was_stored_is_no_failure(
    url: str, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_result = operation_runs.succeed

    async def store_slowly(*arguments: Any, **named: Any) -> None:
        await store_result(*arguments, **named)
        await asyncio.sleep(0.2)

    monkeypatch.setattr(operation_runs, "succeed", store_slowly)
    outcome = await ordered(url, operation, lease_seconds=0.06)
    assert outcome.state == "done", outcome
    assert (await runs(url))[operation].failures == 0


async def test_a_backup_is_a_verified_store_that_is_named_by_store_and_partition_and_time(
    url: str, make_url: MakeURL, tmp_path: Path
) -> None:
    directory = tmp_path / "backups"
    directory.mkdir()
    outcome = await ordered(url, "backup", backup_directory=directory, backup_keep=2)
    assert outcome.state == "done", outcome
    (file,) = directory.iterdir()
    async with await SQLStore.open(url) as store:
        store_id = store.store_id
    assert file.name.startswith(f"{store_id}-{parse(url).partition}-20")
    target = make_url("sqlite")
    restored = await restore_store(file, target)
    assert restored.is_verified
    assert isinstance(restored.seal, Seal)
    await assert_equal(url, target)
    assert restored.commit_id == (await runs(url))["backup"].commit_id


@ON_SQLITE
async def test_the_oldest_backups_are_deleted_and_other_files_stay(url: str, tmp_path: Path) -> None:
    other = tmp_path / "ffff-default-20200101T000000.000Z.backup"
    other.touch()
    names: list[str] = []
    for _ in range(3):
        before = set(tmp_path.iterdir())
        await ordered(url, "backup", backup_directory=tmp_path, backup_keep=2)
        names += [path.name for path in set(tmp_path.iterdir()) - before if path.suffix == ".backup"]
    assert {path.name for path in tmp_path.glob("*.backup")} == {other.name, *names[1:]}


@ON_SQLITE
async def test_a_failed_backup_deletes_nothing_and_is_stored_as_a_failure(url: str, tmp_path: Path) -> None:
    directory = tmp_path / "backups"
    directory.mkdir()
    assert (await ordered(url, "backup", backup_directory=directory, backup_keep=1)).state == "done"
    (backup,) = directory.iterdir()
    moved = directory.rename(tmp_path / "moved")
    outcome = await ordered(url, "backup", backup_directory=directory, backup_keep=1)
    assert outcome.state == "failed"
    last = (await runs(url))["backup"]
    assert (last.state(system_clock()), last.runs, last.failures, last.runner) == ("failed", 2, 1, None)
    assert last.error
    assert last.detail is not None  # of the last backup that was made
    assert backup.name in last.detail
    assert [path.name for path in moved.iterdir()] == [backup.name]
    moved.rename(directory)
    assert (await ordered(url, "backup", backup_directory=directory, backup_keep=1)).state == "done"
    last = (await runs(url))["backup"]
    assert (last.state(system_clock()), last.error, last.failures) == ("succeeded", None, 1)


@ON_SQLITE
async def test_a_backup_of_a_damaged_log_deletes_no_older_one(url: str, tmp_path: Path) -> None:
    await ordered(url, "backup", backup_directory=tmp_path, backup_keep=1)
    before = sorted(tmp_path.glob("*.backup"))
    await tamper(url, "UPDATE events SET actor = 'someone' WHERE position = 1")
    outcome = await ordered(url, "backup", backup_directory=tmp_path, backup_keep=1)
    assert outcome.state == "failed"
    assert "the copy has" in outcome.detail
    assert sorted(tmp_path.glob("*.backup")) == before


@ON_SQLITE
async def test_a_backup_that_was_killed_before_its_renaming_is_kept(url: str, tmp_path: Path) -> None:
    await ordered(url, "backup", backup_directory=tmp_path, backup_keep=5)
    (file,) = tmp_path.glob("*.backup")
    unfinished = file.with_name(file.name[: -len("-20261126T111340.888Z.backup")] + ".unfinished")
    shutil.move(file, unfinished)
    assert (await ordered(url, "backup", backup_directory=tmp_path, backup_keep=5)).state == "done"
    assert len(list(tmp_path.glob("*.backup"))) == 2
    assert not unfinished.exists()


@ON_SQLITE
async def test_a_backup_that_was_killed_during_its_renaming_is_kept_once(url: str, tmp_path: Path) -> None:
    await ordered(url, "backup", backup_directory=tmp_path, backup_keep=2)
    (file,) = tmp_path.glob("*.backup")
    unfinished = file.with_name(file.name[: -len("-20261126T111340.888Z.backup")] + ".unfinished")
    unfinished.hardlink_to(file)
    assert (await ordered(url, "backup", backup_directory=tmp_path, backup_keep=2)).state == "done"
    backups = sorted(tmp_path.glob("*.backup"))
    assert (len(backups), backups[0]) == (2, file)
    assert not unfinished.exists()


@ON_SQLITE
async def test_payload_is_removed_by_the_policy(url: str) -> None:
    await asyncio.sleep(0.01)
    outcome = await ordered(url, "retention", retention=POLICY)
    assert outcome.state == "done"
    assert outcome.detail.startswith("payload of 3 rollouts")
    async with await open_store(url) as store:
        assert (await store.log.verify()).ok


@ON_SQLITE
async def test_new_payload_is_compressed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENOUGH.items():
        monkeypatch.setattr(compression, name, value)
    async with await open_store(url) as store:
        requests = [EnqueueRolloutRequest(input={"question": f"{number} + 1", "unit": "km"}) for number in range(600)]
        await store.enqueue_many_rollouts(requests)
    assert (
        await ordered(url, "compress")
    ).detail == "compressed: payload of 600 events, data of 512 events; new dictionaries: 1"
    assert (
        await ordered(url, "compress")
    ).detail == "compressed: payload of 0 events, data of 0 events; new dictionaries: 0"
    async with await open_store(url) as store:
        await store.enqueue_rollout({"question": "600 + 1", "unit": "km"})
    assert (
        await ordered(url, "compress")
    ).detail == "compressed: payload of 1 events, data of 0 events; new dictionaries: 0"
    async with await open_store(url) as store:
        assert (await store.log.verify()).ok


@pytest.mark.parametrize("operation, missing", [("backup", "directory"), ("retention", "policy")])
@ON_SQLITE
async def test_an_order_without_its_settings_fails(url: str, operation: Operation, missing: str) -> None:
    outcome = await ordered(url, operation)
    assert outcome.state == "failed"
    assert missing in outcome.detail


async def test_a_database_that_is_no_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await run(RunOrder(url=f"sqlite:///{tmp_path / 'none.db'}", operation="verify", seen=None))


@ON_SQLITE
async def test_a_copy_has_no_results_of_the_operations_on_its_source(url: str, make_url: MakeURL) -> None:
    await ordered(url, "verify_sample")
    target = make_url("sqlite")
    await copy_store(url, target)
    by_operation = await runs(target)
    assert by_operation.keys() == {"verify"}  # the verification of the copy
    assert by_operation["verify"].differences == 0
