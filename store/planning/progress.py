"""Phases of a run that are completed, and phases that an attempt has to run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from store.models.enums import AttemptStatus
from store.models.phases import Phase, PhaseGraph
from store.models.runs import PHASE_KINDS, CheckpointRef, Fork
from store.planning.rows import UNDRAWN, Placed

COMPLETED: Final = frozenset({"phase.completed", "phase.skipped"})
"""Kinds of events that mark a phase of a scope as done."""

Done = set[tuple[str, str]]
"""Pairs of a scope and the name of a phase that is completed for this scope."""


class ScopedEvent(Placed, Protocol):
    """An event of a view, or a group of equal events."""

    @property
    def kind(self) -> str: ...

    @property
    def scope(self) -> str | None: ...


def phase_of(graph: PhaseGraph, row: Placed) -> Phase | None:
    """Return the phase of an event; None if the graph has no such phase.

    This is the only phase that lists the event's node, or else its parent node. If there is no such phase, or if there
    are several, it is the phase that the event's field `phase` names.
    """
    if row.node_id is not None:
        phases = graph.phases_of(row.node_id) or graph.phases_of(row.parent_node_id or "")
        if len(phases) == 1:
            return phases[0]
    return graph.by_name.get(row.phase or "")


def completed(
    graph: PhaseGraph,
    rows: Sequence[ScopedEvent],
    checkpoints: Iterable[CheckpointRef],
    imported: AttemptStatus | None,
) -> Done:
    """Return the completed phases in a view.

    An event reports a phase as completed or skipped. Run folders of other programs contain no such events. So an
    imported run may have phases without an event about the phase as a whole. Such a phase is completed if one of the
    following holds:

    - a phase that must run after it has begun or is completed;
    - the view has one of its checkpoints;
    - its last node has a result;
    - it is the last phase of its scope, it has begun, and the run has succeeded;
    - its kind of scope has only one scope, and a scope of a later kind has begun.

    The rule for imported runs is decision 85.

    Args:
        graph: the phase graph.
        rows: the events of the view.
        checkpoints: the checkpoints of the view.
        imported: the status of the imported attempt on which the view is based; None if the run was not imported.
    """
    done = {(row.scope, row.phase) for row in rows if row.kind in COMPLETED and row.scope and row.phase}
    if imported is None:
        return done
    recorded = {(row.scope, row.phase) for row in rows if row.kind in PHASE_KINDS}
    marks = _Marks(graph, rows, checkpoints)
    marks.ended |= done
    marks.derive(has_succeeded=imported == "succeeded")
    return done | {pair for pair in marks.ended if pair not in recorded}


class _Marks:
    """Phases of scopes that have begun or ended, as the nodes and the checkpoints of a view show.

    Args:
        graph: the phase graph.
        rows: the events of the view.
        checkpoints: the checkpoints of the view.
    """

    def __init__(self, graph: PhaseGraph, rows: Iterable[ScopedEvent], checkpoints: Iterable[CheckpointRef]) -> None:
        self._graph = graph
        self._scopes: dict[str, dict[str, None]] = {}
        self.begun: Done = set()
        self.ended: Done = set()
        for row in rows:
            phase = None if row.kind in UNDRAWN else phase_of(graph, row)
            if phase is not None and row.scope is not None:
                is_end = row.kind == "result" and row.node_id == phase.nodes[-1]
                self._add(row.scope, phase, self.ended if is_end else self.begun)
        for checkpoint in checkpoints:
            if (producer := graph.producer(checkpoint.name)) is not None:
                self._add(checkpoint.scope, producer[0], self.ended)

    def _add(self, scope: str, phase: Phase, pairs: Done) -> None:
        self._scopes.setdefault(phase.scope_kind, {})[scope] = None
        self.begun.add((scope, phase.name))
        pairs.add((scope, phase.name))

    def derive(self, *, has_succeeded: bool) -> None:
        """Add the phases whose end follows from other phases, by the rules of `completed`."""
        graph = self._graph
        kinds = list(dict.fromkeys(phase.scope_kind for phase in graph.phases))
        for index, kind in enumerate(kinds):
            fixed = graph.scope_kinds[kind].fixed
            if fixed is not None and any(later in self._scopes for later in kinds[index + 1 :]):
                self.ended.update((fixed, phase.name) for phase in graph.of_kind(kind))
            for scope in self._scopes.get(kind, ()):
                for phase in reversed(graph.of_kind(kind)):
                    later = {(scope, next_phase.name) for next_phase in graph.later(phase)[1:]}
                    is_last = not later and has_succeeded and (scope, phase.name) in self.begun
                    if is_last or not later.isdisjoint(self.begun | self.ended):
                        self.ended.add((scope, phase.name))


def open_phases(graph: PhaseGraph, fork: Fork | None, kind: str, scope: str, done: Done) -> list[Phase]:
    """Return the phases that an attempt has to run for a scope, in order.

    A re-run repeats only the phases that its plan names. For the scopes of the re-run, these are the phase at which the
    re-run starts and all later phases. For all scopes, these are the phases of the cascade. Every other attempt runs
    all phases that are not completed.

    Args:
        graph: the phase graph.
        fork: the fork of the attempt; None if there is none.
        kind: the kind of the scope.
        scope: the scope.
        done: the phases that the attempt does not have to run. For a re-run, these are the phases that it has completed
            itself. For another attempt, these are the phases that `completed` returns.
    """
    phases = graph.of_kind(kind)
    start = None if fork is None or fork.kind == "resume" else graph.by_name.get(fork.phase or "")
    if fork is not None and start is not None:
        names = {*fork.cascade}
        if start.scope_kind == kind and scope in fork.scopes:
            names |= {phase.name for phase in graph.later(start)}
        phases = [phase for phase in phases if phase.name in names]
    return [phase for phase in phases if (scope, phase.name) not in done]
