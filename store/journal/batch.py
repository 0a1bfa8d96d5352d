"""The calls of the writer, and its statistics."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from store.domain.commands import Command

MAX_BATCH_CALLS = 512
# Bounds of what is counted for metrics.
_CALLS = (1, 2, 4, 8, 16, 32, 64, 128, 256, MAX_BATCH_CALLS)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 20.0)


class Waiter(Protocol):
    """Who is told the answer to a command, in its own loop: a future, or what stands for one."""

    def cancelled(self) -> bool:
        """Say whether nobody waits any more; what was not begun by then is not done."""
        ...

    def done(self) -> bool:
        """Say whether it can be told nothing any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Take the answer."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """Take the refusal."""
        ...


@dataclass(slots=True, eq=False)
class Call:
    """A command and who waits for its answer."""

    command: Command
    loop: asyncio.AbstractEventLoop
    waiter: Waiter
    size: int
    """The bytes of payload that the command carries."""
    reply: Any = None
    error: BaseException | None = None


class Histogram:
    """Counts of values by upper bound.

    Written by one thread; who reads in another may see a value that is counted and not yet summed.

    Args:
        bounds: rising; what is beyond the last is counted too.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of values up to each bound, and, last, of those beyond."""
        self.total = 0.0
        """The sum of all values."""

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class WriterStatistics:
    """What the writer has done since it started."""

    commits: int = 0
    calls: int = 0
    events: int = 0
    largest_batch: int = 0
    retries: int = 0
    floor_ahead_micros: int = 0
    """How far the log's last stamp is ahead of the clock, when it was last seen to be."""
    commit_calls: Histogram = field(default_factory=lambda: Histogram(_CALLS))
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    """From taking a batch to its answers."""
