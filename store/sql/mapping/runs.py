"""Conversion of database rows and payload to the models of runs. Long texts are stored as blobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow
from store.domain.events import Json, SpanRecorded
from store.models.phases import Mask
from store.models.runs import (
    Artifact,
    ArtifactRef,
    AttemptKind,
    AttemptNode,
    CheckpointRef,
    Fork,
    RunEventRow,
    Snapshot,
)
from store.planning.rows import ViewEvent

_TEXTS = ("message", "prompt", "response", "error")


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def view_event(row: NamedRow) -> ViewEvent:
    """Convert a row of `run_views.events` to an event without payload."""
    return ViewEvent(
        row.version,
        row.attempt,
        row.kind,
        row.scope,
        row.node_id,
        row.parent_node_id,
        row.phase,
        row.node_exec,
        row.status,
        _json(row.metrics),
        row.response_sha256,
    )


def event(rollout_id: str, row: NamedRow, body: Json | None, texts: Mapping[str, str]) -> RunEventRow:
    """Convert a row of `run_views.events` to an event with payload.

    Args:
        rollout_id: the id of the run.
        row: the row.
        body: the body of the event; None if there is none or if payload was not requested.
        texts: long prompts and responses of this and other events, by their hashes.
    """
    body = body or {}
    is_span = row.type == SpanRecorded.type
    texts_of_event: dict[str, Any] = {} if is_span else {name: body.get(name) for name in _TEXTS}
    for name, digest in (("prompt", row.prompt_sha256), ("response", row.response_sha256)):
        if digest in texts:
            texts_of_event[name] = texts[digest]
    return RunEventRow.model_construct(
        rollout_id=rollout_id,
        version=row.version,
        position=row.position,
        at=row.at / 1_000_000,
        attempt=row.attempt,
        attempt_id=row.attempt_id,
        rerun_seq=row.rerun_seq,
        source="span" if is_span else "phase" if row.type.startswith("phase.") else "event",
        kind=row.kind,
        node_id=row.node_id,
        scope=row.scope,
        parent_node_id=row.parent_node_id,
        phase=row.phase,
        agent=row.agent,
        node_exec=row.node_exec,
        status=row.status,
        service=row.service,
        metrics=_json(row.metrics),
        prompt_sha256=row.prompt_sha256,
        response_sha256=row.response_sha256,
        **texts_of_event,
        extra={name: value for name, value in body.items() if is_span or name not in _TEXTS} or None,
    )


def _checkpoint_fields(rollout_id: str, row: NamedRow) -> Json:
    return {
        "checkpoint_id": row.checkpoint_id,
        "rollout_id": rollout_id,
        "version": row.version,
        "position": row.position,
        "at": row.at / 1_000_000,
        "attempt": row.attempt,
        "scope": row.scope,
        "name": row.name,
        "after_phase": row.after_phase,
        "parent_id": row.parent_id,
        "graph": row.graph,
        "external": _json(row.external),
    }


def checkpoint(rollout_id: str, row: NamedRow) -> CheckpointRef:
    """Convert a row of `run_views.checkpoints` to a checkpoint without its state."""
    return CheckpointRef.model_construct(**_checkpoint_fields(rollout_id, row))


def snapshot(rollout_id: str, row: NamedRow, body: Json | None) -> Snapshot:
    """Convert a row of `run_views.checkpoints`, and the body with the state, to a checkpoint with its state."""
    state = None if body is None else body.get("state")
    return Snapshot.model_construct(**_checkpoint_fields(rollout_id, row), state=state)


def artifact(rollout_id: str, group_id: str | None, row: NamedRow, body: Json | None) -> Artifact:
    """Convert a row of `run_views.artifacts`, and the body with the content, to an artifact with its content."""
    return Artifact.model_construct(
        artifact_id=row.artifact_id,
        rollout_id=rollout_id,
        group_id=group_id,
        version=row.version,
        position=row.position,
        at=row.at / 1_000_000,
        attempt=row.attempt,
        scope=row.scope,
        name=row.name,
        phase=row.phase,
        media_type=row.media_type,
        retracted=False,
        content=None if body is None else body.get("content"),
    )


def artifact_ref(row: NamedRow, until: int) -> ArtifactRef:
    """Convert a row of `queries.runs.made_for` to an artifact. A retraction after the position `until` is ignored."""
    return ArtifactRef.model_construct(
        artifact_id=row.artifact_id,
        rollout_id=row.rollout_id,
        group_id=row.group_id,
        version=row.version,
        position=row.position,
        at=row.at / 1_000_000,
        attempt=row.attempt,
        scope=row.scope,
        name=row.name,
        phase=row.phase,
        media_type=row.media_type,
        retracted=row.retracted_position is not None and row.retracted_position <= until,
    )


def fork(row: NamedRow, body: Json | None, checkpoints: Mapping[str, CheckpointRef]) -> Fork:
    """Convert a row of `queries.runs.forks`, the body of its event, and the run's checkpoints by id to a fork."""
    data, body = json_of(row.data), body or {}
    return Fork(
        kind=data["kind"],
        base=data["base"],
        base_version=data["base_version"],
        scopes=data.get("scopes") or [],
        phase=data.get("phase"),
        entry=data.get("entry"),
        cascade=data.get("cascade") or [],
        checkpoints=[checkpoints[name] for name in data.get("checkpoints") or () if name in checkpoints],
        masks=[Mask.model_validate(mask) for mask in data["masks"]],
        graph=data.get("graph"),
        degraded=data.get("degraded"),
        state_patch=body.get("state_patch"),
        reason=body.get("reason"),
    )


@dataclass(frozen=True, slots=True)
class RunAttempts:
    """The attempts of a run, with their forks and their numbers of events."""

    head: int | None
    """The number (`sequence_id`) of the head; None before the first attempt."""
    attempts: Sequence[NamedRow]
    """Rows of `queries.runs.attempts`."""
    forks: Mapping[int, Fork]
    """The forks, by the version (the number in the run) of the event that recorded the fork."""
    event_counts: Mapping[int, int]
    """The number of run events of each attempt, by the attempt's number."""

    def nodes(self) -> list[AttemptNode]:
        """Return one `AttemptNode` per attempt."""
        return [self._node(row) for row in self.attempts]

    def _node(self, row: NamedRow) -> AttemptNode:
        fork_of_attempt = self.forks.get(row.fork_version)
        kind: AttemptKind = "first" if row.sequence_id == 1 else "retry"
        if row.via == "fork" and fork_of_attempt is not None:
            kind = fork_of_attempt.kind
        return AttemptNode(
            sequence_id=row.sequence_id,
            attempt_id=row.attempt_id,
            status=row.status,
            start_time=row.start_at / 1_000_000,
            rerun_seq=row.rerun_seq,
            kind=kind,
            base=row.base,
            fork=fork_of_attempt,
            is_head=row.sequence_id == self.head,
            events=self.event_counts.get(row.sequence_id, 0),
        )
