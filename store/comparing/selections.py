"""Selections of rollouts as text: the query string of the list of rollouts in the dashboard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args
from urllib.parse import parse_qs, urlencode, urlsplit

from store.db.queries.failures import FAILED
from store.db.queries.rollout_list import RANGED, Range, Ranged, RolloutListQuery
from store.errors import Invalid
from store.models import RolloutMode, RolloutStatus
from store.validation.scores import version_key

_TEXTS: Final = {
    "group": "group_id",
    "resources": "resources_id",
    "task": "task",
    "worker": "worker_id",
    "attempt": "attempt_status",
    "error": "error_type",
    "label": "label",
    "q": "id_contains",
}
"""The parameters whose value is a text, and the fields that they set."""
_WHOLE: Final = {"step": "step", "version": "resources_version"}
_LISTS: Final = {"mode": ("modes", get_args(RolloutMode)), "status": ("statuses", get_args(RolloutStatus))}
_BOUNDS: Final[tuple[tuple[Ranged, str, str], ...]] = tuple((name, f"{name}_min", f"{name}_max") for name in RANGED)
_BELOW: Final = "reward_below"
"""The parameter of an upper bound that the range excludes, such as the end of a bar of a histogram."""
PARAMETERS: Final = (
    *_LISTS, "id", *_TEXTS, *_WHOLE, "scan_match", "reward_version",
    *(bound for _, *bounds in _BOUNDS for bound in bounds), _BELOW,
)  # fmt: skip
"""The parameters that select rollouts."""
_OF_PAGES: Final = frozenset({"sort", "desc", "limit", "offset", "after", "before", "upto", "unrewarded", "col"})
"""The parameters of lists that do not select rollouts."""
_MOST_WHOLE: Final = 2**63 - 1


def parse_selection(text: str, field: str) -> RolloutListQuery:
    """Return the selection that a query string gives, such as `step_min=280&step_max=295`, or a URL that contains one.

    Raises:
        Invalid: the text is not a query string, or `selection_of` refuses a parameter.
    """
    return selection_of(params_in(text, field), field)


def params_in(text: str, field: str) -> dict[str, list[str]]:
    """Return the parameters of a query string, or of a URL that contains one.

    Raises:
        Invalid: the text is not a query string.
    """
    try:
        query = urlsplit(text).query if "?" in text else text
        return parse_qs(query, strict_parsing=bool(query), max_num_fields=1000)
    except ValueError:
        raise Invalid(
            field, f"{text[:80]!r} is no selection; write filters of the list of rollouts, such as step=300&mode=train"
        ) from None


def selection_of(params: Mapping[str, Sequence[str]], field: str) -> RolloutListQuery:
    """Return the selection that the parameters of a list of rollouts give. Parameters such as `sort` are ignored.

    Raises:
        Invalid: a parameter is unknown or has an invalid value; the message begins with `field`.
    """
    texts = {name: [text for text in values if text] for name, values in params.items() if name not in _OF_PAGES}
    for name in texts:
        if name not in PARAMETERS:
            raise Invalid(field, f"{name[:80]!r} is not a filter of rollouts; choose {', '.join(PARAMETERS)}")
    last = {name: values[-1] for name, values in texts.items() if values}
    fields: dict[str, Any] = {key: last[name] for name, key in _TEXTS.items() if name in last}
    if fields.get("attempt_status", FAILED[0]) not in FAILED:
        raise Invalid(field, f"attempt={last['attempt'][:80]} must be one of {', '.join(FAILED)}")
    for name, key in _WHOLE.items():
        if name in last:
            fields[key] = int(_number(field, name, last[name], is_whole=True))
    for name, (key, allowed) in _LISTS.items():
        for value in texts.get(name, ()):
            if value not in allowed:
                raise Invalid(field, f"{name}={value[:80]} must be one of {', '.join(allowed)}")
        fields[key] = tuple(dict.fromkeys(texts.get(name, ())))
    for name in ("reward_version", "scan_match"):
        fields[name] = version_key(last[name], name) if name in last else None
    return RolloutListQuery(ids=tuple(texts.get("id", ())), ranges=_ranges(field, last), **fields)


def _ranges(field: str, last: Mapping[str, str]) -> tuple[Range, ...]:
    ranges: list[Range] = []
    for name, low, high in _BOUNDS:
        least, most = (_number(field, bound, last[bound]) if bound in last else None for bound in (low, high))
        if name == "reward" and _BELOW in last:
            below = math.nextafter(_number(field, _BELOW, last[_BELOW]), -math.inf)
            most = below if most is None else min(most, below)
        if least is not None or most is not None:
            ranges.append(Range(name, least, most))
    return tuple(ranges)


def _number(field: str, name: str, text: str, *, is_whole: bool = False) -> float:
    try:
        number = int(text) if is_whole else float(text)
    except ValueError:
        kind = "an integer" if is_whole else "a number"
        raise Invalid(field, f"{name}={text[:80]} is not {kind}") from None
    limits = {"reward": math.inf, "ended": 1e12, "attempts": 2.0**31 - 1}
    most = _MOST_WHOLE if is_whole else limits.get(name.partition("_")[0], 2.0**53)
    if not math.isfinite(number) or abs(number) > most:
        raise Invalid(field, f"{name}={text[:80]} is outside the range of the column")
    return number


def params_of(query: RolloutListQuery) -> dict[str, list[str]]:
    """Return the parameters that give a selection, each with at least one value."""
    values: dict[str, Any] = {name: getattr(query, key) for name, key in (_TEXTS | _WHOLE).items()}
    values |= {"reward_version": query.reward_version, "scan_match": query.scan_match}
    for bounds in query.ranges:
        values |= {f"{bounds.of}_min": plain(bounds.least), f"{bounds.of}_max": plain(bounds.most)}
    params = {name: [str(value)] for name, value in values.items() if value is not None}
    lists = {"id": query.ids, **{name: getattr(query, key) for name, (key, _) in _LISTS.items()}}
    return params | {name: list(items) for name, items in lists.items() if items}


def text_of(query: RolloutListQuery) -> str:
    """Return the query string that gives a selection."""
    return urlencode(params_of(query), doseq=True)


def plain(number: float | None) -> float | None:
    """Return a whole number as an integer, so that its text does not end with `.0`; another number unchanged."""
    return int(number) if number is not None and abs(number) < 2**53 and number == int(number) else number


def step_range(first: int, last: int) -> Range:
    """Return the range of the steps from `first` to `last`, including both."""
    of: Ranged = "step"
    return Range(of, float(first), float(last))
