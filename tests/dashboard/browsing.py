"""A real browser, and pages whose requests and errors are recorded."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Request, ViewportSize, async_playwright, expect

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
    program = executable()
    if program is None:
        told = "no chromium, chromium-browser or google-chrome on the path: apt-get install chromium"
        if os.environ.get("ROLLBOOK_REQUIRE_BROWSER"):
            pytest.fail(told)
        pytest.skip(told)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=list(_FLAGS), timeout=120_000)
        try:
            yield browser
        finally:
            await browser.close()


_THREE_FRAMES: Final = """async () => {
    for (let frame = 0; frame < 3; frame += 1) {
        await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    }
}"""


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
        is_quiet = False
        while not is_quiet:
            was_quiet = self._is_quiet()
            await page.evaluate(_THREE_FRAMES)
            is_quiet = was_quiet and self._is_quiet()

    def _is_quiet(self) -> bool:
        return all("/ui/live" in request.url for request in self.pending)

    def forget(self) -> None:
        """Forget what was recorded for the previous page."""
        for requests in (self.asked, self.foreign, self.complaints, self.pending):
            requests.clear()

    def check(self) -> None:
        """Fail if a request left the origin, or anything was complained of."""
        assert self.foreign == []
        assert self.complaints == []


_DESKTOP: Final[ViewportSize] = {"width": 1280, "height": 900}


@asynccontextmanager
async def watched(browser: Browser, **settings: Any) -> AsyncGenerator[tuple[Page, Watch]]:
    """Open a page in a context of its own, with the settings of `Browser.new_context`."""
    chosen: dict[str, Any] = {"viewport": _DESKTOP, **settings}
    context = await browser.new_context(**chosen)
    # A page that hangs fails its test long before the whole run does.
    context.set_default_timeout(60_000)
    watch = Watch()
    _attach(context, watch)
    try:
        yield await context.new_page(), watch
    finally:
        await context.close()


async def clear(page: Page, watch: Watch) -> None:
    """Leave the page that a tab shows, and make the tab as a new one is, but for its cache."""
    await page.unroute_all()
    await page.goto("about:blank")
    if watch.origin is not None:
        session: Any = await page.context.new_cdp_session(page)
        storage = {"origin": watch.origin, "storageTypes": "cookies,local_storage"}
        await session.send("Storage.clearDataForOrigin", storage)
        await session.detach()
    await page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    await page.set_viewport_size(_DESKTOP)
    watch.forget()


def _attach(context: BrowserContext, watch: Watch) -> None:
    def is_foreign(url: str) -> bool:
        parts = urlsplit(url)
        if parts.scheme in {"data", "blob", "about"}:
            return False
        origin = f"{parts.scheme}://{parts.netloc}"
        watch.origin = watch.origin or origin
        return origin != watch.origin

    def began(request: Request) -> None:
        watch.asked.append(request.url)
        # The browser resolves no other name. A route could refuse the request too, but would turn off the cache.
        if is_foreign(request.url):
            watch.foreign.append(request.url)
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
