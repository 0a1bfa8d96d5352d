"""The calls of the writer: who waits for which answer, and what was counted of them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

from store.domain.commands import Command
from store.journal.histogram import Histogram

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
