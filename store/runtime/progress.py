"""The progress of an operation, and the type of the function that receives it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Step = Literal[
    "copying the log",
    "computing the tables",
    "removing other payload from the archive",
    "compressing",
    "comparing the tables",
    "checking the log",
    "counting payload",
    "removing payload",
    "searching",
    "freeing space",
]


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """The progress of one step of an operation."""

    step: Step
    done: int = 0
    """The number of events or rollouts that are done."""
    total: int | None = None
    """The number of events or rollouts in the whole step; None if the progress of this step is not known."""
    unit: Literal["events", "rollouts"] = "events"


OnProgress = Callable[[OperationProgress], None]
"""Function that is called, in any thread, at the beginning of each step and after each part of a step."""


def ignore(progress: OperationProgress) -> None:
    """Do nothing."""
    del progress
