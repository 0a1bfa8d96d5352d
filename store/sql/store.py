"""The store on a SQL database: each method is one command for the writer, or one query for the readers."""

import asyncio
import atexit
import contextlib
import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from typing import Any, Self, TypeVar

from store.db.dialect import Dialect, dialect_for, register
from store.db.drivers.postgres.dialect import Postgres
from store.db.drivers.sqlite.dialect import SQLite
from store.db.url import StoreURL, parse
from store.domain.commands import Claim, Command, Idempotency, NumberSpans, RecordSpans, ReleaseClaim, Sweep
from store.domain.idempotency import Repeat, is_keyed
from store.domain.run_commands import TellRun
from store.domain.views import ClaimView
from store.domain.working_set import World
from store.errors import Closed, ReadOnly, StoreError, WrongProcess
from store.journal.writer import Committed, Waiter, Writer, WriterStatistics
from store.models import (
    UNSET,
    Attempt,
    AttemptedRollout,
    AttemptError,
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
from store.runtime import context, process
from store.runtime.clock import Clock
from store.runtime.loop_thread import Home
from store.sql import replies
from store.sql.annotations import SQLAnnotations
from store.sql.commands import rollouts as rollout_commands
from store.sql.commands import spans as span_commands
from store.sql.follow import SQLRunFollowing
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.threads import SQLThreads
from store.sql.waiters import FALLBACK_SECONDS, ClaimWaiter, Waiting
from store.validation import arguments
from store.validation.json_limits import MAX_CALL_ITEMS

logger = logging.getLogger("store")
span_logger = logging.getLogger("store.spans")

T = TypeVar("T")
_UNDONE_AT_MOST = 4096
# What is done at any time, whether attempts are overdue or not.
_UNSWEPT: frozenset[type[Command]] = frozenset({RecordSpans, NumberSpans, TellRun})

register("memory", SQLite)
register("sqlite", SQLite)
register("postgresql", Postgres)


class SQLStore(SQLThreads, SQLAnnotations, SQLRunFollowing):
    """A partition of a SQL database. Open it with `await open_store(url)`."""

    def __init__(
        self,
        url: StoreURL,
        dialect: Dialect,
        *,
        scan_debounce_seconds: float,
        read_only: bool,
        home: Home | None = None,
    ) -> None:
        self._url = url
        self._dialect = dialect
        self._debounce = scan_debounce_seconds
        self._read_only = read_only
        self._pid = process.number
        self._opened = time.monotonic()
        self._home = home or Home(f"rollbook {url.partition}")
        self._writer = Writer(dialect, self._home.loop, self._on_commit, self._on_undelivered)
        self._waiting: Waiting | None = None
        self._swept_at = float("-inf")
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        # How to undo the latest claims that were handed out, by attempt.
        self._undo: OrderedDict[str, ReleaseClaim] = OrderedDict()
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
        beside: "SQLStore | None" = None,
    ) -> Self:
        """Open a store by its URL; see `store.open_store`.

        Args:
            url: as there, and so is what follows.
            beside: another partition of the same database, whose connections are shared where that is possible.
        """
        parsed = parse(url)
        dialect = dialect_for(parsed)(parsed, clock, read_only=read_only)
        home = None if beside is None else beside.room_for(dialect)
        store = cls(parsed, dialect, scan_debounce_seconds=scan_debounce_seconds, read_only=read_only, home=home)
        try:
            await store._home.run(store._start(create=create))
        except BaseException:
            store._home.leave()
            raise
        _flush_at_exit(store)
        return store

    def room_for(self, dialect: Dialect) -> Home | None:
        """Return where this store lives, for another partition whose connections can be shared; None for others."""
        return self._home.shared() if dialect.share(self._dialect) else None

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

    @property
    def inbox(self) -> tuple[int, int]:
        """How many calls wait for the writer, and how many bytes they carry."""
        return self._writer.waiting, self._writer.waiting_bytes

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
        command = rollout_commands.start_rollout(input, mode, resources_id, config, metadata, worker_id)
        answer = await self._swept_call(command)
        return await replies.attempted(self, answer) if isinstance(answer, Repeat) else _attempted(answer)

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        command = rollout_commands.enqueue_one(input, mode, resources_id, config, metadata)
        answer = await self._swept_call(command)
        return (
            await replies.rollout(self, answer)
            if isinstance(answer, Repeat)
            else rollout_mapping.rollout_of_view(answer[0])
        )

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        given = arguments.several(rollouts, "rollouts")
        if not given:
            return []
        answer = await self._swept_call(rollout_commands.enqueue(given))
        if isinstance(answer, Repeat):
            return await replies.rollouts(self, answer)
        return [rollout_mapping.rollout_of_view(view) for view in answer]

    # -- the queue ---------------------------------------------------------------------------------------------------

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> AttemptedRollout | None:
        claimed = await self._claimed(await self._claim(1, worker_id, wait_seconds))
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> list[AttemptedRollout]:
        if arguments.whole(limit, "limit", "how many rollouts to claim") <= 0:
            return []
        # One call carries no more than that; whoever wants more asks again.
        return await self._claimed(await self._claim(min(limit, MAX_CALL_ITEMS), worker_id, wait_seconds))

    async def _claimed(self, claims: list[ClaimView] | Repeat) -> list[AttemptedRollout]:
        return await replies.claims(self, claims) if isinstance(claims, Repeat) else self.hand_out(claims)

    def hand_out(self, claims: Sequence[ClaimView]) -> list[AttemptedRollout]:
        """Return what a claim gives to its caller, and know how to undo it until then."""
        for undo in map(_undoing, claims):
            self._undo[undo.attempt_id] = undo
        while len(self._undo) > _UNDONE_AT_MOST:
            with contextlib.suppress(KeyError):  # another thread does the same
                self._undo.popitem(last=False)
        return [_attempted(claim.rollout) for claim in claims]

    async def release_claims(self, claimed: Sequence[AttemptedRollout]) -> None:
        """Undo claims that this store handed out, if nothing has happened to them since.

        Their rollouts wait again where they waited, and no attempt is used up. For who stands between the store and a
        caller that has left; claims made long ago, or answered a second time, stay with the watchdog.
        """
        self._check()
        undoing = [undo for each in claimed if (undo := self._undo.pop(each.attempt.attempt_id, None)) is not None]
        await self._home.run(self._release_all(undoing))

    async def _release_all(self, undoing: Sequence[ReleaseClaim]) -> None:
        # Last first, so that each is still its rollout's latest event when its turn comes.
        for undo in reversed(undoing):
            await self._release(undo)

    async def _claim(self, limit: int, worker_id: str | None, wait_seconds: float) -> list[ClaimView] | Repeat:
        arguments.wait_seconds(wait_seconds)
        claims: list[ClaimView] | Repeat = await self._swept_call(rollout_commands.claim(limit, worker_id))
        if not claims and wait_seconds:
            self._check()
            claims = await self._home.run(
                self._wait_for_claims(limit, worker_id, wait_seconds, context.idempotency_key.get()),
                lost=lambda claims: self._give_back(claims, worker_id),
            )
        return claims

    async def _wait_for_claims(
        self, limit: int, worker_id: str | None, seconds: float, asked: Idempotency | None
    ) -> list[ClaimView] | Repeat:
        deadline = time.monotonic() + seconds
        with self._at_work.parked():
            while True:
                claims = await self._next_chance(ClaimWaiter(worker_id, limit, is_keyed=asked is not None), deadline)
                if claims is None:
                    command = rollout_commands.claim(limit, worker_id)
                    command.idempotency = asked
                    claims = await self._writer.call(command)
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

    def _give_back(self, claims: list[ClaimView] | Repeat, worker_id: str | None) -> None:
        # An answer that was given before went to somebody; who has it works on it, or the watchdog judges.
        if not claims or isinstance(claims, Repeat):
            return
        # What was claimed under a key is answered under that key alone.
        if claims[0].asked is None and self._at_work.hand_over(claims, worker_id):
            return
        task = asyncio.ensure_future(self._release_all(list(map(_undoing, claims))))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, undo: ReleaseClaim) -> None:
        try:
            if await self._writer.call(undo):
                self._at_work.pass_on()
        except StoreError:
            logger.warning("a claim that nobody took could not be released; the watchdog will judge it", exc_info=True)

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        answer = await self._swept_call(rollout_commands.start_attempt(rollout_id, worker_id))
        return await replies.attempted(self, answer) if isinstance(answer, Repeat) else _attempted(answer)

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
        command = rollout_commands.amend_rollout(rollout_id, input, mode, resources_id, status, config, metadata)
        answer = await self._swept_call(command)
        return (
            await replies.rollout(self, answer)
            if isinstance(answer, Repeat)
            else rollout_mapping.rollout_of_view(answer)
        )

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
        *,
        error: AttemptError | Unset = UNSET,
    ) -> Attempt:
        command = rollout_commands.update_attempt(
            rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata, error
        )
        answer = await self._swept_call(command)
        return (
            await replies.attempt(self, answer)
            if isinstance(answer, Repeat)
            else rollout_mapping.attempt_of_view(answer)
        )

    # -- spans -------------------------------------------------------------------------------------------------------

    async def add_span(self, span: Span) -> Span | None:
        return span if await self.record_spans([span]) else None

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        given = arguments.several(spans, "spans")
        return [given[index] for index, _ in await self.record_spans(given)] if given else []

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        span = arguments.sdk_span(rollout_id, attempt_id, readable_span, sequence_id)
        recorded = await self.record_spans([span], number=sequence_id is None)
        return span.model_copy(update={"sequence_id": recorded[0][1]}) if recorded else None

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Store spans as `add_many_spans` does; return (index in the call, sequence_id) of those that are new.

        Args:
            spans: the spans, of any attempts.
            number: give each the next number of its rollout instead of the one it carries, in the same transaction.

        Raises:
            NotFound: no such rollout or attempt; what stands before it in the call is stored.
        """
        return await self.record(span_commands.record_spans(spans, number=number))

    async def record(self, command: RecordSpans) -> list[tuple[int, int]]:
        """As `record_spans`, for spans that are a command already; its errors are those of the store."""
        answer = await self._call(command)
        recorded = await replies.recorded(self, answer) if isinstance(answer, Repeat) else answer
        if len(recorded) < len(command.items):
            new = {index for index, _ in recorded}
            for index, item in enumerate(command.items):
                if index not in new:
                    span_logger.error(
                        "Duplicated span added: rollout=%s attempt=%s span=%s",
                        item.rollout_id,
                        item.fact.attempt_id,
                        item.fact.span_id,
                    )
        return recorded

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        ids = arguments.text(rollout_id, "rollout_id"), arguments.text(attempt_id, "attempt_id")
        return (await self.get_many_span_sequence_ids([ids]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        pairs = arguments.pairs(rollout_attempt_ids, "rollout_attempt_ids")
        if not pairs:
            return []
        answer = await self._call(rollout_commands.number_spans(rollout_id for rollout_id, _ in pairs))
        return await replies.numbers(self, answer) if isinstance(answer, Repeat) else answer

    # -- resources and workers ---------------------------------------------------------------------------------------

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return await self._published(self._call(rollout_commands.publish(None, resources)))

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        return await self._published(
            self._swept_call(rollout_commands.publish(arguments.text(resources_id, "resources_id"), resources))
        )

    async def _published(self, call: Awaitable[Any]) -> ResourcesUpdate:
        answer = await call
        return (
            await replies.resources(self, answer)
            if isinstance(answer, Repeat)
            else rollout_mapping.resources_of_view(answer)
        )

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        return rollout_mapping.worker_of_view(await self._call(rollout_commands.beat(worker_id, heartbeat_stats)))

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        arguments.timeout(timeout)
        rollout_ids = arguments.texts(rollout_ids, "rollout_ids")
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
        if self._read_only or not self._sweep_is_due():
            return
        self._swept_at = time.monotonic()
        seconds = await self._seconds_to_next_check()
        if seconds is not None and seconds < 0:
            await self._sweep()

    def _sweep_is_due(self) -> bool:
        return time.monotonic() - self._swept_at >= self._debounce

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
        if (asked := context.idempotency_key.get()) is not None and is_keyed(command):
            command.idempotency = asked
        if command.actor is None:
            command.actor = context.actor.get()
        return await self._writer.call(command)

    def submit(self, command: Command, waiter: Waiter) -> bool:
        """Hand over a command whose answer `waiter` is told in the running loop: what a method does, in fewer steps.

        The answer is what was decided, or `Repeat`. False if nothing was done, since the method would do more.

        Raises:
            Busy: too much waits already; nothing was done.
            Closed: the store is closed.
        """
        self._check()
        if self._read_only or (type(command) not in _UNSWEPT and self._sweep_is_due()):
            return False
        self._writer.submit(command, waiter)
        return True

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
        if process.number != self._pid:
            raise WrongProcess(self._pid, process.number)
        if self._closed:
            return
        self._closed = True
        await self._home.run(self._stop())
        self._home.leave()

    def flush_at_exit(self) -> None:
        """Finish what was taken, when the interpreter ends and nobody closed the store."""
        if not self._closed and process.number == self._pid:
            self._home.submit(self._stop()).result(timeout=30)

    async def _stop(self) -> None:
        await self._at_work.close()
        if self._releasing:
            await asyncio.wait(list(self._releasing), timeout=5)
        await self._writer.close()
        # Only now, since the last commits are news too.
        await self._at_work.leave()
        await self._dialect.close()


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


def _attempted(view: Any) -> AttemptedRollout:
    rollout = rollout_mapping.rollout_of_view(view)
    assert isinstance(rollout, AttemptedRollout)  # the answer to a call that opened an attempt carries it
    return rollout


def _reopen(url: str, how: dict[str, Any]) -> SQLStore:
    """Open a pickled store's URL in this process."""
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
