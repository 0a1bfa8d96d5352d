"""The OpenAPI document: all routes that are served, no others, and equal to the file in docs/."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from store.errors import StoreError
from store.examples.trading.front_end.trading_front_end import TradingFrontEnd
from store.models import LLM, Rollout, Span
from store.models.rollouts import ObservedWorker
from store.server.app import openapi
from store.wire.errors import error_body
from store.wire.paths import IDEMPOTENCY_KEY, OTLP_TRACES, UNSUPPORTED_OTLP_PATHS
from tests.server.api import Api
from tests.server.front_end import ROUTES

ROOT = Path(__file__).parents[2]
BESIDE = {("post", OTLP_TRACES), *(("post", path) for path in UNSUPPORTED_OTLP_PATHS)} | {
    ("get", path) for path in ("/livez", "/readyz", "/metrics")
}


@pytest.fixture
def store_url() -> str:
    """The document is the same whatever the database."""
    return "memory://"


@cache
def document() -> dict[str, Any]:
    """Return the document. It takes a second, which only the process of these tests spends."""
    return openapi(TradingFrontEnd)


def _operations() -> dict[tuple[str, str], Any]:
    return {
        (method, path): operation
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    }


async def test_served_openapi_document_equals_the_one_in_docs(api: Api) -> None:
    written = (ROOT / "docs/openapi.json").read_text()
    assert (await api.get("//openapi.json")).ok() == json.loads(written), "run `make openapi`"
    assert written == json.dumps(document(), indent=1, ensure_ascii=False) + "\n", "run `make openapi`"


def test_it_is_a_document_of_openapi() -> None:
    validate(document())


def test_it_holds_every_route_and_no_other() -> None:
    assert set(_operations()) == {(route.method.lower(), route.path) for route in ROUTES} | BESIDE
    names = [operation["operationId"] for operation in _operations().values()]
    assert len(set(names)) == len(names)


def test_every_operation_describes_its_parameters_and_answers() -> None:
    models = document()["components"]["schemas"]
    assert {model.__name__ for model in (Span, Rollout, ObservedWorker, LLM)} <= set(models)
    for route in ROUTES:
        described = _operations()[route.method.lower(), route.path]
        assert described["summary"]
        assert ("requestBody" in described) == (route.body is not None), route.path
        answer = described["responses"][str(route.status)]["content"]["application/json"]["schema"]
        assert answer, route.path
        named = {parameter.get("name") for parameter in described["parameters"]}
        assert set(re.findall(r"\{(\w+)\}", route.path)) <= named
        assert route.query is None or set(route.query.model_fields) <= named
        refused = {"400", "401", "403", "404", "413", "422", "500", "503"}
        assert refused <= described["responses"].keys()
        if route.method == "POST":
            assert {"$ref": f"#/components/parameters/{IDEMPOTENCY_KEY}"} in described["parameters"]


def test_the_logs_are_streams_too() -> None:
    for path in ("/v1/agl/log", "/v1/agl/rollouts/{rollout_id}/history"):
        assert "text/event-stream" in _operations()["get", path]["responses"]["200"]["content"]


def test_error_schema_matches_the_bodies_of_errors() -> None:
    described = document()["components"]["schemas"]["Error"]
    assert set(described["required"]) <= error_body(StoreError("x")).keys()
    assert set(described["properties"]) <= error_body(StoreError("x")).keys()


def test_keys_are_declared_and_not_demanded_of_everybody() -> None:
    schemes = document()["components"]["securitySchemes"]
    assert (schemes["bearer"]["scheme"], schemes["apiKey"]["name"]) == ("bearer", "x-api-key")
    assert {name for requirement in document()["security"] for name in requirement} == set(schemes)
    assert {} in document()["security"]


def test_all_references_of_the_document_resolve() -> None:
    for kind, name in re.findall(r'"#/components/(\w+)/([^"]+)"', json.dumps(document())):
        assert name in document()["components"][kind], (kind, name)


def test_an_operation_without_an_answer_is_not_overlooked() -> None:
    assert all(route.response_model is not None for route in ROUTES)


async def test_it_is_there_to_be_read_by_people(api: Api) -> None:
    assert (await api.get("//docs")).status == 200
