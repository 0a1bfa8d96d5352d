"""Contract of scores: versioned rewards that are facts, never change, and are read by their version."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Conflict, Invalid, NotFound, TooLarge
from store.interface.store import Store
from store.models import AttemptedRollout, NewScore, RewardVersion, ScoreError
from store.testing.contract.reward_queries import ids, rewarded
from store.testing.contract.rollout_helpers import reread, started

__all__ = ["ScoresContract"]

FAILURE = ScoreError(type="ValueError", message="no answer")


def score(rollout: AttemptedRollout, value: float | None = None, /, **fields: Any) -> NewScore:
    """Return a score of the first version of a reward for the attempt of a rollout."""
    attempt_id = rollout.attempt.attempt_id
    ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": attempt_id}
    every: dict[str, Any] = {**ids, "name": "helpful", "version": "v1", "value": value, **fields}
    return NewScore(**every)


class ScoresContract:
    """Tests of scores."""

    pytestmark = pytest.mark.asyncio

    async def test_score_is_returned_as_it_was_recorded(self, store: Store) -> None:
        rollout = await started(store)
        recorded = score(
            rollout, 0.1 + 0.2, dimensions={"tone": 1.0, "length": -7.5}, code_sha256="ab", explanation="bécause\n…"
        )
        (number,) = await store.annotations.record_scores([recorded])
        (read,) = await store.annotations.query_scores(rollout.rollout_id)
        event = (await store.log.history(rollout.rollout_id))[-1]
        assert NewScore(**{name: getattr(read, name) for name in NewScore.model_fields}) == recorded
        assert (read.number, read.at) == (number, event.at) == (event.number, event.at)
        assert event.type == "reward.scored"
        assert "explanation" not in event.data

    async def test_repeated_score_is_recorded_once(self, store: Store) -> None:
        rollout = await started(store)
        other = await started(store)
        await store.annotations.record_scores([score(rollout, 1)])
        assert await store.annotations.record_scores(
            [score(rollout, 1.0, code_sha256="cd"), score(other, 1), score(other, 1)]
        ) == [
            None,
            (await store.log.history(other.rollout_id))[-1].number,
            None,
        ]
        assert len(await store.annotations.query_scores([rollout.rollout_id, other.rollout_id])) == 2

    async def test_other_value_of_a_version_is_a_conflict_and_records_nothing(self, store: Store) -> None:
        rollout, other = await started(store), await started(store)
        await store.annotations.record_scores([score(rollout, 1, dimensions={"tone": 1})])
        for changed in (score(rollout, 2), score(rollout, 1), score(rollout, error=FAILURE)):
            with pytest.raises(Conflict, match="new version"):
                await store.annotations.record_scores([score(other, 5), changed])
        with pytest.raises(Conflict, match="new version"):
            await store.annotations.record_scores([score(other, 5), score(other, 6)])
        assert await store.annotations.query_scores(other.rollout_id) == []
        await store.annotations.record_scores([score(rollout, 2, version="v2"), score(rollout, 2, name="other")])
        assert [
            (item.name, item.version, item.value) for item in await store.annotations.query_scores(rollout.rollout_id)
        ] == [
            ("helpful", "v1", 1.0),
            ("helpful", "v2", 2.0),
            ("other", "v1", 2.0),
        ]

    async def test_failure_may_be_followed_by_a_value(self, store: Store) -> None:
        rollout = await started(store)
        later = ScoreError(type="TimeoutError", message="30 s")
        for error in (FAILURE, FAILURE, later):
            await store.annotations.record_scores([score(rollout, error=error)])
        (failed,) = await store.annotations.query_scores(rollout.rollout_id)
        assert (failed.value, failed.error) == (None, later)
        assert [(item.scores, item.failures) for item in await store.annotations.query_reward_versions()] == [(0, 1)]
        await store.annotations.record_scores([score(rollout, 0.5)])
        (valued,) = await store.annotations.query_scores(rollout.rollout_id)
        assert (valued.value, valued.error) == (0.5, None)
        assert [(item.scores, item.failures) for item in await store.annotations.query_reward_versions()] == [(1, 0)]
        before = (await store.log.history(rollout.rollout_id))[-2].position
        assert await store.annotations.query_scores(rollout.rollout_id, as_at=before) == [failed]

    async def test_scoring_changes_neither_status_nor_reward_nor_end(self, store: Store) -> None:
        ended = await rewarded(store, 0.25)
        await store.update_attempt(ended.rollout_id, "latest", "succeeded")
        before = await reread(store, ended)
        await store.annotations.record_scores([score(ended, 1)])
        assert await reread(store, ended) == before

    async def test_scoring_is_no_sign_of_life(self, store: Store) -> None:
        rollout = await started(store, unresponsive_seconds=60)
        await store.annotations.record_scores([score(rollout, 1)])
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        assert (attempt.last_heartbeat_time, attempt.status) == (None, "preparing")

    async def test_queries_select_the_version_of_the_reward(self, store: Store) -> None:
        rollouts = [await rewarded(store, 0.25), await rewarded(store, 0.75), await rewarded(store)]
        first, second, third = (rollout.rollout_id for rollout in rollouts)
        await store.annotations.record_scores(
            [score(rollouts[0], 2, dimensions={"tone": 3}), score(rollouts[1], -1), score(rollouts[2], error=FAILURE)]
        )
        await store.annotations.record_scores([score(rollouts[2], 9, version="v2")])
        page = await store.query_rollouts(reward_version="helpful@v1")
        assert [rollout.reward for rollout in page] == [2.0, -1.0, None]
        assert [rollout.rewards for rollout in page] == [{"primary": 2.0, "tone": 3.0}, {"primary": -1.0}, {}]
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"reward_min": 0.0}, [first]),
            ({"reward_max": 0.0}, [second]),
            ({"reward_min": -1.0, "reward_max": 2.0, "limit": 1, "offset": 1}, [second]),
            ({"sort_by": "reward", "sort_order": "desc"}, [first, second, third]),
            ({"sort_by": "reward"}, [second, first, third]),
            ({"reward_min": 0.0, "reward_version": "helpful@v2"}, [third]),
            ({"reward_min": 0.5, "reward_version": None}, [second]),
        ]
        last = (await store.log.history(third))[-1].position
        # At an earlier moment, the rows that have changed since are computed from the log.
        for moment in (None, last):
            for arguments, expected in cases:
                selected: dict[str, Any] = {"reward_version": "helpful@v1", **arguments}
                matches = await store.query_rollouts(**selected, as_at=moment)
                assert ids(matches) == expected, arguments
            await store.annotations.record_scores([score(rollout, 7, version="v3") for rollout in rollouts])
            await store.annotations.record_scores([score(rollouts[2], 8)])

    async def test_score_of_an_earlier_attempt_does_not_count(self, store: Store) -> None:
        rollout = await rewarded(store, 0.25)
        await store.annotations.record_scores([score(rollout, 1)])
        position = (await store.log.history(rollout.rollout_id))[-1].position
        again = await store.start_attempt(rollout.rollout_id)
        (current,) = await store.query_rollouts(reward_version="helpful@v1")
        assert current.reward is None
        await store.annotations.record_scores([score(again, 2)])
        (current,) = await store.query_rollouts(reward_version="helpful@v1", reward_min=2)
        assert current.reward == 2.0
        (then,) = await store.query_rollouts(reward_version="helpful@v1", as_at=position)
        assert then.reward == 1.0

    async def test_versions_are_counted_with_the_hashes_of_their_code(self, store: Store) -> None:
        rollouts = [await started(store) for _ in range(3)]
        await store.annotations.record_scores([score(rollout, 1, code_sha256="aa") for rollout in rollouts[:2]])
        await store.annotations.record_scores([score(rollouts[2], error=FAILURE, code_sha256="bb")])
        await store.annotations.record_scores([score(rollouts[2], 1, name="a")])
        assert await store.annotations.query_reward_versions() == [
            RewardVersion(name="a", version="v1", scores=1, failures=0, code_sha256=[]),
            RewardVersion(name="helpful", version="v1", scores=2, failures=1, code_sha256=["aa", "bb"]),
        ]
        assert await store.annotations.query_reward_versions(as_at=0) == []
        assert [
            item.name for item in await store.annotations.query_scores(rollouts[2].rollout_id, reward_version="a@v1")
        ] == ["a"]

    async def test_score_needs_an_existing_attempt(self, store: Store) -> None:
        rollout = await started(store)
        for field, value in (("rollout_id", "ro-none"), ("attempt_id", "at-none")):
            with pytest.raises(NotFound, match=value):
                await store.annotations.record_scores([score(rollout, 1, **{field: value})])
        assert await store.annotations.query_scores("ro-none") == []

    async def test_malformed_scores_are_refused_by_field(self, store: Store) -> None:
        rollout = await started(store)
        cases: list[tuple[dict[str, Any], str, type[Exception]]] = [
            ({"name": "a@b"}, "scores[1].name", Invalid),
            ({"version": ""}, "scores[1].version", Invalid),
            ({"version": "v" * 65}, "scores[1].version", TooLarge),
            ({"error": FAILURE}, "scores[1].value", Invalid),
            ({"dimensions": {"two\nlines": 1}}, "scores[1].dimensions", Invalid),
            ({"dimensions": {str(number): 1 for number in range(65)}}, "scores[1].dimensions", TooLarge),
            ({"explanation": "n" * 65_537}, "scores[1].explanation", TooLarge),
        ]
        for fields, field, kind in cases:
            with pytest.raises(kind) as refused:
                await store.annotations.record_scores([score(rollout, 1), score(rollout, 1, **fields)])
            assert getattr(refused.value, "field", None) == field
        with pytest.raises(Invalid, match="either a value or an error"):
            await store.annotations.record_scores([score(rollout)])
        anything: Any = [{"value": 1}]
        with pytest.raises(Invalid, match="scores"):
            await store.annotations.record_scores(anything)
        for version in ("helpful", "@v1", "helpful@", "a@b@c"):
            with pytest.raises(Invalid, match="reward_version"):
                await store.query_rollouts(reward_version=version)
            with pytest.raises(Invalid, match="reward_version"):
                await store.annotations.query_scores(rollout.rollout_id, reward_version=version)
        assert await store.annotations.query_scores(rollout.rollout_id) == []
