"""Events, checkpoints, artifacts and re-runs of a run. Times are float seconds.

A *version* is an event's number in its rollout, as in `history`: 1, 2, 3 … An attempt is identified by its
`sequence_id`. A *scope* is the subject of an event (a ticker, the market, a portfolio), a *node* the step that made it.
"""

from __future__ import annotations

from typing import Any, Literal

from store.models.enums import AttemptStatus, Frozen, Open
from store.models.phases import Mask
from store.models.rollouts import Attempt, AttemptedRollout

ForkKind = Literal["rerun", "resume", "branch"]
AttemptKind = Literal["first", "retry", "rerun", "resume", "branch"]
OnMissing = Literal["error", "full"]
OnActive = Literal["reject", "supersede"]
SearchIn = Literal["rollout", "group"]
NodeChange = Literal["kept", "replaced", "added", "removed"]
NodeStatus = Literal["running", "completed", "failed"]

PHASE_KINDS: tuple[str, ...] = ("phase.started", "phase.completed", "phase.skipped")
"""Kinds of run events about a phase as a whole: they have a phase and a scope, and no node."""


class RunEvent(Open):
    """One event of a run, as it is sent; unknown keys are stored with its payload."""

    kind: str
    """`thought`, `tool`, `tool_result`, `result`, `log`, `system`, a phase kind, or a word of your own."""
    node_id: str | None = None
    scope: str | None = None
    parent_node_id: str | None = None
    """The node under which it ran, for a tool."""
    phase: str | None = None
    agent: str | None = None
    node_exec: str | None = None
    """The name of one execution of the node, if it runs several times."""
    status: str | None = None
    """`running`, `success`, `error`, `graceful_skip`, or a word of your own."""
    service: str | None = None
    metrics: dict[str, Any] | None = None
    """Numbers, and `model`: tokens_in, tokens_out, latency_ms, cost …"""
    message: str | None = None
    prompt: str | None = None
    response: str | None = None
    error: str | None = None
    cascade: bool | None = None
    """For a phase kind: it runs because another scope ran again."""
    reason: str | None = None
    """For a phase kind: why it was skipped, or why it runs."""


class RunEventRow(Frozen):
    """One event of a run, as it is read: a run event, a phase, or a span with a node."""

    rollout_id: str
    version: int
    """Its number in the rollout, as `after` and `at` take it."""
    position: int
    """Its position in the whole log."""
    at: float
    """When the store recorded it."""
    attempt: int
    attempt_id: str
    rerun_seq: int
    """0 for the first attempt and its retries, one more for each re-run."""
    source: Literal["event", "phase", "span"]
    """The type of the stored event."""
    kind: str
    node_id: str | None = None
    scope: str | None = None
    parent_node_id: str | None = None
    phase: str | None = None
    agent: str | None = None
    node_exec: str | None = None
    status: str | None = None
    service: str | None = None
    metrics: dict[str, Any] | None = None
    prompt_sha256: str | None = None
    """SHA-256 of a prompt in hex; None for a prompt shorter than a kilobyte."""
    response_sha256: str | None = None
    message: str | None = None
    prompt: str | None = None
    """None also if the payload was not requested."""
    response: str | None = None
    error: str | None = None
    extra: dict[str, Any] | None = None
    """Further keys of the event; for a span, its own fields as in `query_spans`."""


class RunEventPage(Frozen):
    """Some events of a view, in the order in which they were recorded."""

    items: list[RunEventRow]
    next_after: int
    """The `after` of the next page: a version, even if nothing was found."""
    has_more: bool
    """Whether the view currently has more events after this page."""
    head: int | None
    """The attempt whose view this is; None before the first attempt, and for `raw`."""


class CheckpointRef(Frozen):
    """A snapshot of a run, without its state."""

    checkpoint_id: str
    rollout_id: str
    version: int
    position: int
    at: float
    attempt: int
    scope: str
    name: str
    after_phase: str | None
    """The phase at whose end it was saved."""
    parent_id: str | None = None
    """The previous checkpoint of the same scope and name."""
    graph: str | None = None
    """Digest of the phase graph under which it was saved."""
    external: dict[str, Any] | None = None
    """Pointer to the state if it is stored elsewhere: a checkpoint of LangGraph, an object in a bucket."""


class Snapshot(CheckpointRef):
    """A snapshot of a run, with its state."""

    state: dict[str, Any] | None
    """None if the state is stored elsewhere; `external` points to it."""


class ArtifactRef(Frozen):
    """A product of a run: a report, a decision, a file; without its content."""

    artifact_id: str
    rollout_id: str
    group_id: str | None
    version: int
    position: int
    at: float
    attempt: int
    scope: str
    name: str
    phase: str | None
    media_type: str | None
    retracted: bool = False
    """Whether it was withdrawn at the moment of the read."""


class Artifact(ArtifactRef):
    """A product of a run, with its content."""

    content: Any
    """Any JSON value; a string for text."""


class Degraded(Frozen):
    """The reason why a re-run repeats more phases than requested."""

    reason: Literal["checkpoint_missing"]
    phase: str
    """The phase that the request named."""
    checkpoint: str
    """The checkpoint that this phase requires."""
    scopes: list[str]
    """The scopes without this checkpoint."""


class Fork(Frozen):
    """A re-run: its base, the events that it replaces, and its start."""

    kind: ForkKind
    base: int
    """The attempt it builds on."""
    base_version: int
    """Events of the base after this version do not count."""
    scopes: list[str]
    phase: str | None
    """The phase at which it starts; None for a resume whose scopes continue at different phases."""
    entry: str | None
    """The node at which it starts."""
    cascade: list[str]
    """The phases of other scopes that run again afterwards."""
    checkpoints: list[CheckpointRef]
    """The checkpoints that its scopes start from; a scope without one starts from nothing."""
    masks: list[Mask]
    """The masks of the events that it hides."""
    graph: str | None
    """Digest of the phase graph of the plan."""
    degraded: Degraded | None = None
    """Why it repeats more than the request named; None if it does not."""
    state_patch: dict[str, Any] | None = None
    """Keys to set in the state that it starts from."""
    reason: str | None = None
    """The reason that the caller gave."""


class ForkPlan(Fork):
    """The plan of a re-run before it starts."""

    rollout_id: str
    phases: list[str]
    """The phases that run again in its scopes, in order."""
    unsafe: list[str]
    """Phases whose side effects must be confirmed."""
    graph_changed: list[str]
    """Checkpoints that were saved under another graph."""
    kept: int
    """The number of events of the base that stay in the view."""
    hidden: int
    """The number of events of the base that it hides."""
    nodes: int
    """The number of nodes among the hidden events, which are expected to run again."""
    head: int | None
    """The head when the plan was made. The plan is valid while this and `ground` do not change."""
    ground: int
    """The version of the last event that the plan depends on: a run event, checkpoint, artifact, fork or moved head; 0
    if there is none."""


class ForkResult(Frozen):
    """A re-run that has started."""

    attempt: Attempt
    rollout: AttemptedRollout
    fork: Fork


class AttemptNode(Frozen):
    """One attempt in the tree of a run's attempts."""

    sequence_id: int
    attempt_id: str
    status: AttemptStatus
    start_time: float
    rerun_seq: int
    kind: AttemptKind
    base: int | None
    """The attempt that it builds on; None if it started from nothing."""
    fork: Fork | None
    """Its own fork, or that of the attempt it retries; None if it started from nothing."""
    is_head: bool
    events: int
    """The number of its own run events."""


class NodeRun(Frozen):
    """Summary of one execution of a node."""

    version: int
    """The version of its last result, else of its last event."""
    attempt: int
    status: NodeStatus
    metrics: dict[str, Any] | None = None
    response_sha256: str | None = None


class NodeDifference(Frozen):
    """One execution of a node in two attempts."""

    scope: str | None
    node_id: str
    parent_node_id: str | None
    """The node under which it ran, for a tool."""
    ordinal: int
    """The number of this execution of the node in this scope: 1, 2 …"""
    change: NodeChange
    before: NodeRun | None
    after: NodeRun | None
    failed: bool
    """Whether it fails in `after` and not in `before`."""
    same_response: bool | None
    """None if one of the two has no response; True for kept executions."""
    deltas: dict[str, float]
    """After minus before, for each number that both have."""


class AttemptDiff(Frozen):
    """The changes from one attempt's view to another's."""

    a: int
    b: int
    nodes: list[NodeDifference]
    counts: dict[NodeChange, int]
    totals: dict[str, float]
    """The sum of each number over the whole view of `b`, minus that of `a`."""
    state_patch: dict[str, Any] | None = None
    """The changes to the state that `b` started from."""


class GraphNode(Frozen):
    """The state of one node of one scope in a view."""

    scope: str | None
    node_id: str
    phase: str | None
    """The phase according to the phase graph, else according to the events."""
    status: NodeStatus
    metrics: dict[str, Any] | None
    """The metrics of its last result; later thoughts do not change them."""
    executions: int
    """The number of its results."""
    errors: int
    first_version: int
    last_version: int
    attempt: int
    """The attempt of its last event."""


class GraphEdge(Frozen):
    """A node below another one, such as a tool below the node that calls it."""

    scope: str | None
    parent_node_id: str
    node_id: str


class GraphColumn(Frozen):
    """One scope of a run, with its nodes in the order of their first events."""

    scope: str | None
    kind: str | None
    """The kind of scope according to the phase graph."""
    done: int
    """The number of completed nodes."""
    total: int
    nodes: list[GraphNode]


class RunGraph(Frozen):
    """A view of a run as nodes, ready to draw: one column for each scope, in the order of their first events."""

    rollout_id: str
    head: int | None
    columns: list[GraphColumn]
    edges: list[GraphEdge]
