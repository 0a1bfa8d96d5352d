"""Tokens and costs in the buckets of the chart of rewards, from the index of usage. Decisions 109 and 127."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from store.comparing.curve_charts import Chart, Series
from store.db.queries.curves import Axis
from store.models.prices import CostLine, PriceTable
from store.models.usage import UsageReport, UsageSum


def usage_charts(along: Axis, reward: Chart, sums: Sequence[UsageSum], prices: PriceTable) -> list[Chart]:
    """Return the charts of tokens and of costs, which have the buckets and lines of the chart of rewards.

    A chart without a value is left out. A bucket has no value if no call reported the number.

    Args:
        along: the axis of the chart of rewards.
        reward: the chart of rewards.
        sums: the sums of `usage_along` for this axis.
        prices: the prices of models.
    """
    report = UsageReport(by="step", sums=list(sums), total=[], keys=0, position=0, head=0)
    by_place: defaultdict[tuple[Any, ...], CostLine | None] = defaultdict(lambda: None)
    for line in prices.costs(report).lines:
        by_place[line.key["bucket"], line.key["mode"], line.key.get("version")] = line
    scale = 1 if along.by == "step" else 1_000_000
    buckets = [round((start * scale - along.start) / along.width) for start in reward.start]
    tokens: list[Series] = []
    costs: list[Series] = []
    for series in reward.series:
        lines = [by_place[bucket, series.mode, series.version] for bucket in buckets]
        calls = [0 if line is None else line.calls for line in lines]
        priced = [0 if line is None else line.priced_calls for line in lines]
        token_sums = [None if line is None else known_sum((line.tokens_in, line.tokens_out)) for line in lines]
        cost_sums = [None if line is None else line.cost for line in lines]
        tokens.append(Series(series.mode, calls, token_sums, version=series.version, ended=series.ended))
        costs.append(Series(series.mode, calls, cost_sums, version=series.version, ended=series.ended, part=priced))
    charts = (
        ("tokens", "Tokens", "in and out, sum", "tokens", tokens),
        ("cost", "Cost", f"{prices.currency}, sum over the calls with a known cost", prices.currency, costs),
    )
    return [
        Chart(key, title, description, unit, reward.by, reward.start, reward.width, lines, "calls")
        for key, title, description, unit, lines in charts
        if any(value is not None for line in lines for value in line.mean)
    ]


def known_sum(numbers: Sequence[float | None]) -> float | None:
    """Return the sum of the numbers that are known; None if all are unknown."""
    terms = [number for number in numbers if number is not None]
    return math.fsum(terms) if terms else None
