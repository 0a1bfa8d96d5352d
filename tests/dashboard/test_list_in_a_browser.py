"""The list of rollouts in a browser: stable rows, and selection."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.dashboard.browsing import BROWSER, Site

pytestmark = BROWSER


async def test_new_rollouts_wait_behind_a_pill_while_the_rows_shown_change_in_place(page: Page, site: Site) -> None:
    older, newer = [await site.store.enqueue_rollout({"question": f"<b>number {number}</b>"}) for number in (1, 2)]
    await page.goto(site.at("rollouts"))
    await expect(page.locator("#live-state")).to_have_text("live")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("<b>number 2</b>")
    for rollout in (newer, older):
        await page.locator(f"#pick-{rollout.rollout_id}").check()

    later = await site.store.enqueue_rollout({"question": "number 3"})
    await site.store.dequeue_rollout(worker_id="w-1")
    await expect(page.locator(f"#row-{older.rollout_id}")).to_contain_text("preparing")
    await expect(page.locator("#newer")).to_have_text("1 new")
    await expect(rows).to_have_count(2)
    # What was drawn anew did not lose the picks.
    await expect(rows.first).to_contain_text("<b>number 2</b>")
    await expect(page.locator("#picked")).to_contain_text("2 selected")
    await expect(page.locator(f"#pick-{older.rollout_id}")).to_be_checked()
    await expect(page.get_by_role("link", name="Compare")).to_have_attribute(
        "href", re.compile(rf"/ui/compare\?a={newer.rollout_id}&b={older.rollout_id}$")
    )

    await page.locator("#newer").click()
    await expect(rows).to_have_count(3)
    await expect(rows.first).to_have_attribute("id", f"row-{later.rollout_id}")
    await expect(page).to_have_url(site.at("rollouts"))
    await expect(rows.first).to_contain_text("number 3")
