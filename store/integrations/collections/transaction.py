"""Execution of a command on collections: load rows into a working set, decide, and write the changed rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import orjson

from store.db.queries.bodies import payload_of
from store.domain import retry
from store.domain.body import Body
from store.domain.commands import Command, LoadRequest, PublishResources, RecordSpans, ReleaseClaim, Sweep
from store.domain.decide import decide
from store.domain.resources import ResourcesState
from store.domain.rollout import ACTIVE, WAITING, AttemptState, RolloutState
from store.domain.views import view_attempt, view_resources, view_rollout, view_worker
from store.domain.worker import WorkerSignals, WorkerState
from store.domain.working_set import NeedsSpans, WorkingSet
from store.errors import StoreError
from store.integrations.collections.interface import LightningCollections
from store.integrations.collections.plan_keys import PlanKeyIndex
from store.models import Attempt, Rollout, Span
from store.runtime.clock import Clock, to_micros
from store.sql.commands.spans import new_span, stored_span
from store.sql.mapping import rollouts as mapping
from store.validation.json_limits import body_of

_FIRST_POSITION: Final = 2**40
"""Position of the first new event. Loaded rows have lower positions, which only express their order."""
_LOADED_STAMP: Final = 1
"""Time stamp for a sign of life (heartbeat or span) that was loaded; all new time stamps are later."""


class Decision(NamedTuple):
    """The result of a command."""

    answer: Any
    error: StoreError | None
    """The error of a refused command. Changes that the command made before the refusal are kept."""
    next_check: int | None
    """When the watchdog has to check a rollout that the command changed, in µs; None if no check is necessary."""
    last_stamp: int
    """The greatest time stamp so far, in µs."""


class Transaction:
    """Execution of one command, inside an atomic block of the collections.

    Args:
        collections: the collections.
        clock: returns the time, in µs.
        last_stamp: returns the greatest time stamp so far, in µs. `clock` and `last_stamp` are called right before the
            decision.
        index: the plan keys, for collections that do not store plan keys.
    """

    def __init__(
        self, collections: LightningCollections, clock: Clock, last_stamp: Callable[[], int], index: PlanKeyIndex
    ) -> None:
        self._collections = collections
        self._index = index
        self._clock = clock
        self._last_stamp = last_stamp
        self._set = WorkingSet(now=0, last_stamp=0, next_position=_FIRST_POSITION)
        self._bodies = count(-1, -1)
        self._rollouts: dict[str, Rollout] = {}
        self._attempts: dict[tuple[str, str], Attempt] = {}
        self._plan_keys: set[str] = set()
        self._spans: set[tuple[str, str, str]] = set()

    async def execute(self, command: Command, spans: Sequence[Span] = ()) -> Decision:
        """Load the rows that the command needs, decide, and write the changed rows.

        Args:
            command: the command.
            spans: the spans of a command that records spans.
        """
        request = LoadRequest()
        command.request_rows(request)
        await self._load(command, request)
        answer, error = None, None
        self._set.now, self._set.last_stamp = self._clock(), self._last_stamp()
        self._set.begin(0)
        try:
            answer = await self._decide(command)
        except StoreError as refused:
            error = refused
        await self._save(command, spans)
        changed = self._set.rollouts if isinstance(command, Sweep) else self._set.rewatch
        times = [at for rollout_id in changed if (at := retry.check_at(self._set.rollouts[rollout_id])) is not None]
        return Decision(answer, error, min(times, default=None), self._set.last_stamp)

    async def _decide(self, command: Command) -> Any:
        try:
            return decide(command, self._set)
        except NeedsSpans as needed:
            await self._load_spans(LoadRequest(spans=needed.keys))
            self._set.derived_spans |= needed.keys
            return decide(command, self._set)

    async def _load(self, command: Command, request: LoadRequest) -> None:
        digests = await self._load_plan_keys(request.plan_keys)
        waiting = await self._take(request.claims)
        active = await self._active() if request.due else []
        missing = {*request.rollouts, *digests} - {rollout.rollout_id for rollout in (*waiting, *active)}
        rollouts = [*waiting, *active, *await self._rollouts_of(missing)]
        payloads = {*request.bodies_of, *digests, *(rollout.rollout_id for rollout in waiting)}
        for number, rollout in enumerate(rollouts, start=1):
            self._add_rollout(rollout, number, with_payload=rollout.rollout_id in payloads)
        for rollout in waiting:
            self._set.joins_queue(rollout.rollout_id)
        for rollout_id, digest in digests.items():
            if rollout_id in self._set.rollouts:
                self._set.rollouts[rollout_id].input_sha256 = digest
        self._set.due = [rollout.rollout_id for rollout in active]
        await self._load_attempts(rollouts, request)
        rollouts_with_workers = {*request.worked, *self._set.due}
        workers = {
            attempt.worker_id
            for attempt in self._attempts.values()
            if attempt.rollout_id in rollouts_with_workers and attempt.worker_id
        }
        await self._load_workers({*request.workers, *workers})
        await self._load_spans(request)
        if request.latest_resources:
            latest = await self._collections.resources.get(sort={"name": "update_time", "order": "desc"})
            self._set.latest_resources = None if latest is None else latest.resources_id
        if isinstance(command, PublishResources):
            current = await self._collections.resources.get({"resources_id": {"exact": command.resources_id}})
            if current is not None:
                self._set.resources[command.resources_id] = ResourcesState(
                    resources_id=command.resources_id,
                    version=current.version,
                    create_at=to_micros(current.create_time),
                    update_at=to_micros(current.update_time),
                    body_position=0,
                    stream_version=1,
                    first_position=0,
                    last_position=0,
                )

    async def _load_plan_keys(self, keys: Iterable[str]) -> dict[str, str]:
        """Load plan keys, and return the input hashes of the rollouts with these keys, by rollout id."""
        digests: dict[str, str] = {}
        for key in keys:
            stored = self._collections.plan_keys
            entry = await (self._index.get(self._collections.rollouts, key) if stored is None else stored.get(key))
            if entry is not None:
                rollout_id, digest = entry.split(" ")
                self._set.plan_keys[key] = rollout_id
                self._plan_keys.add(key)
                digests[rollout_id] = digest
        return digests

    async def _take(self, limit: int) -> list[Rollout]:
        """Take up to `limit` waiting rollouts from the queue; ids of rollouts that do not wait are dropped."""
        claimed: list[Rollout] = []
        while len(claimed) < limit:
            ids = await self._collections.rollout_queue.dequeue(limit - len(claimed))
            if not ids:
                break
            rollouts = {rollout.rollout_id: rollout for rollout in await self._rollouts_of(set(ids))}
            batch = [rollouts[rollout_id] for rollout_id in ids if rollout_id in rollouts]
            claimed += [rollout for rollout in batch if rollout.status in WAITING]
        return claimed

    async def _active(self) -> list[Rollout]:
        """Return the rollouts that the watchdog has to check."""
        page = await self._collections.rollouts.query({"status": {"within": sorted(ACTIVE)}})
        return [
            rollout
            for rollout in page.items
            if rollout.config.timeout_seconds is not None or rollout.config.unresponsive_seconds is not None
        ]

    async def _rollouts_of(self, rollout_ids: Collection[str]) -> list[Rollout]:
        return [*await self._collections.rollouts.query(_among("rollout_id", rollout_ids))] if rollout_ids else []

    async def _load_attempts(self, rollouts: Sequence[Rollout], request: LoadRequest) -> None:
        """Load the latest attempt of each rollout, and the attempts that the request names."""
        for rollout in rollouts:
            rollout_id = rollout.rollout_id
            latest = await latest_attempt(self._collections, rollout_id)
            if latest is None:
                continue
            state = self._set.rollouts[rollout_id]
            state.attempt_count = state.head = latest.sequence_id
            attempt_ids = request.attempts - {latest.attempt_id, "latest"}
            others: Sequence[Attempt] = []
            if attempt_ids and rollout_id in request.rollouts:
                conditions = {"rollout_id": {"exact": rollout_id}, **_among("attempt_id", attempt_ids)}
                others = (await self._collections.attempts.query(conditions)).items
            for attempt in (*others, latest):
                self._add_attempt(attempt, with_payload=rollout_id in request.metadata_of)

    async def _load_workers(self, worker_ids: Collection[str]) -> None:
        if not worker_ids:
            return
        for worker in await self._collections.workers.query(_among("worker_id", worker_ids)):
            self._set.workers[worker.worker_id] = WorkerState(
                worker_id=worker.worker_id,
                status=worker.status,
                current_rollout_id=worker.current_rollout_id,
                current_attempt_id=worker.current_attempt_id,
                last_busy_at=_micros(worker.last_busy_time),
                last_idle_at=_micros(worker.last_idle_time),
                stream_version=1,
                first_position=0,
                last_position=0,
            )
            stats = worker.heartbeat_stats
            self._set.worker_signals[worker.worker_id] = WorkerSignals(
                worker.worker_id,
                heartbeat_stats=None if stats is None else orjson.dumps(stats).decode(),
                last_heartbeat_at=_micros(worker.last_heartbeat_time),
                last_dequeue_at=_micros(worker.last_dequeue_time),
            )

    async def _load_spans(self, request: LoadRequest) -> None:
        """Load the requested counters, and the keys of the requested spans that exist."""
        for rollout_id in request.counters:
            number = await self._collections.span_sequence_ids.get(rollout_id)
            if number is not None:
                self._set.counters[rollout_id] = number
        groups: dict[tuple[str, str], set[str]] = {}
        for rollout_id, attempt_id, span_id in request.spans:
            groups.setdefault((rollout_id, attempt_id), set()).add(span_id)
        for (rollout_id, attempt_id), span_ids in groups.items():
            conditions = {
                "rollout_id": {"exact": rollout_id},
                "attempt_id": {"exact": attempt_id},
                **_among("span_id", span_ids),
            }
            spans = await self._collections.spans.query(conditions)
            for span in spans:
                item = new_span(span, "span.")
                self._spans.add(item.key)
                self._set.spans[item.key] = item.content

    def _add_rollout(self, rollout: Rollout, number: int, *, with_payload: bool) -> None:
        position = next(self._bodies)
        if with_payload:
            body = body_of({"input": rollout.input, "metadata": rollout.metadata})
            self._set.bodies[position] = body
        self._rollouts[rollout.rollout_id] = rollout
        self._set.rollouts[rollout.rollout_id] = RolloutState(
            rollout_id=rollout.rollout_id,
            status=rollout.status,
            mode=rollout.mode,
            resources_id=rollout.resources_id,
            resources_version=None,
            config=rollout.config.model_dump(),
            start_at=to_micros(rollout.start_time),
            end_at=_micros(rollout.end_time),
            group_id=None,
            step=None,
            plan_key=None,
            input_sha256="",
            input_position=position,
            metadata_position=position,
            queued_position=number if rollout.status in WAITING else None,
            attempt_count=0,
            rerun_seq=0,
            last_reward=None,
            spans=0,
            tokens_in=0,
            tokens_out=0,
            error=None,
            stream_version=1,
            first_position=number,
            last_position=0,
        )

    def _add_attempt(self, attempt: Attempt, *, with_payload: bool) -> None:
        position = None
        if with_payload and attempt.metadata is not None:
            position = next(self._bodies)
            self._set.bodies[position] = body_of({"metadata": attempt.metadata})
        self._attempts[attempt.rollout_id, attempt.attempt_id] = attempt
        last_heartbeat = attempt.last_heartbeat_time
        self._set.rollouts[attempt.rollout_id].attempts[attempt.attempt_id] = AttemptState(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=attempt.sequence_id,
            status=attempt.status,
            worker_id=attempt.worker_id,
            start_at=to_micros(attempt.start_time),
            end_at=_micros(attempt.end_time),
            last_heartbeat_time=None,
            heartbeat_stamped_at=None,
            metadata_position=position,
            via="dequeue",
            rerun_seq=0,
            resources_version=None,
            owner=None,
            error=None,
            released_position=None,
            first_position=0,
            last_position=0,
            tries=attempt.sequence_id,
            signal_time=last_heartbeat,
            signal_stamped_at=None if last_heartbeat is None else _LOADED_STAMP,
        )

    async def _save(self, command: Command, spans: Sequence[Span]) -> None:
        await self._save_rollouts()
        await self._save_attempts()
        await self._save_queue(command)
        if isinstance(command, RecordSpans):
            await self._save_spans(command, spans)
        for rollout_id in self._set.touched_counters:
            await self._collections.span_sequence_ids.set(rollout_id, self._set.counters[rollout_id])
        for key, rollout_id in self._set.plan_keys.items():
            if key not in self._plan_keys and self._collections.plan_keys is not None:
                digest = self._set.rollouts[rollout_id].input_sha256
                await self._collections.plan_keys.set(key, f"{rollout_id} {digest}")
        workers = [*dict.fromkeys((*self._set.touched_workers, *self._set.touched_signals))]
        if workers:
            rows = [mapping.worker_of_view(view_worker(self._set, worker_id)) for worker_id in workers]
            await self._collections.workers.upsert(rows)
        for resources_id in self._set.touched_resources:
            state = self._set.resources[resources_id]
            body = self._set.bodies[state.body_position]
            await self._collections.resources.upsert([mapping.resources_of_view(view_resources(state, body))])

    async def _save_rollouts(self) -> None:
        new: list[Rollout] = []
        changed: list[Rollout] = []
        for rollout_id in self._set.queued_before:
            before = self._rollouts.get(rollout_id)
            if before is None:
                if rollout_id in self._set.rollouts:
                    new.append(mapping.rollout_of_view(view_rollout(self._set, rollout_id)))
            elif rollout_id in self._set.moved:
                state = self._set.rollouts[rollout_id]
                update: dict[str, Any] = {
                    "status": state.status,
                    "mode": state.mode,
                    "resources_id": state.resources_id,
                    "config": type(before.config).model_validate(state.config),
                    "end_time": _seconds(state.end_at),
                }
                for name, position in (("input", state.input_position), ("metadata", state.metadata_position)):
                    if position >= _FIRST_POSITION:
                        update[name] = _field(self._set.bodies.get(position), name)
                changed.append(before.model_copy(update=update))
        if new:
            await self._collections.rollouts.insert(new)
        if changed:
            await self._collections.rollouts.update(changed)

    async def _save_attempts(self) -> None:
        new: list[Attempt] = []
        changed: list[Attempt] = []
        released: list[Attempt] = []
        for key, state in {**self._set.touched_attempts, **self._set.beats}.items():
            before = self._attempts.get(key)
            if before is None:
                new.append(mapping.attempt_of_view(view_attempt(self._set, state)))
            elif state.released_position is not None:
                released.append(before)
            else:
                update: dict[str, Any] = {
                    "status": state.status,
                    "worker_id": state.worker_id,
                    "end_time": _seconds(state.end_at),
                    "last_heartbeat_time": state.sign_of_life,
                }
                position = state.metadata_position
                if position is not None and position >= _FIRST_POSITION:
                    update["metadata"] = _field(self._set.bodies.get(position), "metadata")
                changed.append(before.model_copy(update=update))
        if new:
            await self._collections.attempts.insert(new)
        if changed:
            await self._collections.attempts.update(changed)
        if released:
            await self._collections.attempts.delete(released)

    async def _save_queue(self, command: Command) -> None:
        """Append the rollouts that began to wait to the queue. A released rollout becomes the first entry again."""
        joined = {
            rollout_id: position
            for rollout_id, before in self._set.queued_before.items()
            if before is None and (position := self._set.rollouts[rollout_id].queued_position) is not None
        }
        if not joined:
            return
        queue = self._collections.rollout_queue
        ids = sorted(joined, key=joined.__getitem__)
        is_released = isinstance(command, ReleaseClaim)
        # A rollout that stopped waiting without a claim may still have its old entry in the queue.
        stale = {rollout_id for rollout_id in ids if rollout_id in self._rollouts and await queue.has(rollout_id)}
        if stale or is_released:
            others = [rollout_id for rollout_id in await queue.dequeue(await queue.size()) if rollout_id not in stale]
            ids = [*ids, *others] if is_released else [*others, *ids]
        await queue.enqueue(ids)

    async def _save_spans(self, command: RecordSpans, spans: Sequence[Span]) -> None:
        new = self._set.spans.keys() - self._spans
        rows: list[Span] = []
        for item, span in zip(command.items, spans, strict=True):
            if item.key in new:
                new.remove(item.key)
                rows.append(stored_span(span, item).model_copy(update={"sequence_id": item.fact.sequence_id}))
        if rows:
            await self._collections.spans.insert(rows)


async def latest_attempt(collections: LightningCollections, rollout_id: str) -> Attempt | None:
    """Return the attempt with the greatest sequence id."""
    return await collections.attempts.get(
        {"rollout_id": {"exact": rollout_id}}, {"name": "sequence_id", "order": "desc"}
    )


def _among(field: str, values: Collection[str]) -> dict[str, Any]:
    return {field: {"within": sorted(values)}}


def _field(body: Body | None, name: str) -> Any:
    return (payload_of(body) or {}).get(name)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else to_micros(seconds)


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1_000_000
