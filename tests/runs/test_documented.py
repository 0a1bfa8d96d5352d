"""Statements of docs/runs.md."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from store import errors
from store.db.queries import run_views
from store.interface.runs import StoreRuns
from store.models.runs import PHASE_KINDS
from store.server.routes import runs as routes_runs
from store.server.routes.calls import ROUTERS
from store.server.routing import StoreRoute
from store.wire.errors import status_of
from store.wire.paths import PREFIX

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runs.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.slow
def test_documented_example_prints_the_documented_output(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (output,) = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_every_view_is_described_and_is_one() -> None:
    views = re.findall(r"^\| `([\w:]+)` \|", section("Views"), re.MULTILINE)
    assert [run_views.parse(view) for view in views] == [("seen", None), ("seen", 2), ("own", 2), ("raw", None)]


def test_every_refusal_is_described_with_an_argument_that_there_is() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|([^|]*)\|", section("What runs again"), re.MULTILINE)
    assert {name for name, _ in rows} <= set(errors.__all__)
    arguments = inspect.signature(StoreRuns.fork).parameters
    for _, unless in rows:
        for name in re.findall(r"`(\w+)=", unless):
            assert name in arguments, name


def test_every_method_about_runs_is_mentioned() -> None:
    methods = [name for name, _ in inspect.getmembers(StoreRuns, inspect.isfunction) if not name.startswith("_")]
    assert [name for name in methods if f"`runs.{name}" not in PAGE and f".runs.{name}(" not in PAGE] == []


def test_every_kind_that_is_about_a_phase_is_named() -> None:
    assert all(f"`{kind}`" in PAGE for kind in PHASE_KINDS)


def test_every_route_about_runs_is_in_the_table_and_every_one_in_the_table_is_served() -> None:
    table = section("Behind a server")
    reads = (routes_runs.events, routes_runs.outputs, routes_runs.forks)
    sections = {tag for router in reads for tag in router.tags}
    routers = [*reads, *(router for router in ROUTERS if sections & {*router.tags})]
    routes = [cast("StoreRoute", route) for router in routers for route in router.routes]
    served = {(route.method, re.sub(r"{\w+}", "{id}", route.path.removeprefix(PREFIX))) for route in routes}
    named = set(re.findall(r"`(GET|POST) (/[^`?]+)", table))
    assert named <= served
    # Of those that are written short the last word is there.
    words = {path.removesuffix("/{id}").rpartition("/")[2] for _, path in served - named}
    assert {word for word in words if f"/{word}" not in table} == set()


def test_every_status_is_that_of_its_class() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section("Behind a server"), re.MULTILINE)
    told = {name: int(status) for status, kinds in rows for name in re.findall(r"`(\w+)`", kinds)}
    assert len(told) >= 8
    for name, status in told.items():
        assert status_of(getattr(errors, name).__new__(getattr(errors, name)), is_rollbook_route=True) == status, name
