"""The slider of a rollout in a browser: the page equals the state of the store at the selected event."""

from __future__ import annotations

import asyncio
import random
import re

from playwright.async_api import Page, Route, expect

from store.models import RolloutConfig, Span
from tests.dashboard.browsing import BROWSER, Site
from tests.dashboard.traces import a_span

pytestmark = BROWSER


async def _story(site: Site) -> str:
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout = await site.store.enqueue_rollout({"question": "Who?"}, config=config)
    for status in ("failed", "succeeded"):
        claimed = await site.store.dequeue_rollout(worker_id="w-1")
        assert claimed is not None
        for number in range(1, 4):
            span = Span.from_attributes(
                attributes={},
                rollout_id=rollout.rollout_id,
                attempt_id=claimed.attempt.attempt_id,
                sequence_id=number,
                name=f"{status} {number}",
                start_time=100.0 + number,
                end_time=101.0 + number,
            )
            await site.store.add_span(span)
        await site.store.update_attempt(rollout.rollout_id, claimed.attempt.attempt_id, status=status)
    return rollout.rollout_id


async def _shows(page: Page, site: Site, rollout_id: str, number: int) -> None:
    """Fail unless the page shows the rollout as of an event."""
    then = await site.store.get_rollout_by_id(rollout_id, at=number)
    attempts = (await site.store.query_attempts(rollout_id, at=number)).items
    assert then is not None
    await expect(page.locator("#past")).to_contain_text(f"event {number} of")
    await expect(page.locator("[data-fact=outcome] dd")).to_contain_text(then.status)
    # A lone attempt has no lane.
    lanes = [attempt.status for attempt in attempts] if len(attempts) > 1 else []
    await expect(page.locator(".attempt-tail > :first-child")).to_have_text(lanes)
    spans = await site.store.query_spans(rollout_id, attempts[-1].attempt_id, at=number) if attempts else None
    await expect(page.locator(".span-line code")).to_have_text([span.name for span in spans.items] if spans else [])
    assert page.url.endswith(f"at={number}")


async def test_wherever_the_slider_is_put_the_page_shows_that_event(page: Page, site: Site) -> None:
    rollout_id = await _story(site)
    last = len(await site.store.log.history(rollout_id))
    await page.goto(site.at(f"rollouts/{rollout_id}"))
    slider = page.locator("#slider input[type=range]")
    for number in random.Random(6).sample(range(1, last + 1), 6):
        await slider.fill(str(number))
        await _shows(page, site, rollout_id, number)
        # And so does whoever is given the address.
        await page.reload()
        await _shows(page, site, rollout_id, number)
        await expect(slider).to_have_value(str(number))


async def test_keys_and_buttons_step_through_the_events_and_back_to_now(page: Page, site: Site) -> None:
    rollout_id = await _story(site)
    last = len(await site.store.log.history(rollout_id))
    await page.goto(site.at(f"rollouts/{rollout_id}"))
    # Its programs have begun.
    await expect(page.locator("#live-state")).to_have_text("live")
    await page.keyboard.press("[")
    await _shows(page, site, rollout_id, last - 1)
    await page.keyboard.press("[")
    await _shows(page, site, rollout_id, last - 2)
    await page.keyboard.press("]")
    await _shows(page, site, rollout_id, last - 1)
    await page.locator("[data-step=first]").click()
    await _shows(page, site, rollout_id, 1)
    await page.locator("#rollout-tabs a", has_text="Events").click()
    await expect(page.locator("table.grid tbody tr")).to_have_count(1)
    await expect(page.locator("#live-state")).to_have_text("live")
    await page.locator("[data-step=now]").click()
    await expect(page.locator("#past")).to_be_empty()
    await expect(page.locator("table.grid tbody tr")).to_have_count(last)
    assert "at=" not in page.url


async def test_a_rollout_that_goes_on_is_followed_but_not_in_the_past(page: Page, site: Site) -> None:
    rollout = await site.store.enqueue_rollout(1)
    await page.goto(site.at(f"rollouts/{rollout.rollout_id}"))
    await expect(page.locator("#live-state")).to_have_text("live")
    await site.store.dequeue_rollout(worker_id="w-1")
    head = page.locator("[data-fact=outcome] .status")
    await expect(head).to_have_text("preparing")
    slider = page.locator("#slider input[type=range]")
    await expect(slider).to_have_attribute("max", "3")
    await expect(slider).to_have_value("3")
    await page.locator("[data-step=first]").click()
    await expect(head).to_have_text("queuing")
    await site.store.update_rollout(rollout.rollout_id, status="cancelled")
    await expect(slider).to_have_attribute("max", "4")
    await expect(head).to_have_text("queuing")
    await expect(slider).to_have_value("1")


_NEXT_REFRESH = """() => {
    globalThis.refreshed = new Promise((resolve) => {
        document.addEventListener("rollbook:refreshed", () => resolve(), { once: true });
    });
}"""


async def test_late_refresh_of_the_present_is_not_drawn_over_the_past(page: Page, site: Site) -> None:
    rollout = await site.store.start_rollout("task")
    # At the event before this one the tab shows the same.
    await site.store.annotations.annotate(rollout.rollout_id, add_labels=["odd"])
    await page.goto(site.at(f"rollouts/{rollout.rollout_id}"))
    await expect(page.locator("#live-state")).to_have_text("live")
    asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await may_go_on.wait()
        await route.continue_()

    await page.route(lambda url: url.endswith(rollout.rollout_id), hold)
    await site.store.add_span(a_span(rollout, 1, "later"))
    await asked.wait()
    await page.keyboard.press("[")
    await expect(page.locator("#past")).to_contain_text("Past state")
    await page.evaluate(_NEXT_REFRESH)
    may_go_on.set()
    await page.evaluate("() => globalThis.refreshed")
    await expect(page.locator("#past")).to_contain_text("Past state")
    await expect(page.locator("#rollout-tab .span-line")).to_have_count(0)


async def test_previous_and_next_follow_the_list_from_which_the_rollout_was_opened(page: Page, site: Site) -> None:
    rollouts = [await site.store.start_rollout({"question": str(number)}, mode="val") for number in range(3)]
    other = await site.store.start_rollout("another mode", mode="train")
    first, second, third = (rollout.rollout_id for rollout in rollouts)
    await page.goto(site.at("rollouts?mode=val"))
    await page.locator(f"tbody a[href$='/{second}']").first.click()
    nav = page.locator(".rollout-neighbours")
    await expect(nav).to_contain_text("2 of 3 in the list")
    # The newest rollout is the first of the list.
    await nav.get_by_text("Next").click()
    await expect(page).to_have_url(site.at(f"rollouts/{first}"))
    await expect(nav).to_contain_text("3 of 3 in the list")
    await nav.get_by_text("Previous").click()
    await nav.get_by_text("Previous").click()
    await expect(page).to_have_url(site.at(f"rollouts/{third}"))
    await expect(nav.get_by_role("link", name="Previous")).to_have_count(0)
    # A rollout that the list does not have shows its own neighbours.
    await page.goto(site.at(f"rollouts/{other.rollout_id}"))
    await expect(nav.get_by_role("link", name="Previous")).to_have_attribute("href", re.compile(third))
    await expect(nav).not_to_contain_text("in the list")
