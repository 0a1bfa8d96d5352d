"""Comparison of two views of a run, execution by execution of each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from store.models.runs import AttemptDiff, NodeChange, NodeDifference, NodeRun
from store.planning.rows import ERROR, RESULTS, UNDRAWN, ViewEvent

_Place = tuple[str | None, str, str | None]
"""A scope, a node, and the parent, which is the node under which the node ran, or None."""
_CHANGES: Final[tuple[NodeChange, ...]] = ("kept", "replaced", "added", "removed")


@dataclass(slots=True)
class _Execution:
    """One execution of a node while its events are collected."""

    last: ViewEvent
    """The last event."""
    name: str | None
    """The `node_exec` of the events; None if they have none."""
    result: ViewEvent | None = None
    """The last result; None if there is none yet."""
    has_failed: bool = False

    def add(self, row: ViewEvent) -> None:
        self.last = row
        self.has_failed = self.has_failed or row.status == ERROR
        if row.kind in RESULTS:
            self.result = row

    def summary(self) -> NodeRun:
        row = self.result or self.last
        status = "failed" if self.has_failed else "completed" if self.result else "running"
        metrics = None if row.metrics is None else dict(row.metrics)
        return NodeRun(
            version=row.version,
            attempt=row.attempt,
            status=status,
            metrics=metrics,
            response_sha256=row.response_sha256,
        )


def compare(a: int, b: int, before: Sequence[ViewEvent], after: Sequence[ViewEvent]) -> AttemptDiff:
    """Return the changes from the view of one attempt to the view of another attempt.

    The nodes of the first view come first, then the nodes that only the second view has.

    Args:
        a: the sequence id of the first attempt.
        b: the sequence id of the second attempt.
        before: the view of the first attempt.
        after: the view of the second attempt.
    """
    first, second = executions(before), executions(after)
    nodes: list[NodeDifference] = []
    for place in dict.fromkeys([*first, *second]):
        old, new = first.get(place, []), second.get(place, [])
        for index in range(max(len(old), len(new))):
            old_run = old[index] if index < len(old) else None
            new_run = new[index] if index < len(new) else None
            nodes.append(_difference(place, index + 1, old_run, new_run))
    counted = Counter(node.change for node in nodes)
    return AttemptDiff(
        a=a,
        b=b,
        nodes=nodes,
        counts={change: counted[change] for change in _CHANGES},
        totals=_minus(_totals(second), _totals(first)),
    )


def executions(rows: Iterable[ViewEvent]) -> dict[_Place, list[NodeRun]]:
    """Return the executions of each node.

    Events of a node with the same `node_exec` belong to the same execution. If events have no `node_exec`, a result
    ends an execution.
    """
    rows = [row for row in rows if row.node_id is not None and row.kind not in UNDRAWN]
    nodes = {(row.scope, row.node_id) for row in rows}
    gathered: dict[_Place, list[_Execution]] = {}
    for row in rows:
        assert row.node_id is not None  # rows without a node were removed above
        parent = row.parent_node_id if (row.scope, row.parent_node_id) in nodes else None
        node_executions = gathered.setdefault((row.scope, row.node_id, parent), [])
        execution = _execution_of(row, node_executions)
        if execution is None:
            execution = _Execution(row, row.node_exec)
            node_executions.append(execution)
        execution.add(row)
    return {place: [execution.summary() for execution in runs] for place, runs in gathered.items()}


def _execution_of(row: ViewEvent, earlier: Sequence[_Execution]) -> _Execution | None:
    if row.node_exec is not None:
        return next((execution for execution in earlier if execution.name == row.node_exec), None)
    return earlier[-1] if earlier and earlier[-1].name is None and earlier[-1].result is None else None


def _difference(place: _Place, ordinal: int, old: NodeRun | None, new: NodeRun | None) -> NodeDifference:
    scope, node_id, parent = place
    change = _change(old, new)
    return NodeDifference(
        scope=scope,
        node_id=node_id,
        parent_node_id=parent,
        ordinal=ordinal,
        change=change,
        before=old,
        after=new,
        failed=new is not None and new.status == "failed" and (old is None or old.status != "failed"),
        same_response=True if change == "kept" else _have_equal_responses(old, new),
        deltas={} if old is None or new is None else _deltas(_numbers(old.metrics), _numbers(new.metrics)),
    )


def _change(old: NodeRun | None, new: NodeRun | None) -> NodeChange:
    if old is None:
        return "added"
    if new is None:
        return "removed"
    return "kept" if old.version == new.version else "replaced"


def _have_equal_responses(old: NodeRun | None, new: NodeRun | None) -> bool | None:
    hashes = [None if run is None else run.response_sha256 for run in (old, new)]
    return None if None in hashes else hashes[0] == hashes[1]


def _numbers(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    return {
        name: value
        for name, value in (metrics or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _deltas(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    return {name: new[name] - old[name] for name in new if name in old}


def _totals(view: Mapping[_Place, Sequence[NodeRun]]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for runs in view.values():
        for run in runs:
            totals.update(_numbers(run.metrics))  # pyright: ignore[reportArgumentType] - a Counter also adds floats
    return totals


def _minus(new: Mapping[str, float], old: Mapping[str, float]) -> dict[str, float]:
    return {name: new.get(name, 0) - old.get(name, 0) for name in dict.fromkeys([*old, *new])}
