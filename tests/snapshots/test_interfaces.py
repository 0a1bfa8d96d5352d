"""The HTTP operations, the metrics and the errors are those of the snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.snapshots import interfaces

Json = dict[str, Any]


def snapshot(file: Path) -> Json:
    return json.loads(file.read_text())


async def test_a_server_offers_the_operations_and_metrics_it_offered() -> None:
    for file, interface in (await interfaces.served()).items():
        assert interface == snapshot(file), file.name


def test_errors_equal_their_snapshot() -> None:
    assert interfaces.errors() == snapshot(interfaces.ERRORS)


def test_names_of_components_do_not_count() -> None:
    def document(name: str, title: str) -> Json:
        schema: Json = {"title": title, "anyOf": [{"enum": ["asc", "desc"], "type": "string"}, {"type": "null"}]}
        parameter: Json = {"name": "order", "in": "query", "schema": {"$ref": f"#/components/schemas/{name}"}}
        paths: Json = {"/a": {"get": {"parameters": [parameter], "responses": {"200": {}}}}}
        return {"paths": paths, "components": {"schemas": {name: schema}}}

    described = {"parameters": {"query order": "asc|desc"}, "statuses": "200"}
    assert interfaces.operations(document("One", "A")) == {"GET /a": described}
    assert interfaces.operations(document("Other", "B")) == {"GET /a": described}


def test_the_fields_of_a_body_count_wherever_they_are_defined() -> None:
    components: Json = {
        "One": {"properties": {"id": {}}},
        "Many": {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/One"}, {"type": "null"}]}},
    }
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Many"}}}
    operation: Json = {"requestBody": {"required": True, "content": content}, "responses": {"201": {}, "400": {}}}
    assert interfaces.operations({"paths": {"/a": {"post": operation}}, "components": {"schemas": components}}) == {
        "POST /a": {
            "parameters": {},
            "statuses": "201 400",
            "body": {"required": True, "types": ["application/json"], "fields": ["id"]},
        }
    }


def test_a_metric_is_known_by_its_type_and_its_labels() -> None:
    text = '# TYPE a_seconds histogram\na_seconds_bucket{route="/",le="1"} 2\n# HELP b Help.\n# TYPE b gauge\nb 1\n'
    assert interfaces.metrics(text) == {
        "a_seconds": {"type": "histogram", "labels": ["le", "route"]},
        "b": {"type": "gauge", "labels": []},
    }
