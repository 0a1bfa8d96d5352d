"""Behaviour in a browser: live updates, restarts of the server, logins and actions."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from store import open_store
from store.server.app import build_app
from store.server.auth.keyring import KeyRing
from store.server.partitions import Partitions
from store.server.process.serve import Server
from store.sql.api_keys import Keys
from store.wire.listener import bind
from tests.client.server_process import ServerProcess
from tests.dashboard.browsing import BROWSER, Site, watched

pytestmark = BROWSER


async def test_list_updates_without_a_reload(page: Page, site: Site) -> None:
    await page.goto(site.at("rollouts"))
    await expect(page.locator("#live-state")).to_have_text("live")
    rollout = await site.store.enqueue_rollout({"question": 1})
    await expect(page.locator(f"#row-{rollout.rollout_id}")).to_contain_text("queuing")
    await site.store.dequeue_rollout(worker_id="w-1")
    await expect(page.locator(f"#row-{rollout.rollout_id}")).to_contain_text("preparing")


async def test_a_page_outlives_its_server_and_misses_nothing(browser: Browser, site_url: str) -> None:
    async with await open_store(site_url) as store:
        server = ServerProcess(site_url)
        server.start()
        try:
            # Its complaints are those of a network that is gone.
            async with watched(browser) as (page, watch):
                await page.goto(f"{server.url}/ui/rollouts")
                await expect(page.locator("#live-state")).to_have_text("live")
                await store.enqueue_rollout({"question": 1})
                main = page.locator("main")
                await expect(main).to_contain_text("queuing 1")
                server.kill()
                await expect(page.locator("#live-state")).to_have_text("reconnecting")
                await store.enqueue_rollout({"question": 2})
                server.start()
                await expect(page.locator("#live-state")).to_have_text("live")
                await expect(main).to_contain_text("queuing 2")
                await store.enqueue_rollout({"question": 3})
                await expect(main).to_contain_text("queuing 3")
                assert watch.foreign == []
        finally:
            server.kill()


async def test_a_person_logs_in_and_out_and_acts_between(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rollbook.db'}"
    async with await open_store(url) as store:
        rollout = await store.enqueue_rollout({"question": 1})
        keys = await Keys.open(url, create=True)
        _, key = await keys.create("algorithm")
        await keys.enforce()
        await keys.close()
        listener = bind("127.0.0.1", 0)
        root = f"http://127.0.0.1:{listener.getsockname()[1]}"
        ring = await KeyRing.open(url)
        started = asyncio.Event()
        server = Server(build_app(Partitions(store), ring=ring, is_local=True), started.set)
        serving = asyncio.ensure_future(server.serve([listener]))
        await started.wait()
        try:
            async with watched(browser) as (page, watch):
                await _act(page, f"{root}/ui/rollouts/{rollout.rollout_id}", key)
                watch.check()
        finally:
            server.should_exit = True
            await serving
            await ring.close()
        (cancelled,) = [
            event for event in await store.log.history(rollout.rollout_id) if "cancelled" in str(event.data)
        ]
        assert cancelled.actor is not None
        assert cancelled.actor.startswith("key:")


async def _act(page: Page, url: str, key: str) -> None:
    await page.goto(url)
    await page.get_by_label("Key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await expect(page).to_have_url(url)
    await expect(page.locator("#live-state")).to_have_text("live")
    await page.get_by_role("button", name="Cancel").first.click()
    await page.locator("dialog[open] button:not([type=button])").click()
    await expect(page.locator(".status[data-status=cancelled]").first).to_be_visible()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Key")).to_be_visible()
    await page.goto(url)
    await expect(page.get_by_label("Key")).to_be_visible()


async def test_keys_alone_lead_through_a_list(page: Page, site: Site) -> None:
    rollouts = [await site.store.enqueue_rollout({"question": number}) for number in range(3)]
    await page.goto(site.at("rollouts?sort=started&desc=0"))
    await expect(page.locator("#live-state")).to_have_text("live")
    second = page.locator(f"#row-{rollouts[1].rollout_id} a").first
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(second).to_be_focused()
    # What is drawn anew meanwhile takes nothing from whoever works with it.
    await site.store.enqueue_rollout({"question": 4})
    await expect(page.locator("main")).to_contain_text("queuing 4")
    await expect(second).to_be_focused()
    await page.keyboard.press("/")
    await expect(page.locator("input[type=search]").first).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("k")
    await page.keyboard.press("j")
    await expect(second).to_be_focused()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard")).to_contain_text("Previous row", ignore_case=True)
    await page.keyboard.press("Escape")
    await expect(second).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(site.at(f"rollouts/{rollouts[1].rollout_id}"))


async def test_four_keys_lead_from_the_top_of_a_page_to_its_first_row(page: Page, site: Site) -> None:
    rollout = await site.store.enqueue_rollout({"question": 1})
    await page.goto(site.at("rollouts"))
    for key in ("Tab", "Tab", "Enter", "Tab"):
        await page.keyboard.press(key)
    await expect(page.get_by_label(f"Select {rollout.rollout_id}")).to_be_focused()
    # A page without rows hides the link.
    await page.goto(site.at("webhooks"))
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_attached()
    await expect(page.get_by_text("Skip to the rows")).to_be_hidden()


async def test_page_with_an_open_dialog_is_redrawn_after_it_closes(page: Page, site: Site) -> None:
    rollout = await site.store.enqueue_rollout({"question": 1})
    await page.goto(site.at(f"rollouts/{rollout.rollout_id}"))
    await expect(page.locator("#live-state")).to_have_text("live")
    await page.get_by_role("button", name="Cancel").first.click()
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_be_visible()
    await site.store.dequeue_rollout(worker_id="w-1")
    position = await site.store.core.position()
    await expect(page.locator("body")).to_have_attribute("data-heard", str(position))
    await expect(dialog).to_be_visible()
    await dialog.get_by_role("button", name="Close").click()
    await expect(page.locator(".status[data-status=preparing]").first).to_be_visible()


async def test_a_theme_that_is_chosen_is_kept(page: Page, site: Site) -> None:
    await page.goto(site.at("rollouts"))
    await expect(page.locator("#live-state")).to_have_text("live")
    colour = partial(page.evaluate, "() => getComputedStyle(document.documentElement).backgroundColor")
    before = await colour()
    for theme in ("light", "dark"):
        await page.get_by_role("button", name="Theme").click()
        await expect(page.locator("html")).to_have_attribute("data-theme", theme)
    assert await colour() != before
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
