"""Two numbers of each rollout of a selection, as points, and the rollouts in a box. Decision 124."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from store.comparing.selections import text_of
from store.db.dialect import ReadSession
from store.db.queries.compared_rollouts import dimensions_of
from store.db.queries.groups import groups_with_variance
from store.db.queries.list_details import metadata_of
from store.db.queries.pages import LONGEST_ID
from store.db.queries.rollout_list import Range, Ranged, RolloutListQuery
from store.db.queries.scatter import COLUMNS, MeasuredRow, MeasuredRows, measured_rows
from store.db.queries.usage import RolloutTools
from store.errors import Invalid
from store.models.exploring import Scatter, ScatterBox, ScatterPoint
from store.models.missing_rewards import ENDED, FAILED_AS_ZERO
from store.models.prices import CostLine, PriceTable
from store.models.usage import UsageReport
from store.runtime.clock import MICROSECONDS
from store.sql.core import SQLCore
from store.sql.usage import RolloutUsage, usage_of_rollouts
from store.validation.json_limits import check_text

Colour = Literal["status", "version", "mode", "variance"]
COLOURS: Final[Mapping[Colour, str]] = {
    "status": "Status",
    "version": "Version",
    "mode": "Mode",
    "variance": "Variance of the group",
}
"""The fields by which points can be coloured, with their titles."""
OUTCOMES: Final = ("succeeded", "failed", "cancelled", "open")
"""The outcomes by which points can be coloured, in the order of the legend."""
NO_COLOUR: Final = "none"
"""The parameter for a plot without colours."""
MOST_POINTS: Final = 2000
"""The maximum number of rollouts that are read for a plot."""
MOST_NAMES: Final = 200
"""The maximum number of rollouts that the selection of a box names by id."""
DIMENSION: Final = "dim:"
"""The beginning of the name of a number that is a dimension of rewards; the name of the dimension follows."""
METADATA: Final = "meta:"
"""The beginning of the name of a number of the metadata; its key follows."""
USAGE: Final = ("calls", "cost", "tool_calls", "tool_errors")
"""The numbers of a rollout that the index of usage has."""
TITLES: Final[Mapping[str, str]] = {
    "reward": "Reward",
    "step": "Step",
    "tokens": "Tokens out",
    "tokens_in": "Tokens in",
    "duration": "Duration, s",
    "spans": "Spans",
    "attempts": "Attempts",
    "calls": "Model calls",
    "cost": "Cost",
    "tool_calls": "Tool calls",
    "tool_errors": "Tool errors",
}
BOUNDS: Final = ("x_min", "x_max", "y_min", "y_max")
_IDS_AT_ONCE: Final = 250
_LOWEST: Final[Mapping[str, float]] = {
    "reward": -1e308,
    "step": -(2.0**53),
    **dict.fromkeys(("tokens", "tokens_in", "spans"), 1.0),
    **dict.fromkeys(("duration", "attempts"), 0.0),
}
"""The least values of the columns."""


@dataclass(frozen=True, slots=True)
class RolloutNumber:
    """A number of a rollout: a column, one of `USAGE`, a dimension of rewards (`dim:format`), or `meta:difficulty`."""

    name: str

    @classmethod
    def parse(cls, text: str, field: str) -> RolloutNumber:
        """Return the number that a text names.

        Raises:
            Invalid: there is no such number.
        """
        check_text(text, field, LONGEST_ID)
        if text not in TITLES and not (text.startswith((DIMENSION, METADATA)) and text.partition(":")[2]):
            raise Invalid(
                field, f"{text[:80]!r} is not a number of rollouts; choose {', '.join(TITLES)}, dim:NAME or meta:KEY"
            )
        return cls(text)

    @property
    def title(self) -> str:
        """The name for people."""
        return TITLES.get(self.name) or self.name.partition(":")[2]

    @property
    def ranged(self) -> Ranged | None:
        """The filter of lists for a range of the number; None if there is none."""
        return cast("Ranged", self.name) if self.name in COLUMNS else None

    @property
    def dimension(self) -> str | None:
        """The name of the dimension of rewards; None for another number."""
        return self.name.removeprefix(DIMENSION) if self.name.startswith(DIMENSION) else None

    @property
    def metadata_key(self) -> str | None:
        """The key in the metadata; None for another number."""
        return self.name.removeprefix(METADATA) if self.name.startswith(METADATA) else None


@dataclass(frozen=True, slots=True)
class ScatterOptions:
    """The checked options of a scatter plot."""

    x: RolloutNumber
    y: RolloutNumber
    selection: RolloutListQuery
    colour: Colour | None = "status"
    box: tuple[float | None, ...] = (None, None, None, None)
    """The bounds in the order of `BOUNDS`."""
    most: int = MOST_POINTS

    @classmethod
    def of(
        cls,
        x: str,
        y: str,
        selection: RolloutListQuery,
        colour: str | None = "status",
        box: Mapping[str, float | None] | None = None,
        most: int = MOST_POINTS,
    ) -> ScatterOptions:
        """Return checked options.

        Raises:
            Invalid: an argument is not valid.
        """
        bounds = box or {}
        for name in ("x", "y"):
            low, high = bounds.get(f"{name}_min"), bounds.get(f"{name}_max")
            if low is not None and high is not None and low > high:
                raise Invalid(f"{name}_min", f"{low:g} is greater than {name}_max, {high:g}; exchange them")
        for name, bound in bounds.items():
            if bound is not None and not math.isfinite(bound):
                raise Invalid(name, "must be a finite number")
        colour = None if colour == NO_COLOUR else colour
        if colour is not None and colour not in COLOURS:
            raise Invalid("colour", f"{colour[:80]!r} must be one of {', '.join((*COLOURS, NO_COLOUR))}")
        if not 1 <= most <= MOST_POINTS:
            raise Invalid("points", f"must lie between 1 and {MOST_POINTS:,}")
        numbers = RolloutNumber.parse(x, "x"), RolloutNumber.parse(y, "y")
        return cls(*numbers, selection, colour, tuple(map(bounds.get, BOUNDS)), most)


@dataclass(frozen=True, slots=True)
class ScatterRows:
    """The rollouts of a plot and their numbers, read from one state of the store."""

    measured: MeasuredRows
    dimensions: Mapping[str, Mapping[str, float]]
    """The last values of dimensions of rewards, by name and then by rollout id."""
    metadata: Mapping[str, Mapping[str, float]]
    """The numbers of the metadata, by key and then by rollout id."""
    with_variance: frozenset[str]
    """The groups whose rewards differ, with failed rollouts as 0; empty if points are not coloured by variance."""


async def scatter_rows(session: ReadSession, options: ScatterOptions) -> ScatterRows:
    """Return the rollouts of a plot. The session must read one state of the store."""
    numbers = (options.x, options.y)
    dimensions = {number.dimension for number in numbers if number.dimension is not None}
    keys = {number.metadata_key for number in numbers if number.metadata_key is not None}
    columns = {number.name for number in numbers if number.ranged is not None}
    measured = await measured_rows(session, options.selection, columns, dimensions, options.most)
    ids = [row.rollout_id for row in measured.rows]
    values = await dimensions_of(session, ids) if dimensions else {}
    metadata: dict[str, dict[str, float]] = {key: {} for key in keys}
    for start in range(0, len(ids) if keys else 0, _IDS_AT_ONCE):
        part = await metadata_of(session, ids[start : start + _IDS_AT_ONCE], only_small=True)
        for rollout_id, content in part.items():
            for key, value in numbers_in(content).items():
                if key in keys:
                    metadata[key][rollout_id] = value
    with_variance = frozenset[str]()
    if options.colour == "variance":
        groups = sorted({row.group_id for row in measured.rows if row.group_id is not None})
        with_variance = await groups_with_variance(session, groups, FAILED_AS_ZERO)
    return ScatterRows(measured, {name: values.get(name, {}) for name in dimensions}, metadata, with_variance)


def numbers_in(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of metadata by key."""
    numbers: dict[str, float] = {}
    for key, value in metadata.items():
        # An integer may be too large for a float.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
            numbers[key] = float(value)
    return numbers


async def scatter_of(
    core: SQLCore, options: ScatterOptions, rows: ScatterRows, prices: PriceTable, *, waits: bool = False
) -> Scatter:
    """Return the plot of some rollouts. The numbers of `USAGE` are read from the index of usage.

    With `waits`, the index first reads the log to its present end.
    """
    measured = rows.measured.rows
    usage = RolloutUsage([], {}, 0)
    if options.x.name in USAGE or options.y.name in USAGE:
        ids = core.dialect.list_param([row.rollout_id for row in measured])
        usage = await usage_of_rollouts(core, lambda column: core.dialect.any_of(column, "ids"), waits=waits, ids=ids)
    report = UsageReport(by="run", sums=usage.sums, total=[], keys=0, position=0, head=0)
    costs = {str(line.key["rollout_id"]): line for line in prices.costs(report).lines}
    x, y = (numbers_of(number, rows, costs, usage.tools) for number in (options.x, options.y))
    has_several = len({row.resources_id for row in measured} - {None}) > 1

    def colour(row: MeasuredRow) -> str | None:
        match options.colour:
            case "status":
                return row.status if row.status in ENDED else "open"
            case "mode":
                return row.mode or "no mode"
            case "variance":
                if row.group_id is None:
                    return "no group"
                return "variance" if row.group_id in rows.with_variance else "no variance"
            case "version":
                if row.resources_version is None:
                    return "no version"
                return f"{row.resources_id} v{row.resources_version}" if has_several else f"v{row.resources_version}"
            case None:
                return None

    points = [
        ScatterPoint(rollout_id=row.rollout_id, x=x[row.rollout_id], y=y[row.rollout_id], colour=colour(row))
        for row in measured
        if row.rollout_id in x and row.rollout_id in y
    ]
    return Scatter(
        x=options.x.name,
        y=options.y.name,
        colour=options.colour,
        selection=text_of(options.selection),
        matching=rows.measured.matching,
        sampled=len(measured),
        points=points,
        events_behind=usage.events_behind,
        box=None if set(options.box) == {None} else box_of(options, points),
    )


def numbers_of(
    number: RolloutNumber, rows: ScatterRows, costs: Mapping[str, CostLine], tools: Mapping[str, RolloutTools]
) -> Mapping[str, float]:
    """Return a number of the rollouts of a plot, by rollout id. Rollouts without the number are left out."""
    if number.dimension is not None:
        return rows.dimensions[number.dimension]
    if number.metadata_key is not None:
        return rows.metadata[number.metadata_key]
    if number.name == "calls":
        return {rollout_id: line.calls for rollout_id, line in costs.items()}
    if number.name in {"tool_calls", "tool_errors"}:
        counts = {key: row.calls if number.name == "tool_calls" else row.errors for key, row in tools.items()}
        return {rollout_id: count for rollout_id, count in counts.items() if count is not None}
    if number.name == "cost":
        # The rollout has no cost if the costs of only some of its calls are known.
        complete = {key: line.cost for key, line in costs.items() if line.priced_calls == line.calls}
        return {rollout_id: cost for rollout_id, cost in complete.items() if cost is not None}
    unit = MICROSECONDS if number.name == "duration" else 1
    stored = {row.rollout_id: getattr(row, COLUMNS[number.name]) for row in rows.measured.rows}
    return {rollout_id: value / unit for rollout_id, value in stored.items() if value is not None}


def points_in(bounds: Sequence[float | None], points: Sequence[ScatterPoint]) -> list[ScatterPoint]:
    """Return the points in a box, including those on its edges. The bounds are in the order of `BOUNDS`."""
    x_min, x_max, y_min, y_max = bounds
    return [
        point
        for point in points
        if (x_min is None or point.x >= x_min)
        and (x_max is None or point.x <= x_max)
        and (y_min is None or point.y >= y_min)
        and (y_max is None or point.y <= y_max)
    ]


def box_of(options: ScatterOptions, points: Sequence[ScatterPoint]) -> ScatterBox:
    """Return the box of a plot, with the selection of its rollouts.

    If both numbers have range filters, these select all rollouts in the box, drawn or not. Otherwise the selection
    names the points, if there are at most `MOST_NAMES`.
    """
    inside = points_in(options.box, points)
    x_min, x_max, y_min, y_max = options.box
    selection: RolloutListQuery | None = None
    names_points = options.x.ranged is None or options.y.ranged is None
    if not names_points:
        ranges = {bounds.of: bounds for bounds in options.selection.ranges}
        for number, low, high in ((options.x, x_min, x_max), (options.y, y_min, y_max)):
            of = number.ranged
            assert of is not None  # a number without a filter is named by its points
            before = ranges.get(of, Range(of, None, None))
            least = max((bound for bound in (before.least, low) if bound is not None), default=None)
            most = min((bound for bound in (before.most, high) if bound is not None), default=None)
            if least is None and (most is None or of == "spans"):
                # A range selects only rollouts that have the number.
                least = _LOWEST[of]
            ranges[of] = Range(of, least, most)
        selection = replace(options.selection, ranges=tuple(ranges.values()))
    elif 0 < len(inside) <= MOST_NAMES:
        selection = RolloutListQuery(ids=tuple(point.rollout_id for point in inside))
    return ScatterBox(
        x_min=x_min,
        x_max=x_max,
        y_min=y_min,
        y_max=y_max,
        points=len(inside),
        selection=None if selection is None else text_of(selection),
        names_points=names_points,
    )
