"""The OpenAPI document: every route, as `/openapi.json` serves it; `python -m store.server.openapi` prints it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final, cast, get_type_hints, is_typeddict

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from store.server import api_schema
from store.server import openapi_parts as parts
from store.server.auth.roles import ACCESS
from store.server.openapi_parts import EVENTS, JSON, REFERENCES, Json
from store.server.routing import Operation, StoreRoute
from store.wire.paths import HISTORY, IDEMPOTENCY_KEY, LOG, REQUEST_ID, RUN_STREAM

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
_ID: Final = re.compile(r"\{(\w+)\}")
_KINDS: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}
_STREAMED: Final = frozenset({LOG, HISTORY, RUN_STREAM})
_ROLLOUT: Final = {"$ref": REFERENCES.format(model="Rollout")}
_ByRoute = dict[tuple[str, str], Json]


def document(every: Sequence[Operation | StoreRoute]) -> Json:
    """Return the document of these operations and of the routes beside them."""
    operations = [each for each in every if isinstance(each, Operation)]
    generated = api_schema.document([each for each in every if isinstance(each, StoreRoute)])
    bodies, answers, definitions = _schemas(operations)
    paths: Json = {}
    for operation in operations:
        key = (operation.method, operation.path)
        described = _operation(operation, bodies.get(key), answers.get(key))
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": metadata.version("rollbook"), "description": _DESCRIPTION},
        "servers": _SERVERS,
        "paths": paths | generated["paths"] | parts.beside(),
        "components": {
            "schemas": dict(sorted((definitions | generated["components"]["schemas"] | dict(parts.SCHEMAS)).items())),
            "responses": parts.responses(),
            "headers": dict(parts.HEADERS),
            "parameters": dict(parts.PARAMETERS),
            "securitySchemes": dict(parts.SECURITY_SCHEMES),
        },
        "security": parts.SECURITY,
    }


def _schemas(operations: Sequence[Operation]) -> tuple[_ByRoute, _ByRoute, Json]:
    """Return the schemas of bodies and of answers, by method and path, and the definitions they refer to."""
    asked: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = []
    bodies: _ByRoute = {}
    answers: _ByRoute = {}
    for operation in operations:
        key = (operation.method, operation.path)
        if operation.body is not None:
            asked.append((key, "validation", TypeAdapter(operation.body)))
        if is_typeddict(operation.answer):
            answers[key] = _typed(operation.answer)
        elif operation.answer is not None:
            asked.append((key, "serialization", TypeAdapter(operation.answer)))
    schemas, definitions = TypeAdapter.json_schemas(asked, ref_template=REFERENCES)
    for (key, mode), schema in schemas.items():
        (bodies if mode == "validation" else answers)[key] = schema
    named = {_name(name): schema for name, schema in definitions.get("$defs", {}).items()}
    return _tidied(bodies), _tidied(answers), _tidied(named)


def _tidied(schema: Any) -> Any:
    """Return a schema with readable names, and what has an attempt as one of several that it may be.

    A rollout with its attempt is a rollout too, so that "one of the two" would be wrong.
    """
    if isinstance(schema, list):
        return [_tidied(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    tidied: Json = {}
    for key, value in cast("Json", schema).items():
        if key == "prefixItems" and all(each == value[0] for each in value):
            # How many there are is said beside it.
            tidied["items"] = _tidied(value[0])
        elif key == "$ref":
            head, _, name = value.rpartition("/")
            tidied[key] = f"{head}/{_name(name)}"
        else:
            tidied["anyOf" if key == "oneOf" and _ROLLOUT in value else key] = _tidied(value)
    return tidied


def _name(name: str) -> str:
    return "PaginatedResult_AnyRollout_" if name.startswith("PaginatedResult_Annotated_") else name


def _typed(kind: Any) -> Json:
    """Return the schema of a TypedDict of plain values, which pydantic takes from newer Pythons alone."""
    fields = get_type_hints(kind)
    required = sorted(kind.__required_keys__)
    return {
        "type": "object",
        "properties": {name: {"type": _KINDS[field]} for name, field in fields.items()},
    } | ({"required": required} if required else {})


def _operation(operation: Operation, body: Any, answer: Any) -> Json:
    role = ACCESS[operation.method, operation.path]
    summary = (operation.endpoint.__doc__ or "").partition("\n")[0]
    content: Json = {JSON: {"schema": answer or {}}}
    if operation.path in _STREAMED:
        content[EVENTS] = {"schema": {"type": "string", "description": "Frames of JSON, one an event."}}
    described: Json = {
        "tags": [operation.tag],
        "operationId": operation.endpoint.__name__,  # pyright: ignore[reportFunctionMemberAccess]
        "summary": summary,
        "description": "Asks for no key." if role == "open" else f"Asks for the role `{role}` where keys are demanded.",
        "parameters": [*_ids(operation.path), *_query(operation.query), *_headers(operation)],
        "responses": {
            str(operation.status): parts.response("Done.", content, *(["Location"] if operation.locates else [])),
            **parts.refusals(own_statuses=operation.own_statuses),
        },
    }
    if body is not None:
        described["requestBody"] = {"required": operation.body_required, "content": {JSON: {"schema": body}}}
    return described


def _ids(path: str) -> list[Json]:
    text = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": text} for name in _ID.findall(path)]


def _headers(operation: Operation) -> list[Json]:
    names = [REQUEST_ID]
    if operation.method == "POST":
        names.append(IDEMPOTENCY_KEY)
    if operation.path in _STREAMED:
        names.append("Last-Event-ID")
    return [parts.reference("parameters", name) for name in names]


def _query(model: type[BaseModel] | None) -> list[Json]:
    if model is None:
        return []
    schema = model.model_json_schema()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(field)}
        for name, field in schema["properties"].items()
    ]


def _not_null(field: Json) -> Json:
    """Return the schema of a query parameter: there is no null, only leaving it out."""
    kept = {key: value for key, value in field.items() if key != "default" or value is not None}
    kinds = [kind for kind in kept.pop("anyOf", []) if kind != {"type": "null"}]
    return kept | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})


def main() -> None:
    """Print the document."""
    from store.server.app import OPERATIONS

    json.dump(document(OPERATIONS), sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
