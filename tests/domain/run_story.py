"""Short forms of the commands of runs."""

from __future__ import annotations

from typing import Any

from store.domain.body import Body
from store.domain.decide_runs import GroundMoved
from store.domain.run_commands import AppendToRun, Fork, ForkPrecondition, MoveHead, NewRunFact, RetractArtifact
from store.domain.run_events import (
    ArtifactSaved,
    AttemptForked,
    CheckpointRejected,
    CheckpointSaved,
    PhaseCompleted,
    PhaseStarted,
    RunEvent,
)
from store.domain.views import RolloutView
from tests.domain.story import BODY, Story

OTHER_BODY = Body(codec=0, raw_len=3, stored=b"[1]", sha256=b"\x02" * 32)


def events(*nodes: str, attempt_id: str = "a1", rollout_id: str = "r1", key: str | None = None) -> AppendToRun:
    """One result of each node named."""
    items = [
        NewRunFact(RunEvent(attempt_id=attempt_id, kind="result", node_id=node, scope="RIG", key=key, ordinal=n), BODY)
        for n, node in enumerate(nodes)
    ]
    return AppendToRun(rollout_id=rollout_id, attempt_id=attempt_id, kind="events", items=items, key=key)


def append(fact: Any, *, body: Body | None = None, rollout_id: str = "r1", blobs: tuple[Body, ...] = ()) -> AppendToRun:
    """One fact of an attempt."""
    kind = "events" if isinstance(fact, RunEvent | PhaseStarted | PhaseCompleted) else fact.type
    item = NewRunFact(fact, body, list(blobs))
    return AppendToRun(rollout_id=rollout_id, attempt_id=fact.attempt_id, kind=kind, items=[item], key=fact.key)


def phase(name: str = "risk", *, attempt_id: str = "a1") -> AppendToRun:
    return append(PhaseStarted(attempt_id=attempt_id, phase=name, scope="RIG"))


def checkpoint(
    checkpoint_id: str = "c1", *, attempt_id: str = "a1", key: str | None = None, body: Body = BODY
) -> AppendToRun:
    fact = CheckpointSaved(attempt_id=attempt_id, checkpoint_id=checkpoint_id, name="done", scope="RIG", key=key)
    return append(fact, body=body)


def rejected(*, attempt_id: str = "a1", key: str | None = None) -> AppendToRun:
    return append(CheckpointRejected(attempt_id=attempt_id, name="done", reason="it is empty", scope="RIG", key=key))


def artifact(
    artifact_id: str = "x1", *, attempt_id: str = "a1", key: str | None = None, body: Body = BODY
) -> AppendToRun:
    fact = ArtifactSaved(attempt_id=attempt_id, artifact_id=artifact_id, name="report", scope="RIG", key=key)
    return append(fact, body=body)


def retract(artifact_id: str = "x1", *, key: str | None = None) -> RetractArtifact:
    return RetractArtifact(rollout_id="r1", artifact_id=artifact_id, reason="wrong", key=key)


def move_head(attempt_id: str, request_id: str | None = None) -> MoveHead:
    return MoveHead(rollout_id="r1", attempt_id=attempt_id, request_id=request_id, body=None)


def fork(
    story: Story,
    attempt_id: str,
    *,
    base: int = 1,
    kind: str = "rerun",
    supersede: bool = False,
    request_id: str | None = None,
    worker_id: str | None = None,
    ground: ForkPrecondition | None = None,
) -> RolloutView | GroundMoved:
    """Fork rollout r1 by a plan that was made this moment, or on another ground."""
    state = story.rollout()
    fact = AttemptForked(
        attempt_id=attempt_id,
        kind=kind,
        base=base,
        base_version=state.stream_version,
        masks=[{"scopes": ["RIG"], "nodes": ["Trader"], "phases": None, "children": True}],
        scopes=["RIG"],
        phase="risk",
        entry="Trader",
        request_id=request_id,
    )
    command = Fork(
        rollout_id="r1",
        fact=fact,
        ground=ground or ForkPrecondition(state.head, state.run_version or 0),
        supersede=supersede,
        worker_id=worker_id,
        owner=None,
        body=None,
        metadata=OTHER_BODY,
    )
    return story.tell(command)
