"""Runs and their events as JSON for the front end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, cast

import orjson

from store.models import Rollout, RolloutStatus, RunEventRow, RunFrame
from store.models.runs import PHASE_KINDS
from store.planning.imported_runs import times_of
from store.planning.run_state import UNKNOWN
from store.run_folders.lines import line_of
from store.semconv import GROUP_KEY

COMPLETED: Final = {"type": "system", "message": "Run completed."}
RESET: Final = {"type": "system", "message": "Replay reset.", "reset": True}

_STATUSES: Final[dict[RolloutStatus, str]] = {
    "queuing": "queued",
    "preparing": "running",
    "running": "running",
    "requeuing": "running",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "failed",
}


def event_message(run_id: str, row: RunEventRow) -> dict[str, Any]:
    """Return the message of an event, with its version as `seq`."""
    line = line_of(run_id, row)
    try:
        message: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        # The line contains a lone surrogate. A file may contain such a character, but a message may not. So the
        # character is replaced.
        message = orjson.loads(json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace"))
    if row.node_id is not None:
        message.setdefault("agent", row.node_id.upper())
    return {**message, "rerun_seq": row.rerun_seq, "seq": row.version}


def is_supported(row: RunEventRow) -> bool:
    """Return whether the front end supports events of this kind.

    The front end does not support events of phases, because it defines its own phases.
    """
    return row.kind not in PHASE_KINDS


def frame_messages(run_id: str, frame: RunFrame) -> Iterator[dict[str, Any]]:
    """Yield the message of a frame, or nothing if the front end has no such message."""
    match frame.kind:
        case "event" if frame.event is not None and is_supported(frame.event):
            yield event_message(run_id, frame.event)
        case "reset":
            yield RESET
        case "terminal":
            yield COMPLETED if frame.outcome == "succeeded" else failed(frame.error or frame.outcome or UNKNOWN)
        case _:
            pass


def failed(error: str) -> dict[str, Any]:
    """Return the message for a run that has failed."""
    return {"type": "system", "message": f"Error: Run failed: {error}"}


def unknown(run_id: str) -> dict[str, Any]:
    """Return the message for a run that does not exist."""
    return {"type": "system", "message": f"Error: Run {run_id} not found."}


def record(rollout: Rollout, rerun_seq: int, error: str | None) -> dict[str, Any]:
    """Return a run as the front end lists it."""
    metadata = rollout.metadata or {}
    params = _params(rollout)
    status = _STATUSES[rollout.status]
    created_at, completed_at = times_of(rollout)
    return {
        "id": rollout.rollout_id,
        "flow_id": metadata.get(GROUP_KEY),
        "short_rid": rollout.rollout_id[-8:],
        "type": metadata.get("type") or params.get("type") or "auto",
        "status": status,
        "created_at": created_at,
        "completed_at": completed_at if status in {"completed", "failed"} else None,
        "user_id": metadata.get("user_id") or params.get("user_id") or "anonymous",
        "date": date_of(rollout),
        "params": params,
        "rerun_seq": rerun_seq,
        "error": (error or UNKNOWN) if status == "failed" else None,
    }


def date_of(rollout: Rollout) -> Any:
    """Return the date of a run; None if the run has no date."""
    return _params(rollout).get("date") or (rollout.metadata or {}).get("date")


def _params(rollout: Rollout) -> dict[str, Any]:
    task_input: Any = rollout.input
    return cast("dict[str, Any]", task_input) if isinstance(task_input, dict) else {"input": task_input}
