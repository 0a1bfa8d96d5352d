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
    "build_models",
]

StatusCode = Literal["UNSET", "OK", "ERROR"]

FilterLogic = Literal["and", "or"]
SortOrder = Literal["asc", "desc"]

TaskInput = Any
"""The task of an agent: any JSON value."""


class Unset(Enum):
    """The type of `UNSET`, the default of arguments for which None is a valid value."""

    UNSET = "UNSET"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class Frozen(BaseModel):
    """A value returned by the store: its fields cannot be set, and unknown keys on input are dropped.

    The validator of a model is built when it is first used. Commands use only a few of the models.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)


class Open(Frozen):
    """A value that keeps unknown keys and returns them unchanged."""

    model_config = ConfigDict(extra="allow")


def build_models() -> None:
    """Build the validators of all models, also of models that are defined later, so that no call waits for a build.

    Servers, and stores that write, call this function when they start.
    """
    pending: list[type[BaseModel]] = [Frozen]
    while pending:
        model = pending.pop()
        model.model_config["defer_build"] = False
        model.model_rebuild()
        pending.extend(model.__subclasses__())


class Resource(Frozen):
    """A value with a `resource_type`, which is required on input because it selects the class."""

    resource_type: Any
