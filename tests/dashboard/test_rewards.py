"""The rewards page: curves agree with the rollouts, and each point links to its rollouts."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from store.comparing.curve_charts import MOST_BINS, edges_for, histogram, quantile
from store.dashboard.pages import rewards as rewards_page
from store.db.dialect import ReadSession
from store.db.queries import curves as curve_queries
from store.db.queries.curves import MOST_BUCKETS, Cell
from store.interface.store import Store
from store.models import PromptTemplate, RolloutMode
from store.models.scores import NewScore
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.server.api import Api


async def _rewarded(
    store: Store,
    *rewards: float,
    step: int | None = None,
    mode: RolloutMode | None = "train",
    status: Any = "succeeded",
    names: tuple[str, ...] = (),
    resources_id: str | None = None,
) -> str:
    """Return a rollout that gave rewards, of several dimensions at once where they are named, and ended."""
    metadata = {} if step is None else {"rollbook.step": step}
    begun = await store.start_rollout({"question": 1}, mode=mode, metadata=metadata, resources_id=resources_id)
    if names:
        attributes: dict[str, Any] = {}
        for index, (name, reward) in enumerate(zip(names, rewards, strict=True)):
            attributes[f"agentlightning.reward.{index}.name"] = name
            attributes[f"agentlightning.reward.{index}.value"] = reward
        await store.add_span(make_span(begun.attempt, 1, attributes=attributes))
    else:
        for number, reward in enumerate(rewards, 1):
            attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
            await store.add_span(make_span(begun.attempt, number, attributes=attributes))
    await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status=status)
    return begun.rollout_id


async def _curves(api: Api, query: str = "") -> Any:
    return (await api.get(f"//ui/rewards.json{query}")).ok()


def _line(values: Any, chart_id: str, mode: str | None) -> Any:
    (chart,) = [chart for chart in values["charts"] if chart["id"] == chart_id]
    (line,) = [line for line in chart["series"] if line["mode"] == mode]
    return line


async def test_an_empty_store_says_how_curves_begin(api: Api) -> None:
    assert (await _curves(api))["charts"] == []
    assert "rollbook.step" in Read((await api.get("//ui/rewards")).body).text


@ON_BOTH
async def test_a_mean_is_of_the_last_rewards_of_the_rollouts_of_its_step_and_mode(api: Api, store: Store) -> None:
    for step, rewards in ((1, (0.0, 1.0)), (2, (0.5, 0.25)), (4, (1.0,))):
        for reward in rewards:
            await _rewarded(store, 9.0, reward, step=step)
    await _rewarded(store, 0.125, step=2, mode="val")
    await _rewarded(store, 77.0)
    values = await _curves(api)
    assert values["by"] == "step"
    assert values["charts"][0]["start"] == [1, 2, 4]
    assert _line(values, "reward", "train")["mean"] == [0.5, 0.375, 1.0]
    assert _line(values, "reward", "train")["count"] == [2, 2, 1]
    assert _line(values, "reward", "val")["mean"] == [None, 0.125, None]
    assert {line["mode"] for line in (await _curves(api, "?mode=val"))["charts"][0]["series"]} == {"val"}


@ON_BOTH
async def test_a_mean_and_its_interval_count_failed_rollouts_as_the_address_says(api: Api, store: Store) -> None:
    drawn = random.Random(11)
    rewards = [round(drawn.uniform(100, 101), 3) for _ in range(9)]
    for reward in rewards:
        await _rewarded(store, reward, step=1)
    for status in ("failed", "failed", "succeeded"):
        await _rewarded(store, step=1, status=status)
    await store.add_span(make_span((await store.start_rollout(1, metadata={"rollbook.step": 1})).attempt))
    for choice, missing in (("", [0.0, 0.0]), ("out", []), ("failed:-1", [-1.0, -1.0]), ("ended:50", [50.0] * 3)):
        values = await _curves(api, f"?unrewarded={choice}")
        line = _line(values, "reward", "train")
        counted = [*rewards, *missing]
        half = 1.959963984540054 * np.std(counted, ddof=1) / np.sqrt(len(counted))
        assert line["mean_counted"] == [pytest.approx(np.mean(counted))]
        assert line["band_low"] == [pytest.approx(np.mean(counted) - half)]
        assert line["band_high"] == [pytest.approx(np.mean(counted) + half)]
        assert (line["rewarded"], line["ended"], line["counted"]) == ([9], [12], [len(counted)])
        assert (line["count"], line["mean"]) == ([9], [pytest.approx(np.mean(rewards))])
        assert values["unrewarded"] == (choice or "failed:0")
    assert (await api.get("//ui/rewards.json?unrewarded=0")).status == 422
    page = Read((await api.get("//ui/rewards?unrewarded=out")).body)
    assert "9 of 12 rewarded" in page.text
    assert "rewarded only" in page.text


async def test_the_band_holds_the_middle_four_fifths(api: Api, store: Store) -> None:
    for reward in range(11):
        await _rewarded(store, float(reward), step=1)
    line = _line(await _curves(api), "reward", "train")
    assert (line["low"], line["median"], line["high"]) == ([1.0], [5.0], [9.0])


async def test_failures_count_those_that_failed_and_not_those_that_were_cancelled(api: Api, store: Store) -> None:
    for status in ("succeeded", "succeeded", "succeeded", "failed"):
        await _rewarded(store, step=1, status=status)
    cancelled = await store.enqueue_rollout({"question": 1}, mode="train", metadata={"rollbook.step": 1})
    await store.update_rollout(cancelled.rollout_id, status="cancelled")
    line = _line(await _curves(api), "failures", "train")
    assert (line["mean"], line["count"]) == ([0.25], [4])


async def test_length_and_duration_are_means_over_rollouts(api: Api, store: Store, clock: ManualClock) -> None:
    for tokens, seconds in ((100, 2.0), (300, 4.0)):
        begun = await store.start_rollout({"question": 1}, mode="train", metadata={"rollbook.step": 1})
        await store.add_span(make_span(begun.attempt, attributes={"gen_ai.usage.output_tokens": tokens}))
        clock.advance(seconds)
        await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="succeeded")
    values = await _curves(api)
    assert _line(values, "length", "train")["mean"] == [200.0]
    assert _line(values, "duration", "train")["mean"] == [pytest.approx(3.0, abs=0.01)]


@ON_BOTH
async def test_length_is_of_ended_rollouts_with_known_usage(api: Api, store: Store) -> None:
    for step, tokens, is_open in ((1, 100, False), (1, None, False), (2, None, False), (3, 300, True), (4, 200, False)):
        begun = await store.start_rollout({"question": 1}, mode="train", metadata={"rollbook.step": step})
        attributes = {} if tokens is None else {"gen_ai.usage.output_tokens": tokens}
        await store.add_span(make_span(begun.attempt, attributes=attributes))
        if not is_open:
            await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="succeeded")
    values = await _curves(api)
    assert {tuple(chart["start"]) for chart in values["charts"]} == {(1, 2, 3, 4)}
    line = _line(values, "length", "train")
    assert (line["mean"], line["count"], line["ended"]) == ([100.0, None, None, 200.0], [1, 0, 0, 1], [2, 1, 0, 1])


async def test_a_chart_without_data_is_left_out(api: Api, store: Store) -> None:
    await _rewarded(store, 1.0, step=1)
    assert [chart["id"] for chart in (await _curves(api))["charts"]] == ["reward", "duration", "failures"]


@ON_BOTH
async def test_versions_of_resources_are_marked_and_become_lines(api: Api, store: Store) -> None:
    for version, steps in ((1, (1, 2)), (2, (3, 4))):
        await store.update_resources("policy", {"p": PromptTemplate(template=f"v{version}", engine="f-string")})
        for step in steps:
            await _rewarded(store, version / 4, step=step, resources_id="policy")
    await store.update_resources("other", {"p": PromptTemplate(template="a", engine="f-string")})
    noted = await _rewarded(store, 1.0, step=4, resources_id="other")
    await store.annotations.annotate(noted, note="temperature raised")
    values = await _curves(api, "?resources=policy")
    marks = [(mark["at"], mark["label"], mark["version"], mark["title"]) for mark in values["markers"]]
    assert [mark[:3] for mark in marks] == [
        (1, "policy v1", 1),
        (3, "policy v2", 2),
        (4, "note", None),
        (4, "other v1", 1),
    ]
    assert marks[2][3] == "temperature raised"
    lines = {line["version"]: line["mean_counted"] for line in values["charts"][0]["series"]}
    assert lines == {1: [0.25, 0.25, None, None], 2: [None, None, 0.5, 0.5]}
    page = Read((await api.get("//ui/rewards?resources=policy")).body)
    assert "/ui/resources/policy?version=2" in page.links
    assert "/ui/rollouts?mode=train&resources=policy&version=2&step=4" in page.links


@ON_BOTH
async def test_curves_by_time_follow_the_ends_of_rollouts(api: Api, store: Store, clock: ManualClock) -> None:
    for reward in (0.0, 1.0, 0.5):
        await _rewarded(store, reward, mode=None)
        clock.advance(60)
    values = await _curves(api)
    chart = values["charts"][0]
    assert values["by"] == "time"
    assert _line(values, "reward", None)["mean"] == [0.0, 1.0, 0.5]
    for start, reward in zip(chart["start"], (0.0, 1.0, 0.5), strict=True):
        path = f"//ui/rollouts.json?ended_min={start}&ended_max={start + chart['width']}"
        (row,) = (await api.get(path)).ok()["rollouts"]
        assert row["last_reward"] == reward


@ON_BOTH
async def test_each_dimension_that_is_chosen_has_a_curve(api: Api, store: Store) -> None:
    await _rewarded(store, 1.0, 0.25, step=1, names=("primary", "brevity"))
    await _rewarded(store, 0.0, 0.75, step=1, names=("primary", "brevity"))
    values = await _curves(api, "?name=brevity")
    assert {curve["name"]: curve["count"] for curve in values["names"]} == {"primary": 2, "brevity": 2}
    assert _line(values, "reward", "train")["mean"] == [0.5]
    assert _line(values, "reward-0", "train")["mean"] == [0.5]
    assert (await _curves(api, "?name=brevity"))["charts"][1]["title"] == "Reward “brevity”"


@ON_BOTH
async def test_curves_and_lists_show_a_version_of_the_rewards(api: Api, store: Store) -> None:
    scores = {await _rewarded(store, 1.0, step=1): value for value in (0.25, 0.75)}
    without_score = await _rewarded(store, 1.0, step=1)
    attempts = {rollout_id: (await store.query_attempts(rollout_id))[0].attempt_id for rollout_id in scores}
    await store.annotations.record_scores(
        [
            NewScore(rollout_id=rollout_id, attempt_id=attempts[rollout_id], name="help", version="v 2", value=value)
            for rollout_id, value in scores.items()
        ]
    )
    recorded, values = await _curves(api), await _curves(api, "?reward_version=help%40v%202&name=primary")
    assert recorded["reward_versions"] == values["reward_versions"] == ["help@v 2"]
    assert (_line(recorded, "reward", "train")["mean"], _line(values, "reward", "train")["mean"]) == ([1.0], [0.5])
    assert _line(values, "reward", "train")["count"] == [2]
    assert _line(values, "duration", "train")["count"] == [3]
    assert [(bar["least"], bar["count"]) for bar in values["histogram"]] == [(0.25, 1), (0.75, 1)]
    page = Read((await api.get("//ui/rewards?reward_version=help%40v%202")).body)
    for reward, link in zip((0.25, 0.75), [link for link in page.links if "reward_min" in link], strict=True):
        (row,) = (await api.get(f"/{link.replace('?', '.json?')}")).ok()["rollouts"]
        assert (row["last_reward"], scores[row["rollout_id"]]) == (reward, reward)
    rows = (await api.get("//ui/rollouts.json?reward_version=help%40v%202&sort=reward&desc=0")).ok()["rollouts"]
    assert {row["rollout_id"]: row["last_reward"] for row in rows} == {**scores, without_score: None}
    assert [row["last_reward"] for row in rows if row["last_reward"] is not None] == [0.25, 0.75]
    assert (await api.get("//ui/rewards.json?reward_version=help")).status == 422


async def test_a_dimension_shows_the_last_value_of_a_rollout(api: Api, store: Store) -> None:
    await _rewarded(store, 0.1, 0.2, 0.9, step=1)
    assert _line(await _curves(api, "?name=primary"), "reward-0", "train")["mean"] == [0.9]


@ON_BOTH
async def test_every_bar_of_the_histogram_leads_to_the_rollouts_it_counts(api: Api, store: Store) -> None:
    drawn = random.Random(5)
    for _ in range(25):
        await _rewarded(store, round(drawn.gauss(0, 2), 3), step=1)
    bins = (await _curves(api))["histogram"]
    assert sum(bar["count"] for bar in bins) == 25
    links = [link for link in Read((await api.get("//ui/rewards")).body).links if "reward_min" in link]
    assert len(links) == len(bins)
    for link, bar in zip(links, bins, strict=True):
        assert (await api.get(f"/{link.replace('?', '.json?')}")).ok()["total"] == bar["count"]


async def test_every_row_under_a_chart_leads_to_the_rollouts_it_counts(api: Api, store: Store) -> None:
    for step in range(3):
        for _ in range(step + 1):
            await _rewarded(store, 1.0, step=step)
    links = [link for link in Read((await api.get("//ui/rewards")).body).links if "step=" in link]
    totals = [(await api.get(f"/{link.replace('?', '.json?')}")).ok()["total"] for link in links[:3]]
    assert totals == [3, 2, 1]


async def test_the_table_under_a_curve_can_show_all_buckets(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewards_page, "TABLE_ROWS", 2)
    for step in range(4):
        await _rewarded(store, 1.0, step=step)
    page = Read((await api.get("//ui/rewards")).body)
    (link,) = [link for link in page.links if "table=reward&" in link]
    assert len([link for link in page.links if "step=" in link]) == 3 * 2
    page = Read((await api.get(f"/{link.partition('#')[0]}")).body)
    assert len([link for link in page.links if "step=" in link]) == 4 + 2 * 2


@ON_BOTH
async def test_far_steps_share_buckets_and_a_bucket_leads_to_all_of_its_steps(api: Api, store: Store) -> None:
    for step in (0, 1, 2_000):
        await _rewarded(store, 1.0, step=step)
    chart = (await _curves(api))["charts"][0]
    assert (chart["start"], chart["width"]) == ([0, 1995], 7)
    assert 2_001 / chart["width"] <= MOST_BUCKETS
    links = [link for link in Read((await api.get("//ui/rewards")).body).links if "step_min=0" in link]
    assert (await api.get(f"/{links[0].replace('?', '.json?')}")).ok()["total"] == 2


async def test_of_many_rollouts_the_page_stands_before_they_are_counted(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewards_page, "MANY", 2)
    for reward in (0.25, 0.5):
        await _rewarded(store, reward, step=1)
    assert "Counting" not in Read((await api.get("//ui/rewards")).body).text
    await _rewarded(store, 0.75, step=2)
    page = Read((await api.get("//ui/rewards?by=step&mode=train")).body)
    assert "Counting 3 rollouts" in page.text
    (full_link,) = [link for link in page.links if "whole=1" in link]
    there = (await api.get(f"/{full_link}")).body
    assert "Counting" not in Read(there).text
    assert b"data-chart=" in there
    assert _line(await _curves(api, "?by=step&mode=train"), "reward", "train")["mean"] == [0.375, 0.75]


async def test_curves_are_computed_once_for_a_state_of_the_store(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read_axis = curve_queries.axis

    async def axis(
        session: ReadSession, by: curve_queries.By, modes: Sequence[str], task: str | None
    ) -> curve_queries.Axis | None:
        reads.append(by)
        return await read_axis(session, by, modes, task)

    monkeypatch.setattr(curve_queries, "axis", axis)
    await _rewarded(store, 0.25, step=1)
    for _ in range(3):
        assert _line(await _curves(api), "reward", "train")["mean"] == [0.25]
    assert reads == ["step"]
    await _rewarded(store, 0.75, step=1)
    assert _line(await _curves(api), "reward", "train")["mean"] == [0.5]
    assert _line(await _curves(api, "?unrewarded=out"), "reward", "train")["mean"] == [0.5]
    assert reads == ["step"] * 3


@ON_BOTH
@pytest.mark.parametrize("by", ["step", "time"])
async def test_rewards_as_large_as_numbers_become_are_counted(api: Api, store: Store, by: str) -> None:
    for reward in (1.7e308, 1.7e308, 5e-324):
        await _rewarded(store, reward, step=1)
    chart = (await _curves(api, f"?by={by}"))["charts"][0]
    assert sum(sum(series["count"]) for series in chart["series"]) == 3


async def test_hostile_names_of_dimensions_stay_text(api: Api, store: Store) -> None:
    await _rewarded(store, 1.0, 0.5, step=1, names=("primary", HOSTILE))
    page = Read((await api.get(f"//ui/rewards?name={quote(HOSTILE, safe='')}")).body)
    assert "img" not in page.tags[page.tags.index("main") :]
    assert HOSTILE in page.text


async def test_an_axis_or_an_end_of_a_range_that_there_is_not_is_refused(api: Api) -> None:
    for path in (
        "rewards.json?by=colour",
        "rollouts.json?reward_min=nan",
        "rollouts.json?reward_max=much",
        "rollouts.json?step_min=1e300",
        "rollouts.json?ended_min=-1e13",
    ):
        assert (await api.get(f"//ui/{path}")).status == 422, path


def _cells(values: list[float], edges: list[float]) -> list[Cell]:
    held: dict[int, list[float]] = {}
    for value in values:
        held.setdefault(sum(edge <= value for edge in edges), []).append(value)
    return [
        Cell(0, None, index, True, len(rewards), sum(rewards), 0.0, min(rewards), max(rewards), 0, 0.0, 0, 0, 0.0)
        for index, rewards in held.items()
    ]


@pytest.mark.parametrize("values", [[0.0, 1.0], [3.0], [0.0] * 9 + [1.0], [-2.5, 0.0, 0.0, 7.25, 7.25]])
def test_quantiles_of_few_values_are_exact(values: list[float]) -> None:
    cells = _cells(values, edges_for(values))
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        ordered, rank = sorted(values), share * (len(values) - 1)
        below = int(rank)
        above = min(below + 1, len(values) - 1)
        expected = ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
        assert quantile(cells, share) == pytest.approx(expected)


def test_quantiles_of_many_values_are_near_even_beside_outliers() -> None:
    drawn = random.Random(3)
    values = [drawn.random() for _ in range(2_000)] + [-1e9, 1e9]
    cells = _cells(values, edges_for(values))
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    for share, expected in ((0.1, deciles[0]), (0.5, deciles[4]), (0.9, deciles[8])):
        assert quantile(cells, share) == pytest.approx(expected, abs=0.02)


def test_bins_have_round_edges_and_the_counts_of_numpy() -> None:
    drawn = random.Random(4)
    values = [drawn.random() for _ in range(500)]
    edges = edges_for(values)
    bins = histogram(_cells(values, edges), edges)
    counts, _ = np.histogram(values, bins=[bins[0].low, *(bar.high for bar in bins)])
    assert [bar.count for bar in bins] == list(counts)
    assert [(bar.low, bar.high, bar.label) for bar in bins][:2] == [
        (0.0, 0.05, "0 to 0.05"),
        (0.05, 0.1, "0.05 to 0.1"),
    ]


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [1e-300, 1e300], [5e-324 * n for n in range(100)], [1e308 * (-1) ** n * n / 100 for n in range(100)]],
)
def test_bins_of_any_rewards_are_few_and_hold_all_of_them(values: list[float]) -> None:
    edges = edges_for(values)
    assert edges == sorted(set(edges))
    assert len(edges) <= MOST_BINS * 2
    assert sum(bar.count for bar in histogram(_cells(values, edges), edges)) == len(values)
