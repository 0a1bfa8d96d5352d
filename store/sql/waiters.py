"""Waiting calls and their wakeups.

A waiting call waits until a rollout can be claimed, until rollouts have ended, or until the log has new events. A
wakeup makes the call check again. All code here runs in the store's event loop.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from store.db.dialect import Wakeups
from store.domain.rollout import TERMINAL
from store.domain.working_set import WorkingSet
from store.errors import Closed, StoreError
from store.journal.writer import Committed

# A wakeup may get lost, so a waiting call checks again after this time.
FALLBACK_SECONDS = 5.0
# The watchdog reads the database at least this often, because other processes may start attempts.
_WATCH_SECONDS = 1.0
# Each commit may change the time at which the next sweep is due. After a commit, the code waits this long before it
# reads that time, so that one read is enough for many commits.
_GATHERING_SECONDS = 0.05


@dataclass(slots=True, eq=False)
class ClaimWaiter:
    """A call that waits for rollouts to claim."""

    worker_id: str | None
    limit: int
    is_keyed: bool = False
    """Whether the call has an idempotency key. Such a call must not get another call's claims."""
    future: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The future of the wakeup. Its result is None if the call should try to claim a rollout.

    Otherwise the result contains claims that another call made but could not deliver.
    """


@dataclass(slots=True, eq=False)
class FinishWaiter:
    """A call that waits for rollouts to end."""

    missing: set[str]
    """The ids of the rollouts that have not ended."""
    event: asyncio.Event = field(default_factory=asyncio.Event)


class WaitingCalls:
    """Waiting calls, their wakeups, and the sweeps that continue while calls wait.

    Args:
        wakeups: notifications of commits, to and from other processes.
        depth: returns the number of rollouts in the queue.
        ended: returns the rollouts that have ended, from a set of rollouts.
        next_check: returns the seconds until a sweep is due; None while no attempt is active.
        sweep: ends overdue attempts.
    """

    def __init__(
        self,
        wakeups: Wakeups,
        *,
        depth: Callable[[], Awaitable[int]],
        ended: Callable[[set[str]], Awaitable[set[str]]],
        next_check: Callable[[], Awaitable[float | None]],
        sweep: Callable[[], Awaitable[object]],
    ) -> None:
        self._wakeups = wakeups
        self._depth = depth
        self._ended = ended
        self._next_check = next_check
        self._sweep = sweep
        self._claimers: deque[ClaimWaiter] = deque()
        self._finishers: dict[str, set[FinishWaiter]] = {}
        self._followers: set[asyncio.Event] = set()
        self._parked = 0
        self._listening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._always_watches = False
        self._rearm = asyncio.Event()
        self._closed = False

    def committed(self, working_set: WorkingSet, committed: Committed | None) -> None:
        """Wake the calls that wait for the changes in a commit of this process; announce it to other processes."""
        count = 0
        for rollout_id, place_before in working_set.queued_before.items():
            state = working_set.rollouts[rollout_id]
            if state.queued_position is not None and state.queue_place != place_before:
                count += 1
            if state.status in TERMINAL:
                self._finish(rollout_id)
        if count:
            self._wake_claimers(count)
        if working_set.rewatch:
            self._rearm.set()
        if working_set.events:
            for event in self._followers:
                event.set()
        if committed is not None:
            self._wakeups.announce(committed.commit_id)

    def _finish(self, rollout_id: str) -> None:
        for waiter in self._finishers.get(rollout_id, ()):
            waiter.missing.discard(rollout_id)
            if not waiter.missing:
                waiter.event.set()

    def _wake_claimers(self, available: int) -> None:
        """Wake calls until their limits cover the available rollouts. The calls that have waited longest come first."""
        while available > 0 and self._claimers:
            waiter = self._claimers.popleft()
            if not waiter.future.done():
                waiter.future.set_result(None)
                available -= waiter.limit

    async def _look_again(self) -> None:
        """Read the changes of other processes from the database, once for all waiting calls, and wake these calls."""
        if self._claimers:
            self._wake_claimers(await self._depth())
        if self._finishers:
            for rollout_id in await self._ended(set(self._finishers)):
                self._finish(rollout_id)
        for event in self._followers:
            event.set()
        self._rearm.set()

    @contextlib.contextmanager
    def parked(self) -> Generator[None]:
        """Listen to commits and continue to sweep while a call waits."""
        self._parked += 1
        if self._parked == 1:
            self._listening = asyncio.create_task(self._listen())
            self._begin_to_watch()
        try:
            yield
        finally:
            self._parked -= 1
            if self._parked == 0:
                _cancel(self._listening)
                if not self._always_watches:
                    _cancel(self._watching)
                    self._watching = None

    def watch(self) -> None:
        """Start sweeps that continue even while no call waits."""
        if not self._closed:
            self._always_watches = True
            self._begin_to_watch()

    def _begin_to_watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    @contextlib.contextmanager
    def in_line(self, waiter: ClaimWaiter) -> Generator[None]:
        """Register a call that waits to claim rollouts.

        The caller must read the queue after the registration. Otherwise the caller misses a rollout that is enqueued
        between the read and the registration.
        """
        if self._closed:
            raise Closed("waiting")
        self._claimers.append(waiter)
        try:
            yield
        finally:
            if not waiter.future.done():
                waiter.future.cancel()
            with contextlib.suppress(ValueError):
                self._claimers.remove(waiter)

    def pass_on(self) -> None:
        """Wake the next call that waits to claim rollouts, because the call before could not use its wakeup."""
        self._wake_claimers(1)

    def hand_over(self, claims: list[Any], worker_id: str | None) -> bool:
        """Pass claims that did not reach their caller to a waiting call of the same worker.

        Return whether there was such a call.
        """
        for waiter in self._claimers:
            if waiter.is_keyed or waiter.future.done():
                continue
            if waiter.worker_id == worker_id and waiter.limit >= len(claims):
                self._claimers.remove(waiter)
                waiter.future.set_result(claims)
                return True
        return False

    def expect(self, rollout_ids: Iterable[str]) -> FinishWaiter:
        """Register a call that waits for the end of these rollouts. The caller must read their statuses afterwards."""
        if self._closed:
            raise Closed("waiting")
        waiter = FinishWaiter(set(rollout_ids))
        for rollout_id in waiter.missing:
            self._finishers.setdefault(rollout_id, set()).add(waiter)
        return waiter

    def forget(self, waiter: FinishWaiter, rollout_ids: Iterable[str]) -> None:
        """Remove the registration of a call that waited for the end of these rollouts."""
        for rollout_id in rollout_ids:
            waiters = self._finishers.get(rollout_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._finishers[rollout_id]

    def follow(self) -> asyncio.Event:
        """Return an event that every commit sets."""
        event = asyncio.Event()
        self._followers.add(event)
        return event

    def unfollow(self, event: asyncio.Event) -> None:
        """Remove an event that `follow` returned."""
        self._followers.discard(event)

    @property
    def is_closed(self) -> bool:
        """Whether the store is closing, so that a woken call should end."""
        return self._closed

    async def close(self) -> None:
        """Wake all waiting calls, which then raise `Closed`."""
        self._closed = True
        for waiter in self._claimers:
            if not waiter.future.done():
                waiter.future.set_exception(Closed("waiting"))
        for waiters in self._finishers.values():
            for finish in waiters:
                finish.event.set()
        for event in self._followers:
            event.set()
        tasks = [task for task in (self._listening, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Stop listening to other processes and announcing commits. Call this after the last commit."""
        await self._wakeups.close()

    async def _listen(self) -> None:
        while True:
            try:
                await self._wakeups.wait(FALLBACK_SECONDS)
                await self._look_again()
            except StoreError:
                await asyncio.sleep(1)

    async def _watch(self) -> None:
        while True:
            self._rearm.clear()
            wait = _WATCH_SECONDS
            with contextlib.suppress(StoreError):
                seconds = await self._next_check()
                if seconds is not None:
                    wait = min(max(seconds, 0.0), _WATCH_SECONDS)
                if wait <= 0:
                    wait = _WATCH_SECONDS
                    await self._sweep()
                    # If the sweep finds that an attempt is alive, it sets the time of the attempt's next check to a
                    # later time. The next iteration then does not sweep again immediately.
                    wait = 0.01
            # Python 3.11's `wait_for` may lose a cancellation that coincides with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0.01)):
                    await self._rearm.wait()
                    await asyncio.sleep(_GATHERING_SECONDS)


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
