"""Questions about a training, each answered from the overview in at most four clicks, in a browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from store import open_store
from store.models.scanners import NewScan, NewScanner
from store.sql.store import SQLStore
from tests.client.served import Served
from tests.dashboard import reviewed
from tests.dashboard.browsing import BROWSER, Site

pytestmark = BROWSER

MOST_CLICKS = 4


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(server: Served, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Steps 280 to 315 of the training of `tests.dashboard.reviewed`. The last event is 13 minutes old."""
    path: Path = tmp_path_factory.mktemp("reviewed") / "store.db"
    await reviewed.fill(f"sqlite:///{path}", reviewed.SMALL_STEPS)
    async with await open_store(f"sqlite:///{path}") as store:
        assert isinstance(store, SQLStore)
        while (await store.log.search("parser")).events_behind:
            pass
        with server.serving(store) as url:
            yield Site(url, store)


class Visitor:
    """A person who starts at the overview and clicks on links."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self._site = site
        self._clicks = 0

    async def start(self) -> None:
        """Open the overview."""
        await self.page.goto(f"{self._site.url}/ui/")

    async def click(self, target: str | Locator) -> None:
        """Click on a link of this name, or on an element."""
        self._clicks += 1
        assert self._clicks <= MOST_CLICKS
        link = self.page.get_by_role("link", name=target, exact=True) if isinstance(target, str) else target
        await link.click()

    async def sees(self, *texts: str) -> None:
        """Check that the page shows some texts."""
        for text in texts:
            await expect(self.page.locator("main")).to_contain_text(text)

    async def search(self, query: str) -> None:
        """Search for a query with the field of all pages."""
        await self.page.keyboard.press("/")
        await self.page.keyboard.type(query)
        await self.page.keyboard.press("Enter")
        await self.page.wait_for_url("**/ui/search?**")


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(page: Page, site: Site) -> Visitor:
    """A person at the overview."""
    visitor = Visitor(page, site)
    await visitor.start()
    return visitor


async def test_overview_leads_to_the_prompt_that_made_step_300_worse(visitor: Visitor) -> None:
    await visitor.sees("Changes")
    await visitor.click("v2 at 300")
    await visitor.sees("Effect of res-swe v2, from step 300", "format", "Tokens out", "Failed")
    await visitor.click("Diff v1 → v2")
    await visitor.sees("Explain every step at length.")


async def test_effect_of_a_version_has_an_interval_for_both_ways_to_count_failures(visitor: Visitor) -> None:
    await visitor.click("v2 at 300")
    await visitor.sees("paired by 12 tasks", "The shares of rewarded rollouts differ by", "Failed as 0: ")
    await visitor.click("Rewarded only")
    await expect(visitor.page).to_have_url(re.compile("unrewarded=out"))
    await visitor.sees("The shares of rewarded rollouts differ by", "Rewarded only: ")


async def test_search_shows_the_workers_that_edit_tests(visitor: Visitor) -> None:
    await visitor.search(f"tool:edit_file {reviewed.EDITED_TEST.rpartition('/')[2]}")
    results = visitor.page.locator(".result .facts")
    texts = await results.all_inner_texts()
    assert len(texts) >= 10
    assert all(any(worker in text for worker in reviewed.HACKERS) for text in texts)


async def test_scanner_shows_the_workers_that_edit_tests(visitor: Visitor, site: Site) -> None:
    query = await site.store.log.search(f"tool:edit_file {reviewed.EDITED_TEST.rpartition('/')[2]}", limit=100)
    matched = {hit.rollout_id for hit in query.results}
    await site.store.scanners.add(NewScanner(name="hacks", version="v1", kind="search", definition={"query": "test"}))
    attempts = await site.store.scanners.unscanned("hacks", "v1", limit=10_000)
    results = [NewScan(**dict(attempt), is_match=attempt.rollout_id in matched) for attempt in attempts]
    await site.store.scanners.record("hacks", "v1", results)
    await visitor.start()
    await visitor.click("hacks@v1")
    await expect(visitor.page.locator("#chart-rate canvas")).to_have_count(1)
    rows = visitor.page.locator("[aria-labelledby=title-workers] tbody tr")
    workers = await rows.locator("th").all_inner_texts()
    assert {*workers[:2]} == {*reviewed.HACKERS}
    await visitor.click(rows.first.get_by_role("link", name=" of "))
    await expect(visitor.page).to_have_url(re.compile(f"scan_match=hacks%40v1&worker={workers[0]}"))
    await visitor.sees("Scanner match")


async def test_search_finds_the_transcripts_with_a_phrase(visitor: Visitor) -> None:
    await visitor.search('"hard to satisfy"')
    await visitor.click(visitor.page.locator(".result h2 a").first)
    await visitor.sees("skip flaky")


async def test_overview_states_why_the_queue_is_stuck(visitor: Visitor) -> None:
    await visitor.sees("40 rollouts, 2 causes", "No worker has asked for work for 1", "no sign of life", "Stalled")
    await visitor.click(f"Show {reviewed.QUEUED}")
    await expect(visitor.page.locator("tbody tr")).to_have_count(reviewed.QUEUED)


async def test_two_groups_are_compared(visitor: Visitor) -> None:
    await visitor.click("Groups")
    await visitor.click(visitor.page.locator("#group-1 a").first)
    await visitor.click("Compare with…")
    await visitor.page.locator("[name='a.group']").fill("s280-flask-1296")
    await visitor.page.locator("[name='b.group']").fill("s300-flask-1296")
    await visitor.click(visitor.page.get_by_role("button", name="Compare", exact=True))
    await visitor.sees("8 rewarded", "95%")


async def test_cost_of_the_training_is_stated_with_its_calls(visitor: Visitor) -> None:
    await visitor.click("Cost")
    await visitor.sees("qwen3-8b", "calls")


async def test_one_task_is_followed_across_steps(visitor: Visitor) -> None:
    await visitor.click("Groups")
    await visitor.click("Tasks by step")
    await visitor.click(visitor.page.locator("tbody a").first)
    await visitor.sees("train", "val", "280", "315")


async def test_training_view_states_the_rule_that_drops_a_call(visitor: Visitor) -> None:
    await visitor.click("Rollouts")
    await visitor.click(visitor.page.locator("main a[href*='status=succeeded']").first)
    await expect(visitor.page).to_have_url(re.compile("status=succeeded"))
    await visitor.click(visitor.page.locator("tbody tr a").first)
    await visitor.click("Training")
    await visitor.sees("No span is a call to a model.", "No call ended before this reward")
