"""Interfaces on which programs depend, in a form that changes only with them: HTTP, metrics, errors.

`python -m tests.snapshots.interfaces` writes the snapshots again. Each difference is a change for clients.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from pathlib import Path
from typing import Any, cast

from store import InMemoryLightningStore
from store.cli.errors import exit_code
from store.errors import StoreError
from store.server.partitions import Partitions
from store.server.quotas import Quota, Quotas
from store.wire.errors import error_body, error_of, status_of
from tests.errors import EXAMPLES
from tests.server.stream_clients import LOG, serving

Json = dict[str, Any]

HERE = Path(__file__).parent
OPENAPI, METRICS, ERRORS = HERE / "openapi.json", HERE / "metrics.json", HERE / "errors.json"


async def served() -> dict[Path, Json]:
    """Return what a server says of its operations and its metrics, by the file of the snapshot."""
    async with (
        InMemoryLightningStore() as store,
        serving(Partitions(store, quotas=Quotas(Quota(events=10**6, calls=10**6)))) as client,
        client.events(LOG) as stream,
    ):
        await stream.frame()
        await store.enqueue_rollout(1)
        async with client.session.get(f"{client.url}/openapi.json") as answer:
            document = await answer.json()
        async with client.session.get(f"{client.url}/metrics") as answer:
            return {OPENAPI: operations(document), METRICS: metrics(await answer.text())}


def operations(document: Json) -> Json:
    """Return what each operation takes and which statuses it answers with, without the names of components."""
    return {
        f"{method.upper()} {path}": _operation(operation, document)
        for path, methods in sorted(document["paths"].items())
        for method, operation in sorted(methods.items())
    }


def _operation(operation: Json, document: Json) -> Json:
    parameters = [_resolved(parameter, document) for parameter in operation.get("parameters", [])]
    entry: Json = {
        "parameters": {
            f"{parameter['in']} {parameter['name']}": _kind(parameter["schema"], document)
            + (", required" * parameter.get("required", False))
            for parameter in sorted(parameters, key=lambda parameter: (parameter["in"], parameter["name"]))
        },
        "statuses": " ".join(sorted(operation["responses"])),
    }
    if "requestBody" in operation:
        body = _resolved(operation["requestBody"], document)
        entry["body"] = {
            "required": body.get("required", False),
            "types": sorted(body["content"]),
            "fields": sorted(
                {name for media in body["content"].values() for name in _fields(media.get("schema", {}), document)}
            ),
        }
    return entry


def _resolved(value: Json, document: Json) -> Json:
    while "$ref" in value:
        node: Any = document
        for part in value["$ref"].removeprefix("#/").split("/"):
            node = node[part]
        value = node
    return value


def _kind(schema: Json, document: Json) -> str:
    """Return a type with what restricts its values and its default; descriptions and names of schemas are left out."""
    schema = _resolved(schema, document)
    several = [_kind(option, document) for key in ("anyOf", "oneOf", "allOf") for option in schema.get(key, [])]
    if several:
        kind = " or ".join(sorted(set(several) - {"null"}))
    elif "enum" in schema or "const" in schema:
        kind = "|".join(map(str, schema.get("enum", [schema.get("const")])))
    elif schema.get("type") == "array":
        kind = f"list of {_kind(schema['items'], document)}"
    else:
        kind = str(schema.get("format") or schema.get("type") or "anything")
    default = schema.get("default")
    return kind if default is None else f"{kind} = {json.dumps(default)}"


def _fields(schema: Json, document: Json) -> set[str]:
    """Return the names of the fields of an object, or of the objects that may stand in its place or in a list."""
    schema = _resolved(schema, document)
    inner = [option for key in ("anyOf", "oneOf", "allOf") for option in schema.get(key, [])]
    if "items" in schema:
        inner.append(schema["items"])
    return set(cast("Json", schema.get("properties", {}))).union(*(_fields(option, document) for option in inner))


def metrics(text: str) -> Json:
    """Return the type and the labels of each metric in Prometheus's text format."""
    table: Json = {}
    for name, kind in sorted(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)):
        samples = re.findall(rf"^{name}(?:_bucket|_sum|_count)?{{(.*)}} ", text, re.MULTILINE)
        table[name] = {
            "type": kind,
            "labels": sorted({label for sample in samples for label in re.findall(r'(\w+)="', sample)}),
        }
    return table


def errors() -> Json:
    """Return the tree of errors: what each class is, what it is made of, and what becomes of it on the wire."""
    return dict(sorted({type(error).__name__: _error(error) for error in EXAMPLES}.items()))


def _error(error: StoreError) -> Json:
    kind = type(error)
    body = error_body(error)
    back = error_of(status_of(error), json.dumps(body).encode(), "GET /")
    return {
        "bases": [base.__name__ for base in kind.__mro__[1:] if base not in {Exception, BaseException, object}],
        "arguments": _arguments(kind),
        "attributes": sorted(vars(error)),
        "status": kind.status,
        "retryable": kind.retryable,
        "wire": {
            "status": status_of(error),
            "status of own routes": status_of(error, is_rollbook_route=True),
            "type": body["error_type"],
            "fields": sorted(body.keys() - {"detail", "error_type"}),
            "class of a client": type(back).__name__,
        },
        "exit code": exit_code(error),
    }


def _arguments(kind: type[StoreError]) -> list[str]:
    """Return the arguments of a class that has its own, those in brackets that may be left out."""
    if "__init__" not in vars(kind):
        return []
    parameters = inspect.signature(kind).parameters.values()
    return [
        parameter.name if parameter.default is inspect.Parameter.empty else f"[{parameter.name}]"
        for parameter in parameters
    ]


def main() -> None:
    """Write all snapshots."""
    for file, content in {**asyncio.run(served()), ERRORS: errors()}.items():
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
