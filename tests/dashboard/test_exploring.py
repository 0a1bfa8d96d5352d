"""Scatter plots, samples and curves, against computations in numpy; ranges of the list; hostile input."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from store.comparing import compare_selections, curves, sample, scatter
from store.comparing.scattering import MOST_POINTS
from store.dashboard.charts.scatter_chart import scatter_chart
from store.db.queries.curves import By
from store.errors import Invalid, StoreError
from store.interface.store import Store
from store.models import RolloutStatus
from store.models.prices import PriceTable
from store.testing.samples import make_prompt, make_span
from tests.client.served import Served
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.server.api import Api

PRICES = PriceTable.model_validate({"models": {"m": {"input": 1000, "output": 2000}}})
NUMBERS = (0.5, 0.5, 0.625, 0.75, 0.25, 1.0, None)


async def ended(
    store: Store,
    reward: float | None,
    tokens: int,
    step: int = 1,
    status: RolloutStatus = "succeeded",
    rewards: dict[str, float] | None = None,
    group: str | None = None,
    **fields: Any,
) -> str:
    """Return the id of an ended rollout, with one call of a model if it has tokens."""
    metadata = {"rollbook.step": step, "difficulty": tokens / 4, "note": "3"}
    metadata |= {"rollbook.group": group} if group else {}
    task = {"question": f"{HOSTILE} {tokens}"}
    rollout = await store.start_rollout(task, mode="train", metadata=metadata, **fields)
    values = {**({} if reward is None else {"primary": reward}), **(rewards or {})}
    attributes: dict[str, Any] = {}
    for number, (name, value) in enumerate(values.items()):
        attributes |= {f"agentlightning.reward.{number}.name": name, f"agentlightning.reward.{number}.value": value}
    if attributes:
        await store.add_span(make_span(rollout.attempt, 1, name="agentlightning.annotation", attributes=attributes))
    if tokens:
        usage = {"gen_ai.response.model": "m", "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": tokens}
        await store.add_span(make_span(rollout.attempt, 2, attributes=usage))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)  # pyright: ignore[reportArgumentType]
    return rollout.rollout_id


async def filled(store: Store) -> list[str]:
    """Fill a store with rollouts of two steps; the last one has neither a reward nor usage, and failed."""
    return [
        await ended(
            store,
            reward,
            0 if reward is None else 10 * (place + 1),
            1 + place % 2,
            "failed" if reward is None else "succeeded",
            {"format": place / 8} if place < 4 else None,
        )
        for place, reward in enumerate(NUMBERS)
    ]


@ON_BOTH
async def test_points_are_the_numbers_of_the_rollouts_and_the_box_selects_them(api: Api, store: Store) -> None:
    ids = await filled(store)
    expected = {ids[place]: (1 + place % 2, reward) for place, reward in enumerate(NUMBERS) if reward is not None}
    plot = await scatter(store, "step", "reward")
    assert {point.rollout_id: (point.x, point.y) for point in plot.points} == expected
    assert (plot.matching, plot.sampled, plot.box) == (6, 6, None)
    numbers: dict[str, list[float]] = {
        "tokens": [10 * (place + 1) for place in range(6)],
        "tokens_in": [10] * 6,
        "spans": [2] * 6,
        "attempts": [1] * 6,
        "calls": [1] * 6,
        "cost": [(10 * 1000 + 10 * (place + 1) * 2000) / 1e6 for place in range(6)],
        "meta:difficulty": [10 * (place + 1) / 4 for place in range(6)],
        "dim:format": [place / 8 for place in range(4)],
    }
    for name, values in numbers.items():
        plot = await scatter(store, name, "reward", "mode=train", prices=PRICES)
        drawn = {point.rollout_id: point.x for point in plot.points}
        assert drawn == pytest.approx(dict(zip(ids, values, strict=False))), name
    assert (await scatter(store, "meta:note", "reward")).points == []
    # The box has a list with the same rollouts, by ranges or, where a number has no filter, by their ids.
    boxes: list[tuple[str, dict[str, Any], bool]] = [
        ("tokens", {"x_min": 15.0, "x_max": 40.0, "y_min": 0.6}, False),
        ("spans", {"y_min": 0.6, "y_max": 0.8}, False),
        ("meta:difficulty", {"x_max": 10.0, "y_min": 0.6}, True),
    ]
    for x, bounds, names_points in boxes:
        plot = await scatter(store, x, "reward", "step_max=2&mode=train", **bounds)
        assert plot.box is not None
        assert (plot.box.points, plot.box.names_points) == (2, names_points)
        listed = (await api.get(f"//ui/rollouts.json?{plot.box.selection}")).ok()["rollouts"]
        assert {row["rollout_id"] for row in listed} == {ids[2], ids[3]}
        address = "&".join(f"{name}={value}" for name, value in bounds.items())
        twin = await api.get(f"//ui/scatter.json?x={quote(x)}&y=reward&step_max=2&mode=train&{address}")
        assert twin.ok() == plot.model_dump()
    page = Read((await api.get("//ui/scatter?x=tokens&y=reward&x_min=15&y_min=0.6&x_max=40&colour=status")).body)
    assert "succeeded" in page.text
    assert [link.rpartition("/")[2] for link in page.links if "/ui/rollouts/ro-" in link] == sorted(ids[2:4])


@ON_BOTH
async def test_sample_of_points_is_the_same_in_each_call(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = sorted([await ended(store, 0.5, number + 1) for number in range(11)])
    for most in (1, 3, 10):
        plot = await scatter(store, "tokens", "reward", points=most)
        places = [place for place in range(1, 12) if place * most // 11 > (place - 1) * most // 11]
        assert [point.rollout_id for point in plot.points] == [ids[place - 1] for place in places]
        assert (plot.matching, plot.sampled) == (11, most)


@ON_BOTH
async def test_points_have_colours_and_shapes_of_their_outcome_or_another_field(api: Api, store: Store) -> None:
    for version in ("A", "B"):
        await store.update_resources("p", make_prompt(version))
        await ended(store, 0.5, 1, resources_id="p", group="alike")
    await ended(store, 1.0, 2, status="failed", group="mixed")
    await ended(store, None, 3, status="failed", group="mixed")
    _, cancelled = [await store.start_rollout("task", metadata={"rollbook.step": 1}) for _ in range(2)]
    await store.update_rollout(cancelled.rollout_id, status="cancelled")
    expected = {
        "status": ["cancelled", "failed", "failed", "open", "succeeded", "succeeded"],
        "version": ["v1", "v2", "v2", "v2", "v2", "v2"],
        "mode": ["no mode", "no mode", "train", "train", "train", "train"],
        "variance": ["no group", "no group", "no variance", "no variance", "variance", "variance"],
    }
    for colour, labels in expected.items():
        plot = await scatter(store, "step", "attempts", colour=colour)
        assert sorted(point.colour or "" for point in plot.points) == labels
        chart = scatter_chart(plot)
        assert len({(group.series, group.shape) for group in chart.groups}) == len(set(labels))
        twin = (await api.get(f"//ui/scatter.json?y=attempts&colour={colour}")).ok()
        assert twin == plot.model_dump()
        page = Read((await api.get(f"//ui/scatter?y=attempts&colour={colour}")).body)
        assert all(label in page.text for label in labels)
    assert (await scatter(store, "step", "attempts")).colour == "status"
    shapes = [(group.label, group.shape) for group in scatter_chart(await scatter(store, "step", "spans")).groups]
    assert shapes == [("succeeded", "dot"), ("failed", "cross")]
    plain = await scatter(store, "step", "attempts", colour=None)
    assert [(group.label, group.shape) for group in scatter_chart(plain).groups] == [(None, "dot")]


async def test_forms_of_curves_plots_and_samples_keep_all_modes_of_a_selection(api: Api, store: Store) -> None:
    await filled(store)
    for path in ("rewards", "scatter", "sample"):
        page = (await api.get(f"//ui/{path}?mode=val&mode=test&group=g&group=h&step=3")).body.decode()
        boxes = re.findall(r'name="mode" value="(\w+)"( checked)?', page)
        assert boxes == [("train", ""), ("val", " checked"), ("test", " checked")]
        assert re.findall(r'name="step_m\w\w" value="(\d*)"', page) == ([] if path == "rewards" else ["3", "3"])


@ON_BOTH
async def test_sample_has_the_rollouts_farthest_from_the_median_first(api: Api, store: Store) -> None:
    ids = await filled(store)
    answer = await sample(store, "step_min=1", size=7)
    rewards = np.array([0.0 if reward is None else reward for reward in NUMBERS])
    tokens = np.array([10.0 * (place + 1) for place in range(6)])
    distances = [
        np.abs(values - np.median(values)) / np.median(np.abs(values - np.median(values)))
        for values in (rewards, tokens)
    ]
    expected = {ids[place]: max(distances[0][place], distances[1][place] if place < 6 else 0.0) for place in range(7)}
    assert {row.rollout_id: row.distance for row in answer.rollouts} == pytest.approx(expected)
    assert [row.distance for row in answer.rollouts] == sorted(expected.values(), reverse=True)
    assert (answer.ended, answer.rewarded, answer.reward.median, answer.tokens.median) == (7, 6, 0.5, 35.0)
    out = await sample(store, size=2, unrewarded="out")
    assert (out.reward.count, len(out.rollouts)) == (6, 2)
    assert (await api.get("//ui/sample.json?size=2&unrewarded=out")).ok() == out.model_dump()
    page = Read((await api.get("//ui/sample?step=1")).body)
    assert "(0)" in page.text
    assert f"{HOSTILE} 10" in page.text
    await ended(store, 0.5, 0, 9)
    alike = await sample(store, "step=9")
    assert [(row.distance, row.reward_distance, row.tokens_distance) for row in alike.rollouts] == [(0.0, 0.0, None)]
    assert (await sample(store, "step=10")).rollouts == []


async def test_numbers_that_are_mostly_equal_are_measured_by_the_mean_of_the_distances(store: Store) -> None:
    for reward in (1.0, 1.0, 1.0, 1.0, 1.5):
        await ended(store, reward, 0)
    answer = await sample(store)
    assert answer.reward.deviation == pytest.approx(0.1)
    assert answer.rollouts[0].distance == pytest.approx(5.0)


@ON_BOTH
async def test_curves_are_those_of_the_page_with_sums_of_usage(api: Api, store: Store) -> None:
    await filled(store)
    read = await curves(store, names=["format"], prices=PRICES)
    page = (await api.get("//ui/rewards.json?name=format")).ok()
    by_id = {chart.id: chart for chart in read.charts}
    assert [chart["id"] for chart in page["charts"]] == [name for name in by_id if name not in {"tokens", "cost"}]
    assert [chart["id"] for chart in page["usage_charts"]] == ["tokens"]
    assert (page["usage_charts"][0]["start"], page["events_behind"]) == ([1, 2], 0)
    (reward,) = by_id["reward"].series
    assert (by_id["reward"].start, reward.rewarded, reward.ended) == ([1, 2], [3, 3], [4, 3])
    assert reward.mean_counted == pytest.approx([(0.5 + 0.625 + 0.25) / 4, 0.75])
    (tokens,), (cost,) = by_id["tokens"].series, by_id["cost"].series
    assert (tokens.mean, tokens.count) == ([30 + 90, 30 + 120], [3, 3])
    assert cost.mean == pytest.approx([(30 * 1000 + 90 * 2000) / 1e6, (30 * 1000 + 120 * 2000) / 1e6])
    out = await curves(store, by="step", modes=["train"], unrewarded="out")
    assert out.charts[0].series[0].mean_counted == pytest.approx([1.375 / 3, 0.75])
    assert (await curves(store, modes=["val"])).charts == []
    by_time = {chart.id: chart for chart in (await curves(store, by="time", prices=PRICES)).charts}
    assert {chart.by for chart in by_time.values()} == {"time"}
    for name, total in (("tokens", 270), ("cost", 0.48)):
        assert sum(value or 0 for value in by_time[name].series[0].mean) == pytest.approx(total)
        assert by_time[name].start == by_time["reward"].start


@ON_BOTH
@pytest.mark.parametrize("by", ["step", "time"])
async def test_usage_by_version_is_unknown_and_not_zero_without_a_report(api: Api, store: Store, by: By) -> None:
    for version, tokens in (("A", 30), ("A", 5), ("B", 0)):
        await store.update_resources("p", make_prompt(version))
        await ended(store, 0.5, tokens, resources_id="p")
    unpriced = await store.start_rollout("task", mode="train", resources_id="p", metadata={"rollbook.step": 1})
    for number, usage in enumerate(({"gen_ai.usage.output_tokens": 7}, {"gen_ai.response.id": "r"}), 1):
        attributes = {"gen_ai.response.model": "free", **usage}
        await store.add_span(make_span(unpriced.attempt, number, attributes=attributes))
    await store.update_attempt(unpriced.rollout_id, unpriced.attempt.attempt_id, status="succeeded")
    read = await curves(store, by=by, resources_id="p", prices=PRICES)
    charts = {chart.id: chart for chart in read.charts}
    tokens, costs = [
        {line.version: ([*filter(None, line.mean)], sum(line.count), sum(line.part)) for line in charts[name].series}
        for name in ("tokens", "cost")
    ]
    assert tokens == {1: ([40.0], 1, 0), 2: ([15.0], 1, 0), 3: ([7.0], 2, 0)}
    assert (costs[1], costs[3]) == (([pytest.approx(0.07)], 1, 1), ([], 2, 0))
    page = Read((await api.get(f"//ui/rewards?by={by}&resources=p")).body)
    assert "Tokens" in page.text
    assert "Cost" not in page.text.split("Tokens", 1)[1].split("This page as JSON")[0]


@ON_BOTH
async def test_comparison_has_calls_and_costs_of_ended_rollouts(store: Store) -> None:
    await filled(store)
    comparison = await compare_selections(store, "step=1", "step=2&reward_min=0", prices=PRICES)
    measures = {measure.name: measure for measure in comparison.measures}
    costs = [[(10 * 1000 + 10 * (place + 1) * 2000) / 1e6 for place in places] for places in ((0, 2, 4), (1, 3, 5))]
    for name in ("cost", "cost_per_call"):
        assert (measures[name].a.mean, measures[name].b.mean) == pytest.approx([np.mean(side) for side in costs])
    assert (measures["calls"].a.count, measures["calls"].a.mean) == (3, 1.0)
    without = await compare_selections(store, "step=1", "step=2")
    assert {measure.name for measure in without.measures} & {"calls", "cost"} == {"calls"}


@ON_BOTH
async def test_comparison_and_plot_have_tool_calls_and_their_errors(api: Api, store: Store) -> None:
    """A rollout without recorded calls has no numbers. Only ended rollouts are compared."""
    ids: list[str] = []
    for step, results in ((1, ["done", "done"]), (1, ["exit code: 1"]), (1, []), (2, ["done"] * 4), (2, None)):
        rollout = await store.start_rollout("task", metadata={"rollbook.step": step})
        ids.append(rollout.rollout_id)
        for number, result in enumerate(results or ["exit 1"]):
            attributes = {"gen_ai.tool.name": "bash", "tool.result": result} if results != [] else {}
            await store.add_span(make_span(rollout.attempt, number, attributes=attributes))
        if results is not None:
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    comparison = await compare_selections(store, "step=1", "step=2")
    measures = {measure.name: measure for measure in comparison.measures}
    for name, a, b in (("tool_calls", (2, 1.5), (1, 4.0)), ("with_tool_error", (2, 0.5), (1, 0.0))):
        sides = measures[name].a, measures[name].b
        assert [(side.count, side.mean) for side in sides] == [a, b]
    twin = (await api.get("//ui/cohorts.json?a=step%3D1&b=step%3D2")).ok()["comparison"]["measures"]
    assert twin == [measure.model_dump() for measure in comparison.measures]
    page = Read((await api.get("//ui/cohorts?a=step%3D1&b=step%3D2")).body)
    assert "With a tool error 50.0% 0.0%" in " ".join(page.text.split())
    plot = await scatter(store, "tool_calls", "tool_errors")
    drawn = {point.rollout_id: (point.x, point.y) for point in plot.points}
    assert drawn == {ids[0]: (2, 0), ids[1]: (1, 1), ids[3]: (4, 0), ids[4]: (1, 1)}


async def test_malformed_options_are_refused_with_their_names(api: Api, store: Store) -> None:
    await filled(store)
    for field, arguments in {
        "x": ("colour", "reward"),
        "y": ("step", "dim:"),
        "selection": ("step", "reward", "stepp=1"),
    }.items():
        with pytest.raises(Invalid, match=f"^{field}: "):
            await scatter(store, *arguments)
    refused: dict[str, dict[str, Any]] = {
        "x_min": {"x_min": 2.0, "x_max": 1.0},
        "y_max": {"y_max": float("nan")},
        "colour": {"colour": "red"},
        "points": {"points": MOST_POINTS + 1},
    }
    for field, options in refused.items():
        with pytest.raises(Invalid, match=f"^{field}: "):
            await scatter(store, "step", "reward", **options)
    for size in (0, 201):
        with pytest.raises(Invalid, match=r"^size: "):
            await sample(store, size=size)
    wrong: list[dict[str, Any]] = [
        {"by": "day"}, {"modes": ["all"]}, {"names": ["a"] * 7}, {"reward_version": "x"}
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(StoreError):
            await curves(store, **options)
    for address in (
        *("scatter?x=nothing", "scatter?x_min=low", "scatter?y_max=inf", "scatter?points=0", "scatter?step=x"),
        *("sample?size=0", "sample?size=999", "sample?reward_min=nan", "sample?unrewarded=maybe"),
        f"scatter?attempts_min={2**40}",
    ):
        assert (await api.get(f"//ui/{address}")).status == 422, address
    odd = f"dim:{HOSTILE}"
    page = await api.get(f"//ui/scatter?x={quote(odd)}&y=meta:{quote(HOSTILE)}")
    assert (page.status, HOSTILE.encode() in page.body) == (200, False)
    for reward in (1.7e308, -1.7e308):
        await ended(store, reward, 1)
    assert (await api.get("//ui/scatter?x=reward&y=reward")).status == 200
    assert (await api.get("//ui/sample")).status == 200


@ON_BOTH
async def test_ranges_of_spans_attempts_and_prompts_select_rollouts(api: Api, store: Store) -> None:
    ids = await filled(store)
    for address, expected in {
        "tokens_in_max=10": set(ids[:6]),
        "tokens_in_min=11": set[str](),
        "spans_max=1": {ids[6]},
        "attempts_min=1&spans_min=2": set(ids[:6]),
    }.items():
        listed = (await api.get(f"//ui/rollouts.json?{address}")).ok()["rollouts"]
        assert {row["rollout_id"] for row in listed} == expected, address
    page = Read((await api.get("//ui/rollouts?tokens_max=40&tokens_in_min=3")).body)
    assert "Remove the filter Tokens in" in page.marked("aria-label")


@pytest.mark.http
async def test_figures_of_a_server_are_those_of_its_database(store: Store, server: Served) -> None:
    from store import open_store

    await filled(store)
    with server.serving(store) as url:
        async with await open_store(url) as client:
            options: dict[str, Any] = {"x_min": 1.5, "colour": None}
            assert await scatter(client, "step", "calls", "mode=train", **options) == await scatter(
                store, "step", "calls", "mode=train", **options
            )
            assert await sample(client, "step=1", size=3) == await sample(store, "step=1", size=3)
            read: dict[str, Any] = {"names": ["format"], "unrewarded": "out"}
            assert await curves(client, **read) == await curves(store, **read)
            with pytest.raises(Invalid):
                await scatter(client, "step", "nothing")
