"""The watchdog, which ends overdue attempts.

An attempt is overdue if it has exceeded its time limit, or has shown no sign of life for too long. A sweep is one
search of the database for overdue attempts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from store.db.dialect import Dialect, ReadSession
from store.db.queries import pages
from store.domain.commands import Command, Sweep
from store.runtime.clock import system_clock

T = TypeVar("T")


class Read(Protocol):
    """Function that runs a read of the store."""

    def __call__(self, work: Callable[[ReadSession], Awaitable[T]], /, *, snapshot: bool = False) -> Awaitable[T]: ...


class Watchdog:
    """Scheduler of sweeps. It decides when to sweep. The sweep itself is a command that the store's writer executes.

    Args:
        dialect: the database.
        read: runs a read of the store.
        call: passes a command to the writer and returns the result.
        debounce_seconds: the minimum time between two sweeps by `sweep_if_due`.
        is_off: whether `sweep_if_due` does nothing.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        read: Read,
        call: Callable[[Command], Awaitable[Any]],
        debounce_seconds: float,
        is_off: bool,
    ) -> None:
        self.debounce_seconds = debounce_seconds
        self.swept_at = float("-inf")
        self._dialect = dialect
        self._read = read
        self._call = call
        self._is_off = is_off

    async def sweep_if_due(self) -> None:
        """Sweep if the last sweep was long enough ago and an attempt may be overdue."""
        if self._is_off or not self.is_due():
            return
        self.swept_at = time.monotonic()
        seconds = await self.seconds_to_next_check()
        if seconds is not None and seconds < 0:
            await self.sweep()

    def is_due(self) -> bool:
        """Return whether the last sweep was long enough ago."""
        return time.monotonic() - self.swept_at >= self.debounce_seconds

    async def sweep(self) -> int:
        """End the overdue attempts and return their number."""
        return await self._call(Sweep(actor="watchdog"))

    async def seconds_to_next_check(self) -> float | None:
        """Return the seconds until an attempt may become overdue; None while no attempt is active."""
        at = await self._read(lambda session: pages.next_check(self._dialect, session))
        clock = self._dialect.clock or system_clock
        return None if at is None else (at - clock()) / 1_000_000
