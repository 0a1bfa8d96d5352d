"""Rollouts, their attempts, and workers. Times are float seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, model_validator

from store.models.enums import AttemptStatus, Frozen, RolloutMode, RolloutStatus, TaskInput, WorkerState, WorkerStatus

HEARTBEAT_SECONDS: Final = 10.0
"""The default time between two heartbeats of a worker and of its attempts."""
_MISSED_BEATS: Final = 6
LEAST_SILENCE_SECONDS: Final = 1.0


def longest_silence(heartbeat_interval: float) -> float:
    """Return the seconds without a heartbeat after which a worker is lost: six intervals, and at least one second."""
    return max(LEAST_SILENCE_SECONDS, round(_MISSED_BEATS * heartbeat_interval, 3))


def declared_interval(heartbeat_stats: Mapping[str, Any] | None) -> float | None:
    """Return the seconds between two heartbeats, as a worker's heartbeats declare them; None without a valid number."""
    interval: Any = (heartbeat_stats or {}).get("heartbeat_interval")
    if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval < float("inf"):
        return None
    return float(interval)


class RolloutConfig(Frozen):
    """Limits of an attempt's duration and silence, and the conditions of a retry."""

    timeout_seconds: float | None = None
    """The maximum duration of an attempt from its start. Heartbeats do not extend it. None means no limit."""
    unresponsive_seconds: float | None = None
    """The maximum time since an attempt's last heartbeat or span, or since its start if there was none.

    None means no limit.
    """
    max_attempts: int = Field(default=1, ge=1)
    """The maximum number of attempts. If the last of these attempts fails, the rollout fails."""
    retry_condition: list[AttemptStatus] = Field(default_factory=list[AttemptStatus])
    """The statuses of an attempt after which the rollout is queued for another attempt.

    Only `failed`, `timeout` and `unresponsive` have an effect here.
    """

    @property
    def is_unlimited(self) -> bool:
        """Whether the config sets no limits and no retries. The store adds both if the rollout's worker is lost."""
        return self.timeout_seconds is None and self.unresponsive_seconds is None and not self.retry_condition


class EnqueueRolloutRequest(Frozen):
    """One rollout of a bulk `enqueue_many_rollouts`; the fields are the arguments of `enqueue_rollout`."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None


class AttemptError(Frozen):
    """The reason why an attempt did not succeed, as its runner reported it."""

    type: str
    """The kind of error: `TimeoutError`, `openai.RateLimitError` …; the first 200 characters are kept."""
    message: str = ""
    """The message of the error; the first 500 characters are kept."""
    span_id: str | None = None
    """The span in which the error occurred, if known."""


class Attempt(Frozen):
    """One execution of a rollout by one worker."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """The number of the attempt in its rollout: 1, 2, 3 … The attempt with the greatest number is the latest attempt.

    Only the latest attempt changes the status of the rollout.
    """
    start_time: float
    end_time: float | None = None
    """When the status became failed or succeeded. None if the attempt never did. A set time is never cleared."""
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    """The time of the last heartbeat, span or status report of the attempt; None before the first."""
    metadata: dict[str, Any] | None = None
    reward: float | None = None
    """The final reward of the attempt; None if it has none. Not part of Agent-lightning 0.3.

    This is the primary value of the last span with a reward, in the order of `query_spans`: by sequence_id, and among
    equal numbers by start and end. This is the reward that `find_final_reward` returns for the spans of the attempt.
    Reads fill `reward` and `rewards`; calls that change a rollout or an attempt return them empty.
    """
    rewards: dict[str, float] = Field(default_factory=dict[str, float])
    """By name, the last value of each reward of the attempt. The order is the same as for `reward`.

    Not part of Agent-lightning 0.3.
    """

    def notebook_row(self) -> dict[str, object]:
        """Return the values that a notebook shows."""
        from store.runtime.html import Moment

        return {
            "attempt": self.attempt_id,
            "number": self.sequence_id,
            "status": self.status,
            "started": Moment(self.start_time),
            "ended": None if self.end_time is None else Moment(self.end_time),
            "worker": self.worker_id,
            "reward": self.reward,
            "rewards": self.rewards or None,
            "metadata": self.metadata,
        }

    def _repr_html_(self) -> str:
        from store.runtime import html

        return html.titled(f"Attempt of {self.rollout_id}", html.fields(self.notebook_row()))


class Rollout(Frozen):
    """One task for an agent. It waits in a queue, workers execute it in one or more attempts, and it ends."""

    rollout_id: str
    input: TaskInput
    start_time: float
    end_time: float | None = None
    """When the status last became succeeded, failed or cancelled. The time stays set if the rollout starts again."""
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: dict[str, Any] | None = None
    reward: float | None = None
    """The final reward of the latest attempt; see `Attempt.reward`. Rewards of earlier attempts do not count."""
    rewards: dict[str, float] = Field(default_factory=dict[str, float])
    """By name, the last value of each reward of the latest attempt; see `Attempt.rewards`."""

    def notebook_row(self) -> dict[str, object]:
        """Return the values that a notebook shows."""
        from store.runtime.html import Moment

        return {
            "rollout": self.rollout_id,
            "status": self.status,
            "mode": self.mode,
            "created": Moment(self.start_time),
            "ended": None if self.end_time is None else Moment(self.end_time),
            "reward": self.reward,
            "rewards": self.rewards or None,
            "resources": self.resources_id,
            "input": self.input,
            "metadata": self.metadata,
        }

    def _repr_html_(self) -> str:
        from store.runtime import html

        return html.titled("Rollout", html.fields(self.notebook_row()))


class AttemptedRollout(Rollout):
    """A rollout together with its latest attempt."""

    attempt: Attempt

    @model_validator(mode="after")
    def _attempt_belongs_to_the_rollout(self) -> AttemptedRollout:
        if self.attempt.rollout_id != self.rollout_id:
            raise ValueError(
                f"attempt {self.attempt.attempt_id} belongs to rollout {self.attempt.rollout_id}, not {self.rollout_id}"
            )
        return self

    def notebook_row(self) -> dict[str, object]:
        """Return the values that a notebook shows."""
        attempt = {"attempt": self.attempt.sequence_id, "worker": self.attempt.worker_id}
        return super().notebook_row() | attempt


class Worker(Frozen):
    """The last known state of a worker, a process that claims rollouts from the queue and executes them."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    """The statistics in the last heartbeat that contained statistics."""
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None

    def state_at(self, now: float) -> WorkerState:
        """Return the state of the worker at a time: its status, unless its heartbeats show that it is no longer active.

        A worker is `lost` if its last heartbeat is older than six of its heartbeat intervals (60 s unless the
        heartbeats declare another interval). It is `stopped` if its last heartbeat says that the worker has ended. A
        worker that has never sent a heartbeat has its status.

        Args:
            now: the time, in seconds since the epoch.
        """
        if self.last_heartbeat_time is None:
            return self.status
        if (self.heartbeat_stats or {}).get("stopped") is True:
            return "stopped"
        silence = longest_silence(declared_interval(self.heartbeat_stats) or HEARTBEAT_SECONDS)
        return "lost" if now - self.last_heartbeat_time > silence else self.status


class ObservedWorker(Worker):
    """A worker with its state at the time at which it was read."""

    state: WorkerState

    @classmethod
    def of(cls, worker: Worker, now: float) -> ObservedWorker:
        """Return a worker with its state at the time `now`, in seconds since the epoch."""
        return cls(**dict(worker), state=worker.state_at(now))
