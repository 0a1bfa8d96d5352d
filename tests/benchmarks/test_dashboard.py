"""The dashboard at 100,000 rollouts: size and rendering time of pages, and the drawing of 50,000 spans."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser

from store import open_store
from tests.benchmarks.conftest import IS_QUICK, load
from tests.benchmarks.dashboard_store import ROLLOUTS, SPANS, generate
from tests.benchmarks.report import Report, at_most
from tests.dashboard.browsing import running, watched
from tests.server.test_serving import serving

pytestmark = pytest.mark.benchmark

VISITS: Final = 3 if IS_QUICK else 7
SCALE: Final = (5_000, 5_000) if IS_QUICK else (ROLLOUTS, SPANS)
"""Rollouts, and spans of one of them."""
PAGES: Final = {
    "overview": "",
    "rollouts": "rollouts",
    "rollouts by reward": "rollouts?sort=reward&desc=1",
    "failures": "failures",
    "groups": "groups",
    "group": "groups/large",
    "rewards": "rewards",
    "resources": "resources",
    "workers": "workers",
    "runs": "runs",
    "audit": "audit",
    "admin": "admin",
    "rollout": "rollouts/{large}",
    "events": "rollouts/{large}/events",
    "training": "rollouts/{large}/training",
    "waterfall": "rollouts/{large}/waterfall",
}
"""By the names under which they are noted."""

TARGETS = {
    "weight": at_most("the heaviest page without its data, transferred", "KB", 150, 100),
    **{f"paint.{name}": at_most(f"first paint, {name}", "ms", 500, 250) for name in PAGES},
    "answer": at_most("the largest answer that a page asks for", "KB", 2000, 500),
    "rows": at_most(f"rows drawn of a waterfall of {SCALE[1]:,} spans", "", 1000, 200),
}

_PAINTED = """() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null"""
_ANSWERS = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .map((entry) => [entry.transferSize, entry.decodedBodySize])"""


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """The figures; printed at the end, however it ends."""
    print()
    report = Report(TARGETS, "bench-dashboard")
    report.fact("load average before", load())
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


def test_the_dashboard(report: Report, tmp_path: Path) -> None:
    store_url = os.environ.get("ROLLBOOK_BENCH_STORE")
    full = store_url or f"sqlite:///{tmp_path / 'full.db'}?durability=normal"
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    large = asyncio.run(_large(full) if store_url else generate(full, *SCALE))
    asyncio.run(_make(empty))
    report.fact("rollouts, and spans of the large one", asyncio.run(_counts(full, large)))
    asyncio.run(_measure(report, empty, full, large))


async def _make(url: str) -> None:
    await (await open_store(url)).close()


async def _large(url: str) -> str:
    async with await open_store(url, read_only=True) as store:
        (first,) = (await store.query_rollouts(limit=1)).items
        return first.rollout_id


async def _counts(url: str, large: str) -> str:
    async with await open_store(url, read_only=True) as store:
        rollouts, spans = await store.query_rollouts(limit=0), await store.query_spans(large, limit=0)
        return f"{rollouts.total:,}, {spans.total:,}"


async def _measure(report: Report, empty: str, full: str, large: str) -> None:
    async with running() as browser:
        with serving("ui", "--db", empty, "--port", "0") as (_, url):
            visits = [await _visit(browser, url + path) for path in PAGES.values() if "large" not in path]
        heaviest = max(visits, key=lambda visit: visit.transferred)
        report.figure("weight", heaviest.transferred / 1000, heaviest.address.partition("/ui")[2])
        with serving("ui", "--db", full, "--port", "0") as (_, url):
            largest = Visit("")
            for name, path in PAGES.items():
                visits = [await _visit(browser, url + path.format(large=large)) for _ in range(VISITS)]
                paints = [visit.painted for visit in visits if visit.painted is not None]
                report.raw(name, paints)
                if name == "rewards":
                    # It is painted before its curves are counted.
                    report.fact(
                        "curves of rewards drawn after", f"{statistics.median(visit.drawn for visit in visits):.0f} ms"
                    )
                report.figure(f"paint.{name}", statistics.median(paints), f"{max(paints):.0f} at most")
                largest = max([largest, *visits], key=lambda visit: visit.largest)
            report.figure("answer", largest.largest / 1000, largest.address.partition("/ui")[2])
            report.figure("rows", visits[-1].rows)


@dataclass(frozen=True, slots=True)
class Visit:
    """What one look at a page took."""

    address: str
    painted: float | None = None
    """When something of it was first seen, in milliseconds."""
    drawn: float = 0
    """When all that it asked for was, in milliseconds."""
    transferred: int = 0
    """Bytes, headers included, of all that it asked for."""
    largest: int = 0
    """Bytes of its largest answer, unpacked."""
    rows: int = 0
    """Drawn of a waterfall."""


async def _visit(browser: Browser, address: str) -> Visit:
    async with watched(browser) as (page, watch):
        await page.goto(address)
        await watch.settled(page)
        drawn = await page.evaluate("() => performance.now()")
        painted = await page.evaluate(_PAINTED)
        entries = await page.evaluate(_ANSWERS)
        rows = await page.locator(".wf-row").count()
        transferred, largest = sum(sent for sent, _ in entries), max(size for _, size in entries)
        return Visit(address, painted, drawn, transferred, largest, rows)
