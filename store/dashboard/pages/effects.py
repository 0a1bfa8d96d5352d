"""The pages of effects: the effects of versions of resources, and the comparison of two selections of rollouts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, get_args

from store.comparing.partitions import PARAMETER, PlacedSelection, compared_partitions, placed_comparison
from store.comparing.reading import compared_selections, selections_of, version_changes, version_effect
from store.comparing.selections import params_of, selection_of, text_of
from store.comparing.usage_measures import with_usage
from store.comparing.windows import MOST_STEPS, STEPS, ResourcesVersion, StepWindows, windows_of
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views import compared
from store.dashboard.views.costs import prices_of
from store.dashboard.views.figure_cache import cache_of
from store.db.dialect import ReadSession
from store.db.queries.compared_rollouts import StepMean, VersionStep, step_means, version_steps
from store.db.queries.rollout_list import RolloutListQuery
from store.errors import NotFound, Unsupported
from store.models import RolloutMode
from store.models.comparisons import SelectionComparison, VersionEffect
from store.models.missing_rewards import MissingReward
from store.sql.core import SQLCore
from store.sql.database import database_of

T = TypeVar("T")

pages = Pages()

ANY: Final = "any"
MODES: Final = (*get_args(RolloutMode), ANY)
PAIRS: Final = ("task", "nothing")
FORM: Final = (
    ("mode", "Mode"),
    ("step_min", "Steps from"),
    ("step_max", "to"),
    ("resources", "Resources"),
    ("version", "Version"),
    ("group", "Group"),
    ("worker", "Worker"),
    ("label", "Label"),
)
"""The parameters of a selection for which the form always has a field, and the labels of the fields."""


@dataclass(frozen=True, slots=True)
class EffectOptions:
    """The parameters that all pages of effects have."""

    missing: MissingReward
    mode: str | None
    steps: int
    pairs: bool

    @classmethod
    def of(cls, request: PageRequest) -> EffectOptions:
        """Return the parameters of a request.

        Raises:
            Invalid: a parameter is not valid.
        """
        mode = request.among("mode", MODES, "train")
        return cls(
            request.missing_reward(),
            None if mode == ANY else mode,
            request.whole("steps", STEPS, least=1, most=MOST_STEPS),
            request.among("pair", PAIRS, PAIRS[0]) == PAIRS[0],
        )

    def drawing(self, comparison: SelectionComparison | None = None) -> dict[str, Any]:
        """Return the functions and the values by which templates draw a comparison."""
        return {
            "draw": compared,
            "scale": comparison and compared.interval_scale(comparison.reward, comparison.tasks),
            "modes": MODES,
            "options": self,
        }


def cached(
    request: PageRequest, key: Hashable, compute: Callable[[ReadSession], Awaitable[T]]
) -> Callable[[ReadSession], Awaitable[T]]:
    """Return a read that computes figures only if the log has changed since a request with the same key."""
    return partial(cache_of(request.store.core).read, key=key, compute=compute)


@pages.get("/ui/effects")
async def effects(request: PageRequest) -> PageContent:
    """List the versions of resources with their effects on the rewards, the latest first.

    The parameters are `mode` (`any` for all), `steps` (of each window), and `unrewarded`.
    """
    options = EffectOptions.of(request)
    work = partial(version_changes, missing=options.missing, mode=options.mode, steps=options.steps, limit=request.rows)
    changes = await request.store.core.look(cached(request, ("effects", options, request.rows), work), snapshot=True)
    values = {"effects": changes, "mode": options.mode, "steps": options.steps, "unrewarded": str(options.missing)}
    scale = compared.IntervalScale.of([change.reward.difference for change in changes])
    return PageContent("effects.html", values, "Effects", hidden=options.drawing() | {"scale": scale})


@dataclass(frozen=True, slots=True)
class _Figures:
    effect: VersionEffect | None
    windows: list[StepWindows]
    """The windows of all versions that have an effect."""
    used: list[VersionStep]
    means: list[StepMean]


@pages.get("/ui/effects/{resources_id}")
async def effect(request: PageRequest) -> PageContent:
    """Show the effect of one version of resources, by default of the latest version that has an effect.

    The parameters are `version`, `mode`, `steps`, `unrewarded`, and `pair` (`task` or `nothing`).
    """
    options, resources_id = EffectOptions.of(request), request.ids["resources_id"]
    version = request.maybe_whole("version", least=1)
    if await request.store.get_resources_by_id(resources_id) is None:
        raise NotFound("resources", resources_id)

    async def work(session: ReadSession) -> _Figures:
        used = await version_steps(session, options.mode, resources_id)
        windows = windows_of(used, options.steps)
        number = version or max((entry.of.version for entry in windows), default=None)
        means = await step_means(session, options.missing, options.mode, resources_id)
        if number is None:
            return _Figures(None, windows, used, means)
        answer = await version_effect(
            session,
            ResourcesVersion(resources_id, number),
            options.missing,
            mode=options.mode,
            steps=options.steps,
            pairs=options.pairs,
        )
        return _Figures(answer, windows, used, means)

    read = cached(request, ("effect", resources_id, version, options), work)
    figures = await request.store.core.look(read, snapshot=True)
    answer = figures.effect
    if answer is not None:
        core = request.store.core
        comparison = await with_usage([core, core], answer.comparison, prices_of(request))
        answer = answer.model_copy(update={"comparison": comparison})
    values = {
        "resources_id": resources_id,
        "effect": answer,
        "versions": [
            {"version": entry.of.version, "against": entry.against, "step": entry.step} for entry in figures.windows
        ],
        "steps": figures.means,
    }
    title = f"Effect of {resources_id}{f' v{answer.version}' if answer else ''}"
    hidden = options.drawing(answer and answer.comparison) | {"curve": _curve(figures)}
    if answer is not None:
        windows = next(entry for entry in figures.windows if entry.of.version == answer.version)
        a, b = (text_of(selection) for selection in selections_of(windows, options.mode))
        hidden |= {"cohorts": request.url("cohorts", a=a, b=b, unrewarded=options.missing.param)}
    return PageContent("effect.html", values, title, hidden=hidden)


def _curve(figures: _Figures) -> compared.StepCurve | None:
    if figures.effect is None:
        return None
    firsts: dict[int, int] = {}
    for row in figures.used:
        firsts.setdefault(row.resources_version, row.step)
    return compared.step_curve(
        [(mean.step, mean.mean_counted) for mean in figures.means],
        [
            ("a", figures.effect.a_steps[0], figures.effect.a_steps[-1]),
            ("b", figures.effect.b_steps[0], figures.effect.b_steps[-1]),
        ],
        list(firsts.items()),
    )


@pages.get("/ui/cohorts")
async def cohorts(request: PageRequest) -> PageContent:
    """Compare two selections of rollouts.

    The parameters `a` and `b` are query strings of the list of rollouts, such as `a=step%3D300%26mode%3Dtrain`. The
    parameters `a.step`, `b.mode` and so on change one filter of a selection. A selection may have a
    parameter `partition`. The others are `unrewarded` and `pair`.
    """
    options = EffectOptions.of(request)
    a, b = (_selection(request, side) for side in ("a", "b"))
    comparison: SelectionComparison | None = None
    if a is not None and b is not None:
        async with AsyncExitStack() as opened:
            cores = [await _core(request, opened, selection) for selection in (a, b)]
            if cores[0] is cores[1]:
                work = partial(compared_selections, a=a.query, b=b.query, missing=options.missing, pairs=options.pairs)
                # Rollouts of another partition can change without a commit of the partition whose figures are cached.
                is_here = cores[0] is request.store.core
                key = ("cohorts", text_of(a.query), text_of(b.query), options)
                read = cached(request, key, work) if is_here else work
                comparison = placed_comparison(await cores[0].look(read, snapshot=True), a, b)
            else:
                comparison = await compared_partitions(cores, a, b, options.missing, pairs=options.pairs)
            comparison = await with_usage(cores, comparison, prices_of(request))
    values = {
        "a": None if a is None else a.text,
        "b": None if b is None else b.text,
        "comparison": comparison,
    }
    nothing = PlacedSelection(None, RolloutListQuery())
    forms = [_form(request, side, selection or nothing) for side, selection in (("a", a), ("b", b))]
    hidden = options.drawing(comparison) | {"forms": forms}
    return PageContent("cohorts.html", values, "Compare selections", hidden=hidden)


async def _core(request: PageRequest, opened: AsyncExitStack, selection: PlacedSelection) -> SQLCore:
    """Return the partition of a selection, which stays open until `opened` is closed.

    Raises:
        Forbidden: the key of the visitor is not valid for the partition.
        NotFound: the partition does not exist.
        Unsupported: the program that shows the page opens no other partitions.
    """
    if selection.partition in {None, request.partition}:
        return request.store.core
    open_partition = request.extra.get("open_partition")
    if open_partition is None:
        raise Unsupported("access to other partitions", "this program")
    database = database_of(await opened.enter_async_context(open_partition(selection.partition)))
    if database is None:
        raise Unsupported("Rollbook database", f"the partition {selection.partition}")
    return database.core


def _selection(request: PageRequest, side: str) -> PlacedSelection | None:
    """Return the selection of a side; None if no parameter gives it."""
    changed = {
        name.removeprefix(f"{side}."): list(values)
        for name, values in request.params.items()
        if name.startswith(f"{side}.")
    }
    if side not in request.params and not changed:
        return None
    selection = PlacedSelection.parse(request.one(side), side)
    if not changed:
        return selection
    partition = (changed.pop(PARAMETER, None) or [selection.partition or ""])[-1] or None
    return PlacedSelection.of(partition, selection_of(params_of(selection.query) | changed, side), side)


@dataclass(frozen=True, slots=True)
class SideForm:
    """The form of one side of a comparison."""

    name: str
    fields: list[tuple[str, str, str]]
    """The names, labels and values of the fields."""
    others: list[tuple[str, str]]
    """The names and values of the other parameters of the selection."""


def _form(request: PageRequest, side: str, selection: PlacedSelection) -> SideForm:
    params = params_of(selection.query)
    fields = [(f"{side}.{name}", label, params.pop(name, [""])[-1]) for name, label in FORM]
    if selection.partition is not None or len(request.partitions) > 1:
        fields.append((f"{side}.{PARAMETER}", "Partition", selection.partition or ""))
    return SideForm(side, fields, [(f"{side}.{name}", value) for name in params for value in params[name]])
