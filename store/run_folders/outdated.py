"""Checkpoint files of an execution that a re-run has replaced.

When a re-run replaces events, programs that write run folders remove these events from `run_events.jsonl`, but leave
the checkpoint files. If the re-run then stops half-way, the checkpoints in the folder are older than the events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from store.models import PhaseGraph
from store.planning.progress import completed, phase_of
from store.planning.rows import EventGroup
from store.run_folders import lines
from store.run_folders.lines import Line
from store.run_folders.reading import Folder
from store.run_folders.records import SidecarFile

_OF_A_STORE: Final = "history_complete"
"""A key in `run_meta.json` of folders that a store has written. The checkpoints in such a folder are up to date."""
_IN_A_RERUN: Final = re.compile(rb'"rerun_seq"\s*:\s*[1-9]')


def outdated(folder: Folder, graph: PhaseGraph) -> set[tuple[str, str]]:
    """Return the checkpoints of a folder that a re-run has replaced, as pairs of a scope and a name.

    A re-run of a phase replaces the checkpoints of this phase and of the later phases of the scope. The checkpoint
    files of a phase are up to date if the phase has ended in the re-run.
    """
    if _OF_A_STORE in folder.meta or folder.events is None or not _IN_A_RERUN.search(folder.events):
        return set()
    by_scope: dict[str, list[Line]] = {}
    for line in lines.split(folder.events)[0]:
        scope: Any = line.value.get("identifier")
        if isinstance(scope, str):
            by_scope.setdefault(scope, []).append(line)
    return {(scope, name) for scope, events in by_scope.items() for name in _outdated_names(events, graph)}


def _outdated_names(events: Sequence[Line], graph: PhaseGraph) -> set[str]:
    newest = max(line.rerun_seq for line in events)
    if newest == 0:
        return set()
    rows = [_row(line) for line in events]
    begun = [phase_of(graph, row) for row, line in zip(rows, events, strict=True) if line.rerun_seq == newest]
    replaced = {later.name: later for phase in begun if phase is not None for later in graph.later(phase)}
    ended = {name for _, name in completed(graph, rows, (), "failed")}
    outdated_phases = [phase for phase in replaced.values() if phase.name not in ended]
    return {checkpoint.name for phase in outdated_phases for checkpoint in phase.produces}


def _row(line: Line) -> EventGroup:
    texts = {key: value for key, value in line.value.items() if isinstance(value, str)}
    kind, scope, node_id = texts.get("type", "log"), texts.get("identifier"), texts.get("node_id")
    return EventGroup(kind, scope, node_id, texts.get("parent_node_id"), texts.get("phase"))


def as_artifact(described: SidecarFile) -> SidecarFile:
    """Return the description of a checkpoint file that is imported as an artifact."""
    return described.model_copy(update={"kind": "artifact", "phase": None})
