"""Replay of calls that a runner recorded while the store was unavailable. They are made once the store is available."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from store.interface.store import Store
from store.models import (
    ArtifactRef,
    AttemptedRollout,
    AttemptError,
    PhaseGraph,
    RunEvent,
    Span,
)
from store.run_folders.recorded import RecordedCall
from store.training.tracing.recorder import record


@dataclass(frozen=True, slots=True)
class Replay:
    """Replay of the recorded calls of an attempt."""

    store: Store
    rollout: AttemptedRollout

    async def make(self, call: RecordedCall) -> Any:
        """Make a recorded call. If the store has executed the call before, the repetition has no effect."""
        runs, given = self.store.runs, dict(call.arguments)
        ids = self.rollout.rollout_id, self.rollout.attempt.attempt_id
        match call.method:
            case "append_events":
                events = [RunEvent.model_validate(each) for each in given["events"]]
                return await runs.append_events(*ids, events, key=given["key"])
            case "save_checkpoint":
                graph = given.pop("graph")
                given["graph"] = None if graph is None else PhaseGraph.model_validate(graph)
                return await runs.save_checkpoint(*ids, **given)
            case "save_artifact":
                return await runs.save_artifact(*ids, **given)
            case "retract_artifact":
                return await self._retract(given)
            case "record_spans":
                spans = [Span.model_validate(each) for each in given["spans"]]
                return await (record(self.store, spans) if given["number"] else self.store.add_many_spans(spans))
            case "update_attempt":
                return await self._report(given)

    async def _retract(self, given: dict[str, Any]) -> ArtifactRef:
        """Retract an artifact, a named result of a run.

        If the artifact was saved during the outage, its recorded id is provisional. So the call that saved the artifact
        is repeated, and returns the id in the store.
        """
        saved = given.pop("saved")
        if saved is not None:
            ids = self.rollout.rollout_id, self.rollout.attempt.attempt_id
            given["artifact_id"] = (await self.store.runs.save_artifact(*ids, **saved)).artifact_id
        return await self.store.runs.retract_artifact(self.rollout.rollout_id, **given)

    async def _report(self, given: dict[str, Any]) -> None:
        rollout_id, attempt_id = self.rollout.rollout_id, self.rollout.attempt.attempt_id
        # A status update has no idempotency key, and an earlier update may still be on its way to the database. The
        # store executes this heartbeat after the earlier update, so the answer shows whether that update arrived.
        attempt = await self.store.update_attempt(rollout_id, attempt_id, last_heartbeat_time=time.time())
        if attempt.status != given["status"]:
            error = given.pop("error", None)
            more: dict[str, Any] = {} if error is None else {"error": AttemptError.model_validate(error)}
            await self.store.update_attempt(rollout_id, attempt_id, **given, **more)
