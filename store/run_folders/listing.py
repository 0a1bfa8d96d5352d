"""Lists of runs and of their events, read from run folders.

The command `runs` and web front ends use these lists while the database is unavailable.

A folder has one of three layouts: flow (`daily/<date>/<flow>`), legacy (`daily/<date>/runs/<run>`) or flat
(`daily/<date>`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from store.errors import Invalid, NotFound
from store.run_folders import reading
from store.run_folders.lines import split
from store.run_folders.names import EVENTS
from store.run_folders.reading import Place
from store.run_folders.writing import moment_of

_STATUSES = {"queued": "queued", "running": "running", "completed": "completed", "historical": "completed"}


def listed_runs(root: Path) -> list[dict[str, Any]]:
    """Return the runs below a directory, newest first, as objects for web front ends.

    If several folders contain the same run, the folder in the flow layout is used, else the folder in the legacy
    layout, else the folder in the flat layout. A folder whose metadata cannot be read is left out.

    Raises:
        Invalid: the directory does not exist.
    """
    runs: dict[str, dict[str, Any]] = {}
    for _, run in _runs(root):
        runs.setdefault(run["id"], run)
    return sorted(runs.values(), key=lambda run: run["created_at"], reverse=True)


def run_with_events(root: Path, run: str) -> dict[str, Any]:
    """Return a run with its events; `run` is the id of the run, or of a flow with exactly one run.

    Raises:
        NotFound: no run has this id, and no flow with exactly one run has this id.
        Invalid: the directory does not exist.
    """
    runs_of_flow: dict[str, tuple[Place, dict[str, Any]]] = {}
    for place, summary in _runs(root):
        if summary["id"] == run:
            return summary | {"events": events_of(place)}
        if summary["flow_id"] == run:
            runs_of_flow.setdefault(summary["id"], (place, summary))
    if len(runs_of_flow) != 1:
        raise NotFound("run", run)
    ((place, summary),) = runs_of_flow.values()
    return summary | {"events": events_of(place)}


def events_of(place: Place) -> list[dict[str, Any]]:
    """Return the events of a run in the order of its file, numbered from 1 in the key `seq`."""
    try:
        lines, _ = split(reading.read_file(place.own(EVENTS)))
    except FileNotFoundError:
        return []
    return [{**line.value, "rerun_seq": line.rerun_seq, "seq": number} for number, line in enumerate(lines, 1)]


def _runs(root: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the readable runs: the runs in the flow layout, then in the legacy layout, then in the flat layout."""
    for place in reading.find(root):
        try:
            meta = reading.meta_of(place)
            if meta is not None:
                yield place, _summary(place, meta)
        except Invalid:
            continue


def _summary(place: Place, meta: dict[str, Any]) -> dict[str, Any]:
    run_id, flow_id, date = reading.identity(place, meta)
    status = _STATUSES.get(str(meta.get("status")), "failed")
    params = meta.get("params")
    rerun_seq, error = meta.get("rerun_seq"), meta.get("error")
    return {
        "id": run_id,
        "flow_id": flow_id,
        "short_rid": run_id[-8:],
        "type": str(meta.get("type") or "auto"),
        "status": status,
        "created_at": moment_of(meta.get("created_at")),
        "completed_at": moment_of(meta.get("completed_at")) or None,
        "user_id": str(meta.get("user_id") or "anonymous"),
        "date": date,
        "params": cast("dict[str, Any]", params) if isinstance(params, dict) else {},
        "rerun_seq": rerun_seq if isinstance(rerun_seq, int) else 0,
        "error": None if status != "failed" else str(error or "unknown error"),
    }
