"""What a SQL store writes of runs: their events, checkpoints and artefacts, forks, and the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from store.db.queries import run_refs
from store.domain.decide_runs import GroundMoved, Told
from store.domain.idempotency import Repeat
from store.domain.run_commands import TellRun
from store.models import AttemptedRollout, PhaseGraph, Rollout
from store.models.runs import ArtifactRef, CheckpointRef, ForkPlan, RunEvent
from store.planning import saving
from store.sql import replies
from store.sql.commands import runs as intake_runs
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.queries import SQLReads
from store.sql.runs import SQLRunReads
from store.validation import arguments


class SQLRunWrites(SQLRunReads):
    """The methods that are one command for the writer each."""

    async def append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[RunEvent], *, key: str | None = None
    ) -> list[int]:
        given = arguments.several(events, "events")
        if not given:
            return []
        told = await self._tell(intake_runs.append(rollout_id, attempt_id, given, key))
        return told.versions

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
        declared = await self._phase_graph(rollout_id, graph)
        taken = saving.taken(declared, scope=scope, name=name, state=state, after_phase=after_phase)
        parent_id = await self.core.read(
            lambda session: run_refs.last_checkpoint(self.core.dialect, session, rollout_id, taken.scope, name)
        )
        command = intake_runs.checkpoint(
            rollout_id, attempt_id, name=name, taken=taken, parent_id=parent_id, external=external, key=key
        )
        told = await self._tell(command)
        if told.kind != "checkpoint.saved":
            return None
        fields = await self.core.read(
            lambda session: run_refs.checkpoint(self.core.dialect, session, rollout_id, told.first)
        )
        return CheckpointRef(**fields)

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
        command = intake_runs.artifact(
            rollout_id,
            attempt_id,
            scope=scope,
            name=name,
            content=content,
            phase=phase,
            media_type=media_type,
            key=key,
        )
        told = await self._tell(command)
        return await self._artifact_ref(rollout_id, told.first)

    async def retract_artifact(
        self, rollout_id: str, artifact_id: str, *, reason: str | None = None, key: str | None = None
    ) -> ArtifactRef:
        saved: int = await self.core.call(intake_runs.retract(rollout_id, artifact_id, reason, key))
        return await self._artifact_ref(rollout_id, saved)

    async def _tell(self, command: TellRun) -> Told:
        answer: Told | Repeat = await self.core.call(command)
        return replies.told(answer) if isinstance(answer, Repeat) else answer

    async def _artifact_ref(self, rollout_id: str, version: int) -> ArtifactRef:
        fields = await self.core.read(
            lambda session: run_refs.artifact(self.core.dialect, session, rollout_id, version)
        )
        return ArtifactRef(**fields)

    async def move_head(
        self, rollout_id: str, attempt_id: str, *, reason: str | None = None, request_id: str | None = None
    ) -> Rollout:
        answer = await self.core.swept_call(intake_runs.move_head(rollout_id, attempt_id, reason, request_id))
        return (
            await replies.rollout(SQLReads(self.core), answer)
            if isinstance(answer, Repeat)
            else rollout_mapping.rollout_of_view(answer)
        )

    async def _fork(
        self,
        plan: ForkPlan,
        *,
        request_id: str | None = None,
        reason: str | None = None,
        state_patch: Mapping[str, Any] | None = None,
        confirmed: bool = False,
        supersede: bool = False,
        worker_id: str | None = None,
    ) -> AttemptedRollout | None:
        """Start the attempt of a plan; None where what it rests on has changed, and it has to be made anew.

        Raises:
            AttemptActive: an attempt is at work, and not to be superseded.
            Conflict: the request id stands for another call.
        """
        command = intake_runs.fork(
            plan,
            request_id=request_id,
            reason=reason,
            state_patch=state_patch,
            confirmed=confirmed,
            supersede=supersede,
            worker_id=worker_id,
        )
        answer = await self.core.swept_call(command)
        if isinstance(answer, GroundMoved):
            return None
        started = rollout_mapping.rollout_of_view(answer)
        assert isinstance(started, AttemptedRollout)  # a fork starts an attempt
        return started
