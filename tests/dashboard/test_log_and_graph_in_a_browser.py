"""The audit page during an outage of its server, and the graph of a growing run, in a browser."""

from __future__ import annotations

from playwright.async_api import Browser, Page, expect

from store import open_store
from store.interface.store import Store
from store.models import EnqueueRolloutRequest, RunEvent
from tests.client.server_process import ServerProcess
from tests.dashboard.browsing import BROWSER, Site, watched
from tests.runs.trading import RISK
from tests.runs.trading_runs import auto_run, say

pytestmark = BROWSER


async def positions(page: Page) -> list[int]:
    """Return the positions that the page of the log shows, from the top."""
    ids = await page.locator("#events tbody tr").evaluate_all("rows => rows.map((row) => row.id)")
    return [int(element_id.removeprefix("at-")) for element_id in ids]


def asked(count: int) -> list[EnqueueRolloutRequest]:
    """Return what asks for some rollouts."""
    return [EnqueueRolloutRequest(input=number) for number in range(count)]


async def newest(store: Store, count: int) -> list[int]:
    """Return the last positions of the log."""
    return [event.position async for event in store.log.tail()][::-1][:count]


async def test_the_log_on_a_page_is_the_log_whatever_happens_to_the_server(browser: Browser, site_url: str) -> None:
    async with await open_store(site_url) as store:
        server = ServerProcess(site_url)
        server.start()
        try:
            # Its complaints are those of a network that is gone.
            async with watched(browser) as (page, _):
                await page.goto(f"{server.url}/ui/audit?limit=20")
                await expect(page.locator("#live-state")).to_have_text("live")
                await store.enqueue_many_rollouts(asked(3))
                await expect(page.locator("#events tbody tr")).to_have_count(3)
                server.kill()
                await expect(page.locator("#live-state")).to_have_text("reconnecting")
                # More than the page shows, so that nothing of what it showed is left.
                await store.enqueue_many_rollouts(asked(30))
                server.start()
                await expect(page.locator("#events tbody tr")).to_have_count(20)
                await store.enqueue_many_rollouts(asked(5))
                last = (await newest(store, 1))[0]
                await expect(page.locator("#events tbody tr").first).to_have_id(f"at-{last}")
                assert await positions(page) == await newest(store, 20)
        finally:
            server.kill()


async def test_a_graph_is_gone_through_by_mouse_and_keys_while_it_grows(page: Page, site: Site) -> None:
    run = await auto_run(site.store)
    again = (await site.store.runs.fork(run.rollout_id, phase="risk", scopes=["RIG"], cascade=False)).rollout
    await page.goto(site.at(f"runs/{run.rollout_id}"))
    await expect(page.locator("#live-state")).to_have_text("live")
    said = page.locator("#node-events h2")
    await page.locator(".rg-lane").nth(0).get_by_text("Bull Researcher").click()
    await expect(said).to_have_text("Bull Researcher RIG")
    await page.locator(".rg-node[aria-current]").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("Enter")
    await expect(said).to_have_text("Bull Researcher TSDD")
    await page.go_back()
    await expect(said).to_have_text("Bull Researcher RIG")
    node = page.locator(".rg-lane").nth(0).locator(".rg-node", has_text=RISK[0])
    await expect(node).to_have_count(0)
    await say(site.store, again, [RunEvent(kind="thought", node_id=RISK[0], scope="RIG")])
    await expect(node).to_have_attribute("data-status", "running")
    await say(site.store, again, [RunEvent(kind="result", node_id=RISK[0], scope="RIG", response="no")])
    await expect(node).to_have_attribute("data-status", "completed")
    # What was chosen stays chosen.
    await expect(said).to_have_text("Bull Researcher RIG")
