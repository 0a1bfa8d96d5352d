"""The progress of an operation, and the type of the function that receives it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Step = Literal[
    "waiting for the server",
    "copying the log",
    "exporting the log",
    "computing the tables",
    "removing other payload from the archive",
    "compressing",
    "compressing events",
    "comparing the tables",
    "checking the log",
    "counting payload",
    "removing payload",
    "searching",
    "freeing space",
    "exporting",
    "reading",
    "scanning rollouts",
    "scoring rollouts",
    "importing",
    "enqueueing rollouts",
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


class ProgressReporter:
    """Passes progress to a function, and records whether the function raised an error.

    An operation that continues after errors of the database must not continue after an error of the function.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self.has_failed = False

    def __call__(self, progress: OperationProgress) -> None:
        """Pass progress to the function."""
        try:
            self._on_progress(progress)
        except BaseException:
            self.has_failed = True
            raise


def ignore(progress: OperationProgress) -> None:
    """Do nothing."""
    del progress
