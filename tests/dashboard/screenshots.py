"""Screenshots of the dashboard on the example runs: `python -m tests.dashboard.screenshots DIRECTORY [URL]`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from playwright.async_api import Page

from store import open_store
from store.models import AttemptedRollout
from tests.dashboard.browsing import running, watched
from tests.server.test_serving import serving

MOST_BYTES: Final = 150_000
WIDTH: Final = 1280
HEIGHTS: Final = (860, 760, 660, 610, 560, 510, 460)
"""The first that gives a small enough file."""

_ROLLBOOK: Final = (sys.executable, "-c", "from store.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Picture:
    """A page, and the file that shows it."""

    name: str
    path: str
    theme: str = "light"


def pictures(rollout_id: str, run_id: str) -> list[Picture]:
    """Return what is shown: of a rollout that ended, and of a run that was run again."""
    rollout, run = quote(rollout_id, safe=""), quote(run_id, safe="")
    return [
        Picture("overview", ""),
        Picture("overview-dark", "", "dark"),
        Picture("rollouts", "rollouts"),
        Picture("rollout", f"rollouts/{rollout}"),
        Picture("waterfall", f"rollouts/{rollout}/waterfall"),
        Picture("rewards", "rewards"),
        Picture("run-graph", f"runs/{run}"),
    ]


async def take(directory: Path, db: str) -> None:
    """Write the pictures of a store."""
    rollout_id, run_id = await _subjects(db)
    with serving("ui", "--db", db, "--port", "0") as (_, url):
        async with running() as browser:
            for picture in pictures(rollout_id, run_id):
                async with watched(browser, color_scheme=picture.theme) as (page, watch):
                    await page.goto(url + picture.path)
                    await watch.settled(page)
                    await _write(page, directory / f"{picture.name}.png")
                    watch.check()


async def _write(page: Page, file: Path) -> None:
    for height in HEIGHTS:
        await page.set_viewport_size({"width": WIDTH, "height": height})
        image = await page.screenshot()
        if len(image) <= MOST_BYTES:
            await asyncio.to_thread(file.write_bytes, image)
            print(f"{file}: {len(image) / 1000:.0f} KB, {height} pixels high")
            return
    message = f"{file.name} has more than {MOST_BYTES} bytes even at {HEIGHTS[-1]} pixels"
    raise ValueError(message)


async def _subjects(db: str) -> tuple[str, str]:
    """Return a rollout that was tried again, if there is one, and the run with most attempts."""
    async with await open_store(db, read_only=True) as store:
        ended = await store.query_rollouts(status_in=["succeeded"], sort_by="start_time", sort_order="desc")
        tried = [rollout for rollout in ended.items if isinstance(rollout, AttemptedRollout)]
        runs, rollouts = list[str](), list[str]()
        for rollout in sorted(tried, key=lambda one: one.attempt.sequence_id, reverse=True)[:50]:
            is_run = (await store.runs.query_events(rollout.rollout_id, limit=1)).items
            (runs if is_run else rollouts).append(rollout.rollout_id)
        return rollouts[0], (runs or rollouts)[0]


def main(arguments: Sequence[str]) -> None:
    """Write pictures into a directory, of a store or of the examples, which are run for it."""
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    if len(arguments) > 1:
        asyncio.run(take(directory, arguments[1]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        db = f"sqlite:///{Path(scratch) / 'run.db'}"
        for example in ("demo", "trading"):
            subprocess.run([*_ROLLBOOK, example, "--db", db], check=True, stdout=subprocess.DEVNULL)
        asyncio.run(take(directory, db))


if __name__ == "__main__":
    main(sys.argv[1:])
