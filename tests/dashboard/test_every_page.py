"""Requirements of every page: it stays on its origin, shows text as text, and is accessible."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Error, Page

from store import open_store
from store.sql.store import SQLStore
from tests.client.served import Served
from tests.dashboard.browsing import BROWSER, Site, Watch, clear
from tests.dashboard.filled import Filled, address, fill, page_paths

pytestmark = BROWSER

WIDTHS = (390, 1920)
"""Of a phone and of a large screen. A tab is 1280 wide."""

_RULES_OF_COLOURS = ("color-contrast", "link-in-text-block")
"""The rules of axe that may judge one document differently in another colour scheme."""

_ALL_RULES = {"rules": {"target-size": {"enabled": True}}}
"""The rules of axe that apply by default, and one that does not."""

_MARKUP = r"""() => [...document.querySelectorAll("*")].filter((element) =>
    element.matches(".hit, script:not([src]):not([type='application/json']), style, iframe, object, embed, base")
    || element.getAttributeNames().some((name) => name.startsWith("on"))
    || /^\s*javascript:/i.test(element.getAttribute("href") ?? "")
).map((element) => element.outerHTML.slice(0, 200))"""

_TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [document.documentElement.scrollWidth,
    ...[...document.querySelectorAll("body *")].filter((element) => element.getBoundingClientRect().right > innerWidth)
        .filter((element) => !element.parentElement.closest(".scroll, nav"))
        .map((element) => element.outerHTML.slice(0, 120)).slice(0, 5)]"""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def filled(server: Served) -> AsyncIterator[tuple[Site, Filled]]:
    """A store that nobody changes any more."""
    async with await open_store("memory://") as store:
        assert isinstance(store, SQLStore)
        with server.serving(store) as url:
            yield Site(url, store), await fill(store)


@cache
def axe() -> str:
    return (Path(__file__).parent / "vendor/axe.min.js").read_text()


async def violations(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """Return what axe finds that is serious or worse, by these rules or by all."""
    if await page.evaluate("() => !globalThis.axe"):
        await page.evaluate(axe())
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else _ALL_RULES)}
    report = await page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{violation['id']}: {node['html'][:160]} {node['failureSummary']}"
        for violation in report["violations"]
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"][:3]
    ]


@pytest.mark.parametrize("path", page_paths())
async def test_page_escapes_texts_loads_only_own_files_and_is_accessible(
    tab: tuple[Page, Watch], filled: tuple[Site, Filled], path: str
) -> None:
    site, contents = filled
    page, watch = tab
    await clear(page, watch)
    await page.emulate_media(color_scheme="light", reduced_motion="reduce")
    try:
        answer = await page.goto(site.url + address(path, contents))
    except Error as error:
        # What is to be saved is no page.
        if "Download is starting" not in str(error):
            raise
        return
    assert answer is not None
    assert answer.status == 200, await answer.text()
    await watch.settled(page)
    problems = {"light": await violations(page), "wide": await page.evaluate(_TOO_WIDE)}
    await page.emulate_media(color_scheme="dark")
    await watch.settled(page)
    problems["dark"] = await violations(page, _RULES_OF_COLOURS)
    await page.evaluate("() => { for (const each of document.querySelectorAll('details')) each.open = true; }")
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        await watch.settled(page)
        problems[f"wider than {width}"] = await page.evaluate(_TOO_WIDE)
        if width == WIDTHS[0]:
            problems["unreachable"] = await violations(page, ["scrollable-region-focusable"])
    problems["markup"] = await page.evaluate(_MARKUP)
    problems["hit"] = [await page.evaluate("() => globalThis.hit ?? null")]
    assert problems == {name: [None] if name == "hit" else [] for name in problems}
    watch.check()
