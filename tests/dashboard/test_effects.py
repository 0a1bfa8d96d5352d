"""Effects of versions of resources and comparisons of selections, against computations in numpy."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pytest

from store.comparing import compare_selections, effect, effects
from store.errors import Invalid, NotFound, TooLarge
from store.interface.store import Store
from store.models import Rollout, RolloutStatus
from store.runtime.statistics import t_quantile
from store.server.partitions import Partitions
from store.testing.clock import ManualClock
from store.testing.samples import make_prompt, make_span
from tests.client.served import Served
from tests.dashboard import reviewed
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.server.api import Api, speaking_to

BEFORE, AFTER = (280, 285, 290, 295), (300, 305, 310, 315)


def counted(rollout: Rollout, unrewarded: str) -> float | None:
    if rollout.reward is None and rollout.status == "failed" and unrewarded == "failed:0":
        return 0.0
    return rollout.reward


def paired(a: list[Rollout], b: list[Rollout], unrewarded: str) -> tuple[float, float]:
    """Return the mean difference of tasks and half the width of its interval."""
    tasks: list[dict[str, list[float]]] = [{}, {}]
    for side, rollouts in zip(tasks, (a, b), strict=True):
        for rollout in rollouts:
            value = counted(rollout, unrewarded)
            if value is not None:
                side.setdefault(str(rollout.input), []).append(value)
    common = tasks[0].keys() & tasks[1].keys()
    differences = np.array([np.mean(tasks[1][task]) - np.mean(tasks[0][task]) for task in common])
    margin = t_quantile(len(differences) - 1) * differences.std(ddof=1) / math.sqrt(len(differences))
    return float(differences.mean()), float(margin)


async def of_steps(store: Store, *steps: int) -> list[Rollout]:
    return list((await store.query_rollouts(step_in=list(steps), mode_in=["train"])).items)


@ON_BOTH
async def test_effect_of_a_version_is_that_of_numpy_however_failures_count(
    api: Api, store: Store, clock: ManualClock
) -> None:
    await reviewed.build(store, clock, steps=reviewed.SMALL_STEPS, groups=2)
    before, after = await of_steps(store, *BEFORE), await of_steps(store, *AFTER)
    values: dict[str, tuple[float, float]] = {}
    for unrewarded in ("failed:0", "out"):
        values[unrewarded] = paired(before, after, unrewarded)
        measured = await effect(store, f"{reviewed.RESOURCES}@2", unrewarded=unrewarded)
        page = (await api.get(f"//ui/effects/{reviewed.RESOURCES}.json?version=2&unrewarded={unrewarded}")).ok()
        shown = page["effect"]["comparison"]
        reward = shown["reward"]["difference"]
        assert (reward["value"], reward["margin"]) == pytest.approx(values[unrewarded])
        assert (tuple(page["effect"]["a_steps"]), tuple(page["effect"]["b_steps"])) == (BEFORE, AFTER)
        ended = [rollout for rollout in after if rollout.end_time is not None]
        assert shown["b"]["ended"] == len(ended) == 4 * 2 * reviewed.GROUP_SIZE
        assert shown["b"]["rewarded"] == sum(rollout.reward is not None for rollout in ended)
        assert shown["b"]["failed"] == sum(rollout.status == "failed" for rollout in ended)
        assert measured.model_dump() == page["effect"]
        (change,) = await effects(store, unrewarded=unrewarded)
        assert change.reward.model_dump() == shown["reward"]
        assert (change.step, change.against, change.version) == (300, 1, 2)
    assert shown["other_reward"]["difference"]["value"] == pytest.approx(values["failed:0"][0])
    assert "shares of rewarded rollouts differ" in shown["warnings"][0]
    by_name = {measure["name"]: measure for measure in (*shown["dimensions"], *shown["measures"])}
    assert by_name["reward:format"]["difference"]["value"] < -0.4
    sides = [np.array([rollout.status == "failed" for rollout in side], float) for side in (before, after)]
    one, other = (side.var(ddof=1) / side.size for side in sides)
    degrees = (one + other) ** 2 / (one**2 / (sides[0].size - 1) + other**2 / (sides[1].size - 1))
    failed = by_name["failed"]["difference"]
    expected = (sides[1].mean() - sides[0].mean(), t_quantile(degrees) * math.sqrt(one + other))
    assert (failed["value"], failed["margin"]) == pytest.approx(expected)
    # The page links each number to the rollouts from which it was computed.
    text = Read((await api.get(f"//ui/effects/{reviewed.RESOURCES}?version=2")).body)
    link = next(link for link in text.links if "version=2&step_min=300" in link)
    assert (await api.get(f"/{link.replace('?', '.json?', 1)}")).ok()["total"] == len(after)


async def finished(
    store: Store, step: int, task: str, reward: float | None, status: RolloutStatus = "succeeded", **fields: Any
) -> str:
    metadata = {"rollbook.step": step, "rollbook.group": f"g{step}"}
    rollout = await store.start_rollout({"question": task}, mode="train", metadata=metadata, **fields)
    if reward is not None:
        attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
        await store.add_span(make_span(rollout.attempt, attributes=attributes))
    if status != "running":
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)  # pyright: ignore[reportArgumentType]
    return rollout.rollout_id


async def test_windows_contain_only_steps_of_the_two_versions(store: Store) -> None:
    ids = [(await store.update_resources("p", make_prompt("A"))).resources_id]
    for step in range(3):
        await finished(store, step, "a", 0.25, resources_id="p")
    await store.update_resources("p", make_prompt("B"))
    for step in range(3, 5):
        await finished(store, step, "a", 0.5, resources_id="p")
    await store.update_resources("p", make_prompt("C"))
    await finished(store, 5, "a", 1.0, resources_id="p")
    third, second = await effects(store, steps=2)
    assert (ids, second.version, second.a_steps, second.b_steps) == (["p"], 2, (1, 2), (3, 4))
    assert (third.version, third.against, third.a_steps, third.b_steps) == (3, 2, (3, 4), (5, 5))
    # One value has no interval.
    assert third.reward.difference is not None
    assert (third.reward.difference.value, third.reward.difference.margin) == (0.5, None)
    assert await effects(store, mode="val") == []
    with pytest.raises(NotFound, match=r"an earlier version of p than v1"):
        await effect(store, "p@1")
    with pytest.raises(NotFound, match=r"No train rollout with a step used p v9"):
        await effect(store, "p@9")
    for version in ("p", "@1", "p@", "p@0", "p@x", f"p@{'9' * 30}"):
        with pytest.raises(Invalid, match="ID@VERSION"):
            await effect(store, version)


async def test_effects_page_without_versions_names_the_call_that_makes_one(api: Api, store: Store) -> None:
    assert "update_resources" in Read((await api.get("//ui/effects")).body).text
    assert (await api.get("//ui/effects/nothing")).status == 404
    await store.update_resources(HOSTILE, make_prompt("A"))
    page = await api.get(f"//ui/effects/{quote(HOSTILE, safe='')}")
    assert (page.status, "nothing to compare" in Read(page.body).text) == (200, True)


@ON_BOTH
async def test_selections_compare_by_any_filter_of_the_list(api: Api, store: Store) -> None:
    a = [await finished(store, 1, task, reward) for task, reward in (("x", 0.0), ("x", 0.5), ("y", 0.25))]
    b = [await finished(store, 2, task, reward) for task, reward in (("x", 1.0), ("y", 0.75), ("y", 1.0))]
    b.append(await finished(store, 2, "x", None, "failed"))
    await finished(store, 2, "x", 0.0, "running")
    comparison = await compare_selections(store, "step=1", "http://host/ui/rollouts?group=g2&sort=reward")
    difference = comparison.reward.difference
    assert difference is not None
    assert (comparison.reward.a.mean, comparison.reward.b.mean) == (0.25, pytest.approx((0.5 + 0.875) / 2))
    assert (difference.value, difference.pairs, comparison.b.ended, comparison.b.rewarded) == (0.4375, 2, 4, 3)
    assert comparison.warnings == [
        "The shares of rewarded rollouts differ by 25.0 points.",
        "Rollouts that have not ended are left out: 1.",
    ]
    assert [(task.title, task.difference and task.difference.value) for task in comparison.tasks] == [
        ("x", 0.25),
        ("y", 0.625),
    ]
    assert [row.rollout_id for row in comparison.moved] == [b[3], b[1], b[0], b[2]]
    assert (await compare_selections(store, "step=1", "group=g2", pairs=False)).reward.a.count == 3
    assert (await compare_selections(store, "step=1&reward_below=0.5", "step=2")).reward.a.count == 2
    # The twin of the page and the fields of its form give the same.
    for address in ("a=step%3D1&b=group%3Dg2", "a.step=1&b.group=g2", "a=step%3D5&a.step=1&b.group=g2&b.mode="):
        twin = (await api.get(f"//ui/cohorts.json?{address}")).ok()["comparison"]
        assert twin == comparison.model_dump()
    alike = await compare_selections(store, "&".join(f"id={rollout_id}" for rollout_id in a), "step_max=1")
    assert (alike.common_rollouts, alike.warnings) == (3, ["3 rollouts are in both selections."])
    nothing = await compare_selections(store, "label=none", "worker=nobody")
    assert (nothing.reward.difference, nothing.tasks, nothing.moved) == (None, [], [])


async def test_invalid_selection_names_its_side_and_the_filters(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (
        "nonsense",
        "//[?step=1",
        "stepp=1",
        "step=x",
        "mode=all",
        "reward_min=nan",
        "version=1e3",
        "attempt=ok",
    ):
        with pytest.raises(Invalid, match=r"^b: "):
            await compare_selections(store, "", text)
        assert (await api.get(f"//ui/cohorts.json?a=&b={quote(text)}")).status == 422
    monkeypatch.setattr("store.db.queries.compared_rollouts.MOST_COMPARED", 1)
    await finished(store, 1, "x", 1.0)
    await finished(store, 1, "x", 1.0)
    with pytest.raises(TooLarge, match="selection a: 2 rollouts"):
        await compare_selections(store, "", "")


async def test_tokens_of_rollouts_without_usage_are_unknown(store: Store) -> None:
    await finished(store, 1, "x", 1.0)
    used = await store.start_rollout({"question": "x"}, metadata={"rollbook.step": 2})
    usage = {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3}
    await store.add_span(make_span(used.attempt, attributes=usage))
    await store.update_attempt(used.rollout_id, used.attempt.attempt_id, status="succeeded")
    comparison = await compare_selections(store, "step=1", "step=2")
    tokens = next(measure for measure in comparison.measures if measure.name == "tokens_out")
    assert (tokens.a.count, tokens.a.mean, tokens.b.mean, tokens.difference) == (0, None, 3.0, None)


@pytest.mark.http
async def test_comparisons_of_a_server_are_those_of_its_database(store: Store, server: Served) -> None:
    from store import open_store

    await store.update_resources("p/ö", make_prompt("A"))
    await finished(store, 1, "x", 0.5, resources_id="p/ö")
    await store.update_resources("p/ö", make_prompt("B"))
    await finished(store, 2, "x", 1.0, resources_id="p/ö")
    with server.serving(store) as url:
        async with await open_store(url) as client:
            assert await effect(client, "p/ö@2", steps=1) == await effect(store, "p/ö@2", steps=1)
            assert await effects(client, unrewarded="out") == await effects(store, unrewarded="out")
            sides = ("step=1&resources=p/ö", "step=2")
            assert await compare_selections(client, *sides) == await compare_selections(store, *sides)
            with pytest.raises(NotFound):
                await effect(client, "p/ö@7")


async def test_selections_of_two_partitions_are_compared_where_the_key_permits_it(
    store: Store, store_url: str, server: Served
) -> None:
    from store import open_store
    from store.db.url import with_partition

    name = f"p{uuid4().hex[:12]}"
    await finished(store, 1, "x", 0.25)
    async with await open_store(with_partition(store_url, name)) as other:
        moved = await finished(other, 1, "x", 0.75)
        labels = ["odd"]
        await other.annotations.annotate(moved, add_labels=labels)
    comparison = await compare_selections(store, "step=1", f"partition={name}&step=1")
    assert (comparison.reward.a.mean, comparison.reward.b.mean) == (0.25, 0.75)
    assert (comparison.a.partition, comparison.b.partition, comparison.common_tasks) == (None, name, 1)
    assert [(row.title, row.labels) for row in comparison.moved] == [("x", labels)]
    assert (await compare_selections(store, f"http://host/p/{name}/ui/rollouts?step=1", "")).reward.a.mean == 0.75
    with pytest.raises(NotFound):
        await compare_selections(store, "", "partition=none")
    with pytest.raises(Invalid, match=r"^b: "):
        await compare_selections(store, "", "partition=a/b")

    async def opened(url: str) -> Store:
        return await open_store(url, create=False)

    partitions = Partitions(store, store_url, opened)
    try:
        async with speaking_to(partitions) as api:
            twin = (await api.get(f"//ui/cohorts.json?a=step%3D1&b=partition%3D{name}%26step%3D1")).ok()
            assert twin["comparison"] == comparison.model_dump()
            page = Read((await api.get(f"//ui/cohorts?a=step%3D1&b.partition={name}&b.step=1")).body)
            assert f"/p/{name}/ui/rollouts/{moved}" in page.links
            assert (await api.get("//ui/cohorts.json?a=&b=partition%3Dnone")).status == 404
    finally:
        await partitions.close()
