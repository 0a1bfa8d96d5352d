"""The scatter plot of two numbers of rollouts, and the sample of rollouts that are farthest from the median."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final, get_args

from store.comparing.sampling import SIZE, check_size, sampled_rollouts
from store.comparing.scattering import (
    BOUNDS,
    COLOURS,
    DIMENSION,
    METADATA,
    MOST_NAMES,
    MOST_POINTS,
    NO_COLOUR,
    TITLES,
    RolloutNumber,
    ScatterOptions,
    ScatterRows,
    numbers_in,
    points_in,
    scatter_of,
    scatter_rows,
)
from store.comparing.selections import PARAMETERS, params_of, selection_of, text_of
from store.dashboard.charts.scatter_chart import scatter_chart
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views.compared import described, unrewarded_options
from store.dashboard.views.costs import prices_of
from store.dashboard.views.figure_cache import cache_of
from store.db.dialect import ReadSession
from store.db.queries.curves import reward_names
from store.db.queries.list_details import metadata_of
from store.db.queries.rollout_list import RolloutListQuery
from store.errors import Invalid
from store.models import RolloutMode

pages = Pages()

LISTED: Final = 50
"""The maximum number of points in the table."""
_FORM: Final = ("step_min", "step_max")
"""The parameters of a selection for which the forms have a text field. Modes have checkboxes."""
_KEYS_FROM: Final = 20
"""The number of rollouts in whose metadata numbers are searched for the choice of numbers."""


def selection_in(request: PageRequest) -> RolloutListQuery:
    """Return the selection that the filters in the address give. Other parameters are ignored."""
    params = {name: values for name, values in request.params.items() if name in PARAMETERS}
    return selection_of(params, "selection")


def selection_fields(request: PageRequest, selection: RolloutListQuery) -> dict[str, Any]:
    """Return what the forms of both pages show of a selection."""
    params = params_of(selection)
    # The form has a range of steps also for a single step.
    of_form = {**params, "step_min": params["step"], "step_max": params["step"]} if "step" in params else params
    return {
        "request_modes": get_args(RolloutMode),
        "chosen_modes": selection.modes,
        "chosen": {name: of_form.get(name, [""])[-1] for name in _FORM},
        "carried": [
            (name, value) for name, values in params.items() if name not in {*_FORM, "mode", "step"} for value in values
        ],
        "described": described(text_of(selection)),
        "list_url": request.url("rollouts", **params),
        "selection_params": params,
    }


def bound_in(request: PageRequest, name: str) -> float | None:
    """Return a bound of the box; None if it is missing.

    Raises:
        Invalid: the value is not a finite number.
    """
    text = request.one(name)
    try:
        number = float(text) if text else None
    except ValueError:
        raise Invalid(name, f"{text[:80]!r} is not a number") from None
    if number is not None and not math.isfinite(number):
        raise Invalid(name, f"{text[:80]!r} is not a finite number")
    return number


@pages.get("/ui/scatter")
async def scatter(request: PageRequest) -> PageContent:
    """Show two numbers of the rollouts of a selection as points, and the rollouts in a box.

    The parameters are `x`, `y`, `colour` (`none` for no colours), `points` (the maximum), `x_min`, `x_max`, `y_min`
    and `y_max` (the box), and the filters of the list of rollouts.
    """
    options = ScatterOptions.of(
        request.one("x") or "step",
        request.one("y") or "reward",
        selection_in(request),
        request.one("colour") or "status",
        {name: bound_in(request, name) for name in BOUNDS},
        request.whole("points", MOST_POINTS, least=1, most=MOST_POINTS),
    )

    async def work(session: ReadSession) -> tuple[ScatterRows, list[str]]:
        rows = await scatter_rows(session, options)
        first = [row.rollout_id for row in rows.measured.rows[:_KEYS_FROM]]
        metadata = await metadata_of(session, first, only_small=True)
        keys = sorted({key for content in metadata.values() for key in numbers_in(content)})
        names = [name for name, _ in await reward_names(session)]
        return rows, [*(f"{DIMENSION}{name}" for name in names), *(f"{METADATA}{key}" for key in keys)]

    key = ("scatter", options.x, options.y, text_of(options.selection), options.most, options.colour)
    read = partial(cache_of(request.store.core).read, key=key, compute=work)
    rows, names = await request.store.core.look(read, snapshot=True)
    plot = await scatter_of(request.store.core, options, rows, prices_of(request))
    inside = points_in(options.box, plot.points)
    hidden = selection_fields(request, options.selection) | {
        "chart": scatter_chart(plot),
        "numbers": [RolloutNumber(name) for name in dict.fromkeys([*TITLES, *names, options.x.name, options.y.name])],
        "x_number": options.x,
        "y_number": options.y,
        "colours": COLOURS,
        "no_colour": NO_COLOUR,
        "bounds": {name: request.one(name) for name in BOUNDS},
        "listed": inside[:LISTED],
        "inside": len(inside),
        "most_names": MOST_NAMES,
        "most_points": MOST_POINTS,
    }
    return PageContent("scatter.html", dict(plot), "Scatter", hidden=hidden)


@pages.get("/ui/sample")
async def sample(request: PageRequest) -> PageContent:
    """Show the ended rollouts of a selection that are farthest from the median reward or length.

    The parameters are `size` (the number of rollouts), `unrewarded`, and the filters of the list of rollouts.
    """
    selection, missing, size = selection_in(request), request.missing_reward(), request.whole("size", SIZE)
    check_size(size)
    compute = partial(sampled_rollouts, query=selection, missing=missing, size=size)
    key = ("sample", text_of(selection), missing, size)
    read = partial(cache_of(request.store.core).read, key=key, compute=compute)
    sampled = await request.store.core.look(read, snapshot=True)
    hidden = selection_fields(request, selection) | {
        "size": size,
        "missing": missing,
        "choices": unrewarded_options(request),
    }
    return PageContent("sample.html", dict(sampled), "Sample", hidden=hidden)
