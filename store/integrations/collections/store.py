"""Store on collections: each call executes commands and reads, each in an atomic block of the collections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final, Generic, TypeVar, cast

from store.db.queries import filters
from store.db.queries.filters import FilterQuery
from store.domain.commands import (
    BeatWorker,
    Claim,
    Command,
    NumberSpans,
    PublishResources,
    RecordSpans,
    ReleaseClaim,
    SpansOutcome,
    Sweep,
)
from store.domain.rollout import TERMINAL
from store.domain.views import ClaimView
from store.errors import Closed, StoreError, Unsupported, WrongProcess
from store.integrations.collections.interface import Collection, LightningCollections, SortOptions, T
from store.integrations.collections.plan_keys import PlanKeyIndex
from store.integrations.collections.transaction import Decision, Transaction, latest_attempt
from store.interface.finishing import finish_by_parts
from store.interface.runs import AsAt
from store.interface.store import Store
from store.models import (
    Attempt,
    AttemptedRollout,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)
from store.models.calls import ChangingCall, DequeueManyRolloutsCall, DequeueRolloutCall, FinishAttemptCall
from store.models.queries import AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from store.runtime import process
from store.runtime.clock import Clock, system_clock
from store.runtime.loop_thread import LoopThread
from store.sql.calls import COMMANDS
from store.sql.commands import rollouts as commands
from store.sql.commands import spans as span_commands
from store.sql.mapping import rollouts as mapping
from store.validation import arguments
from store.validation.json_limits import MAX_CALL_ITEMS

logger = logging.getLogger("store")

C = TypeVar("C", bound=LightningCollections)
R = TypeVar("R")

# These commands end no wait of another call, so they wake waiting calls only if they set a time for the watchdog.
_QUIET: Final = (BeatWorker, Claim, NumberSpans, PublishResources, RecordSpans)
_CLOSING_SECONDS: Final = 30.0
# Fields of a rollout query that the rollouts in the collections do not have.
_NOT_HELD: Final = ("group", "step", "plan_key", "label", "scan_match", "resources_version", "reward")
# In µs, later than any time of a clock.
_NEVER: Final = 2**62


class CollectionBasedLightningStore(Store, Generic[C]):
    """Store on collections that you supply; see `LightningCollections`.

    The store applies the same rules as the other stores; the collections only hold rows. There is no log: `as_at`,
    `log`, `runs` and `annotations` raise `Unsupported`. All calls of the collections come from one event loop, which
    runs in a thread of its own.

    Args:
        collections: the collections. Nothing else may write to them, except other stores like this one.
        read_snapshot: whether all reads of one call have to see the same state.
        scan_debounce_seconds: the minimum time between two checks for overdue attempts.
        poll_seconds: the interval at which a waiting call looks for changes that another process made.
        clock: the source of times, in µs; None for the machine's clock.
    """

    def __init__(
        self,
        collections: C,
        *,
        read_snapshot: bool = False,
        scan_debounce_seconds: float = 10.0,
        poll_seconds: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self.collections = collections
        self._snapshot = read_snapshot
        self._debounce = scan_debounce_seconds
        self._poll = poll_seconds
        self._clock = clock or system_clock
        self._thread = LoopThread("rollbook collections")
        self._pid = process.number
        self._opened = time.monotonic()
        self._closed = False
        # The attributes below are used only in the event loop of the thread.
        self._calls: set[asyncio.Task[Any]] = set()
        self._news = asyncio.Event()
        self._plan_index = PlanKeyIndex()
        self._last_stamp = 0
        self._swept_at = -inf
        self._next_check = 0
        """When the watchdog has to check the next rollout, in µs, as far as this object knows."""

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    async def call(self, call: ChangingCall[R]) -> R:
        if isinstance(call, DequeueManyRolloutsCall):
            return cast("R", await self._dequeue(call.limit, call.worker_id, call.wait_seconds))
        if isinstance(call, DequeueRolloutCall):
            claimed = await self._dequeue(1, call.worker_id, call.wait_seconds)
            return cast("R", claimed[0] if claimed else None)
        if isinstance(call, FinishAttemptCall):
            return cast("R", await finish_by_parts(self, call))
        execution = COMMANDS[type(call)]
        return execution.result(await self._call(execution.command(call), sweeps=execution.sweeps))

    async def _dequeue(self, limit: int, worker_id: str | None, wait_seconds: float) -> list[AttemptedRollout]:
        commands.claim(0, worker_id)  # checks the id
        claims = await self._run(self._claim(min(limit, MAX_CALL_ITEMS), worker_id, wait_seconds), lost=self._give_back)
        return [mapping.attempted_of_view(claim.rollout) for claim in claims]

    async def add_span(self, span: Span) -> Span | None:
        command = span_commands.record_spans([span])
        return span_commands.stored_span(span, command.items[0]) if await self._record(command, [span]) else None

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        items = arguments.several(spans, "spans")
        if not items:
            return []
        command = span_commands.record_spans(items)
        recorded = await self._record(command, items)
        return [span_commands.stored_span(items[index], command.items[index]) for index, _ in recorded]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        span = arguments.sdk_span(rollout_id, attempt_id, readable_span, sequence_id)
        command = span_commands.record_spans([span], number=sequence_id is None)
        recorded = await self._record(command, [span])
        if not recorded:
            return None
        return span_commands.stored_span(span, command.items[0]).model_copy(update={"sequence_id": recorded[0][1]})

    async def _record(self, command: RecordSpans, spans: Sequence[Span]) -> list[tuple[int, int]]:
        recorded: SpansOutcome = await self._call(command, spans=spans)
        span_commands.check_recorded(command, recorded)
        return recorded.numbers

    async def find_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
        if query.reward_version is not None:
            raise Unsupported("query_rollouts with reward_version", type(self).__name__)
        filter_query = self._checked(query)

        async def read(collections: LightningCollections) -> PaginatedResult[Rollout | AttemptedRollout]:
            page = await _page(collections.rollouts, filter_query)
            items = [await _with_latest(collections, rollout) for rollout in page]
            return PaginatedResult(items=items, limit=page.limit, offset=page.offset, total=page.total)

        return await self._read(read, sweeps=True)

    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        arguments.text(rollout_id, "rollout_id")
        self._check_present(as_at, at)

        async def read(collections: LightningCollections) -> Rollout | AttemptedRollout | None:
            rollout = await collections.rollouts.get({"rollout_id": {"exact": rollout_id}})
            return None if rollout is None else await _with_latest(collections, rollout)

        return await self._read(read, sweeps=True)

    async def find_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        must = {"rollout_id": {"exact": arguments.text(rollout_id, "rollout_id")}}
        filter_query = self._checked(query, query.at)
        return await self._read(lambda collections: _page(collections.attempts, filter_query, must), sweeps=True)

    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        arguments.text(rollout_id, "rollout_id")
        self._check_present(as_at, at)
        return await self._read(lambda collections: latest_attempt(collections, rollout_id), sweeps=True)

    async def find_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        several = query.several
        must = {} if several is not None else {"rollout_id": {"exact": arguments.text(query.rollout_id, "rollout_id")}}
        if query.attempt_id is not None:
            arguments.text(query.attempt_id, "attempt_id")
        filter_query = self._checked(query, query.at)
        if several is not None:
            return await self._read(
                lambda collections: _spans_of_several(collections, filter_query, several, query.attempt_id),
                sweeps=True,
            )

        async def read(collections: LightningCollections) -> PaginatedResult[Span]:
            attempt_id = query.attempt_id
            if attempt_id == "latest":
                latest = await latest_attempt(collections, query.rollout_id)
                attempt_id = None if latest is None else latest.attempt_id
            nothing = filter_query.logic == "or" and not filter_query.conditions
            if nothing or (query.attempt_id is not None and attempt_id is None):
                return PaginatedResult(items=[], limit=filter_query.limit, offset=filter_query.offset, total=0)
            among = must if attempt_id is None else {**must, "attempt_id": {"exact": attempt_id}}
            if filter_query.sort_by == "sequence_id":
                return await _numbered_page(collections.spans, filter_query, among)
            return await _page(collections.spans, filter_query, among)

        return await self._read(read, sweeps=True)

    async def find_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        filter_query = self._checked(query)
        return await self._read(lambda collections: _page(collections.resources, filter_query))

    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        condition = {"resources_id": {"exact": arguments.text(resources_id, "resources_id")}}
        self._check_present(as_at)
        return await self._read(lambda collections: collections.resources.get(condition))

    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        self._check_present(as_at)
        return await self._read(
            lambda collections: collections.resources.get(sort={"name": "update_time", "order": "desc"})
        )

    async def find_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        filter_query = self._checked(query)
        return await self._read(lambda collections: _page(collections.workers, filter_query), sweeps=True)

    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        condition = {"worker_id": {"exact": arguments.text(worker_id, "worker_id")}}
        self._check_present(as_at)
        return await self._read(lambda collections: collections.workers.get(condition))

    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        self._check_present(as_at)

        async def read(collections: LightningCollections) -> LightningStoreStatistics:
            return {
                "name": type(self).__name__,
                "total_rollouts": await collections.rollouts.size(),
                "total_attempts": await collections.attempts.size(),
                "total_spans": await collections.spans.size(),
                "total_resources": await collections.resources.size(),
                "total_workers": await collections.workers.size(),
                "uptime": time.monotonic() - self._opened,
            }

        return await self._read(read)

    def _checked(self, query: Any, at: int | None = None) -> FilterQuery:
        self._check_present(query.as_at, at)
        checked = filters.of(query)
        for field in _NOT_HELD:
            if query.uses_additions and checked.uses(field):
                raise Unsupported(f"a query of rollouts by {field}", type(self).__name__)
        return checked

    def _check_present(self, as_at: AsAt | None, at: int | None = None) -> None:
        if as_at is not None or at is not None:
            raise Unsupported("as_at", type(self).__name__)

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        arguments.timeout(timeout)
        ids = arguments.texts(rollout_ids, "rollout_ids")
        return await self._run(self._wait_for_end(ids, timeout))

    async def close(self) -> None:
        if process.number != self._pid:
            raise WrongProcess(self._pid, process.number)
        if self._closed:
            return
        self._closed = True
        await self._thread.run(self._stop())
        self._thread.leave()

    async def _run(self, work: Coroutine[Any, Any, R], lost: Callable[[R], None] | None = None) -> R:
        if self._closed or process.number != self._pid:
            work.close()
            if process.number != self._pid:
                raise WrongProcess(self._pid, process.number)
            raise Closed("a call")
        return await self._thread.run(self._tracked(work), lost)

    async def _tracked(self, work: Coroutine[Any, Any, R]) -> R:
        task = asyncio.current_task()
        assert task is not None  # it runs in the loop
        self._calls.add(task)
        try:
            return await work
        finally:
            self._calls.discard(task)

    async def _call(self, command: Command, *, sweeps: bool = False, spans: Sequence[Span] = ()) -> Any:
        """Return the answer to a command."""

        async def work() -> Any:
            if sweeps:
                await self._sweep_if_due()
            return await self._decide(command, spans)

        return await self._run(work())

    async def _read(self, read: Callable[[LightningCollections], Awaitable[R]], *, sweeps: bool = False) -> R:
        async def work() -> R:
            if sweeps:
                await self._sweep_if_due()
            return await self._look(read)

        return await self._run(work())

    async def _look(self, read: Callable[[LightningCollections], Awaitable[R]]) -> R:
        return await self.collections.execute(read, mode="r", snapshot=self._snapshot)

    async def _decide(self, command: Command, spans: Sequence[Span] = ()) -> Any:
        """Return the answer to a command. The command is completed even if the caller is cancelled."""
        deciding = asyncio.ensure_future(self._decide_whole(command, spans))
        self._in_background(deciding)
        try:
            return await asyncio.shield(deciding)
        except asyncio.CancelledError:
            deciding.add_done_callback(self._unread)
            raise

    def _unread(self, decided: asyncio.Task[Any]) -> None:
        """Release the claims of a completed command whose caller was cancelled."""
        if decided.cancelled() or decided.exception() is not None:
            return
        answer: Any = decided.result()
        if isinstance(answer, list):
            self._give_back([view for view in cast("list[Any]", answer) if isinstance(view, ClaimView)])

    def _in_background(self, task: asyncio.Task[Any]) -> None:
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _decide_whole(self, command: Command, spans: Sequence[Span]) -> Any:
        async def decide(collections: C) -> Decision:
            transaction = Transaction(collections, self._clock, lambda: self._last_stamp, self._plan_index)
            return await transaction.execute(command, spans)

        outcome = await self.collections.execute(decide, mode="rw", snapshot=self._snapshot, commit=True)
        self._last_stamp = max(self._last_stamp, outcome.last_stamp)
        if isinstance(command, Sweep):
            self._next_check = _NEVER if outcome.next_check is None else outcome.next_check
        elif outcome.next_check is not None:
            self._next_check = min(self._next_check, outcome.next_check)
        if not isinstance(command, _QUIET) or outcome.next_check is not None:
            self._announce()
        if outcome.error is not None:
            raise outcome.error
        return outcome.answer

    def _announce(self) -> None:
        """Wake the calls that wait."""
        self._news.set()
        self._news = asyncio.Event()

    async def _sweep_if_due(self) -> None:
        if time.monotonic() - self._swept_at >= self._debounce:
            await self._sweep()

    async def _sweep(self) -> None:
        self._swept_at = time.monotonic()
        await self._decide(Sweep(actor="watchdog"))

    async def _claim(self, limit: int, worker_id: str | None, seconds: float) -> list[ClaimView]:
        await self._sweep_if_due()
        deadline = time.monotonic() + seconds
        while True:
            news = self._news
            claims: list[ClaimView] = await self._decide(commands.claim(limit, worker_id))
            if claims or time.monotonic() >= deadline:
                return claims
            await self._wait_for(news, self._has_work, deadline, "dequeue_rollout")

    async def _has_work(self, collections: LightningCollections) -> bool:
        return bool(await collections.rollout_queue.size())

    async def _wait_for_end(self, rollout_ids: list[str], seconds: float | None) -> list[Rollout]:
        await self._sweep_if_due()
        deadline = inf if seconds is None else time.monotonic() + seconds
        rollouts: dict[str, Rollout] = {}

        async def have_ended(collections: LightningCollections) -> bool:
            rollouts.clear()
            if rollout_ids:
                page = await collections.rollouts.query({"rollout_id": {"within": sorted(set(rollout_ids))}})
                rollouts.update({rollout.rollout_id: rollout for rollout in page})
            return all(rollout.status in TERMINAL for rollout in rollouts.values())

        news = self._news
        if not await self._look(have_ended):
            await self._wait_for(news, have_ended, deadline, "wait_for_rollouts")
        return [
            rollouts[rollout_id]
            for rollout_id in rollout_ids
            if rollout_id in rollouts and rollouts[rollout_id].status in TERMINAL
        ]

    async def _wait_for(
        self,
        news: asyncio.Event,
        condition: Callable[[LightningCollections], Awaitable[bool]],
        deadline: float,
        operation: str,
    ) -> None:
        """Wait until a condition on the collections holds, or until the deadline; meanwhile check for overdue attempts.

        Args:
            news: the event of the next change since the condition was last known not to hold.
            condition: reads the collections, and returns whether the condition holds.
            deadline: a time of `time.monotonic`.
            operation: the name of the call, for the error.

        Raises:
            Closed: the store was closed.
        """
        while not self._closed:
            seconds = min(deadline - time.monotonic(), self._poll, self._seconds_to_check())
            if seconds > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await news.wait()
            if self._closed:
                break
            if self._seconds_to_check() <= 0 or time.monotonic() - self._swept_at >= max(self._debounce, self._poll):
                await self._sweep()
            news = self._news
            if await self._look(condition) or time.monotonic() >= deadline:
                return
        raise Closed(operation)

    def _seconds_to_check(self) -> float:
        # A time limit has to be exceeded, not only reached, so the check is due 1 µs later.
        return (self._next_check + 1 - self._clock()) / 1_000_000

    def _give_back(self, claims: list[ClaimView]) -> None:
        """Release claims that did not reach their caller. Called in the loop."""
        if claims:
            self._in_background(asyncio.ensure_future(self._release(claims)))

    async def _release(self, claims: list[ClaimView]) -> None:
        # Each released rollout becomes the first of the queue, so the reverse order restores the original one.
        for claim in reversed(claims):
            attempt = claim.rollout.attempt
            assert attempt is not None  # a claim starts an attempt
            undo = ReleaseClaim(
                rollout_id=claim.rollout.row.rollout_id,
                attempt_id=attempt.row.attempt_id,
                # The collections hold no positions, so every attempt is loaded with position 0.
                claim_position=0,
                status_before=claim.status_before,
                queued_at=claim.queued_at,
                actor="store",
            )
            try:
                await self._decide(undo)
            except StoreError:
                logger.warning("an unread claim could not be released; the watchdog will give it up", exc_info=True)

    async def _stop(self) -> None:
        self._announce()
        deadline = time.monotonic() + _CLOSING_SECONDS
        # A call that ends may start another task, which releases its claims.
        while self._calls and time.monotonic() < deadline:
            await asyncio.wait(set(self._calls), timeout=deadline - time.monotonic())
        await self.collections.close()


async def _with_latest(collections: LightningCollections, rollout: Rollout) -> Rollout | AttemptedRollout:
    latest = await latest_attempt(collections, rollout.rollout_id)
    return rollout if latest is None else AttemptedRollout.model_construct(**dict(rollout), attempt=latest)


async def _page(
    collection: Collection[T], query: FilterQuery, must: dict[str, Any] | None = None
) -> PaginatedResult[T]:
    options = _options(query, must)
    order: SortOptions | None = None
    if query.sort_by is not None:
        order = {"name": query.sort_by, "order": "desc" if query.is_descending else "asc"}
    return await collection.query(options, order, query.limit, query.offset)


def _options(query: FilterQuery, must: dict[str, Any] | None) -> dict[str, Any]:
    options: dict[str, Any] = {"_aggregate": query.logic}
    if must is not None:
        options["_must"] = must
    names = {"is": "exact", "in": "within", "contains": "contains"}
    for condition in query.conditions:
        options.setdefault(condition.field, {})[names[condition.operation]] = condition.value
    return options


async def _numbered_page(
    collection: Collection[Span], query: FilterQuery, must: dict[str, Any]
) -> PaginatedResult[Span]:
    """Return a page of spans by sequence number; equal numbers are in the order of their times, None last."""
    spans = [*await collection.query(_options(query, must))]
    spans.sort(key=lambda span: (_last(span.start_time), _last(span.end_time)))
    spans.sort(key=lambda span: span.sequence_id, reverse=query.is_descending)
    end = None if query.limit == -1 else query.offset + query.limit
    return PaginatedResult(items=spans[query.offset : end], limit=query.limit, offset=query.offset, total=len(spans))


async def _spans_of_several(
    collections: LightningCollections, query: FilterQuery, rollout_ids: list[str], attempt_id: str | None
) -> PaginatedResult[Span]:
    """Return a page of the spans of several rollouts. Spans by sequence number are in the order of the rollout ids."""
    all_of_rollout = filters.query(filters.SPANS, filter_logic=query.logic, sort_by=query.sort_by)
    all_of_rollout = replace(all_of_rollout, conditions=query.conditions, is_descending=query.is_descending)
    spans: list[Span] = []
    if rollout_ids and (query.logic == "and" or query.conditions):
        must = {"rollout_id": {"within": rollout_ids}}
        by_number = query.sort_by == "sequence_id"
        spans = [*await (_numbered_page if by_number else _page)(collections.spans, all_of_rollout, must)]
        if attempt_id == "latest":
            attempts = [await latest_attempt(collections, rollout_id) for rollout_id in rollout_ids]
            latest = {(attempt.rollout_id, attempt.attempt_id) for attempt in attempts if attempt is not None}
            spans = [span for span in spans if (span.rollout_id, span.attempt_id) in latest]
        elif attempt_id is not None:
            spans = [span for span in spans if span.attempt_id == attempt_id]
        if by_number:
            spans.sort(key=lambda span: span.rollout_id)
    end = None if query.limit == -1 else query.offset + query.limit
    return PaginatedResult(items=spans[query.offset : end], limit=query.limit, offset=query.offset, total=len(spans))


def _last(value: float | None) -> float:
    return inf if value is None else value
