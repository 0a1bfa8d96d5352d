"""`rollbook rescore` scores rollouts, and prints what became of them beside the recorded rewards."""

from __future__ import annotations

import asyncio

import pytest

from store import open_store
from tests.cli.conftest import Rollbook
from tests.conftest import SQLITE
from tests.rescoring.conftest import add_rollouts

HERE = "tests.rescoring.rewards"


@pytest.fixture
def scored_url(durable_url: str) -> str:
    async def fill() -> None:
        async with await open_store(durable_url) as store:
            await add_rollouts(store, range(10))

    asyncio.run(fill())
    return durable_url


@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
def test_scores_are_printed_beside_recorded_rewards(bare: Rollbook, scored_url: str) -> None:
    order = ("rescore", "--reward", f"{HERE}:helpful@v2", "--processes", "1")
    plan = bare(*order, "--dry-run", "--mode", "train", "--step", "1", db=scored_url)
    assert "2: 2 to score" in plan.out
    printed = bare(*order, db=scored_url)
    assert (printed.code, printed.err) == (0, "")
    lines = printed.out.splitlines()
    assert lines[0].startswith("reward      helpful@v2, code ")
    assert lines[1].startswith("rollouts    10: 10 scored; ")
    assert "random      no: 10 rollouts got the same value twice" in lines
    assert "mean        2.25 before, 2.5 now, 10 rollouts" in lines
    assert "difference  +0.25, 95 % interval -0.8329 to +1.333" in lines
    assert "train 4\t2\t4.25\t6.5\t+2.25" in lines
    assert "Another sign: 3 rollouts" in lines
    assert lines[-1].endswith("\t1\t0")

    report = bare(*order, "--json", "--reward-min", "4", "--reward-version", "helpful@v2", db=scored_url).json
    assert (report["selected"], report["scored_before"], report["difference"]["mean"]) == (4, 4, 0.0)
    best = bare("ls", "rollouts", "--reward-version", "helpful@v2", "--reward-min", "6", db=scored_url).table
    assert sorted(row["reward"] for row in best) == ["6", "7"]
    events = bare("history", best[0]["rollout"], db=scored_url).table
    assert events[-1]["actor"] == "cli"
    assert "scored by helpful@v2: 7, spans 2, recorded 4.5" in events[-1]["what"]


@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
def test_rollouts_without_a_value_end_the_command_with_an_error(bare: Rollbook, scored_url: str) -> None:
    order = ("rescore", "--reward", f"{HERE}:behaving@v1", "--processes", "1", "--sample-twice", "0")
    printed = bare(*order, "--step", "0", db=scored_url)
    assert printed.code == 1
    assert "2: 0 scored, 2 failed" in printed.out
    assert "failed      2 ValueError, ro-" in printed.out
    assert "--retry-failures" in printed.err
    again = bare(*order, "--step", "0", db=scored_url)
    assert (again.code, "2 failed before" in again.out) == (0, True)
    refused = bare("rescore", "--reward", f"{HERE}:later@v1", "--name", "behaving", db=scored_url)
    assert (refused.code, "choose a new version" in refused.err) == (1, True)
    assert bare("rescore", "--reward", "no.module:f@v1", db=scored_url).code == 2
