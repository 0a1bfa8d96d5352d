"""Loader of the working set of a batch. It reads rows as states, reuses cached states, and replaces ids that exist.

A load request lists the states that the commands of a batch need, before they are loaded. To draw a span number means
to assign the next number of a rollout. An event in the log reserves a block of numbers, and a counter contains the last
number that was drawn or recorded.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

import orjson

from store.db.data_blocks import json_of
from store.db.dialect import Dialect, NamedRow, Tail, WriteSession
from store.db.queries.working_set import LoadStatement, behind, loading
from store.db.tables.core import QUEUE_ORDER
from store.domain.body import Body
from store.domain.commands import (
    Claim,
    Command,
    Enqueue,
    LoadRequest,
    NewRollout,
    PublishResources,
    SpanContent,
    SpanKey,
    StartAttempt,
    StartRollout,
)
from store.domain.events import RewardScored, RolloutScanned, ScannerAdded, SpanNumbersReserved, upcast
from store.domain.log_time import WRITE, LogTime
from store.domain.resources import ResourcesState
from store.domain.rollout import TERMINAL, QueuePlace, RolloutState
from store.domain.run_commands import Fork
from store.domain.thread import ThreadState
from store.domain.views import RESOURCES_COLUMNS, WORKER_COLUMNS
from store.domain.worker import WorkerSignals, WorkerState
from store.domain.working_set import EVERYTHING, Answered, RunKey, WorkingSet
from store.projections import rollouts as rollout_projection
from store.projections import threads as thread_projection
from store.runtime import ids

_MAX_CACHED = 10_000
_START: QueuePlace = (-(2**31),) * len(QUEUE_ORDER)
"""A place before all places in the queue."""
_MAX_CACHED_SPANS = 50_000
_REQUESTABLE = (
    "fresh",
    "rollouts",
    "plan_keys",
    "bodies_of",
    "metadata_of",
    "spans",
    "model_calls",
    "counters",
    "numbers_of",
    "reservations_of",
    "workers",
    "worked",
    "resources",
    "latest_resources",
    "store_stream",
    "keys",
    "due",
    "keyed",
    "blobs",
    "artifacts",
    "forked",
    "labelled",
    "scores",
    "scans",
    "scanners",
    "threads",
    "whole_threads",
    "thread_checkpoints",
    "thread_tasks",
)
# Those whose values are keys with several columns.
_KEYS = frozenset({"spans", "model_calls", "scores", "scans"})
_requested = attrgetter(*_REQUESTABLE)
_QUEUE_ORDER = tuple(column.name for column in QUEUE_ORDER)
_resources_values: Callable[[NamedRow], tuple[Any, ...]] = attrgetter(*RESOURCES_COLUMNS)
_worker_values: Callable[[NamedRow], tuple[Any, ...]] = attrgetter(*WORKER_COLUMNS)
DRAWING: frozenset[type[Command]] = frozenset({Claim, Enqueue, Fork, PublishResources, StartAttempt, StartRollout})
"""The types of commands that contain ids which the store generated."""


class Loader:
    """Loader of the rows that batches need.

    It remembers a place (the watermark) up to which the queue is empty, so that a read of the queue can begin there.
    The epoch of the queue changes when a rollout returns to an earlier place.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._plans: dict[tuple[bool, ...], list[LoadStatement]] = {}
        self.cache = StateCache()
        self._watermark = _START
        self._epoch = -1

    def prepare(self) -> None:
        """Build the statements, so that the first batch does not wait for them. A store that only reads needs none."""
        loading(self._dialect)

    async def load(
        self, session: WriteSession, tail: Tail, commands: Sequence[Command], log_time: LogTime | None = None
    ) -> WorkingSet:
        """Return the working set for a batch.

        Args:
            session: the session of the batch's transaction.
            tail: the end of the log.
            commands: the commands of the batch.
            log_time: the relation of timestamps to the elapsed time of this process; None if sweeps do not use it.
        """
        request = LoadRequest()
        for command in commands:
            command.request_rows(request)
            if command.idempotency is not None:
                request.keys.add(command.idempotency.key)
        if request.claims:
            request.bodies_of |= request.joiners
            request.metadata_of |= request.joiners
        if request.due:
            # A sweep also checks rollouts that earlier commands of the batch have changed, so the workers of these
            # rollouts are loaded too.
            request.worked |= request.rollouts
        if tail.queue_epoch != self._epoch:
            # A rollout has returned to an earlier place in the queue, which may be before the watermark.
            self._watermark, self._epoch = _START, tail.queue_epoch
        working_set = WorkingSet(
            now=tail.now, last_stamp=tail.recorded_at, next_position=tail.next_position, log_time=log_time
        )
        if not tail.is_ours:
            self.cache.clear()
        self.cache.fill_in(request, working_set)
        heads = request.claims + request.leavers if request.claims else 0
        loaded = await self._round(session, request, working_set, heads)
        if heads:
            self._take_heads(loaded["heads"], working_set, heads, is_start=True)
        if request.due:
            await self._load_due(session, working_set, may_be_claimed=request.claims > 0)
        if request.draws:
            await self._load_for_draws(session, request.draws, working_set)
        return working_set

    async def _load_due(self, session: WriteSession, working_set: WorkingSet, *, may_be_claimed: bool) -> None:
        """Load the rollouts whose ids are in `working_set.due`, which a sweep checks."""
        if working_set.due:
            again = LoadRequest(rollouts=set(working_set.due), worked=set(working_set.due))
            if may_be_claimed:
                # Rollouts that the sweep requeues may be claimed in this batch, and a claim returns their payload.
                again.bodies_of, again.metadata_of = set(again.rollouts), set(again.rollouts)
            self.cache.fill_in(again, working_set)
            await self._round(session, again, working_set, 0)
            # The table of due times is not computed from the log. So a row of this table may belong to a rollout that
            # does not exist.
            working_set.due = [rollout_id for rollout_id in working_set.due if rollout_id in working_set.rollouts]
        if working_set.log_time is not None:
            # The sweep must not count the time for which the batch has waited.
            working_set.log_time.resume(WRITE, self._dialect.elapsed())
            working_set.log_time.wait(WRITE, self._dialect.elapsed())

    async def _load_for_draws(self, session: WriteSession, draws: Mapping[str, int], working_set: WorkingSet) -> None:
        """Load what is needed to draw span numbers beyond the reserved blocks.

        If a rollout has no counter, or if the row of the counter does not contain the last reserved number, an earlier
        counter may have been lost. Then the log is searched for recorded and reserved numbers of the rollout, and the
        next number is greater than all of them.

        Args:
            session: the session of the batch's transaction.
            draws: the number of draws for each rollout.
            working_set: the loaded states, which the function completes.
        """
        counters, reserved = working_set.counters, working_set.reserved
        exceeding = {
            rollout_id
            for rollout_id, count in draws.items()
            if counters.get(rollout_id, 0) + count > reserved.get(rollout_id, 0)
        }
        unsearched = exceeding - reserved.keys()
        again = LoadRequest(rollouts=exceeding - working_set.rollouts.keys(), numbers_of=unsearched)
        if not again.rollouts and not unsearched:
            return
        again.reservations_of = {f"rollout/{rollout_id}" for rollout_id in unsearched}
        self.cache.fill_in(again, working_set)
        loaded = await self._round(session, again, working_set, 0)
        reserved.update(dict.fromkeys(unsearched, 0))
        for row in loaded.get("reservations", ()):
            fact = upcast(SpanNumbersReserved.type, row.shape, json_of(row.data))
            assert isinstance(fact, SpanNumbersReserved)  # the statement selects no other type
            rollout_id = row.stream.removeprefix("rollout/")
            reserved[rollout_id] = max(reserved[rollout_id], fact.until)
        recorded: dict[str, int] = {row.rollout_id: row.last_number for row in loaded.get("recorded_numbers", ())}
        for rollout_id in unsearched:
            last = max(recorded.get(rollout_id, 0), reserved[rollout_id])
            if last > counters.get(rollout_id, 0):
                counters[rollout_id] = last

    async def more_heads(self, session: WriteSession, working_set: WorkingSet, count: int) -> None:
        """Load the next `count` rows of the queue, after the loaded rows."""
        loaded = await self._round(session, LoadRequest(), working_set, count, beyond=working_set.heads_until)
        self._take_heads(loaded["heads"], working_set, count, is_start=False)

    async def more_spans(self, session: WriteSession, working_set: WorkingSet, keys: set[SpanKey]) -> None:
        """Look up spans with derived ids."""
        await self._round(session, LoadRequest(spans=set(keys)), working_set, 0)
        working_set.derived_spans |= keys

    def forget(self) -> None:
        """Clear the cache, and read the queue from its beginning next time."""
        self.cache.clear()
        self._epoch = -1

    def _take_heads(self, rows: Sequence[NamedRow], working_set: WorkingSet, limit: int, *, is_start: bool) -> None:
        if is_start and rows:
            *order, position = _place_of(rows[0])
            self._watermark = (*order, position - 1)
        for row in rows:
            heapq.heappush(working_set.heads, (_place_of(row), row.rollout_id))
        working_set.heads_until = _place_of(rows[-1]) if len(rows) == limit else EVERYTHING

    async def _round(
        self,
        session: WriteSession,
        request: LoadRequest,
        working_set: WorkingSet,
        heads: int,
        *,
        beyond: QueuePlace | None = None,
    ) -> dict[str, Sequence[NamedRow]]:
        shape = (*map(bool, _requested(request)), bool(heads))
        plan = self._plans.get(shape)
        if plan is None:
            names = set(compress((*_REQUESTABLE, "heads"), shape))
            plan = self._plans[shape] = [query for query in loading(self._dialect) if query.requested_by in names]
        if not plan:
            return {}
        params: dict[str, Any] = {
            "heads": heads,
            "due": request.due,
            "due_at": self._due_at(working_set) if request.due else 0,
            "latest_resources": 1,
            "store_stream": 1,
        }
        if heads:
            params |= behind(self._watermark if beyond is None else beyond)
        for query in plan:
            for name in query.lists:
                if name not in params:
                    as_param = self._dialect.keys_param if name in _KEYS else self._dialect.list_param
                    params[name] = as_param(list(getattr(request, name)))
        loaded: dict[str, Sequence[NamedRow]] = {}
        for query, rows in zip(plan, await session.load([query.statement for query in plan], params), strict=True):
            loaded[query.family] = [*loaded[query.family], *rows] if query.family in loaded else rows
        _fill(working_set, loaded)
        _fill_labels(working_set, request, loaded.get("labels", ()))
        return loaded

    def _due_at(self, working_set: WorkingSet) -> int:
        if working_set.log_time is not None:
            working_set.log_time.begin(self._dialect.elapsed(), working_set.last_stamp, working_set.now)
        return working_set.horizon


class StateCache:
    """Cache of the states from the last batches. It is valid as long as no other connection writes. Decision 10.

    A rollout often changes several times within a second. The cache saves reading its rows again for each change. The
    database shows whether another connection has written, and the loader then clears the cache. A rollout, worker or
    other object that is not in the cache may still exist, so it must be read from the database.
    """

    def __init__(self) -> None:
        self._rollouts: dict[str, RolloutState] = {}
        self._spans: dict[str, set[SpanKey]] = {}
        """For some of the cached rollouts, the keys of all spans of the rollout."""
        self._span_count = 0
        self._counters: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        """The greatest reserved span number by rollout. The rollout may have no counter yet."""
        self._workers: dict[str, WorkerState] = {}
        self._signals: dict[str, WorkerSignals] = {}
        self._resources: dict[str, ResourcesState] = {}
        self._latest_resources: str | None = None

    def clear(self) -> None:
        """Remove all entries."""
        self.__init__()

    def store(self, working_set: WorkingSet) -> None:
        """Store the states of a committed batch."""
        if (
            len(self._rollouts) + len(self._counters) + len(self._workers) > _MAX_CACHED
            or len(self._reserved) > _MAX_CACHED
            or self._span_count > _MAX_CACHED_SPANS
        ):
            self.clear()
        for rollout_id, state in working_set.rollouts.items():
            # A rollout that has ended rarely changes again, so it is not cached. A command may refer to any attempt, so
            # a rollout is cached only if all of its attempts are loaded.
            at_hand = sum(attempt.released_position is None for attempt in state.attempts.values())
            if state.status not in TERMINAL and at_hand == state.attempt_count:
                self._rollouts[rollout_id] = state
                if state.spans == 0:
                    self._spans[rollout_id] = set()
            else:
                self._rollouts.pop(rollout_id, None)
                self._span_count -= len(self._spans.pop(rollout_id, ()))
        touched: set[str] = set()
        for key in working_set.spans:
            keys = self._spans.get(key[0])
            if keys is not None and key not in keys:
                keys.add(key)
                self._span_count += 1
                touched.add(key[0])
        for rollout_id in touched:
            if len(self._spans[rollout_id]) != self._rollouts[rollout_id].spans:
                # The rollout has other spans, which were not loaded.
                self._span_count -= len(self._spans.pop(rollout_id))
        # The working set also contains counters of rollouts that were not loaded. They are cached too.
        self._counters.update(working_set.counters)
        self._reserved.update(working_set.reserved)
        self._workers.update(working_set.workers)
        self._signals.update(working_set.worker_signals)
        self._resources.update(working_set.resources)
        if working_set.latest_resources is not None:
            self._latest_resources = working_set.latest_resources

    def fill_in(self, request: LoadRequest, working_set: WorkingSet) -> None:
        """Add cached states to a working set, and remove these states from the load request."""
        for rollout_id in request.rollouts & self._rollouts.keys():
            state = working_set.rollouts[rollout_id] = self._rollouts[rollout_id]
            request.rollouts.discard(rollout_id)
            if state.labels is not None:
                request.labelled.discard(rollout_id)
            if state.resources_id is not None:
                # A new attempt records the present version of the rollout's resources. This version is not part of the
                # rollout's state, so the resources are requested.
                request.resources.add(state.resources_id)
            if rollout_id in request.worked:
                request.worked.discard(rollout_id)
                request.workers.update(attempt.worker_id for attempt in state.attempts.values() if attempt.worker_id)
            if all(attempt.metadata_position is None for attempt in state.attempts.values()):
                request.metadata_of.discard(rollout_id)
        # The content of a span that exists is not cached, because repeats are rare. So its row is requested.
        spans = [key for key in request.spans if key[0] in self._spans and key not in self._spans[key[0]]]
        request.spans.difference_update(spans)
        for rollout_id in request.counters & self._reserved.keys():
            working_set.reserved[rollout_id] = self._reserved[rollout_id]
        for rollout_id in request.counters & self._counters.keys():
            working_set.counters[rollout_id] = self._counters[rollout_id]
            request.counters.discard(rollout_id)
        workers = request.workers & self._workers.keys()
        working_set.workers.update((worker_id, self._workers[worker_id]) for worker_id in workers)
        working_set.worker_signals.update((key, self._signals[key]) for key in workers & self._signals.keys())
        request.workers.difference_update(workers)
        for resources_id in request.resources & self._resources.keys():
            self._fill_in_resources(resources_id, working_set)
            request.resources.discard(resources_id)
        if request.latest_resources and self._latest_resources is not None:
            self._fill_in_resources(self._latest_resources, working_set)
            working_set.latest_resources = self._latest_resources
            request.latest_resources = False

    def _fill_in_resources(self, resources_id: str, working_set: WorkingSet) -> None:
        resources = working_set.resources[resources_id] = self._resources[resources_id]
        working_set.resource_versions[resources_id] = resources.version


def _place_of(row: NamedRow) -> QueuePlace:
    return tuple(getattr(row, name) for name in _QUEUE_ORDER)


def _fill(working_set: WorkingSet, loaded: Mapping[str, Sequence[NamedRow]]) -> None:
    working_set.taken.update(row.rollout_id for row in loaded.get("taken", ()))
    _fill_rollouts(working_set, loaded.get("rollouts", ()))
    for row in loaded.get("attempts", ()):
        attempt = rollout_projection.attempt_state(row)
        working_set.rollouts[attempt.rollout_id].attempts.setdefault(attempt.attempt_id, attempt)
    _fill_spans(working_set, loaded)
    _fill_scores(working_set, loaded.get("scores", ()))
    for row in loaded.get("scans", ()):
        is_match = None if row.is_match is None else bool(row.is_match)
        fact = RolloutScanned(row.attempt_id, row.scanner, row.version, is_match, row.error)
        working_set.scans.setdefault((row.rollout_id, fact.attempt_id, fact.scanner, fact.version), fact)
    for row in loaded.get("scanners", ()):
        added = upcast(ScannerAdded.type, row.shape, json_of(row.data))
        assert isinstance(added, ScannerAdded)  # the statement selects no other type
        working_set.scanners[row.stream] = added
    _fill_resources(working_set, loaded.get("resources", ()))
    latest = loaded.get("latest_resources", ())
    _fill_resources(working_set, latest)
    if latest and working_set.latest_resources is None:
        working_set.latest_resources = latest[0].resources_id
    for row in loaded.get("store_stream", ()):
        working_set.store_version = row.version
    _fill_workers(working_set, loaded.get("workers", ()))
    for row in loaded.get("bodies", ()):
        working_set.bodies.setdefault(row.position, Body(row.codec, row.raw_len, bytes(row.body), b""))
    for row in loaded.get("answered", ()):
        answer = Answered(bytes(row.request_hash), row.position, orjson.loads(row.reply))
        working_set.answered[row.scope, row.key] = answer
    working_set.due.extend(row.rollout_id for row in loaded.get("due", ()))
    _fill_runs(working_set, loaded)
    _fill_threads(working_set, loaded)


def _fill_spans(working_set: WorkingSet, loaded: Mapping[str, Sequence[NamedRow]]) -> None:
    for row in loaded.get("spans", ()):
        working_set.spans[row.rollout_id, row.attempt_id, row.span_id] = SpanContent(
            row.trace_id,
            row.parent_id,
            row.name,
            row.start_time,
            row.end_time,
            row.status_code,
            row.status_message,
            bytes(row.body_hash),
        )
    for row in loaded.get("model_calls", ()):
        working_set.model_calls[row.rollout_id, row.attempt_id, row.response_id] = (row.tokens_in, row.tokens_out)
    for row in loaded.get("counters", ()):
        working_set.counters.setdefault(row.rollout_id, row.value)
        if row.reserved is not None:
            working_set.reserved.setdefault(row.rollout_id, row.reserved)


def _fill_runs(working_set: WorkingSet, loaded: Mapping[str, Sequence[NamedRow]]) -> None:
    for row in loaded.get("run_keys", ()):
        run_key = RunKey(row.kind, row.version, row.last_version, row.attempt_id)
        working_set.run_keys[row.rollout_id, row.key] = run_key
    working_set.blobs.update(row.hash for row in loaded.get("blobs", ()))
    for row in loaded.get("artifacts", ()):
        working_set.artifacts[row.rollout_id, row.artifact_id] = (row.version, row.retracted)


def _fill_scores(working_set: WorkingSet, rows: Sequence[NamedRow]) -> None:
    for row in rows:
        error, dimensions = _json(row.error), _json(row.dimensions)
        fact = RewardScored(row.attempt_id, row.name, row.version, row.value, dimensions, error, row.code_sha256)
        working_set.scores.setdefault((row.rollout_id, fact.attempt_id, fact.name, fact.version), fact)


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _fill_threads(working_set: WorkingSet, loaded: Mapping[str, Sequence[NamedRow]]) -> None:
    for row in loaded.get("threads", ()):
        thread = ThreadState(row.thread_id, row.stream_version, row.first_position, row.last_position)
        working_set.threads[thread.thread_id] = thread
    for row in loaded.get("thread_checkpoints", ()):
        thread_projection.fill(working_set.threads[row.thread_id], [row], [])
        if row.body_hash is not None:
            working_set.body_hashes[row.body_position] = bytes(row.body_hash)
    for row in loaded.get("thread_writes", ()):
        thread_projection.fill(working_set.threads[row.thread_id], [], [row])


def _fill_rollouts(working_set: WorkingSet, rows: Sequence[NamedRow]) -> None:
    for row in rows:
        state = rollout_projection.rollout_state(row)
        # If the working set contains a state of this rollout, that state is the newer one. It came from the cache, an
        # earlier query, or a change in this batch.
        working_set.rollouts.setdefault(state.rollout_id, state)
        if state.plan_key is not None:
            working_set.plan_keys[state.plan_key] = state.rollout_id
        if row.resources_now is not None and state.resources_id is not None:
            working_set.resource_versions.setdefault(state.resources_id, row.resources_now)


def _fill_labels(working_set: WorkingSet, request: LoadRequest, rows: Sequence[NamedRow]) -> None:
    labels: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        labels[row.rollout_id][row.label] = row.position
    for rollout_id in request.labelled & working_set.rollouts.keys():
        state = working_set.rollouts[rollout_id]
        if state.labels is None:
            state.labels = labels[rollout_id]


def _fill_resources(working_set: WorkingSet, rows: Sequence[NamedRow]) -> None:
    for row in rows:
        resources = ResourcesState(*_resources_values(row))
        working_set.resources.setdefault(resources.resources_id, resources)
        working_set.resource_versions.setdefault(resources.resources_id, resources.version)


def _fill_workers(working_set: WorkingSet, rows: Sequence[NamedRow]) -> None:
    for row in rows:
        worker = WorkerState(*_worker_values(row))
        if worker.worker_id in working_set.workers:
            continue
        working_set.workers[worker.worker_id] = worker
        if row.has_signals is not None:
            working_set.worker_signals[worker.worker_id] = WorkerSignals(
                worker.worker_id,
                row.heartbeat_stats,
                row.last_heartbeat_at,
                row.last_dequeue_at,
                row.signal_busy_at,
                row.signal_idle_at,
            )


def redraw_taken(commands: Sequence[Command], working_set: WorkingSet) -> bool:
    """Replace each generated id that exists in the store, and each rollout id that occurs twice in the batch.

    Return whether an id was replaced. A new id may exist too, so the caller must then load the working set again and
    repeat the call.
    """
    redrawn = False
    taken = working_set.taken | working_set.rollouts.keys()
    for item in _new_rollouts(commands):
        if item.rollout_id in taken:
            item.rollout_id = ids.rollout_id()
            redrawn = True
        taken.add(item.rollout_id)
    attempts = {attempt_id for rollout in working_set.rollouts.values() for attempt_id in rollout.attempts}
    for command in commands:
        match command:
            case Claim():
                clashes = [n for n, attempt_id in enumerate(command.attempt_ids) if attempt_id in attempts]
                for ordinal in clashes:
                    command.attempt_ids[ordinal] = ids.attempt_id()
                redrawn = redrawn or bool(clashes)
            case StartAttempt() | StartRollout() if command.attempt_id in attempts:
                command.attempt_id = ids.attempt_id()
                redrawn = True
            case Fork() if command.fact.attempt_id in attempts:
                command.fact.attempt_id = ids.attempt_id()
                redrawn = True
            case PublishResources(is_new=True) if command.resources_id in working_set.resources:
                command.resources_id = ids.resources_id()
                redrawn = True
            case _:
                pass
    return redrawn


def _new_rollouts(commands: Sequence[Command]) -> Iterator[NewRollout]:
    for command in commands:
        match command:
            case Enqueue():
                yield from command.items
            case StartRollout():
                yield command.item
            case _:
                pass
