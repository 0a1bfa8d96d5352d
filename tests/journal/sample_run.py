"""A run with every kind of content: events, phases, spans, checkpoints, artifacts, a re-run, and a moved head."""

from __future__ import annotations

from store.interface.store import Store
from store.models import AttemptedRollout, PhaseGraph
from store.models.phases import Checkpoint, Phase, ScopeKind, all_of
from store.models.runs import RunEvent
from store.testing.samples import make_span

LONG = "Consider the balance sheet. " * 60
"""Long enough to be a blob."""

GRAPH = PhaseGraph(
    name="desk",
    version="1",
    scope_kinds={"ticker": ScopeKind(normalise="upper"), "book": ScopeKind()},
    phases=[
        Phase(
            name="debate",
            scope_kind="ticker",
            nodes=["Bull", "Bear"],
            produces=[Checkpoint(name="debated", when=all_of("plan"))],
            cascade=["portfolio"],
        ),
        Phase(
            name="risk",
            scope_kind="ticker",
            after=["debate"],
            requires="debated",
            nodes=["Risk Officer", "Trader"],
            cascade=["portfolio"],
        ),
        Phase(name="portfolio", scope_kind="book", nodes=["Decision"]),
    ],
)

NODE = {"agl.node_id": "Trader", "agl.scope": "RIG", "agl.phase": "risk", "gen_ai.usage.input_tokens": 7}


def result(node: str, text: str = "sold", scope: str = "RIG", **more: object) -> RunEvent:
    """Return what a node ends with."""
    return RunEvent(kind="result", node_id=node, scope=scope, response=text, **more)  # pyright: ignore[reportArgumentType] (any field)


async def tell(store: Store, rollout_id: str, attempt_id: str, *nodes: str, key: str | None = None) -> list[int]:
    """Append a long thought and a result of each node."""
    thoughts = [RunEvent(kind="thought", node_id=node, scope="RIG", prompt=LONG + node) for node in nodes]
    return await store.runs.append_events(rollout_id, attempt_id, [*thoughts, *map(result, nodes)], key=key)


async def run(store: Store) -> AttemptedRollout:
    """Play a run to its end, run its risk phase again, and move the head back; return the re-run's attempt."""
    first = await store.start_rollout({"date": "2026-01-02"}, metadata={"rollbook.group": "flow"})
    rollout_id, attempt_id = first.rollout_id, first.attempt.attempt_id
    for phase, nodes in (("debate", ("Bull", "Bear")), ("risk", ("Risk Officer", "Trader"))):
        began, ended = (RunEvent(kind=f"phase.{how}", phase=phase, scope="RIG") for how in ("started", "completed"))
        await store.runs.append_events(rollout_id, attempt_id, [began])
        await tell(store, rollout_id, attempt_id, *nodes, key=f"call {phase}")
        state = {"plan": "buy" if phase == "debate" else "", "long": LONG}
        await store.runs.save_checkpoint(
            rollout_id, attempt_id, scope="RIG", name="debated", state=state, key=f"c {phase}", graph=GRAPH
        )
        await store.runs.append_events(rollout_id, attempt_id, [ended])
    await store.add_span(make_span(first.attempt, 1, attributes=NODE))
    report = await store.runs.save_artifact(rollout_id, attempt_id, scope="RIG", name="report", content=LONG, key="a")
    await store.runs.save_artifact(rollout_id, attempt_id, scope="RIG", name="copy", content=LONG)
    await store.runs.retract_artifact(rollout_id, report.artifact_id, reason="wrong", key="r")
    await store.update_attempt(rollout_id, attempt_id, status="succeeded")
    forked = await store.runs.fork(
        rollout_id, phase="risk", scopes=["rig"], request_id="again", reason="too bold", graph=GRAPH
    )
    await tell(store, rollout_id, forked.attempt.attempt_id, "Trader")
    await store.update_attempt(rollout_id, forked.attempt.attempt_id, status="failed")
    await store.runs.move_head(rollout_id, attempt_id, reason="it was better", request_id="back")
    return forked.rollout
