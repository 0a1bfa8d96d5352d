"""Conditions that select rollouts by ranges, such as the rollouts behind a point of a curve or a bar of a histogram.

A rollout is a task for an agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from sqlalchemy import ColumnElement, literal

from store.db.columns import Number
from store.db.reports.conditions import big
from store.db.tables import core as core_tables
from store.runtime.clock import MICROSECONDS

Ranged = Literal["reward", "step", "ended"]
RANGED: Final[tuple[Ranged, ...]] = get_args(Ranged)


@dataclass(frozen=True, slots=True)
class Range:
    """A range of rewards, of training steps, or of end times.

    The minimum and the maximum are optional and belong to the range, except that the maximum of end times does not
    belong to the range. End times are seconds since the epoch.
    """

    of: Ranged
    least: float | None
    most: float | None


def within(ranges: Iterable[Range]) -> list[ColumnElement[bool]]:
    """Return the conditions that a rollout is in all ranges. A rollout without a value for a range is not in it."""
    rollout = core_tables.rollouts.c
    found: list[ColumnElement[bool]] = []
    for each in ranges:
        if each.of == "reward":
            if each.least is not None:
                found.append(rollout.last_reward >= literal(each.least, Number))
            if each.most is not None:
                found.append(rollout.last_reward <= literal(each.most, Number))
        elif each.of == "step":
            if each.least is not None:
                found.append(rollout.step >= big(math.ceil(each.least)))
            if each.most is not None:
                found.append(rollout.step <= big(math.floor(each.most)))
        else:
            if each.least is not None:
                found.append(rollout.end_at >= big(round(each.least * MICROSECONDS)))
            if each.most is not None:
                found.append(rollout.end_at < big(round(each.most * MICROSECONDS)))
    return found
