"""The route that returns the current frames of a run, for clients that cannot read a stream.

A frame is one message of the stream of a run: an event, or a change of the run's state.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from store.errors import Unsupported
from store.models import RunFrame
from store.models.enums import Frozen
from store.server.api_schema import STREAMED
from store.server.call import Call
from store.server.routing import Id, OwnStatusRoute, needs
from store.server.streaming.run_feed import RunStreamQuery, resumed
from store.sql.database import database_of
from store.wire import paths
from store.wire.encoding import dumps

following = APIRouter(route_class=OwnStatusRoute, tags=["Run events"])


class RunFramesQuery(RunStreamQuery):
    """GET /rollouts/{rollout_id}/events/stream by a client that accepts no stream."""

    limit: int = Field(default=1000, ge=2, le=10_000)
    """The maximum number of frames."""


class RunFrames(Frozen):
    """The frames of a run that are available now."""

    frames: list[RunFrame]
    """The frames. For the next frames, send `seq` of the last frame as `after`, and its `until` as `until`."""


@following.get(paths.RUN_STREAM, response_model=RunFrames, responses={200: STREAMED})
@needs("reader")
async def run_frames(call: Call, rollout_id: Id, query: Annotated[RunFramesQuery, Query()]) -> bytes:
    """Return the frames of the run that are available now; a stream also returns later frames."""
    query = resumed(call, query)
    database = database_of(call.store)
    if database is None:
        raise Unsupported("frames of runs without a stream", type(call.store).__name__)
    runs = database.runs
    source = runs.source(rollout_id, bodies=query.bodies)
    reader = runs.following(source, rollout_id, query.view, query.after, query.until, goes_on=False)
    frames: list[RunFrame] = []
    async with aclosing(reader.frames(query.view)) as stream:
        async for frame in stream:
            frames.append(frame)
            if len(frames) == query.limit:
                break
    return dumps({"frames": frames})
