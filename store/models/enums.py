"""What all models share, and the closed word lists.

Models are frozen and silent about keys they do not know. Validation converts what converts without loss (`"2"`, `9.0`
and `true` for an int, `"12.5"` for a float), refuses the rest, and never turns a number into a string. Every field
appears in a dump, absent values as None.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

RolloutStatus = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
RolloutMode = Literal["train", "val", "test"]
WorkerStatus = Literal["idle", "busy", "unknown"]
StatusCode = Literal["UNSET", "OK", "ERROR"]

FilterLogic = Literal["and", "or"]
SortOrder = Literal["asc", "desc"]

TaskInput = Any
"""What an agent is asked to do: any JSON value."""


class Unset(Enum):
    """The type of `UNSET`: an argument that was not given, where None is a value of its own."""

    UNSET = "UNSET"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class Frozen(BaseModel):
    """A value handed out by the store: its fields cannot be set, and unknown keys on input are dropped."""

    model_config = ConfigDict(frozen=True)


class Open(Frozen):
    """A value that keeps unknown keys and gives them back as they came."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Resource(Frozen):
    """Anything with a `resource_type`, which must be named on input: it chooses the class."""

    resource_type: Any
