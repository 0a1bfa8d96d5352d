"""Routes of the calls that change a store. They are made from the values of the calls."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Body

from store.interface.calls import group_of, perform
from store.models import AttemptedRollout, ForkResult
from store.models.calls import (
    ChangingCall,
    ClaimRunsCall,
    DequeueManyRolloutsCall,
    FinishAttemptCall,
    ForkCall,
    ResumeCall,
    UpdateWorkerCall,
)
from store.models.rollouts import ObservedWorker
from store.runtime import context
from store.server.api_schema import LOCATED
from store.server.auth.admission import while_admitted
from store.server.call import Call, refuse_null
from store.server.pending import Parked
from store.server.routing import Created, Id, OwnStatusRoute, StoreRoute, needs
from store.server.unread_claims import release_if_unread
from store.wire import finished_attempts, paths
from store.wire.calls import (
    body_of,
    call_of,
    ids_of,
    not_null,
    operation_of,
    path_of,
    result_of,
    route_of,
    routed_calls,
)
from store.wire.encoding import dumps

T = TypeVar("T")

Response = bytes | Created


async def park(request: Call, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of a waiting call.

    The call is cancelled if its client disconnects or its key becomes invalid.
    """
    parked: Parked = request.scope["app"].state.parked
    request.scope["rollbook.waited"] = True
    return await parked.run(request.receive, while_admitted(request.scope, begin))


async def _respond(request: Call, call: ChangingCall[Any]) -> Response:
    result = await perform(group_of(request.store, call), call)
    key = route_of(type(call)).key
    return dumps(result if key is None else {key: result})


async def _claim(request: Call, call: DequeueManyRolloutsCall | ClaimRunsCall) -> Response:
    claim = partial(perform, group_of(request.store, call), call)
    claimed: list[AttemptedRollout] = await (park(request, claim) if call.wait_seconds > 0 else claim())
    if claimed:
        release_if_unread(request, claimed, context.idempotency_key.get())
    return dumps(claimed)


async def _finish(request: Call, call: FinishAttemptCall) -> Response:
    finished = await perform(request.store, call)
    if isinstance(finished.claimed, AttemptedRollout):
        release_if_unread(request, [finished.claimed], context.idempotency_key.get())
    return finished_attempts.encode(finished)


async def _update_worker(request: Call, call: UpdateWorkerCall) -> Response:
    return dumps(ObservedWorker.of(await perform(request.store, call), time.time()))


async def _start(request: Call, call: ForkCall | ResumeCall) -> Response:
    keyed = replace(call, request_id=request_id(call.request_id))
    result: ForkResult = await perform(request.store.runs, keyed)
    ids = {"rollout_id": result.attempt.rollout_id, "attempt_id": result.attempt.attempt_id}
    return Created(dumps(result), request.scope.get("root_path", "") + paths.path(paths.ATTEMPT, **ids))


def request_id(stated_id: str | None = None) -> str | None:
    """Return the permanent id of a fork request: the id of the request, or an id derived from the idempotency key.

    A fork is planned before the writer processes it. Without this id, the plan of a repeated request would include the
    attempt that the first request started.
    """
    repeatable = context.idempotency_key.get()
    if stated_id is not None or repeatable is None:
        return stated_id
    digest = hashlib.sha256(f"{repeatable.scope}\n{repeatable.key}\n".encode() + repeatable.request_hash)
    return f"http-{digest.hexdigest()[:32]}"


_RESPONSES: Final[dict[type[ChangingCall[Any]], Callable[[Call, Any], Awaitable[Response]]]] = {
    DequeueManyRolloutsCall: _claim,
    ClaimRunsCall: _claim,
    FinishAttemptCall: _finish,
    UpdateWorkerCall: _update_worker,
    ForkCall: _start,
    ResumeCall: _start,
}
"""The functions that make calls and return their responses, of calls that need more than their result as JSON."""


def _endpoint(kind: type[ChangingCall[Any]]) -> Callable[..., Awaitable[Response]]:
    """Return the endpoint of a call. Its signature declares the ids and the body for the schema."""
    respond, body, refused = _RESPONSES.get(kind, _respond), body_of(kind), not_null(kind)
    body_name = route_of(kind).body or "body"

    async def endpoint(request: Call, **arguments: Any) -> Response:
        value = arguments.pop(body_name)
        if refused:
            refuse_null(value, *refused)
        return await respond(request, call_of(kind, arguments, value))

    annotation = Annotated[body, Body(default_factory=body)] if route_of(kind).is_body_optional else body
    if route_of(kind).body is not None:
        annotation = Annotated[body, Body()]
    annotations = {"request": Call, **dict.fromkeys(ids_of(kind), Id), body_name: annotation}
    keyword = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(name, keyword, annotation=annotation) for name, annotation in annotations.items()]
    vars(endpoint)["__signature__"] = Signature(parameters)
    endpoint.__name__ = operation_of(kind)
    endpoint.__doc__ = kind.__doc__
    return needs(route_of(kind).role)(endpoint)


def _routers() -> list[APIRouter]:
    """Return the routers with the routes of all calls, one for each section of the OpenAPI document."""
    routers: dict[str, APIRouter] = {}
    for kind in routed_calls():
        route = route_of(kind)
        route_class = OwnStatusRoute if route.has_own_statuses else StoreRoute
        router = routers.setdefault(route.tag, APIRouter(route_class=route_class, tags=[route.tag]))
        router.add_api_route(
            path_of(kind),
            _endpoint(kind),
            methods=["POST"],
            response_model=route.response or result_of(kind),
            status_code=route.status,
            responses={route.status: LOCATED} if route.is_located else None,
        )
    return list(routers.values())


ROUTERS: Final = _routers()
