"""Charts in a browser: drawing, live updates, theme, and links from points to rollouts."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from store.dashboard.pages import rewards
from store.testing.samples import make_span
from tests.dashboard.browsing import BROWSER, Site

pytestmark = BROWSER

_IS_IN_THE_ACCENT = """(before) => {
    const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
    if (accent === before) return false;
    const wanted = accent.match(/\\d+/g).slice(0, 3).map(Number);
    const canvas = document.querySelector("#chart-reward canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let at = 0; at < data.length; at += 4) {
        // Chromium rounds what is drawn over nothing.
        if (data[at + 3] === 255 && wanted.every((value, of) => Math.abs(data[at + of] - value) < 3)) found += 1;
    }
    return found > 20 ? accent : false;
}"""
"""The colour of the lines of training, where the chart is drawn in it and it is another one than before."""


async def _rewarded(site: Site, step: int, reward: float) -> None:
    begun = await site.store.start_rollout({"question": 1}, mode="train", metadata={"rollbook.step": step})
    attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
    await site.store.add_span(make_span(begun.attempt, attributes=attributes))
    await site.store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="succeeded")


async def test_a_point_of_a_curve_leads_to_its_rollouts(page: Page, site: Site) -> None:
    for step in (1, 2, 3):
        await _rewarded(site, step, step / 4)
    await page.goto(site.at("rewards"))
    over = page.locator("#chart-reward .u-over")
    box = await over.bounding_box()
    assert box is not None
    await over.hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    await expect(page.locator("#chart-reward .u-legend")).to_contain_text("0.500, 1 of 1 rewarded")
    await over.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    await page.wait_for_url(re.compile(r"/ui/rollouts\?step=2&mode=train$"))
    await expect(page.locator("tr[id^=row-]")).to_have_count(1)


async def test_curves_of_many_rollouts_come_by_themselves_and_hear_of_news(
    page: Page, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewards, "MANY", 1)
    for step in (1, 2):
        await _rewarded(site, step, 0.25)
    await page.goto(site.at("rewards"))
    await expect(page.locator("#chart-reward canvas")).to_have_count(1)
    await expect(page.locator("#figures")).not_to_contain_text("Counting")
    await page.locator("#numbers-reward summary").click()
    await _rewarded(site, 3, 0.75)
    await expect(page.locator("#numbers-reward tbody tr").first).to_contain_text("0.75")


async def test_curves_bars_and_numbers_hear_of_news(page: Page, site: Site) -> None:
    await page.goto(site.at("rewards"))
    await expect(page.locator("#live-state")).to_have_text("live")
    await expect(page.locator("#figures")).to_contain_text("No rollout has ended yet")
    await _rewarded(site, 1, 0.25)
    await expect(page.locator("#chart-reward canvas")).to_have_count(1)
    await page.locator("#numbers-reward summary").click()
    await _rewarded(site, 2, 0.75)
    # What was opened stays open, and says the news.
    await expect(page.locator("#numbers-reward tbody tr").first).to_contain_text("0.75")
    await expect(page.locator("#numbers-reward tbody")).to_be_visible()
    await expect(page.locator(".bins li")).to_have_count(2)
    await expect(page.locator("#chart-reward canvas")).to_have_count(1)


async def test_curves_take_the_colours_of_the_theme(page: Page, site: Site) -> None:
    for step in (1, 2):
        await _rewarded(site, step, 0.5)
    await page.emulate_media(color_scheme="light")
    await page.goto(site.at("rewards"))
    await expect(page.locator("#chart-reward canvas")).to_have_count(1)
    light = await (await page.wait_for_function(_IS_IN_THE_ACCENT)).json_value()
    await page.emulate_media(color_scheme="dark")
    await page.wait_for_function(_IS_IN_THE_ACCENT, arg=light)
