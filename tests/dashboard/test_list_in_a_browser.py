"""The list of rollouts in a browser: stable rows, and selection."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from store.models import EnqueueRolloutRequest
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
    # The rows that are drawn again are still checked.
    await expect(rows.first).to_contain_text("<b>number 2</b>")
    await expect(page.locator("#picked")).to_contain_text("2 selected")
    await expect(page.locator(f"#pick-{older.rollout_id}")).to_be_checked()
    await expect(page.get_by_role("link", name="Compare", exact=True)).to_have_attribute(
        "href", re.compile(rf"/ui/compare\?a={newer.rollout_id}&b={older.rollout_id}$")
    )

    await page.locator("#newer").click()
    await expect(rows).to_have_count(3)
    await expect(rows.first).to_have_attribute("id", f"row-{later.rollout_id}")
    await expect(page).to_have_url(site.at("rollouts"))
    await expect(rows.first).to_contain_text("number 3")


async def test_selected_rows_are_labelled_after_a_preview(page: Page, site: Site) -> None:
    rollouts = await site.store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    await page.goto(site.at("rollouts?mode=&status=queuing&limit=2"))
    await expect(page.locator("#live-state")).to_have_text("live")
    await page.get_by_label("Select all rows of this page").check()
    await expect(page.locator("#picked output")).to_have_text("2 selected")
    await page.get_by_role("button", name="Select all 3").click()
    await page.get_by_role("button", name="Label…").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Label 3 rollouts")
    await page.get_by_label("Labels to add, separated by commas").fill("seen")
    await page.get_by_role("button", name="Label 3 rollouts").click()
    await expect(page.get_by_role("status").filter(has_text="Annotated 3 rollouts.")).to_be_visible()
    assert await site.store.annotations.query_labels([one.rollout_id for one in rollouts]) == {
        one.rollout_id: ["seen"] for one in rollouts
    }


async def test_address_has_only_the_fields_with_a_value(page: Page, site: Site) -> None:
    await site.store.enqueue_rollout({"question": 1})
    await page.goto(site.at("rollouts"))
    await page.get_by_text("Filter", exact=True).click()
    await page.get_by_label("Reward, from").fill("0.95")
    await page.get_by_role("button", name="Apply").last.click()
    await expect(page).to_have_url(site.at("rollouts?reward_min=0.95"))
    await page.get_by_role("link", name="Remove the filter Reward").click()
    await expect(page).to_have_url(site.at("rollouts"))
