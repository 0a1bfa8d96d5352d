"""Runs of a store: events, checkpoints, artifacts, and re-runs of a part.

A run is a rollout; a re-run is another attempt of it. Events are never edited or deleted: a re-run hides the events
that it replaces in its own view, and earlier views do not change. A phase is a part of a run that runs for a scope (a
subject such as a ticker). A node is a step of a phase, such as one agent. A fork starts a re-run.
"""
# ruff: noqa: ARG002 - the default methods only raise and use no arguments.

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from store.errors import Unsupported
from store.models import Rollout
from store.models.phases import PhaseGraph
from store.models.queries import ArtifactQuery, CheckpointQuery, RunEventQuery
from store.models.run_frames import RunFrame
from store.models.runs import (
    Artifact,
    ArtifactRef,
    AttemptDiff,
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

AsAt = int | datetime
"""A moment of the log: the position of an event, or an aware datetime, compared with the times of commits."""


class StoreRuns:
    """The runs of a store. In this class, which stores without runs use, all methods raise `Unsupported`.

    **Views.** `view="head"` is the current state of the run: the events of the head attempt and of the attempts on
    which it builds, except hidden events. `attempt:3` is the same for attempt 3, whether or not it is the head. `own:3`
    contains only the events of attempt 3. `raw` contains all events. Checkpoints and artifacts follow the same rules.
    The head is the attempt that started last, unless `move_head` changed it. With `at` or `as_at`, only events up to
    that moment count, also for the head and for the view.

    **Phases.** The methods that plan need the run's phase graph: the only `PhaseGraph` among the rollout's resources,
    or the argument `graph`.

    In addition to the errors listed for each method, all of them raise `NotFound` for a rollout or an attempt that does
    not exist, and `Invalid` for malformed arguments.

    Args:
        backend: the name of the store's class, for error messages.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    # -- events ------------------------------------------------------------------------------------------------------

    async def append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[RunEvent], *, key: str | None = None
    ) -> list[int]:
        """Append events to a run, all or none, and return the version of each.

        Like a span, an event is a sign of life of its attempt and sets a preparing attempt to running. Events of a
        superseded attempt are stored without any effect.

        Args:
            rollout_id: the run.
            attempt_id: the attempt that the events belong to.
            events: the events, in order; an event whose kind is a phase kind must have a phase.
            key: idempotency key: a repeated call with the same key appends nothing and returns the first versions.

        Raises:
            Conflict: the key was used for another call of this rollout.
        """
        raise Unsupported("runs.append_events", self.backend)

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
        """Return the events of a run in the order in which they were recorded: run events, phases, spans with a node.

        Args:
            rollout_id: the run.
            view: the view to read; see the class.
            after: only events after this version.
            limit: the maximum number of events; -1 for all.
            scope: only events of this scope, in the spelling of the log.
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
        """Like `query_events`, with the arguments as a query value."""
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

        A node is failed if its last event is an error, else completed if it has a result, else running. A node that ran
        under another node appears only as an edge. The phase graph is optional.
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
        """Yield a view of a run as frames: first its present events, then every change, without end.

        `apply_frames` computes the events of the view from the frames, both for a new reader and for a reader that
        resumes: the frames contain all changes since `after`, including re-runs. They contain only committed events.
        The iterator reconnects if it loses the connection to the server. Leave the loop to stop the iterator.

        Args:
            rollout_id: the run.
            after: the `seq` of the last frame that the reader has processed; 0 for a new reader.
            until: the `until` of that frame.
            view: the view to follow; see the class.
            bodies: include messages, prompts, responses and errors, which makes the read slower.

        Raises:
            Invalid: `after` is beyond the run's last event, so it does not come from this run.
        """
        raise Unsupported("runs.follow", self.backend)

    # -- checkpoints and artifacts -----------------------------------------------------------------------------------

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

        If the phase graph declares the checkpoint, only the declared keys are saved, and only if its condition holds.
        Otherwise the rejection is recorded with its reason, and None is returned.

        Args:
            rollout_id: the run.
            attempt_id: the attempt that saves the checkpoint.
            scope: the scope of the state; it is normalised according to its kind of scope.
            name: the name of the checkpoint.
            state: any JSON object; None if `external` points to the state.
            after_phase: the phase that has ended; by default the phase that declares the checkpoint.
            external: a pointer to a state that is stored elsewhere.
            key: idempotency key, as for `append_events`.
            graph: the phase graph, if it is not among the rollout's resources; a phase graph is optional.
        """
        raise Unsupported("runs.save_checkpoint", self.backend)

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

        The scope is in the spelling of the log. With `search="group"`, if the run has no such checkpoint, the result is
        the latest one in the head view of a run of the same group whose input has an equal `date`. The field
        `rollout_id` contains the id of that run.
        """
        raise Unsupported("runs.get_checkpoint", self.backend)

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        """Return a checkpoint with its state, in any view.

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
        """Like `list_checkpoints`, with the arguments as a query value."""
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
        """Save a product of a run. Equal content is stored once, even if it is saved several times."""
        raise Unsupported("runs.save_artifact", self.backend)

    async def retract_artifact(
        self, rollout_id: str, artifact_id: str, *, reason: str | None = None, key: str | None = None
    ) -> ArtifactRef:
        """Retract an artifact: queries no longer return it, but the log keeps it. A repeated call has no effect."""
        raise Unsupported("runs.retract_artifact", self.backend)

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
        """Like `query_artifacts`, with the arguments as a query value."""
        raise Unsupported("runs.query_artifacts", self.backend)

    async def scope_history(
        self, scope: str, *, name: str | None = None, limit: int = 100, as_at: AsAt | None = None
    ) -> list[ArtifactRef]:
        """Return the artifacts of all runs for a scope, newest first, including retracted and replaced ones."""
        raise Unsupported("runs.scope_history", self.backend)

    # -- forks -------------------------------------------------------------------------------------------------------

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
        """Return the plan of a `fork` with these arguments, without starting it.

        Args:
            rollout_id: the run.
            node: the node to run again; the re-run starts at its phase. Give `node` or `phase`.
            phase: the phase at which the re-run starts. It and all later phases of the scope run again.
            scopes: the scopes to run again; optional if the phase's kind of scope is fixed.
            base: the attempt to build on: `head`, or for example `attempt:3`.
            on_missing: if a scope lacks the checkpoint that the phase requires: `error` raises, `full` runs all phases
                of the scopes again and reports it in `degraded`.
            cascade: whether dependent phases of other scopes run again, too.
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
        """Start an attempt that runs a phase of some scopes again, on top of the base attempt.

        The events that it replaces are hidden from its view, which becomes the head view. The caller executes the
        attempt. It starts at the plan's `entry` with the state of the plan's checkpoints, updated by `state_patch`.
        Then it runs the phases of the cascade.

        Args:
            rollout_id: the run.
            node: see `plan_fork`.
            phase: see `plan_fork`.
            scopes: see `plan_fork`; several scopes share one attempt and one cascade.
            base: see `plan_fork`.
            on_missing: see `plan_fork`.
            cascade: see `plan_fork`.
            state_patch: keys to set in the state from which the attempt starts; the stored checkpoint does not change.
            on_active: if an attempt is still active: `reject` raises, `supersede` ends it as failed and continues.
            expected_head: raise if the head is another attempt.
            request_id: idempotency key: a repeated request starts nothing and returns the first result.
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
        raise Unsupported("runs.fork", self.backend)

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
        """Start an attempt that continues an attempt that ended early.

        In each scope, completed phases are preserved. Later events are hidden, and their phases run again from the last
        checkpoint at which a phase can start. Completed scopes do not run again. If all scopes are complete, because
        the attempt ended before it began the next scopes, nothing runs again.

        Raises:
            Invalid: the attempt succeeded and nothing is unfinished, or there is no phase graph.
            AttemptActive: the attempt is still active.
            SideEffectsUnconfirmed: a phase with unsafe side effects had begun and would run again.
        """
        raise Unsupported("runs.resume", self.backend)

    async def move_head(
        self, rollout_id: str, attempt_id: str, *, reason: str | None = None, request_id: str | None = None
    ) -> Rollout:
        """Make another attempt the head, to undo or redo a re-run. The status and the queue do not change."""
        raise Unsupported("runs.move_head", self.backend)

    # -- lineage -----------------------------------------------------------------------------------------------------

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        """Return the attempts of a run in their order, each with the attempt that it builds on."""
        raise Unsupported("runs.list_lineage", self.backend)

    async def compare_attempts(self, rollout_id: str, a: int, b: int) -> AttemptDiff:
        """Return the differences between the views of the attempts `a` and `b`, node by node.

        Executions of a node are matched by their order. Events that `b` inherits count as kept.
        """
        raise Unsupported("runs.compare_attempts", self.backend)


class SyncRuns(Blocking[StoreRuns]):
    """Blocking methods for runs; see `StoreRuns`."""

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
    move_head = blocking(StoreRuns.move_head)
    list_lineage = blocking(StoreRuns.list_lineage)
    compare_attempts = blocking(StoreRuns.compare_attempts)
