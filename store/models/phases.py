"""Declaration of a pipeline: its phases with their nodes, the checkpoints between phases, and the rules of re-runs.

A run executes each phase once per scope. A re-run is a new attempt that starts at a phase of the base. The re-run
replaces some events of the base: reads of the re-run leave out these events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

import rfc8785
from pydantic import Field, model_validator

from store.models.enums import Frozen, Resource

SideEffects = Literal["none", "idempotent", "unsafe"]


class Condition(Frozen):
    """Keys of a state that must have values: all of `all_of`, and at least one of `any_of` if `any_of` is not empty.

    A key has no value if it is missing, null, or an empty text, list or object; 0 and false are values.
    """

    any_of: list[str] = Field(default_factory=list[str])
    all_of: list[str] = Field(default_factory=list[str])

    @property
    def keys(self) -> set[str]:
        """All keys of the condition."""
        return {*self.any_of, *self.all_of}

    def failing(self, state: Mapping[str, Any]) -> str | None:
        """Return a text that names the required keys without values; None if the condition holds."""
        missing_keys = [key for key in self.all_of if not _has_value(state.get(key))]
        if missing_keys:
            return f"nothing in {', '.join(missing_keys)}"
        if self.any_of and not any(_has_value(state.get(key)) for key in self.any_of):
            return f"nothing in any of {', '.join(self.any_of)}"
        return None


def any_of(*keys: str) -> Condition:
    """Return the condition that at least one of some keys has a value."""
    return Condition(any_of=list(keys))


def all_of(*keys: str) -> Condition:
    """Return the condition that each of some keys has a value."""
    return Condition(all_of=list(keys))


def _has_value(value: Any) -> bool:
    return value is not None and not (isinstance(value, str | list | tuple | dict) and not value)


class Checkpoint(Frozen):
    """The declaration of a snapshot that is saved at the end of a phase."""

    name: str
    keys: list[str] | None = None
    """The keys of the state that the snapshot holds. With None, it holds the whole state."""
    when: Condition = Field(default_factory=Condition)
    """The keys that must have values; otherwise the snapshot is not saved."""

    @model_validator(mode="after")
    def _check_condition_keys(self) -> Checkpoint:
        unknown = sorted(self.when.keys - set(self.keys)) if self.keys is not None else []
        if unknown:
            raise ValueError(f"checkpoint {self.name!r} depends on {', '.join(unknown)}, which is not among its keys")
        return self

    def of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a state that the snapshot holds."""
        return {key: value for key, value in state.items() if self.keys is None or key in self.keys}


class Overlay(Frozen):
    """The keys that a run takes from its checkpoint.

    A run that starts from a checkpoint has a fresh state first. The checkpoint's values then replace these keys of the
    fresh state.
    """

    include: list[str] | None = None
    """The keys to take. With None, all keys of the checkpoint are taken."""
    exclude: list[str] = Field(default_factory=list[str])
    """The keys not to take, even if `include` names them."""

    def of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a checkpoint's state that replaces the fresh state."""
        included = state if self.include is None else {key: state[key] for key in self.include if key in state}
        return {key: value for key, value in included.items() if key not in self.exclude}


class ScopeKind(Frozen):
    """A kind of subject for which a phase runs, for example each ticker. A scope is one such subject."""

    fixed: str | None = None
    """The name of the only scope of this kind. None if the kind can have several scopes."""
    normalise: Literal["upper", "lower"] | None = None
    """Whether the log stores scopes of this kind in upper or lower case. With None, scopes are stored as given."""

    def spelled(self, scope: str) -> str:
        """Return a scope in the spelling of the log."""
        match self.normalise:
            case "upper":
                return scope.upper()
            case "lower":
                return scope.lower()
            case None:
                return scope


class CascadeMask(Frozen):
    """The nodes whose events a cascade hides.

    A cascade is the repetition of a phase because a phase of another kind of scope runs again. If the repeated phase
    has no such declaration, the cascade hides all events of the phase.
    """

    nodes: list[str]
    children: bool = False
    """Whether events whose parent node is one of the nodes are hidden too."""


class Phase(Frozen):
    """Nodes that run together, for one scope at a time."""

    name: str
    scope_kind: str
    nodes: list[str]
    after: list[str] = Field(default_factory=list[str])
    """The names of the phases of the same kind of scope that must run before this phase."""
    requires: str | None = None
    """The name of the checkpoint that a run needs to start at this phase. None if it needs no checkpoint."""
    produces: list[Checkpoint] = Field(default_factory=list[Checkpoint])
    entry: str | None = None
    """The node at which the phase starts. With None, the phase starts at the first node in `nodes`."""
    overlay: Overlay = Field(default_factory=Overlay)
    """The part of the required checkpoint that replaces the fresh state."""
    cascade: list[str] = Field(default_factory=list[str])
    """The names of phases of other kinds of scope that run again whenever this phase runs again."""
    side_effects: SideEffects = "none"
    """The effect on other systems if the phase runs twice. The caller must confirm a re-run of an unsafe phase."""
    cascade_mask: CascadeMask | None = None
    """The events of this phase that are hidden when the `cascade` of another phase makes this phase run again.

    With None, these are the events of the phase's nodes and of their children, and the phase's events without a node.
    """


class Mask(Frozen):
    """A rule that selects the events of the base to hide in a re-run.

    With `scopes` None, the mask applies to every scope; otherwise it hides only events of these scopes. Of these events
    it hides:

    - all, if `nodes` and `phases` are both None;
    - otherwise each event whose node is in `nodes`, and each event without a node whose phase is in `phases`;
    - with `children`, also each event whose parent node is in `nodes`.
    """

    scopes: list[str] | None = None
    nodes: list[str] | None = None
    phases: list[str] | None = None
    children: bool = False

    def hides(
        self, scope: str | None, node_id: str | None, parent_node_id: str | None = None, phase: str | None = None
    ) -> bool:
        """Return whether the mask hides an event of the base.

        A checkpoint or an artifact is checked in the same way, with `node_id` None, because neither has a node.
        """
        if self.scopes is not None and scope not in self.scopes:
            return False
        if self.nodes is None and self.phases is None:
            return True
        nodes, phases = self.nodes or (), self.phases or ()
        if node_id is None:
            return phase in phases or (self.children and parent_node_id in nodes)
        return node_id in nodes or (self.children and parent_node_id in nodes)


class PhaseGraph(Resource):
    """The phases of a pipeline. A run publishes them among its resources, so that a re-run can be planned later.

    The graph is plain data: a server plans a re-run without the code of the pipeline. The constructor refuses a graph
    with a node in two phases of one kind of scope, with a cycle, or with a required checkpoint that no earlier phase
    produces.
    """

    resource_type: Literal["phase_graph"] = "phase_graph"
    name: str
    version: str
    scope_kinds: dict[str, ScopeKind]
    phases: list[Phase] = Field(min_length=1)
    unlisted: Literal["first", "last"] = "first"
    """The phase of a node if no phase lists the node or its parent: the first or the last phase of the node's scope."""

    @property
    def by_name(self) -> dict[str, Phase]:
        """The phases by name."""
        return {phase.name: phase for phase in self.phases}

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the graph as canonical JSON (RFC 8785); different graphs have different digests."""
        # Defaults are left out, so that a field which a later version adds does not change the digest.
        return hashlib.sha256(rfc8785.dumps(self.model_dump(mode="json", exclude_defaults=True))).hexdigest()

    def phases_of(self, node_id: str) -> list[Phase]:
        """Return the phases that list a node: at most one phase of each kind of scope."""
        return [phase for phase in self.phases if node_id in phase.nodes]

    def of_kind(self, scope_kind: str) -> list[Phase]:
        """Return the phases of a kind of scope in topological order."""
        predecessors = {phase.name: phase.after for phase in self.phases if phase.scope_kind == scope_kind}
        return [self.by_name[name] for name in TopologicalSorter(predecessors).static_order()]

    def later(self, phase: Phase) -> list[Phase]:
        """Return a phase and the phases that must run after it, directly or indirectly, in topological order.

        All these phases have the same kind of scope.
        """
        names = {phase.name}
        candidates = self.of_kind(phase.scope_kind)
        for candidate in candidates:
            if not names.isdisjoint(candidate.after):
                names.add(candidate.name)
        return [candidate for candidate in candidates if candidate.name in names]

    def cascade_of(self, phases: Iterable[Phase]) -> list[Phase]:
        """Return the phases of other kinds of scope that run again because `phases` run again.

        Each phase is returned once, in the order in which the cascade reaches it.
        """
        cascade: dict[str, Phase] = {}
        pending = [name for phase in phases for name in phase.cascade]
        while pending:
            for phase in self.later(self.by_name[pending.pop(0)]):
                if phase.name not in cascade:
                    cascade[phase.name] = phase
                    pending.extend(phase.cascade)
        return list(cascade.values())

    def first(self, scope_kind: str) -> Phase:
        """Return the first phase of a kind of scope."""
        return self.of_kind(scope_kind)[0]

    def producer(self, checkpoint: str) -> tuple[Phase, Checkpoint] | None:
        """Return the phase that produces a checkpoint, and the checkpoint's declaration; None if no phase does."""
        for phase in self.phases:
            for declared in phase.produces:
                if declared.name == checkpoint:
                    return phase, declared
        return None

    def masks(
        self,
        phase: Phase,
        scopes: Sequence[str],
        *,
        cascade: bool = True,
        unlisted: Mapping[str, set[str]] | None = None,
    ) -> list[Mask]:
        """Return the masks of a re-run that starts at a phase.

        Args:
            phase: the first phase of the re-run. The masks hide the events of this phase and of all later phases of the
                scopes, with the events of their nodes' children. If these are all phases of a scope, the masks hide all
                events of the scope.
            scopes: the scopes that run again, in the spelling of the log.
            cascade: whether phases of other kinds of scope that depend on the repeated phases run again too. The masks
                then hide the events of those phases as well.
            unlisted: for each scope, nodes that no phase lists and whose events the masks hide too.
        """
        repeated = self.later(phase)
        masks = [*self._scope_masks(repeated, scopes, unlisted or {})]
        for other in self.cascade_of(repeated) if cascade else ():
            fixed = self.scope_kinds[other.scope_kind].fixed
            fixed_scopes = None if fixed is None else [fixed]
            if other.cascade_mask is None:
                masks.append(Mask(scopes=fixed_scopes, nodes=other.nodes, phases=[other.name], children=True))
            else:
                mask = other.cascade_mask
                masks.append(Mask(scopes=fixed_scopes, nodes=mask.nodes, children=mask.children))
        return masks

    def _scope_masks(
        self, repeated: Sequence[Phase], scopes: Sequence[str], unlisted: Mapping[str, set[str]]
    ) -> Iterable[Mask]:
        if len(repeated) == len(self.of_kind(repeated[0].scope_kind)):
            yield Mask(scopes=list(scopes))
            return
        nodes = [node for phase in repeated for node in phase.nodes]
        phases = [phase.name for phase in repeated]
        without_unlisted = [scope for scope in scopes if not unlisted.get(scope)]
        if without_unlisted:
            yield Mask(scopes=without_unlisted, nodes=nodes, phases=phases, children=True)
        for scope in scopes:
            if unlisted_nodes := unlisted.get(scope):
                yield Mask(scopes=[scope], nodes=[*nodes, *sorted(unlisted_nodes)], phases=phases, children=True)

    @model_validator(mode="after")
    def _check_graph(self) -> PhaseGraph:
        names = [phase.name for phase in self.phases]
        if duplicate := _duplicate(names):
            raise ValueError(f"phase {duplicate!r} is declared twice")
        for phase in self.phases:
            self._check_names(phase)
        self._check_cycles()
        self._check_nodes()
        self._check_checkpoints()
        return self

    def _check_names(self, phase: Phase) -> None:
        if phase.scope_kind not in self.scope_kinds:
            raise ValueError(f"phase {phase.name!r}: scope_kinds has no {phase.scope_kind!r}")
        if not phase.nodes:
            raise ValueError(f"phase {phase.name!r} lists no nodes")
        if phase.entry is not None and phase.entry not in phase.nodes:
            raise ValueError(f"phase {phase.name!r} does not list its entry {phase.entry!r}")
        for other in (*phase.after, *phase.cascade):
            if other not in self.by_name:
                raise ValueError(f"phase {phase.name!r} refers to {other!r}, which is not a phase")
        for other in phase.after:
            if self.by_name[other].scope_kind != phase.scope_kind:
                raise ValueError(f"phase {phase.name!r} comes after {other!r}, of another kind of scope; use cascade")
        for other in phase.cascade:
            if self.by_name[other].scope_kind == phase.scope_kind:
                raise ValueError(f"phase {phase.name!r} cascades to {other!r}, of the same kind of scope; use after")

    def _check_cycles(self) -> None:
        for relation in ("after", "cascade"):
            names: dict[str, list[str]] = {phase.name: getattr(phase, relation) for phase in self.phases}
            try:
                TopologicalSorter(names).prepare()
            except CycleError as error:
                cycle: list[str] = error.args[1]
                raise ValueError(f"phases form a cycle by {relation!r}: {' → '.join(cycle)}") from None

    def _check_nodes(self) -> None:
        cascaded = {name for phase in self.phases for name in phase.cascade}
        for phase in self.phases:
            if duplicate := _duplicate(phase.nodes):
                raise ValueError(f"phase {phase.name!r} lists node {duplicate!r} twice")
            for other in self.phases:
                shared = sorted(set(phase.nodes) & set(other.nodes)) if other is not phase else []
                if shared and other.scope_kind == phase.scope_kind:
                    raise ValueError(
                        f"node {shared[0]!r} is in {phase.name!r} and in {other.name!r} of one kind of scope"
                    )
                if shared and phase.name in cascaded and self.scope_kinds[phase.scope_kind].fixed is None:
                    # A cascade to this phase hides the events of its nodes in every scope, so events of the other
                    # phase would be hidden too.
                    raise ValueError(
                        f"phases {phase.name!r} and {other.name!r} both have a node {shared[0]!r}, but {phase.name!r}"
                        " is in a cascade; rename the node in one of the phases"
                    )

    def _check_checkpoints(self) -> None:
        if duplicate := _duplicate([declared.name for phase in self.phases for declared in phase.produces]):
            raise ValueError(f"checkpoint {duplicate!r} is produced twice")
        for phase in self.phases:
            if phase.requires is None:
                continue
            producer = self.producer(phase.requires)
            if producer is None or producer[0] is phase or phase not in self.later(producer[0]):
                raise ValueError(
                    f"phase {phase.name!r} requires checkpoint {phase.requires!r}, which no earlier phase of its scope"
                    " produces"
                )


def _duplicate(names: Sequence[str]) -> str | None:
    return next((name for index, name in enumerate(names) if name in names[:index]), None)
