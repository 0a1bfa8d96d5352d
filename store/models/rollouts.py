"""Rollouts, their attempts, and the workers that run them. Times are float seconds since the epoch."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from store.models.enums import AttemptStatus, Frozen, RolloutMode, RolloutStatus, TaskInput, WorkerStatus


class RolloutConfig(Frozen):
    """Limits of an attempt's duration and silence, and the conditions of a retry."""

    timeout_seconds: float | None = None
    """The maximum duration of an attempt from its start. Heartbeats do not extend it. None means no limit."""
    unresponsive_seconds: float | None = None
    """The maximum time since an attempt's last heartbeat or span, or since its start if there was none.

    None means no limit.
    """
    max_attempts: int = Field(default=1, ge=1)
    """The maximum number of attempts. When it is reached, a failed attempt fails the rollout."""
    retry_condition: list[AttemptStatus] = Field(default_factory=list[AttemptStatus])
    """The statuses of an attempt after which the rollout is queued for another attempt.

    Only `failed`, `timeout` and `unresponsive` have an effect here.
    """


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
    """The number of the attempt in its rollout: 1, 2, 3 … The attempt with the greatest number is the latest one.

    Only the latest attempt changes the status of the rollout.
    """
    start_time: float
    end_time: float | None = None
    """When the status became failed or succeeded. None if that never happened; a time that is set is not cleared."""
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    """The time of the last heartbeat, span or status report of the attempt; None before the first."""
    metadata: dict[str, Any] | None = None
    reward: float | None = None
    """The final reward of the attempt; None if it has none. Not part of Agent-lightning 0.3.

    It is the primary value of the last span with a reward, in the order of `query_spans`: by sequence_id, and among
    equal numbers by start and end. This is the reward that `find_final_reward` returns for the spans of the attempt.
    Reads fill `reward` and `rewards`; calls that change a rollout or an attempt return them empty.
    """
    rewards: dict[str, float] = Field(default_factory=dict[str, float])
    """By name, the last value of each reward of the attempt, in the same order. Not part of Agent-lightning 0.3."""


class Rollout(Frozen):
    """One task for an agent. It waits in a queue, workers execute it in one or more attempts, and it ends."""

    rollout_id: str
    input: TaskInput
    start_time: float
    end_time: float | None = None
    """When the status last became succeeded, failed or cancelled. It is kept if the rollout starts again later."""
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: dict[str, Any] | None = None
    reward: float | None = None
    """The final reward of the latest attempt; see `Attempt.reward`. Rewards of earlier attempts do not count."""
    rewards: dict[str, float] = Field(default_factory=dict[str, float])
    """By name, the last value of each reward of the latest attempt; see `Attempt.rewards`."""


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
