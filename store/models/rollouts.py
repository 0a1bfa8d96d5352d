"""Rollouts, their attempts, and the workers that run them. Times are float seconds since the epoch."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from store.models.enums import AttemptStatus, Frozen, RolloutMode, RolloutStatus, TaskInput, WorkerStatus


class RolloutConfig(Frozen):
    """Limits of an attempt's duration and silence, and the conditions of a retry."""

    timeout_seconds: float | None = None
    """The longest duration of an attempt, counted from its start; heartbeats do not extend it. None: no limit."""
    unresponsive_seconds: float | None = None
    """The longest time without a heartbeat or span, counted from the start before the first. None: no limit."""
    max_attempts: int = Field(default=1, ge=1)
    """The total number of attempts before a failure is final."""
    retry_condition: list[AttemptStatus] = Field(default_factory=list[AttemptStatus])
    """Attempt statuses after which another attempt is queued; failed, timeout and unresponsive have an effect."""


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
    """The span in which it occurred, if known."""


class Attempt(Frozen):
    """One execution of a rollout by one worker."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """1, 2, 3 … within the rollout; only the greatest, the latest attempt, changes the status of the rollout."""
    start_time: float
    end_time: float | None = None
    """When it was reported as failed or succeeded; None for the other statuses, and never cleared."""
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    """The last heartbeat, span or report; None before the first."""
    metadata: dict[str, Any] | None = None


class Rollout(Frozen):
    """One task, from the queue to its end."""

    rollout_id: str
    input: TaskInput
    start_time: float
    end_time: float | None = None
    """When it last became succeeded, failed or cancelled; not cleared when it is reopened."""
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: dict[str, Any] | None = None


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


class Worker(Frozen):
    """A process that claims rollouts, in its last known state."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    """The statistics of the last heartbeat that had any."""
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None
