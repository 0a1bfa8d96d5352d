"""Routes of the queue, of rollouts and of their attempts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Query

from store.models import Attempt, AttemptedRollout, PaginatedResult, Rollout
from store.models.queries import AttemptQuery, RolloutPastQuery, RolloutQuery
from store.runtime import context
from store.server import cached_pages
from store.server.auth.admission import while_admitted
from store.server.call import Call, refuse_null
from store.server.pending import Parked
from store.server.response_spool import Spool
from store.server.routing import Id, StoreRoute, needs
from store.server.unread_claims import release_if_unread
from store.wire import paths
from store.wire.bodies import (
    ClaimRunsBody,
    DequeueBody,
    EnqueueBody,
    StartAttemptBody,
    StartRolloutBody,
    UpdateAttemptBody,
    UpdateRolloutBody,
    WaitBody,
)
from store.wire.encoding import AnyRollout, dumps

T = TypeVar("T")

queue = APIRouter(route_class=StoreRoute, tags=["Queue"])
rollouts = APIRouter(route_class=StoreRoute, tags=["Rollouts"])
attempts = APIRouter(route_class=StoreRoute, tags=["Attempts"])


async def _park(call: Call, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of a waiting call.

    The call is cancelled if its client disconnects or its key becomes invalid.
    """
    parked: Parked = call.scope["app"].state.parked
    call.scope["rollbook.waited"] = True
    return await parked.run(call.receive, while_admitted(call.scope, begin))


@queue.post(paths.ENQUEUE, response_model=list[Rollout], status_code=201)
@needs("algorithm")
async def enqueue_rollouts(call: Call, body: EnqueueBody) -> bytes:
    """Create rollouts at the end of the queue, all or none."""
    return dumps(await call.store.enqueue_many_rollouts(body.rollouts))


@queue.post(paths.DEQUEUE, response_model=list[AttemptedRollout])
@needs("runner")
async def dequeue_rollouts(call: Call, body: Annotated[DequeueBody, Body(default_factory=DequeueBody)]) -> bytes:
    """Claim up to `limit` rollouts, longest-waiting first; wait up to `wait_seconds` if there is none."""
    if body.limit <= 0:
        return b"[]"
    claim = partial(call.store.dequeue_many_rollouts, body.limit, body.worker_id, wait_seconds=body.wait_seconds)
    claimed = await (_park(call, claim) if body.wait_seconds > 0 else claim())
    if claimed:
        release_if_unread(call, claimed, context.idempotency_key.get())
    return dumps(claimed)


@queue.post(paths.CLAIM_RUNS, response_model=list[AttemptedRollout])
@needs("runner")
async def claim_runs(call: Call, body: ClaimRunsBody) -> bytes:
    """Claim up to `limit` waiting runs of a phase graph; wait up to `wait_seconds` if there is none."""
    claim = partial(
        call.store.runs.claim,
        body.resources_ids,
        limit=body.limit,
        worker_id=body.worker_id,
        wait_seconds=body.wait_seconds,
    )
    claimed = await (_park(call, claim) if body.wait_seconds > 0 else claim())
    if claimed:
        release_if_unread(call, claimed, context.idempotency_key.get())
    return dumps(claimed)


@queue.post(paths.WAIT, response_model=list[Rollout])
@needs("reader")
async def wait_for_rollouts(call: Call, body: WaitBody) -> bytes:
    """Wait until the rollouts have ended or until the timeout; return the ended rollouts. Null means no limit."""
    wait = partial(call.store.wait_for_rollouts, body.rollout_ids, body.timeout)
    waits = body.timeout is None or body.timeout > 0
    return dumps(await (_park(call, wait) if waits else wait()))


@rollouts.post(paths.ROLLOUTS, response_model=AttemptedRollout, status_code=201)
@needs("runner")
async def start_rollout(call: Call, body: StartRolloutBody) -> bytes:
    """Create a rollout together with its first attempt, without the queue."""
    started = await call.store.start_rollout(
        body.input, body.mode, body.resources_id, body.config, body.metadata, body.worker_id
    )
    return dumps(started)


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


@rollouts.post(paths.ROLLOUT, response_model=Rollout)
@needs("algorithm")
async def update_rollout(call: Call, rollout_id: Id, body: UpdateRolloutBody) -> bytes:
    """Replace the fields that are given."""
    refuse_null(body, "status", "config")
    given = {name: getattr(body, name) for name in body.model_fields_set}
    return dumps(await call.store.update_rollout(rollout_id, **given))


@attempts.post(paths.ATTEMPTS, response_model=AttemptedRollout, status_code=201)
@needs("runner")
async def start_attempt(
    call: Call, rollout_id: Id, body: Annotated[StartAttemptBody, Body(default_factory=StartAttemptBody)]
) -> bytes:
    """Open another attempt of a rollout."""
    return dumps(await call.store.start_attempt(rollout_id, body.worker_id))


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


@attempts.post(paths.ATTEMPT, response_model=Attempt)
@needs("runner")
async def update_attempt(call: Call, rollout_id: Id, attempt_id: Id, body: UpdateAttemptBody) -> bytes:
    """Replace the fields that are given; the attempt id may be `latest`."""
    refuse_null(body, "status", "worker_id", "last_heartbeat_time", "metadata", "error")
    given = {name: getattr(body, name) for name in body.model_fields_set}
    return dumps(await call.store.update_attempt(rollout_id, attempt_id, **given))
