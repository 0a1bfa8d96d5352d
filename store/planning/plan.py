"""Plans of re-runs from one view of a run: the start, its checkpoints, the hidden events, and the phases to run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from store.errors import CheckpointMissing, Invalid
from store.models.enums import AttemptStatus
from store.models.phases import Mask, Phase, PhaseGraph
from store.models.runs import CheckpointRef, Degraded, Fork, ForkKind, ForkPlan, OnMissing
from store.planning.progress import Done, completed, open_phases, phase_of
from store.planning.rows import EventGroup


@dataclass(frozen=True, slots=True)
class PlanBasis:
    """The state of a run from which a plan is made, read at one moment."""

    rollout_id: str
    head: int | None
    """The sequence id of the head; None before the first attempt."""
    ground: int
    """The version of the last event that a plan can depend on; 0 if there is none."""
    base: int
    """The sequence id of the base."""
    rows: Sequence[EventGroup]
    """The events of the base's view in groups, ordered by the first event of each group."""
    checkpoints: Sequence[CheckpointRef]
    """The checkpoints of the base's view, oldest first."""
    scopes: Collection[str]
    """Every scope that occurs in the run, or that its rollout names."""
    has_succeeded: bool = False
    """Whether the base's status is `succeeded`."""
    imported: AttemptStatus | None = None
    """The status of the imported attempt on which the base builds; None if the run was not imported."""


@dataclass(slots=True)
class _Start:
    """The phase at which some scopes of a plan start."""

    phase: Phase
    scopes: list[str]
    masks: list[Mask]
    """The masks that hide the events of the phases that run again."""
    checkpoints: list[CheckpointRef] = field(default_factory=list[CheckpointRef])


def rerun(
    graph: PhaseGraph,
    basis: PlanBasis,
    *,
    node: str | None,
    phase: str | None,
    scopes: Sequence[str],
    on_missing: OnMissing,
    cascade: bool,
) -> ForkPlan:
    """Return the plan of a re-run of a phase for some scopes.

    Raises:
        Invalid: the node, phase or scope does not exist; the node belongs to several phases.
        CheckpointMissing: a scope lacks the checkpoint that the phase requires, and `on_missing` is `error`.
    """
    target = target_phase(graph, node, phase)
    targets = target_scopes(graph, basis, target, scopes)
    start = _start(graph, basis, target, targets, cascade=cascade)
    degraded = None
    saved = {checkpoint.scope for checkpoint in start.checkpoints}
    missing_scopes = [scope for scope in targets if scope not in saved] if target.requires is not None else []
    if target.requires is not None and missing_scopes:
        if on_missing != "full":
            raise CheckpointMissing(target.requires, missing_scopes, target.name)
        degraded = Degraded(
            reason="checkpoint_missing", phase=target.name, checkpoint=target.requires, scopes=missing_scopes
        )
        start = _start(graph, basis, graph.first(target.scope_kind), targets, cascade=cascade)
    kind: ForkKind = "rerun" if basis.base == basis.head else "branch"
    return _plan(graph, basis, [start], kind=kind, cascade=cascade, degraded=degraded)


def resume(graph: PhaseGraph, basis: PlanBasis) -> ForkPlan:
    """Return the plan that continues where the base stopped.

    Phases that are not completed run again (see `progress.completed`). If all phases that began are completed, nothing
    runs again, because only the program of the run knows which scopes remain.

    Raises:
        Invalid: the base has succeeded, and every phase that began is completed.
    """
    starts: list[_Start] = []
    done = completed(graph, basis.rows, basis.checkpoints, basis.imported)
    for scope, kind in _scopes_begun(graph, basis.rows).items():
        phase = _next_phase(graph, basis, scope, kind, done)
        if phase is not None:
            starts.append(_start(graph, basis, phase, [scope], cascade=True))
    if not starts and basis.has_succeeded:
        raise Invalid("from_attempt", f"nothing of attempt {basis.base} is unfinished; re-run a phase instead")
    return _plan(graph, basis, starts, kind="resume", cascade=True, degraded=None)


def target_phase(graph: PhaseGraph, node: str | None, phase: str | None) -> Phase:
    """Return the phase that a node or a name identifies.

    Raises:
        Invalid: a node and a phase are given, or neither; the phase or node does not exist; the node belongs to several
            phases.
    """
    if (node is None) == (phase is None):
        raise Invalid("phase", "give either the phase to run again or one of its nodes")
    if phase is not None:
        if phase not in graph.by_name:
            raise Invalid("phase", f"{phase!r} is none of {', '.join(graph.by_name)}")
        return graph.by_name[phase]
    phases = graph.phases_of(node or "")
    if not phases:
        raise Invalid("node", f"no phase of graph {graph.name!r} lists {node!r}; give the phase instead")
    if len(phases) > 1:
        raise Invalid(
            "node", f"{node!r} is in {' and in '.join(option.name for option in phases)}; give the phase instead"
        )
    return phases[0]


def target_scopes(graph: PhaseGraph, basis: PlanBasis, phase: Phase, scopes: Sequence[str]) -> list[str]:
    """Return the scopes of a re-run, in the spelling of the log and without repeats.

    For a phase with a fixed scope, `scopes` may be empty.

    Raises:
        Invalid: no scope is given, a scope is empty or does not occur in the run, or the phase has a fixed scope and
            another scope is given.
    """
    kind = graph.scope_kinds[phase.scope_kind]
    names = list(dict.fromkeys(kind.spelled(scope) for scope in scopes))
    if kind.fixed is not None:
        if set(names) - {kind.fixed}:
            raise Invalid("scopes", f"phase {phase.name!r} is about {kind.fixed!r} alone; leave scopes out")
        return [kind.fixed]
    if not names or not all(names):
        raise Invalid("scopes", f"give the scopes for which phase {phase.name!r} has to run again")
    unknown = [scope for scope in names if scope not in basis.scopes]
    if unknown:
        choices = ", ".join(sorted(basis.scopes)[:20]) or "none"
        raise Invalid("scopes", f"the run has no scope {', '.join(unknown)}; its scopes: {choices}")
    return names


def _start(graph: PhaseGraph, basis: PlanBasis, phase: Phase, scopes: list[str], *, cascade: bool) -> _Start:
    phases = {later.name for later in graph.later(phase)}
    unlisted = {scope: _unlisted(graph, basis.rows, phase.scope_kind, scope, phases) for scope in scopes}
    start = _Start(phase, scopes, graph.masks(phase, scopes, cascade=cascade, unlisted=unlisted))
    if phase.requires is not None:
        latest: dict[str, CheckpointRef] = {}
        for checkpoint in basis.checkpoints:
            hidden = any(mask.hides(checkpoint.scope, None, phase=checkpoint.after_phase) for mask in start.masks)
            if checkpoint.name == phase.requires and not hidden:
                latest[checkpoint.scope] = checkpoint
        start.checkpoints = [latest[scope] for scope in scopes if scope in latest]
    return start


def _unlisted(graph: PhaseGraph, rows: Sequence[EventGroup], kind: str, scope: str, rerun_phases: set[str]) -> set[str]:
    """Return the nodes that no phase lists and that occur only in the phases which run again.

    A node that ran under a listed node is left out, because masks hide it together with the listed node.
    """
    order = graph.of_kind(kind)
    names = {step.name for step in order}
    listed = {node for step in order for node in step.nodes}
    default = (order[0] if graph.unlisted == "first" else order[-1]).name
    phases: dict[str, set[str]] = {}
    under_listed: set[str] = set()
    for row in rows:
        if row.scope != scope or row.node_id is None or row.node_id in listed:
            continue
        if row.parent_node_id in listed:
            under_listed.add(row.node_id)
        else:
            declared = row.phase if row.phase in names else None
            phases.setdefault(row.node_id, set()).add(declared or default)
    # A node that also occurs in phases that do not run again cannot be hidden, because a mask hides all executions.
    return {node for node, kinds in phases.items() if kinds <= rerun_phases and node not in under_listed}


def _scopes_begun(graph: PhaseGraph, rows: Sequence[EventGroup]) -> dict[str, str]:
    """Return each scope for which a phase has begun, with its kind, in the order of the first event."""
    begun: dict[str, str] = {}
    for row in rows:
        phase = phase_of(graph, row)
        if phase is not None and row.scope is not None:
            begun.setdefault(row.scope, phase.scope_kind)
    return begun


def _next_phase(graph: PhaseGraph, basis: PlanBasis, scope: str, kind: str, done: Done) -> Phase | None:
    """Return the phase at which a scope continues; None if all its phases are completed."""
    order = graph.of_kind(kind)
    remaining = open_phases(graph, None, kind, scope, done)
    if not remaining:
        return None
    saved = {checkpoint.name for checkpoint in basis.checkpoints if checkpoint.scope == scope}
    for phase in reversed(order[: order.index(remaining[0]) + 1]):
        if phase.requires is None or phase.requires in saved:
            return phase
    return order[0]


def _plan(
    graph: PhaseGraph,
    basis: PlanBasis,
    starts: Sequence[_Start],
    *,
    kind: ForkKind,
    cascade: bool,
    degraded: Degraded | None,
) -> ForkPlan:
    masks = list({mask.model_dump_json(): mask for start in starts for mask in start.masks}.values())
    rerun_phases = {phase.name: phase for start in starts for phase in graph.later(start.phase)}
    cascaded = graph.cascade_of(rerun_phases.values()) if cascade else []
    checkpoints = [checkpoint for start in starts for checkpoint in start.checkpoints]
    hidden = [
        row
        for row in basis.rows
        if any(mask.hides(row.scope, row.node_id, row.parent_node_id, row.phase) for mask in masks)
    ]
    first = starts[0].phase if starts and all(start.phase is starts[0].phase for start in starts) else None
    return ForkPlan(
        kind=kind,
        base=basis.base,
        base_version=basis.ground,
        scopes=[scope for start in starts for scope in start.scopes],
        phase=first and first.name,
        entry=first and (first.entry or first.nodes[0]),
        cascade=[phase.name for phase in cascaded if phase.name not in rerun_phases],
        checkpoints=checkpoints,
        masks=masks,
        graph=graph.digest,
        degraded=degraded,
        rollout_id=basis.rollout_id,
        phases=list(rerun_phases),
        unsafe=_unsafe(graph, {**rerun_phases, **{phase.name: phase for phase in cascaded}}, hidden, kind),
        graph_changed=[
            checkpoint.checkpoint_id for checkpoint in checkpoints if checkpoint.graph not in {None, graph.digest}
        ],
        kept=_events(basis.rows) - _events(hidden),
        hidden=_events(hidden),
        nodes=len(_nodes(hidden)),
        head=basis.head,
        ground=basis.ground,
    )


def _unsafe(graph: PhaseGraph, phases: Mapping[str, Phase], hidden: Sequence[EventGroup], kind: ForkKind) -> list[str]:
    unsafe = [name for name, phase in phases.items() if phase.side_effects == "unsafe"]
    if kind != "resume":
        return unsafe
    # If a phase had not begun, a resume does not repeat its side effects.
    begun = {started.name for row in hidden if (started := phase_of(graph, row)) is not None}
    return [name for name in unsafe if name in begun]


def _events(rows: Sequence[EventGroup]) -> int:
    return sum(row.count for row in rows)


def _nodes(rows: Sequence[EventGroup]) -> set[tuple[str | None, str | None]]:
    """Return the nodes of some events, without nodes whose parent is another one of these nodes."""
    nodes: set[tuple[str | None, str | None]] = {(row.scope, row.node_id) for row in rows if row.node_id is not None}
    # Some programs record a node that is no tool as its own parent.
    tools = [row for row in rows if row.parent_node_id != row.node_id and (row.scope, row.parent_node_id) in nodes]
    return nodes - {(row.scope, row.node_id) for row in tools}


def of_fork(fork: Fork) -> str:
    """Return a description of the phases that a fork runs again, such as `debate of RIG, then decision`."""
    text = " of ".join(part for part in (fork.phase, ", ".join(fork.scopes)) if part)
    return text + (f", then {', '.join(fork.cascade)}" if fork.cascade else "")


def of_plan(plan: ForkPlan) -> Iterator[tuple[str, str]]:
    """Yield a description of a plan for people, as pairs of a label and a text."""
    scopes = ", ".join(plan.scopes)
    yield (
        "builds on",
        f"attempt {plan.base}" + ("" if plan.base == plan.head else f", which is not the head ({plan.head})"),
    )
    yield "starts at", f"{plan.entry}, for {scopes}" if plan.entry else f"where {scopes} stopped"
    starts = [
        f"{checkpoint.name} of {checkpoint.scope} (version {checkpoint.version})" for checkpoint in plan.checkpoints
    ]
    yield "from", ", ".join(starts) or "nothing"
    yield "runs again", ", ".join(plan.phases) + (f"; then {', '.join(plan.cascade)}" if plan.cascade else "")
    yield "keeps", _count_of_events(plan.kept)
    yield "hides", f"{_count_of_events(plan.hidden)} of {plan.nodes} node{'' if plan.nodes == 1 else 's'}"
    if plan.unsafe:
        yield "unsafe", f"{', '.join(plan.unsafe)} would repeat side effects"
    if plan.degraded is not None:
        missing_scopes = ", ".join(plan.degraded.scopes)
        yield (
            "degraded",
            f"{plan.degraded.phase} needs {plan.degraded.checkpoint}, which {missing_scopes} does not have",
        )
    if plan.graph_changed:
        yield "graph", f"{', '.join(plan.graph_changed)} was saved under another phase graph"


def _count_of_events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"
