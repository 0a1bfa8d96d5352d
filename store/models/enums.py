"""Base classes of all models, and enumerations as literal types.

Models are frozen and ignore unknown keys. Validation converts values that convert without loss (`"2"`, `9.0` and `true`
to int, `"12.5"` to float), refuses all others, and never converts a number to a string. A dump contains every field;
the value of a field that was not set is its default, often None.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from store.domain.statuses import AttemptStatus, RolloutMode, RolloutStatus, WorkerState, WorkerStatus

__all__ = [
    "UNSET",
    "AttemptStatus",
    "FilterLogic",
    "Frozen",
    "Open",
    "Resource",
    "RolloutMode",
    "RolloutStatus",
    "SortOrder",
    "StatusCode",
    "TaskInput",
    "Unset",
    "WorkerState",
    "WorkerStatus",
]

StatusCode = Literal["UNSET", "OK", "ERROR"]

FilterLogic = Literal["and", "or"]
SortOrder = Literal["asc", "desc"]

TaskInput = Any
"""The task of an agent: any JSON value."""


class Unset(Enum):
    """The type of `UNSET`, which stands for an argument that was not given where None is a valid value."""

    UNSET = "UNSET"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class Frozen(BaseModel):
    """A value returned by the store: its fields cannot be set, and unknown keys on input are dropped."""

    model_config = ConfigDict(frozen=True)


class Open(Frozen):
    """A value that keeps unknown keys and returns them unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Resource(Frozen):
    """A value with a `resource_type`, which is required on input because it selects the class."""

    resource_type: Any
