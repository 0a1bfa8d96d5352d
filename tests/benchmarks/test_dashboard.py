"""The dashboard at 100,000 rollouts: time of the server, size and rendering time of pages, and the drawing of spans."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.async_api import Browser

from store import open_store
from store.indexing.reading import catch_up
from store.indexing.search.index import SearchIndex
from store.indexing.usage_index import UsageIndex
from store.sql.store import SQLStore
from tests.benchmarks.conftest import IS_QUICK, load, stored_before
from tests.benchmarks.dashboard_store import ROLLOUTS, SPANS, generate
from tests.benchmarks.report import Report, at_most
from tests.dashboard.browsing import running, watched
from tests.dashboard.reviewed import SMALL_STEPS, fill
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
ANSWERED: Final = {
    **{name: path for name, path in PAGES.items() if name not in {"group", "rollout", "events", "training"}},
    "group": "groups/task-000010",
    "tasks": "tasks",
    "cost": "cost",
    "effects": "effects",
    "worker": "workers/w-00",
    "rollout": "rollouts/{usual}",
}
"""The pages whose time on the server is measured."""
REQUESTS: Final = 5 if IS_QUICK else 15
COMMITS: Final = 3
"""The number of visits directly after a commit."""

LONG: Final = 5_000 if IS_QUICK else 300_000
"""The spans of a single rollout."""
LONG_TARGETS = {
    "indexes": at_most(f"indexes of a rollout of {LONG:,} spans, filled", "s", 120, 40),
    "transcript": at_most(f"transcript of a rollout of {LONG:,} spans, time of the server", "ms", 500, 250),
    "waterfall": at_most(f"waterfall of {LONG:,} spans, time of the server", "ms", 500, 250),
    "rare": at_most(f"search for a word of one of {LONG:,} spans, time of the server", "ms", 150, 50),
    "common": at_most(f"search for a word of all {LONG:,} spans, time of the server", "ms", 500, 150),
    "head": at_most(f"transcript of a rollout of {LONG:,} spans, first paint", "ms", 1000, 400),
    "opened": at_most(f"waterfall of {LONG:,} spans, first rows drawn", "ms", 3000, 1500),
    "complete": at_most(f"waterfall of {LONG:,} spans, all read", "s", 90, 30),
    "filtered": at_most(f"filter by name over {LONG:,} spans", "ms", 2000, 500),
    "path": at_most(f"critical path of {LONG:,} spans", "ms", 3000, 1000),
    "scrolled": at_most("a jump to another part of the rows", "ms", 200, 50),
    "heap": at_most(f"memory of the page with {LONG:,} spans", "MB", 600, 300),
    "server": at_most(f"memory of the server after {LONG:,} spans", "MB", 900, 400),
}

TARGETS = {
    "weight": at_most("the heaviest page without its data, transferred", "KB", 150, 100),
    **{f"paint.{name}": at_most(f"first paint, {name}", "ms", 500, 250) for name in PAGES},
    "answer": at_most("the largest answer that a page asks for", "KB", 2000, 500),
    "rows": at_most(f"rows drawn of a waterfall of {SCALE[1]:,} spans", "", 1000, 200),
    **LONG_TARGETS,
    **{
        f"{database}.{name}": at_most(f"{title}: p50 of the server, {name}", "ms", 100, 50)
        for database, title in (("sqlite", "SQLite"), ("postgres", "Postgres"))
        for name in ANSWERED
    },
    "turns.server": at_most("transcript of 60 turns with 15 edits, time of the server", "ms", 200, 100),
    "turns.ready": at_most("transcript of 60 turns with 15 edits, ready with its outline", "ms", 400, 250),
    "turns.cold": at_most("the same without cached files, in a new browser profile", "ms", 400, 250),
    "turns.painted": at_most("the same without cached files, first paint", "ms", 500, 250),
}

_PAINTED = """() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null"""
_READY = """() => [performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd,
    performance.getEntriesByName("first-contentful-paint")[0].startTime]"""
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


def _filled(new_url: str) -> tuple[str, str]:
    """Return the URL of a store, and the id of its large rollout."""
    url = stored_before(new_url)
    if url is not None:
        return url, asyncio.run(_large(url))
    return new_url, asyncio.run(generate(new_url, *SCALE))


def test_the_dashboard(report: Report, tmp_path: Path) -> None:
    full, large = _filled(f"sqlite:///{tmp_path / 'full.db'}?durability=normal")
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    asyncio.run(_make(empty))
    _note_answers(report, "sqlite", full, large)
    report.fact("rollouts, and spans of the large one", asyncio.run(_counts(full, large)))
    asyncio.run(_measure(report, empty, full, large))


def test_pages_on_postgres(report: Report, postgres_url: Callable[[], str]) -> None:
    _note_answers(report, "postgres", *_filled(postgres_url()))


@dataclass(frozen=True, slots=True)
class Answers:
    """The times in which a server answered one request several times, in milliseconds."""

    first: float
    p50: float
    processor: float
    """The processor time of the server, without that of the database, per request."""


def _get(url: str) -> float:
    """Return the milliseconds until a server has answered a request."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=600)
    try:
        connection.connect()
        start = time.perf_counter()
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, (url, answer.status)
        return (time.perf_counter() - start) * 1000
    finally:
        connection.close()


def _answers(process: psutil.Process, url: str) -> Answers:
    first = _get(url)
    before = sum(process.cpu_times()[:2])
    times = [_get(url) for _ in range(REQUESTS)]
    spent = sum(process.cpu_times()[:2]) - before
    return Answers(first, statistics.median(times), spent * 1000 / REQUESTS)


def _note_answers(report: Report, database: str, url: str, large: str) -> None:
    """Note the time of the server for each page, also directly after a commit, when no figures are cached."""
    usual = asyncio.run(_large(url, offset=SCALE[0] // 2))
    asyncio.run(_fill_indexes(url))
    with serving("ui", "--db", url, "--port", "0") as (started, address):
        process = psutil.Process(started.pid)
        for name, path in ANSWERED.items():
            page = address + path.format(large=large, usual=usual)
            answers = _answers(process, page)
            after_commit: list[float] = []
            for _ in range(COMMITS):
                asyncio.run(_commit(url))
                after_commit.append(_get(page))
            detail = f"{statistics.median(after_commit):.0f} after a commit, {answers.processor:.0f} of the processor"
            report.figure(f"{database}.{name}", answers.p50, detail)
            report.raw(f"{database}.{name}", asdict(answers) | {"after_commit": after_commit})


async def _make(url: str) -> None:
    await (await open_store(url)).close()


async def _fill_indexes(url: str) -> None:
    """Fill the indexes, which a server would fill while its answers are measured."""
    async with await open_store(url) as store:
        assert isinstance(store, SQLStore)
        for index in (UsageIndex(), SearchIndex()):
            await catch_up(store.core.dialect, index, None)


async def _commit(url: str) -> None:
    async with await open_store(url) as store:
        await store.enqueue_rollout({"question": "one more"})


async def _large(url: str, offset: int = 0) -> str:
    async with await open_store(url, read_only=True) as store:
        (first,) = (await store.query_rollouts(limit=1, offset=offset)).items
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


def test_transcript_of_many_turns(report: Report, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'reviewed.db'}"
    story = asyncio.run(fill(url, SMALL_STEPS))
    with serving("ui", "--db", url, "--port", "0") as (started, address):
        page = f"{address}rollouts/{story.long_id}"
        answers = _answers(psutil.Process(started.pid), page)
        detail = f"{answers.first:.0f} at first, {answers.processor:.0f} of the processor"
        report.figure("turns.server", answers.p50, detail)
        cold, warm = asyncio.run(_ready(page))
        for name, visits in {"turns.ready": warm, "turns.cold": cold}.items():
            ready, painted = (statistics.median(times) for times in zip(*visits, strict=True))
            report.figure(name, ready, f"painted after {painted:.0f}")
        report.figure("turns.painted", statistics.median(painted for _, painted in cold))
        report.raw("turns", {"cold": cold, "warm": warm})


async def _ready(address: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the ms until the page can be used and until it is painted, with a new browser profile and again."""
    cold: list[tuple[float, float]] = []
    warm: list[tuple[float, float]] = []
    async with running() as browser:
        for _ in range(VISITS):
            async with watched(browser) as (page, watch):
                for times in (cold, warm):
                    await page.goto(address)
                    await watch.settled(page)
                    times.append(await page.evaluate(_READY))
    return cold, warm


_LONG_PATHS: Final = {
    "transcript": "",
    "waterfall": "/waterfall",
    "rare": f"/search?q={LONG // 2}",
    "common": "/search?q=plan",
}


def test_rollout_with_many_spans(report: Report, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'long.db'}?durability=normal"
    large = asyncio.run(generate(url, 1, LONG))
    before = time.process_time()
    start = time.perf_counter()
    asyncio.run(_fill_indexes(url))
    report.figure("indexes", time.perf_counter() - start, f"{time.process_time() - before:.0f} of the processor")
    with serving("ui", "--db", url, "--port", "0") as (started, address):
        for name, path in _LONG_PATHS.items():
            answers = _answers(psutil.Process(started.pid), f"{address}rollouts/{large}{path}")
            report.figure(name, answers.p50, f"{answers.processor:.0f} of the processor")
            report.raw(f"long.{name}", asdict(answers))
    asyncio.run(_measure_long(report, url, large))


async def _measure_long(report: Report, url: str, large: str) -> None:
    async with running() as browser:
        with serving("ui", "--db", url, "--port", "0") as (process, address):
            visits = [await _visit(browser, f"{address}rollouts/{large}") for _ in range(VISITS)]
            report.figure("head", statistics.median(visit.painted or 0 for visit in visits))
            page = await browser.new_page()
            await page.goto(f"{address}rollouts/{large}/waterfall")
            await page.locator(".wf-row").first.wait_for()
            report.figure("opened", await page.evaluate("() => performance.now()"))
            await page.locator(".wf-sum", has_text=f"{LONG:,} spans").wait_for(timeout=600_000)
            report.figure("complete", await page.evaluate("() => performance.now() / 1000"))
            # The field acts after a pause of 120 ms.
            report.figure("filtered", await page.evaluate(_FILTERED) - 120)
            report.figure("path", await page.evaluate(_PATH_MARKED))
            report.figure("scrolled", await page.evaluate(_SCROLLED))
            memory = cast("Any", await page.context.new_cdp_session(page))
            await memory.send("HeapProfiler.collectGarbage")
            report.figure("heap", (await memory.send("Runtime.getHeapUsage"))["usedSize"] / 1e6)
            report.figure("server", psutil.Process(process.pid).memory_info().rss / 1e6)


_DRAWN: Final = "await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));"
_FILTERED: Final = f"""async () => {{
    const field = document.querySelector(".wf-tools input[type=search]");
    const grid = document.querySelector(".wf-scroll");
    const [start, before] = [performance.now(), grid.getAttribute("aria-rowcount")];
    field.value = "step";
    field.dispatchEvent(new Event("input", {{ bubbles: true }}));
    while (grid.getAttribute("aria-rowcount") === before) await new Promise((later) => setTimeout(later, 5));
    {_DRAWN}
    return performance.now() - start;
}}"""
_PATH_MARKED: Final = f"""async () => {{
    const start = performance.now();
    [...document.querySelectorAll(".wf-tools label")].find((label) => label.textContent.includes("Critical")).click();
    {_DRAWN}
    return performance.now() - start;
}}"""
_SCROLLED: Final = f"""async () => {{
    const grid = document.querySelector(".wf-scroll");
    const start = performance.now();
    grid.scrollTop = grid.scrollHeight * 0.6;
    {_DRAWN}
    return performance.now() - start;
}}"""
