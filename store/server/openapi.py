"""The OpenAPI schema of the operations that FastAPI does not route, in the form in which it writes its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from store.server.routing import Operation
from store.wire.paths import IDEMPOTENCY_KEY

_REFERENCES: Final = "#/components/schemas/{model}"
_ID: Final = re.compile(r"\{(\w+)\}")
_ERROR: Final = {
    "type": "object",
    "properties": {"detail": {"type": "string"}, "error_type": {"type": "string"}},
    "required": ["detail"],
}
_KEY: Final = {
    "name": IDEMPOTENCY_KEY,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": "^[0-9A-Za-z_-]{1,128}$"},
    "description": "Made once per logical call and sent again with each retry: the call is then done once.",
}
_FAULTS: Final = {
    "type": "object",
    "properties": {
        "detail": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"type": "string"}, "loc": {"type": "array"}, "msg": {"type": "string"}},
            },
        }
    },
}


def describe(schema: dict[str, Any], operations: Sequence[Operation]) -> dict[str, Any]:
    """Add operations to a schema and return it."""
    asked: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = []
    for operation in operations:
        key = (operation.method, operation.path)
        if operation.body is not None:
            asked.append(((*key, "body"), "validation", TypeAdapter(operation.body)))
        if operation.answer is not None:
            asked.append(((*key, "answer"), "serialization", TypeAdapter(operation.answer)))
    schemas, definitions = TypeAdapter.json_schemas(asked, ref_template=_REFERENCES)
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    components |= definitions.get("$defs", {}) | {"Error": _ERROR, "Faults": _FAULTS}
    for operation in operations:
        key = (operation.method, operation.path)
        described = _operation(
            operation, schemas.get(((*key, "body"), "validation")), schemas.get(((*key, "answer"), "serialization"))
        )
        schema["paths"].setdefault(operation.path, {})[operation.method.lower()] = described
    return schema


def _operation(operation: Operation, body: Any, answer: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "tags": [operation.tag],
        "operationId": operation.endpoint.__name__,  # pyright: ignore[reportFunctionMemberAccess]
        "summary": (operation.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _ID.findall(operation.path)
        ]
        + _parameters(operation.query)
        + ([_KEY] if operation.method == "POST" else []),
        "responses": {
            str(operation.status): {"description": "Done.", "content": {"application/json": {"schema": answer or {}}}},
            "400": _refusal("Refused; sending it again changes nothing.", "Error"),
            "422": _refusal("The request has another shape.", "Faults"),
            "413": _refusal("The body, or what is in it, is too large.", "Error"),
            "500": _refusal("A bug; what it was is in the server's log.", "Error"),
            "503": _refusal("Not now; `Retry-After` says when to try again.", "Error"),
        },
    }
    if body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {"application/json": {"schema": body}},
        }
    return described


def _refusal(description: str, model: str) -> dict[str, Any]:
    reference = {"$ref": _REFERENCES.format(model=model)}
    return {"description": description, "content": {"application/json": {"schema": reference}}}


def _parameters(model: type[BaseModel] | None) -> list[dict[str, Any]]:
    if model is None:
        return []
    schema = model.model_json_schema()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema["properties"].items()
    ]
