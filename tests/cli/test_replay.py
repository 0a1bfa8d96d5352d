"""`rollbook replay --as-queue` enqueues past rollouts again, prints what it did, and their history names the source."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store import open_store
from tests.cli.conftest import Rollbook
from tests.conftest import SQLITE
from tests.rescoring.conftest import add_rollouts


@pytest.fixture
def recorded(durable_url: str) -> list[str]:
    async def fill() -> list[str]:
        async with await open_store(durable_url) as store:
            return await add_rollouts(store, range(7))

    return asyncio.run(fill())


@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
def test_replay_is_shown_before_and_after(
    bare: Rollbook, durable_url: str, recorded: list[str], tmp_path: Path
) -> None:
    refused = bare("replay", "--name", "again", db=durable_url)
    assert refused.code == 2
    assert "--as-queue" in refused.err
    order = ("replay", "--as-queue", "--name", "again", "--step", "1")
    plan = bare(*order, "--dry-run", db=durable_url)
    assert "rollouts    2: 2 to enqueue; " in plan.out
    assert f'{recorded[2]}\t-\ttrain\t-\t{{"n":2}}' in plan.out
    done = bare(*order, db=durable_url)
    assert (done.code, done.err) == (0, "")
    assert "rollouts    2: 2 enqueued; " in done.out
    repeated = bare(*order, "--json", db=durable_url).json
    assert (repeated["enqueued"], repeated["enqueued_before"]) == (0, 2)
    replay_id = repeated["examples"][0]["replay_id"]
    assert f"enqueued, replay of {recorded[2]}, for train" in bare("history", replay_id, db=durable_url).out
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    everything = bare("replay", "--as-queue", "--name", "again", "--to", elsewhere, db=durable_url)
    assert "rollouts    7: 7 enqueued; " in everything.out
    assert "the first 5 of 7" in everything.err
    assert bare("ls", "rollouts", "--status", "queuing", "--json", db=elsewhere).json["total"] == 7
