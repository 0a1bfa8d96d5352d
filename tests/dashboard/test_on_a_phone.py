"""Pages at the width of a phone: navigation, menus within the screen, and scroll positions."""

from __future__ import annotations

from typing import Final

from playwright.async_api import Page, ViewportSize, expect

from store.dashboard.request import segment
from store.models import AttemptError
from tests.dashboard.browsing import BROWSER, Site
from tests.dashboard.filled import fill
from tests.dashboard.test_every_page import violations
from tests.dashboard.traces import member

pytestmark = BROWSER

PHONE: Final[ViewportSize] = {"width": 400, "height": 800}


async def test_menu_shows_the_pages_and_marks_the_open_one(page: Page, site: Site) -> None:
    await page.set_viewport_size(PHONE)
    await page.goto(site.at("resources"))
    await expect(page.locator("#live-state")).to_have_text("live")
    await expect(page.get_by_role("link", name="Overview")).to_be_hidden()
    await page.get_by_role("button", name="Menu").click()
    await expect(page.locator(".rail [aria-current]")).to_have_text("Resources")
    await expect(page.locator(".rail [aria-current]")).to_be_in_viewport(ratio=1)
    assert await violations(page) == []
    await page.keyboard.press("Escape")
    await expect(page.locator(".rail")).to_be_hidden()


async def test_menus_and_dialogs_open_within_the_page_and_can_be_used_by_everybody(page: Page, site: Site) -> None:
    filled = await fill(site.store)
    await page.set_viewport_size(PHONE)
    rollout, run = segment(filled.rollout_id), segment(filled.run_id)
    problems = dict[str, list[str]]()
    for path in ("admin", f"rollouts/{rollout}", f"runs/{run}"):
        await page.goto(site.at(path))
        for number in range(await page.locator("main :is([data-opens], details.copies > summary)").count()):
            await page.goto(site.at(path))
            await expect(page.locator("#live-state")).to_have_text("live")
            await page.locator("main :is([data-opens], details.copies > summary)").nth(number).click()
            opened = page.locator("dialog[open], details.copies[open] > ul")
            await expect(opened).to_be_in_viewport(ratio=1)
            problems[f"{path} {number}"] = await violations(page)
    assert len(problems) >= 5
    assert not any(problems.values()), problems


async def test_rollouts_are_cards_with_rewards_and_groups_have_means(page: Page, site: Site) -> None:
    rollout = await member(site.store, "g-1", 0.75, step=3)
    await page.set_viewport_size(PHONE)
    await page.goto(site.at("rollouts"))
    row = page.locator(f"#row-{rollout.rollout_id}")
    await expect(row.get_by_role("cell", name="0.750")).to_be_in_viewport(ratio=1)
    await expect(row.locator(".meta")).to_contain_text("step 3 · ")
    assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    await page.goto(site.at("groups"))
    await expect(page.get_by_role("cell", name="0.750").first).to_be_in_viewport(ratio=1)


async def test_messages_of_failures_and_the_menu_of_views_fit_the_window(page: Page, site: Site) -> None:
    rollout = await site.store.start_rollout({"question": 1})
    error = AttemptError(type="JSONDecodeError", message="Expecting value in the answer of the tool")
    await site.store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed", error=error)
    await page.set_viewport_size(PHONE)
    await page.goto(site.at("failures"))
    await expect(page.get_by_text("Expecting value")).to_be_in_viewport(ratio=1)
    await page.get_by_text("Views").click()
    await expect(page.get_by_role("button", name="Save this view")).to_be_in_viewport(ratio=1)


async def test_a_table_that_is_drawn_again_stays_where_it_was_scrolled_to(page: Page, site: Site) -> None:
    rollout = await site.store.enqueue_rollout({"question": 1})
    await page.set_viewport_size({"width": 740, "height": 800})
    columns = ("rollout", "reward", "tokens", "duration", "worker", "started", "ended", "attempts", "spans")
    await page.goto(site.at(f"rollouts?{'&'.join(f'col={name}' for name in columns)}"))
    await expect(page.locator("#live-state")).to_have_text("live")
    await page.evaluate("() => { document.querySelector('#rollouts .scroll').scrollLeft = 120; }")
    await site.store.dequeue_rollout(worker_id="w-1")
    await expect(page.locator(f"#row-{rollout.rollout_id}")).to_contain_text("preparing")
    assert await page.evaluate("() => document.querySelector('#rollouts .scroll').scrollLeft") == 120
