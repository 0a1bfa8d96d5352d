"""Claims of rollouts in a SQL store, and calls that wait until rollouts can be claimed or have ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from store.db.dialect import ReadSession
from store.db.queries import log as log_queries
from store.db.queries import pages
from store.domain.commands import Claim, Command, CommandGroup, Idempotency, ReleaseClaim
from store.domain.idempotency import Repeat
from store.domain.views import ClaimView
from store.errors import Closed, StoreError
from store.journal.as_at import moment
from store.journal.state_view import StateView
from store.models import AttemptedRollout
from store.runtime import context
from store.runtime.limited_log import LimitedLog
from store.sql.commands import rollouts as rollout_commands
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.waiters import FALLBACK_SECONDS, ClaimWaiter

logger = logging.getLogger("store")

_UNDONE_AT_MOST = 4096
_RUNS_SECONDS = 0.05
"""The minimum time between two reads of waiting runs by one waiting call."""
_RUNS_SHARE = 5.0
"""The minimum time between two such reads, in durations of a read."""


class SQLQueue:
    """Methods that claim rollouts, wait for rollouts, and release claims that did not reach their caller."""

    def __init__(self, core: SQLCore) -> None:
        self.core = core
        self._limited = LimitedLog(logger)
        # For each of the latest claims, the command that releases it, by the id of the claim's attempt.
        self._undo: OrderedDict[str, ReleaseClaim] = OrderedDict()
        self.empty_polls = 0
        """The number of calls that claimed no rollout, because the queue was empty."""
        core.on_undelivered = self._on_undelivered

    async def claim(self, limit: int, worker_id: str | None, wait_seconds: float) -> list[ClaimView] | Repeat:
        """Claim rollouts; if the queue is empty, wait at most the given time for rollouts.

        Return the claims, or a `Repeat` if a call with the same idempotency key was executed before.
        """
        claims: list[ClaimView] | Repeat = await self.core.swept_call(rollout_commands.claim(limit, worker_id))
        if not claims and wait_seconds:
            self.core.check()
            claims = await self.core.thread.run(
                self._wait_for_claims(limit, worker_id, wait_seconds, context.idempotency_key.get()),
                lost=lambda claims: self._give_back(claims, worker_id),
            )
        return claims

    async def claim_runs(
        self, resources_ids: Sequence[str], limit: int, worker_id: str | None, wait_seconds: float
    ) -> list[ClaimView] | Repeat:
        """Claim waiting runs with one of the resources; if there are none, wait at most the given time for them.

        Return the claims, or a `Repeat` if a call with the same idempotency key was executed before.
        """
        await self.core.watchdog.sweep_if_due()
        waiting = _WaitingRuns(self.core, resources_ids, limit, worker_id)
        key = context.idempotency_key.get()
        # An earlier call with the key may have claimed runs, so the command is executed even if no run waits.
        claims = await waiting.claim(self.core.call, if_empty=key is not None)
        if claims or not wait_seconds:
            return claims
        self.core.check()
        return await self.core.thread.run(
            self._wait_for_runs(waiting, wait_seconds, key), lost=lambda claims: self._give_back(claims, worker_id)
        )

    def hand_out(self, claims: Sequence[ClaimView]) -> list[AttemptedRollout]:
        """Return the claimed rollouts for the caller, and keep the commands that can release the claims."""
        if not claims:
            # An empty poll is only counted. The log would grow with every poll of an idle worker if it were an event.
            self.empty_polls += 1
        for undo in map(_undoing, claims):
            self._undo[undo.attempt_id] = undo
        while len(self._undo) > _UNDONE_AT_MOST:
            with contextlib.suppress(KeyError):  # another thread may remove items too
                self._undo.popitem(last=False)
        return [rollout_mapping.attempted_of_view(claim.rollout) for claim in claims]

    async def release_claims(self, claimed: Sequence[AttemptedRollout]) -> None:
        """Release claims that this store object returned, unless their attempts have changed since.

        The rollouts return to their old places in the queue, and the attempts of the claims do not count. Code between
        the store and its callers, such as a server, uses this method when a caller has disconnected. Old claims, and
        claims that a repeated call returned, are not released; the watchdog ends their attempts later.
        """
        self.core.check()
        ids = [rollout.attempt.attempt_id for rollout in claimed]
        undoing = [undo for attempt_id in ids if (undo := self._undo.pop(attempt_id, None)) is not None]
        await self.core.thread.run(self._release_all(undoing))

    async def release(self, rollout_id: str, attempt_id: str) -> bool:
        """Release a claim that any process made, and return whether the claim is released.

        The rollout returns to its old place in the queue, and its attempt does not count. A claim is not released if
        its attempt has changed since.
        """
        undo = await self.core.read(lambda session: _undo_of(session, rollout_id, attempt_id), snapshot=True)
        if undo is None:
            return False
        self._undo.pop(attempt_id, None)
        is_released: bool = await self.core.call(undo)
        if is_released:
            self.core.thread.call_soon(self.core.waiting.pass_on)
        return is_released

    async def wait_for_end(self, rollout_ids: set[str], seconds: float | None) -> None:
        """Wait until those of these rollouts that exist have ended, at most the given number of seconds."""
        self.core.check()
        await self.core.thread.run(self._wait_for_end(rollout_ids, seconds))

    async def _wait_for_claims(
        self, limit: int, worker_id: str | None, seconds: float, idempotency: Idempotency | None
    ) -> list[ClaimView] | Repeat:
        deadline = time.monotonic() + seconds
        with self.core.waiting.parked():
            while True:
                claims = await self._next_chance(
                    ClaimWaiter(worker_id, limit, is_keyed=idempotency is not None), deadline
                )
                if claims is None:
                    command = rollout_commands.claim(limit, worker_id)
                    command.idempotency = idempotency
                    claims = await self.core.writer.call(command)
                if claims or time.monotonic() >= deadline:
                    return claims or []

    async def _wait_for_runs(
        self, waiting: _WaitingRuns, seconds: float, idempotency: Idempotency | None
    ) -> list[ClaimView] | Repeat:
        async def execute(command: Command) -> Any:
            command.idempotency = idempotency
            return await self.core.writer.call(command)

        deadline = time.monotonic() + seconds
        news = self.core.waiting.follow()
        try:
            with self.core.waiting.parked():
                while True:
                    news.clear()
                    began = time.monotonic()
                    claims = await waiting.claim(execute)
                    now = time.monotonic()
                    if claims or now >= deadline:
                        return claims
                    # Every commit sets `news`, so a call at a busy store would read all the time without this pause.
                    await asyncio.sleep(min(deadline - now, max(_RUNS_SECONDS, _RUNS_SHARE * (now - began))))
                    # Python 3.11's `wait_for` may lose a cancellation that coincides with the event.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, min(deadline - time.monotonic(), FALLBACK_SECONDS))):
                            await news.wait()
                    if self.core.waiting.is_closed:
                        raise Closed("runs.claim")
        finally:
            self.core.waiting.unfollow(news)

    async def _next_chance(self, waiter: ClaimWaiter, deadline: float) -> list[ClaimView] | None:
        """Wait until there may be a rollout to claim, or until the deadline.

        Return claims that another call made but could not deliver, an empty list at the deadline, or None if the caller
        should try to claim a rollout.
        """
        try:
            with self.core.waiting.in_line(waiter):
                # The queue is read after the registration, because a rollout may have been enqueued just before it.
                if await self.core.queue_depth():
                    return None
                left = deadline - time.monotonic()
                await asyncio.wait([waiter.future], timeout=min(max(left, 0.0), FALLBACK_SECONDS))
                if waiter.future.done():
                    return waiter.future.result()
                return [] if left <= FALLBACK_SECONDS else None
        except asyncio.CancelledError:
            self._not_taken(waiter)
            raise

    def _not_taken(self, waiter: ClaimWaiter) -> None:
        if waiter.future.cancelled() or waiter.future.exception() is not None:
            return
        claims = waiter.future.result()
        if claims is None:
            self.core.waiting.pass_on()
        else:
            self._give_back(claims, waiter.worker_id)

    def _on_undelivered(self, command: Command, reply: Any) -> None:
        """Release claims whose caller has disconnected. The writer calls this method in any loop."""
        if isinstance(command, CommandGroup):
            for part, answer in zip(command.parts, reply, strict=True):
                self._on_undelivered(part, answer)
        elif isinstance(command, Claim) and reply and not isinstance(reply, StoreError):
            self.core.thread.loop.call_soon_threadsafe(self._give_back, reply, command.worker_id)

    def _give_back(self, claims: list[ClaimView] | Repeat, worker_id: str | None) -> None:
        # A `Repeat` contains the claims of an earlier call with the same idempotency key. The caller may have received
        # them from that call, so they are not released. Otherwise the watchdog ends their attempts later.
        if not claims or isinstance(claims, Repeat):
            return
        # Only calls with the same idempotency key may get claims that were made with a key, so no other call gets them.
        if claims[0].idempotency is None and self.core.waiting.hand_over(claims, worker_id):
            return
        task = asyncio.ensure_future(self._release_all(list(map(_undoing, claims))))
        self.core.releasing.add(task)
        task.add_done_callback(self.core.releasing.discard)

    async def _release_all(self, undoing: Sequence[ReleaseClaim]) -> None:
        # The last claim is released first, so that each claim is still the latest event of its rollout.
        for undo in reversed(undoing):
            try:
                if await self.core.writer.call(undo):
                    self.core.waiting.pass_on()
            except StoreError as error:
                self._limited.warning("an unread claim could not be released; the watchdog will give it up", error)

    async def _wait_for_end(self, rollout_ids: set[str], seconds: float | None) -> None:
        waiting = self.core.waiting
        waiter = waiting.expect(rollout_ids)
        try:
            existing, ended = await self.core.known_and_ended(rollout_ids)
            waiter.missing &= existing - ended
            if waiter.missing:
                with waiting.parked():
                    async with asyncio.timeout(seconds):
                        await waiter.event.wait()
        except TimeoutError:
            pass
        finally:
            waiting.forget(waiter, rollout_ids)
        if waiting.is_closed:
            raise Closed("wait_for_rollouts")


class _WaitingRuns:
    """Runs in the queue that use one of some resources, for one worker. Decision 88.

    Args:
        core: the core of the store.
        resources_ids: the ids of the resources.
        limit: the maximum number of runs that a call claims.
        worker_id: the worker that claims.
    """

    def __init__(self, core: SQLCore, resources_ids: Sequence[str], limit: int, worker_id: str | None) -> None:
        self._core = core
        self._resources_ids = resources_ids
        self._limit = limit
        self._worker_id = worker_id

    async def claim(
        self, execute: Callable[[Command], Awaitable[Any]], *, if_empty: bool = False
    ) -> list[ClaimView] | Repeat:
        """Claim runs that wait now. If other workers take all of them meanwhile, look again.

        Args:
            execute: executes the command.
            if_empty: whether to execute the command even if no run waits.
        """
        while True:
            ids = await self._core.read(lambda session: pages.waiting_runs(session, self._resources_ids, self._limit))
            if not ids and not if_empty:
                return []
            claims = await execute(rollout_commands.claim(self._limit, self._worker_id, ids))
            if claims or not ids:
                return claims


async def _undo_of(session: ReadSession, rollout_id: str, attempt_id: str) -> ReleaseClaim | None:
    """Return the command that releases the claim of an attempt; None if no claim started the attempt."""
    started = await log_queries.start_of_attempt(session, rollout_id, attempt_id)
    if started is None:
        return None
    before = await StateView(session, await moment(session, started - 1)).rollout(rollout_id)
    if before is None or before.queued_position is None:
        return None
    return ReleaseClaim(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        claim_position=started,
        status_before=before.status,
        queued_at=before.queued_position,
        actor="store",
    )


def _undoing(claim: ClaimView) -> ReleaseClaim:
    attempt = claim.rollout.attempt
    assert attempt is not None  # a claim starts an attempt
    return ReleaseClaim(
        rollout_id=claim.rollout.row.rollout_id,
        attempt_id=attempt.row.attempt_id,
        claim_position=claim.claim_position,
        status_before=claim.status_before,
        queued_at=claim.queued_at,
        claim_key=claim.idempotency,
        actor="store",
    )
