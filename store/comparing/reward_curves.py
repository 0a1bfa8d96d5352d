"""The charts of rewards, lengths, durations and failures of a store, with markers, for several pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

from store.comparing import curve_charts as curves
from store.db.dialect import ReadSession
from store.db.queries import curves as curve_queries
from store.db.queries.annotations import NoteOfRollout, last_notes
from store.db.queries.curves import Axis, By, CurveSource, VersionUse
from store.models.missing_rewards import FAILED_AS_ZERO, MissingReward
from store.validation.scores import VersionKey

MOST_MARKERS: Final = 24
"""With more versions of resources in a chart, none is marked: a training that publishes one per step has hundreds."""
MOST_NOTES: Final = 12
MOST_LINES: Final = 6
"""The maximum number of versions with a line of their own: the last ones."""


@dataclass(frozen=True, slots=True)
class CurveOptions:
    """The selection of the charts."""

    by: By | None = None
    """The axis; None for steps, or for time if no rollout has a step."""
    modes: Sequence[str] = ()
    """Only rollouts with one of these modes; an empty sequence means all rollouts."""
    names: Sequence[str] = ()
    """The dimensions that get charts of their own."""
    reward_version: VersionKey | None = None
    """The version of the rewards; None for recorded rewards."""
    missing: MissingReward = FAILED_AS_ZERO
    resources_id: str | None = None
    """Only rollouts with this id of resources, with one line per version; None for lines by mode only."""
    task: str | None = None
    """Only rollouts whose input has this SHA-256 hash."""


@dataclass(frozen=True, slots=True)
class RewardCurves:
    """The charts, and what their bins and markers show."""

    along: Axis | None
    """The axis; None if no rollout has a value on it."""
    charts: list[curves.Chart] = field(default_factory=list[curves.Chart])
    """The chart of rewards, those of the dimensions, and those of length, duration and failures that have data."""
    bins: list[curves.Bin] = field(default_factory=list[curves.Bin])
    markers: list[curves.Marker] = field(default_factory=list[curves.Marker])
    uses: list[VersionUse] = field(default_factory=list[VersionUse])
    """The versions of resources that rollouts use."""


async def axis(session: ReadSession, options: CurveOptions) -> Axis | None:
    """Return the axis of the charts; None if no rollout has a value on it."""
    for by in (options.by,) if options.by else get_args(By):
        if along := await curve_queries.axis(session, by, options.modes, options.task):
            return along
    return None


async def reward_curves(session: ReadSession, options: CurveOptions, along: Axis | None = None) -> RewardCurves:
    """Return the charts of the rollouts of a store.

    Args:
        session: a session that reads one state of the store.
        options: the selection of the charts.
        along: the axis, if it was read before.
    """
    along = along or await axis(session, options)
    if along is None:
        return RewardCurves(None)
    version, missing = options.reward_version, options.missing
    title = f"Reward {version}" if version else "Reward"
    cells, edges, centre = await _cells(session, options, along, None)
    charts = [curves.reward_chart(along, cells, missing, "reward", title, centre)]
    for index, name in enumerate(options.names):
        of_name, _, middle = await _cells(session, options, along, name)
        charts.append(curves.reward_chart(along, of_name, missing, f"reward-{index}", f"Reward “{name}”", middle))
    charts += curves.other_charts(along, cells)
    uses = await curve_queries.version_uses(session, options.modes)
    notes = await last_notes(session, MOST_NOTES)
    return RewardCurves(along, charts, curves.histogram(cells, edges), markers_of(along, uses, notes), uses)


async def _cells(
    session: ReadSession, options: CurveOptions, along: Axis, name: str | None
) -> tuple[list[curve_queries.Cell], list[float], float]:
    """Return the cells of the rewards or of a dimension, the edges of their bins, and the centre of the rewards."""
    version, task = options.reward_version, options.task
    source = CurveSource(name, version, options.modes, options.resources_id, task)
    sample = await curve_queries.sample(session, source)
    edges = curves.edges_for(sample)
    middle = sorted(sample)[len(sample) // 2] if sample else 0.0
    centre = middle if abs(middle) < 1e140 else 0.0
    source = CurveSource(name, version, options.modes, options.resources_id, task, centre)
    cells = await curve_queries.cells(session, source, along, edges)
    if options.resources_id is not None:
        last = sorted({cell.version for cell in cells if cell.version is not None})[-MOST_LINES:]
        cells = [cell for cell in cells if cell.version in last]
    return cells, edges, centre


def markers_of(along: Axis, uses: Sequence[VersionUse], notes: Sequence[NoteOfRollout]) -> list[curves.Marker]:
    """Return the marks of the first uses of versions of resources, and of notes, sorted along the axis."""
    scale = 1 if along.by == "step" else 1_000_000
    several = len({use.resources_id for use in uses}) > 1
    markers: list[curves.Marker] = []
    for use in uses:
        first = use.first_step if along.by == "step" else use.first_end_at
        if first is not None:
            label = f"{use.resources_id} v{use.version}" if several else f"v{use.version}"
            title = f"{use.resources_id} v{use.version}, first used here, {use.rollouts:,} rollouts"
            markers.append(curves.Marker(first / scale, label, title, use.resources_id, use.version))
    if len(markers) > MOST_MARKERS:
        markers = []
    for note in notes:
        at = note.step if along.by == "step" else note.end_at
        if at is not None:
            markers.append(curves.Marker(at / scale, "note", note.text or "–", rollout_id=note.rollout_id))  # noqa: RUF001
    return sorted(markers, key=lambda marker: (marker.at, marker.label))
