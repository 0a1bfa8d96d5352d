"""Routes of scores."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from store.models.queries import PastQuery
from store.models.scores import RewardVersion, Score
from store.server.call import Call
from store.server.routing import OwnStatusRoute, needs
from store.wire import paths
from store.wire.encoding import dumps
from store.wire.score_bodies import ScoresQuery

scores = APIRouter(route_class=OwnStatusRoute, tags=["Scores"])


@scores.post(paths.SCORES_SEARCH, response_model=list[Score])
@needs("reader")
async def search_scores(call: Call, query: ScoresQuery) -> bytes:
    """Return the last score of each attempt, name and version."""
    return dumps(
        await call.store.annotations.query_scores(
            query.rollout_id, reward_version=query.reward_version, as_at=query.as_at
        )
    )


@scores.get(paths.SCORE_VERSIONS, response_model=list[RewardVersion])
@needs("reader")
async def query_reward_versions(call: Call, query: Annotated[PastQuery, Query()]) -> bytes:
    """Return the versions of rewards for which the store has scores."""
    return dumps(await call.store.annotations.query_reward_versions(as_at=query.as_at))
