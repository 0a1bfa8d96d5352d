"""Calls of models and of tools, and costs, as measures of a comparison. Decisions 124 and 126."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import select

from store.comparing.comparison import estimated
from store.comparing.selections import parse_selection
from store.db.queries.counted_rewards import has_ended
from store.db.queries.rollout_list import matching_rollouts
from store.db.queries.usage import RolloutTools
from store.db.tables.core import rollouts
from store.models.comparisons import ComparedMean, ComparedMeasure, MeasureKind, SelectionComparison
from store.models.prices import CostLine, PriceTable
from store.models.usage import UsageReport
from store.runtime.statistics import Sample, welch
from store.sql.core import SQLCore
from store.sql.usage import usage_of_rollouts

_MEASURES: Final[tuple[tuple[str, str, MeasureKind, bool | None], ...]] = (
    ("calls", "Model calls", "count", None),
    ("cost", "Cost", "money", False),
    ("cost_per_call", "Cost per model call", "money", False),
    ("tool_calls", "Tool calls", "count", None),
    ("with_tool_error", "With a tool error", "share", False),
)
"""The name, the title and the kind of each measure, and whether more is better."""
TOOL_MEASURES: Final = ("tool_calls", "with_tool_error")


async def with_usage(
    cores: Sequence[SQLCore], comparison: SelectionComparison, prices: PriceTable, *, waits: bool = False
) -> SelectionComparison:
    """Return a comparison with the model calls, tool calls and costs of ended rollouts as measures.

    A rollout has a cost if the costs of all its calls are known. A measure that neither side has is left out, and so
    are the measures of tools if no rollout has a tool call. Without an index of usage, all are left out.

    Args:
        cores: the partition of each side.
        comparison: the comparison.
        prices: the prices of models.
        waits: whether the index first reads the log to its present end. Otherwise, a warning says how many events it
            has not read.
    """
    sides: list[tuple[list[CostLine], Mapping[str, RolloutTools]]] = []
    behind = 0
    for core, side in zip(cores, (comparison.a, comparison.b), strict=True):
        unpaged = replace(parse_selection(side.query, "selection"), limit=-1, offset=0)
        matching, params = matching_rollouts(core.dialect, unpaged)
        ended = select(rollouts.c.rollout_id).where(matching, has_ended())
        usage = await usage_of_rollouts(core, lambda column, ended=ended: column.in_(ended), waits=waits, **params)
        report = UsageReport(by="run", sums=usage.sums, total=[], keys=0, position=0, head=0)
        sides.append((prices.costs(report).lines, usage.tools))
        behind = max(behind, usage.events_behind)
    measures = list(comparison.measures)
    warnings = list(comparison.warnings)
    if behind:
        warnings.append(f"Model calls, tool calls and costs are incomplete: {behind:,} events are not counted yet.")
    has_tools = any(rollout.calls for _, tools in sides for rollout in tools.values())
    for name, title, kind, is_more_better in _MEASURES:
        if name in TOOL_MEASURES and not has_tools:
            continue
        samples = [Sample.of(values_of(lines, tools, name)) for lines, tools in sides]
        if any(sample.count for sample in samples):
            a, b = (ComparedMean(count=sample.count, mean=sample.mean) for sample in samples)
            difference = estimated(welch(*samples), is_more_better=is_more_better, pairs=None)
            measures.append(ComparedMeasure(name=name, title=title, kind=kind, a=a, b=b, difference=difference))
    return comparison.model_copy(update={"measures": measures, "warnings": warnings})


def values_of(lines: Sequence[CostLine], tools: Mapping[str, RolloutTools], measure: str) -> list[float]:
    """Return the values of a measure, of the rollouts that have one."""
    if measure == "tool_calls":
        return [float(rollout.calls) for rollout in tools.values() if rollout.calls is not None]
    if measure == "with_tool_error":
        return [float(rollout.errors > 0) for rollout in tools.values() if rollout.errors is not None]
    if measure == "calls":
        return [float(line.calls) for line in lines]
    costs = [(line.cost, line.calls) for line in lines if line.cost is not None and line.priced_calls == line.calls]
    return [cost / calls if measure == "cost_per_call" else cost for cost, calls in costs]
