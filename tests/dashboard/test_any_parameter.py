"""Every page responds to any parameters, or names the invalid parameter."""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from store.dashboard.page import Route
from store.dashboard.request import segment
from store.dashboard.site import ROUTES
from store.sql.store import SQLStore
from tests.dashboard.filled import Filled, address, fill
from tests.dashboard.page_helpers import ON_BOTH
from tests.dashboard.traces import member
from tests.server.api import Api
from tests.torture import IS_TORTURE

ODD = (
    "0", "-1", "9" * 30, "9" * 5_000, str(2**63), "1.5", "1e308", "5e-324", "nan", "-inf", "٣", "1_0", "\0",
    "'", '"', "\\", "%", "_", "..", "x.json", "a/b", "//[", "\r\nX: y", "attempt:1", "attempt:" + "9" * 5_000, "own:99",
    '{"a":' * 300, "\u2028", "(none)", "rollout/x", "latest", "é" * 2_000,
)  # fmt: skip
MOST = 8 if IS_TORTURE else 2
"""The number of parameters of a page that are tried."""
RAW = ("%ff", "%ed%a0%80", "%", "%zz", "")


def _parameters(route: Route) -> list[str]:
    """Return the names that the module of a page asks for, and those of every page of a rollout."""
    source = inspect.getsource(sys.modules[route.view.__module__])
    return sorted({*re.findall(r'request\.\w+\(\s*"(\w+)"', source), "at", "attempt", "limit"})


def _addresses(filled: Filled) -> Iterator[str]:
    drawn = random.Random(12)
    for route in ROUTES:
        if route.method != "GET":
            continue
        path = address(route.path, filled).partition("?")[0]
        names = _parameters(route)
        for name in drawn.sample(names, min(len(names), MOST)):
            value = drawn.choice(RAW) if drawn.random() < 0.1 else quote(drawn.choice(ODD), safe="")
            twin = ".json" if drawn.random() < 0.3 and not path.endswith("/") else ""
            yield f"{path}{twin}?{name}={value}&a={filled.rollout_id}&b={filled.run_id}"
        for name in re.findall(r"\{(\w+)\}", route.path):
            odd = re.sub(rf"\{{{name}\}}", segment(drawn.choice(ODD)), route.path)
            yield address(odd, filled).partition("?")[0]


@ON_BOTH
@pytest.mark.slow
@pytest.mark.torture
async def test_no_parameter_breaks_a_page(api: Api, store: SQLStore) -> None:
    filled = await fill(store)
    for reward in (1.7e308, -1.7e308, 5e-324):
        await member(store, "huge", reward, step=-(2**62))
    for path in _addresses(filled):
        answer = await api.get(f"/{path}")
        # What a database refuses is answered with 400: by then a page should have.
        assert answer.status in {200, 404, 409, 422}, (answer.status, path[:400], answer.body[-400:])
