"""The progress of a copy, and the type of the function that receives it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The progress of one step of a copy."""

    step: Literal[
        "copying the log",
        "computing the tables",
        "removing other payload from the archive",
        "compressing",
        "verifying",
        "removing the payload from the store",
    ]
    done: int = 0
    """The number of events that are done."""
    total: int | None = None
    """The number of events of the whole copy; None if the progress of this step is not known."""


OnProgress = Callable[[CopyProgress], None]
"""Function that is called, in any thread, at the beginning of each step and after each part of the log."""


def ignore(progress: CopyProgress) -> None:
    """Do nothing."""
    del progress
