"""Pages of groups and comparisons: differences in rewards, messages and spans of the rollouts of a task."""

from __future__ import annotations

from itertools import combinations
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest

from store.dashboard.pages.groups import WIDTH, Scale
from store.interface.store import Store
from store.models import PromptTemplate
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.dashboard.traces import member
from tests.server.api import Api


async def listed(api: Api, **params: Any) -> list[dict[str, Any]]:
    """Return the groups that the list shows."""
    return (await api.get(f"//ui/groups.json?{urlencode(params)}")).ok()["groups"]


async def ids(api: Api, **params: Any) -> list[str]:
    """Return their ids, in the order of the list."""
    return [row["group_id"] for row in await listed(api, **params)]


async def fill(store: Store) -> None:
    """Three groups: one whose rewards differ, one whose do not, one with a single rollout and no reward."""
    for reward in (0.0, 0.5, 1.0):
        await member(store, "differs", reward, step=1)
    for _ in range(2):
        await member(store, "agrees", 0.75, step=2)
    await member(store, "alone", step=3)


async def test_group_shows_outcomes_and_rewards_of_its_rollouts(api: Api, store: Store) -> None:
    await fill(store)
    begun = await store.start_rollout("task", metadata={"rollbook.group": "differs"})
    await store.update_rollout(begun.rollout_id, status="cancelled")
    await store.enqueue_rollout("task", metadata={"rollbook.group": "differs"})
    await store.enqueue_rollout("of no group")
    rows = {row["group_id"]: row for row in await listed(api)}
    assert set(rows) == {"differs", "agrees", "alone"}
    row = rows["differs"]
    assert (row["rollouts"], row["succeeded"], row["cancelled"], row["open"], row["failed"]) == (5, 3, 1, 1, 0)
    assert (row["rewarded"], row["mean"], row["least"], row["most"], row["spread"]) == (3, 0.5, 0.0, 1.0, 1.0)
    assert (row["step"], row["tokens_out"]) == (1, 15)
    assert rows["agrees"]["spread"] == 0.0
    assert rows["alone"]["mean"] is None
    assert rows["alone"]["spread"] is None


@ON_BOTH
async def test_groups_are_sorted_filtered_and_paged(api: Api, store: Store) -> None:
    await fill(store)
    assert await ids(api) == ["alone", "agrees", "differs"]
    assert await ids(api, sort="mean") == ["agrees", "differs", "alone"]
    assert await ids(api, sort="mean", desc=0) == ["differs", "agrees", "alone"]
    assert await ids(api, sort="rollouts") == ["differs", "agrees", "alone"]
    assert await ids(api, sort="spread", desc=0) == ["agrees", "differs", "alone"]
    assert await ids(api, spread="some") == ["differs"]
    assert await ids(api, spread="none") == ["agrees"]
    assert await ids(api, siblings=1) == ["agrees", "differs"]
    assert await ids(api, step=2) == ["agrees"]
    assert await ids(api, q="f") == ["differs"]
    page = (await api.get("//ui/groups.json?limit=1&offset=1")).ok()
    assert ([row["group_id"] for row in page["groups"]], page["total"]) == (["agrees"], 3)
    assert (await api.get("//ui/groups.json?sort=nonsense")).status == 422


@ON_BOTH
async def test_group_of_several_steps_is_listed_for_each_step_with_all_rewards(api: Api, store: Store) -> None:
    for reward, step in ((0.0, -1), (1.0, 2**60)):
        await member(store, "long", reward, step=step)
    await member(store, "short", 0.25, step=-1)
    for step in (-1, 2**60):
        (row,) = await listed(api, step=step, spread="some")
        assert (row["group_id"], row["mean"], row["step"]) == ("long", 0.5, 2**60)
    assert await ids(api, step=-1, sort="mean") == ["long", "short"]
    assert (await api.get(f"//ui/rollouts.json?step={2**60}")).ok()["total"] == 1


async def test_a_place_past_the_last_group_says_so_and_leads_back(api: Api, store: Store) -> None:
    await fill(store)
    assert (await api.get("//ui/groups.json?offset=50&spread=some")).ok()["total"] == 1
    page = Read((await api.get("//ui/groups?offset=50&sort=mean")).body)
    assert "There are no rows beyond this offset." in page.text
    assert "/ui/groups?sort=mean" in page.links
    assert "No group matches." in Read((await api.get("//ui/groups?q=nobody")).body).text


@ON_BOTH
async def test_rewards_that_no_sum_can_hold_are_shown_all_the_same(api: Api, store: Store) -> None:
    await store.update_resources("r", {"p": PromptTemplate(template="a", engine="f-string")})
    for reward in (1.7e308, 1.7e308, -1.7e308, 1e200, 0.5):
        await member(store, "huge", reward, resources_id="r")
    (row,) = await listed(api, sort="spread")
    assert (row["least"], row["most"], row["rewarded"]) == (-1.7e308, 1.7e308, 5)
    assert row["mean"] == pytest.approx(2e299)
    assert row["spread"] == pytest.approx(2e300)
    for reward in (0.0, 5e-324):
        await member(store, "tiny", reward)
    assert [row["mean"] for row in await listed(api, q="tiny")] == [0.0]
    for path in ("groups?sort=mean", "groups/tiny", "groups/huge", "resources", "resources/r"):
        page = await api.get(f"//ui/{path}")
        assert page.status == 200, Read(page.body).text
        assert not {"inf", "-inf", "nan"} & set(Read(page.body).text.split())


async def test_a_group_shows_its_rollouts_best_first_and_offers_to_compare_best_and_worst(
    api: Api, store: Store
) -> None:
    rollouts = [await member(store, "g", reward) for reward in (0.5, None, 1.0, 0.0)]
    group = (await api.get("//ui/groups/g.json")).ok()
    assert [row["reward"] for row in group["rollouts"]] == [1.0, 0.5, 0.0, None]
    page = Read((await api.get("//ui/groups/g")).body)
    chosen = {
        mark["name"]: mark["value"] for mark in page.marks if mark.get("name") in ("a", "b") and "checked" in mark
    }
    assert chosen == {"a": rollouts[2].rollout_id, "b": rollouts[3].rollout_id}
    assert "/ui/compare" in page.marked("action")
    oldest_first = (await api.get("//ui/groups/g.json?sort=started&desc=0")).ok()["rollouts"]
    assert [row["rollout_id"] for row in oldest_first] == [rollout.rollout_id for rollout in rollouts]


@ON_BOTH
async def test_group_states_deviation_advantages_ranks_and_pass_at_k(api: Api, store: Store) -> None:
    rewards = [0.0, 0.25, 1.0, 1.0, 0.75, None, None]
    for reward in rewards:
        await member(store, "g", reward, status="succeeded" if reward is not None else "failed")
    await member(store, "g", None)
    await member(store, "g", 0.5, status="running")
    for choice, counted in (("", [*rewards[:5], 0.0, 0.0]), ("out", rewards[:5]), ("ended:1", [*rewards[:5], 1, 1, 1])):
        page = (await api.get(f"//ui/groups/g.json?unrewarded={choice}&threshold=0.75")).ok()
        group = page["group"]
        values = np.array(counted, dtype=float)
        assert (group["rewarded_ended"], group["ended"], group["counted"]) == (5, 8, len(values))
        assert group["mean_counted"] == pytest.approx(values.mean())
        assert group["deviation"] == pytest.approx(values.std(ddof=1))
        signals = [signal for signal in page["signals"] if signal["counted"] is not None]
        assert sorted(signal["counted"] for signal in signals) == sorted(values)
        for signal in signals:
            advantage = signal["counted"] - values.mean()
            assert signal["advantage"] == pytest.approx(advantage)
            assert signal["normalised"] == pytest.approx(advantage / values.std(ddof=1))
            assert signal["rank"] == 1 + np.sum(values > signal["counted"])
        for k, chance in page["pass_at_k"].items():
            choices = list(combinations(values, int(k)))
            assert chance == pytest.approx(np.mean([max(chosen) >= 0.75 for chosen in choices]))
        (row,) = (await api.get(f"//ui/groups.json?unrewarded={choice}&threshold=0.75")).ok()["groups"]
        assert row == group
    page = Read((await api.get("//ui/groups/g?threshold=0.75")).body)
    assert "5 of 8" in page.text
    assert "counts as 0" in page.text
    assert "6 times 7" in page.text
    assert "6 times 7" in Read((await api.get("//ui/groups")).body).text
    assert (await api.get("//ui/groups/g.json?threshold=inf")).status == 422


@ON_BOTH
async def test_steps_state_their_groups_without_variance_and_pass_at_k(api: Api, store: Store) -> None:
    groups: dict[int, list[list[float | None]]] = {
        1: [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.25, None, 0.75], [0.5]],
        2: [[0.0, None], [0.2, 0.2]],
    }
    for step, of_step in groups.items():
        for number, rewards in enumerate(of_step):
            for reward in rewards:
                status = "failed" if reward is None else "succeeded"
                await member(store, f"g{step}-{number}", reward, step=step, status=status)
    for choice, threshold in (("", 0.5), ("out", 0.9)):
        page = (await api.get(f"//ui/tasks.json?unrewarded={choice}&threshold={threshold}")).ok()
        for signal in page["signals"]:
            counted = [
                [0.0 if value is None else value for value in rewards if choice == "" or value is not None]
                for rewards in groups[signal["step"]]
            ]
            several = [values for values in counted if len(values) > 1]
            assert signal["groups"] == len(several)
            assert signal["equal"] == sum(len(set(values)) == 1 for values in several)
            for k, chance in signal["pass_at_k"].items():
                chances = [
                    np.mean([max(chosen) >= threshold for chosen in combinations(values, int(k))])
                    for values in counted
                    if len(values) >= int(k)
                ]
                assert chance == pytest.approx(np.mean(chances))
                assert signal["groups_at_k"][k] == len(chances)
    assert "/ui/groups?step=2&spread=none" in Read((await api.get("//ui/tasks")).body).links


async def test_failed_rollouts_give_a_group_of_equal_rewards_a_signal(api: Api, store: Store) -> None:
    for _ in range(3):
        await member(store, "g", 0.3)
    await member(store, "g", status="failed")
    assert await ids(api, spread="none") == []
    assert await ids(api, spread="none", unrewarded="out") == ["g"]
    signals = (await api.get("//ui/groups/g.json?unrewarded=out")).ok()["signals"]
    assert [signal["advantage"] for signal in signals] == [0.0, 0.0, 0.0, None]


async def test_group_with_equal_rewards_shows_no_training_signal(api: Api, store: Store) -> None:
    await fill(store)
    assert "no training signal" in Read((await api.get("//ui/groups/agrees")).body).text
    assert "no training signal" not in Read((await api.get("//ui/groups/differs")).body).text


async def test_without_groups_the_page_says_how_to_make_one(api: Api) -> None:
    assert "rollbook.group" in Read((await api.get("//ui/groups")).body).text
    assert "No group matches" in Read((await api.get("//ui/groups?q=x")).body).text
    assert (await api.get("//ui/groups/nobody.json")).status == 404


async def test_a_hostile_group_stays_text(api: Api, store: Store) -> None:
    await member(store, HOSTILE, 1.0, worker_id=HOSTILE)
    for path in ("groups", f"groups/{quote(HOSTILE, safe='')}"):
        page = Read((await api.get(f"//ui/{path}")).body)
        assert [mark for mark in page.marks if mark.get("src") == "x"] == []
        assert HOSTILE[:20] in page.text


@pytest.mark.parametrize(
    "values, value, bar",
    [
        ([0.0, 1.0], 0.5, (0, 50, 0)),
        ([-1.0, 1.0], -0.5, (25, 25, 50)),
        ([-1.0, 1.0], 1.0, (50, 50, 50)),
        ([2.0, None, 4.0], 4.0, (0, WIDTH, 0)),
        ([-2.0, -1.0], -2.0, (0, WIDTH, WIDTH)),
    ],
)
def test_bars_begin_at_zero_and_share_a_scale(
    values: list[float | None], value: float, bar: tuple[float, float, float]
) -> None:
    value_bar = Scale.of(values).bar(value)
    assert (value_bar.x, value_bar.width, value_bar.zero) == bar


@pytest.mark.parametrize("value", [0.0, 1e-12, 1e308, -1e308])
def test_bars_of_odd_values_stay_in_their_field(value: float) -> None:
    bar = Scale.of([value, -1e308, 1e308]).bar(value)
    assert bar.x >= 0
    assert bar.x + bar.width <= WIDTH
    assert bar.width > 0
