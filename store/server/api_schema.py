"""The OpenAPI document. FastAPI generates it from the routes. This module adds the parts that routes do not declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from importlib import metadata
from typing import Any, Final, cast

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from store.wire.paths import IDEMPOTENCY_KEY, REQUEST_ID

Json = dict[str, Any]

TITLE: Final = "LightningStore Server"
"""The title of Agent-lightning 0.3's document."""

_DESCRIPTION: Final = (
    "The store of Agent-lightning 0.3's protocol, with Rollbook's own routes. Each partition has all of these routes. "
    "The log is also followed over a WebSocket, at `/v1/agl/log/ws`, and so is a run, at "
)
_SERVERS: Final[list[Json]] = [
    {"url": "/", "description": "The default partition."},
    {
        "url": "/p/{partition}",
        "description": "Any other partition.",
        "variables": {"partition": {"default": "default", "description": "Its name."}},
    },
]
_JSON: Final = "application/json"
_SCHEMAS: Final = "#/components/schemas/{model}"
_ROLLOUT: Final = {"$ref": _SCHEMAS.format(model="Rollout")}
# The items of the page of rollouts are a union, and pydantic writes all members of the union into the page's name.
_LONG_NAME: Final = "PaginatedResult_Annotated_"
_SHORT_NAME: Final = "PaginatedResult_AnyRollout_"


def reference(kind: str, name: str) -> Json:
    """Return a reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


class Error(BaseModel):
    """An error: its text, its class, and the fields of the class."""

    detail: str
    error_type: str


class Fault(BaseModel):
    """A part of a request that does not match the schema."""

    type: str
    loc: list[str | int]
    msg: str
    input: Any = None


class Faults(BaseModel):
    """The faults of a request."""

    detail: list[Fault]


def _refusal(description: str, *models: str, headers: Sequence[str] = ()) -> Json:
    schemas = [reference("schemas", model) for model in models or ("Error",)]
    return {
        "description": description,
        "headers": {name: reference("headers", name) for name in (REQUEST_ID, *headers)},
        "content": {_JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}},
    }


_RESPONSES: Final[Mapping[str, Json]] = {
    "400": _refusal("The request was refused; a repetition is refused as well."),
    "401": _refusal("A key is required, and no valid key was sent.", headers=["WWW-Authenticate"]),
    "403": _refusal("The key does not permit this request, or the request comes from a page of another origin."),
    "404": _refusal("The partition does not exist."),
    "413": _refusal("The body is too large."),
    "422": _refusal("The request does not match the schema.", "Faults"),
    "500": _refusal("Internal error; the server's log has the details."),
    "429": _refusal("The partition has used up its calls of this second.", headers=["Retry-After"]),
    "503": _refusal("The server cannot answer now.", headers=["Retry-After"]),
    "NotFound": _refusal("The named object or the partition does not exist."),
    "Conflict": _refusal("The request contradicts the current state."),
    "HeadMoved": _refusal("The head attempt is not the expected attempt."),
    "Unfit": _refusal(
        "The request does not match the schema, or has a value that no store accepts.", "Error", "Faults"
    ),
    "CheckpointMissing": _refusal("There is no checkpoint to start from."),
    "SideEffectsUnconfirmed": _refusal("Phases with side effects would run again, and that was not confirmed."),
    "QuotaExceeded": _refusal("The quota of the partition for events or bytes does not permit the call."),
}
_STATUSES: Final = (400, 401, 403, 404, 413, 422, 500, 503)
_OWN_STATUSES: Final = {
    404: "NotFound",
    409: "Conflict",
    412: "HeadMoved",
    422: "Unfit",
    424: "CheckpointMissing",
    428: "SideEffectsUnconfirmed",
    429: "429",
    507: "QuotaExceeded",
}
"""The components of routes that use a separate status for each class of errors."""


def refusals(*statuses: int, own_statuses: bool = False) -> dict[int | str, Json]:
    """Return the error responses of a route by status.

    Without statuses, return the error responses that all routes of the store have.
    """
    names = {status: str(status) for status in statuses or _STATUSES} | (_OWN_STATUSES if own_statuses else {})
    return {status: reference("responses", name) for status, name in sorted(names.items())}


LOCATED: Final[Json] = {"headers": {"Location": reference("headers", "Location")}}
"""A response with the path of the created object."""
STREAMED: Final[Json] = {
    "content": {"text/event-stream": {"schema": {"type": "string", "description": "Frames of JSON, one per event."}}}
}
"""A response that is also available as server-sent events."""


def declare(settings: Json, role: str, status: int, *, own_statuses: bool) -> Json:
    """Return the settings of a route, completed by the headers, parameters and errors of every store route."""
    responses: dict[int, Json] = settings["responses"] or {}
    success = {**responses.get(status, {})}
    success["headers"] = {REQUEST_ID: reference("headers", REQUEST_ID), **success.get("headers", {})}
    names = [REQUEST_ID]
    if "POST" in settings["methods"]:
        names.append(IDEMPOTENCY_KEY)
    if STREAMED["content"].keys() <= success.get("content", {}).keys():
        names.append("Last-Event-ID")
    return settings | {
        "description": "Requires no key." if role == "open" else f"Requires the role `{role}` if keys are required.",
        "response_description": "Success.",
        "responses": {status: success, **refusals(own_statuses=own_statuses)},
        "openapi_extra": {"parameters": [reference("parameters", name) for name in names]},
    }


_HEADERS: Final[Mapping[str, Json]] = {
    REQUEST_ID: {
        "description": "The id of the request in the server's logs: sent by the client, or generated.",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 128},
    },
    "Location": {
        "description": "The path of the created object.",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    },
    "Retry-After": {
        "description": "Whole seconds after which the same request may succeed.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {
        "description": "The scheme by which a key is sent.",
        "required": True,
        "schema": {"type": "string"},
    },
}
_PARAMETERS: Final[Mapping[str, Json]] = {
    IDEMPOTENCY_KEY: {
        "name": IDEMPOTENCY_KEY,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "pattern": "^[0-9A-Za-z_-]{1,128}$"},
        "description": "Generated once per logical call and repeated with each retry: the call then happens once.",
    },
    REQUEST_ID: {
        "name": REQUEST_ID,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
        "description": "The id of the request in the server's logs.",
    },
    "Last-Event-ID": {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "schema": {"type": "string"},
        "description": "For a stream: the cursor of the last event that was processed, as browsers send it.",
    },
}
_SECURITY_SCHEMES: Final[Mapping[str, Json]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer <key>`"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_SECURITY: Final[list[Json]] = [{"bearer": []}, {"apiKey": []}, {}]
"""Keys are required once the database has a key."""


def document(routes: Sequence[APIRoute], schemas: Mapping[str, Json], run_sockets: Iterable[str]) -> Json:
    """Return the OpenAPI document of these routes.

    Args:
        routes: the routes that the document describes.
        schemas: components that the routes refer to but that their models do not define.
        run_sockets: the paths of the WebSockets of runs, which OpenAPI cannot describe.
    """
    described = [copy(route) for route in routes]
    for route in described:
        # The document leaves out HEAD, which Starlette's routes add to GET.
        route.methods = set(route.methods or ()) - {"HEAD"}
    version = metadata.version("rollbook")
    description = f"{_DESCRIPTION}{' and at '.join(f'`{path}`' for path in run_sockets)}."
    generated = get_openapi(title=TITLE, version=version, description=description, servers=_SERVERS, routes=described)
    _, errors = models_json_schema([(Error, "serialization"), (Faults, "serialization")], ref_template=_SCHEMAS)
    # The order does not depend on the modules that declare the routes.
    generated["paths"] = {path: dict(sorted(methods.items())) for path, methods in sorted(generated["paths"].items())}
    defined: Json = generated["components"]["schemas"] | errors["$defs"] | dict(schemas)
    generated["components"] = {
        "schemas": dict(sorted((_short(name), schema) for name, schema in defined.items())),
        "responses": dict(_RESPONSES),
        "headers": dict(_HEADERS),
        "parameters": dict(_PARAMETERS),
        "securitySchemes": dict(_SECURITY_SCHEMES),
    }
    generated["security"] = _SECURITY
    return _tidied(generated)


def _tidied(schema: Any) -> Any:
    """Return a schema with short names.

    A rollout with its attempt matches both kinds of rollouts, so the `oneOf` of the two kinds becomes `anyOf`.
    """
    if isinstance(schema, list):
        return [_tidied(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    tidied: Json = {}
    for key, value in cast("Json", schema).items():
        if key == "prefixItems" and all(item == value[0] for item in value):
            # `minItems` and `maxItems` beside `prefixItems` state the number of items.
            tidied["items"] = _tidied(value[0])
        elif key == "$ref":
            head, slash, name = value.rpartition("/")
            tidied[key] = f"{head}{slash}{_short(name)}"
        else:
            tidied["anyOf" if key == "oneOf" and _ROLLOUT in value else key] = _tidied(value)
    return tidied


def _short(name: str) -> str:
    return _SHORT_NAME if name.startswith(_LONG_NAME) else name
