"""Scanners run over rollouts that have ended, and each rollout gets a result or the reason why it has none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from store import Conflict, Invalid, RolloutQuery, open_store
from store.models.scanners import NewScanner, Scan
from store.scanning import ScanReport, function_definition, scan
from tests.conftest import SQLITE
from tests.rescoring.conftest import (
    add_rollouts,
    filled_url,  # noqa: F401  # pyright: ignore[reportUnusedImport]
    forked_workers,  # noqa: F401  # pyright: ignore[reportUnusedImport]
)

pytestmark = pytest.mark.usefixtures("forked_workers")

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
HERE = "tests.scanning.scanners"


def scanner(kind: str, definition: dict[str, Any], **labels: str) -> NewScanner:
    return NewScanner.model_validate({"name": kind, "version": "v1", "kind": kind, "definition": definition, **labels})


def function(name: str, **labels: str) -> NewScanner:
    return scanner("function", function_definition(f"{HERE}:{name}"), **labels)


async def results(url: str, name: str) -> dict[int, Scan]:
    async with await open_store(url) as store:
        numbers = {rollout.rollout_id: rollout.input["n"] for rollout in await store.query_rollouts()}
        return {
            numbers[item.rollout_id]: item for item in await store.scanners.query_scans(list(numbers), scanner=name)
        }


async def test_ended_rollouts_get_results_once(filled_url: str) -> None:  # noqa: F811
    report = await scan(filled_url, function("is_even"), processes=1)
    assert (report.scanned, report.matches, report.errors) == (10, 5, 0)
    scans = await results(filled_url, "function@v1")
    assert {number for number, item in scans.items() if item.is_match} == {0, 2, 4, 6, 8}
    assert scans[4].explanation == "it is 4"
    assert (await scan(filled_url, function("is_even"), processes=1)).scanned == 0


@ON_SQLITE
async def test_failing_calls_are_errors_of_their_rollouts_only(filled_url: str) -> None:  # noqa: F811
    report = await scan(filled_url, function("unreliable"), processes=1, timeout=1.5)
    assert (report.scanned, report.matches, report.errors) == (10, 6, 4)
    assert report.errors_by_type == {"ValueError": 1, "TypeError": 1, "ProcessEnded": 1, "TimeoutError": 1}


@ON_SQLITE
async def test_agreement_with_labels_is_reported(filled_url: str) -> None:  # noqa: F811
    async with await open_store(filled_url) as store:
        for rollout in await store.query_rollouts():
            label = {2: "hack", 3: "hack", 4: "fair"}.get(rollout.input["n"])
            if label:
                await store.annotations.annotate(rollout.rollout_id, add_labels=[label])
    plan = await scan(filled_url, scanner("search", {"query": "say"}), dry_run=True)
    assert plan.scanned == 10
    labelled = function("is_even", match_label="hack", clear_label="fair")
    report = await scan(filled_url, labelled, processes=1, query=RolloutQuery(group_in=["g0"]))
    assert (report.scanned, report.precision, report.recall) == (5, 0.5, 1.0)
    rest = await scan(filled_url, labelled, processes=1)
    assert (rest.scanned, rest.precision, rest.recall, rest.labelled) == (5, 0.5, 0.5, 3)
    with pytest.raises(Conflict, match="new version"):
        await scan(filled_url, function("is_big"))
    with pytest.raises(Invalid):
        await scan(filled_url, scanner("regex", {"pattern": "("}))


@ON_SQLITE
async def test_follower_scans_rollouts_that_end_later(filled_url: str) -> None:  # noqa: F811
    stopped = asyncio.Event()
    following: asyncio.Task[ScanReport] = asyncio.create_task(
        scan(
            filled_url,
            scanner("regex", {"pattern": "it is [0-9]+"}),
            follow=True,
            processes=1,
            stopped=stopped,
            poll_seconds=0.05,
        )
    )
    async with await open_store(filled_url) as store:
        while len(await results(filled_url, "regex@v1")) < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await add_rollouts(store, [11])
        while len(await results(filled_url, "regex@v1")) < 11:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    stopped.set()
    report = await following
    assert (report.scanned, report.matches) == (11, 11)
