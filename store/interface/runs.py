"""What a store does for runs: their events, checkpoints and artefacts, and running a part of them again.

A run is a rollout, a re-run one more attempt of it. Nothing is ever edited or deleted: a re-run hides what it replaces
from the views that build on it, and each earlier view stays as it was.
"""
# ruff: noqa: ARG002 - a default that only refuses uses no argument.

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
"""A moment of the log: the position of an event, or an aware datetime compared with when commits were recorded."""


class StoreRuns:
    """The runs of a store. This class is the default of a store without them: every method raises `Unsupported`.

    **Views.** `view="head"` is the run as it stands: what the head attempt said, and of the attempts it builds on all
    that no re-run has hidden. `attempt:3` is the same for attempt 3, whether or not it is the head; `own:3` is what
    attempt 3 alone said; `raw` is all there is. Checkpoints and artefacts follow the same rule as events. The head is
    the attempt that started last, unless `move_head` put it elsewhere. With `at` or `as_at` the log is cut first, then
    the head is taken as it was at that moment, then the view is applied.

    **Phases.** The methods that plan need the run's phase graph. It is the one `PhaseGraph` among the rollout's
    resources, or the one given as `graph`.

    Besides the errors named at each method, they raise `NotFound` for a rollout or an attempt that does not exist,
    `Invalid` for what has the wrong form, and `Unsupported` where a store has no runs.

    Args:
        backend: the name of the store's class, for the error.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    # -- what a run says ---------------------------------------------------------------------------------------------

    async def append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[RunEvent], *, key: str | None = None
    ) -> list[int]:
        """Append what a run says, all or nothing, and return the version of each event.

        Each is a sign of life of the attempt and makes a preparing one running, as a span does. Those of an attempt
        that was superseded are kept, and change nothing.

        Args:
            rollout_id: whose run.
            attempt_id: which attempt says it.
            events: what it says, in order; one whose kind is a phase kind must have a phase.
            key: of the call: repeated with the same key, it appends nothing and returns the versions of the first time.

        Raises:
            Conflict: the key stands for another call of this rollout.
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
        """Return what a run said, in the order it was recorded: its run events, its phases, its spans with a node.

        Args:
            rollout_id: whose run.
            view: which of its attempts count; see the class.
            after: only what comes after this version.
            limit: at most so many; -1 for all.
            scope: only what is of this scope, spelled as the log spells it.
            node_id: only what is of this node.
            kind: only what is of this kind.
            bodies: also messages, prompts, responses and errors, which take time to read.
            as_at: as the run stood at this moment of the log.
            at: as the run stood after this one of its events.
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
        """Return what `query_events` returns for these arguments."""
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
        """Return a view as nodes, one for each node of each scope, ready to draw.

        A node is failed when the last thing it reported is an error, completed when it has a result, else running. What
        ran under another node appears as an edge only. Works without a phase graph too.
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
        """Yield a view of a run as frames: what it holds, and then what becomes of it, without end.

        `apply_frames` makes a view's events of them, whether the reader began with nothing or goes on from where it
        stood: what happened meanwhile, re-runs included, is told. Everything told is committed. A server that goes away
        and comes back is gone on with. Break out of the loop to end it.

        Args:
            rollout_id: whose run.
            after: the `seq` of the last frame the reader has dealt with; 0 for one that holds nothing.
            until: the `until` of that frame.
            view: which of its attempts count; see the class.
            bodies: also messages, prompts, responses and errors of events, which take time to read.

        Raises:
            Invalid: also for an `after` beyond the run's last event: the run is not the one that the reader saw.
        """
        raise Unsupported("runs.follow", self.backend)

    # -- what it leaves ----------------------------------------------------------------------------------------------

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
        """Keep the state of a scope at the end of a phase, to start from again.

        A checkpoint that the phase graph declares keeps the keys it declares, and only if its condition holds; if not,
        that is recorded with its reason and None is returned.

        Args:
            rollout_id: whose run.
            attempt_id: which attempt saves it.
            scope: whose state; spelled as its kind of scope says.
            name: of the checkpoint.
            state: any JSON object; None where `external` says where it lies.
            after_phase: the phase that has ended; the one that declares the checkpoint, if not given.
            external: a pointer to a state that is kept elsewhere.
            key: of the call, as for `append_events`.
            graph: the phase graph, if not among the rollout's resources; none at all is fine.
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
        """Return the latest checkpoint of a scope, spelled as the log spells it, that a view holds; or None.

        With `search="group"`, where the run has none: the latest one in the head of any run of the same group whose
        input has an equal `date`. The snapshot says whose it is.
        """
        raise Unsupported("runs.get_checkpoint", self.backend)

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        """Return a checkpoint with its state, whichever views hold it.

        Raises:
            NotFound: the run has none of this id.
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
        """Return the checkpoints of a view, in the order they were saved."""
        query = CheckpointQuery.of(
            scope=scope,
            name=name,
            view=view,
            as_at=as_at,
            at=at,
        )
        return await self.find_checkpoints(rollout_id, query)

    async def find_checkpoints(self, rollout_id: str, query: CheckpointQuery) -> list[CheckpointRef]:
        """Return what `list_checkpoints` returns for these arguments."""
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
        """Keep something that a run made. Equal content is stored once, however often it is saved."""
        raise Unsupported("runs.save_artifact", self.backend)

    async def retract_artifact(
        self, rollout_id: str, artifact_id: str, *, reason: str | None = None, key: str | None = None
    ) -> ArtifactRef:
        """Take an artefact back: it is not found any more, though it stays in the log. Twice is fine."""
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
        """Return the artefacts of a view that were not retracted, in the order they were saved.

        With a limit, only the last so many.
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
        """Return what `query_artifacts` returns for these arguments."""
        raise Unsupported("runs.query_artifacts", self.backend)

    async def scope_history(
        self, scope: str, *, name: str | None = None, limit: int = 100, as_at: AsAt | None = None
    ) -> list[ArtifactRef]:
        """Return what all runs made for a scope, newest first: every version, retracted and replaced ones too."""
        raise Unsupported("runs.scope_history", self.backend)

    # -- running a part again ----------------------------------------------------------------------------------------

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
        """Return what `fork` would do, and do nothing.

        Args:
            rollout_id: whose run.
            node: the node to run again; its phase is what starts. Give this or `phase`.
            phase: the phase to start with. It and all phases of the scope that come after it run again.
            scopes: for what; may be left out where the phase's kind of scope is fixed.
            base: what to build on: `head`, or an attempt: `attempt:3`.
            on_missing: where the phase needs a checkpoint that a scope does not have: refuse, or run all of the
                scopes again and say so in `degraded`.
            cascade: whether the phases of other scopes that depend on these run again, too.
            graph: the phase graph, if not among the rollout's resources.

        Raises:
            Invalid: no such phase, node or scope; a node of several phases; no phase graph.
            CheckpointMissing: with `on_missing="error"`.
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
        """Start an attempt that runs a phase of some scopes again, on top of what is there.

        What it replaces is hidden from its view, and with that from the head's. The caller runs it: from the plan's
        `entry`, on the state of the plan's checkpoints with `state_patch` laid over; then the cascade.

        Args:
            rollout_id: whose run.
            node: as for `plan_fork`, and so are the others that are there.
            phase: as there.
            scopes: as there; several make one attempt and one cascade.
            base: as there.
            on_missing: as there.
            cascade: as there.
            state_patch: keys to set in the state it starts from; the checkpoint itself stays as it is.
            on_active: where an attempt is still at work: refuse, or end it as failed and go on.
            expected_head: refuse if the head is another attempt than this.
            request_id: of the request: asked again with the same one, it starts nothing and returns the first result.
            reason: why, for the log.
            confirm_side_effects: run phases with unsafe side effects again.
            allow_graph_change: start from checkpoints that were taken under another phase graph.
            worker_id: who runs it.
            graph: as there.

        Raises:
            Invalid: as for `plan_fork`.
            AttemptActive: an attempt is at work, with `on_active="reject"`.
            HeadMoved: the head is not `expected_head`.
            CheckpointMissing: as for `plan_fork`.
            GraphChanged: without `allow_graph_change`.
            SideEffectsUnconfirmed: without `confirm_side_effects`.
            Conflict: the request id stands for another request.
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
        """Start an attempt that goes on where one that died has stopped.

        Of each scope, the phases that have completed stay, and what came after them is hidden and runs again, from the
        last checkpoint that its first phase can start from. Scopes that are done are left alone; where all are, as when
        it died before the next ones began, nothing runs again.

        Raises:
            Invalid: the attempt has succeeded and nothing of it is unfinished, or there is no phase graph.
            AttemptActive: the attempt is still at work.
            SideEffectsUnconfirmed: a phase with unsafe side effects had begun and would run again.
        """
        raise Unsupported("runs.resume", self.backend)

    async def move_head(
        self, rollout_id: str, attempt_id: str, *, reason: str | None = None, request_id: str | None = None
    ) -> Rollout:
        """Make another attempt's view the run's: undo a re-run, or redo it. Neither status nor queue change."""
        raise Unsupported("runs.move_head", self.backend)

    # -- looking back ------------------------------------------------------------------------------------------------

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        """Return the attempts of a run, in their order, each with what it builds on."""
        raise Unsupported("runs.list_lineage", self.backend)

    async def compare_attempts(self, rollout_id: str, a: int, b: int) -> AttemptDiff:
        """Return what changed from the view of attempt `a` to that of attempt `b`, node by node.

        Executions of a node are told apart by their order. What `b` inherits is kept by identity, whatever it says.
        """
        raise Unsupported("runs.compare_attempts", self.backend)


class SyncRuns(Blocking[StoreRuns]):
    """Runs; see `StoreRuns`."""

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
