"""Runs of a store: their events, checkpoints, artifacts and re-runs.

Events are never edited or deleted. The view of a re-run hides the events that the re-run replaces; earlier views do not
change. The version of an event is its number in the rollout's history.
"""
# ruff: noqa: ARG002 - the default methods only raise and use no arguments.

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from store.errors import Unsupported
from store.models import Rollout
from store.models.calls import (
    AppendEventsCall,
    ChangingCall,
    ClaimRunsCall,
    ForkCall,
    MoveHeadCall,
    ReleaseClaimCall,
    ResumeCall,
    RetractArtifactCall,
    SaveArtifactCall,
    SaveCheckpointCall,
)
from store.models.phases import PhaseGraph
from store.models.queries import ArtifactQuery, CheckpointQuery, RunEventQuery
from store.models.run_frames import RunFrame
from store.models.runs import (
    Artifact,
    ArtifactRef,
    AttemptDiff,
    AttemptedRollout,
    AttemptNode,
    CheckpointRef,
    ForkPlan,
    ForkResult,
    OnActive,
    OnMissing,
    RunEvent,
    RunEventPage,
    RunGraph,
    SearchIn,
    Snapshot,
)
from store.runtime.blocking import Blocking, blocking, blocking_iterator
from store.validation import arguments

T = TypeVar("T")

AsAt = int | datetime
"""A moment of the log: the position of an event, or an aware datetime, which is compared with the times of commits."""


class StoreRuns:
    """The runs of a store. This base class is used for stores without runs: its methods raise `Unsupported`.

    **Views.** `view="head"` is the current state of the run: the events of the head attempt and of the attempts on
    which it builds, except hidden events. `attempt:3` is the same for attempt 3, whether or not it is the head. `own:3`
    contains only the events of attempt 3. `raw` contains all events. Checkpoints and artifacts follow the same rules.
    The head is the attempt that started last, unless `move_head` changed it. With `at` or `as_at`, a method returns
    what it would have returned at that moment, when later events did not exist.

    **Phases.** `plan_fork`, `fork` and `resume` need the run's phase graph: either the rollout's resources must contain
    exactly one `PhaseGraph`, or the caller must give the argument `graph`.

    In addition to the errors listed for each method, all of them raise `NotFound` for a rollout or an attempt that does
    not exist, and `Invalid` for malformed arguments.

    Args:
        backend: the name of the store's class, for error messages.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        """Execute a call that changes a run, given as a value; see `Store.call`."""
        raise Unsupported(call.method, self.backend)

    async def append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[RunEvent], *, key: str | None = None
    ) -> list[int]:
        """Append events to a run, all or none, and return the version of each event.

        Like a span, an event is a sign of life of its attempt and sets a preparing attempt to running. Events of an
        attempt that a fork has superseded are stored, but have no effect on the attempt.

        Args:
            rollout_id: the run.
            attempt_id: the attempt that the events belong to.
            events: the events, in order; an event of a phase kind, such as `phase.completed`, must have a phase.
            key: idempotency key: a repeated call with the same key appends nothing and returns the versions that the
                first call returned.

        Raises:
            Conflict: the key was used for another call of this rollout.
        """
        items = arguments.several(events, "events")
        return await self.call(AppendEventsCall(rollout_id, attempt_id, items, key)) if items else []

    async def query_events(
        self,
        rollout_id: str,
        *,
        view: str = "head",
        after: int = 0,
        limit: int = 500,
        scope: str | None = None,
        node_id: str | None = None,
        kind: str | None = None,
        bodies: bool = True,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> RunEventPage:
        """Return the events of a run in the order in which they were recorded.

        They are events of `append_events`, including those of phases, and spans with a node id.

        Args:
            rollout_id: the run.
            view: the view to read; see the class.
            after: only events after this version.
            limit: the maximum number of events; -1 for all.
            scope: only events of this scope, which must be spelled as in the log.
            node_id: only events of this node.
            kind: only events of this kind.
            bodies: include messages, prompts, responses and errors, which makes the read slower.
            as_at: read the state at this moment of the log.
            at: read the state after the run's event with this number.
        """
        query = RunEventQuery.of(
            view=view,
            after=after,
            limit=limit,
            scope=scope,
            node_id=node_id,
            kind=kind,
            bodies=bodies,
            as_at=as_at,
            at=at,
        )
        return await self.find_events(rollout_id, query)

    async def find_events(self, rollout_id: str, query: RunEventQuery) -> RunEventPage:
        """Like `query_events`, but with the arguments in one object."""
        raise Unsupported("runs.query_events", self.backend)

    async def get_graph(
        self,
        rollout_id: str,
        *,
        view: str = "head",
        graph: PhaseGraph | None = None,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> RunGraph:
        """Return a view as a graph, with one node for each node of each scope.

        A node is failed if it has an error after its last successful result, else completed if it has a result, else
        running. A node that ran under another node, such as a tool under an agent, appears only as an edge from that
        node. The run does not need a phase graph.
        """
        raise Unsupported("runs.get_graph", self.backend)

    def follow(
        self,
        rollout_id: str,
        *,
        after: int = 0,
        until: int | None = None,
        view: str = "head",
        bodies: bool = True,
    ) -> AsyncIterator[RunFrame]:
        """Yield a view of a run as frames, without end: first the present events of the view, then every change.

        A frame is a message with an event or another change. `apply_frames` computes the events of the view from the
        frames. A reader that resumes gets frames with all changes since `after`, including those by re-runs. Frames
        contain only committed events. The iterator reconnects if it loses the connection to the server. Leave the loop
        to stop the iterator.

        Args:
            rollout_id: the run.
            after: the field `seq` of the last frame that the reader has processed; 0 for a new reader.
            until: the field `until` of that frame.
            view: the view to follow; see the class.
            bodies: include messages, prompts, responses and errors, which makes the read slower.

        Raises:
            Invalid: `after` is beyond the run's last event, so it does not come from this run.
        """
        raise Unsupported("runs.follow", self.backend)

    async def save_checkpoint(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        scope: str,
        name: str,
        state: Mapping[str, Any] | None = None,
        after_phase: str | None = None,
        external: Mapping[str, Any] | None = None,
        key: str | None = None,
        graph: PhaseGraph | None = None,
    ) -> CheckpointRef | None:
        """Save the state of a scope at the end of a phase, so that a re-run can start from it.

        If the phase graph declares the checkpoint, only the declared keys of the state are saved. If the graph also
        declares a condition and the state does not meet it, no checkpoint is saved: an event with the reason is
        recorded, and None is returned.

        Args:
            rollout_id: the run.
            attempt_id: the attempt that saves the checkpoint.
            scope: the scope of the state; the spelling is normalised as the phase graph declares.
            name: the name of the checkpoint.
            state: any JSON object; None if `external` points to the state.
            after_phase: the phase that has ended; by default the phase that declares the checkpoint.
            external: a pointer to a state that is stored elsewhere.
            key: idempotency key, as for `append_events`.
            graph: the phase graph. None: the graph in the rollout's resources, or no graph if they contain none.
        """
        return await self.call(
            SaveCheckpointCall(rollout_id, attempt_id, scope, name, state, after_phase, external, key, graph)
        )

    async def get_checkpoint(
        self,
        rollout_id: str,
        *,
        scope: str,
        name: str,
        view: str = "head",
        search: SearchIn = "rollout",
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> Snapshot | None:
        """Return the latest checkpoint of a scope in a view; None if there is none.

        The scope must be spelled as in the log. With `search="group"`, if the run has no such checkpoint, the method
        searches the head views of other runs of the same group whose input has an equal `date`, and returns the latest
        checkpoint. Its field `rollout_id` contains the id of the run that saved it. Runs belong to the same group if
        their metadata contains the same `rollbook.group`.
        """
        raise Unsupported("runs.get_checkpoint", self.backend)

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        """Return a checkpoint with its state, whether or not a view hides it.

        Raises:
            NotFound: the run has no checkpoint with this id.
        """
        raise Unsupported("runs.get_checkpoint_by_id", self.backend)

    async def list_checkpoints(
        self,
        rollout_id: str,
        *,
        scope: str | None = None,
        name: str | None = None,
        view: str = "raw",
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> list[CheckpointRef]:
        """Return the checkpoints of a view in the order in which they were saved."""
        query = CheckpointQuery.of(
            scope=scope,
            name=name,
            view=view,
            as_at=as_at,
            at=at,
        )
        return await self.find_checkpoints(rollout_id, query)

    async def find_checkpoints(self, rollout_id: str, query: CheckpointQuery) -> list[CheckpointRef]:
        """Like `list_checkpoints`, but with the arguments in one object."""
        raise Unsupported("runs.list_checkpoints", self.backend)

    async def save_artifact(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        scope: str,
        name: str,
        content: Any,
        phase: str | None = None,
        media_type: str | None = None,
        key: str | None = None,
    ) -> ArtifactRef:
        """Save an artifact, a product of a run such as a report.

        Equal content is stored once, even if it is saved several times.
        """
        return await self.call(SaveArtifactCall(rollout_id, attempt_id, scope, name, content, phase, media_type, key))

    async def retract_artifact(
        self, rollout_id: str, artifact_id: str, *, reason: str | None = None, key: str | None = None
    ) -> ArtifactRef:
        """Retract an artifact: queries no longer return it, but the log keeps it. A repeated call has no effect."""
        return await self.call(RetractArtifactCall(rollout_id, artifact_id, reason, key))

    async def query_artifacts(
        self,
        rollout_id: str,
        *,
        scope: str | None = None,
        name: str | None = None,
        view: str = "head",
        limit: int = -1,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> list[Artifact]:
        """Return the artifacts of a view that were not retracted, in the order in which they were saved.

        Only the latest `limit` artifacts are returned; -1 means all artifacts.
        """
        query = ArtifactQuery.of(
            scope=scope,
            name=name,
            view=view,
            limit=limit,
            as_at=as_at,
            at=at,
        )
        return await self.find_artifacts(rollout_id, query)

    async def find_artifacts(self, rollout_id: str, query: ArtifactQuery) -> list[Artifact]:
        """Like `query_artifacts`, but with the arguments in one object."""
        raise Unsupported("runs.query_artifacts", self.backend)

    async def scope_history(
        self, scope: str, *, name: str | None = None, limit: int = 100, as_at: AsAt | None = None
    ) -> list[ArtifactRef]:
        """Return the artifacts of all runs for a scope, newest first, including retracted and replaced artifacts."""
        raise Unsupported("runs.scope_history", self.backend)

    async def plan_fork(
        self,
        rollout_id: str,
        *,
        node: str | None = None,
        phase: str | None = None,
        scopes: Sequence[str] = (),
        base: str = "head",
        on_missing: OnMissing = "error",
        cascade: bool = True,
        graph: PhaseGraph | None = None,
    ) -> ForkPlan:
        """Return the plan of a `fork` with these arguments, without starting the fork.

        Args:
            rollout_id: the run.
            node: a node of the phase at which the re-run starts. Give either `node` or `phase`.
            phase: the phase at which the re-run starts. This phase and all later phases of the scopes run again.
            scopes: the scopes to run again; optional if the phase graph declares one fixed scope for the phase.
            base: the attempt on which the re-run builds: `head`, or for example `attempt:3`.
            on_missing: the action if a scope lacks the checkpoint that the phase requires: `error` raises an error,
                `full` runs all phases of the scopes again and reports this in the plan's field `degraded`.
            cascade: whether phases of other scopes run again, too, if they depend on the phases that run again.
            graph: the phase graph, if it is not among the rollout's resources.

        Raises:
            Invalid: the phase, node or scope does not exist, the node belongs to several phases, or there is no phase
                graph.
            CheckpointMissing: a checkpoint is missing, and `on_missing` is `error`.
        """
        raise Unsupported("runs.plan_fork", self.backend)

    async def fork(
        self,
        rollout_id: str,
        *,
        node: str | None = None,
        phase: str | None = None,
        scopes: Sequence[str] = (),
        base: str = "head",
        on_missing: OnMissing = "error",
        cascade: bool = True,
        state_patch: Mapping[str, Any] | None = None,
        on_active: OnActive = "reject",
        expected_head: int | None = None,
        request_id: str | None = None,
        reason: str | None = None,
        confirm_side_effects: bool = False,
        allow_graph_change: bool = False,
        worker_id: str | None = None,
        graph: PhaseGraph | None = None,
    ) -> ForkResult:
        """Start a re-run: an attempt that builds on the base attempt and runs phases of some scopes again.

        The new attempt becomes the head, and its view hides the events that the re-run replaces. The caller must
        execute the attempt. The execution starts at the node `entry` of the plan, with the state of the plan's
        checkpoints, updated by `state_patch`. The phases in the plan's field `cascade` come last.

        Args:
            rollout_id: the run.
            node: see `plan_fork`.
            phase: see `plan_fork`.
            scopes: see `plan_fork`; all of them run again in the same attempt, and the cascade runs once.
            base: see `plan_fork`.
            on_missing: see `plan_fork`.
            cascade: see `plan_fork`.
            state_patch: keys to set in the state from which the attempt starts; the stored checkpoint does not change.
            on_active: the action if an attempt is still active: `reject` raises an error, `supersede` ends that attempt
                as failed and starts the re-run.
            expected_head: the sequence id that the head must have; None for any head.
            request_id: idempotency key: a repeated call with the same id starts nothing and returns the first result.
            reason: the reason, for the log.
            confirm_side_effects: allow phases with unsafe side effects to run again.
            allow_graph_change: allow checkpoints that were saved under another phase graph.
            worker_id: the worker that runs the attempt.
            graph: see `plan_fork`.

        Raises:
            Invalid: see `plan_fork`.
            AttemptActive: an attempt is active, and `on_active` is `reject`.
            HeadMoved: the head is not `expected_head`.
            CheckpointMissing: see `plan_fork`.
            GraphChanged: a checkpoint was saved under another phase graph, and `allow_graph_change` is not set.
            SideEffectsUnconfirmed: a phase has unsafe side effects, and `confirm_side_effects` is not set.
            Conflict: the request id was used for another request.
        """
        call = ForkCall(
            rollout_id,
            node=node,
            phase=phase,
            scopes=scopes,
            base=base,
            on_missing=on_missing,
            cascade=cascade,
            graph=graph,
            state_patch=state_patch,
            on_active=on_active,
            expected_head=expected_head,
            request_id=request_id,
            reason=reason,
            confirm_side_effects=confirm_side_effects,
            allow_graph_change=allow_graph_change,
            worker_id=worker_id,
        )
        return await self.call(call)

    async def resume(
        self,
        rollout_id: str,
        *,
        from_attempt: str = "head",
        confirm_side_effects: bool = False,
        request_id: str | None = None,
        reason: str | None = None,
        worker_id: str | None = None,
        graph: PhaseGraph | None = None,
    ) -> ForkResult:
        """Start an attempt that continues where another attempt has stopped.

        Each scope continues at its first phase that is not complete. If the checkpoint that this phase requires is
        missing, the scope continues at the nearest earlier phase that can start. The new attempt hides the events of
        the phases that run again. Complete scopes do not run again. If the other attempt stopped between two scopes,
        all scopes that it began are complete, and nothing runs again.

        Raises:
            Invalid: the attempt has succeeded and everything that it began is complete, or there is no phase graph.
            AttemptActive: the attempt is still active.
            SideEffectsUnconfirmed: a phase with unsafe side effects had begun and would run again.
        """
        return await self.call(
            ResumeCall(rollout_id, from_attempt, confirm_side_effects, request_id, reason, worker_id, graph)
        )

    async def claim(
        self,
        resources_ids: Sequence[str],
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
    ) -> list[AttemptedRollout]:
        """Claim waiting runs, longest-waiting first, as `dequeue_many_rollouts` claims rollouts. Sweeps.

        A run is a rollout without a mode whose resources contain a phase graph. All other rollouts keep their places in
        the queue. If nothing is claimed, the status of the worker does not change.

        Args:
            resources_ids: the ids of resources with the phase graph of the runs.
            limit: the maximum number of runs.
            worker_id: the worker that claims.
            wait_seconds: the maximum time to wait for a run if none waits; 0 returns at once.

        Raises:
            Invalid: `wait_seconds` is negative or not finite.
        """
        arguments.wait_seconds(wait_seconds)
        ids = arguments.texts(resources_ids, "resources_ids")
        if arguments.whole(limit, "limit", "a number of runs") <= 0 or not ids:
            return []
        return await self.call(ClaimRunsCall(ids, limit, worker_id, wait_seconds))

    async def release_claim(self, rollout_id: str, attempt_id: str) -> bool:
        """Undo the claim of a rollout of any kind whose attempt has not begun, and return whether it is undone.

        The rollout returns to its old place in the queue, and the attempt does not count. The result is False if the
        attempt has changed since its claim, for example by a span or a heartbeat, or if no claim started it.
        """
        return await self.call(ReleaseClaimCall(rollout_id, attempt_id))

    async def move_head(
        self, rollout_id: str, attempt_id: str, *, reason: str | None = None, request_id: str | None = None
    ) -> Rollout:
        """Make another attempt the head, to undo or redo a re-run.

        The status of the rollout and the queue do not change.
        """
        return await self.call(MoveHeadCall(rollout_id, attempt_id, reason, request_id))

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        """Return the attempts of a run in the order of their sequence ids, each with the attempt on which it builds."""
        raise Unsupported("runs.list_lineage", self.backend)

    async def compare_attempts(self, rollout_id: str, a: int, b: int) -> AttemptDiff:
        """Return the differences between the views of the attempts `a` and `b`, node by node.

        The first execution of a node in `a` is compared with the first execution in `b`, and so on. An execution that
        both views contain counts as kept.
        """
        raise Unsupported("runs.compare_attempts", self.backend)


class SyncRuns(Blocking[StoreRuns]):
    """Blocking methods for runs; see `StoreRuns`."""

    call = blocking(StoreRuns.call)
    append_events = blocking(StoreRuns.append_events)
    query_events = blocking(StoreRuns.query_events)
    find_events = blocking(StoreRuns.find_events)
    get_graph = blocking(StoreRuns.get_graph)
    follow = blocking_iterator(StoreRuns.follow)
    save_checkpoint = blocking(StoreRuns.save_checkpoint)
    get_checkpoint = blocking(StoreRuns.get_checkpoint)
    get_checkpoint_by_id = blocking(StoreRuns.get_checkpoint_by_id)
    list_checkpoints = blocking(StoreRuns.list_checkpoints)
    find_checkpoints = blocking(StoreRuns.find_checkpoints)
    save_artifact = blocking(StoreRuns.save_artifact)
    retract_artifact = blocking(StoreRuns.retract_artifact)
    query_artifacts = blocking(StoreRuns.query_artifacts)
    find_artifacts = blocking(StoreRuns.find_artifacts)
    scope_history = blocking(StoreRuns.scope_history)
    plan_fork = blocking(StoreRuns.plan_fork)
    fork = blocking(StoreRuns.fork)
    resume = blocking(StoreRuns.resume)
    claim = blocking(StoreRuns.claim)
    release_claim = blocking(StoreRuns.release_claim)
    move_head = blocking(StoreRuns.move_head)
    list_lineage = blocking(StoreRuns.list_lineage)
    compare_attempts = blocking(StoreRuns.compare_attempts)
