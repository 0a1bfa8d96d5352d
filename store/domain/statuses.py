"""Status words of rollouts (tasks), attempts (executions of a rollout) and workers (processes that execute attempts).

The words are stored in events, so they must not change.
"""

from typing import Literal

RolloutStatus = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
WorkerStatus = Literal["idle", "busy", "unknown"]
WorkerState = Literal["idle", "busy", "unknown", "lost", "stopped"]
"""The status of a worker, or `lost` or `stopped`. These two are computed from its heartbeats and never stored."""
