"""Pages of tasks: a heat map of rewards by task and step, and one task across steps and modes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from store.dashboard.pages import tasks as tasks_page
from store.interface.store import Store
from store.models import RolloutMode
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.dashboard.traces import a_span, rewarded
from tests.server.api import Api


async def _solve(store: Store, task: Any, step: int, reward: float | None, mode: RolloutMode = "train") -> str:
    rollout = await store.start_rollout({"task": task}, mode=mode, metadata={"rollbook.step": step})
    if reward is not None:
        await store.add_span(a_span(rollout, 1, "agentlightning.annotation", attributes=rewarded(reward)))
    status = "failed" if reward is None else "succeeded"
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)
    return rollout.rollout_id


@ON_BOTH
async def test_heat_map_has_the_means_of_recurring_tasks_by_step(api: Api, store: Store) -> None:
    drawn = random.Random(2)
    rewards: dict[tuple[str, int], list[float | None]] = {}
    for task in ("sort", "search"):
        for step in (10, 15, 20):
            for _ in range(3):
                reward = None if drawn.random() < 0.3 else round(drawn.random(), 3)
                rewards.setdefault((task, step), []).append(reward)
                await _solve(store, task, step, reward)
    await _solve(store, "once", 10, 1.0)
    for choice in ("", "out"):
        values = (await api.get(f"//ui/tasks.json?unrewarded={choice}")).ok()
        titles = {row["input_sha256"]: values["titles"][row["input_sha256"]] for row in values["tasks"]}
        assert sorted(titles.values()) == ["search", "sort"]
        cells = {(titles[cell["input_sha256"]], values["start"] + cell["bucket"]): cell for cell in values["cells"]}
        assert cells.keys() == rewards.keys()
        for place, cell in cells.items():
            counted = [0.0 if value is None else value for value in rewards[place] if choice == "" or value is not None]
            assert cell["mean_counted"] == (pytest.approx(np.mean(counted)) if counted else None)
            assert (cell["counted"], cell["ended"]) == (len(counted), 3)
            assert cell["rewarded_ended"] == sum(value is not None for value in rewards[place])
    links = [link for link in Read((await api.get("//ui/tasks?mode=train")).body).links if "step=" in link]
    assert len(links) == 6
    assert all("/ui/rollouts?task=" in link and "mode=train" in link for link in links)


@ON_BOTH
async def test_columns_of_many_steps_are_ranges_of_steps(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_page, "MOST_COLUMNS", 2)
    for step, reward in ((0, 0.0), (1, 1.0), (2, 0.5), (3, 0.25)):
        await _solve(store, "sort", step, reward)
    values = (await api.get("//ui/tasks.json")).ok()
    means = {cell["bucket"]: cell["mean_counted"] for cell in values["cells"]}
    assert (values["width"], means) == (2, {0: 0.5, 1: 0.375})
    assert any("step_min=2&step_max=3" in link for link in Read((await api.get("//ui/tasks")).body).links)


@ON_BOTH
async def test_one_task_is_shown_across_steps_and_modes(api: Api, store: Store) -> None:
    expected = [
        await _solve(store, "sort", 1, 0.25),
        await _solve(store, "sort", 1, None),
        await _solve(store, "sort", 2, 0.75, "val"),
        await _solve(store, "sort", 3, 0.5),
    ]
    await _solve(store, "search", 2, 1.0)
    (task,) = [
        row["input_sha256"] for row in (await api.get("//ui/tasks.json")).ok()["tasks"] if row["rollout_id"] in expected
    ]
    page = (await api.get(f"//ui/tasks/{task}.json")).ok()
    assert (page["title"], page["total"]) == ("sort", 4)
    assert [row["rollout_id"] for row in page["rollouts"]] == expected[:1:-1] + expected[1::-1]
    chart = page["charts"][0]
    lines = {line["mode"]: line["mean_counted"] for line in chart["series"]}
    assert (chart["start"], lines) == ([1, 2, 3], {"train": [0.125, None, 0.5], "val": [None, 0.75, None]})
    only = (await api.get(f"//ui/tasks/{task}.json?unrewarded=out&mode=train")).ok()["charts"][0]["series"]
    assert [line["mean_counted"] for line in only] == [[0.25, 0.5]]
    assert (await api.get("//ui/tasks/none.json")).status == 404
    assert (await api.get("//ui/tasks/a%00b.json")).status == 422


async def test_without_recurring_tasks_the_page_explains_them(api: Api, store: Store) -> None:
    await _solve(store, "once", 1, 1.0)
    assert "Rollouts with equal inputs are one task" in Read((await api.get("//ui/tasks")).body).text


async def test_hostile_task_stays_text(api: Api, store: Store) -> None:
    for step in (1, 2):
        await _solve(store, HOSTILE, step, 1.0)
    (row,) = (await api.get("//ui/tasks.json")).ok()["tasks"]
    for path in ("tasks", f"tasks/{row['input_sha256']}"):
        page = Read((await api.get(f"//ui/{path}")).body)
        assert [mark for mark in page.marks if mark.get("src") == "x"] == []
        assert HOSTILE[:15] in page.text
