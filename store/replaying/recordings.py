"""Recordings: the past rollouts of a replay, and the tasks to which they belong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from store.errors import Conflict, Invalid, NotFound
from store.interface.store import Store
from store.models import AttemptedRollout, EnqueueRolloutRequest, Rollout
from store.models.queries import RolloutQuery
from store.semconv import GROUP_KEY, PLAN_KEY, STEP_KEY
from store.validation.json_limits import canonical_sha256

_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
_READ_AT_ONCE: Final = 1000
_INPUT_LENGTH: Final = 200


@dataclass(slots=True)
class RecordedRollout:
    """A past rollout, without its payload."""

    rollout_id: str
    task: str
    """The hash of the mode and the input."""
    plan_key: str | None
    group: str | None
    step: int | None
    mode: Any
    resources_id: str | None
    status: Any
    created_at: float
    claimed_at: float | None
    """When the latest attempt began; None without an attempt."""
    ended_at: float
    is_used: bool = False
    """Whether a task of the algorithm was answered with this recording."""

    @classmethod
    def of(cls, rollout: Rollout) -> RecordedRollout:
        """Return the recording of a rollout."""
        metadata = rollout.metadata or {}
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        ended_at = rollout.start_time if rollout.end_time is None else rollout.end_time
        return cls(
            rollout_id=rollout.rollout_id,
            task=task_of(rollout.mode, rollout.input),
            plan_key=metadata.get(PLAN_KEY),
            group=metadata.get(GROUP_KEY),
            step=metadata.get(STEP_KEY),
            mode=rollout.mode,
            resources_id=rollout.resources_id,
            status=rollout.status,
            created_at=rollout.start_time,
            # If a rollout was cancelled in the queue, its attempt may begin after the end of the rollout.
            claimed_at=None if attempt is None else min(attempt.start_time, ended_at),
            ended_at=ended_at,
        )


@dataclass
class Recordings:
    """The recordings of a query, in the order of their creation."""

    by_id: dict[str, RecordedRollout] = field(default_factory=dict[str, RecordedRollout])
    _by_key: dict[str, RecordedRollout] = field(default_factory=dict[str, RecordedRollout])
    _by_task: Mapping[str, list[RecordedRollout]] = field(default_factory=lambda: defaultdict(list))
    _next: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """For each task, an index in its list of recordings. All recordings before this index are used."""
    _unended: dict[str, list[RecordedRollout]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    async def read(cls, source: Store, query: RolloutQuery) -> Recordings:
        """Read the rollouts that a query selects. Rollouts that have not ended are no recordings."""
        recordings, offset = cls(), 0
        while True:
            page = await source.find_rollouts(
                query.model_copy(update={"limit": _READ_AT_ONCE, "offset": offset, "sort_by": None})
            )
            for rollout in page:
                recordings._add(RecordedRollout.of(rollout))
            offset += len(page)
            if not page.items or offset >= page.total:
                return recordings

    def _add(self, recording: RecordedRollout) -> None:
        if recording.status not in _ENDED:
            self._unended[recording.task].append(recording)
            return
        self.by_id[recording.rollout_id] = recording
        self._by_task[recording.task].append(recording)
        if recording.plan_key is not None:
            self._by_key[recording.plan_key] = recording

    def match(self, requests: Sequence[EnqueueRolloutRequest]) -> list[tuple[RecordedRollout, bool]]:
        """Return the recording of each task, and whether the recording is used for the first time.

        If the plan key of a task is the key of a recording, the task gets this recording, even if it is used already.
        Every other task gets the first recording with the same mode and input that is not used yet. If a task has no
        recording, the call marks no recording as used.

        Raises:
            NotFound: a task has no recording.
            Conflict: the recording with the plan key has another input.
        """
        matched: list[tuple[RecordedRollout, bool]] = []
        try:
            for request in requests:
                recording = self._recording_of(request)
                matched.append((recording, not recording.is_used))
                recording.is_used = True
        except BaseException:
            for recording, is_new in matched:
                recording.is_used = recording.is_used and not is_new
                if is_new:
                    self._next[recording.task] = 0
            raise
        return matched

    def _recording_of(self, request: EnqueueRolloutRequest) -> RecordedRollout:
        task = task_of(request.mode, request.input)
        key = (request.metadata or {}).get(PLAN_KEY)
        if key is not None and (recording := self._by_key.get(key)) is not None:
            if recording.task != task:
                raise Conflict(
                    f"the recording with the plan key {key}, {recording.rollout_id}, has another input or mode than"
                    f" {_shown(request)}",
                    "replay the algorithm with the tasks of the recorded training",
                )
            return recording
        recordings = self._by_task.get(task, [])
        for place in range(self._next[task], len(recordings)):
            self._next[task] = place
            if not recordings[place].is_used:
                return recordings[place]
        raise self._missing(request, task, len(recordings))

    def _missing(self, request: EnqueueRolloutRequest, task: str, used: int) -> NotFound:
        if used:
            reason = f"all {used} with this input were replayed already"
        elif unended := self._unended.get(task):
            reason = f"rollout {unended[0].rollout_id} has this input, but has not ended: {unended[0].status}"
        else:
            reason = f"none of the {len(self.by_id)} recordings that the query selects has this input"
        return NotFound("recording", task, f"no recording of the task {_shown(request)}: {reason}")


def task_of(mode: str | None, value: Any) -> str:
    """Return a hash that is equal for tasks with the same mode and input.

    Raises:
        Invalid: the input is no JSON value.
    """
    try:
        # Tuples and keys that are numbers become what a store would return.
        return canonical_sha256(orjson.loads(orjson.dumps([mode, value])))
    except (TypeError, orjson.JSONEncodeError) as error:
        raise Invalid("input", f"is no JSON value: {error}") from error


def _shown(request: EnqueueRolloutRequest) -> str:
    text = orjson.dumps(request.input).decode()
    text = text if len(text) <= _INPUT_LENGTH else f"{text[: _INPUT_LENGTH - 1]}…"
    key = (request.metadata or {}).get(PLAN_KEY)
    return f"{text} (mode {request.mode or 'none'}{'' if key is None else f', key {key}'})"
