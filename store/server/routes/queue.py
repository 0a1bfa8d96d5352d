"""The queue, rollouts and their attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import cache, partial
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

from store.domain.commands import Command, Idempotency
from store.domain.views import AttemptView, ClaimView, RolloutView
from store.errors import StoreError
from store.interface.store import Store
from store.models import UNSET, Attempt, AttemptedRollout, PaginatedResult, Rollout
from store.runtime import context
from store.server import cached_pages
from store.server.auth.admission import while_admitted
from store.server.call import Call, ClientLeft, checked, refuse_null
from store.server.pending import Parked
from store.server.response_spool import Spool
from store.server.routing import Direct, Operations
from store.sql.commands import rollouts as rollout_commands
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.store import SQLStore
from store.validation.json_limits import MAX_CALL_ITEMS
from store.wire import paths
from store.wire.bodies import (
    AttemptsQuery,
    DequeueBody,
    EnqueueBody,
    RolloutPastQuery,
    RolloutsQuery,
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


@runtime_checkable
class ReleasesClaims(Protocol):
    """A store that can undo a claim which nobody has taken."""

    async def release_claims(self, claimed: Sequence[AttemptedRollout]) -> None:
        """Undo claims, if nothing has happened to them since: their rollouts wait again where they waited.

        Made under the idempotency key of the claim, if it had one: what was answered again is not undone.
        """
        ...


queue = Operations("Queue")
rollouts = Operations("Rollouts")
attempts = Operations("Attempts")


def _parked(call: Call) -> Parked:
    return call.scope["app"].state.parked


async def _park(call: Call, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of a call that waits, unless its client leaves or may not wait any more."""
    return await _parked(call).run(call.receive, while_admitted(call.scope, begin))


# -- queue -----------------------------------------------------------------------------------------------------------


def _begin_enqueue(_: Call, body: bytes) -> tuple[Command, None] | None:
    given: EnqueueBody = _ENQUEUE.validate_json(body)
    return (rollout_commands.enqueue(given.rollouts), None) if given.rollouts else None


def _end_enqueue(_: Call, __: None, created: list[RolloutView]) -> bytes:
    return dumps([rollout_mapping.rollout_of_view(view) for view in created])


@queue.post(
    paths.ENQUEUE, body=EnqueueBody, answer=list[Rollout], status=201, direct=Direct(_begin_enqueue, _end_enqueue)
)
async def enqueue_rollouts(call: Call) -> bytes:
    """Create rollouts at the end of the queue, all or none."""
    body = await call.body(EnqueueBody)
    return dumps(await call.store.enqueue_many_rollouts(body.rollouts))


def _begin_dequeue(call: Call, body: bytes) -> tuple[Command, Idempotency | None] | None:
    given: DequeueBody = _DEQUEUE.validate_json(body)
    if given.wait_seconds != 0 or not 0 < given.limit <= MAX_CALL_ITEMS:
        return None
    return rollout_commands.claim(given.limit, given.worker_id), call.asked(body)


def _end_dequeue(call: Call, asked: Idempotency | None, claims: list[ClaimView]) -> bytes:
    claimed = cast("SQLStore", call.store).hand_out(claims)
    if claimed:
        _give_back_unread(call, claimed, asked)
    return dumps(claimed)


@queue.post(
    paths.DEQUEUE,
    body=DequeueBody,
    body_required=False,
    answer=list[AttemptedRollout],
    direct=Direct(_begin_dequeue, _end_dequeue),
)
async def dequeue_rollouts(call: Call) -> bytes:
    """Claim up to `limit` rollouts, those that wait longest first; wait for one if `wait_seconds` says so."""
    body = await call.body_or_default(DequeueBody)
    if body.limit <= 0:
        return b"[]"
    claim = partial(call.store.dequeue_many_rollouts, body.limit, body.worker_id, wait_seconds=body.wait_seconds)
    claimed = await (_park(call, claim) if body.wait_seconds > 0 else claim())
    if claimed:
        _give_back_unread(call, claimed, context.idempotency_key.get())
    return dumps(claimed)


def _give_back_unread(call: Call, claimed: list[AttemptedRollout], asked: Idempotency | None) -> None:
    """See that claims are undone whose client leaves without having read them."""
    store, connection = call.store, call.scope.get("rollbook.connection")
    if connection is None or not _releases_claims(type(store)):
        return
    releasing = cast("ReleasesClaims", store)
    if connection.if_unread(lambda: _parked(call).aside(_release(releasing, claimed, asked))):
        raise ClientLeft


@cache
def _releases_claims(kind: type[Store]) -> bool:
    # To ask a protocol takes longer than all the rest of an answer, so that each class is asked once.
    return issubclass(kind, ReleasesClaims)


async def _release(store: ReleasesClaims, claimed: list[AttemptedRollout], asked: Idempotency | None) -> None:
    # The connection tells of its end in a context of its own.
    context.idempotency_key.set(asked)
    try:
        await store.release_claims(claimed)
    except StoreError:
        logger.warning("claims that nobody read could not be released; the watchdog will judge them", exc_info=True)


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


@rollouts.get(paths.ROLLOUTS, query=RolloutsQuery, answer=PaginatedResult[AnyRollout])
async def query_rollouts(call: Call) -> bytes | Spool:
    """Find rollouts, each with its latest attempt if it has one."""
    return await cached_pages.rollouts(call.store, call.page_query(RolloutsQuery))


@rollouts.post(paths.ROLLOUTS_SEARCH, body=RolloutsQuery, answer=PaginatedResult[AnyRollout])
async def search_rollouts(call: Call) -> bytes | Spool:
    """Find rollouts, each with its latest attempt if it has one."""
    return await cached_pages.rollouts(call.store, checked(await call.body(RolloutsQuery)))


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


@attempts.get(paths.ATTEMPTS, query=AttemptsQuery, answer=PaginatedResult[Attempt])
async def query_attempts(call: Call) -> bytes:
    """Return the attempts of a rollout."""
    return await _attempts(call, call.page_query(AttemptsQuery))


@attempts.post(paths.ATTEMPTS_SEARCH, body=AttemptsQuery, answer=PaginatedResult[Attempt])
async def search_attempts(call: Call) -> bytes:
    """Return the attempts of a rollout."""
    return await _attempts(call, checked(await call.body(AttemptsQuery)))


async def _attempts(call: Call, query: AttemptsQuery) -> bytes:
    return dumps(await call.store.query_attempts(call.ids["rollout_id"], **vars(query)))


@attempts.get(paths.LATEST_ATTEMPT, query=RolloutPastQuery, answer=Attempt | None)
async def get_latest_attempt(call: Call) -> bytes:
    """Return the attempt with the greatest sequence_id, or null."""
    query = call.query(RolloutPastQuery)
    return dumps(await call.store.get_latest_attempt(call.ids["rollout_id"], as_at=query.as_at, at=query.at))


def _begin_update_attempt(call: Call, body: bytes) -> tuple[Command, None]:
    given: UpdateAttemptBody = _UPDATE_ATTEMPT.validate_json(body)
    fields = {name: getattr(given, name) for name in given.model_fields_set}
    # What is null is refused, in other words than those of the body.
    return rollout_commands.update_attempt(**call.ids, **_NOTHING_SET | fields), None


def _end_update_attempt(_: Call, __: None, attempt: AttemptView) -> bytes:
    return dumps(rollout_mapping.attempt_of_view(attempt))


@attempts.post(
    paths.ATTEMPT,
    body=UpdateAttemptBody,
    answer=Attempt,
    direct=Direct(_begin_update_attempt, _end_update_attempt),
)
async def update_attempt(call: Call) -> bytes:
    """Replace the fields that are given; the attempt may be named `latest`."""
    body = await call.body(UpdateAttemptBody)
    refuse_null(body, "status", "worker_id", "last_heartbeat_time", "metadata", "error")
    given = {name: getattr(body, name) for name in body.model_fields_set}
    return dumps(await call.store.update_attempt(call.ids["rollout_id"], call.ids["attempt_id"], **given))
