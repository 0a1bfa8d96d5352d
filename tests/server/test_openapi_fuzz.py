"""The server conforms to its OpenAPI document: generated requests get declared responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from store import open_store
from store.models import RunEvent
from store.testing.samples import make_llm, make_span
from store.wire.paths import HEALTH, UNSUPPORTED_OTLP_PATHS
from tests.lazy_modules import lazy
from tests.server.test_serving import serving
from tests.torture import IS_TORTURE

# One server, and one reading of the document, for all of them.
pytestmark = [pytest.mark.torture, pytest.mark.xdist_group("openapi"), pytest.mark.timeout(600)]

schemathesis: Any = lazy("schemathesis")
checks_of_schemathesis: Any = lazy("schemathesis.checks")
errors_of_schemathesis: Any = lazy("schemathesis.core.errors")

EXAMPLES: Final = 60
FEW: Final = 2
"""The requests of each route and mode outside `make torture`."""
CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
DOCUMENT: Final[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "docs/openapi.json").read_text())
"""The document of the server, as tests/server/test_openapi.py shows."""
ROUTES: Final = [(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods]
WITH_ARGUMENTS: Final = [
    (method, path)
    for method, path in ROUTES
    if {"parameters", "requestBody"} & DOCUMENT["paths"][path][method.lower()].keys()
]
FITTING, UNFITTING = "POSITIVE", "NEGATIVE"
"""The names of modes of Schemathesis."""
SECONDS: Final = 60
SEEDS: Final = 10
LONGEST_LIST: Final = 2
"""The most items of a list in a request, unless all examples are run. Longer lists would take most of the time."""
_FRAMING: Final = frozenset({"connection", "content-length", "expect", "host", "te", "transfer-encoding", "upgrade"})


@dataclass(frozen=True, slots=True)
class Running:
    """A server of a store that holds a little of everything."""

    declared: Any
    """The schema with which responses are checked."""
    short: Any
    """The same schema with short lists, from which fitting requests are generated."""
    ids: dict[str, str]
    """Ids that are there, by the names they have in paths and bodies."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server on SQLite, which all these tests use."""
    db = f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'run.db'}"
    ids = asyncio.run(_fill(db))
    # Nobody reads its log, which would fill up the pipe with what it refused.
    with serving("serve", "--db", db, "--port", "0", "--log-level", "error") as (_, url):
        declared, short = (
            _schema(document, url) for document in (DOCUMENT, DOCUMENT if IS_TORTURE else _shorten(DOCUMENT))
        )
        yield Running(declared, short, ids)


def _schema(document: dict[str, Any], url: str) -> Any:
    schema: Any = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    return schema


def _shorten(node: Any) -> Any:
    """Return a part of the document in which lists without a maximum length have at most `LONGEST_LIST` items."""
    if isinstance(node, list):
        return [_shorten(value) for value in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    fields = {name: _shorten(value) for name, value in cast("dict[str, Any]", node).items()}
    if fields.get("type") == "array":
        fields.setdefault("maxItems", LONGEST_LIST)
    return fields


async def _fill(db: str) -> dict[str, str]:
    async with await open_store(db) as store:
        started = await store.start_rollout({"question": 1}, worker_id="w1")
        await store.add_span(make_span(started.attempt))
        resources = await store.add_resources(make_llm())
        run = (started.rollout_id, started.attempt.attempt_id)
        await store.runs.append_events(*run, [RunEvent(kind="result", node_id="n", scope="s")])
        saved = await store.runs.save_checkpoint(*run, scope="s", name="c", state={})
        assert saved is not None
        artifact = await store.runs.save_artifact(*run, scope="s", name="a", content=1)
        return {
            "rollout_id": started.rollout_id,
            "attempt_id": started.attempt.attempt_id,
            "checkpoint_id": saved.checkpoint_id,
            "artifact_id": artifact.artifact_id,
            "worker_id": "w1",
            "resources_id": resources.resources_id,
        }


_PARTS: Final = [
    pytest.param(FITTING, ROUTES, id="fitting"),
    *(pytest.param(UNFITTING, WITH_ARGUMENTS[part::3], id=f"unfitting-{part}") for part in range(3)),
]


@pytest.mark.slow
@pytest.mark.parametrize("mode,routes", _PARTS)
def test_every_route_answers_a_few_requests_as_declared(
    running: Running, mode: str, routes: list[tuple[str, str]], subtests: pytest.Subtests
) -> None:
    for method, path in routes:
        with subtests.test(f"{method} {path}"):
            _try(running, method, path, mode, FEW)


@pytest.mark.torture_only
@pytest.mark.parametrize("method,path", ROUTES)
def test_every_answer_to_a_request_that_fits_is_declared(running: Running, method: str, path: str) -> None:
    _try(running, method, path, FITTING, EXAMPLES)


@pytest.mark.torture_only
@pytest.mark.parametrize("method,path", WITH_ARGUMENTS)
def test_every_answer_to_a_request_that_does_not_fit_is_declared(running: Running, method: str, path: str) -> None:
    _try(running, method, path, UNFITTING, EXAMPLES)


def _try(running: Running, method: str, path: str, mode: str, examples: int) -> None:
    declared, short = (schema[path][method] for schema in (running.declared, running.short))
    # With the schema of short lists, a list that is only longer would be a request that does not fit.
    generating = short if mode == FITTING else declared
    # An unsupported OTLP path is answered with 501. A health check is answered with 503 if the database is slow.
    may_fail = path in {*UNSUPPORTED_OTLP_PATHS, HEALTH, "/readyz"}
    names = CHECKS[1:] if may_fail else CHECKS
    checks = [getattr(checks_of_schemathesis, name) for name in names]

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=generating.as_strategy(generation_mode=schemathesis.GenerationMode[mode]), is_known=st.booleans())
    def ask(case: Any, *, is_known: bool) -> None:
        if is_known:
            _use_existing_ids(case, running.ids)
        _remove_waits(case)
        _remove_framing(case)
        answer = case.call(timeout=SECONDS)
        case.operation = declared
        case.validate_response(answer, checks=checks)

    for number in range(SEEDS):
        try:
            seed(number)(ask)()
        except errors_of_schemathesis.UnsupportedSchema:
            # By chance something was to be made up that Schemathesis knows no way to.
            if number == SEEDS - 1:
                raise
        else:
            return


def _use_existing_ids(case: Any, ids: dict[str, str]) -> None:
    for place in (case.path_parameters, case.query, case.body):
        if isinstance(place, dict):
            cast("dict[str, Any]", place).update({name: value for name, value in ids.items() if name in place})


def _remove_framing(case: Any) -> None:
    headers: dict[str, Any] = case.headers or {}
    # Where a message ends is read before there is a request; made up, that is answered by the parser, in plain text.
    for name in [header for header in headers if header.lower() in _FRAMING]:
        del headers[name]


def _remove_waits(case: Any) -> None:
    body: Any = case.body
    if isinstance(body, dict):
        # Left out, a timeout is endless; nothing else takes one.
        cast("dict[str, Any]", body).update({"timeout": 0, "wait_seconds": 0})
