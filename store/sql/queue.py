"""Claims of a SQL store, and the calls that wait for rollouts to claim or to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from store.domain.commands import Claim, Command, Idempotency, ReleaseClaim
from store.domain.idempotency import Repeat
from store.domain.views import ClaimView
from store.errors import Closed, StoreError
from store.models import AttemptedRollout
from store.runtime import context
from store.sql.commands import rollouts as rollout_commands
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.waiters import FALLBACK_SECONDS, ClaimWaiter
from store.validation import arguments

logger = logging.getLogger("store")

_UNDONE_AT_MOST = 4096


class SQLQueue:
    """Claims rollouts, at once or when there are some, and undoes claims that did not reach their caller."""

    def __init__(self, core: SQLCore) -> None:
        self.core = core
        # How to undo the latest claims that were handed out, by attempt.
        self._undo: OrderedDict[str, ReleaseClaim] = OrderedDict()
        core.on_undelivered = self._on_undelivered

    async def claim(self, limit: int, worker_id: str | None, wait_seconds: float) -> list[ClaimView] | Repeat:
        """Claim rollouts; where there are none, wait for some as long as given."""
        arguments.wait_seconds(wait_seconds)
        claims: list[ClaimView] | Repeat = await self.core.swept_call(rollout_commands.claim(limit, worker_id))
        if not claims and wait_seconds:
            self.core.check()
            claims = await self.core.thread.run(
                self._wait_for_claims(limit, worker_id, wait_seconds, context.idempotency_key.get()),
                lost=lambda claims: self._give_back(claims, worker_id),
            )
        return claims

    def hand_out(self, claims: Sequence[ClaimView]) -> list[AttemptedRollout]:
        """Return what a claim gives to its caller, and know how to undo it until then."""
        for undo in map(_undoing, claims):
            self._undo[undo.attempt_id] = undo
        while len(self._undo) > _UNDONE_AT_MOST:
            with contextlib.suppress(KeyError):  # another thread does the same
                self._undo.popitem(last=False)
        return [rollout_mapping.attempted_of_view(claim.rollout) for claim in claims]

    async def release_claims(self, claimed: Sequence[AttemptedRollout]) -> None:
        """Undo claims that this store handed out, if nothing has happened to them since.

        Their rollouts wait again where they waited, and no attempt is used up. This is for code between the store and a
        caller that has left. Claims made long ago, or answered a second time, stay with the watchdog.
        """
        self.core.check()
        undoing = [undo for each in claimed if (undo := self._undo.pop(each.attempt.attempt_id, None)) is not None]
        await self.core.thread.run(self._release_all(undoing))

    async def wait_for_end(self, rollout_ids: set[str], seconds: float | None) -> None:
        """Return when all of these rollouts that exist have ended, or at the deadline."""
        self.core.check()
        await self.core.thread.run(self._wait_for_end(rollout_ids, seconds))

    # -- in the store's own loop -------------------------------------------------------------------------------------

    async def _wait_for_claims(
        self, limit: int, worker_id: str | None, seconds: float, asked: Idempotency | None
    ) -> list[ClaimView] | Repeat:
        deadline = time.monotonic() + seconds
        with self.core.waiting.parked():
            while True:
                claims = await self._next_chance(ClaimWaiter(worker_id, limit, is_keyed=asked is not None), deadline)
                if claims is None:
                    command = rollout_commands.claim(limit, worker_id)
                    command.idempotency = asked
                    claims = await self.core.writer.call(command)
                if claims or time.monotonic() >= deadline:
                    return claims or []

    async def _next_chance(self, waiter: ClaimWaiter, deadline: float) -> list[ClaimView] | None:
        """Return claims handed over, none at the deadline, or None when it is worth trying again."""
        try:
            with self.core.waiting.in_line(waiter):
                # Something may have joined the queue before this call stood in line.
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
        """Undo what only its caller could have used, when the caller is gone. Called in any loop."""
        if isinstance(command, Claim) and reply:
            self.core.thread.loop.call_soon_threadsafe(self._give_back, reply, command.worker_id)

    def _give_back(self, claims: list[ClaimView] | Repeat, worker_id: str | None) -> None:
        # A repeated answer reached its caller before, who works on it; otherwise the watchdog judges.
        if not claims or isinstance(claims, Repeat):
            return
        # What was claimed under a key is answered under that key alone.
        if claims[0].asked is None and self.core.waiting.hand_over(claims, worker_id):
            return
        task = asyncio.ensure_future(self._release_all(list(map(_undoing, claims))))
        self.core.releasing.add(task)
        task.add_done_callback(self.core.releasing.discard)

    async def _release_all(self, undoing: Sequence[ReleaseClaim]) -> None:
        # Last first, so that each is still its rollout's latest event when its turn comes.
        for undo in reversed(undoing):
            await self._release(undo)

    async def _release(self, undo: ReleaseClaim) -> None:
        try:
            if await self.core.writer.call(undo):
                self.core.waiting.pass_on()
        except StoreError:
            logger.warning("a claim that nobody took could not be released; the watchdog will judge it", exc_info=True)

    async def _wait_for_end(self, wanted: set[str], seconds: float | None) -> None:
        waiting = self.core.waiting
        waiter = waiting.expect(wanted)
        try:
            known, ended = await self.core.known_and_ended(wanted)
            waiter.missing &= known - ended
            if waiter.missing:
                with waiting.parked():
                    async with asyncio.timeout(seconds):
                        await waiter.event.wait()
        except TimeoutError:
            pass
        finally:
            waiting.forget(waiter, wanted)
        if waiting.is_closed:
            raise Closed("wait_for_rollouts")


def _undoing(claim: ClaimView) -> ReleaseClaim:
    attempt = claim.rollout.attempt
    assert attempt is not None  # a claim opens one
    return ReleaseClaim(
        rollout_id=claim.rollout.row[0],
        attempt_id=attempt.row[1],
        claim_position=claim.claim_position,
        status_before=claim.status_before,
        queued_at=claim.queued_at,
        asked=claim.asked,
        actor="store",
    )
