"""Routes of the queue, of rollouts and of their attempts."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from store.models import Attempt, PaginatedResult, Rollout
from store.models.queries import AttemptQuery, RolloutPastQuery, RolloutQuery
from store.server import cached_pages
from store.server.call import Call
from store.server.response_spool import Spool
from store.server.routes.calls import park
from store.server.routing import Id, StoreRoute, needs
from store.wire import paths
from store.wire.bodies import WaitBody
from store.wire.encoding import AnyRollout, dumps

queue = APIRouter(route_class=StoreRoute, tags=["Queue"])
rollouts = APIRouter(route_class=StoreRoute, tags=["Rollouts"])
attempts = APIRouter(route_class=StoreRoute, tags=["Attempts"])


@queue.post(paths.WAIT, response_model=list[Rollout])
@needs("reader")
async def wait_for_rollouts(call: Call, body: WaitBody) -> bytes:
    """Wait for the end of the rollouts or the timeout; return the ended rollouts. A timeout of null means no limit."""
    wait = partial(call.store.wait_for_rollouts, body.rollout_ids, body.timeout)
    waits = body.timeout is None or body.timeout > 0
    return dumps(await (park(call, wait) if waits else wait()))


@rollouts.get(paths.ROLLOUTS, response_model=PaginatedResult[AnyRollout])
@needs("reader")
async def query_rollouts(call: Call, query: Annotated[RolloutQuery, Query()]) -> bytes | Spool:
    """Find rollouts, each with its latest attempt if it has one."""
    return await cached_pages.rollouts(call.store, query)


@rollouts.post(paths.ROLLOUTS_SEARCH, response_model=PaginatedResult[AnyRollout])
@needs("reader")
async def search_rollouts(call: Call, query: RolloutQuery) -> bytes | Spool:
    """Find rollouts, each with its latest attempt if it has one."""
    return await cached_pages.rollouts(call.store, query)


@rollouts.get(paths.ROLLOUT, response_model=AnyRollout | None)
@needs("reader")
async def get_rollout(call: Call, rollout_id: Id, query: Annotated[RolloutPastQuery, Query()]) -> bytes:
    """Return a rollout, with its latest attempt if it has one, or null."""
    return dumps(await call.store.get_rollout_by_id(rollout_id, as_at=query.as_at, at=query.at))


@attempts.get(paths.ATTEMPTS, response_model=PaginatedResult[Attempt])
@needs("reader")
async def query_attempts(call: Call, rollout_id: Id, query: Annotated[AttemptQuery, Query()]) -> bytes:
    """Return the attempts of a rollout."""
    return dumps(await call.store.find_attempts(rollout_id, query))


@attempts.post(paths.ATTEMPTS_SEARCH, response_model=PaginatedResult[Attempt])
@needs("reader")
async def search_attempts(call: Call, rollout_id: Id, query: AttemptQuery) -> bytes:
    """Return the attempts of a rollout."""
    return dumps(await call.store.find_attempts(rollout_id, query))


@attempts.get(paths.LATEST_ATTEMPT, response_model=Attempt | None)
@needs("reader")
async def get_latest_attempt(call: Call, rollout_id: Id, query: Annotated[RolloutPastQuery, Query()]) -> bytes:
    """Return the attempt with the greatest sequence_id, or null."""
    return dumps(await call.store.get_latest_attempt(rollout_id, as_at=query.as_at, at=query.at))
