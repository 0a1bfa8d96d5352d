"""Costs in the output of `rollbook cost`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.testing.samples import make_span
from tests.cli.conftest import ON_BOTH, Filled, Rollbook

_PRICES = """
[models."m-*"]
input = 2_000
output = 4_000
cached_input = 500
"""


async def _add_calls(url: str) -> None:
    async with await open_store(url) as store:
        for step, model, reported in ((1, "m-1", {}), (2, "m-2", {"llm.cost.total": 1.5}), (2, "other", {})):
            rollout = await store.start_rollout("task", mode="test", metadata={"rollbook.step": step})
            attributes: dict[str, Any] = {
                "llm.token_count.prompt": 1_000,
                "llm.token_count.completion": 100,
                "llm.model_name": model,
                "llm.token_count.prompt_details.cache_read": 400,
                **reported,
            }
            await store.add_span(make_span(rollout.attempt, 1, attributes=attributes))


@ON_BOTH
def test_costs_come_from_prices_and_reports_and_name_the_calls_without_them(
    rollbook: Rollbook, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_add_calls(filled.url))
    prices = tmp_path / "prices.toml"
    prices.write_text(_PRICES)
    monkeypatch.setenv("ROLLBOOK_PRICES", str(prices))
    report = rollbook("cost", "--mode", "test", "--json").json
    assert [(line["key"], line["cost"]) for line in report["lines"]] == [({"step": 1}, 1.8), ({"step": 2}, 1.5)]
    assert (report["total"]["cost"], report["total"]["priced_calls"], report["total"]["calls"]) == (3.3, 2, 3)
    printed = rollbook("cost", "--mode", "test", "--by", "model")
    rows = {row["model"]: row for row in printed.table}
    assert list(rows) == ["total", "m-1", "m-2", "other"]
    assert (rows["m-1"]["tokens_in"], rows["m-1"]["cached"], rows["other"]["cost"]) == ("1000", "400", "")
    assert "the cost is that of 2 of 3 calls" in printed.err
    assert "no price: other" in printed.err
    shown = rollbook("cost", "--mode", "test", "--by", "model", "--limit", "1", terminal=True).out
    assert "3.30 USD" in shown
    assert "m-2" not in shown.splitlines()[-1]


def test_division_and_prices_are_checked_before_the_store_is_read(rollbook: Rollbook, tmp_path: Path) -> None:
    assert "'colour' is not one of all, step" in rollbook("cost", "--by", "colour").err
    refused = rollbook("cost", "--prices", str(tmp_path / "none.toml"))
    assert refused.code != 0
