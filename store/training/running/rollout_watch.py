"""Watch on the log for rollouts that are cancelled, or decided elsewhere, while their attempts run in this process.

A rollout is decided elsewhere if another attempt or a user determines its result.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Final

from store.errors import Closed, Incompatible, StoreError, Unsupported
from store.interface.store import Store
from store.models import AttemptedRollout, LoggedEvent
from store.training.running.outcome import Reason

logger = logging.getLogger("store.training.watch")

Stop = Callable[[Reason], None]

_TYPES: Final = ("attempt.started", "rollout.status_changed")
_ACTIVE: Final = ("preparing", "running")
_REMEMBERED: Final = 10_000
_PAUSE_SECONDS: Final = 0.5
_GATHER_SECONDS: Final = 0.1
"""Length of a pause, in which events accumulate."""
_BUSY_SECONDS: Final = 0.01
"""Seconds after a pause for which events are read without another pause."""
_BEHIND: Final = 200
"""If more events than this are read after a pause, the reader is behind the log and skips the next pause."""


class Watch:
    """Follower of the log that stops attempts whose rollouts were cancelled or decided elsewhere.

    The watch starts with the first attempt of a runner. If the store has no log, only the responses to heartbeats show
    later that a rollout was cancelled or decided elsewhere.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._running: dict[str, tuple[str, Stop]] = {}
        # Events between a claim and the call of `begin` must not be missed. So the last event of each rollout is kept:
        # the id of the attempt that started, or None if the rollout ended or was queued again.
        self._recent: OrderedDict[str, str | None] = OrderedDict()
        self._checks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None

    def begin(self, rollout: AttemptedRollout, stop: Stop) -> None:
        """Watch a rollout from now on. `stop` is called once if the rollout is cancelled or decided elsewhere."""
        self._running[rollout.rollout_id] = (rollout.attempt.attempt_id, stop)
        if self._following is None:
            self._following = asyncio.create_task(self._follow(rollout.rollout_id))
        if self._recent.pop(rollout.rollout_id, rollout.attempt.attempt_id) != rollout.attempt.attempt_id:
            self._check(rollout.rollout_id)

    def end(self, rollout: AttemptedRollout) -> None:
        """Stop watching the rollout."""
        self._running.pop(rollout.rollout_id, None)

    async def close(self) -> None:
        """Stop following the log."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        for check in set(self._checks):
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def _follow(self, first: str) -> None:
        cursor: str | None = None
        while True:
            try:
                if cursor is None:
                    # The rollout has just begun, so its last event is near the end of the log. Reading starts there.
                    async for event in self._store.log.tail(rollout_id=first):
                        cursor = self._process(event)
                async for event in _with_pauses(self._store.log.tail(cursor, follow=True, types=_TYPES)):
                    cursor = self._process(event)
            except (Unsupported, Incompatible) as error:
                logger.info("the log cannot be followed; only heartbeats detect cancelled rollouts: %s", error)
                return
            except Closed:
                return
            except StoreError as error:
                logger.warning("the log cannot be followed, retrying: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _process(self, event: LoggedEvent) -> str:
        started_id = event.data.get("attempt_id") if event.type == "attempt.started" else None
        if started_id is not None or (event.type == "rollout.status_changed" and event.data["to"] not in _ACTIVE):
            rollout_id = event.stream.removeprefix("rollout/")
            running = self._running.get(rollout_id)
            if running is None:
                self._recent[rollout_id] = started_id
                self._recent.move_to_end(rollout_id)
                if len(self._recent) > _REMEMBERED:
                    self._recent.popitem(last=False)
            elif started_id != running[0]:
                self._check(rollout_id)
        return event.cursor

    def _check(self, rollout_id: str) -> None:
        check = asyncio.create_task(self._read_status(rollout_id))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _read_status(self, rollout_id: str) -> None:
        """Read a rollout, because an event may be outdated. Stop the attempt if the rollout no longer needs it."""
        try:
            rollout = await self._store.get_rollout_by_id(rollout_id)
        except StoreError as error:
            logger.warning("rollout %s may have been decided elsewhere; it cannot be read: %s", rollout_id, error)
            return
        running = self._running.get(rollout_id)
        if running is None or not isinstance(rollout, AttemptedRollout):
            return
        attempt_id, stop = running
        if rollout.status == "cancelled":
            del self._running[rollout_id]
            stop("cancelled")
        elif rollout.attempt.attempt_id != attempt_id or rollout.status not in _ACTIVE:
            del self._running[rollout_id]
            stop("superseded")


async def _with_pauses(events: AsyncIterator[LoggedEvent]) -> AsyncIterator[LoggedEvent]:
    """Yield events as they arrive, with pauses during a steady stream, so that one read finds many events."""
    loop = asyncio.get_running_loop()
    paused_at, count = loop.time(), 0
    async for event in events:
        yield event
        count += 1
        if count > _BEHIND:
            paused_at, count = loop.time(), 0
        elif loop.time() - paused_at > _BUSY_SECONDS:
            await asyncio.sleep(_GATHER_SECONDS)
            paused_at, count = loop.time(), 0
