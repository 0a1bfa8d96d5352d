"""Status words of rollouts, attempts and workers.

The words, and the modes of rollouts, are stored in events, so they must not change.
"""

from typing import Final, Literal

RolloutStatus = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
RolloutMode = Literal["train", "val", "test"]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
WorkerStatus = Literal["idle", "busy", "unknown"]
WorkerState = Literal["idle", "busy", "unknown", "lost", "stopped"]
"""The status of a worker, or `lost` or `stopped`, which are computed from the worker's heartbeats and never stored."""

UNRESPONSIVE_SECONDS: Final = 60.0
"""The default of `unresponsive_seconds` for runs that were created by a POST request or that pipelines execute.

After this time without a sign of life, an attempt becomes unresponsive.
"""

MOST_LABELS: Final = 64
"""The maximum number of labels of one rollout."""
