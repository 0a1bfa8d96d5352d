"""Policies of retention. A policy selects rollouts whose payload is removed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from store.db.queries.removal import Selection
from store.models import RolloutMode
from store.models.enums import Frozen
from store.operations.choices import validated

FinishedStatus = Literal["succeeded", "failed", "cancelled"]
FINISHED: tuple[FinishedStatus, ...] = ("succeeded", "failed", "cancelled")


def _without_null(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains the null character (U+0000), which is not allowed in names; remove it")
    return text


_MOST_SECONDS = 100 * 365 * 86_400
_Name = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_without_null)]
_Names = Annotated[tuple[_Name, ...], Field(max_length=10)]
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
_SIZES = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


class RetentionPolicy(Frozen):
    """Conditions on rollouts whose payload is removed. A rollout must fulfil all conditions.

    Only rollouts with a terminal status are selected. At least one condition is required. `RetentionPolicy.of` makes a
    policy, and raises `Invalid` if a condition is invalid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    older_than: Annotated[float, Field(gt=0, le=_MOST_SECONDS, allow_inf_nan=False)] | None = None
    """The minimum time since the end of the rollout, in seconds; at most 100 years."""
    statuses: tuple[FinishedStatus, ...] = ()
    modes: tuple[RolloutMode, ...] = ()
    groups: _Names = ()
    labels: _Names = ()
    """The rollout has all of these labels."""
    without_labels: _Names = ()
    """The rollout has none of these labels."""
    keep_last: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """The number of rollouts of each group that are kept, with any status. The rollouts created last are kept.

    All rollouts without a group are one group.
    """
    max_bytes: Annotated[int, Field(ge=0)] | None = None
    """Payload is removed only until all bodies of the store together have at most this size as they are stored.

    The payload of the rollouts that ended first is removed first.
    """

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if not self.model_fields_set or all(getattr(self, name) in (None, ()) for name in type(self).model_fields):
            raise ValueError("give at least one condition; without one, the payload of all rollouts would be removed")
        if both := set(self.labels) & set(self.without_labels):
            raise ValueError(f"no rollout both has and lacks the label {min(both)!r}")
        return self

    @classmethod
    def of(cls, **conditions: Any) -> Self:
        """Return a policy with these conditions.

        Raises:
            Invalid: a condition is unknown or has an invalid value, or there is no condition.
        """
        return validated(cls, conditions, "policy")

    def selection(self, now: int) -> Selection:
        """Return the conditions on rollouts, without `max_bytes`. `now` is the time in µs since the epoch."""
        return Selection(
            statuses=self.statuses or FINISHED,
            ended_before=None if self.older_than is None else now - round(self.older_than * 1_000_000),
            modes=self.modes,
            groups=self.groups,
            labels=self.labels,
            without_labels=self.without_labels,
            newest_kept=self.keep_last or 0,
        )

    def __str__(self) -> str:
        lists = {
            "status": self.statuses,
            "mode": self.modes,
            "group": self.groups,
            "label": self.labels,
            "without label": self.without_labels,
        }
        parts = [] if self.older_than is None else [f"older than {_in_units(self.older_than, _UNITS)}"]
        parts += [f"{name} {', '.join(values)}" for name, values in lists.items() if values]
        parts += [] if self.keep_last is None else [f"keep last {self.keep_last}"]
        parts += [] if self.max_bytes is None else [f"max size {_in_units(self.max_bytes, _SIZES)}"]
        return "; ".join(parts)


def _in_units(value: float, units: tuple[tuple[str, int], ...]) -> str:
    unit, factor = next(
        ((unit, factor) for unit, factor in units if value >= factor and value % factor == 0), units[-1]
    )
    return f"{value / factor:.12g}{unit}" if value else f"0{unit}"
