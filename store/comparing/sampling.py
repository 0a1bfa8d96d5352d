"""The rollouts of a selection that are farthest from the median. Decision 124.

The distance of a number is |x - median| / MAD, where MAD is the median of the distances from the median. If more than
half of the numbers are equal, MAD is 0 and the mean of the distances is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

import orjson

from store.comparing.selections import text_of
from store.db.dialect import ReadSession
from store.db.queries.compared_rollouts import ComparedRow, compared_rows
from store.db.queries.input_starts import input_starts
from store.db.queries.rollout_list import RolloutListQuery
from store.domain.usage import has_usage
from store.errors import Invalid
from store.models.exploring import RolloutSample, SampledRollout, Spread
from store.models.missing_rewards import ENDED, MissingReward

SIZE: Final = 5
MOST_SAMPLED: Final = 200
_TEXT_CHARACTERS: Final = 400


def check_size(size: int) -> None:
    """Check the number of rollouts of a sample.

    Raises:
        Invalid: the number is not valid.
    """
    if not 1 <= size <= MOST_SAMPLED:
        raise Invalid("size", f"must lie between 1 and {MOST_SAMPLED}")


def spread_of(numbers: Sequence[float]) -> Spread:
    """Return the median of finite numbers, and their deviation from it."""
    if not numbers:
        return Spread(count=0, median=None, deviation=None)
    # The sum of two numbers of the middle could overflow.
    middle = 2 * median([number / 2 for number in numbers])
    distances = [abs(number / 2 - middle / 2) for number in numbers]
    deviation = median(distances) or math.fsum(distance / len(distances) for distance in distances)
    return Spread(count=len(numbers), median=middle, deviation=min(2 * deviation, 1.7e308))


def distance_of(number: float | None, spread: Spread) -> float | None:
    """Return the distance of a number from the median, in deviations; None for an unknown number."""
    if number is None or spread.median is None or spread.deviation is None:
        return None
    distance = abs(number / 2 - spread.median / 2)
    return min(distance / (spread.deviation / 2), 1e300) if distance and spread.deviation else 0.0


async def sampled_rollouts(
    session: ReadSession, query: RolloutListQuery, missing: MissingReward, size: int = SIZE
) -> RolloutSample:
    """Return the ended rollouts of a selection that are farthest from the median, the farthest first.

    Args:
        session: a session that reads one state of the store.
        query: the selection.
        missing: how ended rollouts without a reward count.
        size: the maximum number of rollouts.

    Raises:
        TooLarge: the selection has too many rollouts.
    """
    ended = [row for row in await compared_rows(session, query, "sample") if row.status in ENDED]
    rewards = {row.rollout_id: missing.counted(row.status, row.last_reward) for row in ended}
    tokens = {row.rollout_id: row.tokens_out for row in ended if has_usage(row.tokens_in, row.tokens_out)}
    of_rewards = spread_of([value for value in rewards.values() if value is not None])
    of_tokens = spread_of(list(tokens.values()))

    def distances(row: ComparedRow) -> tuple[float | None, float | None]:
        return distance_of(rewards[row.rollout_id], of_rewards), distance_of(tokens.get(row.rollout_id), of_tokens)

    def distance(row: ComparedRow) -> float:
        return max((value for value in distances(row) if value is not None), default=0.0)

    farthest = sorted(ended, key=lambda row: (-distance(row), row.rollout_id))[:size]
    texts = await input_starts(session, [row.rollout_id for row in farthest], _TEXT_CHARACTERS)
    rollouts: list[SampledRollout] = []
    for row in farthest:
        reward_distance, tokens_distance = distances(row)
        rollouts.append(
            SampledRollout(
                rollout_id=row.rollout_id,
                task=row.input_sha256,
                text=texts.get(row.rollout_id),
                status=row.status,
                step=row.step,
                reward=row.last_reward,
                counted=rewards[row.rollout_id],
                tokens_out=tokens.get(row.rollout_id),
                distance=distance(row),
                reward_distance=reward_distance,
                tokens_distance=tokens_distance,
                error_type=orjson.loads(row.error).get("type") if row.error and row.status == "failed" else None,
            )
        )
    return RolloutSample(
        selection=text_of(query),
        unrewarded=str(missing),
        ended=len(ended),
        rewarded=sum(row.last_reward is not None for row in ended),
        reward=of_rewards,
        tokens=of_tokens,
        rollouts=rollouts,
    )
