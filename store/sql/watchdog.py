"""The watchdog, which ends overdue attempts. Decision 82.

An attempt is overdue if it has exceeded its time limit, or has shown no sign of life for too long. Only the time during
which this process was able to receive signs of life counts. `LogTime` computes this time.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from store.db.dialect import Dialect, ReadSession
from store.db.queries import pages
from store.domain.commands import Command, Sweep
from store.domain.log_time import LogTime

T = TypeVar("T")

_EXAMINED_AT_ONCE: Final = 1000
_MOST_EXAMINED: Final = 256_000
_REPEAT_SECONDS: Final = 5.0
"""A sweep is repeated after this time if attempts exceed a limit according to the timestamps, but are not overdue."""
_PROBE_MICROS: Final = 900_000
"""After this time without a known commit, the watchdog checks whether the database accepts writes."""


class Read(Protocol):
    """Function that runs a read of the store in the running event loop."""

    def __call__(self, work: Callable[[ReadSession], Awaitable[T]], /) -> Awaitable[T]: ...


class RunCommand(Protocol):
    """Function that runs a coroutine in the event loop of the store."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> Awaitable[T]: ...


class Watchdog:
    """Scheduler of sweeps. A sweep itself is a command that the store's writer executes.

    Args:
        dialect: the database.
        log_time: the relation of timestamps to the elapsed time of this process.
        read: runs a read of the store.
        run: runs a coroutine in the event loop of the store.
        call: passes a command to the writer and returns the result.
        probe: begins and ends a transaction that changes nothing.
        debounce_seconds: the minimum time between two sweeps by `sweep_if_due`.
        is_off: whether `sweep_if_due` does nothing.
    """

    def __init__(
        self,
        dialect: Dialect,
        log_time: LogTime,
        *,
        read: Read,
        run: RunCommand,
        call: Callable[[Command], Awaitable[Any]],
        probe: Callable[[], Awaitable[None]],
        debounce_seconds: float,
        is_off: bool,
    ) -> None:
        self.debounce_seconds = debounce_seconds
        self.swept_at = float("-inf")
        self._dialect = dialect
        self._log_time = log_time
        self._read = read
        self._run = run
        self._call = call
        self._is_off = is_off
        self._probe = probe
        self._last_sweep = 0.0
        self._times = (0, 0)
        """The result of `pages.last_times` at the last read."""

    async def sweep_if_due(self) -> None:
        """Sweep if `is_due` is true and an attempt may be overdue."""
        if self._is_off or not self.is_due():
            return
        self.swept_at = time.monotonic()
        if await self._run(self._may_be_overdue()):
            await self.sweep()

    def is_due(self) -> bool:
        """Return whether the last sweep was at least `debounce_seconds` ago."""
        return time.monotonic() - self.swept_at >= self.debounce_seconds

    async def sweep(self) -> int:
        """End the overdue attempts and return their number."""
        ended, limit = 0, _EXAMINED_AT_ONCE
        while True:
            ended += await self._call(Sweep(actor="watchdog", limit=limit))
            self._last_sweep = time.monotonic()
            result = self._log_time.sweeping
            if result.until is None or result.examined < limit or limit >= _MOST_EXAMINED:
                return ended
            # Rollouts that the sweep did not examine, because their checks are later, may also be overdue.
            limit *= 4

    async def seconds_to_next_check(self) -> float | None:
        """Return the seconds until an attempt may become overdue; None while no active attempt has a limit.

        This must be called in the store's event loop.
        """
        first, later = await self._next_checks()
        log_time = self._log_time
        if log_time.is_lost:
            return 0.0
        if first is None:
            return None
        if log_time.idle_for(self._dialect.elapsed()) >= _PROBE_MICROS:
            # Another process may have received signs of life that it cannot store, because the database accepts no
            # writes. A read would not show this.
            await self._probe()
        horizon = log_time.horizon
        last_sweep = log_time.sweeping
        if first >= horizon:
            return (first - horizon) / 1_000_000
        if first >= last_sweep.stamp or last_sweep.until is None:
            return 0.0
        waits = [
            (last_sweep.until - log_time.heard) / 1_000_000,
            self._last_sweep + _REPEAT_SECONDS - time.monotonic(),
        ]
        if later is not None:
            waits.append((later - horizon) / 1_000_000)
        return min(waits)

    async def _may_be_overdue(self) -> bool:
        first, _ = await self._next_checks()
        return first is not None and (self._log_time.is_lost or first < self._log_time.horizon)

    async def _next_checks(self) -> tuple[int | None, int | None]:
        """Return the time of the next check, and of the next check that the last sweep did not include."""
        log_time, elapsed = self._log_time, self._dialect.elapsed

        async def read(session: ReadSession) -> tuple[int | None, int | None]:
            times = last_stamp, _ = await pages.last_times(session)
            log_time.resume(times_read, elapsed())
            log_time.available(elapsed(), last_stamp)
            log_time.reach(max(times))
            if times != self._times:
                # A process has committed since the last read.
                self._times = times
                log_time.accepted(elapsed())
            return await pages.next_checks(session, log_time.sweeping.stamp)

        times_read = object()
        log_time.wait(times_read, elapsed())
        try:
            return await self._read(read)
        finally:
            log_time.resume(times_read, elapsed())
