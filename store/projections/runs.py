"""Rows of the tables of runs, computed from events.

The same functions compute the rows that a commit writes, that `rebuild` restores, and that `verify` compares.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import orjson
from sqlalchemy import Table

from store.db.dialect import Row
from store.db.tables import core as core_tables
from store.domain.events import Event, Fact, RewardScored, RolloutAnnotated, RolloutScanned, SpanRecorded
from store.domain.rollout import RolloutState
from store.domain.run_events import (
    ArtifactRetracted,
    ArtifactSaved,
    AttemptForked,
    CheckpointRejected,
    CheckpointSaved,
    HeadMoved,
    PhaseCompleted,
    PhaseSkipped,
    PhaseStarted,
    RunEvent,
)

APPEND_KEY = "events"
"""The `kind` in `run_keys` of a key whose call appended run events.

For other calls, `kind` is the type of the event.
"""

_SPAN_STATUSES = {"OK": "success", "ERROR": "error"}
_RETRACTED = -1


def has_run_rows(fact: Fact) -> bool:
    """Return whether an event with this fact may have rows in the tables of runs.

    Most events of a rollout have no such rows.
    """
    return fact.node_id is not None if isinstance(fact, SpanRecorded) else type(fact) in _ADDERS


@dataclass(slots=True)
class RunRows:
    """The rows that are computed from several events, in the order of the events."""

    run_events: list[Row] = field(default_factory=list[Row])
    forks: list[Row] = field(default_factory=list[Row])
    fork_masks: list[Row] = field(default_factory=list[Row])
    checkpoints: list[Row] = field(default_factory=list[Row])
    artifacts: dict[tuple[str, str], Row] = field(default_factory=dict[tuple[str, str], Row])
    """The rows of artifacts by rollout id and artifact id."""
    retracted: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Retractions of artifacts whose rows are not in `artifacts`, because earlier commits saved them.

    The keys are rollout id and artifact id. The values are the versions of the events that retracted the artifacts.
    """
    run_keys: dict[tuple[str, str], Row] = field(default_factory=dict[tuple[str, str], Row])
    """The rows of `run_keys` by rollout id and key."""
    notes: list[Row] = field(default_factory=list[Row])
    scores: list[Row] = field(default_factory=list[Row])
    scans: list[Row] = field(default_factory=list[Row])

    def add(self, event: Event, fact: Fact, state: RolloutState) -> None:
        """Add the rows of an event.

        `has_run_rows` must be True for the event, and `state` may already include later events.
        """
        _ADDERS[type(fact)](self, event, fact, state)

    def written(self) -> Iterator[tuple[Table, list[Row]]]:
        """Yield each table that has rows, with its rows in any order."""
        for table, rows in (
            (core_tables.run_events, self.run_events),
            (core_tables.forks, self.forks),
            (core_tables.fork_masks, self.fork_masks),
            (core_tables.checkpoints, self.checkpoints),
            (core_tables.artifacts, list(self.artifacts.values())),
            (core_tables.run_keys, list(self.run_keys.values())),
            (core_tables.notes, self.notes),
            (core_tables.scores, self.scores),
            (core_tables.scans, self.scans),
        ):
            if rows:
                yield table, rows


def _note_key(
    rows: RunRows, event: Event, state: RolloutState, key: str | None, kind: str, attempt_id: str | None
) -> None:
    if key is None:
        return
    place = (state.rollout_id, key)
    earlier = rows.run_keys.get(place)
    # The versions of a call's events are consecutive, so the row contains only the first and the last version.
    first = event.version if earlier is None else earlier[3]
    rows.run_keys[place] = (*place, kind, first, event.version, attempt_id)


def _place(event: Event, state: RolloutState, attempt_id: str) -> tuple[str, int, int, int]:
    return state.rollout_id, event.version, event.position, state.attempts[attempt_id].sequence_id


def _span(rows: RunRows, event: Event, fact: SpanRecorded, state: RolloutState) -> None:
    latency = None if fact.start is None or fact.end is None else round((fact.end - fact.start) * 1000, 3)
    values = {"latency_ms": latency, "model": fact.model, "tokens_in": fact.tokens_in, "tokens_out": fact.tokens_out}
    metrics = {name: value for name, value in values.items() if value is not None}
    row = (
        *_place(event, state, fact.attempt_id),
        fact.kind or "result",
        fact.node_id,
        fact.scope,
        fact.parent_node_id,
        fact.phase,
        None,
        fact.node_exec,
        _SPAN_STATUSES.get(fact.status_code),
        None,
        _text(metrics) if metrics else None,
        None,
        None,
    )
    rows.run_events.append(row)


def _run_event(rows: RunRows, event: Event, fact: RunEvent, state: RolloutState) -> None:
    row = (
        *_place(event, state, fact.attempt_id),
        fact.kind,
        fact.node_id,
        fact.scope,
        fact.parent_node_id,
        fact.phase,
        fact.agent,
        fact.node_exec,
        fact.status,
        fact.service,
        _text(fact.metrics),
        fact.prompt_sha256,
        fact.response_sha256,
    )
    rows.run_events.append(row)
    _note_key(rows, event, state, fact.key, APPEND_KEY, fact.attempt_id)


def _phase(
    rows: RunRows, event: Event, fact: PhaseStarted | PhaseCompleted | PhaseSkipped, state: RolloutState
) -> None:
    place = _place(event, state, fact.attempt_id)
    rows.run_events.append((*place, fact.type, None, fact.scope, None, fact.phase, *[None] * 7))
    _note_key(rows, event, state, fact.key, APPEND_KEY, fact.attempt_id)


def _checkpoint(rows: RunRows, event: Event, fact: CheckpointSaved, state: RolloutState) -> None:
    row = (
        *_place(event, state, fact.attempt_id),
        fact.checkpoint_id,
        fact.scope,
        fact.name,
        fact.after_phase,
        fact.parent_id,
        fact.graph,
        _text(fact.external),
    )
    rows.checkpoints.append(row)
    _note_key(rows, event, state, fact.key, fact.type, fact.attempt_id)


def _artifact(rows: RunRows, event: Event, fact: ArtifactSaved, state: RolloutState) -> None:
    place = _place(event, state, fact.attempt_id)
    row = (*place, fact.artifact_id, fact.scope, fact.name, fact.phase, fact.media_type, None)
    rows.artifacts[state.rollout_id, fact.artifact_id] = row
    _note_key(rows, event, state, fact.key, fact.type, fact.attempt_id)


def _retracted(rows: RunRows, event: Event, fact: ArtifactRetracted, state: RolloutState) -> None:
    key = (state.rollout_id, fact.artifact_id)
    saved = rows.artifacts.get(key)
    if saved is None:
        rows.retracted[key] = event.version
    else:
        rows.artifacts[key] = (*saved[:_RETRACTED], event.version)
    _note_key(rows, event, state, fact.key, fact.type, None)


def _forked(rows: RunRows, event: Event, fact: AttemptForked, state: RolloutState) -> None:
    row = (
        *_place(event, state, fact.attempt_id),
        fact.kind,
        fact.base,
        fact.base_version,
        state.attempts[fact.attempt_id].rerun_seq,
        fact.phase,
        fact.entry,
        _text(fact.scopes),
        _text(fact.checkpoints),
        _text(fact.cascade),
        fact.graph,
        _text(fact.degraded),
        fact.request_id,
    )
    rows.forks.append(row)
    masks = (row for mask in fact.masks for row in _multiplied(mask))
    rows.fork_masks.extend((state.rollout_id, event.version, ordinal, *mask) for ordinal, mask in enumerate(masks))
    _note_key(rows, event, state, fact.request_id, fact.type, fact.attempt_id)


def _multiplied(mask: dict[str, Any]) -> Iterator[tuple[str | None, str | None, str | None, int]]:
    scopes = [None] if mask.get("scopes") is None else mask["scopes"]
    nodes, phases, children = mask.get("nodes"), mask.get("phases"), int(bool(mask.get("children")))
    if nodes is None and phases is None:
        yield from ((scope, None, None, 0) for scope in scopes)
        return
    yield from ((scope, node, None, children) for scope, node in product(scopes, nodes or ()))
    yield from ((scope, None, phase, 0) for scope, phase in product(scopes, phases or ()))


def _annotated(rows: RunRows, event: Event, fact: RolloutAnnotated, state: RolloutState) -> None:
    if fact.noted:
        rows.notes.append((state.rollout_id, event.version, event.position))


def _scored(rows: RunRows, event: Event, fact: RewardScored, state: RolloutState) -> None:
    row = (
        state.rollout_id,
        event.position,
        fact.attempt_id,
        fact.name,
        fact.version,
        fact.value,
        _text(fact.dimensions),
        _text(fact.error),
        fact.code_sha256,
    )
    rows.scores.append(row)


def _scanned(rows: RunRows, event: Event, fact: RolloutScanned, state: RolloutState) -> None:
    is_match = None if fact.is_match is None else int(fact.is_match)
    place = (state.rollout_id, event.position, fact.attempt_id)
    rows.scans.append((*place, fact.scanner, fact.version, is_match, fact.error))


def _text(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


_ADDERS: dict[type[Fact], Callable[[RunRows, Event, Any, RolloutState], None]] = {
    SpanRecorded: _span,
    RunEvent: _run_event,
    PhaseStarted: _phase,
    PhaseCompleted: _phase,
    PhaseSkipped: _phase,
    CheckpointSaved: _checkpoint,
    CheckpointRejected: lambda rows, event, fact, state: _note_key(
        rows, event, state, fact.key, fact.type, fact.attempt_id
    ),
    ArtifactSaved: _artifact,
    ArtifactRetracted: _retracted,
    AttemptForked: _forked,
    HeadMoved: lambda rows, event, fact, state: _note_key(rows, event, state, fact.request_id, fact.type, None),
    RolloutAnnotated: _annotated,
    RewardScored: _scored,
    RolloutScanned: _scanned,
}
