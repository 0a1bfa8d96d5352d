"""Costs on pages: sums with their links, the head of a rollout, and unknown tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from store.interface.store import Store
from store.models import ModelPrice, PriceTable, RunEvent
from store.server.partitions import Partitions
from store.testing.samples import make_span
from tests.dashboard.page_helpers import ON_BOTH
from tests.server.api import Api, speaking_to

_numbers = count(1)
PRICES = PriceTable(models={"priced": ModelPrice(input=1_000, output=2_000)})


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    async with speaking_to(Partitions(store), prices=PRICES) as api:
        yield api


async def rollout_with(store: Store, step: int, *models: str) -> str:
    """Return the id of a rollout with a call of each model, of 300 tokens in and 50 out."""
    metadata = {"rollbook.step": step, "rollbook.group": f"group {step}"}
    rollout = await store.start_rollout("task", mode="train", metadata=metadata)
    usage = {"gen_ai.usage.input_tokens": 300, "gen_ai.usage.output_tokens": 50}
    for model in models:
        number = next(_numbers)
        attributes: dict[str, Any] = {**usage, "gen_ai.response.model": model}
        await store.add_span(make_span(rollout.attempt, number, span_id=f"span-{number}", attributes=attributes))
    return rollout.rollout_id


async def html_of(api: Api, path: str) -> str:
    answer = await api.get(path)
    assert answer.status == 200
    return answer.body.decode()


@ON_BOTH
async def test_cost_page_has_total_and_lines_that_link_to_their_rollouts(api: Api, store: Store) -> None:
    await rollout_with(store, 5, "priced", "priced", "free")
    await rollout_with(store, 10, "priced")
    page: Any = (await api.get("//ui/cost.json?mode=train")).ok()
    assert [(line["key"], line["calls"], line["cost"], line["priced_calls"]) for line in page["lines"]] == [
        ({"step": 5}, 3, pytest.approx(0.8), 2),
        ({"step": 10}, 1, pytest.approx(0.4), 1),
    ]
    total = page["total"]
    assert (total["tokens_in"], total["tokens_out"], total["tokens_cached"]) == (1200, 200, None)
    assert (page["unpriced_models"], page["position"], page["keys"]) == (["free"], page["head"], 2)
    html = await html_of(api, "//ui/cost?mode=train")
    assert '<a href="/ui/rollouts?mode=train&amp;step=5">5</a>' in html
    assert "for 3 of 4 calls" in html
    assert "No price: free." in html
    by_group: Any = (await api.get("//ui/cost.json?by=group&limit=1&offset=1")).ok()
    assert [line["key"] for line in by_group["lines"]] == [{"group": "group 10"}]
    assert by_group["total"]["calls"] == 4
    assert (await api.get("//ui/cost.json?by=colour")).status == 422
    assert (await api.get("//ui/cost.json?step=7")).ok()["total"]["calls"] == 0
    assert "No calls of models match." in await html_of(api, "//ui/cost?step=7")


async def test_head_of_a_rollout_has_its_cost_and_the_tokens_of_its_run_events(api: Api, store: Store) -> None:
    spans = await rollout_with(store, 5, "priced", "free")
    run = await store.start_rollout("run")
    metrics = {"tokens_in": 1_200, "tokens_out": 30, "model": "free"}
    event = RunEvent(kind="result", node_id="n", scope="s", metrics=metrics)
    await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, [event])
    await api.get("//ui/cost")  # which fills the index
    page: Any = (await api.get(f"//ui/rollouts/{spans}.json")).ok()
    assert (page["usage"]["cost"], page["usage"]["calls"]) == (pytest.approx(0.4), 2)
    html = await html_of(api, f"//ui/rollouts/{spans}")
    assert "0.400 USD" in html
    assert "for 1 of 2 calls" in html
    overview = " ".join((await html_of(api, "//ui/")).split())
    assert "0.400 USD" in overview
    assert "for 1 of 3 calls" in overview
    assert "1,200 in · 30 out" in await html_of(api, f"//ui/rollouts/{run.rollout_id}")
    graph: Any = (await api.get(f"//ui/runs/{run.rollout_id}.json")).ok()
    assert graph["tokens"] == {"tokens_in": 1_200, "tokens_out": 30, "nodes": 1}
    assert "1.2k / 30" in await html_of(api, f"//ui/runs/{run.rollout_id}")
    assert (await api.get(f"//ui/rollouts/{spans}.json?at=1")).ok()["usage"] is None


async def test_unknown_tokens_are_a_dash_and_never_zero(api: Api, store: Store) -> None:
    rollout_id = await rollout_with(store, 5)
    other = await rollout_with(store, 5)
    for path in (f"rollouts/{rollout_id}", "groups", "groups/group%205", "rollouts", f"runs/{rollout_id}"):
        html = " ".join((await html_of(api, f"//ui/{path}")).split())
        assert "0 in, 0 out" not in html
        assert "0 / 0" not in html
    assert "<dt>Tokens</dt><dd>–</dd>" in await html_of(api, f"//ui/rollouts/{rollout_id}")  # noqa: RUF001
    assert "<dt>Tokens out</dt><dd>–</dd>" in await html_of(api, "//ui/groups/group%205")  # noqa: RUF001
    compared: Any = (await api.get(f"//ui/compare.json?a={rollout_id}&b={other}")).ok()
    facts = {fact["name"]: fact["a"] for fact in compared["facts"] if fact["name"].startswith("Tokens")}
    assert facts == {"Tokens in": None, "Tokens out": None}
