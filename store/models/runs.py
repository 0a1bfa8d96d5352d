"""What a run says while it goes, what it leaves behind, and how it is run again. Times are float seconds.

A *version* is an event's number in its rollout, as `history` counts: 1, 2, 3 … An attempt is named by its
`sequence_id`. *Scope* is what an event is about (a ticker, the market, a portfolio), *node* the step that it is from.
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
"""Kinds of run events that are about a phase as a whole: they have a phase and a scope, and no node."""


class RunEvent(Open):
    """One thing that a run says, as it is sent; unknown keys are kept with its payload."""

    kind: str
    """`thought`, `tool`, `tool_result`, `result`, `log`, `system`, a phase kind, or a word of your own."""
    node_id: str | None = None
    scope: str | None = None
    parent_node_id: str | None = None
    """The node under which it ran, for a tool."""
    phase: str | None = None
    agent: str | None = None
    node_exec: str | None = None
    """Names one execution of the node, where it runs several times."""
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
    """Of a phase kind: it runs because another scope ran again."""
    reason: str | None = None
    """Of a phase kind: why it was skipped, or runs."""


class RunEventRow(Frozen):
    """One thing that a run said, as it is read: a run event, a phase, or a span that carries a node."""

    rollout_id: str
    version: int
    """Its number in the rollout; what `after` and `at` take."""
    position: int
    """Its place in the whole log."""
    at: float
    """When the store recorded it."""
    attempt: int
    attempt_id: str
    rerun_seq: int
    """0 for the first attempt and its retries, one more for each re-run."""
    source: Literal["event", "phase", "span"]
    """What the log holds there."""
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
    """Of a long prompt, in hex: equal prompts have the same. None for one that is shorter than a kilobyte."""
    response_sha256: str | None = None
    message: str | None = None
    prompt: str | None = None
    """None also where payload was not asked for."""
    response: str | None = None
    error: str | None = None
    extra: dict[str, Any] | None = None
    """What else was sent; of a span, its own fields as `query_spans` has them."""


class RunEventPage(Frozen):
    """Some events of a view, in the order they were recorded."""

    items: list[RunEventRow]
    next_after: int
    """`after` of the next page: a version, also when nothing was found."""
    has_more: bool
    """Whether the view holds more beyond it, as it is now."""
    head: int | None
    """The attempt whose view this is; None while nothing has started, and for `raw`."""


class CheckpointRef(Frozen):
    """A snapshot that a run left, without its state."""

    checkpoint_id: str
    rollout_id: str
    version: int
    position: int
    at: float
    attempt: int
    scope: str
    name: str
    after_phase: str | None
    """The phase at whose end it was taken."""
    parent_id: str | None = None
    """The checkpoint before it, of the same scope and name."""
    graph: str | None = None
    """Digest of the phase graph it was taken under."""
    external: dict[str, Any] | None = None
    """Where the state lies, if elsewhere: a checkpoint of LangGraph, an object in a bucket."""


class Snapshot(CheckpointRef):
    """A snapshot that a run left."""

    state: dict[str, Any] | None
    """None where only `external` says where it lies."""


class ArtifactRef(Frozen):
    """Something a run made: a report, a decision, a file; without its content."""

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
    """Whether it was taken back by then."""


class Artifact(ArtifactRef):
    """Something a run made."""

    content: Any
    """Any JSON value; text for text."""


class Degraded(Frozen):
    """Why more runs again than was asked for."""

    reason: Literal["checkpoint_missing"]
    phase: str
    """Where it was asked to start."""
    checkpoint: str
    """What it would have started from."""
    scopes: list[str]
    """Those that do not have it."""


class Fork(Frozen):
    """What a re-run builds on, what it replaces, and where it starts."""

    kind: ForkKind
    base: int
    """The attempt it builds on."""
    base_version: int
    """What the base said beyond this version does not count."""
    scopes: list[str]
    phase: str | None
    """Where it starts; None for a resume whose scopes go on at different phases."""
    entry: str | None
    """The node at which it starts."""
    cascade: list[str]
    """The phases of other scopes that run again afterwards."""
    checkpoints: list[CheckpointRef]
    """What its scopes start from; none for a scope that starts from nothing."""
    masks: list[Mask]
    """What it hides."""
    graph: str | None
    """Digest of the phase graph it was planned with."""
    degraded: Degraded | None = None
    """Why more runs again than was asked for, if more does."""
    state_patch: dict[str, Any] | None = None
    """Keys to set in the state it starts from."""
    reason: str | None = None
    """As whoever asked for it gave it."""


class ForkPlan(Fork):
    """What a re-run would do, before anything is done."""

    rollout_id: str
    phases: list[str]
    """What runs again in its scopes, in order."""
    unsafe: list[str]
    """Phases whose side effects have to be confirmed."""
    graph_changed: list[str]
    """Checkpoints that were taken under another graph."""
    kept: int
    """How many events of the base stay in the view."""
    hidden: int
    """How many it hides."""
    nodes: int
    """How many nodes ran in what it hides, and are expected to run again."""
    head: int | None
    """The head when it was made. A plan holds as long as this and `ground` do."""
    ground: int
    """The version of the last event it rests on: of a run event, a checkpoint, an artefact, a fork, a moved head; 0
    where there was none."""


class ForkResult(Frozen):
    """A re-run that has begun."""

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
    """The attempt it builds on; None where it began with nothing."""
    fork: Fork | None
    """Its own, or that of the attempt it retries; None where it began with nothing."""
    is_head: bool
    events: int
    """How many run events are its own."""


class NodeRun(Frozen):
    """One execution of a node, summed up."""

    version: int
    """Of its last result, else of its last event."""
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
    """Which execution of this node in this scope: 1, 2 …"""
    change: NodeChange
    before: NodeRun | None
    after: NodeRun | None
    failed: bool
    """It ended in an error afterwards, and had not before."""
    same_response: bool | None
    """None where one of the two has no response; True for what is kept."""
    deltas: dict[str, float]
    """After minus before, of each number that both have."""


class AttemptDiff(Frozen):
    """What changed from one attempt's view to another's."""

    a: int
    b: int
    nodes: list[NodeDifference]
    counts: dict[NodeChange, int]
    totals: dict[str, float]
    """Sum of each number over the whole view of `b`, minus that of `a`."""
    state_patch: dict[str, Any] | None = None
    """What `b` was told to change in the state it started from."""


class GraphNode(Frozen):
    """One node of one scope, as it stands in a view."""

    scope: str | None
    node_id: str
    phase: str | None
    """As the phase graph has it, else as the events say."""
    status: NodeStatus
    metrics: dict[str, Any] | None
    """Of its last result; later thoughts do not change it."""
    executions: int
    """How many results it has."""
    errors: int
    first_version: int
    last_version: int
    attempt: int
    """Of its last event."""


class GraphEdge(Frozen):
    """A node that ran under another one: a tool under its node."""

    scope: str | None
    parent_node_id: str
    node_id: str


class GraphColumn(Frozen):
    """One scope of a run, with its nodes in the order they were first seen."""

    scope: str | None
    kind: str | None
    """The kind of scope, as the phase graph has it."""
    done: int
    """How many of its nodes are completed."""
    total: int
    nodes: list[GraphNode]


class RunGraph(Frozen):
    """A view of a run as nodes, ready to draw: each scope a column, in the order they were first seen."""

    rollout_id: str
    head: int | None
    columns: list[GraphColumn]
    edges: list[GraphEdge]
