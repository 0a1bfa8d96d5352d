"""The filters of the list of rollouts: the query that the parameters give, the fields of the form, and chips."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar, get_args

from store.dashboard.request import PageRequest
from store.dashboard.views.ranges import RANGE_PARAMETERS, field_text, range_bound, ranges_from
from store.db.queries.failures import FAILED
from store.db.queries.rollout_list import RANGED, SORTS, RolloutListQuery
from store.errors import Invalid
from store.models import RolloutMode, RolloutStatus
from store.models.missing_rewards import MissingReward
from store.validation.scores import version_key

T = TypeVar("T")

TEXT_FIELDS: Final = (
    ("mode", "Mode"),
    ("attempt", "Attempt outcome"),
    ("label", "Label"),
    ("group", "Group"),
    ("step", "Step"),
    ("resources", "Resources"),
    ("version", "Version"),
    ("worker", "Worker"),
    ("error", "Error type"),
    ("scan_match", "Scanner match"),
    ("reward_version", "Reward version"),
)
"""The parameters of the fields with one value, and their labels."""
RANGE_LABELS: Final = {
    "reward": "Reward",
    "step": "Steps",
    "tokens": "Tokens out",
    "duration": "Duration, s",
    "ended": "Ended, UTC",
    "tokens_in": "Tokens in",
    "spans": "Spans",
    "attempts": "Attempts",
}
_RARE_RANGES: Final = frozenset({"tokens_in", "spans", "attempts"})
"""The ranges that the form shows only if the address has one of their bounds."""
_OTHER_CHIPS: Final = (("q", "Id contains"), ("task", "Task"))
NARROWING: Final = ("q", "status", "id", "task", *(name for name, _ in TEXT_FIELDS), *RANGE_PARAMETERS)
"""The parameters that exclude rollouts from the list, and the parameter that sets the version of the rewards."""
_MOST_IDS_IN_CHIP: Final = 3
_LONG_HASH: Final = 12


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is applied, and the address of the page without it."""

    label: str
    value: str
    without: str


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of the form."""

    name: str
    label: str
    value: str
    error: str | None
    """The reason for the refusal of the value; None if it is valid."""
    choices: Sequence[str] = ()
    """The values of a selection; empty for a field for text."""


@dataclass(frozen=True, slots=True)
class RangeFields:
    """The two fields of a range."""

    label: str
    low: FormField
    high: FormField
    type: str


@dataclass(frozen=True, slots=True)
class RolloutFilters:
    """The filters of a request."""

    query: RolloutListQuery
    missing: MissingReward
    errors: dict[str, str] = field(default_factory=dict[str, str])
    """The reason for the refusal of a value, by parameter. The query has no condition for these parameters."""


def read_filters(request: PageRequest) -> RolloutFilters:
    """Return the filters that the parameters give.

    A filter with an invalid value is left out and named in `errors`, so that a form can mark its field.

    Raises:
        Invalid: a parameter is invalid, and it is not a filter, or the request is for the JSON twin.
    """
    errors: dict[str, str] = {}

    def valid(read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except Invalid as error:
            if request.is_twin:
                raise
            errors[error.field] = error.reason
            return default

    bounds = {name: valid(partial(range_bound, request, name), None) for name in RANGE_PARAMETERS}
    query = RolloutListQuery(
        statuses=request.several_among("status", get_args(RolloutStatus)),
        modes=valid(lambda: request.several_among("mode", get_args(RolloutMode)), []),
        ids=request.several("id"),
        group_id=request.one("group") or None,
        step=valid(lambda: request.maybe_whole("step", least=-(2**63), most=2**63 - 1), None),
        resources_id=request.one("resources") or None,
        resources_version=valid(lambda: request.maybe_whole("version"), None),
        task=request.one("task") or None,
        worker_id=request.one("worker") or None,
        attempt_status=valid(lambda: request.among("attempt", ("", *FAILED), "") or None, None),
        error_type=request.one("error") or None,
        label=request.one("label") or None,
        scan_match=valid(lambda: version_key(request.one("scan_match"), "scan_match"), None)
        if request.one("scan_match")
        else None,
        reward_version=valid(request.reward_version, None),
        ranges=ranges_from(bounds),
        id_contains=request.one("q") or None,
        sort=request.among("sort", list(SORTS), "started"),
        is_descending=request.among("desc", ("0", "1"), "1") == "1",
        limit=request.rows,
        offset=request.whole("offset", 0),
        after=request.maybe_whole("after"),
        before=request.maybe_whole("before"),
        upto=request.maybe_whole("upto"),
    )
    return RolloutFilters(query, request.missing_reward(), errors)


def form_fields(request: PageRequest, errors: dict[str, str]) -> list[FormField]:
    """Return the fields of the form with one value each."""
    choices = {"mode": get_args(RolloutMode), "attempt": FAILED}
    return [
        FormField(name, label, request.one(name), errors.get(name), choices.get(name, ()))
        for name, label in TEXT_FIELDS
        if name not in {"scan_match", "reward_version"} or request.one(name)
    ]


def range_fields(request: PageRequest, errors: dict[str, str]) -> list[RangeFields]:
    """Return the fields of the ranges."""

    def bound(name: str, end: str, label: str) -> FormField:
        parameter = f"{name}_{end}"
        if name == "reward" and end == "max" and request.one("reward_below"):
            parameter = "reward_below"
        text = field_text(parameter, request.one(parameter)) if request.one(parameter) else ""
        return FormField(parameter, label, text, errors.get(parameter))

    return [
        RangeFields(
            RANGE_LABELS[name],
            bound(name, "min", f"{RANGE_LABELS[name]}, from"),
            bound(name, "max", f"{RANGE_LABELS[name]}, to"),
            "datetime-local" if name == "ended" else "text",
        )
        for name in RANGED
        if name not in _RARE_RANGES or request.one(f"{name}_min") or request.one(f"{name}_max")
    ]


def chips(plain: PageRequest) -> Iterator[Chip]:
    """Yield the filters that are applied, except those on statuses, in the order of the form."""
    for name, label in (*_OTHER_CHIPS, *TEXT_FIELDS):
        values = plain.several(name)
        if values:
            # Several modes can be chosen. Of any other parameter, only the last value counts.
            text = ", ".join(values) if name == "mode" else values[-1]
            yield Chip(label, f"{text[:_LONG_HASH]}…" if name == "task" else text, plain.here(**{name: None}))
    ids = plain.several("id")
    if ids:
        text = f"{len(ids):,} chosen" if len(ids) > _MOST_IDS_IN_CHIP else ", ".join(ids)
        yield Chip("Rollouts", text, plain.here(id=None))
    for name in RANGED:
        parameters = [f"{name}_min", f"{name}_max", *(["reward_below"] if name == "reward" else [])]
        low, high, *below = (plain.one(parameter) for parameter in parameters)
        if any((low, high, *below)):
            yield Chip(
                RANGE_LABELS[name].partition(",")[0],
                _range_text(name, low, high or "", *below),
                plain.here(**dict.fromkeys(parameters)),
            )


def _range_text(name: str, low: str, high: str, below: str = "") -> str:
    unit = " s" if name == "duration" else ""
    start, end, edge = (
        f"{field_text(name, text).replace('T', ' ')}{unit}" if text else "" for text in (low, high, below)
    )
    if start and end:
        return start if start == end else f"{start} to {end}"
    if edge:
        return f"{start} to below {edge}" if start else f"below {edge}"
    return f"from {start}" if start else f"up to {end}"


def command_of(query: RolloutListQuery) -> str:
    """Return the command that lists the rollouts of a query. A comment names the filters that it has no option for."""
    ranges = {limits.of: limits for limits in query.ranges}
    reward = ranges.get("reward")
    options: list[tuple[str, object]] = [
        *(("status", status) for status in query.statuses),
        *(("mode", mode) for mode in query.modes),
        *(("id", rollout_id) for rollout_id in query.ids),
        ("id-contains", query.id_contains),
        ("group", query.group_id),
        ("step", query.step),
        ("resources-id", query.resources_id),
        ("resources-version", query.resources_version),
        ("scan-match", query.scan_match),
        ("reward-version", query.reward_version),
        ("reward-min", reward and reward.least),
        ("reward-max", reward and reward.most),
    ]
    absent = {
        "task": query.task,
        "worker": query.worker_id,
        "attempt outcome": query.attempt_status,
        "error type": query.error_type,
        "label": query.label,
        **{f"range of {name}": "set" for name in ranges if name != "reward"},
        "sorting": query.sort if query.sort != "started" else None,
    }
    words = ["rollbook", "ls", "rollouts", *(["--desc"] if query.is_descending else [])]
    words += [word for name, value in options if value is not None for word in (f"--{name}", str(value))]
    missing = ", ".join(name for name, value in absent.items() if value is not None)
    return f"{shlex.join([*words, '-n', str(query.limit)])}{f'  # without {missing}' if missing else ''}"
