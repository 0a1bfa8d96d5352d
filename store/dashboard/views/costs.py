"""Costs on pages: the prices of the server, and the cost of one rollout."""

from __future__ import annotations

from store.dashboard.request import PageRequest
from store.models.prices import CostLine, PriceTable
from store.models.queries import UsageQuery
from store.sql.usage import indexed_usage


def prices_of(request: PageRequest) -> PriceTable:
    """Return the prices of the server that shows the page."""
    return request.extra.get("prices") or PriceTable()


async def cost_of(request: PageRequest, query: UsageQuery) -> CostLine | None:
    """Return the sum of usage and cost as the index has it; None if it has no calls that match the query yet.

    Pages that no server shows have no costs, because they must not depend on the state of an index.
    """
    if "prices" not in request.extra:
        return None
    report = await indexed_usage(request.store.core, query)
    return None if report is None or not report.total else prices_of(request).costs(report).total
