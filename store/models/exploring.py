"""Points of two numbers of rollouts, and the rollouts that are farthest from the median. Decision 124."""

from __future__ import annotations

from store.models.enums import Frozen


class ScatterPoint(Frozen):
    """A rollout with two numbers."""

    rollout_id: str
    x: float
    y: float
    colour: str | None
    """The value by which the point is coloured; None without colours.

    It is the outcome (`succeeded`, `failed`, `cancelled` or `open`), the version of the resources such as `v2`, the
    mode, or `variance`, `no variance` or `no group`.
    """


class ScatterBox(Frozen):
    """A rectangle of a scatter plot. A bound is None if there is no limit."""

    x_min: float | None
    x_max: float | None
    y_min: float | None
    y_max: float | None
    points: int
    """The number of points in the box."""
    selection: str | None
    """The query string of the list of the rollouts in the box; None if it would have to name no point or too many."""
    names_points: bool
    """Whether the selection names the points by id, because a number has no filter.

    Rollouts that are not drawn are then missing.
    """


class Scatter(Frozen):
    """Two numbers of the rollouts of a selection."""

    x: str
    """The name of the first number, such as `step`."""
    y: str
    colour: str | None
    """The field by which points are coloured, such as `status`; None without colours."""
    selection: str
    """The rollouts as the query string of a list of rollouts."""
    matching: int
    """The number of rollouts of the selection that have both numbers, as far as a filter can tell.

    Calls, costs and numbers of the metadata are read for the sample only.
    """
    sampled: int
    """The number of these rollouts that were read: all, or a sample with the same rollouts in each call."""
    points: list[ScatterPoint]
    """The rollouts that were read and have both numbers, by rollout id."""
    events_behind: int
    """The number of events of the log whose calls and costs are not counted yet; 0 without these numbers."""
    box: ScatterBox | None
    """The box; None without a bound."""


class Spread(Frozen):
    """The middle and the spread of some numbers."""

    count: int
    median: float | None
    """None without numbers."""
    deviation: float | None
    """The median of the distances from the median; their mean if more than half of the numbers are equal."""


class SampledRollout(Frozen):
    """A rollout of a sample, and how far it is from the median of all rollouts."""

    rollout_id: str
    task: str
    """The SHA-256 hash of the input."""
    text: str | None
    """The beginning of the input; None if it was removed."""
    status: str
    step: int | None
    reward: float | None
    """The recorded reward."""
    counted: float | None
    """The value as which the reward counts; None if it is left out."""
    tokens_out: int | None
    """None if no span of the rollout reported usage."""
    distance: float
    """The greater of both distances, in deviations."""
    reward_distance: float | None
    """The distance of `counted` from its median, in deviations; None if it is left out."""
    tokens_distance: float | None
    error_type: str | None


class RolloutSample(Frozen):
    """The rollouts of a selection that are farthest from the median reward or the median length, the farthest first."""

    selection: str
    """The rollouts as the query string of a list of rollouts."""
    unrewarded: str
    """How ended rollouts without a reward count: `out`, or for example `failed:0`."""
    ended: int
    rewarded: int
    """The number of ended rollouts with a reward."""
    reward: Spread
    tokens: Spread
    """The output tokens of ended rollouts with known usage."""
    rollouts: list[SampledRollout]
