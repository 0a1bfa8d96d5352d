"""The verification of a sample finds differences at the end of the log and in the streams of the sample."""

from __future__ import annotations

import pytest

from store.models import Difference
from store.sql.store import SQLStore
from store.verification.sample import SampleReport, verify_sample
from tests.journal.database_helpers import ask, run_sql, tamper
from tests.verification.filled import ON_SQLITE, Filled


async def sampled(filled: Filled, *, commits: int = 1000, streams: int = 300) -> SampleReport:
    """Verify a sample; by default it is so large that it contains every stream."""
    store = filled.store
    assert isinstance(store, SQLStore)
    verifying = verify_sample(store.core.dialect, store.store_id, commits=commits, streams=streams)
    report = await (store.core.thread.run(verifying) if store.core.dialect.loop_bound else verifying)
    assert report.difference_count == len(report.differences)
    return report


async def differences(filled: Filled) -> list[Difference]:
    return (await sampled(filled)).differences


async def test_an_intact_store_has_no_differences(filled: Filled) -> None:
    report = await sampled(filled)
    full = await filled.report()
    assert (report.differences, report.commits) == ([], full.commits)
    ((last, streams),) = await ask(
        filled.url,
        "SELECT max(commit_id), (SELECT count(DISTINCT stream) FROM events WHERE stream LIKE '%/%') FROM commits",
    )
    assert report.commit_id == int(last)
    assert 1 < report.streams <= int(streams)


@pytest.mark.parametrize("commits", [1, 2, 5])
@ON_SQLITE
async def test_only_the_last_commits_are_checked(filled: Filled, commits: int) -> None:
    report = await sampled(filled, commits=commits)
    assert (report.commits, report.differences) == (commits, [])


@ON_SQLITE
async def test_an_empty_store_has_no_differences(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('empty') / 'empty.db'}"
    del filled
    async with await SQLStore.open(url) as store:
        report = await verify_sample(store.core.dialect, store.store_id)
    assert (report.commits, report.streams, report.commit_id, report.differences) == (0, 0, 0, [])


async def test_a_changed_row_of_a_stream_in_the_sample_is_found(filled: Filled) -> None:
    rollout_id = filled.first.rollout_id
    await run_sql(filled.url, f"UPDATE rollouts SET status = 'cancelled' WHERE rollout_id = '{rollout_id}'")
    assert ("rollouts", rollout_id, "status") in [
        (difference.check, difference.key, difference.field) for difference in await differences(filled)
    ]


@ON_SQLITE
async def test_a_lost_row_and_a_row_without_a_stream_are_found(filled: Filled) -> None:
    await run_sql(filled.url, "DELETE FROM workers", "DELETE FROM spans")
    assert {"workers", "spans"} <= {difference.check for difference in await differences(filled)}


async def test_a_changed_event_at_the_end_is_found_and_one_before_it_is_not(filled: Filled) -> None:
    ((last,),) = await ask(filled.url, "SELECT max(position) FROM events")
    await tamper(filled.url, f"UPDATE events SET actor = 'someone' WHERE position = {last}")
    (difference,) = (await sampled(filled, commits=1)).differences
    assert (difference.check, difference.field) == ("chain", "chain_hash")
    await filled.store.enqueue_rollout("one more commit")
    assert (await sampled(filled, commits=1)).differences == []


@ON_SQLITE
async def test_a_wrong_total_is_found(filled: Filled) -> None:
    await tamper(
        filled.url, "UPDATE commits SET spans = spans + 1 WHERE commit_id = (SELECT max(commit_id) FROM commits)"
    )
    assert {difference.check for difference in (await sampled(filled, commits=3)).differences} == {"totals"}
