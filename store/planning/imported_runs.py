"""Information about imported runs, from the metadata of the rollout and the attempts of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from store.models.enums import AttemptStatus
from store.models.rollouts import AttemptedRollout, Rollout
from store.models.runs import AttemptNode
from store.semconv import PLAN_KEY

RUN_ID_KEY: Final = "run_id"
"""The key in a rollout's metadata for the id that the run has in its folder."""
PLAN_PREFIX: Final = "run:"
"""The beginning of the plan key of an imported run; the id of the run follows. A plan key identifies one rollout."""
ATTEMPTS: Final = "imported_attempts"
"""The key in a rollout's metadata for the number of the rollout's attempts after the last import."""
CREATED_AT, COMPLETED_AT = "created_at", "completed_at"
"""The keys in a rollout's metadata for the times of the run in its folder, in seconds since the epoch."""
DEFAULT_SCOPES: Final[Mapping[str, str]] = {"portfolio": "main_portfolio"}
"""By kind of scope, the scope of a run folder whose parameters and events name no scope of this kind."""


def imported_id(metadata: Mapping[str, Any]) -> str | None:
    """Return the id that a run has in its folder, from the rollout's metadata; None if the run was not imported."""
    run_id = metadata.get(RUN_ID_KEY)
    is_imported = isinstance(run_id, str) and str(metadata.get(PLAN_KEY, "")).startswith(f"{PLAN_PREFIX}{run_id}")
    return run_id if is_imported else None


def imported_status(
    metadata: Mapping[str, Any], attempts: Iterable[AttemptNode], sequence_id: int
) -> AttemptStatus | None:
    """Return the status of the imported attempt on which an attempt builds; None if the run was not imported.

    Args:
        metadata: the metadata of the rollout.
        attempts: the attempts of the run.
        sequence_id: the attempt. If this attempt was imported itself, the result is its status.
    """
    if imported_id(metadata) is None:
        return None
    count = metadata.get(ATTEMPTS)
    nodes = {node.sequence_id: node for node in attempts}
    node = nodes.get(sequence_id)
    while node is not None and node.base is not None and not (isinstance(count, int) and node.sequence_id <= count):
        node = nodes.get(node.base)
    return None if node is None else node.status


def times_of(rollout: Rollout) -> tuple[float, float | None]:
    """Return the times at which a run began and ended; the second is None if the run has not ended.

    For an imported run, these are the times in its folder. If the run has attempts that are newer than its last import,
    the second is the end of the rollout in the store.
    """
    metadata = rollout.metadata or {}
    if imported_id(metadata) is None:
        return rollout.start_time, rollout.end_time
    created, completed = metadata.get(CREATED_AT), metadata.get(COMPLETED_AT)
    has_newer_attempts = isinstance(rollout, AttemptedRollout) and rollout.attempt.sequence_id != metadata.get(ATTEMPTS)
    return (
        float(created) if isinstance(created, int | float) else rollout.start_time,
        float(completed) if isinstance(completed, int | float) and not has_newer_attempts else rollout.end_time,
    )
