"""Events, checkpoints, artifacts and re-runs of a run. Times are float seconds since the epoch.

A field that holds an attempt as an int holds the attempt's `sequence_id`: 1, 2, 3 … in the rollout. A *version* is the
number of an event in its rollout: 1, 2, 3 … A *position* is the number of an event in the log of the whole store.
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
"""Kinds of run events about a phase as a whole. Such events have a phase and a scope, but no node."""


class RunEvent(Open):
    """One event of a run, as a caller sends it to the store. Unknown keys are stored with the event's payload."""

    kind: str
    """`thought`, `tool`, `tool_result`, `result`, `log`, `system`, a kind in `PHASE_KINDS`, or a word of your own."""
    node_id: str | None = None
    scope: str | None = None
    parent_node_id: str | None = None
    """If the node is a tool, the node that called the tool."""
    phase: str | None = None
    agent: str | None = None
    node_exec: str | None = None
    """A name for this execution of the node, if the node is executed several times."""
    status: str | None = None
    """`running`, `success`, `error`, `graceful_skip`, or a word of your own."""
    service: str | None = None
    metrics: dict[str, Any] | None = None
    """Numbers by name, such as tokens_in, tokens_out, latency_ms and cost. Only the value of `model` may be a text."""
    message: str | None = None
    prompt: str | None = None
    response: str | None = None
    error: str | None = None
    cascade: bool | None = None
    """Only for kinds in `PHASE_KINDS`: whether the phase runs because a phase of another scope ran again."""
    reason: str | None = None
    """Only for kinds in `PHASE_KINDS`: why the phase was skipped, or why it runs."""


class RunEventRow(Frozen):
    """One event of a run, as the store returns it: a run event, an event of a phase kind, or a span with a node."""

    rollout_id: str
    version: int
    """The number of the event in the rollout. The arguments `after` and `at` of reads take such a number."""
    position: int
    """The position of the event in the log of the store."""
    at: float
    """When the store recorded the event."""
    attempt: int
    attempt_id: str
    rerun_seq: int
    """The number of the re-run to which the attempt belongs: 0 for the first attempt and its retries."""
    source: Literal["event", "phase", "span"]
    """Whether the store recorded a run event, an event of a phase kind, or a span."""
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
    """SHA-256 of the prompt in hex. None if there is no prompt, or if the prompt is shorter than 1 KiB."""
    response_sha256: str | None = None
    message: str | None = None
    prompt: str | None = None
    """The prompt. None if there is none, or if the reader did not request payload."""
    response: str | None = None
    error: str | None = None
    extra: dict[str, Any] | None = None
    """Further keys of the event. For a span, these are the fields of the span, as `query_spans` returns them."""


class RunEventPage(Frozen):
    """Some events of a view, in the order in which they were recorded."""

    items: list[RunEventRow]
    next_after: int
    """The version to pass as `after` to read the next page. An empty page also has this version."""
    has_more: bool
    """Whether the view had more events after this page at the time of the read."""
    head: int | None
    """The attempt whose view was read. None before the first attempt, and for the view `raw` of all attempts."""


class CheckpointRef(Frozen):
    """A checkpoint of a run: a snapshot of the state that the run had for one scope. The state is not included here."""

    checkpoint_id: str
    rollout_id: str
    version: int
    position: int
    at: float
    attempt: int
    scope: str
    name: str
    after_phase: str | None
    """The phase at whose end the checkpoint was saved."""
    parent_id: str | None = None
    """The id of the previous checkpoint of the same scope and name."""
    graph: str | None = None
    """Digest of the phase graph that the run had when the checkpoint was saved."""
    external: dict[str, Any] | None = None
    """The location of a state that is stored outside of this store, for example in a LangGraph checkpoint."""


class Snapshot(CheckpointRef):
    """A checkpoint of a run, with its state."""

    state: dict[str, Any] | None
    """The state. None if the state is stored outside of this store; `external` then contains its location."""


class ArtifactRef(Frozen):
    """A product of a run, such as a report, a decision or a file. The content is not included here."""

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
    """Whether the artifact was withdrawn. For a read of the past, whether it was withdrawn at that moment."""


class Artifact(ArtifactRef):
    """A product of a run, with its content."""

    content: Any
    """The content: any JSON value. Text is a JSON string."""


class Degraded(Frozen):
    """The reason why a re-run repeats more phases than requested."""

    reason: Literal["checkpoint_missing"]
    phase: str
    """The phase at which the request asked to start."""
    checkpoint: str
    """The checkpoint that this phase requires."""
    scopes: list[str]
    """The scopes that have no such checkpoint."""


class Fork(Frozen):
    """A re-run: the base on which it builds, the base's events that it replaces, and the phase at which it starts."""

    kind: ForkKind
    base: int
    """The attempt on which the re-run builds."""
    base_version: int
    """The view of the re-run contains no events of the base after this version."""
    scopes: list[str]
    phase: str | None
    """The phase at which the re-run starts. None if it is a resume and its scopes continue at different phases."""
    entry: str | None
    """The node at which the re-run starts."""
    cascade: list[str]
    """The phases of other scopes that run again afterwards, because they depend on the repeated phases."""
    checkpoints: list[CheckpointRef]
    """The checkpoints from which the scopes start. A scope without a checkpoint starts from nothing."""
    masks: list[Mask]
    """The masks, which select the events of the base that the re-run hides."""
    graph: str | None
    """Digest of the phase graph with which the re-run was planned."""
    degraded: Degraded | None = None
    """The reason why the re-run repeats more phases than requested. None if it repeats only the requested phases."""
    state_patch: dict[str, Any] | None = None
    """Keys, with their values, to set in the state from which the re-run starts."""
    reason: str | None = None
    """The reason for the re-run, as the caller gave it."""


class ForkPlan(Fork):
    """The plan of a re-run before it starts."""

    rollout_id: str
    phases: list[str]
    """The phases that run again in the scopes of the re-run, in order."""
    unsafe: list[str]
    """The phases that run again and that the graph declares as unsafe. The caller must confirm their side effects."""
    graph_changed: list[str]
    """The ids of those checkpoints in `checkpoints` that were saved when the run had another phase graph."""
    kept: int
    """The number of events of the base that the view of the re-run contains."""
    hidden: int
    """The number of events of the base that the re-run hides."""
    nodes: int
    """The number of nodes among the hidden events, which are expected to run again."""
    head: int | None
    """The head when the plan was made. The plan is valid only while neither the head nor `ground` changes."""
    ground: int
    """The version of the last event on which the plan depends; 0 if there is none.

    A plan depends on run events, checkpoints, artifacts, forks and moves of the head.
    """


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
    """The attempt on which this attempt builds; None if it started from nothing."""
    fork: Fork | None
    """The fork that started this attempt, or started the attempt that this attempt retries. None if there is none."""
    is_head: bool
    events: int
    """The number of run events that this attempt recorded itself."""


class NodeRun(Frozen):
    """Summary of one execution of a node."""

    version: int
    """The version of the execution's last result, or of its last event if it has no result."""
    attempt: int
    status: NodeStatus
    metrics: dict[str, Any] | None = None
    response_sha256: str | None = None


class NodeDifference(Frozen):
    """One execution of a node in two attempts."""

    scope: str | None
    node_id: str
    parent_node_id: str | None
    """If the node is a tool, the node that called the tool."""
    ordinal: int
    """The number of this execution among the executions of the node in this scope: 1, 2 …"""
    change: NodeChange
    before: NodeRun | None
    """The execution in the view of attempt `a`; None if there is none."""
    after: NodeRun | None
    """The execution in the view of attempt `b`; None if there is none."""
    failed: bool
    """Whether the execution failed in `after`, but not in `before`."""
    same_response: bool | None
    """Whether both executions have equal responses; always True if `change` is `kept`.

    None if one of the executions has no response.
    """
    deltas: dict[str, float]
    """For each metric that is a number in both executions, the value in `after` minus the value in `before`."""

    def notebook_row(self) -> dict[str, object]:
        """Return the values that a notebook shows."""
        return {
            "scope": self.scope,
            "node": self.node_id,
            "tool of": self.parent_node_id,
            "execution": self.ordinal,
            "change": self.change,
            "before": None if self.before is None else self.before.status,
            "after": None if self.after is None else self.after.status,
            "same response": self.same_response,
            "deltas": self.deltas or None,
        }


class AttemptDiff(Frozen):
    """The changes from the view of attempt `a` to the view of attempt `b`."""

    a: int
    b: int
    nodes: list[NodeDifference]
    counts: dict[NodeChange, int]
    """The number of differences in `nodes` for each kind of change."""
    totals: dict[str, float]
    """For each metric that is a number, its sum over the whole view of `b` minus its sum over the whole view of `a`."""
    state_patch: dict[str, Any] | None = None
    """The changes that the fork of `b` made to the state from which `b` started."""

    def _repr_html_(self) -> str:
        from store.runtime import html

        figures = {"nodes": self.counts, "totals": self.totals or None, "state": self.state_patch}
        nodes = html.items([node for node in self.nodes if node.change != "kept"])
        return html.titled(f"Attempt {self.a} → attempt {self.b}", html.fields(figures) + nodes)


class GraphNode(Frozen):
    """The state of one node of one scope in a view."""

    scope: str | None
    node_id: str
    phase: str | None
    """The phase of the node according to the phase graph. If the graph names none, the phase in the node's events."""
    status: NodeStatus
    metrics: dict[str, Any] | None
    """The metrics of the node's last result that has metrics. Events that are not results do not change them."""
    executions: int
    """The number of the node's results."""
    errors: int
    """The number of the node's events with the status `error`."""
    first_version: int
    """The version of the node's first event."""
    last_version: int
    """The version of the node's last event."""
    attempt: int
    """The attempt that recorded the node's last event."""


class GraphEdge(Frozen):
    """A link from a parent node to a node below it, such as from a node to a tool that the node calls."""

    scope: str | None
    parent_node_id: str
    node_id: str


class GraphColumn(Frozen):
    """One scope of a run, with its nodes in the order of their first events."""

    scope: str | None
    kind: str | None
    """The kind of the scope, such as `ticker`, if the phase graph declares it."""
    done: int
    """The number of completed nodes."""
    total: int
    """The number of nodes."""
    nodes: list[GraphNode]


class RunGraph(Frozen):
    """A view of a run as nodes in columns, for a drawing. Each scope has one column, in the order of first events."""

    rollout_id: str
    head: int | None
    columns: list[GraphColumn]
    edges: list[GraphEdge]
