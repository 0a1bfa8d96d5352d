"""The scatter plot in a browser: a drag selects rollouts, and so do the fields of the box."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Page, expect

from tests.dashboard.browsing import BROWSER, Site
from tests.dashboard.test_exploring import ended

pytestmark = BROWSER


async def test_a_drag_over_points_leads_to_the_list_of_their_rollouts(page: Page, site: Site) -> None:
    ids = [await ended(site.store, place / 4, 10 * (place + 1), place) for place in range(4)]
    await page.goto(site.at("rewards"))
    await page.get_by_role("link", name="Scatter", exact=True).click()
    plot = page.locator("svg[data-points]")
    frame = await plot.bounding_box()
    assert frame is not None
    # The right half of the plot has steps 2 and 3.
    middle, right = frame["x"] + frame["width"] * 0.52, frame["x"] + frame["width"] * 0.99
    await page.mouse.move(middle, frame["y"] + 2)
    await page.mouse.down()
    await page.mouse.move(right, frame["y"] + frame["height"] * 0.95, steps=4)
    await page.mouse.up()
    await expect(page.get_by_role("heading", name="In the box")).to_be_visible()
    bounds = parse_qs(urlsplit(page.url).query)
    assert 1 < float(bounds["x_min"][0]) < 2
    assert float(bounds["x_max"][0]) > 3
    await page.locator("#box-list").click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    assert {await row.get_attribute("id") for row in await page.locator("tbody tr").all()} == {
        f"row-{rollout_id}" for rollout_id in ids[2:]
    }

    await page.goto(site.at("scatter"))
    await page.get_by_label("Reward from").fill("0.4")
    await page.get_by_label("Reward from").press("Enter")
    await expect(page.get_by_text("2 points")).to_be_visible()
