"""The store as its callers see it: the methods of Agent-lightning 0.3's LightningStore, and Rollbook's own.

The docstrings are the specification; every implementation passes the same contract suite. All times are float seconds
since the epoch, all durations float seconds.
"""
# ruff: noqa: A002, ASYNC109 - names are Agent-lightning's, and a default that only refuses uses no argument.

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from store.errors import Unsupported
from store.interface.annotations import StoreAnnotations, SyncAnnotations
from store.interface.log import StoreLog, SyncLog
from store.interface.runs import AsAt, StoreRuns, SyncRuns
from store.interface.threads import StoreThreads, SyncThreads
from store.models import (
    UNSET,
    Attempt,
    AttemptedRollout,
    AttemptError,
    AttemptStatus,
    EnqueueRolloutRequest,
    FilterLogic,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    SortOrder,
    Span,
    TaskInput,
    Unset,
    Worker,
    WorkerStatus,
)
from store.models.queries import AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from store.runtime.blocking import Blocking, CallThread, blocking


class Store(abc.ABC):
    """A rollout store: queue, attempts, spans, resources and workers of one training run, and the log they come from.

    Calls are atomic, may come from any task, event loop or thread, and return once what they did is committed. Besides
    the errors named at each method, every call may raise `Unavailable` (retry later), `Closed` and `WrongProcess`, and
    every call that writes `ReadOnly`, `TooLarge`, and `Invalid` for what no database could give back as it came: NaN,
    infinities, integers beyond 64 bits, U+0000, lone surrogates, ids of more than 512 bytes. `log`, `runs`,
    `annotations` and `threads` group more methods; where a store lacks one of them, its methods raise `Unsupported`.

    **Status.** An attempt is preparing until its first span makes it running, then succeeded or failed as reported. Its
    rollout follows the *latest* attempt, the one with the greatest sequence_id: preparing, running and succeeded are
    taken over; failed, timeout and unresponsive become requeuing if `retry_condition` lists them and fewer than
    `max_attempts` attempts were made, else failed.

    **Overdue attempts.** Calls marked *sweeps* first judge the latest attempt of every rollout that is preparing or
    running: older than `timeout_seconds` it becomes timeout; silent for longer than `unresponsive_seconds` it becomes
    unresponsive, its worker unknown. A sweep happens at most once per `scan_debounce_seconds`, the first marked call
    always sweeps, and while any call waits the store sweeps by itself.

    **The past.** `as_at` on a read answers as the store stood at that moment of the log: an int is the position of the
    last event to be seen, an aware datetime the time by which it was recorded; what lies after the end of the log means
    its end, and no call is ever seen half done. Where one rollout is read, `at` is the number of one of its own events,
    as `log.history` counts them. Signs of life that are not events (repeated heartbeats and polls) read None in the
    past. Such reads do not sweep. They raise `Invalid` for a naive datetime, a float, a negative position or a number
    the rollout does not have, and `PastUnavailable` if too much changed since.

    **Queries.** Conditions that are None are ignored; an empty list matches nothing. With `filter_logic="or"` any given
    condition suffices, with "and" all must hold; without conditions everything matches. `*_contains` is a
    case-sensitive substring, never true of None. `sort_by` is any scalar field of the model, None means creation order;
    ties keep creation order either way; text is ordered by code point; in ascending order None comes last in fields
    that end in `_time`, and as if empty or zero in others. `limit=-1` returns all, `limit=0` only the total; `offset`
    skips after sorting. Queries raise `Invalid` for a field that does not exist or has no order, and for a limit below
    -1 or a negative offset.
    """

    @property
    @abc.abstractmethod
    def capabilities(self) -> LightningStoreCapabilities:
        """What callers may rely on; an absent key means False."""

    @property
    def log(self) -> StoreLog:
        """The facts that the store recorded, and their proof."""
        return StoreLog(type(self).__name__)

    @property
    def runs(self) -> StoreRuns:
        """Runs with phases: their events, checkpoints and artefacts, and running a part of them again."""
        return StoreRuns(type(self).__name__)

    @property
    def annotations(self) -> StoreAnnotations:
        """Labels and notes of rollouts."""
        return StoreAnnotations(type(self).__name__)

    @property
    def threads(self) -> StoreThreads:
        """Threads of checkpoints, for LangGraph."""
        return StoreThreads(type(self).__name__)

    def otlp_traces_endpoint(self) -> str:
        """Return the URL to which OpenTelemetry exporters may post traces.

        Raises:
            Unsupported: this store is not behind a server; check `capabilities["otlp_traces"]`.
        """
        raise Unsupported("otlp_traces_endpoint", type(self).__name__)

    @abc.abstractmethod
    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout together with its first attempt, without the queue, and return both. Sweeps.

        Both are preparing and start at the same instant. The arguments are those of `enqueue_rollout`; `worker_id`
        names who runs the attempt and becomes busy.

        Raises:
            Conflict: the metadata's `rollbook.key` belongs to a rollout already; the text names it.
            Invalid: a reserved metadata key has the wrong type.
        """

    @abc.abstractmethod
    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        """Create a rollout at the end of the queue and return it. Sweeps.

        Args:
            input: what the agent is asked to do, any JSON value.
            mode: what it is run for.
            resources_id: the resources it uses; need not exist. None: the latest at this moment, if there are any.
            config: limits and retries; None for the defaults (one attempt, no limits).
            metadata: any JSON object; None becomes `{}`. Three keys are read here, once: `rollbook.group` (str) and
                `rollbook.step` (int) for grouping, and `rollbook.key` (str), a plan key: if a rollout with the same
                key and an equal input exists, that one is returned and nothing is created.

        Raises:
            Conflict: the plan key belongs to a rollout with another input.
            Invalid: a reserved metadata key has the wrong type.
        """

    @abc.abstractmethod
    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        """Create rollouts at the end of the queue, in the order given, all or none, and return them. Sweeps.

        Each is treated as by `enqueue_rollout`; the latest resources are looked up once. An empty list gives one.

        Raises:
            Conflict: a plan key belongs to a rollout with another input, in the store or earlier in the list.
            Invalid: a reserved metadata key has the wrong type.
        """

    @abc.abstractmethod
    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> AttemptedRollout | None:
        """Claim the rollout that waits longest: open its next attempt and return both, or None. Sweeps.

        The rollout and its new attempt are preparing; an `end_time` from an earlier end stays. Two workers never claim
        the same attempt. A worker that is named is created if new: busy with what it got, idle if it got nothing,
        which leaves the ids it last worked on.

        Args:
            worker_id: who claims.
            wait_seconds: how long to wait for a rollout if none waits; 0 answers at once. Cancelling the wait loses
                nothing: a claim nobody takes any more goes to another waiter of the same worker_id or is undone.

        Raises:
            Invalid: `wait_seconds` is negative or not finite.
        """

    @abc.abstractmethod
    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> list[AttemptedRollout]:
        """Claim up to `limit` rollouts, those that wait longest first; fewer or none if there are no more. Sweeps.

        As `dequeue_rollout`; the worker is then busy with the last of them. A limit of 0 or less claims nothing and
        touches nothing. Waiting ends as soon as there is one.

        Raises:
            Invalid: `wait_seconds` is negative or not finite.
        """

    @abc.abstractmethod
    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """Open another attempt of a rollout, whatever its status and however many it had, and return both. Sweeps.

        The rollout becomes preparing and leaves the queue; earlier attempts and `end_time` stay as they are. A worker
        that is named becomes busy.

        Raises:
            NotFound: no such rollout.
        """

    @abc.abstractmethod
    async def add_span(self, span: Span) -> Span | None:
        """Store a span and return it, or None if this attempt has a span of that span_id already.

        The rollout's sequence counter is raised to the span's number even if the span is refused. A stored span is a
        sign of life of its attempt. A preparing or unresponsive attempt becomes running; if it is the latest and now
        running, a preparing or requeuing rollout becomes running with it. An attempt that ended stays ended, and a
        retry that waits for a claim is not undone by a late span.

        Raises:
            NotFound: no such rollout, or no such attempt of it.
        """

    @abc.abstractmethod
    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans and return those that were new, grouped by attempt in the order the attempts first appear.

        Each is treated as by `add_span`; of two with one key the first counts. At a group whose rollout or attempt
        does not exist the call fails; the groups before it are stored, those after it are not.

        Raises:
            NotFound: no such rollout, or no such attempt of it.
        """

    @abc.abstractmethod
    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Store a finished span of the OpenTelemetry SDK and return its stored form; otherwise as `add_span`.

        Args:
            rollout_id: the rollout it belongs to.
            attempt_id: the attempt it belongs to.
            readable_span: an `opentelemetry.sdk.trace.ReadableSpan`.
            sequence_id: its number; None draws the next.

        Raises:
            NotFound: no such rollout, or no such attempt of it.
        """

    @abc.abstractmethod
    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Draw the next number for a span: 1, 2, 3 … per rollout, shared by its attempts, never given twice.

        Neither id needs to exist; `attempt_id` chooses nothing.
        """

    @abc.abstractmethod
    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """Draw a number for each (rollout_id, attempt_id), in the order given, as if drawn one by one."""

    @abc.abstractmethod
    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until every named rollout has ended and return them; at the deadline those that have. Sweeps.

        Ended means succeeded, failed or cancelled. The result follows the order of `rollout_ids`, duplicates included,
        and holds plain rollouts without attempts. Ids that do not exist are neither waited for nor returned. A rollout
        that is opened again is waited for again.

        Args:
            rollout_ids: whom to wait for.
            timeout: seconds; None waits for ever, 0 or less returns at once; NaN is `Invalid`.
        """

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        as_at: AsAt | None = None,
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        """Return the rollouts that match, each with its latest attempt if it has one. Sweeps.

        `status` and `rollout_ids` are older names of `status_in` and `rollout_id_in`, and ignored beside them.
        """
        query = RolloutQuery.of(
            status_in=status if status_in is None else status_in,
            rollout_id_in=rollout_ids if rollout_id_in is None else rollout_id_in,
            rollout_id_contains=rollout_id_contains,
            filter_logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
            as_at=as_at,
        )
        return await self.find_rollouts(query)

    @abc.abstractmethod
    async def find_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
        """Return what `query_rollouts` returns for these arguments. Sweeps."""

    @abc.abstractmethod
    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        """Return the rollout, with its latest attempt if it has one, or None if there is no such rollout. Sweeps."""

    @abc.abstractmethod
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
        """Replace the fields given and return the rollout, without its attempt. Sweeps.

        None is a value: it clears the field. `config` and `metadata` are replaced whole, never merged. Any status may
        follow any other: succeeded, failed and cancelled stamp `end_time`, each time; queuing and requeuing put the
        rollout at the end of the queue unless it is in it; any other takes it off. Attempts and workers are untouched.

        Raises:
            NotFound: no such rollout.
            Invalid: `status` or `config` is None.
        """

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> PaginatedResult[Attempt]:
        """Return the attempts of a rollout; none if there is no such rollout. Sweeps."""
        query = AttemptQuery.of(
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
            as_at=as_at,
            at=at,
        )
        return await self.find_attempts(rollout_id, query)

    @abc.abstractmethod
    async def find_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        """Return what `query_attempts` returns for these arguments. Sweeps."""

    @abc.abstractmethod
    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        """Return the attempt with the greatest sequence_id, or None if there is none. Sweeps."""

    @abc.abstractmethod
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
        """Replace the fields given and return the attempt. Sweeps.

        Any status may follow any other; succeeded and failed stamp `end_time`, each time. A status given for the
        latest attempt moves its rollout as the class says, even one that had ended; a call without a status never
        does. `metadata` is replaced whole. When a status or a worker is given, the attempt's worker follows: idle
        after succeeded and failed, unknown after timeout and unresponsive, else busy with this attempt.
        `last_heartbeat_time` is a sign of life and may go back.

        Args:
            rollout_id: the rollout it belongs to.
            attempt_id: its id, or "latest" for the one with the greatest sequence_id.
            status: what became of it.
            worker_id: who runs it; "" for nobody.
            last_heartbeat_time: when it was last seen alive, in float seconds since the epoch.
            metadata: any JSON object.
            error: why the status is failed, timeout or unresponsive, as `history` shows it. Given with one, the rollout
                follows only while it is preparing or running: one that was cancelled stays cancelled.

        Raises:
            NotFound: no such rollout, the rollout has no attempts, or no such attempt of it; looked up in this order.
            Invalid: a field is None, or an error is given without such a status.
        """

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> PaginatedResult[Span]:
        """Return the spans of a rollout, or of one of its attempts; none if there is no such. Sweeps.

        `attempt_id` may be "latest": the attempt with the greatest sequence_id.
        The rollout and the attempt are never alternatives: `filter_logic` joins the other conditions, and "or" without
        any of them matches nothing, as in Agent-lightning 0.3.
        """
        query = SpanQuery.of(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            trace_id=trace_id,
            trace_id_contains=trace_id_contains,
            span_id=span_id,
            span_id_contains=span_id_contains,
            parent_id=parent_id,
            parent_id_contains=parent_id_contains,
            name=name,
            name_contains=name_contains,
            filter_logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
            as_at=as_at,
            at=at,
        )
        return await self.find_spans(query)

    @abc.abstractmethod
    async def find_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        """Return what `query_spans` returns for these arguments. Sweeps."""

    @abc.abstractmethod
    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """Publish resources under a new id, as version 1; they are then the latest."""

    @abc.abstractmethod
    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Publish the next version of an id, or its first if it is new; it is then the latest. Sweeps.

        Its resources are replaced whole. An attempt keeps a note of the version it was given; earlier versions are read
        with `as_at`.
        """

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        as_at: AsAt | None = None,
    ) -> PaginatedResult[ResourcesUpdate]:
        """Return the current version of every id that matches both conditions, in the order the ids were first used."""
        query = ResourcesQuery.of(
            resources_id=resources_id,
            resources_id_contains=resources_id_contains,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
            as_at=as_at,
        )
        return await self.find_resources(query)

    @abc.abstractmethod
    async def find_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        """Return what `query_resources` returns for these arguments."""

    @abc.abstractmethod
    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        """Return the current version of an id, or None if there is no such id."""

    @abc.abstractmethod
    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        """Return what was published last, under whichever id, or None if nothing was."""

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        as_at: AsAt | None = None,
    ) -> PaginatedResult[Worker]:
        """Return the workers that match, in the order they were first seen. Sweeps."""
        query = WorkerQuery.of(
            status_in=status_in,
            worker_id_contains=worker_id_contains,
            filter_logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
            as_at=as_at,
        )
        return await self.find_workers(query)

    @abc.abstractmethod
    async def find_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        """Return what `query_workers` returns for these arguments. Sweeps."""

    @abc.abstractmethod
    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        """Return the worker, or None if it was never seen."""

    @abc.abstractmethod
    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """Record a heartbeat of a worker, created as unknown if new, and return it.

        `last_heartbeat_time` is stamped; the statistics are replaced if given; the status stays. It is no sign of life
        of the attempt the worker runs.

        Raises:
            TypeError: `heartbeat_stats` is None; leave it out to keep the last ones.
        """

    @abc.abstractmethod
    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        """Return how much the store holds; `uptime` is strictly greater at every call."""

    @cached_property
    def sync(self) -> SyncStore:
        """The same methods without await, for scripts, notebooks and threads."""
        return SyncStore(self)

    @abc.abstractmethod
    async def close(self) -> None:
        """Finish the calls in flight and let go of the database; closing twice is fine.

        Calls that wait, and all that follow, raise `Closed`.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SyncStore(Blocking[Store]):
    """A store whose methods return results instead of awaitables; everything else is as `Store` says."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, CallThread())

    def close(self) -> None:
        """Close the store and end this object's thread; closing twice is fine."""
        try:
            self.thread.get().wait(self.target.close())
        finally:
            self.thread.leave()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What callers may rely on; an absent key means False."""
        return self.target.capabilities

    @property
    def log(self) -> SyncLog:
        """The facts that the store recorded, and their proof."""
        return SyncLog(self.target.log, self.thread)

    @property
    def runs(self) -> SyncRuns:
        """Runs with phases: their events, checkpoints and artefacts, and running a part of them again."""
        return SyncRuns(self.target.runs, self.thread)

    @property
    def annotations(self) -> SyncAnnotations:
        """Labels and notes of rollouts."""
        return SyncAnnotations(self.target.annotations, self.thread)

    @property
    def threads(self) -> SyncThreads:
        """Threads of checkpoints, for LangGraph."""
        return SyncThreads(self.target.threads, self.thread)

    def otlp_traces_endpoint(self) -> str:
        return self.target.otlp_traces_endpoint()

    start_rollout = blocking(Store.start_rollout)
    enqueue_rollout = blocking(Store.enqueue_rollout)
    enqueue_many_rollouts = blocking(Store.enqueue_many_rollouts)
    dequeue_rollout = blocking(Store.dequeue_rollout)
    dequeue_many_rollouts = blocking(Store.dequeue_many_rollouts)
    start_attempt = blocking(Store.start_attempt)
    add_span = blocking(Store.add_span)
    add_many_spans = blocking(Store.add_many_spans)
    add_otel_span = blocking(Store.add_otel_span)
    get_next_span_sequence_id = blocking(Store.get_next_span_sequence_id)
    get_many_span_sequence_ids = blocking(Store.get_many_span_sequence_ids)
    wait_for_rollouts = blocking(Store.wait_for_rollouts)
    query_rollouts = blocking(Store.query_rollouts)
    find_rollouts = blocking(Store.find_rollouts)
    get_rollout_by_id = blocking(Store.get_rollout_by_id)
    update_rollout = blocking(Store.update_rollout)
    query_attempts = blocking(Store.query_attempts)
    find_attempts = blocking(Store.find_attempts)
    get_latest_attempt = blocking(Store.get_latest_attempt)
    update_attempt = blocking(Store.update_attempt)
    query_spans = blocking(Store.query_spans)
    find_spans = blocking(Store.find_spans)
    add_resources = blocking(Store.add_resources)
    update_resources = blocking(Store.update_resources)
    query_resources = blocking(Store.query_resources)
    find_resources = blocking(Store.find_resources)
    get_resources_by_id = blocking(Store.get_resources_by_id)
    get_latest_resources = blocking(Store.get_latest_resources)
    query_workers = blocking(Store.query_workers)
    find_workers = blocking(Store.find_workers)
    get_worker_by_id = blocking(Store.get_worker_by_id)
    update_worker = blocking(Store.update_worker)
    statistics = blocking(Store.statistics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncStore, (self.target,)
