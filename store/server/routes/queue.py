"""The queue, rollouts and their attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from store.models import UNSET, Attempt, AttemptedRollout, PaginatedResult, Rollout
from store.models.queries import AttemptQuery, RolloutPastQuery, RolloutQuery
from store.runtime import context
from store.server import cached_pages
from store.server.auth.admission import while_admitted
from store.server.call import Call, checked, refuse_null
from store.server.pending import Parked
from store.server.response_spool import Spool
from store.server.routing import Operations
from store.server.unread_claims import release_if_unread
from store.wire import paths
from store.wire.bodies import (
    DequeueBody,
    EnqueueBody,
    StartAttemptBody,
    StartRolloutBody,
    UpdateAttemptBody,
    UpdateRolloutBody,
    WaitBody,
)
from store.wire.encoding import AnyRollout, dumps

logger = logging.getLogger("store.server")

_ENQUEUE: Final[Any] = EnqueueBody.__pydantic_validator__
_DEQUEUE: Final[Any] = DequeueBody.__pydantic_validator__
_UPDATE_ATTEMPT: Final[Any] = UpdateAttemptBody.__pydantic_validator__
_NOTHING_SET: Final[dict[str, Any]] = dict.fromkeys(UpdateAttemptBody.model_fields, UNSET)

T = TypeVar("T")


queue = Operations("Queue")
rollouts = Operations("Rollouts")
attempts = Operations("Attempts")


def _parked(call: Call) -> Parked:
    return call.scope["app"].state.parked


async def _park(call: Call, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of a call that waits, unless its client leaves or may not wait any more."""
    return await _parked(call).run(call.receive, while_admitted(call.scope, begin))


# -- queue -----------------------------------------------------------------------------------------------------------


@queue.post(
    paths.ENQUEUE,
    body=EnqueueBody,
    answer=list[Rollout],
    status=201,
)
async def enqueue_rollouts(call: Call) -> bytes:
    """Create rollouts at the end of the queue, all or none."""
    body = await call.body(EnqueueBody)
    return dumps(await call.store.enqueue_many_rollouts(body.rollouts))


@queue.post(
    paths.DEQUEUE,
    body=DequeueBody,
    body_required=False,
    answer=list[AttemptedRollout],
)
async def dequeue_rollouts(call: Call) -> bytes:
    """Claim up to `limit` rollouts, those that wait longest first; wait for one if `wait_seconds` says so."""
    body = await call.body_or_default(DequeueBody)
    if body.limit <= 0:
        return b"[]"
    claim = partial(call.store.dequeue_many_rollouts, body.limit, body.worker_id, wait_seconds=body.wait_seconds)
    claimed = await (_park(call, claim) if body.wait_seconds > 0 else claim())
    if claimed:
        release_if_unread(call, claimed, context.idempotency_key.get())
    return dumps(claimed)


@queue.post(paths.WAIT, body=WaitBody, answer=list[Rollout])
async def wait_for_rollouts(call: Call) -> bytes:
    """Wait until the rollouts have ended; answer those that have when the timeout is over. Null waits for ever."""
    body = await call.body(WaitBody)
    wait = partial(call.store.wait_for_rollouts, body.rollout_ids, body.timeout)
    waits = body.timeout is None or body.timeout > 0
    return dumps(await (_park(call, wait) if waits else wait()))


# -- rollouts --------------------------------------------------------------------------------------------------------


@rollouts.post(paths.ROLLOUTS, body=StartRolloutBody, answer=AttemptedRollout, status=201)
async def start_rollout(call: Call) -> bytes:
    """Create a rollout together with its first attempt, without the queue."""
    body = await call.body(StartRolloutBody)
    started = await call.store.start_rollout(
        body.input, body.mode, body.resources_id, body.config, body.metadata, body.worker_id
    )
    return dumps(started)


@rollouts.get(paths.ROLLOUTS, query=RolloutQuery, answer=PaginatedResult[AnyRollout])
async def query_rollouts(call: Call) -> bytes | Spool:
    """Find rollouts, each with its latest attempt if it has one."""
    return await cached_pages.rollouts(call.store, call.page_query(RolloutQuery))


@rollouts.post(paths.ROLLOUTS_SEARCH, body=RolloutQuery, answer=PaginatedResult[AnyRollout])
async def search_rollouts(call: Call) -> bytes | Spool:
    """Find rollouts, each with its latest attempt if it has one."""
    return await cached_pages.rollouts(call.store, checked(await call.body(RolloutQuery)))


@rollouts.get(paths.ROLLOUT, query=RolloutPastQuery, answer=AnyRollout | None)
async def get_rollout(call: Call) -> bytes:
    """Return a rollout, with its latest attempt if it has one, or null."""
    query = call.query(RolloutPastQuery)
    return dumps(await call.store.get_rollout_by_id(call.ids["rollout_id"], as_at=query.as_at, at=query.at))


@rollouts.post(paths.ROLLOUT, body=UpdateRolloutBody, answer=Rollout)
async def update_rollout(call: Call) -> bytes:
    """Replace the fields that are given."""
    body = await call.body(UpdateRolloutBody)
    refuse_null(body, "status", "config")
    given = {name: getattr(body, name) for name in body.model_fields_set}
    return dumps(await call.store.update_rollout(call.ids["rollout_id"], **given))


# -- attempts --------------------------------------------------------------------------------------------------------


@attempts.post(paths.ATTEMPTS, body=StartAttemptBody, body_required=False, answer=AttemptedRollout, status=201)
async def start_attempt(call: Call) -> bytes:
    """Open another attempt of a rollout."""
    body = await call.body_or_default(StartAttemptBody)
    return dumps(await call.store.start_attempt(call.ids["rollout_id"], body.worker_id))


@attempts.get(paths.ATTEMPTS, query=AttemptQuery, answer=PaginatedResult[Attempt])
async def query_attempts(call: Call) -> bytes:
    """Return the attempts of a rollout."""
    return await _attempts(call, call.page_query(AttemptQuery))


@attempts.post(paths.ATTEMPTS_SEARCH, body=AttemptQuery, answer=PaginatedResult[Attempt])
async def search_attempts(call: Call) -> bytes:
    """Return the attempts of a rollout."""
    return await _attempts(call, checked(await call.body(AttemptQuery)))


async def _attempts(call: Call, query: AttemptQuery) -> bytes:
    return dumps(await call.store.find_attempts(call.ids["rollout_id"], query))


@attempts.get(paths.LATEST_ATTEMPT, query=RolloutPastQuery, answer=Attempt | None)
async def get_latest_attempt(call: Call) -> bytes:
    """Return the attempt with the greatest sequence_id, or null."""
    query = call.query(RolloutPastQuery)
    return dumps(await call.store.get_latest_attempt(call.ids["rollout_id"], as_at=query.as_at, at=query.at))


@attempts.post(
    paths.ATTEMPT,
    body=UpdateAttemptBody,
    answer=Attempt,
)
async def update_attempt(call: Call) -> bytes:
    """Replace the fields that are given; the attempt may be named `latest`."""
    body = await call.body(UpdateAttemptBody)
    refuse_null(body, "status", "worker_id", "last_heartbeat_time", "metadata", "error")
    given = {name: getattr(body, name) for name in body.model_fields_set}
    return dumps(await call.store.update_attempt(call.ids["rollout_id"], call.ids["attempt_id"], **given))
