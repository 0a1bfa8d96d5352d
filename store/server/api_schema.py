"""The parts of the OpenAPI document that FastAPI cannot read from a route's signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final, cast

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.routing import BaseRoute

from store.server import openapi_parts as parts
from store.wire.paths import IDEMPOTENCY_KEY, REQUEST_ID

Json = dict[str, Any]

TITLE: Final = "LightningStore Server"
"""As Agent-lightning 0.3 has it."""

_DESCRIPTION: Final = (
    "The store of Agent-lightning 0.3's protocol, with routes of Rollbook's own beside it. All of it is there once for "
    "each partition. The log is also followed over a WebSocket, at `/v1/agl/log/ws`, and so is a run, at "
    "`/v1/agl/rollouts/{rollout_id}/events/ws` and at `/ws/stream/{run_id}`."
)
_SERVERS: Final[list[Json]] = [
    {"url": "/", "description": "The default partition."},
    {
        "url": "/p/{partition}",
        "description": "Any other.",
        "variables": {"partition": {"default": "default", "description": "Its name."}},
    },
]
_ROLLOUT: Final = {"$ref": "#/components/schemas/Rollout"}


class Error(BaseModel):
    """A refusal: its text, its class, and the fields of that class."""

    detail: str
    error_type: str


class Fault(BaseModel):
    """One thing in a request that has another shape than the schema."""

    type: str
    loc: list[str | int]
    msg: str
    input: Any = None


class Faults(BaseModel):
    """The faults of a request."""

    detail: list[Fault]


def _refusal(description: str, model: Any = Error, *headers: str) -> Json:
    return {
        "description": description,
        "model": model,
        "headers": {name: parts.reference("headers", name) for name in (REQUEST_ID, *headers)},
    }


_ERRORS: Final[Mapping[int, Json]] = {
    400: _refusal("The request was refused; a repetition is refused as well."),
    401: _refusal("A key is required, and no valid key was sent.", Error, "WWW-Authenticate"),
    403: _refusal("The key does not permit this request, or the request comes from a page of another origin."),
    404: _refusal("The partition does not exist."),
    413: _refusal("The body is too large."),
    422: _refusal("The request does not match the schema.", Faults),
    500: _refusal("Internal error; the server's log has the details."),
    503: _refusal("The server cannot answer now.", Error, "Retry-After"),
}
_OWN_ERRORS: Final[Mapping[int, Json]] = {
    404: _refusal("The named object or the partition does not exist."),
    409: _refusal("The request contradicts the current state."),
    412: _refusal("The head is another attempt than the expected one."),
    422: _refusal("The request does not match the schema, or has a value that no store accepts.", Error | Faults),
    424: _refusal("There is no checkpoint to start from."),
    428: _refusal("Phases with side effects would run again, and that was not confirmed."),
}

LOCATED: Final[Json] = {"headers": {"Location": parts.reference("headers", "Location")}}
"""A response with the path of the created object."""
STREAMED: Final[Json] = {
    "content": {"text/event-stream": {"schema": {"type": "string", "description": "Frames of JSON, one per event."}}}
}
"""A response that is also available as server-sent events."""


def declare(settings: Json, summary: str, role: str, status: int, *, own_statuses: bool) -> Json:
    """Return the settings of a route, completed by what all routes have in common."""
    errors = {**_ERRORS, **_OWN_ERRORS} if own_statuses else _ERRORS
    given: dict[int, Json] = settings["responses"] or {}
    success = {**given.get(status, {})}
    success["headers"] = {REQUEST_ID: parts.reference("headers", REQUEST_ID), **success.get("headers", {})}
    names = [REQUEST_ID]
    if "GET" not in settings["methods"]:
        names.append(IDEMPOTENCY_KEY)
    if STREAMED["content"].keys() <= success.get("content", {}).keys():
        names.append("Last-Event-ID")
    needed = "Requires no key." if role == "open" else f"Requires the role `{role}` if keys are required."
    return settings | {
        "summary": summary,
        "description": needed,
        "response_description": "Success.",
        "responses": {status: success, **dict(sorted(errors.items()))},
        "openapi_extra": {"parameters": [parts.reference("parameters", name) for name in names]},
    }


def document(routes: Sequence[BaseRoute]) -> Json:
    """Return the OpenAPI document of these routes."""
    generated = get_openapi(
        title=TITLE, version=metadata.version("rollbook"), description=_DESCRIPTION, servers=_SERVERS, routes=routes
    )
    generated["components"] |= {
        "headers": dict(parts.HEADERS),
        "parameters": dict(parts.PARAMETERS),
        "securitySchemes": dict(parts.SECURITY_SCHEMES),
    }
    generated["security"] = parts.SECURITY
    return _tidied(generated)


def _tidied(schema: Any) -> Any:
    """Return a schema that accepts a rollout with its attempt, which is a rollout as well, as one of both kinds."""
    if isinstance(schema, list):
        return [_tidied(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    tidied: Json = {}
    for key, value in cast("Json", schema).items():
        if key == "prefixItems" and all(each == value[0] for each in value):
            tidied["items"] = _tidied(value[0])
        else:
            tidied["anyOf" if key == "oneOf" and _ROLLOUT in value else key] = _tidied(value)
    return tidied
