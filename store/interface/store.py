"""Interface of a store: the methods of `LightningStore` in Agent-lightning 0.3, and methods of Rollbook.

The docstrings are the specification; every implementation passes the same contract suite. All times are float seconds
since the Unix epoch; all durations are float seconds.
"""
# ruff: noqa: A002, ASYNC109 - names follow Agent-lightning, and default methods only raise.

from __future__ import annotations

import abc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar

from store.errors import Unsupported
from store.interface.annotations import StoreAnnotations, SyncAnnotations
from store.interface.finishing import finish_by_parts
from store.interface.log import StoreLog, SyncLog
from store.interface.runs import AsAt, StoreRuns, SyncRuns
from store.interface.scanners import StoreScanners, SyncScanners
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
    PaginatedResult,
    ResourcesUpdate,
    ResourceUnion,
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
from store.models.calls import (
    AddResourcesCall,
    ChangingCall,
    DequeueManyRolloutsCall,
    DequeueRolloutCall,
    EnqueueManyRolloutsCall,
    EnqueueRolloutCall,
    FinishAttemptCall,
    LogMetricsCall,
    NextSpanCall,
    NextSpansCall,
    StartAttemptCall,
    StartRolloutCall,
    UpdateAttemptCall,
    UpdateResourcesCall,
    UpdateRolloutCall,
    UpdateWorkerCall,
)
from store.models.finished_attempts import FinishedAttempt
from store.models.queries import AttemptQuery, PageQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from store.runtime.blocking import Blocking, CallThread, blocking
from store.validation import arguments

T = TypeVar("T")


class Store(abc.ABC):
    """A rollout store: queue, attempts, spans, resources and workers of one training run, and their log.

    Calls are atomic, may come from any task, event loop or thread, and return after their commit. In addition to the
    errors listed for each method, every call may raise `Unavailable` (retry later), `Closed` and `WrongProcess`. Every
    call that writes may raise `ReadOnly`, `TooLarge`, and `Invalid` for values that a database cannot return unchanged:
    NaN, infinities, integers beyond 64 bits, U+0000, lone surrogates, ids of more than 512 bytes. The objects `log`,
    `runs`, `annotations` and `threads` have more methods. If a store does not support such a group of methods, they
    raise `Unsupported`.

    **Status.** An attempt is preparing until its first span makes it running. It becomes succeeded or failed when a
    call of `update_attempt` reports this. The status of a rollout depends on its *latest* attempt, the attempt with the
    greatest sequence_id. If the latest attempt becomes preparing, running or succeeded, so does the rollout. If the
    latest attempt becomes failed, timeout or unresponsive, the config of the rollout decides: the rollout becomes
    requeuing if `retry_condition` lists the status and fewer than `max_attempts` attempts were made, else failed.

    **Overdue attempts.** Calls whose description says *Sweeps* first check the latest attempt of every rollout that is
    preparing or running. An attempt older than `timeout_seconds` becomes timeout. An attempt without a sign of life for
    longer than `unresponsive_seconds` becomes unresponsive, and the status of its worker becomes unknown. There is at
    most one such sweep per `scan_debounce_seconds`; the first call that sweeps always checks. An open store also sweeps
    on time without calls, unless it is read-only or has its own clock. Both limits count only the time during which the
    store could receive signs of life. A store that was just opened waits the full `unresponsive_seconds` before it ends
    a silent attempt.

    **The past.** With `as_at`, a read returns the state at a moment of the log. An int is the position of the last
    event included; an aware datetime includes all events recorded until then. A moment after the end of the log means
    the end of the log. A read includes all events of a call or none of them. For reads of one rollout, `at` is the
    number of an event in the rollout's history, as in `log.history`. Reads with `as_at` or `at` do not sweep. In their
    results, the times of signs of life that are not events (repeated heartbeats and polls) are None. These reads raise
    `Invalid` for a naive datetime, a float, a negative position or a number that the history does not contain, and
    `PastUnavailable` if too many objects have changed since that moment.

    **Queries.** Conditions that are None are ignored; an empty list matches nothing. With `filter_logic="and"` all
    conditions must hold, with "or" at least one; without conditions everything matches. `*_contains` matches fields
    that contain the text, with the same case; a field that is None does not match. `sort_by` is any scalar field of the
    model; None means creation order. Objects with equal values are in creation order, whether the order is ascending or
    descending. Text is ordered by code point. In ascending order, None comes last in fields that end in `_time`; in
    other fields, None counts as empty or zero. `limit=-1` returns all matches, `limit=0` only the total; `offset` skips
    matches after sorting. Queries raise `Invalid` for a field that does not exist or has no order, for a limit below
    -1, and for a negative offset.
    """

    @property
    @abc.abstractmethod
    def capabilities(self) -> LightningStoreCapabilities:
        """The features on which callers may rely; an absent key means False."""

    @property
    def log(self) -> StoreLog:
        """The log: its events, and checks of the tables against it."""
        return StoreLog(type(self).__name__)

    @property
    def runs(self) -> StoreRuns:
        """Runs with phases: their events, checkpoints, artifacts and re-runs."""
        return StoreRuns(type(self).__name__)

    @property
    def annotations(self) -> StoreAnnotations:
        """Labels, notes and scores of rollouts."""
        return StoreAnnotations(type(self).__name__)

    @property
    def scanners(self) -> StoreScanners:
        """Scanners, which decide which ended rollouts match, and their results."""
        return StoreScanners(type(self).__name__)

    @property
    def threads(self) -> StoreThreads:
        """Threads of checkpoints, for LangGraph."""
        return StoreThreads(type(self).__name__)

    def otlp_traces_endpoint(self) -> str:
        """Return the URL to which OpenTelemetry exporters can post traces.

        Raises:
            Unsupported: this store is not behind a server; check `capabilities["otlp_traces"]`.
        """
        raise Unsupported("otlp_traces_endpoint", type(self).__name__)

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        """Execute a call of this interface that changes the store, given as a value.

        The methods that change the store pass their calls to this method, so a store defines either this method or
        those methods.
        """
        raise Unsupported(call.method, type(self).__name__)

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout together with its first attempt, without the queue, and return both. Sweeps.

        The rollout and the attempt are preparing and start at the same instant. The arguments are those of
        `enqueue_rollout`, and `worker_id`: the worker that runs the attempt. This worker becomes busy.

        Raises:
            Conflict: a rollout with the plan key in the metadata (`rollbook.key`) exists; the message contains its id.
            Invalid: a reserved metadata key has the wrong type.
        """
        return await self.call(StartRolloutCall(input, mode, resources_id, config, metadata, worker_id))

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Rollout:
        """Create a rollout at the end of the queue and return it. Sweeps.

        Args:
            input: the task of the agent, any JSON value.
            mode: the purpose of the rollout: train, val or test.
            resources_id: the resources that the rollout uses; they need not exist. None means the latest resources, if
                there are any.
            config: limits and retries; None for the defaults (one attempt, no limits).
            metadata: any JSON object; None becomes `{}`. The store reads three keys, only in this call:
                `rollbook.group` (str) and `rollbook.step` (int) for grouping, and `rollbook.key` (str), a plan key: if
                a rollout with the same key and an equal input exists, it is returned and nothing is created.

        Raises:
            Conflict: the plan key belongs to a rollout with another input.
            Invalid: a reserved metadata key has the wrong type.
        """
        return await self.call(EnqueueRolloutCall(input, mode, resources_id, config, metadata))

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        """Create rollouts at the end of the queue, in the given order, all or none, and return them. Sweeps.

        Each rollout is created as by `enqueue_rollout`; the latest resources are determined once. An empty list returns
        an empty list.

        Raises:
            Conflict: a plan key belongs to a rollout with another input, in the store or earlier in the list.
            Invalid: a reserved metadata key has the wrong type.
        """
        requests = arguments.several(rollouts, "rollouts")
        return await self.call(EnqueueManyRolloutsCall(requests)) if requests else []

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> AttemptedRollout | None:
        """Claim the rollout at the head of the queue: start its next attempt, and return both. Sweeps.

        The result is None if the queue is empty. The rollout and its new attempt are preparing; an earlier `end_time`
        is not changed. Two workers never claim the same attempt. The given worker is created if it is new. It becomes
        busy with the attempt. If the queue is empty, the worker becomes idle, and the ids of its last rollout and
        attempt do not change.

        Args:
            worker_id: the worker that claims.
            wait_seconds: the maximum time to wait for a rollout if the queue is empty; 0 returns at once. If the call
                is cancelled, no rollout is lost: a claim that was already made goes to another waiting call with the
                same worker_id, or is undone.

        Raises:
            Invalid: `wait_seconds` is negative or not finite.
        """
        arguments.wait_seconds(wait_seconds)
        return await self.call(DequeueRolloutCall(worker_id, wait_seconds))

    async def dequeue_many_rollouts(
        self, limit: int = 1, worker_id: str | None = None, *, wait_seconds: float = 0.0
    ) -> list[AttemptedRollout]:
        """Claim up to `limit` rollouts from the head of the queue; fewer if the queue has fewer. Sweeps.

        Each rollout is claimed as by `dequeue_rollout`. The worker becomes busy with the last claimed rollout. With a
        limit of 0 or less, the call changes nothing. The wait ends as soon as the queue has one rollout.

        Raises:
            Invalid: `wait_seconds` is negative or not finite.
        """
        if arguments.whole(limit, "limit", "a number of rollouts") <= 0:
            return []
        arguments.wait_seconds(wait_seconds)
        return await self.call(DequeueManyRolloutsCall(limit, worker_id, wait_seconds))

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """Start another attempt of a rollout, whatever its status and number of attempts, and return both. Sweeps.

        The rollout becomes preparing and leaves the queue; earlier attempts and `end_time` do not change. The given
        worker becomes busy.

        Raises:
            NotFound: the rollout does not exist.
        """
        return await self.call(StartAttemptCall(rollout_id, worker_id))

    @abc.abstractmethod
    async def add_span(self, span: Span) -> Span | None:
        """Store a span and return it, or None if it is stored already.

        A repeat is a span with the span_id and the content of a stored span of the attempt; the sequence_id and times
        that the repeat lacks do not count. If the attempt has a span of another trace with this span_id, the span is
        stored under an id derived from its trace_id and span_id, and its attribute `rollbook.original_span_id` contains
        the span_id.

        In both cases, the rollout's counter of span numbers is raised to the number of the span. A stored span is a
        sign of life of its attempt. A preparing or unresponsive attempt becomes running. If this attempt is the latest
        and is now running, a preparing or requeuing rollout also becomes running. A span does not reopen an attempt
        that has ended, and a late span does not cancel a retry that waits in the queue.

        Raises:
            NotFound: the rollout or the attempt does not exist.
            SpanConflict: the attempt has a span of this trace with this span_id and other content.
        """

    @abc.abstractmethod
    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans and return the new ones, grouped by attempt in the order of the attempts' first spans.

        Each span is processed as by `add_span`. Of several spans with the same key, the first is stored, and the others
        are repeats or conflicts. Children of the same trace in the call refer to derived ids. The spans of one attempt
        are a group. The call fails at the first group whose rollout or attempt does not exist. The groups before this
        group are stored; this group and the later groups are not.

        Raises:
            NotFound: the rollout or the attempt does not exist.
            SpanConflict: stored spans have the keys of some spans and other content. All other spans are stored, and
                the error lists them.
        """

    @abc.abstractmethod
    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """Store a finished span of the OpenTelemetry SDK and return its stored form; otherwise like `add_span`.

        Args:
            rollout_id: the rollout of the span.
            attempt_id: the attempt of the span.
            readable_span: an `opentelemetry.sdk.trace.ReadableSpan`.
            sequence_id: the number of the span; None for the next number.

        Raises:
            NotFound: the rollout or the attempt does not exist.
            SpanConflict: as for `add_span`.
        """

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Return the next number for a span of a rollout.

        The numbers of a rollout are 1, 2, 3 …; its attempts share them, and each number is returned once. Neither id
        needs to exist; `attempt_id` has no effect. A store with a log records in the log which blocks of numbers it has
        reserved. If it loses its counter, no number is returned again, but some numbers may be skipped.
        """
        ids = arguments.text(rollout_id, "rollout_id"), arguments.text(attempt_id, "attempt_id")
        return await self.call(NextSpanCall(*ids))

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """Return a number for each pair (rollout_id, attempt_id), as `get_next_span_sequence_id` does.

        The numbers have the order of the pairs.
        """
        pairs = arguments.pairs(rollout_attempt_ids, "rollout_attempt_ids")
        return await self.call(NextSpansCall(pairs)) if pairs else []

    @abc.abstractmethod
    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until all given rollouts have ended and return them; after the timeout, return those that have ended.

        Sweeps. Ended means succeeded, failed or cancelled. The result has the order of `rollout_ids`, including
        duplicates, and contains plain rollouts without attempts. Ids that do not exist are neither waited for nor
        returned. A rollout that is reopened is waited for again.

        Args:
            rollout_ids: the rollouts to wait for.
            timeout: seconds; None for no timeout; 0 or less returns at once. NaN is `Invalid`.
        """

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        mode_in: Sequence[RolloutMode] | None = None,
        group_in: Sequence[str] | None = None,
        step_in: Sequence[int] | None = None,
        plan_key_in: Sequence[str] | None = None,
        label_in: Sequence[str] | None = None,
        scan_match: str | None = None,
        resources_id_in: Sequence[str] | None = None,
        resources_version_in: Sequence[int] | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
        reward_version: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        as_at: AsAt | None = None,
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        """Return the matching rollouts, each with its latest attempt if it has one. Sweeps.

        `sort_by` is a field of `Rollout`, or `group`, `step`, `plan_key`, `label` (the first label in alphabetical
        order) or `resources_version`. A rollout without a reward, a step or a version comes last in both orders. The
        conditions from `mode_in` to `reward_max` and the orders `reward`, `group`, `step`, `plan_key`, `label` and
        `resources_version` are not part of Agent-lightning 0.3.

        `scan_match` is a version of a scanner, such as `hacks@v1`: only rollouts whose latest attempt it matched.

        `reward_version` selects the rewards: None for those that agents recorded, a text such as `helpful@v2` for the
        scores of this version (see `annotations.record_scores`). It applies to `reward` and `rewards` of the result, to
        `reward_min` and `reward_max`, and to the order `reward`. A rollout whose latest attempt has no value of the
        version has no reward.

        `status` and `rollout_ids` are older names of `status_in` and `rollout_id_in`. If both names are given, the
        newer name takes precedence.
        """
        query = RolloutQuery.of(
            status_in=status if status_in is None else status_in,
            rollout_id_in=rollout_ids if rollout_id_in is None else rollout_id_in,
            rollout_id_contains=rollout_id_contains,
            mode_in=mode_in,
            group_in=group_in,
            step_in=step_in,
            plan_key_in=plan_key_in,
            label_in=label_in,
            scan_match=scan_match,
            resources_id_in=resources_id_in,
            resources_version_in=resources_version_in,
            reward_min=reward_min,
            reward_max=reward_max,
            reward_version=reward_version,
            filter_logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
            as_at=as_at,
        )
        return await self.find_rollouts(query)

    async def find_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
        """Like `query_rollouts`, but with the arguments in one object. Sweeps."""
        return await _by_arguments(self, Store.query_rollouts, query)

    @abc.abstractmethod
    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        """Return the rollout, with its latest attempt if it has one, or None if there is no such rollout. Sweeps."""

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        """Replace the given fields and return the rollout, without its attempt. Sweeps.

        The value None clears a field. `config` and `metadata` are replaced as a whole, not merged. Any status may
        follow any other. Each call with the status succeeded, failed or cancelled sets `end_time`. The statuses queuing
        and requeuing put the rollout at the end of the queue unless it is in the queue; any other status removes it
        from the queue. Attempts and workers do not change.

        Raises:
            NotFound: the rollout does not exist.
            Invalid: `status` or `config` is None.
        """
        return await self.call(UpdateRolloutCall(rollout_id, input, mode, resources_id, status, config, metadata))

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
        """Return the attempts of a rollout; none if the rollout does not exist. Sweeps."""
        query = AttemptQuery.of(
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
            as_at=as_at,
            at=at,
        )
        return await self.find_attempts(rollout_id, query)

    async def find_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        """Like `query_attempts`, but with the arguments in one object. Sweeps."""
        return await _by_arguments(self, Store.query_attempts, query, rollout_id)

    @abc.abstractmethod
    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        """Return the attempt with the greatest sequence_id, or None if there is none. Sweeps."""

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset = UNSET,
        *,
        error: AttemptError | Unset = UNSET,
    ) -> Attempt:
        """Replace the given fields and return the attempt. Sweeps.

        Any status may follow any other; each call with the status succeeded or failed sets `end_time`. If the call
        gives the latest attempt a status, the status of the rollout changes as the class describes, even if the rollout
        has ended. `metadata` is replaced as a whole. If the call gives a status or a worker, the status of the
        attempt's worker changes: to idle if the attempt is succeeded or failed, to unknown if it is timeout or
        unresponsive, else to busy with this attempt. `last_heartbeat_time` is a sign of life and may decrease.

        Args:
            rollout_id: the rollout of the attempt.
            attempt_id: the id of the attempt, or "latest" for the attempt with the greatest sequence_id.
            status: the new status of the attempt.
            worker_id: the worker that runs the attempt; "" for none.
            last_heartbeat_time: the time of the attempt's last sign of life, in float seconds since the epoch.
            metadata: any JSON object.
            error: the reason for a status failed, timeout or unresponsive; `log.history` shows it. If an error is
                given, the rollout changes only if it is preparing or running; a cancelled rollout stays cancelled.
                With the status unresponsive, the call changes nothing if the attempt has succeeded or failed, because
                the attempt reported its result before its worker was lost.

        Raises:
            NotFound: the rollout does not exist, has no attempts, or has no such attempt; checked in this order.
            Invalid: a field is None, or an error is given without one of the statuses failed, timeout and unresponsive.
        """
        return await self.call(
            UpdateAttemptCall(rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata, error)
        )

    async def finish_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus,
        *,
        spans: Sequence[Span] = (),
        number: bool = False,
        metadata: Mapping[str, Any] | Unset = UNSET,
        error: AttemptError | Unset = UNSET,
        claim_as: str | None = None,
        requeue: bool = False,
    ) -> FinishedAttempt:
        """Store the last spans of an attempt, set its status, and claim the next rollout. Sweeps.

        The three parts are executed in this order, with the effects of `add_many_spans`, `update_attempt` and
        `dequeue_rollout`. A span or a part that is refused does not affect the others; the result contains its error.
        A SQL store commits all parts together; for reads of the past, each part is a call. Other stores may execute
        some parts and raise `Unavailable`; the call can be repeated. The method is not part of Agent-lightning 0.3.

        Args:
            rollout_id: the rollout of the attempt.
            attempt_id: the id of the attempt, not "latest".
            status: the new status of the attempt.
            spans: spans of the attempt.
            number: whether the spans get the next numbers of the rollout, instead of their own sequence ids.
            metadata: any JSON object; by default the metadata does not change.
            error: the reason for a status failed, timeout or unresponsive.
            claim_as: the worker that claims the rollout at the head of the queue; None to claim none. An empty queue is
                reported at once.
            requeue: whether to put the rollout back at the end of the queue, whatever its config says, without counting
                the attempt for `max_attempts`; the status must be `failed`. An attempt that has succeeded or failed
                before does not change. The rollout does not change if it has ended, if another attempt has started, or
                if the attempt was unresponsive or timed out. Stores that execute the parts one by one count the
                attempt.

        Raises:
            Invalid: the status, the metadata, the error or the worker is invalid, or there are too many spans.
        """
        call = FinishAttemptCall(rollout_id, attempt_id, status, spans, number, metadata, error, claim_as, requeue)
        # A store that defines methods instead of `call` may lack this method.
        return await (finish_by_parts(self, call) if type(self).call is Store.call else self.call(call))

    async def query_spans(
        self,
        rollout_id: str | Sequence[str],
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
        """Return the spans of a rollout, or of one of its attempts; none if that object does not exist. Sweeps.

        `rollout_id` may be a list of up to 1,000 ids, which is not part of Agent-lightning 0.3. The spans are then in
        the order of the rollout ids, and those of a rollout in the order of `sequence_id`; with another `sort_by`, this
        field alone orders the spans of all rollouts. `attempt_id="latest"` then means the latest attempt of each
        rollout.

        `attempt_id` may be "latest": the attempt with the greatest sequence_id. The conditions on the rollout and the
        attempt must always hold; `filter_logic` combines the other conditions. As in Agent-lightning 0.3, "or" without
        other conditions matches nothing.
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

    async def find_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        """Like `query_spans`, but with the arguments in one object. Sweeps."""
        return await _by_arguments(self, Store.query_spans, query)

    async def add_resources(self, resources: Mapping[str, ResourceUnion]) -> ResourcesUpdate:
        """Publish resources under a new id, as version 1. The new resources become the latest resources."""
        return await self.call(AddResourcesCall(resources))

    async def update_resources(self, resources_id: str, resources: Mapping[str, ResourceUnion]) -> ResourcesUpdate:
        """Publish the next version of the resources under an id. Sweeps.

        If the id is new, the version is 1. The resources are replaced as a whole and become the latest resources. Each
        attempt records the version that was current at its start. Reads with `as_at` return earlier versions.
        """
        return await self.call(UpdateResourcesCall(resources_id, resources))

    async def log_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log numbers of a training step, such as the loss, in one event.

        If a step has several numbers under one name, reads return the last. `log.metrics` reads them.

        Args:
            step: the training step, from 0.
            metrics: up to 64 numbers by name. A number may be NaN or infinite; curves have a gap there. Numbers of
                numpy and tensors with one element are converted. A name is one line of 1 to 64 bytes.

        Raises:
            Invalid: the step is negative, there are no metrics, a name is malformed, or a value is not a number.
            TooLarge: a name is too long, or there are too many metrics; log the rest with another call.
        """
        await self.call(LogMetricsCall(step, metrics))

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
        """Return the current version of the resources under each matching id, in the order of their first versions."""
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

    async def find_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        """Like `query_resources`, but with the arguments in one object."""
        return await _by_arguments(self, Store.query_resources, query)

    @abc.abstractmethod
    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        """Return the current version of the resources under an id, or None if the id does not exist."""

    @abc.abstractmethod
    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        """Return the resources that were published last, under any id; None if there are none."""

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
        """Return the matching workers, in the order in which they were first seen. Sweeps."""
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

    async def find_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        """Like `query_workers`, but with the arguments in one object. Sweeps."""
        return await _by_arguments(self, Store.query_workers, query)

    @abc.abstractmethod
    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        """Return the worker; None if no call has named such a worker."""

    async def update_worker(self, worker_id: str, heartbeat_stats: Mapping[str, Any] | Unset = UNSET) -> Worker:
        """Record a heartbeat of a worker and return the worker; a new worker is created with status unknown.

        `last_heartbeat_time` is set, the statistics are replaced if they are given, and the status does not change. The
        heartbeat is not a sign of life of the worker's attempt.

        Raises:
            TypeError: `heartbeat_stats` is None; leave it out to keep the stored statistics.
        """
        if heartbeat_stats is None:  # pyright: ignore[reportUnnecessaryComparison] (callers are not type-checked)
            raise TypeError("heartbeat_stats is None; leave it out to keep the stored statistics")
        return await self.call(UpdateWorkerCall(worker_id, heartbeat_stats))

    @abc.abstractmethod
    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        """Return the numbers of stored objects, and `uptime`, which is strictly greater at every call."""

    @cached_property
    def sync(self) -> SyncStore:
        """The same methods as blocking calls, for scripts, notebooks and threads."""
        return SyncStore(self)

    async def close(self) -> None:  # noqa: B027 - a store may have nothing to release
        """Finish the calls in flight and close the connections; a second call has no effect.

        Calls that wait for rollouts, and later calls, raise `Closed`.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _by_arguments(store: Store, method: Callable[..., Any], query: PageQuery, *of: str) -> Any:
    """Answer a query by the `query_…` method of a store that does not define the `find_…` method.

    Only arguments that differ from their defaults are passed, because the store may not have the others.
    """
    name = method.__name__
    if getattr(type(store), name) is method:
        raise Unsupported(name, type(store).__name__)
    fields = type(query).model_fields
    arguments = {field: value for field, value in vars(query).items() if value != fields[field].default}
    return await getattr(store, name)(*of, **arguments)


LightningStore = Store
"""Agent-lightning's name for the interface."""


class SyncStore(Blocking[Store]):
    """A store with blocking methods; see `Store`. `open_sync` opens one.

    Args:
        store: the store with the async methods.
        thread: the thread for the calls; None for a new one.
    """

    def __init__(self, store: Store, thread: CallThread | None = None) -> None:
        super().__init__(store, thread or CallThread())

    def close(self) -> None:
        """Close the store and end this object's thread; a second call has no effect."""
        try:
            self.thread.get().wait(self.target.close())
        finally:
            self.thread.leave()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """The features on which callers may rely; an absent key means False."""
        return self.target.capabilities

    @property
    def log(self) -> SyncLog:
        """The log: its events, and checks of the tables against it."""
        return SyncLog(self.target.log, self.thread)

    @property
    def runs(self) -> SyncRuns:
        """Runs with phases: their events, checkpoints, artifacts and re-runs."""
        return SyncRuns(self.target.runs, self.thread)

    @property
    def annotations(self) -> SyncAnnotations:
        """Labels, notes and scores of rollouts."""
        return SyncAnnotations(self.target.annotations, self.thread)

    @property
    def scanners(self) -> SyncScanners:
        """Scanners, which decide which ended rollouts match, and their results."""
        return SyncScanners(self.target.scanners, self.thread)

    @property
    def threads(self) -> SyncThreads:
        """Threads of checkpoints, for LangGraph."""
        return SyncThreads(self.target.threads, self.thread)

    def otlp_traces_endpoint(self) -> str:
        return self.target.otlp_traces_endpoint()

    call = blocking(Store.call)
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
    finish_attempt = blocking(Store.finish_attempt)
    query_spans = blocking(Store.query_spans)
    find_spans = blocking(Store.find_spans)
    add_resources = blocking(Store.add_resources)
    update_resources = blocking(Store.update_resources)
    log_metrics = blocking(Store.log_metrics)
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
