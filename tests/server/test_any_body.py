"""Any body on any route gets an answer that names the error, never a server error."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.wire.paths import DEQUEUE, PREFIX, WAIT
from tests.server.api import Api
from tests.server.front_end import ROUTES
from tests.torture import rounds

WORDS = sorted(
    {"rollout_id", "attempt_id", "input", "rollouts", "status", "limit", "spans", "config", "seal", "timeout"}
    | {"rollout_ids", "rollout_attempt_ids", "metadata", "heartbeat_stats", "worker_id", "as_at", "at", "sort_by"}
    | {
        "events",
        "kind",
        "scope",
        "scopes",
        "phase",
        "node",
        "name",
        "state",
        "content",
        "graph",
        "view",
        "key",
        "a",
        "b",
    }
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["latest", "llm"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
# An unbounded wait is a right answer to some of these, but none to wait for.
POSTED = sorted(route.path for route in ROUTES if route.method == "POST" and route.path not in {DEQUEUE, WAIT})
ASKED = sorted(route.path for route in ROUTES if route.method == "GET")

SPECIAL_STATUSES = {(route.method, route.path) for route in ROUTES if route.own_statuses}


@pytest.fixture
def store_url() -> str:
    """What is refused never reaches the database, and what is taken looks alike on both."""
    return "memory://"


@pytest.mark.torture
@pytest.mark.slow
@settings(
    max_examples=rounds(150, few=50), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
async def test_any_json_posted_anywhere_is_taken_or_refused(api: Api, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(POSTED))
    body = data.draw(VALUES)
    await _asked(api, "POST", path, body)


@pytest.mark.torture
@pytest.mark.slow
@settings(
    max_examples=rounds(100, few=40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
async def test_any_query_asked_anywhere_is_answered_or_refused(api: Api, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(ASKED))
    names = st.sampled_from([*WORDS, "offset", "filter_logic", "sort_order", "after", "type", "rollout", "name"])
    query = data.draw(st.dictionaries(names, st.text(max_size=6) | st.integers().map(str), max_size=4))
    await _asked(api, "GET", path, query)


async def _asked(api: Api, method: str, path: str, carried: Any) -> None:
    ids = {name: f"{name}-1" for name in re.findall(r"{(\w+)}", path)}
    # Two slashes lead out of the prefix.
    full = (path.removeprefix(PREFIX) if path.startswith(PREFIX) else f"/{path}").format(**ids)
    if method == "POST":
        answer = await api.post(full, json.dumps(carried).encode())
    else:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in carried.items())
        answer = await api.get(f"{full}?{query}")
    refused = {404, 409, 422} if (method, path) in SPECIAL_STATUSES else {400, 422}
    assert answer.status in {200, 201} | refused, (path, carried, answer)
    _ = answer.json
