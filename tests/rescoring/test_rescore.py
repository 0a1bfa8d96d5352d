"""Reward functions run over past rollouts, and every rollout gets a value or the reason why it has none."""

from __future__ import annotations

from typing import Any

import pytest

from store import Conflict, Invalid, NotFound, RolloutQuery, Score, open_store, rescore
from store.rescoring.report import CurvePoint
from store.validation import json_limits
from tests.conftest import SQLITE
from tests.rescoring.conftest import add_rollouts

pytestmark = pytest.mark.usefixtures("forked_workers")

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
HERE = "tests.rescoring.rewards"


async def scores_of(url: str, version: str) -> dict[int, Score]:
    """Return the scores of a version by the number of the rollout."""
    async with await open_store(url) as store:
        numbers = {rollout.rollout_id: rollout.input["n"] for rollout in await store.query_rollouts()}
        scores = await store.annotations.query_scores(list(numbers), reward_version=version)
        assert (await store.log.verify()).ok
    return {numbers[score.rollout_id]: score for score in scores}


async def test_ended_rollouts_get_scores_with_all_that_the_function_returned(filled_url: str) -> None:
    report = await rescore(filled_url, f"{HERE}:helpful@v1", processes=2)
    assert (report.selected, report.scored, report.failed, report.not_ended) == (11, 10, 0, 1)
    scores = await scores_of(filled_url, "helpful@v1")
    assert {number: score.value for number, score in scores.items()} == {number: number - 2 for number in range(10)}
    assert scores[4].dimensions == {"spans": 2.0, "recorded": 2.0}
    assert scores[4].explanation == "it is 4"
    assert {score.code_sha256 for score in scores.values()} == {report.code_sha256}
    assert (report.determinism.rollouts, report.determinism.different) == (10, 0)
    # Each score is n - 2 where n / 2 was recorded.
    assert report.difference is not None
    assert report.difference.mean == pytest.approx(0.25)
    assert report.difference.low == pytest.approx(0.25 - 2.2622 * 1.5138 / 10**0.5, abs=1e-3)
    assert report.curve[1] == CurvePoint(mode="train", step=1, rollouts=2, recorded=1.25, scored=0.5)
    signs = {(change.before, change.after) for change in report.sign_changed}
    assert signs == {(0.0, -2.0), (0.5, -1.0), (1.0, 0.0)}
    async with await open_store(filled_url) as store:
        rollouts = await store.query_rollouts(reward_version="helpful@v1", reward_min=6, sort_by="reward")
        assert [rollout.reward for rollout in rollouts] == [6.0, 7.0]


@ON_SQLITE
async def test_repeated_run_scores_only_new_rollouts_and_reports_all(filled_url: str) -> None:
    query = RolloutQuery(group_in=["g1"])
    first = await rescore(filled_url, f"{HERE}:helpful@v1", query=query, processes=1)
    assert (first.selected, first.scored) == (5, 5)
    plan = await rescore(filled_url, f"{HERE}:helpful@v1", dry_run=True)
    assert (plan.is_dry_run, plan.scored, plan.scored_before, plan.not_ended) == (True, 5, 5, 1)
    rest = await rescore(filled_url, f"{HERE}:helpful@v1", processes=1)
    assert (rest.scored, rest.scored_before) == (5, 5)
    again = await rescore(filled_url, f"{HERE}:helpful@v1")
    assert (again.scored, again.scored_before, again.difference) == (0, 10, rest.difference)
    compared = await rescore(
        filled_url, f"{HERE}:helpful@v1", query=RolloutQuery(reward_version="helpful@v1"), dry_run=True
    )
    assert compared.difference is not None
    assert compared.difference.mean == 0
    assert len(await scores_of(filled_url, "helpful@v1")) == 10


@ON_SQLITE
async def test_failures_are_those_of_their_rollouts_and_of_no_other(filled_url: str) -> None:
    report = await rescore(filled_url, f"{HERE}:behaving@v1", processes=2, timeout=1, sample_twice=0)
    assert (report.scored, report.failed, report.conflicts) == (1, 9, 0)
    scores = await scores_of(filled_url, "behaving@v1")
    errors = {number: (score.error.type, score.error.message) for number, score in scores.items() if score.error}
    assert errors.keys() == set(range(9))
    assert errors[0][0] == "ValueError"
    assert len(errors[0][1]) == 200
    assert errors[0][1].startswith("no �answer xxx")
    assert errors[1] == ("ValueError", "the function returned nan, which is not finite")
    assert errors[2] == ("TypeError", "the function returned str, not a number")
    assert errors[3][0] == "TypeError"
    assert "'score'" in errors[3][1]
    assert errors[4] == ("SystemExit", "left")
    assert errors[5] == ("ProcessEnded", "the function ended its process with code 7")
    assert errors[6] == ("ProcessEnded", "the function ended its process by signal 9")
    assert errors[7] == ("TimeoutError", "no result within 1 s")
    assert errors[8][0] == "Invalid"
    assert scores[9].value == 9
    repeated = await rescore(filled_url, f"{HERE}:behaving@v1", processes=1)
    assert (repeated.scored, repeated.failed, repeated.failed_before) == (0, 0, 9)


@ON_SQLITE
async def test_async_function_that_blocks_or_ends_its_process_costs_no_other_rollout(filled_url: str) -> None:
    report = await rescore(filled_url, f"{HERE}:judge@v1", processes=1, concurrency=5, timeout=1, sample_twice=0)
    assert (report.scored, report.failed) == (7, 3)
    scores = await scores_of(filled_url, "judge@v1")
    errors = {number: score.error.type for number, score in scores.items() if score.error}
    assert errors == {1: "TimeoutError", 2: "TimeoutError", 3: "ProcessEnded"}
    retried = await rescore(
        filled_url, f"{HERE}:later@v1", name="judge", processes=1, retry_failures=True, allow_changed_code=True
    )
    assert (retried.scored, retried.scored_before) == (3, 7)
    assert [score.value for _, score in sorted((await scores_of(filled_url, "judge@v1")).items())] == [*range(10)]


@ON_SQLITE
async def test_threads_that_hang_and_unusual_errors_cost_no_other_rollout(filled_url: str) -> None:
    report = await rescore(filled_url, f"{HERE}:blocking@v1", processes=1, concurrency=4, timeout=1.5, sample_twice=0)
    assert (report.scored, report.failures_by_type) == (1, {"TimeoutError": 8, "Unreadable": 1})
    assert (await scores_of(filled_url, "blocking@v1"))[8].value == 8


@ON_SQLITE
async def test_explanations_that_are_too_long_for_one_call_are_recorded_by_several(
    filled_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_limits, "MAX_CALL_BYTES", 100_000)
    report = await rescore(filled_url, f"{HERE}:talkative@v1", processes=1, sample_twice=0)
    assert (report.scored, report.failed) == (10, 0)


@ON_SQLITE
async def test_random_reward_is_reported(filled_url: str) -> None:
    report = await rescore(filled_url, f"{HERE}:random_reward@v1", processes=1, sample_twice=10)
    assert (report.determinism.rollouts, report.determinism.different) == (10, 5)


@ON_SQLITE
async def test_version_is_not_continued_with_other_code(filled_url: str) -> None:
    await rescore(filled_url, f"{HERE}:later@v1", name="a", query=RolloutQuery(limit=1), processes=1)
    with pytest.raises(Conflict, match="--changed-code"):
        await rescore(filled_url, f"{HERE}:helpful@v1", name="a", dry_run=True)
    plan = await rescore(filled_url, f"{HERE}:helpful@v2", name="a", dry_run=True)
    assert plan.scored == 10


@ON_SQLITE
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"reward": "rewards"}, "module:function@version"),
        ({"reward": f"{HERE}:helpful"}, "module:function@version"),
        ({"reward": "no.module:f@v1"}, "cannot be imported"),
        ({"reward": f"{HERE}:missing@v1"}, "missing"),
        ({"reward": f"{HERE}:HANG_SECONDS@v1"}, "no function"),
        ({"timeout": 0}, "above 0"),
        ({"processes": 0}, "processes"),
        ({"concurrency": 0}, "concurrency"),
        ({"url": "memory://"}, "memory://"),
        ({"query": RolloutQuery(as_at=1)}, "past"),
    ],
)
async def test_wrong_arguments_are_refused(filled_url: str, arguments: dict[str, Any], message: str) -> None:
    every: dict[str, Any] = {"url": filled_url, "reward": f"{HERE}:later@v1", **arguments}
    with pytest.raises(Invalid, match=message):
        await rescore(**every)


async def test_store_that_does_not_exist_is_not_created(durable_url: str) -> None:
    if durable_url.startswith("postgres"):
        pytest.skip("the partition exists")
    with pytest.raises(NotFound):
        await rescore(durable_url, f"{HERE}:later@v1")


@ON_SQLITE
async def test_rollouts_added_during_a_run_are_scored_by_the_next(filled_url: str) -> None:
    await rescore(filled_url, f"{HERE}:later@v1", processes=1)
    async with await open_store(filled_url) as store:
        (added,) = await add_rollouts(store, [20])
        again = await store.start_attempt(added)
        await store.update_attempt(added, again.attempt.attempt_id, "succeeded")
    report = await rescore(filled_url, f"{HERE}:later@v1", processes=1)
    assert (report.scored, report.scored_before) == (1, 10)
