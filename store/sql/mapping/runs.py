"""Conversion of database rows and payload to the models of runs.

A run is the execution of a rollout, in one or more attempts. A fork starts an attempt that builds on an earlier one.
The head is the attempt that represents the current state of the run. A body is the stored payload of an event; texts
that are long are stored outside the body, under their hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from store.db.data_blocks import json_of
from store.db.dialect import Row
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


def view_event(row: Row) -> ViewEvent:
    """Convert a row of `run_views.events` to an event without payload."""
    version, _, kind, node_id, scope, parent, phase, _, node_exec, status, _, metrics, _, response, attempt = row[:15]
    return ViewEvent(version, attempt, kind, scope, node_id, parent, phase, node_exec, status, _json(metrics), response)


def event(rollout_id: str, row: Row, body: Json | None, texts: Mapping[str, str]) -> RunEventRow:
    """Convert a row of `run_views.events` to an event with payload.

    Args:
        rollout_id: the id of the run.
        row: the row.
        body: the body of the event; None if there is none or if payload was not requested.
        texts: long prompts and responses of this and other events, by their hashes.
    """
    version, position, kind, node_id, scope, parent_node_id, phase, agent, node_exec, status, service, metrics = row[
        :12
    ]
    prompt_sha256, response_sha256, attempt, attempt_id, rerun_seq, type_, at = row[12:]
    body = body or {}
    is_span = type_ == SpanRecorded.type
    said: dict[str, Any] = {} if is_span else {name: body.get(name) for name in _TEXTS}
    for name, digest in (("prompt", prompt_sha256), ("response", response_sha256)):
        if digest in texts:
            said[name] = texts[digest]
    return RunEventRow.model_construct(
        rollout_id=rollout_id,
        version=version,
        position=position,
        at=at / 1_000_000,
        attempt=attempt,
        attempt_id=attempt_id,
        rerun_seq=rerun_seq,
        source="span" if is_span else "phase" if type_.startswith("phase.") else "event",
        kind=kind,
        node_id=node_id,
        scope=scope,
        parent_node_id=parent_node_id,
        phase=phase,
        agent=agent,
        node_exec=node_exec,
        status=status,
        service=service,
        metrics=_json(metrics),
        prompt_sha256=prompt_sha256,
        response_sha256=response_sha256,
        **said,
        extra={name: value for name, value in body.items() if is_span or name not in _TEXTS} or None,
    )


def _checkpoint_fields(rollout_id: str, row: Row) -> Json:
    version, position, checkpoint_id, scope, name, after_phase, parent_id, graph, external, attempt = row[:10]
    return {
        "checkpoint_id": checkpoint_id,
        "rollout_id": rollout_id,
        "version": version,
        "position": position,
        "at": row[-1] / 1_000_000,
        "attempt": attempt,
        "scope": scope,
        "name": name,
        "after_phase": after_phase,
        "parent_id": parent_id,
        "graph": graph,
        "external": _json(external),
    }


def checkpoint(rollout_id: str, row: Row) -> CheckpointRef:
    """Convert a row of `run_views.checkpoints` to a checkpoint without its state."""
    return CheckpointRef.model_construct(**_checkpoint_fields(rollout_id, row))


def snapshot(rollout_id: str, row: Row, body: Json | None) -> Snapshot:
    """Convert a row of `run_views.checkpoints`, and the body with the state, to a checkpoint with its state."""
    state = None if body is None else body.get("state")
    return Snapshot.model_construct(**_checkpoint_fields(rollout_id, row), state=state)


def artifact(rollout_id: str, group_id: str | None, row: Row, body: Json | None) -> Artifact:
    """Convert a row of `run_views.artifacts`, and the body with the content, to an artifact with its content."""
    version, position, artifact_id, scope, name, phase, media_type, _, attempt = row[:9]
    return Artifact.model_construct(
        artifact_id=artifact_id,
        rollout_id=rollout_id,
        group_id=group_id,
        version=version,
        position=position,
        at=row[-1] / 1_000_000,
        attempt=attempt,
        scope=scope,
        name=name,
        phase=phase,
        media_type=media_type,
        retracted=False,
        content=None if body is None else body.get("content"),
    )


def made(row: Row, until: int) -> ArtifactRef:
    """Convert a row of `queries.runs.made_for` to an artifact. A retraction after the position `until` is ignored."""
    artifact_id, rollout_id, group_id, version, position, at, attempt, scope, name, phase, media_type, retracted = row
    return ArtifactRef.model_construct(
        artifact_id=artifact_id,
        rollout_id=rollout_id,
        group_id=group_id,
        version=version,
        position=position,
        at=at / 1_000_000,
        attempt=attempt,
        scope=scope,
        name=name,
        phase=phase,
        media_type=media_type,
        retracted=retracted is not None and retracted <= until,
    )


def fork(row: Row, body: Json | None, checkpoints: Mapping[str, CheckpointRef]) -> Fork:
    """Convert a row of `queries.runs.forks`, the body of its event, and the run's checkpoints by id to a fork."""
    data, body = json_of(row[2]), body or {}
    return Fork(
        kind=data["kind"],
        base=data["base"],
        base_version=data["base_version"],
        scopes=data.get("scopes") or [],
        phase=data.get("phase"),
        entry=data.get("entry"),
        cascade=data.get("cascade") or [],
        checkpoints=[checkpoints[each] for each in data.get("checkpoints") or () if each in checkpoints],
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
    attempts: Sequence[Row]
    """Rows of `queries.runs.attempts`."""
    forks: Mapping[int, Fork]
    """The forks, by the version (the number in the run) of the event that recorded the fork."""
    event_counts: Mapping[int, int]
    """The number of run events of each attempt, by the attempt's number."""

    def nodes(self) -> list[AttemptNode]:
        """Return one `AttemptNode` per attempt."""
        return [self._node(row) for row in self.attempts]

    def _node(self, row: Row) -> AttemptNode:
        sequence_id, attempt_id, status, start_at, rerun_seq, base, fork_version, via = row
        its_fork = self.forks.get(fork_version)
        kind: AttemptKind = "first" if sequence_id == 1 else "retry"
        if via == "fork" and its_fork is not None:
            kind = its_fork.kind
        return AttemptNode(
            sequence_id=sequence_id,
            attempt_id=attempt_id,
            status=status,
            start_time=start_at / 1_000_000,
            rerun_seq=rerun_seq,
            kind=kind,
            base=base,
            fork=its_fork,
            is_head=sequence_id == self.head,
            events=self.event_counts.get(sequence_id, 0),
        )
