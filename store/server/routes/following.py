"""Following a run without a stream: the frames that a reader would be told at once."""

from __future__ import annotations

from contextlib import aclosing

from pydantic import Field

from store.errors import Unsupported
from store.models import RunFrame
from store.models.enums import Frozen
from store.server.call import Call
from store.server.routing import Operations
from store.server.streaming.run_feed import RunStreamQuery, place_asked
from store.sql.store import SQLStore
from store.wire import paths
from store.wire.encoding import dumps

following = Operations("Run events", own_statuses=True)


class RunFramesQuery(RunStreamQuery):
    """GET /rollouts/{rollout_id}/events/stream, where no stream is accepted."""

    limit: int = Field(default=1000, ge=2, le=10_000)
    """How many frames at most."""


class RunFrames(Frozen):
    """What a reader is told at once."""

    frames: list[RunFrame]
    """The last one's `seq` and `until` are what the next request begins with."""


@following.get(paths.RUN_STREAM, query=RunFramesQuery, answer=RunFrames)
async def run_frames(call: Call) -> bytes:
    """Return what a reader of the run is told at once; as a stream, that and what comes."""
    query = place_asked(call, RunFramesQuery)
    store, rollout_id = call.store, call.ids["rollout_id"]
    if not isinstance(store, SQLStore):
        raise Unsupported("frames of runs without a stream", type(store).__name__)
    source = store.runs.source(rollout_id, bodies=query.bodies)
    way = store.runs.following(source, rollout_id, query.view, query.after, query.until, goes_on=False)
    told: list[RunFrame] = []
    async with aclosing(way.frames(query.view)) as frames:
        async for frame in frames:
            told.append(frame)
            if len(told) == query.limit:
                break
    return dumps({"frames": told})
