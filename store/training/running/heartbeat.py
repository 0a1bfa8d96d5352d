"""Heartbeats of a worker and of its attempts. A worker's heartbeat contains the state of its machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Final, Literal

from store.interface.store import Store
from store.models import AttemptedRollout
from store.runtime.limited_log import LimitedLog
from store.runtime.process import is_gone
from store.training.running.machine_state import snapshot
from store.training.running.orphans import close_orphans
from store.training.running.outcome import Reason
from store.training.tracing.span_thread import span_thread

logger = logging.getLogger("store.training.heartbeat")

# Agents may seed the module `random`, whose numbers must not depend on the recording.
_random: Final = SystemRandom()

LaunchMode = Literal["thread", "asyncio"]

_AT_WORK: Final = ("preparing", "running")
_LEAST_SECONDS: Final = 0.01
_LAST_SECONDS: Final = 2.0
"""A stopping worker waits at most this long until the store has received its last heartbeat."""


@dataclass(eq=False, slots=True)
class Beating:
    """An attempt for which heartbeats are sent."""

    rollout: AttemptedRollout
    stop: Callable[[Reason], None]
    """Function that stops the attempt. It is called, in any thread, when the store reports that the attempt has
    ended."""
    claimed_at: float = field(default_factory=time.monotonic)
    """The time of the claim on this machine's monotonic clock."""

    @property
    def now(self) -> float:
        """The current time of the store's clock: the attempt's start time plus the seconds since the claim."""
        return self.rollout.attempt.start_time + time.monotonic() - self.claimed_at


class Heartbeat:
    """Sender of the heartbeats of one worker and of its attempts.

    Args:
        store: the store that receives the heartbeats.
        label: the name of the worker.
        interval: seconds between two heartbeats; 0 or less for none.
        jitter: the maximum number of seconds by which an interval varies.
        mode: "thread" sends heartbeats in a thread that agents cannot block, "asyncio" in the current event loop.
        include_gpu: whether the worker's heartbeats contain values of `nvidia-smi` for each GPU.
        about: further fields of the worker's heartbeats.
    """

    def __init__(
        self,
        store: Store,
        label: str,
        interval: float,
        jitter: float,
        mode: LaunchMode,
        *,
        include_gpu: bool,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._label = label
        self._interval = interval
        self._jitter = jitter
        self._mode = mode
        self._include_gpu = include_gpu
        self._about = {"heartbeat_interval": interval, **(about or {})}
        self._beating: dict[str, Beating] = {}
        self._has_beaten = False
        self._limited = LimitedLog(logger)

    def begin(self, beating: Beating) -> None:
        """Start to send heartbeats for an attempt."""
        self._beating[beating.rollout.attempt.attempt_id] = beating

    def end(self, rollout: AttemptedRollout) -> None:
        """Stop sending heartbeats for an attempt."""
        self._beating.pop(rollout.attempt.attempt_id, None)

    @contextlib.asynccontextmanager
    async def sent(self) -> AsyncGenerator[None]:
        """Send heartbeats during the block."""
        if self._interval <= 0:
            yield
            return
        ended = Future[None]()
        beats = self._beats(ended)
        sending = (
            asyncio.wrap_future(span_thread().submit(beats)) if self._mode == "thread" else asyncio.ensure_future(beats)
        )
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            if ended.running():
                # Wait for the heartbeat in progress, because it must not arrive after a later update of the worker.
                await asyncio.wrap_future(ended)
            if self._has_beaten:
                seconds = min(self._interval, _LAST_SECONDS)
                await self._quietly("the last heartbeat of a worker", self._beat_worker(stopped=True), seconds)

    async def introduce(self) -> None:
        """Close the attempts of dead runners of this machine, and send the first heartbeat.

        Raises:
            PermissionError: the store refuses the calls of this worker.
        """
        if self._interval > 0:
            await self._quietly(
                "closing orphaned attempts", close_orphans(self._store, is_gone), raises=PermissionError
            )
            await self._quietly("the heartbeat of a worker", self._beat_worker(), raises=PermissionError)

    async def _beats(self, ended: Future[None]) -> None:
        """Send heartbeats until cancelled. `ended` is done after the last heartbeat."""
        ended.set_running_or_notify_cancel()
        try:
            while True:
                wait = self._interval + _random.uniform(-self._jitter, self._jitter)
                await asyncio.sleep(max(wait, _LEAST_SECONDS))
                await asyncio.gather(
                    self._quietly("the heartbeat of a worker", self._beat_worker()),
                    *(
                        self._quietly("the heartbeat of an attempt", self._beat_attempt(beating))
                        for beating in list(self._beating.values())
                    ),
                )
        finally:
            ended.set_result(None)

    async def _quietly(
        self, activity: str, work: Any, seconds: float | None = None, *, raises: type[Exception] | tuple[()] = ()
    ) -> None:
        """Await work for a limited number of seconds, by default one interval.

        An exception of the type `raises` is raised. Other exceptions are logged.
        """
        limit = self._interval if seconds is None else seconds
        try:
            async with asyncio.timeout(limit):
                await work
        except raises:
            raise
        except TimeoutError:
            logger.warning("%s, %s, took longer than %g s", activity, self._label, limit)
        except Exception as error:  # noqa: BLE001 - a worker continues without a heartbeat
            self._limited.warning(f"{activity}, {self._label}, failed", error)

    async def _beat_worker(self, *, stopped: bool = False) -> None:
        state = await asyncio.to_thread(snapshot, include_gpu=self._include_gpu)
        about = self._about | ({"stopped": True} if stopped else {})
        await self._store.update_worker(self._label, state | about)
        self._has_beaten = True

    async def _beat_attempt(self, beating: Beating) -> None:
        rollout_id, attempt_id = beating.rollout.rollout_id, beating.rollout.attempt.attempt_id
        attempt = await self._store.update_attempt(rollout_id, attempt_id, last_heartbeat_time=beating.now)
        if attempt.status not in _AT_WORK and attempt_id in self._beating:
            beating.stop("superseded")
