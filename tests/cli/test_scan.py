"""`rollbook scan` prints the results of a scanner as a row."""

from __future__ import annotations

import asyncio

import pytest

from store import open_store
from tests.cli.conftest import Rollbook
from tests.rescoring.conftest import add_rollouts, forked_workers

__all__ = ["forked_workers"]


@pytest.fixture
def labelled_url(durable_url: str) -> str:
    """The URL of a store with four ended rollouts, of which two are labelled."""

    async def fill() -> None:
        async with await open_store(durable_url) as store:
            ids = await add_rollouts(store, range(4))
            for rollout_id, label in ((ids[0], "bad"), (ids[1], "good")):
                await store.annotations.annotate(rollout_id, add_labels=[label])

    asyncio.run(fill())
    return durable_url


@pytest.mark.usefixtures("forked_workers")
def test_results_and_agreement_with_labels_are_printed_as_a_row(bare: Rollbook, labelled_url: str) -> None:
    command = ("scan", "small@v1", "--regex", "it is [01]", "--match-label", "bad", "--clear-label", "good")
    command += ("--processes", "1")
    row = {"scanner": "small@v1", "scanned": "4", "matches": "", "rate": "", "errors": "0"}
    row |= {"precision": "", "recall": "", "labelled": "0"}
    assert bare(*command, "--dry-run", db=labelled_url).table == [row]
    row |= {"matches": "2", "rate": "50.0%", "precision": "50.0%", "recall": "100.0%", "labelled": "2"}
    assert bare(*command, db=labelled_url).table == [row]
