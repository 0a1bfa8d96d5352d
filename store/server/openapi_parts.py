"""The parts of the OpenAPI document that no operation's types say: errors, headers, keys, and the routes beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from store.server.metrics.requests import CONTENT_TYPE
from store.wire.paths import IDEMPOTENCY_KEY, NOT_TAKEN, OTLP_TRACES, REQUEST_ID

Json = dict[str, Any]

REFERENCES: Final = "#/components/schemas/{model}"
JSON: Final = "application/json"
PROTOBUF: Final = "application/x-protobuf"
EVENTS: Final = "text/event-stream"

SCHEMAS: Final[Mapping[str, Json]] = {
    "Error": {
        "type": "object",
        "description": "A refusal: its text, its class, and what that class is made of.",
        "properties": {"detail": {"type": "string"}, "error_type": {"type": "string"}},
        "required": ["detail", "error_type"],
    },
    "Faults": {
        "type": "object",
        "description": "What in the request has another shape.",
        "properties": {
            "detail": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "loc": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
                        "msg": {"type": "string"},
                        "input": {},
                    },
                    "required": ["type", "loc", "msg"],
                },
            }
        },
        "required": ["detail"],
    },
    "ExportTraceServiceRequest": {
        "type": "object",
        "description": "OpenTelemetry's opentelemetry.proto.collector.trace.v1, in its JSON mapping.",
        "properties": {"resourceSpans": {"type": "array", "items": {"type": "object"}}},
    },
    "ExportTraceServiceResponse": {
        "type": "object",
        "properties": {
            "partialSuccess": {
                "type": "object",
                "properties": {"rejectedSpans": {"type": "string"}, "errorMessage": {"type": "string"}},
            }
        },
    },
    "RpcStatus": {
        "type": "object",
        "description": "google.rpc.Status.",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    },
}

HEADERS: Final[Mapping[str, Json]] = {
    REQUEST_ID: {
        "description": "Names the request in the server's logs: what was sent under this name, or made up.",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 128},
    },
    "Location": {
        "description": "The path of what was created.",
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

SECURITY_SCHEMES: Final[Mapping[str, Json]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer <key>`"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
SECURITY: Final[list[Json]] = [{"bearer": []}, {"apiKey": []}, {}]
"""Keys are demanded once a database has one."""

PARAMETERS: Final[Mapping[str, Json]] = {
    IDEMPOTENCY_KEY: {
        "name": IDEMPOTENCY_KEY,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "pattern": "^[0-9A-Za-z_-]{1,128}$"},
        "description": "Made once per logical call and sent again with each retry: the call is then done once.",
    },
    REQUEST_ID: {
        "name": REQUEST_ID,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
        "description": "Names the request in the server's logs.",
    },
    "Last-Event-ID": {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "schema": {"type": "string"},
        "description": "Of a stream: the cursor of the last event dealt with, as browsers send it.",
    },
}

_ERRORS: Final = {
    "400": ("Refused; sending it again changes nothing.", "Error", ()),
    "401": ("A key is demanded, and none that counts was sent.", "Error", ("WWW-Authenticate",)),
    "403": ("The key may not, or a page of another origin asks.", "Error", ()),
    "404": ("There is no such partition.", "Error", ()),
    "413": ("The body is too large.", "Error", ()),
    "422": ("The request has another shape.", "Faults", ()),
    "500": ("A bug; what it was is in the server's log.", "Error", ()),
    "503": ("Not now.", "Error", ("Retry-After",)),
}


_OWN_ERRORS: Final = {
    "NotFound": ("404", "What it names does not exist.", "Error"),
    "Conflict": ("409", "It contradicts what is there.", "Error"),
    "HeadMoved": ("412", "The head is another attempt than the one expected.", "Error"),
    "Unfit": ("422", "The request has another shape, or a value that no store takes.", None),
    "CheckpointMissing": ("424", "There is nothing to start from.", "Error"),
    "SideEffectsUnconfirmed": ("428", "Phases with side effects would run again, and that was not confirmed.", "Error"),
}
"""What operations whose errors have statuses of their own answer besides, by the names of the components."""


def reference(kind: str, name: str) -> Json:
    """Return a reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def response(description: str, content: Json | None = None, *headers: str) -> Json:
    """Return a response; each carries the id of its request."""
    named = {name: reference("headers", name) for name in (REQUEST_ID, *headers)}
    return {"description": description, "headers": named} | ({} if content is None else {"content": content})


def responses() -> Json:
    """Return the refusals that any operation may answer with, as components by their status."""
    either = {"anyOf": [reference("schemas", "Error"), reference("schemas", "Faults")]}
    return {
        status: response(text, {JSON: {"schema": reference("schemas", model)}}, *headers)
        for status, (text, model, headers) in _ERRORS.items()
    } | {
        name: response(text, {JSON: {"schema": either if model is None else reference("schemas", model)}})
        for name, (_, text, model) in _OWN_ERRORS.items()
    }


def refusals(*, own_statuses: bool = False) -> Json:
    """Return references to them, as an operation's responses."""
    own = {status: reference("responses", name) for name, (status, _, _) in _OWN_ERRORS.items()}
    every = {status: reference("responses", status) for status in _ERRORS} | (own if own_statuses else {})
    return dict(sorted(every.items()))


def beside() -> Json:
    """Return the paths that are no operations of the store: OTLP, and what operators ask."""
    return {
        OTLP_TRACES: {"post": _traces()},
        **{path: {"post": _not_taken(path)} for path in NOT_TAKEN},
        "/livez": {"get": _asked_by_operators("livez", "Say that the process answers.", {"200": _state("Alive.")})},
        "/readyz": {
            "get": _asked_by_operators(
                "readyz",
                "Say whether calls would succeed, and if not, what is missing.",
                {"200": _state("Ready."), "503": _state("Not ready.", "missing")},
            )
        },
        "/metrics": {
            "get": _asked_by_operators(
                "metrics",
                "Return counts and durations for Prometheus.",
                {
                    "200": response("Measured.", {CONTENT_TYPE: {"schema": {"type": "string"}}}),
                    **{status: reference("responses", status) for status in ("401", "403", "503")},
                },
            )
        },
    }


def _state(description: str, *also: str) -> Json:
    properties: Json = {"status": {"type": "string"}}
    properties |= {name: {"type": "object", "additionalProperties": {"type": "string"}} for name in also}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return response(description, {JSON: {"schema": schema}})


def _asked_by_operators(name: str, summary: str, answers: Json) -> Json:
    return {"tags": ["Operations"], "operationId": name, "summary": summary, "responses": answers}


def _traces() -> Json:
    def both(model: str) -> Json:
        binary = {"type": "string", "format": "binary"}
        return {JSON: {"schema": reference("schemas", model)}, PROTOBUF: {"schema": binary}}

    refused = {
        "400": response("Not to be read, or of another content type.", both("RpcStatus")),
        "413": response("The body is too large.", both("RpcStatus")),
        "500": response("A bug; what it was is in the server's log.", both("RpcStatus")),
        "503": response("Not now.", both("RpcStatus"), "Retry-After"),
    }
    coding = {"type": "string", "enum": ["gzip", "deflate", "identity"]}
    return {
        "tags": ["OpenTelemetry"],
        "operationId": "export_traces",
        "summary": "Record the spans of an OpenTelemetry exporter; what is refused is counted in a partial success.",
        "parameters": [{"name": "Content-Encoding", "in": "header", "required": False, "schema": coding}],
        "requestBody": {"required": False, "content": both("ExportTraceServiceRequest")},
        "responses": {
            "200": response("Committed, but for what the partial success counts.", both("ExportTraceServiceResponse")),
            **{status: reference("responses", status) for status in ("401", "403", "404")},
            **refused,
        },
    }


def _not_taken(path: str) -> Json:
    signal = path.rpartition("/")[2]
    return {
        "tags": ["OpenTelemetry"],
        "operationId": f"export_{signal}",
        "summary": "Refuse what exporters send besides traces.",
        "responses": {
            "501": response("Not taken."),
            **{status: reference("responses", status) for status in ("401", "403", "404", "413")},
        },
    }
