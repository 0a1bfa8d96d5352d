"""Store that answers an algorithm with the recorded rollouts of another store. Decision 99."""
# ruff: noqa: ARG002, ASYNC109 - the arguments are those of the interface.

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

from store.errors import NotFound, Unsupported
from store.interface.annotations import StoreAnnotations
from store.interface.log import StoreLog
from store.interface.runs import AsAt
from store.interface.store import Store
from store.models import (
    UNSET,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Score,
    Span,
    Worker,
)
from store.models.calls import (
    AddResourcesCall,
    ChangingCall,
    EnqueueManyRolloutsCall,
    EnqueueRolloutCall,
    LogMetricsCall,
    UpdateResourcesCall,
    UpdateRolloutCall,
)
from store.models.queries import (
    AttemptQuery,
    PageQuery,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    WorkerQuery,
)
from store.models.scores import RewardVersion
from store.replaying.recorded_resources import moment_at
from store.replaying.recordings import RecordedRollout, Recordings
from store.replaying.replay_log import ReplayLog
from store.replaying.replay_resources import ReplayResources
from store.replaying.timeline import Timeline
from store.runtime.ids import span_id
from store.validation import arguments, trainer_metrics

T = TypeVar("T")

_NAME: Final = "ReplayStore"
_QUEUED: Final = ("queuing", "requeuing")
_READ_AT_ONCE: Final = 1000
_AHEAD: Final = 500
_CHANGES_WHILE_WAITING: Final = frozenset({"status", "end_time", "reward"})


class ReplayStore(Store):
    """Store for an algorithm whose tasks were executed before: each task is answered with its recorded rollout.

    `Trainer(algorithm=..., store=ReplayStore(source)).fit(...)` runs an algorithm without runners and inference. A task
    that the algorithm enqueues becomes the recorded rollout with the same plan key. Without such a rollout, the task
    becomes the first recorded rollout with the same mode and input that was not replayed yet. The enqueued rollout has
    the recorded id, and later the recorded attempts, spans and rewards. So adapters give the training data of the
    recorded training, byte for byte.

    Rollouts are claimed and end in the recorded order. The replay takes the next step, a claim or an end, when the
    algorithm does nothing but wait. It waits in `wait_for_rollouts`, whose timeout is ignored, and in a tail of the log
    that includes changes of status. It also waits if it reads an unfinished rollout a second time without a change in
    between.

    The algorithm sees three kinds of resources: those that the source had when the first recorded rollout was created,
    those that the algorithm publishes itself, which are held in memory, and those of the rollouts that it has enqueued.
    Nothing is written to the source. Of the calls that change a store, only these are supported: `enqueue_rollout`,
    `enqueue_many_rollouts`, `add_resources`, `update_resources`, and `update_rollout` with the status requeuing. A
    rollout that is requeued ends once more.

    Args:
        source: the store with the recorded rollouts. It must have a log, and is not closed by `close`.
        query: which rollouts are recordings; None for all. Rollouts that have not ended are no recordings. If the query
            has a `reward_version`, the scores of this version are the rewards of the rollouts.

    Raises:
        NotFound: an enqueued task has no recording.
        Conflict: the recording with the plan key of an enqueued task has another input.
        Unsupported: a call is not supported.
    """

    def __init__(self, source: Store, query: RolloutQuery | None = None) -> None:
        self._source = source
        self._query = query or RolloutQuery()
        self._at = self._query.as_at
        self._timeline = Timeline()
        self._recordings: Recordings | None = None
        self._replay_resources: ReplayResources | None = None
        self._used_resources: set[str] = set()
        self._ahead: dict[str, Rollout | AttemptedRollout] = {}
        """Recorded rollouts by id, which were read in advance because they end next."""
        self._polled_at = -1
        """The number of events at the last read of an unfinished rollout."""
        self._opened = time.monotonic()
        self._id = f"replay-{span_id()}"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    @property
    def log(self) -> StoreLog:
        return ReplayLog(self._source.log, self._timeline, self._id)

    @property
    def annotations(self) -> StoreAnnotations:
        return _RecordedAnnotations(self._source.annotations)

    async def call(self, call: ChangingCall[T]) -> T:
        value, result = cast("ChangingCall[Any]", call), cast("Any", None)
        with self._timeline.call():
            match value:
                case EnqueueRolloutCall():
                    request = EnqueueRolloutRequest.model_construct(**vars(value))
                    (result,) = await self._enqueue([request])
                case EnqueueManyRolloutsCall():
                    result = await self._enqueue(value.rollouts)
                case AddResourcesCall() | UpdateResourcesCall():
                    resources_id = value.resources_id if isinstance(value, UpdateResourcesCall) else None
                    result = await (await self._resources()).publish(resources_id, value.resources, self._timeline.now)
                case UpdateRolloutCall():
                    result = await self._requeue(value)
                case LogMetricsCall():
                    # The metrics of a replay are not those of a training, and the replay has no log.
                    trainer_metrics.step_of(value.step)
                    trainer_metrics.values_of(value.metrics)
                case _:
                    raise Unsupported(value.method, _NAME)
        return cast("T", result)

    async def _enqueue(self, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        matched = (await self._read()).match(requests)
        rollouts: list[Rollout] = []
        repeated: dict[str, Rollout] = {}
        if any(not is_new for _, is_new in matched):
            ids = [recording.rollout_id for recording, _ in matched]
            repeated = {rollout.rollout_id: rollout for rollout in await self._rollouts(ids)}
        for request, (recording, is_new) in zip(requests, matched, strict=True):
            if is_new:
                if recording.resources_id is not None:
                    self._used_resources.add(recording.resources_id)
                self._timeline.enqueue(recording)
            elif recording.rollout_id in repeated:
                rollouts.append(repeated[recording.rollout_id])
                continue
            rollouts.append(
                Rollout(
                    rollout_id=recording.rollout_id,
                    input=request.input,
                    start_time=recording.created_at,
                    mode=recording.mode,
                    resources_id=recording.resources_id,
                    config=request.config or RolloutConfig(),
                    metadata=dict(request.metadata or {}),
                )
            )
        return rollouts

    async def _requeue(self, call: UpdateRolloutCall) -> Rollout:
        others = (call.input, call.mode, call.resources_id, call.config, call.metadata)
        if call.status not in _QUEUED or any(value is not UNSET for value in others):
            raise Unsupported("update_rollout, except with the status requeuing alone,", _NAME)
        if call.rollout_id not in self._timeline.states:
            raise NotFound.item(rollout_id=call.rollout_id)
        if call.rollout_id not in self._timeline.open:
            self._timeline.requeue(self._recording(call.rollout_id))
        (rollout,) = await self._rollouts([call.rollout_id])
        return _without_attempt(rollout)

    async def add_span(self, span: Span) -> Span | None:
        raise Unsupported("add_span", _NAME)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        raise Unsupported("add_many_spans", _NAME)

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        raise Unsupported("add_otel_span", _NAME)

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        arguments.timeout(timeout)
        ids = arguments.texts(rollout_ids, "rollout_ids")
        pending = [rollout_id for rollout_id in reversed(ids) if rollout_id in self._timeline.states]
        while pending:
            if pending[-1] in self._timeline.open:
                await self._timeline.step()
            else:
                pending.pop()
        with self._timeline.call():
            ended = {rollout.rollout_id: _without_attempt(rollout) for rollout in await self._rollouts(ids)}
        return [ended[rollout_id] for rollout_id in ids if rollout_id in ended]

    async def find_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
        self._check_present(query)
        if query.filter_logic != "and" and query.conditions():
            raise Unsupported("query_rollouts with filter_logic='or'", _NAME)
        with self._timeline.call():
            timeline = self._timeline
            candidates = timeline.states if query.rollout_id_in is None else dict.fromkeys(query.rollout_id_in)
            ids = [rollout_id for rollout_id in candidates if self._has_status(rollout_id, query.status_in)]
            if query.sort_by in _CHANGES_WHILE_WAITING and any(rollout_id in timeline.open for rollout_id in ids):
                raise Unsupported(f"order by {query.sort_by} while rollouts wait", _NAME)
            if query.sort_by is None and not _narrows(query):
                page = await self._read_rollouts(ids)
                return self._page(query, [self._in_replay(rollout) for rollout in page], candidates)
            everything = {"rollout_id_in": ids, "status_in": None, "limit": -1, "offset": 0, "as_at": self._at}
            page = await self._source.find_rollouts(query.model_copy(update=everything)) if ids else ()
            needs_reward = query.reward_min is not None or query.reward_max is not None
            # A rollout that has not ended has no reward.
            fitting = (rollout for rollout in page if not (needs_reward and rollout.rollout_id in timeline.open))
            return self._page(query, [self._in_replay(rollout) for rollout in fitting], candidates)

    def _page(
        self, query: RolloutQuery, rollouts: Iterable[Rollout | AttemptedRollout], candidates: Iterable[str]
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        matches = list(rollouts)
        items = matches[query.offset : None if query.limit == -1 else query.offset + query.limit]
        self._poll(candidates)
        return PaginatedResult(items=items, limit=query.limit, offset=query.offset, total=len(matches))

    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        self._check_present(RolloutQuery.of(as_at=as_at, at=at))
        with self._timeline.call():
            rollouts = await self._rollouts([rollout_id])
            self._poll([rollout_id])
        return rollouts[0] if rollouts else None

    async def find_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        self._check_present(query)
        if not self._has_ended(rollout_id):
            return PaginatedResult(items=[], limit=query.limit, offset=query.offset, total=0)
        with self._timeline.call():
            return await self._source.find_attempts(rollout_id, query.model_copy(update={"as_at": self._at}))

    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        self._check_present(AttemptQuery.of(as_at=as_at, at=at))
        if not self._has_ended(rollout_id):
            return None
        with self._timeline.call():
            return await self._source.get_latest_attempt(rollout_id, as_at=self._at)

    async def find_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        self._check_present(query)
        several = cast("str | list[str]", query.rollout_id)
        ids = [several] if isinstance(several, str) else several
        ended = [rollout_id for rollout_id in ids if self._has_ended(rollout_id)]
        if not ended:
            return PaginatedResult(items=[], limit=query.limit, offset=query.offset, total=0)
        restricted = {"rollout_id": several if isinstance(several, str) else ended, "as_at": self._at}
        with self._timeline.call():
            return await self._source.find_spans(query.model_copy(update=restricted))

    async def find_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        self._check_present(query)
        with self._timeline.call():
            return await (await self._resources()).find(query)

    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        self._check_present(ResourcesQuery.of(as_at=as_at))
        with self._timeline.call():
            return await (await self._resources()).get(resources_id)

    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        self._check_present(ResourcesQuery.of(as_at=as_at))
        with self._timeline.call():
            return await (await self._resources()).latest()

    async def find_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        return await self._source.find_workers(query)

    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        return await self._source.get_worker_by_id(worker_id, as_at=as_at)

    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        self._check_present(RolloutQuery.of(as_at=as_at))
        count = len(self._timeline.states)
        return {"name": _NAME, "total_rollouts": count, "uptime": time.monotonic() - self._opened}

    async def _read(self) -> Recordings:
        """Return the recordings, which are read at the first call."""
        if self._recordings is None:
            # Two loops may read at the same time; the second result is dropped.
            recordings = await Recordings.read(self._source, self._query)
            if self._recordings is None:
                self._recordings = recordings
        return self._recordings

    async def _resources(self) -> ReplayResources:
        if self._replay_resources is None:
            recordings = (await self._read()).by_id.values()
            first = min((recording.created_at for recording in recordings), default=None)
            start = None if first is None else moment_at(first)
            self._replay_resources = ReplayResources(self._source, start, self._used_resources)
        return self._replay_resources

    async def _rollouts(self, rollout_ids: Iterable[str]) -> list[Rollout | AttemptedRollout]:
        """Return the given rollouts that were enqueued, in their state in the replay."""
        ids = [rollout_id for rollout_id in dict.fromkeys(rollout_ids) if rollout_id in self._timeline.states]
        return [self._in_replay(rollout) for rollout in await self._read_rollouts(ids)]

    async def _read_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout | AttemptedRollout]:
        """Return enqueued rollouts as they were recorded, in the order of their creation."""
        rollouts: dict[str, Rollout | AttemptedRollout] = {}
        missing: list[str] = []
        for rollout_id in rollout_ids:
            if (rollout := self._ahead.get(rollout_id)) is None:
                missing.append(rollout_id)
            else:
                rollouts[rollout_id] = rollout
        # An algorithm reads most rollouts one by one as they end. So a read also includes the rollouts that end next.
        if missing:
            self._ahead = {}
            missing += [rollout_id for rollout_id in self._timeline.upcoming(_AHEAD) if rollout_id not in rollouts]
        for start in range(0, len(missing), _READ_AT_ONCE):
            query = RolloutQuery.of(
                rollout_id_in=list(dict.fromkeys(missing[start : start + _READ_AT_ONCE])),
                as_at=self._at,
                reward_version=self._query.reward_version,
            )
            for rollout in await self._source.find_rollouts(query):
                rollouts[rollout.rollout_id] = rollout
                if len(self._ahead) < _AHEAD and rollout.rollout_id in self._timeline.open:
                    self._ahead[rollout.rollout_id] = rollout
        return sorted((rollouts[rollout_id] for rollout_id in rollout_ids), key=attrgetter("start_time"))

    def _in_replay(self, rollout: Rollout | AttemptedRollout) -> Rollout | AttemptedRollout:
        state: Any = self._timeline.states[rollout.rollout_id]
        if state == "ended":
            return rollout
        unfinished: dict[str, Any] = {"status": state, "end_time": None, "reward": None, "rewards": {}}
        return _without_attempt(rollout).model_copy(update=unfinished)

    def _poll(self, rollout_ids: Iterable[str]) -> None:
        """Take a step if an algorithm reads unfinished rollouts again, although nothing has changed."""
        if any(rollout_id in self._timeline.open for rollout_id in rollout_ids):
            if self._polled_at == len(self._timeline.events):
                self._timeline.advance()
            self._polled_at = len(self._timeline.events)

    def _has_status(self, rollout_id: str, statuses: Sequence[str] | None) -> bool:
        """Return whether a rollout was enqueued, and has one of the statuses."""
        state = self._timeline.states.get(rollout_id)
        if state is None or statuses is None:
            return state is not None
        return (self._recording(rollout_id).status if state == "ended" else state) in statuses

    def _recording(self, rollout_id: str) -> RecordedRollout:
        assert self._recordings is not None  # they are read before the first rollout is enqueued
        return self._recordings.by_id[rollout_id]

    def _has_ended(self, rollout_id: str) -> bool:
        return self._timeline.states.get(rollout_id) == "ended"

    def _check_present(self, query: PageQuery) -> None:
        if query.as_at is not None or getattr(query, "at", None) is not None:
            raise Unsupported("reads of the past", _NAME)


class _RecordedAnnotations(StoreAnnotations):
    """The labels and scores of the recorded rollouts, read-only."""

    def __init__(self, source: StoreAnnotations) -> None:
        super().__init__(_NAME)
        self._source = source

    async def query_labels(self, rollout_ids: Sequence[str], *, as_at: AsAt | None = None) -> dict[str, list[str]]:
        return await self._source.query_labels(rollout_ids, as_at=as_at)

    async def query_scores(
        self, rollout_id: str | Sequence[str], *, reward_version: str | None = None, as_at: AsAt | None = None
    ) -> list[Score]:
        return await self._source.query_scores(rollout_id, reward_version=reward_version, as_at=as_at)

    async def query_reward_versions(self, *, as_at: AsAt | None = None) -> list[RewardVersion]:
        return await self._source.query_reward_versions(as_at=as_at)


def _narrows(query: RolloutQuery) -> bool:
    """Return whether a query has a version of a reward, or conditions other than ids and statuses."""
    others = (name for name in query.conditions() if name not in {"rollout_id_in", "status_in"})
    return query.reward_version is not None or any(getattr(query, name) is not None for name in others)


def _without_attempt(rollout: Rollout) -> Rollout:
    return Rollout.model_construct(**{name: getattr(rollout, name) for name in Rollout.model_fields})
