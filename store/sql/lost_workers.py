"""Recovery of the work of lost workers. Decision 54.

The heartbeats of a worker declare the interval between them. A worker is lost if it has sent no heartbeat for several
intervals. If a rollout has no time limits, the watchdog never ends its attempt, so the rollout of a lost worker would
stay active forever. Such a rollout therefore gets a limit when its worker is lost, and the watchdog then ends the
attempt. The limit is not set when a worker claims the rollout, because an event would then be added to each claim.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextvars import Context
from typing import Any, Final

import orjson

from store.db.queries import lost_workers as queries
from store.domain.commands import LimitSilence
from store.errors import StoreError
from store.models.rollouts import LEAST_SILENCE_SECONDS, declared_interval, longest_silence
from store.runtime.clock import MICROSECONDS, system_clock
from store.sql.core import SQLCore

logger = logging.getLogger("store.lost_workers")

MAX_ATTEMPTS: Final = 3
"""The maximum number of attempts of a rollout that had neither limits nor retries when its worker was lost."""


class LostWorkers:
    """Search for lost workers. A heartbeat of any worker starts a search, unless the last search was too recent.

    Args:
        core: the core of the store.
        seconds: the minimum time between two searches.
    """

    def __init__(self, core: SQLCore, seconds: float) -> None:
        self._core = core
        self._seconds = seconds
        self._searched_at = float("-inf")
        self._handled: dict[str, int] = {}
        """By worker id, the time of the last heartbeat before the worker was handled.

        The worker is ignored until it sends another heartbeat.
        """

    async def search_if_due(self) -> None:
        """Search for lost workers and limit their open attempts, if the last search was long enough ago.

        A failure is logged and not raised, because it does not concern the worker whose heartbeat started the search.
        """
        now = time.monotonic()
        if now - self._searched_at < self._seconds:
            return
        self._searched_at = now
        try:
            # The commands must not get the actor and the idempotency key of the heartbeat.
            await asyncio.create_task(self._search(), context=Context())
        except StoreError as error:
            logger.warning("the work of lost workers was not recovered: %s", error)

    async def _search(self) -> None:
        core = self._core
        now = (core.dialect.clock or system_clock)()
        cutoff = now - round(LEAST_SILENCE_SECONDS * MICROSECONDS)
        silent = await core.read(lambda session: queries.silent_since(session, cutoff))
        unhandled = {worker_id: at for worker_id, at in silent.items() if self._handled.get(worker_id) != at}
        if not unhandled:
            return
        stats = await core.read(lambda session: queries.heartbeat_stats(session, sorted(unhandled)))
        lost: dict[str, float] = {}
        for worker_id, text in stats.items():
            declared: dict[str, Any] = orjson.loads(text) if text else {}
            interval = declared_interval(declared)
            if interval is None or declared.get("stopped") is True:
                # Only runners of this package declare an interval and send heartbeats until they stop.
                self._handled[worker_id] = unhandled[worker_id]
            else:
                limit = longest_silence(interval)
                if await core.thread.run(self._silence(worker_id, unhandled[worker_id], limit)) > limit:
                    lost[worker_id] = limit
        if not lost:
            return
        attempts = await core.read(queries.open_attempts)
        limited: Counter[str] = Counter()
        for rollout_id, attempt_id, worker_id in attempts:
            if worker_id in lost:
                command = LimitSilence(
                    rollout_id=rollout_id,
                    attempt_id=attempt_id,
                    unresponsive_seconds=lost[worker_id],
                    max_attempts=MAX_ATTEMPTS,
                    actor="store",
                )
                limited[worker_id] += await self._core.call(command)
        for worker_id, count in limited.items():
            if count:
                logger.warning("worker %s is lost; number of its rollouts that got a time limit: %d", worker_id, count)
        self._handled.update((worker_id, unhandled[worker_id]) for worker_id in lost)

    async def _silence(self, worker_id: str, at: int, limit: float) -> float:
        """Return the heard time since a heartbeat, in seconds; see `LogTime`.

        This must run in the event loop of the store.
        """
        log_time = self._core.log_time
        log_time.advance(self._core.dialect.elapsed())
        if log_time.is_lost:
            return 0.0
        return log_time.silence(f"worker/{worker_id}", at, at, at, round(limit * MICROSECONDS)) / MICROSECONDS
