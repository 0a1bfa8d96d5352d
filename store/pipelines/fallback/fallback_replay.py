"""Replay of calls that a runner recorded while the store was unavailable. The store must be available again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from store.interface.calls import perform
from store.interface.numbering import record
from store.interface.store import Store
from store.models import ArtifactRef, AttemptedRollout, Span
from store.models.calls import (
    AppendEventsCall,
    ChangingCall,
    RetractArtifactCall,
    SaveArtifactCall,
    SaveCheckpointCall,
    UpdateAttemptCall,
)
from store.run_folders.recorded import RecordedCall
from store.wire.calls import call_of_json

C = TypeVar("C", bound=ChangingCall[Any])


@dataclass(frozen=True, slots=True)
class Replay:
    """Replay of the recorded calls of an attempt."""

    store: Store
    rollout: AttemptedRollout

    async def make(self, recorded: RecordedCall) -> Any:
        """Make a recorded call. If the store has executed the call before, the repetition has no effect."""
        values = recorded.arguments
        match recorded.method:
            case "append_events":
                return await perform(self.store.runs, self._call(AppendEventsCall, values))
            case "save_checkpoint":
                return await perform(self.store.runs, self._call(SaveCheckpointCall, values))
            case "save_artifact":
                return await perform(self.store.runs, self._call(SaveArtifactCall, values))
            case "retract_artifact":
                return await self._retract(values)
            case "record_spans":
                spans = [Span.model_validate(span) for span in values["spans"]]
                return await (record(self.store, spans) if values["number"] else self.store.add_many_spans(spans))
            case "update_attempt":
                return await self._report(values)

    def _call(self, kind: type[C], values: Mapping[str, Any]) -> C:
        ids = {"rollout_id": self.rollout.rollout_id, "attempt_id": self.rollout.attempt.attempt_id}
        return call_of_json(kind, {**values, **ids})

    async def _retract(self, values: Mapping[str, Any]) -> ArtifactRef:
        """Retract an artifact.

        If the artifact was saved during the outage, its recorded id is provisional. So the call that saved the artifact
        is repeated. It returns the id of the artifact in the store.
        """
        runs, call = self.store.runs, self._call(RetractArtifactCall, values)
        if values["saved"] is None:
            return await perform(runs, call)
        artifact = await perform(runs, self._call(SaveArtifactCall, values["saved"]))
        return await perform(runs, replace(call, artifact_id=artifact.artifact_id))

    async def _report(self, values: Mapping[str, Any]) -> None:
        # A status update has no idempotency key, and an earlier update may still be on its way to the database. The
        # store executes this heartbeat after the earlier update, so the answer shows whether that update arrived.
        call = self._call(UpdateAttemptCall, values)
        attempt = await self.store.update_attempt(call.rollout_id, call.attempt_id, last_heartbeat_time=time.time())
        if attempt.status != call.status:
            await perform(self.store, call)
