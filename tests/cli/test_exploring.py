"""`rollbook sample`, `rollbook scatter` and `rollbook curves`, as tables and as JSON."""

from __future__ import annotations

import asyncio

from store import open_store
from store.semconv import reward_attributes
from store.testing.samples import make_span
from tests.cli.conftest import Filled, Rollbook


async def _add_rollouts(url: str) -> None:
    async with await open_store(url) as store:
        for step, reward in ((7, 0.25), (7, 0.5), (7, 0.5), (7, 1.0), (8, None)):
            rollout = await store.start_rollout("task", mode="test", metadata={"rollbook.step": step})
            if reward is not None:
                attributes = reward_attributes({"primary": reward, "style": reward / 2})
                await store.add_span(make_span(rollout.attempt, 1, name="reward", attributes=attributes))
            status = "failed" if reward is None else "succeeded"
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)


def test_outliers_and_curves_are_printed_with_their_denominators(rollbook: Rollbook, filled: Filled) -> None:
    asyncio.run(_add_rollouts(filled.url))
    printed = rollbook("sample", "--step", "7", "--mode", "val", "--mode", "test", "-n", "2")
    assert [(row["reward"], row["because of"]) for row in printed.table] == [("1", "reward"), ("0.25", "reward")]
    assert "4 of 4 ended rollouts have a reward; --failed-as failed:0" in printed.err
    report = rollbook("sample", "http://host/ui/rollouts?step_min=7&mode=test", "--failed-as", "out", "--json").json
    assert (report["ended"], report["rewarded"], report["reward"]["count"]) == (5, 4, 4)
    table = {row["step"]: row for row in rollbook("curves", "--mode", "test", "--name", "style").table}
    assert (table["7"]["rewarded"], table["7"]["mean"], table["7"]["failures"]) == ("4 of 4", "0.5625", "0")
    assert (table["8"]["rewarded"], table["8"]["mean"], table["8"]["failures"]) == ("0 of 1", "0", "1")
    assert table["7"]["Reward “style”"] == "0.28125"
    curves = rollbook("curves", "--mode", "test", "--failed-as", "out", "--json").json
    assert (curves["by"], curves["unrewarded"]) == ("step", "out")
    assert curves["charts"][0]["series"][0]["mean_counted"] == [0.5625, None]
    assert rollbook("curves", "--by", "day").code != 0
    assert "--failed-as" in rollbook("sample", "--failed-as", "zero").err
    plot = rollbook("scatter", "step", "reward", "--mode", "test", "--mode", "val", "--y-min", "0.3")
    rewards = sorted((row["step"], row["reward"], row["status"]) for row in plot.table)
    assert rewards == [("7", reward, "succeeded") for reward in ("0.5", "0.5", "1")]
    assert "3 rollouts are in the box; the selection of the box is 'step_min=" in plot.err
    points = rollbook("scatter", "reward", "dim:style", "mode=test", "--colour", "none", "-n", "3", "--json").json
    assert (points["colour"], points["matching"], points["sampled"], points["box"]) == (None, 4, 3, None)
    assert "colour" in rollbook("scatter", "--colour", "red").err
