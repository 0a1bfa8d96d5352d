"""The removal of payload in a browser: from the forms to the result, without a reload."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser, expect

from store import open_store
from store.db.dialect import dialect_for
from store.db.queries import operation_runs
from store.db.queries.operation_runs import RunResult
from store.db.url import parse
from store.operations.schedule import Schedule
from store.server.partitions import Partitions
from store.server.process.scheduler import Scheduler
from tests.dashboard.browsing import BROWSER, watched
from tests.dashboard.page_helpers import HOSTILE, succeeded
from tests.operations.test_runs import claimed
from tests.server.api import speaking_to

pytestmark = BROWSER


async def _succeed(url: str, runner: str) -> None:
    """Store the result of a run as another process does."""
    parsed = parse(url)
    dialect = dialect_for(parsed)(parsed, None)
    await dialect.open(create=False)
    try:
        await operation_runs.succeed(dialect, "archive", RunResult(1, None, None, "moved elsewhere"), runner=runner)
    finally:
        await dialect.close()


async def test_payload_is_removed_with_the_forms(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'site.db'}"
    async with await open_store(url) as store:
        for number in range(3):
            await succeeded(store, input={"question": f"{number} {HOSTILE}"}, mode="train" if number else "val")
        partitions = Partitions(store, url)
        scheduler = Scheduler(partitions, url, Schedule(None, None, archive_directory=tmp_path))
        async with (
            speaking_to(partitions, scheduler=scheduler) as api,
            watched(browser, color_scheme="light") as (page, watch),
        ):
            await page.goto(f"{api.url}/ui/admin")
            await page.get_by_role("link", name="Remove payload…").click()
            await page.get_by_label("val").check()
            await page.get_by_role("button", name="Count").click()
            selected = page.get_by_role("region", name="Selected payload")
            await expect(selected).to_contain_text("mode val")
            await expect(page.get_by_label("val")).to_be_checked()
            await expect(page.locator("#live-state")).to_have_text("live")
            await selected.get_by_role("button", name="Remove…").click()
            await page.get_by_role("button", name="Remove it").click()
            await expect(page.locator("#operation-remove")).to_contain_text("payload of 1 rollout,")

            await page.get_by_role("link", name="Remove payload…").click()
            await page.get_by_label("Text", exact=True).fill(HOSTILE)
            await page.get_by_role("button", name="Search").click()
            await expect(page.locator("p.notice")).to_contain_text(f"2 events of 2 rollouts contain {HOSTILE}.")
            await page.get_by_label("Reason").fill("request 17")
            await page.get_by_label("cannot be restored").check()
            await page.get_by_role("button", name="Remove the payload").click()
            await expect(page.locator("#operation-forget")).to_contain_text(
                "payload of 2 events of 2 rollouts (request 17)"
            )
            rollouts = await store.query_rollouts()
            assert [rollout.input for rollout in rollouts] == [None] * 3

            await expect(page.locator("#live-state")).to_have_text("live")
            sample = page.locator("#operation-verify_sample")
            await sample.get_by_role("button", name="Run now…").click()
            await page.locator("dialog[open]").get_by_role("button", name="Run now").click()
            await expect(page.locator("p.notice")).to_contain_text("started")
            await expect(sample).to_contain_text("0 differences")

            assert await claimed(url, "archive", "elsewhere:1")
            await page.goto(f"{api.url}/ui/admin")
            row = page.locator("#operation-archive")
            await expect(row).to_contain_text("in the process elsewhere:1")
            await _succeed(url, "elsewhere:1")
            await expect(row).to_contain_text("moved elsewhere")
            watch.check()
        await scheduler.close()
