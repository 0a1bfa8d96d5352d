"""Plots, samples and curves for programs, from a database or from the JSON twins of a server's pages. Decision 124."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, get_args

from pydantic import TypeAdapter

from store.comparing.curve_charts import Chart, Marker
from store.comparing.reward_curves import CurveOptions, reward_curves
from store.comparing.sampling import SIZE, check_size, sampled_rollouts
from store.comparing.scattering import BOUNDS, MOST_POINTS, NO_COLOUR, ScatterOptions, scatter_of, scatter_rows
from store.comparing.selections import params_of, parse_selection
from store.comparing.stores import read_figures
from store.comparing.usage_curves import usage_charts
from store.db.dialect import ReadSession
from store.db.queries.curves import By
from store.db.queries.pages import LONGEST_ID
from store.db.queries.usage import usage_along
from store.errors import Invalid
from store.indexing.following import IndexLag
from store.interface.store import Store
from store.models import RolloutMode
from store.models.exploring import RolloutSample, Scatter
from store.models.missing_rewards import MissingReward
from store.models.prices import PriceTable
from store.models.usage import UsageSum
from store.sql.core import SQLCore
from store.sql.usage import read_usage
from store.validation.json_limits import check_text
from store.validation.scores import version_key

MOST_NAMES: Final = 6
"""The maximum number of dimensions of rewards with curves."""
_CHARTS: Final = TypeAdapter(list[Chart])
_MARKERS: Final = TypeAdapter(list[Marker])


async def scatter(
    store: Store,
    x: str,
    y: str,
    selection: str = "",
    *,
    colour: str | None = "status",
    x_min: float | None = None,
    x_max: float | None = None,
    y_min: float | None = None,
    y_max: float | None = None,
    points: int = MOST_POINTS,
    prices: PriceTable | None = None,
) -> Scatter:
    """Return two numbers of the rollouts of a selection, and the rollouts in a box.

    Args:
        store: a database, or the store of a server.
        x: `reward`, `step`, `tokens`, `tokens_in`, `duration` (seconds), `spans`, `attempts`, `calls`, `cost`,
            `tool_calls`, `tool_errors`, a dimension of rewards such as `dim:format`, or a number of the metadata such
            as `meta:difficulty`.
        y: the other number.
        selection: the rollouts as the query string of a list of rollouts, such as `step=300&mode=train`.
        colour: the field by which points are coloured: `status`, `version`, `mode` or `variance`; None for no colours.
            `variance` is whether the rewards in the group of the rollout differ.
        x_min: the least `x` in the box; None for no limit. Without any bound, there is no box.
        x_max: the greatest `x` in the box.
        y_min: the least `y` in the box.
        y_max: the greatest `y` in the box.
        points: the maximum number of rollouts that are read, at most 2,000. Of more rollouts, a sample is read, which
            has the same rollouts in each call.
        prices: the prices for `cost`; None for reported costs only. A server uses its prices instead.

    Raises:
        Invalid: an argument is not valid.
    """
    bounds: dict[str, float | None] = dict(zip(BOUNDS, (x_min, x_max, y_min, y_max), strict=True))
    options = ScatterOptions.of(x, y, parse_selection(selection, "selection"), colour, bounds, points)

    async def work(core: SQLCore) -> Scatter:
        rows = await core.look(partial(scatter_rows, options=options), snapshot=True)
        return await scatter_of(core, options, rows, prices or PriceTable(), waits=True)

    params = {"x": x, "y": y, "colour": options.colour or NO_COLOUR, "points": points, **bounds}
    params = {name: value for name, value in params.items() if value is not None} | params_of(options.selection)
    return await read_figures(store, work, "/ui/scatter.json", params, Scatter.model_validate)


async def sample(store: Store, selection: str = "", *, size: int = SIZE, unrewarded: str = "failed:0") -> RolloutSample:
    """Return the ended rollouts of a selection that are farthest from the median reward or length, the farthest first.

    Args:
        store: a database, or the store of a server.
        selection: the rollouts as the query string of a list of rollouts, such as `step=300&mode=train`.
        size: the maximum number of rollouts, at most 200.
        unrewarded: how ended rollouts without a reward count: `out`, `failed:0` or `ended:0`.

    Raises:
        Invalid: an argument is not valid.
        TooLarge: the selection has more than 100,000 rollouts.
    """
    query, missing = parse_selection(selection, "selection"), MissingReward.parse(unrewarded)
    check_size(size)
    work = partial(sampled_rollouts, query=query, missing=missing, size=size)
    params = {"size": size, "unrewarded": str(missing), **params_of(query)}
    return await read_figures(
        store, lambda core: core.look(work, snapshot=True), "/ui/sample.json", params, RolloutSample.model_validate
    )


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """The curves of the page *Rewards*, and the sums of tokens and costs."""

    by: str | None
    """The axis: `step` or `time`; None if no rollout has a value on it."""
    unrewarded: str
    """How ended rollouts without a reward count, such as `failed:0`."""
    charts: list[Chart] = field(default_factory=list[Chart])
    """The rewards, dimensions, length, duration and failures, and the sums `tokens` and `cost`.

    The sums have the calls of all attempts, by the version of the attempt. By time, only ended rollouts count. The sums
    are left out if no call reported them, and if there is no index of usage.
    """
    markers: list[Marker] = field(default_factory=list[Marker])
    """The first uses of versions of resources, and notes."""
    events_behind: int = 0
    """The number of events of the log whose tokens and costs are not counted yet."""


async def curves(
    store: Store,
    *,
    by: By | None = None,
    modes: Sequence[RolloutMode] = (),
    names: Sequence[str] = (),
    reward_version: str | None = None,
    resources_id: str | None = None,
    unrewarded: str = "failed:0",
    prices: PriceTable | None = None,
) -> TrainingCurves:
    """Return rewards, lengths, failures, tokens and costs by step or by time, as the page *Rewards* shows them.

    Args:
        store: a database, or the store of a server.
        by: `step` or `time`; None for steps, or for time if no rollout has a step.
        modes: only rollouts with one of these modes; none for all.
        names: the dimensions of rewards with curves, at most 6.
        reward_version: the version of the rewards, such as `helpful@v2`; None for recorded rewards.
        resources_id: only rollouts with this id of resources, with a line per version.
        unrewarded: how ended rollouts without a reward count: `out`, `failed:0` or `ended:0`.
        prices: the prices of models; None for reported costs only. A server uses its prices instead.

    Raises:
        Invalid: an argument is not valid.
    """
    missing = MissingReward.parse(unrewarded)
    for mode in modes:
        if mode not in get_args(RolloutMode):
            raise Invalid("modes", f"{mode[:80]!r} must be one of {', '.join(get_args(RolloutMode))}")
    if by is not None and by not in get_args(By):
        raise Invalid("by", f"{by[:80]!r} must be one of {', '.join(get_args(By))}")
    if len(names) > MOST_NAMES:
        raise Invalid("names", f"has {len(names)} dimensions; give at most {MOST_NAMES}")
    if names and reward_version is not None:
        raise Invalid("names", "a version of rewards has one curve; leave out names or reward_version")
    for name in (*names, resources_id or ""):
        check_text(name, "names", LONGEST_ID)
    version = None if reward_version is None else version_key(reward_version)
    options = CurveOptions(by, tuple(modes), tuple(names), version, missing, resources_id)

    def decode(page: Any) -> TrainingCurves:
        charts = _CHARTS.validate_python(page["charts"] + page["usage_charts"])
        markers = _MARKERS.validate_python(page["markers"])
        return TrainingCurves(page["by"], str(missing), charts, markers, page["events_behind"])

    chosen = {"by": by, "reward_version": reward_version, "resources": resources_id, "unrewarded": str(missing)}
    params = {name: value for name, value in chosen.items() if value is not None}
    params |= {"mode": list(modes), "name": list(names)}
    work = partial(training_curves, options=options, prices=prices or PriceTable())
    return await read_figures(store, work, "/ui/rewards.json", params, decode)


async def training_curves(core: SQLCore, options: CurveOptions, prices: PriceTable) -> TrainingCurves:
    """Return the curves of a database. The index of usage first reads the log to its present end."""
    read = await core.look(partial(reward_curves, options=options), snapshot=True)
    if (along := read.along) is None:
        return TrainingCurves(None, str(options.missing))

    async def read_sums(session: ReadSession, lag: IndexLag) -> tuple[list[UsageSum], int]:
        return await usage_along(session, along, options.modes, options.resources_id), lag.events_behind

    sums, events_behind = await read_usage(core, read_sums, waits=True) or ([], 0)
    charts = read.charts + usage_charts(along, read.charts[0], sums, prices)
    return TrainingCurves(along.by, str(options.missing), charts, read.markers, events_behind)
