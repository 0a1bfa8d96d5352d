"""Scores are compared with the log, and repaired from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from store.interface.store import Store
from store.models import AttemptedRollout, NewScore, ScoreError
from store.testing import ManualClock
from tests.journal.copies import opened_copy
from tests.journal.database_helpers import contents, run_sql
from tests.verification.filled import ON_SQLITE, Filled


@pytest.fixture
async def scored(copy_url: str, clock: ManualClock) -> AsyncIterator[Filled]:
    async with opened_copy(_score, copy_url, clock) as (url, store, first):
        yield Filled(url, store, first, clock)


async def _score(store: Store, _: ManualClock) -> AttemptedRollout:
    first, other = await store.start_rollout({"n": 1}), await store.start_rollout({"n": 2})
    error = ScoreError(type="ValueError", message="no answer")
    values: list[tuple[AttemptedRollout, str, dict[str, Any]]] = [
        (first, "v1", {"error": error, "code_sha256": "ab"}),
        (first, "v1", {"value": 0.1 + 0.2, "dimensions": {"tone": 1e-7}}),
        (other, "v2", {"value": -1e300}),
    ]
    for rollout, version, fields in values:
        ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        await store.annotations.record_scores([NewScore(**ids, name="a", version=version, **fields)])
    return first


async def test_scores_are_in_the_report_and_in_the_state_hash(scored: Filled) -> None:
    report = await scored.report()
    assert (report.differences, report.rows["scores"]) == ([], 3)
    assert (await scored.store.log.rebuild()).state_hash == report.state_hash
    await run_sql(scored.url, "UPDATE scores SET value = 5 WHERE version = 'v2'")
    assert (await scored.report()).state_hash != report.state_hash


async def test_deleted_and_added_scores_are_repaired(scored: Filled) -> None:
    before = await contents(scored.url, ["scores"])
    await run_sql(scored.url, "DELETE FROM scores WHERE version = 'v1'")
    for owner in (scored.first.rollout_id, "ro-none"):
        await run_sql(
            scored.url,
            "INSERT INTO scores (rollout_id, position, attempt_id, name, version, value)"
            f" VALUES ('{owner}', 1, 'at-x', 'a', 'v9', 1)",
        )
    assert {difference.check for difference in await scored.differences()} == {"scores"}
    assert (await scored.store.log.rebuild()).written == {"scores": 4}
    assert await contents(scored.url, ["scores"]) == before
    assert await scored.differences() == []


@pytest.mark.parametrize(
    "column,value",
    [("value", "1"), ("error", "NULL"), ("dimensions", "'[]'"), ("code_sha256", "'cd'"), ("version", "'v0'")],
)
@ON_SQLITE
async def test_changed_columns_are_named_and_repaired(scored: Filled, column: str, value: str) -> None:
    before = await contents(scored.url, ["scores"])
    await run_sql(scored.url, f"UPDATE scores SET {column} = {value} WHERE rollout_id = '{scored.first.rollout_id}'")
    assert {(difference.check, difference.field) for difference in await scored.differences()} == {("scores", column)}
    await scored.store.log.rebuild()
    assert await contents(scored.url, ["scores"]) == before
