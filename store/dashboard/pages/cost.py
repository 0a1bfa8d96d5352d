"""The cost page: calls of models, their tokens and their cost, by step, version, model and other divisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views.costs import prices_of
from store.models import RolloutMode
from store.models.prices import CostLine
from store.models.queries import UsageQuery
from store.models.usage import UsageKey

pages = Pages()

_DIVISIONS: Final = tuple(name for name in get_args(UsageKey) if name != "all")
_PARAMETERS: Final[Mapping[str, str]] = {
    "step": "step",
    "group": "group",
    "mode": "mode",
    "resources_id": "resources",
    "resources_version": "version",
}
"""The parameters of the list of rollouts, by the names in the key of a sum."""


@pages.get("/ui/cost")
async def cost(request: PageRequest) -> PageContent:
    """Show the total cost, and the costs by one division.

    The parameters are `by` (the division), `mode`, `step`, `group` and `resources`, which select rollouts.
    """
    by = cast("UsageKey", request.among("by", _DIVISIONS, "step"))
    modes = request.several_among("mode", get_args(RolloutMode))
    step = request.maybe_whole("step", least=-(2**63), most=2**63 - 1)
    group, resources = request.one("group"), request.one("resources")
    query = UsageQuery(
        by=by,
        mode_in=cast("Any", modes) or None,
        step_in=None if step is None else [step],
        group_in=[group] if group else None,
        resources_id_in=[resources] if resources else None,
        limit=request.rows,
        offset=request.whole("offset", 0),
    )
    report = prices_of(request).costs(await request.store.log.usage(query))
    has_costs = report.total.cost is not None
    amounts = [
        line.cost or 0.0 if has_costs else (line.tokens_in or 0) + (line.tokens_out or 0) for line in report.lines
    ]
    most = max(amounts, default=0)
    values = {**vars(report), "limit": query.limit, "offset": query.offset}
    hidden = {
        "divisions": _DIVISIONS,
        "modes": get_args(RolloutMode),
        "query": query,
        "links": [_link(request, line) for line in report.lines],
        # The widths of the bars in percent of the longest bar.
        "bars": [round(100 * amount / most, 2) if most else 0 for amount in amounts],
    }
    return PageContent("cost.html", values, "Cost", hidden=hidden)


def _link(request: PageRequest, line: CostLine) -> str | None:
    """Return the path of the rollout of a line, or of the list of its rollouts; None if no filter selects them."""
    key = line.key
    if rollout_id := key.get("rollout_id"):
        return request.url("rollouts", str(rollout_id))
    if "model" in key or None in key.values():
        return None
    shared = {name: request.several(name) for name in ("mode", "step", "group", "resources")}
    return request.url("rollouts", **(shared | {_PARAMETERS[name]: value for name, value in key.items()}))
