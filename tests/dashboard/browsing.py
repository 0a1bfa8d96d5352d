"""A real browser, and pages in it that are watched: what they ask for, and what they complain of."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Request, Route, async_playwright, expect

from store.sql.store import SQLStore

BROWSER: Final = [pytest.mark.xdist_group("browser"), pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
"""`pytestmark` of a module whose tests use `page`: one process runs them all, with one browser, in one event loop."""

# Five seconds, the default, are too few while other programs hold the machine.
expect.set_options(timeout=90_000)

_FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb"),
    # Whatever a page tries, nothing but this machine has a name.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def executable() -> str | None:
    """Return where a browser is; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@asynccontextmanager
async def running() -> AsyncGenerator[Browser]:
    """Run a browser; without one the test is skipped, or fails where ROLLBOOK_REQUIRE_BROWSER is set."""
    found = executable()
    if found is None:
        told = "no chromium, chromium-browser or google-chrome on the path: apt-get install chromium"
        if os.environ.get("ROLLBOOK_REQUIRE_BROWSER"):
            pytest.fail(told)
        pytest.skip(told)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=found, args=list(_FLAGS), timeout=120_000)
        try:
            yield browser
        finally:
            await browser.close()


@dataclass(slots=True)
class Watch:
    """What the pages of a context did."""

    origin: str | None = None
    """Of the first thing that was asked for."""
    asked: list[str] = field(default_factory=list[str])
    foreign: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])
    pending: set[Request] = field(default_factory=set[Request])
    """What was asked for and has not come."""

    async def settled(self, page: Page) -> None:
        """Return when the page has all it asked for and has drawn it; of the news there is no end."""
        await page.wait_for_load_state()
        quiet = 0
        while quiet < 3:
            await page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
            quiet = 0 if any("/ui/live" not in request.url for request in self.pending) else quiet + 1

    def forget(self) -> None:
        """Forget what was recorded for the previous page."""
        for each in (self.asked, self.foreign, self.complaints, self.pending):
            each.clear()

    def check(self) -> None:
        """Fail if a request left the origin, or anything was complained of."""
        assert self.foreign == []
        assert self.complaints == []


@asynccontextmanager
async def watched(browser: Browser, **settings: Any) -> AsyncGenerator[tuple[Page, Watch]]:
    """Open a page in a context of its own, with the settings of `Browser.new_context`."""
    chosen: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, **settings}
    context = await browser.new_context(**chosen)
    # A page that hangs fails its test long before the whole run does.
    context.set_default_timeout(60_000)
    watch = Watch()
    await _attach(context, watch)
    try:
        yield await context.new_page(), watch
    finally:
        await context.close()


async def _attach(context: BrowserContext, watch: Watch) -> None:
    def is_foreign(url: str) -> bool:
        parts = urlsplit(url)
        if parts.scheme in {"data", "blob", "about"}:
            return False
        origin = f"{parts.scheme}://{parts.netloc}"
        watch.origin = watch.origin or origin
        return origin != watch.origin

    async def refuse(route: Route) -> None:
        watch.foreign.append(route.request.url)
        await route.abort()

    await context.route(is_foreign, refuse)

    def began(request: Request) -> None:
        watch.asked.append(request.url)
        watch.pending.add(request)

    def ended(request: Request) -> None:
        watch.pending.discard(request)

    context.on("request", began)
    context.on("requestfinished", ended)
    context.on("requestfailed", ended)
    context.on("console", lambda message: watch.complaints.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: watch.complaints.append(str(error.error)))


@dataclass(frozen=True, slots=True)
class Site:
    """A store, and its dashboard on a socket."""

    url: str
    """Of the partition: what `/ui/…` is appended to."""
    store: SQLStore

    def at(self, path: str = "") -> str:
        """Return the address of a page: `at("rollouts?status=failed")`."""
        return f"{self.url}/ui/{path}"
