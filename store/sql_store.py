"""The store on a SQL database: each method is one command for the writer, or one query for the readers."""

import asyncio
import atexit
import importlib
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from store import intake, reads
from store.clock import Clock
from store.db.dialect import Dialect, dialect_for
from store.db.encoding import MAX_CALL_ITEMS
from store.db.url import StoreURL, parse
from store.domain.commands import Claim, Command, ReleaseClaim, Sweep
from store.domain.views import ClaimView
from store.domain.world import World
from store.errors import Closed, Invalid, ReadOnly, StoreError, WrongProcess
from store.journal.home import Home
from store.journal.project import Committed
from store.journal.writer import Writer, WriterStatistics
from store.models import (
    UNSET,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Unset,
    Worker,
)
from store.sql_proof import SQLProof
from store.waiting import FALLBACK_SECONDS, ClaimWaiter, Waiting

logger = logging.getLogger("store")
span_logger = logging.getLogger("store.spans")

T = TypeVar("T")


class SQLStore(SQLProof):
    """A partition of a SQL database. Open it with `await open_store(url)`."""

    def __init__(self, url: StoreURL, dialect: Dialect, *, scan_debounce_seconds: float, read_only: bool) -> None:
        self._url = url
        self._dialect = dialect
        self._debounce = scan_debounce_seconds
        self._read_only = read_only
        self._pid = os.getpid()
        self._opened = time.monotonic()
        self._home = Home(f"rollbook {url.partition}")
        self._writer = Writer(dialect, self._home.loop, self._on_commit, self._on_undelivered)
        self._waiting: Waiting | None = None
        self._swept_at = float("-inf")
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._releasing: set[asyncio.Task[Any]] = set()
        self.store_id = ""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock | None = None,
        scan_debounce_seconds: float = 10.0,
        create: bool = True,
        read_only: bool = False,
    ) -> Self:
        """Open a store by its URL; see `store.open_store`."""
        parsed = parse(url)
        dialect = dialect_for(parsed)(parsed, clock, read_only=read_only)
        store = cls(parsed, dialect, scan_debounce_seconds=scan_debounce_seconds, read_only=read_only)
        try:
            await store._home.run(store._start(create=create))
        except BaseException:
            store._home.leave()
            raise
        _flush_at_exit(store)
        return store

    async def _start(self, *, create: bool) -> None:
        self.store_id = await self._dialect.open(create=create and not self._read_only)
        if not self._read_only:
            await self._writer.start()
        self._waiting = Waiting(
            self._dialect.wakeups(),
            depth=self._queue_depth,
            ended=self._ended,
            next_check=self._seconds_to_next_check,
            sweep=self._sweep,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._url.path is None and self._url.dsn is None:
            raise TypeError("a memory:// store cannot be pickled: no other process can reach it; use sqlite:///run.db")
        how = {"scan_debounce_seconds": self._debounce, "read_only": self._read_only}
        return _reopen, (self._url.text, how)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        # A copy in another process opens the same database, unless it is private to this one.
        is_shared = self._url.scheme != "memory"
        return {"thread_safe": True, "async_safe": True, "zero_copy": is_shared, "otlp_traces": False}

    @property
    def writer_statistics(self) -> WriterStatistics:
        """What the writer has done since the store was opened."""
        return self._writer.statistics

    # -- creation ----------------------------------------------------------------------------------------------------

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        command = intake.start_rollout(input, mode, resources_id, config, metadata, worker_id)
        return _attempted(await self._swept_call(command))

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        command = intake.enqueue_one(input, mode, resources_id, config, metadata)
        return reads.rollout_of_view((await self._swept_call(command))[0])

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        if not rollouts:
            return []
        views = await self._swept_call(intake.enqueue(rollouts))
        return [reads.rollout_of_view(view) for view in views]

    # -- the queue ---------------------------------------------------------------------------------------------------

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> AttemptedRollout | None:
        claims = await self._claim(1, worker_id, wait_seconds)
        return _attempted(claims[0].rollout) if claims else None

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> list[AttemptedRollout]:
        if limit <= 0:
            return []
        # One call carries no more than that; whoever wants more asks again.
        claims = await self._claim(min(limit, MAX_CALL_ITEMS), worker_id, wait_seconds)
        return [_attempted(claim.rollout) for claim in claims]

    async def _claim(self, limit: int, worker_id: str | None, wait_seconds: float) -> list[ClaimView]:
        if not 0 <= wait_seconds < float("inf"):
            raise Invalid("wait_seconds", f"{wait_seconds} must be 0 or more, and finite")
        claims: list[ClaimView] = await self._swept_call(intake.claim(limit, worker_id))
        if claims or not wait_seconds:
            return claims
        self._check()
        return await self._home.run(
            self._wait_for_claims(limit, worker_id, wait_seconds),
            lost=lambda claims: self._give_back(claims, worker_id),
        )

    async def _wait_for_claims(self, limit: int, worker_id: str | None, seconds: float) -> list[ClaimView]:
        deadline = time.monotonic() + seconds
        with self._at_work.parked():
            while True:
                claims = await self._next_chance(ClaimWaiter(worker_id, limit), deadline)
                if claims is None:
                    claims = await self._writer.call(intake.claim(limit, worker_id))
                if claims or time.monotonic() >= deadline:
                    return claims or []

    async def _next_chance(self, waiter: ClaimWaiter, deadline: float) -> list[ClaimView] | None:
        """Return claims handed over, none at the deadline, or None when it is worth trying again."""
        try:
            with self._at_work.in_line(waiter):
                # Something may have joined the queue before this call stood in line.
                if await self._queue_depth():
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
            self._at_work.pass_on()
        else:
            self._give_back(claims, waiter.worker_id)

    def _on_undelivered(self, command: Command, reply: Any) -> None:
        """Undo what only its caller could have used, when the caller is gone. Called in any loop."""
        if isinstance(command, Claim) and reply and not self._closed:
            self._home.loop.call_soon_threadsafe(self._give_back, reply, command.worker_id)

    def _give_back(self, claims: list[ClaimView], worker_id: str | None) -> None:
        if not claims or self._at_work.hand_over(claims, worker_id):
            return
        # Last first, so that each is still its rollout's latest event when its turn comes.
        for claim in reversed(claims):
            task = asyncio.ensure_future(self._release(claim))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _release(self, claim: ClaimView) -> None:
        attempted = _attempted(claim.rollout)
        command = ReleaseClaim(
            rollout_id=attempted.rollout_id,
            attempt_id=attempted.attempt.attempt_id,
            claim_position=claim.claim_position,
            status_before=claim.status_before,
            queued_at=claim.queued_at,
            actor="store",
        )
        try:
            if await self._writer.call(command):
                self._at_work.pass_on()
        except StoreError:
            logger.warning("a claim that nobody took could not be released; the watchdog will judge it", exc_info=True)

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        return _attempted(await self._swept_call(intake.start_attempt(rollout_id, worker_id)))

    # -- updates -----------------------------------------------------------------------------------------------------

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        command = intake.amend_rollout(rollout_id, input, mode, resources_id, status, config, metadata)
        return reads.rollout_of_view(await self._swept_call(command))

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        command = intake.update_attempt(rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata)
        return reads.attempt_of_view(await self._swept_call(command))

    # -- spans -------------------------------------------------------------------------------------------------------

    async def add_span(self, span: Span) -> Span | None:
        return span if await self._record([span]) else None

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        if not spans:
            return []
        return [spans[index] for index, _ in await self._record(spans)]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        span = Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0)
        recorded = await self._record([span], number=sequence_id is None)
        return span.model_copy(update={"sequence_id": recorded[0][1]}) if recorded else None

    async def _record(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        recorded = await self._call(intake.record_spans(spans, number=number))
        if len(recorded) < len(spans):
            new = {index for index, _ in recorded}
            for index, span in enumerate(spans):
                if index not in new:
                    span_logger.error(
                        "Duplicated span added: rollout=%s attempt=%s span=%s",
                        span.rollout_id,
                        span.attempt_id,
                        span.span_id,
                    )
        return recorded

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:  # noqa: ARG002
        return (await self._call(intake.number_spans([rollout_id])))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        if not rollout_attempt_ids:
            return []
        return await self._call(intake.number_spans(rollout_id for rollout_id, _ in rollout_attempt_ids))

    # -- resources and workers ---------------------------------------------------------------------------------------

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return reads.resources_of_view(await self._call(intake.publish(None, resources)))

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        return reads.resources_of_view(await self._swept_call(intake.publish(resources_id, resources)))

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        return reads.worker_of_view(await self._call(intake.beat(worker_id, heartbeat_stats)))

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        if timeout is not None and math.isnan(timeout):
            raise Invalid("timeout", f"{timeout} is no number of seconds; None waits for ever")
        await self._sweep_if_due()
        if timeout is None or timeout > 0:
            self._check()
            await self._home.run(self._wait_for_end(set(rollout_ids), timeout))
        return await self._ended_in_order(rollout_ids)

    async def _wait_for_end(self, wanted: set[str], timeout: float | None) -> None:
        waiting = self._at_work
        waiter = waiting.expect(wanted)
        try:
            known, ended = await self._known_and_ended(wanted)
            waiter.missing &= known - ended
            if waiter.missing:
                with waiting.parked():
                    async with asyncio.timeout(timeout):
                        await waiter.event.wait()
        except TimeoutError:
            pass
        finally:
            waiting.forget(waiter, wanted)
        if waiting.is_closed:
            raise Closed("wait_for_rollouts")

    # -- the watchdog ------------------------------------------------------------------------------------------------

    async def _sweep_if_due(self) -> None:
        now = time.monotonic()
        if self._read_only or now - self._swept_at < self._debounce:
            return
        self._swept_at = now
        seconds = await self._seconds_to_next_check()
        if seconds is not None and seconds < 0:
            await self._sweep()

    async def _sweep(self) -> int:
        """Give up the overdue attempts; the writer judges them."""
        return await self._call(Sweep(actor="watchdog"))

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _swept_call(self, command: Command) -> Any:
        await self._sweep_if_due()
        return await self._call(command)

    async def _call(self, command: Command) -> Any:
        self._check()
        if self._read_only:
            raise ReadOnly(type(command).__name__)
        return await self._writer.call(command)

    def _on_commit(self, world: World, committed: Committed | None) -> None:
        self._at_work.committed(world)
        if committed is not None:
            self._at_work.announce(committed.commit_id)

    @property
    def _at_work(self) -> Waiting:
        assert self._waiting is not None  # started
        return self._waiting

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if os.getpid() != self._pid:
            raise WrongProcess(self._pid, os.getpid())
        if self._closed:
            return
        self._closed = True
        await self._home.run(self._stop())
        self._home.leave()

    def flush_at_exit(self) -> None:
        """Finish what was taken, when the interpreter ends and nobody closed the store."""
        if not self._closed and os.getpid() == self._pid:
            self._home.submit(self._stop()).result(timeout=30)

    async def _stop(self) -> None:
        await self._at_work.close()
        if self._releasing:
            await asyncio.wait(list(self._releasing), timeout=5)
        await self._writer.close()
        # Only now, since the last commits are news too.
        await self._at_work.leave()
        await self._dialect.close()


def _attempted(view: Any) -> AttemptedRollout:
    rollout = reads.rollout_of_view(view)
    assert isinstance(rollout, AttemptedRollout)  # the answer to a call that opened an attempt carries it
    return rollout


def _reopen(url: str, how: dict[str, Any]) -> SQLStore:
    """Open a pickled store's URL in this process."""
    # Which has perhaps never opened a store, and so does not know the databases yet.
    importlib.import_module("store.opening")
    opened: list[SQLStore] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            opened.append(asyncio.run(SQLStore.open(url, create=False, **how)))
        except BaseException as error:  # noqa: BLE001 (raised in the thread that asked)
            failed.append(error)

    # A loop may be running in this thread, so the opening gets one of its own.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return opened[0]


def _flush_at_exit(store: SQLStore) -> None:
    reference = weakref.ref(store)

    def flush() -> None:
        alive = reference()
        if alive is not None:
            alive.flush_at_exit()

    atexit.register(flush)
