"""The content of the recorded databases: a scripted history with every kind of event of the public API.

The history is deterministic. The same calls at the same times, with the same ids, give the same log on every database,
so its chain head and its state hash are constants. A change of this file changes both.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from store.domain.commands import Idempotency
from store.models import (
    LLM,
    Attempt,
    AttemptedRollout,
    AttemptError,
    EnqueueRolloutRequest,
    NamedResources,
    PhaseGraph,
    PromptTemplate,
    ProxyLLM,
    RolloutConfig,
    RunEvent,
    Span,
)
from store.models.phases import Checkpoint, Overlay, Phase, ScopeKind, all_of
from store.models.threads import ThreadCheckpoint, ThreadWrite
from store.runtime import context, ids, process
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span

START = 1_750_000_000
"""When the history begins, in seconds since the epoch."""

LONG = "Weigh the balance sheet against the order book. " * 24
"""A text long enough to be stored once, as a blob."""

GRAPH = PhaseGraph(
    name="desk",
    version="1",
    scope_kinds={"ticker": ScopeKind(normalise="upper"), "book": ScopeKind(fixed="MAIN")},
    phases=[
        Phase(
            name="research",
            scope_kind="ticker",
            nodes=["News", "Fundamentals"],
            produces=[Checkpoint(name="researched", keys=["report", "messages"], when=all_of("report"))],
            cascade=["portfolio"],
        ),
        Phase(
            name="debate",
            scope_kind="ticker",
            after=["research"],
            requires="researched",
            overlay=Overlay(exclude=["messages"]),
            nodes=["Bull", "Bear"],
            produces=[Checkpoint(name="debated", when=all_of("plan"))],
            cascade=["portfolio"],
        ),
        Phase(
            name="risk",
            scope_kind="ticker",
            after=["debate"],
            requires="debated",
            nodes=["Risk", "Trader"],
            cascade=["portfolio"],
        ),
        Phase(name="portfolio", scope_kind="book", nodes=["Decision"], side_effects="unsafe"),
    ],
)
REPEATED = Idempotency("key:0123456789", "a-client-chose-this", hashlib.sha256(b"the request").digest())
"""The key under which one rollout was enqueued."""
REPEATED_INPUT = {"asked": "twice"}


@contextmanager
def determined(clock: ManualClock) -> Generator[None]:
    """Replace what differs between two runs: random ids, and the host and process that own an attempt.

    Random bytes depend on the name of the function that draws them and on how often it has drawn, so that one more draw
    elsewhere changes no id. Where a function of `store.runtime.ids` gets another name, its old one has to be kept here.
    """
    drawn: Counter[str] = Counter()

    def urandom(size: int) -> bytes:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        drawing = frame.f_back.f_code.co_name
        drawn[drawing] += 1
        return hashlib.sha256(f"{drawing} {drawn[drawing]}".encode()).digest()[:size]

    owner = {"host": "recorded.example", "pid": 4747, "started": START * 1_000_000}
    with ExitStack() as patches:
        patches.enter_context(mock.patch("os.urandom", urandom))
        patches.enter_context(mock.patch.object(ids, "rising", ids.Rising(lambda: clock() * 1_000)))
        patches.enter_context(mock.patch.object(process, "owner", return_value=owner))
        yield


async def write(store: SQLStore, clock: ManualClock) -> None:
    """Write the history of the main partition."""
    await _resources(store, clock)
    await _queue(store, clock)
    await _overdue(store, clock)
    await _published_again(store, clock)
    first = await _run(store, clock)
    await _resumed_run(store, clock)
    await _threads(store, clock, first)
    await _annotations(store, clock, first)
    await _repeated(store, clock)


async def write_second(store: SQLStore, clock: ManualClock) -> None:
    """Write the history of the second partition, which is short."""
    await store.update_resources("prompts", {"prompt": PromptTemplate(template="Other: {q}", engine="f-string")})
    clock.advance(1)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    claimed = await _claimed(store, "other-1")
    await _span(store, claimed.attempt, 1)
    await store.annotations.annotate(claimed.rollout_id, add_labels=["other"])


async def _resources(store: SQLStore, clock: ManualClock) -> None:
    await store.update_resources("prompts", {"prompt": PromptTemplate(template="Answer {q}", engine="f-string")})
    clock.advance(1)
    await store.add_resources({"llm": LLM(endpoint="http://127.0.0.1:8000/v1", model="small")})
    clock.advance(1)
    proxied = ProxyLLM(endpoint="http://127.0.0.1:9000/v1", model="small", sampling_parameters={"temperature": 0.5})
    both: NamedResources = {"prompt": PromptTemplate(template="Répondez : {q}", engine="jinja"), "llm": proxied}
    await store.update_resources("prompts", both)
    clock.advance(1)


async def _published_again(store: SQLStore, clock: ManualClock) -> None:
    await store.update_resources("prompts", {"prompt": PromptTemplate(template="{{q}}", engine="poml")})
    await store.add_resources({"phases": GRAPH})
    clock.advance(1)


async def _queue(store: SQLStore, clock: ManualClock) -> None:
    retried = RolloutConfig(max_attempts=3, retry_condition=["failed"])
    requests = [
        EnqueueRolloutRequest(
            input={"question": f"{number} + {number}", "weights": [number, 0.5, None, True]},
            mode=("train", "val", "test")[number % 3],
            config=retried if number in {3, 4} else None,
            metadata={"rollbook.group": "batch", "rollbook.step": number, "rollbook.key": f"plan-{number}"},
        )
        for number in range(10)
    ]
    await store.enqueue_many_rollouts(requests)
    clock.advance(0.5)
    await _succeeded(store, clock)
    await _running(store, clock)
    await _failed(store, clock)
    await _retried(store, clock)
    await _requeued(store, clock)
    await _cancelled(store, clock)
    preparing = await _claimed(store, "worker-1")
    await store.update_attempt(
        preparing.rollout_id, preparing.attempt.attempt_id, last_heartbeat_time=clock.seconds + 0.25
    )
    clock.advance(0.5)
    await _released(store, clock)
    amended = await store.enqueue_rollout("as a text", resources_id="nothing-of-this-name")
    await store.update_rollout(
        amended.rollout_id, input=["as", "a list"], mode="val", metadata={"note": "amended", "n": 1.5}
    )
    await store.update_worker("worker-9", {"cpu": 0.75, "tasks": 3})
    await store.update_worker("worker-9")
    # Numbers of a rollout that exists are reserved by an event, which is younger than the recorded databases.
    assert await store.get_many_span_sequence_ids([("ro-unknown", "any"), ("ro-unknown", "other")]) == [1, 2]
    clock.advance(0.5)


async def _succeeded(store: SQLStore, clock: ManualClock) -> None:
    claimed = await _claimed(store, "worker-1")
    asked = {
        "gen_ai.request.model": "small",
        "gen_ai.response.model": "small-2026",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 45,
    }
    rewards = {
        "agentlightning.reward.0.name": "score",
        "agentlightning.reward.0.value": 0.75,
        "agentlightning.reward.1.name": "length",
        "agentlightning.reward.1.value": -0.125,
    }
    root = _numbered_span(claimed.attempt, 1, name="agent", attributes={"tags": ["a", "b"], "depth": 0})
    call = _numbered_span(claimed.attempt, 2, parent_id=root.span_id, name="openai.chat", attributes=asked)
    rewarded = _numbered_span(claimed.attempt, 3, parent_id=root.span_id, name="reward", attributes=rewards)
    await store.add_many_spans([root, call, rewarded, call])
    clock.advance(0.25)
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, metadata={"host": "gpu-1"})
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    clock.advance(0.25)
    # A span that arrives after the end changes no status.
    await _span(store, claimed.attempt, 4, name="late", end_time=None)


async def _running(store: SQLStore, clock: ManualClock) -> None:
    claimed = await _claimed(store, "worker-2")
    await _span(store, claimed.attempt, 1, name="thinking", attributes={"text": LONG, "emoji": "é 🙂"})
    clock.advance(0.25)


async def _failed(store: SQLStore, clock: ManualClock) -> None:
    claimed = await _claimed(store, "worker-3")
    await _span(store, claimed.attempt, 1)
    error = AttemptError(type="openai.RateLimitError", message="too many requests", span_id=f"{1:016x}")
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed", error=error)
    clock.advance(0.25)


async def _retried(store: SQLStore, clock: ManualClock) -> None:
    """Fail twice, with a claim of the head of the queue in between, and succeed the third time."""
    first = await _claimed(store, "worker-3")
    for _ in range(2):
        latest = await store.get_latest_attempt(first.rollout_id)
        assert latest is not None
        await store.update_attempt(first.rollout_id, latest.attempt_id, status="failed")
        clock.advance(0.25)
        await store.start_attempt(first.rollout_id, "worker-4")
    again = await store.get_latest_attempt(first.rollout_id)
    assert again is not None
    assert again.sequence_id == 3
    await _span(store, again, 1)
    await store.update_attempt(first.rollout_id, "latest", status="succeeded")
    clock.advance(0.25)


async def _requeued(store: SQLStore, clock: ManualClock) -> None:
    claimed = await _claimed(store, "worker-3")
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="failed")
    clock.advance(0.25)


async def _cancelled(store: SQLStore, clock: ManualClock) -> None:
    claimed = await _claimed(store, "worker-2")
    await store.update_rollout(claimed.rollout_id, status="cancelled")
    clock.advance(0.25)


async def _released(store: SQLStore, clock: ManualClock) -> None:
    """Claim two rollouts and undo both claims; one of them is claimed again."""
    claimed = await store.dequeue_many_rollouts(2, "worker-5")
    assert len(claimed) == 2
    clock.advance(0.25)
    await store.queue.release_claims(claimed)
    clock.advance(0.25)
    again = await _claimed(store, "worker-6")
    assert again.rollout_id == claimed[0].rollout_id
    await _span(store, again.attempt, 1)


async def _overdue(store: SQLStore, clock: ManualClock) -> None:
    """Let one attempt time out for good, and another become unresponsive and be tried again."""
    short = RolloutConfig(timeout_seconds=5)
    silent = RolloutConfig(unresponsive_seconds=5, max_attempts=2, retry_condition=["unresponsive", "timeout"])
    late = await store.start_rollout({"late": True}, "train", config=short, worker_id="worker-7")
    quiet = await store.start_rollout({"quiet": True}, config=silent, worker_id="worker-8")
    await _span(store, quiet.attempt, 1)
    clock.advance(6)
    await store.query_rollouts()
    assert (await store.query_attempts(late.rollout_id))[0].status == "timeout"
    assert (await store.query_attempts(quiet.rollout_id))[0].status == "unresponsive"
    clock.advance(0.5)


async def _run(store: SQLStore, clock: ManualClock) -> AttemptedRollout:
    """Play a run to its end, run a part of it again twice, and move the head back and forth; return its start."""
    first = await store.start_rollout({"date": "2026-01-02"}, metadata={"rollbook.group": "desk"}, worker_id="desk-1")
    for phase in ("research", "debate", "risk"):
        await _phase(store, clock, first, phase, "RIG")
    await _phase(store, clock, first, "research", "TSDD", state={"report": ""})
    await _tell(store, first, RunEvent(kind="phase.skipped", phase="debate", scope="TSDD", reason="nothing to debate"))
    await _phase(store, clock, first, "portfolio", "MAIN")
    node = {"agl.node_id": "Trader", "agl.scope": "RIG", "agl.phase": "risk", "gen_ai.usage.input_tokens": 7}
    await _span(store, first.attempt, 1, name="Trader", attributes=node)
    rollout_id, attempt_id = first.rollout_id, first.attempt.attempt_id
    report = await store.runs.save_artifact(
        *(rollout_id, attempt_id), scope="RIG", name="report", content=LONG, phase="risk", media_type="text/markdown"
    )
    await store.runs.save_artifact(rollout_id, attempt_id, scope="RIG", name="copy", content=LONG)
    await store.runs.save_artifact(
        rollout_id, attempt_id, scope="MAIN", name="decision", content={"buy": ["RIG"], "n": 2}
    )
    clock.advance(0.25)
    await store.runs.retract_artifact(rollout_id, report.artifact_id, reason="a figure is wrong", key="retract-1")
    await store.update_attempt(rollout_id, attempt_id, status="succeeded")
    clock.advance(1)
    bolder = await store.runs.fork(
        rollout_id,
        phase="risk",
        scopes=["rig"],
        state_patch={"appetite": "low"},
        request_id="again-1",
        reason="too bold",
        confirm_side_effects=True,
        worker_id="desk-2",
    )
    await _phase(store, clock, bolder.rollout, "risk", "RIG", tokens=30)
    await _phase(store, clock, bolder.rollout, "portfolio", "MAIN", tokens=30)
    await store.runs.save_artifact(rollout_id, bolder.attempt.attempt_id, scope="RIG", name="report", content="Sell.")
    await store.update_attempt(rollout_id, bolder.attempt.attempt_id, status="succeeded")
    clock.advance(1)
    fork_result = await store.runs.fork(
        *(rollout_id,), phase="debate", scopes=["TSDD"], on_missing="full", cascade=False, allow_graph_change=True
    )
    assert fork_result.fork.degraded is not None
    await _phase(
        store, clock, fork_result.rollout, "research", "TSDD", state={"report": "It has no debt.", "messages": [1]}
    )
    await store.update_attempt(rollout_id, fork_result.attempt.attempt_id, status="failed")
    clock.advance(0.25)
    await store.runs.move_head(rollout_id, attempt_id, reason="the first was better", request_id="undo-1")
    clock.advance(0.25)
    await store.runs.move_head(rollout_id, bolder.attempt.attempt_id, reason="or the second")
    return first


async def _resumed_run(store: SQLStore, clock: ManualClock) -> None:
    """Let an attempt die within a phase, and resume it."""
    first = await store.start_rollout(
        {"date": "2026-01-02"}, metadata={"rollbook.group": "desk"}, config=RolloutConfig(unresponsive_seconds=60)
    )
    await _phase(store, clock, first, "research", "RIG")
    await _tell(store, first, RunEvent(kind="phase.started", phase="debate", scope="RIG"))
    await _tell(store, first, RunEvent(kind="thought", node_id="Bull", scope="RIG", message="It will rise."))
    clock.advance(61)
    await store.query_rollouts()
    resumed = await store.runs.resume(first.rollout_id, request_id="resume-1", reason="the machine died")
    await _phase(store, clock, resumed.rollout, "debate", "RIG")
    where = {"bucket": "s3://desk", "object": "state-1"}
    await store.runs.save_checkpoint(
        *(first.rollout_id, resumed.attempt.attempt_id), scope="RIG", name="elsewhere", external=where
    )


async def _phase(
    store: SQLStore,
    clock: ManualClock,
    run: AttemptedRollout,
    name: str,
    scope: str,
    *,
    tokens: int = 10,
    state: dict[str, Any] | None = None,
) -> None:
    """Play a phase: its start, a thought, a tool call and a result of each node, its checkpoint, its end."""
    phase = GRAPH.by_name[name]
    await _tell(store, run, RunEvent(kind="phase.started", phase=name, scope=scope))
    for node in phase.nodes:
        metrics = {"model": "small", "tokens_in": tokens, "tokens_out": tokens // 2, "cost": 0.001}
        tool = {"scope": scope, "parent_node_id": node, "node_id": "search"}
        await store.runs.append_events(
            run.rollout_id,
            run.attempt.attempt_id,
            [
                RunEvent(kind="thought", node_id=node, scope=scope, agent="analyst", prompt=LONG + node),
                RunEvent.model_validate({"kind": "tool", "message": f"{node} searches", "depth": 1, **tool}),
                RunEvent.model_validate({"kind": "tool_result", "status": "success", "response": "found", **tool}),
                RunEvent(kind="result", node_id=node, scope=scope, metrics=metrics, response=f"{node}: {tokens}"),
            ],
            key=f"{run.attempt.sequence_id} {scope} {node}",
        )
        clock.advance(0.125)
    for checkpoint in phase.produces:
        stored = (
            {"report": "It earns.", "messages": ["one", "two"], "plan": "buy", "long": LONG} if state is None else state
        )
        await store.runs.save_checkpoint(
            run.rollout_id, run.attempt.attempt_id, scope=scope, name=checkpoint.name, state=stored
        )
    await _tell(store, run, RunEvent(kind="phase.completed", phase=name, scope=scope))
    clock.advance(0.125)


async def _tell(store: SQLStore, run: AttemptedRollout, *events: RunEvent) -> None:
    await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, events)


def _checkpoint(number: int, thread_id: str, ns: str = "", **more: Any) -> ThreadCheckpoint:
    parent = f"cp-{number - 1:04}" if number > 1 else None
    rest = f'{{"v": 4, "id": "cp-{number:04}", "ts": "2026-01-02T00:00:00+00:00", "channel_versions": {{}}}}'
    fields: dict[str, Any] = {
        "parent_id": parent,
        "checkpoint": ("json", rest.encode()),
        "values": {"said": ("json", f'["turn {number}"]'.encode()), "memory": ("bytes", LONG.encode())},
        "metadata": {"step": number, "source": "loop", "run_id": "run-1"},
    }
    return ThreadCheckpoint(thread_id, ns, f"cp-{number:04}", **(fields | more))


async def _threads(store: SQLStore, clock: ManualClock, run: AttemptedRollout) -> None:
    """Keep threads: one of a run, one copied, one pruned, one deleted, one with a subgraph."""
    of_run = f"{run.rollout_id}:RIG"
    for number in (1, 2, 3):
        await store.threads.save_checkpoint(_checkpoint(number, of_run), attempt_id=run.attempt.attempt_id)
        clock.advance(0.25)
    writes = [
        ThreadWrite("task-1", 0, "said", ("json", b'["written"]'), task_path="~a"),
        ThreadWrite("task-1", -1, "__error__", ("json", b'"boom"')),
        ThreadWrite("task-2", 0, "said", ("json", b'["too"]')),
    ]
    await store.threads.save_writes(of_run, writes, checkpoint_id="cp-0003", attempt_id=run.attempt.attempt_id)
    await store.threads.save_writes(
        of_run, [ThreadWrite("task-1", -1, "__error__", ("json", b'"boom again"'))], checkpoint_id="cp-0003"
    )
    await store.threads.save_checkpoint(_checkpoint(1, of_run, "inner:1"))
    await store.threads.copy(of_run, "copied")
    await store.threads.prune("copied", [("", "cp-0001")])
    await store.threads.save_checkpoint(_checkpoint(1, "deleted"))
    await store.threads.delete("deleted")
    await store.threads.save_checkpoint(_checkpoint(2, "chat"))
    await store.threads.save_checkpoint(
        _checkpoint(3, "chat", metadata={"step": 3, "source": "update", "run_id": "run-3"})
    )
    await store.threads.delete_runs(["run-3"])
    clock.advance(0.25)


async def _annotations(store: SQLStore, clock: ManualClock, run: AttemptedRollout) -> None:
    await store.annotations.annotate(run.rollout_id, "Looks right.", add_labels=["good", "to keep"])
    clock.advance(0.25)
    acting = context.actor.set("cli")
    await store.annotations.annotate(run.rollout_id, LONG, add_labels=["long"], remove_labels=["good"])
    context.actor.reset(acting)
    (failed,) = await store.query_rollouts(status_in=["failed"], limit=1)
    await store.annotations.annotate(failed.rollout_id, add_labels=["to look at"])
    clock.advance(0.25)


async def _repeated(store: SQLStore, clock: ManualClock) -> None:
    token = context.idempotency_key.set(REPEATED)
    await store.enqueue_rollout(REPEATED_INPUT, "test")
    context.idempotency_key.reset(token)
    clock.advance(0.25)


async def _claimed(store: SQLStore, worker_id: str) -> AttemptedRollout:
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    return claimed


async def _span(store: SQLStore, attempt: Attempt, number: int, **fields: Any) -> None:
    assert await store.add_span(_numbered_span(attempt, number, **fields)) is not None


def _numbered_span(attempt: Attempt, number: int, **fields: Any) -> Span:
    return make_span(attempt, number, span_id=f"{number:016x}", **fields)
