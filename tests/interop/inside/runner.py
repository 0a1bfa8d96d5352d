"""Agent-lightning's runner and its OpenTelemetry tracer, with an agent, and the server at `--url`."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false
# pyright: reportUntypedFunctionDecorator=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

from agentlightning import (
    Hook,
    LightningStoreClient,
    LitAgent,
    LitAgentRunner,
    OtelTracer,
    TracerTraceToTriplet,
    emit_annotation,
    prompt_rollout,
)
from agentlightning.emitter import find_final_reward, find_reward_spans, get_message_value
from agentlightning.types import PromptTemplate, Rollout, RolloutConfig, Span

from tests.interop.inside.claims import arguments, claims_of, hold, stay_on_this_machine
from tests.interop.inside.quiz import RETRIED, TRACED, Quiz, prompt


@dataclass
class Bench:
    """A store and what runs on it. One process has one tracer, as in Agent-lightning's own workers."""

    store: LightningStoreClient
    tracer: OtelTracer = field(default_factory=OtelTracer)
    errors: list[str] = field(default_factory=list)

    def runner(self, agent: Any, *, hooks: Any = None, **settings: Any) -> LitAgentRunner[Any]:
        runner = LitAgentRunner(
            self.tracer, **{"poll_interval": 0.05, "interval_jitter": 0.01, "heartbeat_interval": 0, **settings}
        )
        runner.init(agent, hooks=hooks)
        runner.init_worker(7, self.store)
        return runner

    async def answer(
        self, *tasks: Any, agent: Any = None, attempts: int | None = None, hooks: Any = None, **how: Any
    ) -> list[Rollout]:
        """Have tasks run, each as often as needed, and return their rollouts."""
        await self._drain()
        await self.store.add_resources({"prompt": prompt("Please answer: {question}")})
        enqueued = [await self.store.enqueue_rollout(task, mode="train", **how) for task in tasks]
        runner = self.runner(agent or Quiz(), hooks=hooks, max_rollouts=attempts or len(tasks))
        await runner.iter()
        rollouts = await self.store.query_rollouts(rollout_id_in=[rollout.rollout_id for rollout in enqueued])
        return list(rollouts)

    async def spans(self, rollout: Rollout, attempt_id: str | None = None) -> list[Span]:
        return list(await self.store.query_spans(rollout.rollout_id, attempt_id))

    async def _drain(self) -> None:
        while await self.store.dequeue_many_rollouts(limit=100):
            pass


async def an_answered_task_is_a_succeeded_rollout_with_an_idle_worker(bench: Bench) -> None:
    (rollout,) = await bench.answer({"question": "6 x 7?"})
    assert (rollout.status, rollout.attempt.status) == ("succeeded", "succeeded")
    assert rollout.attempt.worker_id == "Worker-7"
    assert rollout.attempt.last_heartbeat_time is not None
    assert rollout.end_time is not None
    assert rollout.attempt.end_time is not None
    worker = await bench.store.get_worker_by_id("Worker-7")
    assert worker is not None
    assert (worker.status, worker.current_rollout_id) == ("idle", None)


async def its_spans_are_all_there_in_the_order_they_ended(bench: Bench) -> None:
    (rollout,) = await bench.answer({"question": "6 x 7?"})
    spans = await bench.spans(rollout)
    assert [span.name for span in spans] == TRACED
    assert [span.sequence_id for span in spans] == [1, 2, 3, 4, 5]
    plan = spans[3]
    assert [span.parent_id for span in spans] == [plan.span_id] * 3 + [None, None]
    assert {span.trace_id for span in spans[:4]} == {plan.trace_id}
    assert {(span.rollout_id, span.attempt_id) for span in spans} == {(rollout.rollout_id, rollout.attempt.attempt_id)}
    assert plan.attributes == {"question": "6 x 7?"}
    assert plan.resource.attributes["agentlightning.rollout_id"] == rollout.rollout_id
    assert get_message_value(spans[1]) == "that was easy"
    assert plan.start_time is not None
    assert plan.end_time is not None
    assert rollout.start_time < plan.start_time < plan.end_time


async def its_rewards_and_triplets_are_readable(bench: Bench) -> None:
    (rollout,) = await bench.answer({"question": "6 x 7?"})
    spans = await bench.spans(rollout, "latest")
    assert find_final_reward(spans) == 1.0
    assert len(find_reward_spans(spans)) == 2
    (triplet,) = TracerTraceToTriplet().adapt(spans)
    assert list(triplet.prompt["token_ids"]) == [1, 2, len("Please answer: 6 x 7?")]
    assert list(triplet.response["token_ids"]) == [4, 2]


async def many_tasks_one_after_the_other_do_not_mix(bench: Bench) -> None:
    rollouts = await bench.answer(*({"question": f"{number}?"} for number in range(10)))
    for number, rollout in enumerate(rollouts):
        spans = await bench.spans(rollout)
        assert [span.sequence_id for span in spans] == [1, 2, 3, 4, 5]
        assert spans[3].attributes == {"question": f"{number}?"}


async def an_agent_that_fails_is_a_failed_attempt_with_its_spans(bench: Bench) -> None:
    (rollout,) = await bench.answer({"question": "why?", "fails": 1})
    assert (rollout.status, rollout.attempt.status) == ("failed", "failed")
    assert [span.name for span in await bench.spans(rollout)] == TRACED[:4]


async def a_failed_attempt_is_tried_again_and_numbers_go_on(bench: Bench) -> None:
    (rollout,) = await bench.answer({"question": "why?", "fails": 1}, attempts=2, config=RETRIED)
    assert (rollout.status, rollout.attempt.sequence_id) == ("succeeded", 2)
    first, second = await bench.store.query_attempts(rollout.rollout_id)
    assert [first.status, second.status] == ["failed", "succeeded"]
    assert [span.sequence_id for span in await bench.spans(rollout, first.attempt_id)] == [1, 2, 3, 4]
    assert [span.sequence_id for span in await bench.spans(rollout, "latest")] == [5, 6, 7, 8, 9]


async def agents_that_are_functions_or_await_run_too(bench: Bench) -> None:
    @prompt_rollout
    def function(task: Any, prompt_template: PromptTemplate) -> float:
        return float(len(prompt_template.format(question=task["question"])))

    class Awaiting(LitAgent[Any]):
        async def training_rollout_async(self, task: Any, resources: Any, rollout: Any) -> None:
            await asyncio.sleep(0)
            emit_annotation({"seen": task["question"]})

    (counted,) = await bench.answer({"question": "?"}, agent=function)
    assert find_final_reward(await bench.spans(counted)) == len("Please answer: ?")
    (awaited,) = await bench.answer({"question": "?"}, agent=Awaiting())
    assert [span.attributes["seen"] for span in await bench.spans(awaited)] == ["?"]
    assert awaited.status == "succeeded"


async def spans_an_agent_returns_are_stored(bench: Bench) -> None:
    class Returning(LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
            if task == "core":
                return [emit_annotation({"number": number}, propagate=False) for number in range(3)]
            ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
            return [Span.from_attributes(attributes={"number": n}, sequence_id=n + 1, **ids) for n in range(3)]

    for task in ("core", "whole"):
        (rollout,) = await bench.answer(task, agent=Returning())
        spans = await bench.spans(rollout)
        assert [(span.sequence_id, span.attributes["number"]) for span in spans] == [(1, 0), (2, 1), (3, 2)], task


async def a_single_step_needs_no_queue(bench: Bench) -> None:
    runner = bench.runner(Quiz())
    rollout = await runner.step({"question": "1 + 1?"}, resources={"prompt": prompt("{question}")}, mode="val")
    assert (rollout.status, rollout.mode) == ("succeeded", "val")
    assert find_final_reward(await bench.spans(rollout)) == 0.5
    assert rollout.resources_id is not None


async def hooks_are_called_around_the_rollout(bench: Bench) -> None:
    called: list[str] = []

    class Noting(Hook):
        async def on_rollout_start(self, **_: Any) -> None:
            called.append("rollout start")

        async def on_trace_start(self, **_: Any) -> None:
            called.append("trace start")

        async def on_trace_end(self, **_: Any) -> None:
            called.append("trace end")

        async def on_rollout_end(self, **_: Any) -> None:
            called.append("rollout end")

    await bench.answer({"question": "?"}, hooks=[Noting()])
    assert called == ["rollout start", "trace start", "trace end", "rollout end"]


async def a_runner_without_work_sends_heartbeats_until_it_is_stopped(bench: Bench) -> None:
    stop = threading.Event()
    runner = bench.runner(Quiz(), heartbeat_interval=0.1)
    running = asyncio.create_task(runner.iter(event=stop))
    while True:
        worker = await bench.store.get_worker_by_id("Worker-7")
        if worker is not None and worker.heartbeat_stats is not None:
            break
        await asyncio.sleep(0.05)
    stop.set()
    await running
    assert "cpu_usage_pct" in worker.heartbeat_stats
    assert worker.last_heartbeat_time is not None


async def a_silent_attempt_is_abandoned_and_its_late_success_counts(bench: Bench) -> None:
    class Slow(LitAgent[Any]):
        async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
            rollout_id = rollout.rollout_id
            await bench.store.update_attempt(rollout_id, "latest", status="unresponsive")
            assert (await bench.store.get_rollout_by_id(rollout_id)).status == "failed"
            emit_annotation({"still": "here"})
            assert (await bench.store.get_latest_attempt(rollout_id)).status == "running"
            return 1.0

    (rollout,) = await bench.answer({}, agent=Slow(), config=RolloutConfig())
    assert (rollout.status, rollout.attempt.status) == ("succeeded", "succeeded")


async def the_exporter_had_no_complaint(bench: Bench) -> None:
    assert bench.errors == []


class _Complaints(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.append(record.getMessage())


async def _main() -> None:
    options = arguments()
    bench = Bench(LightningStoreClient(options.url))
    logging.getLogger("opentelemetry").addHandler(_Complaints(bench.errors))
    try:
        await hold(claims_of(__name__), bench, options)
    finally:
        await bench.store.close()


if __name__ == "__main__":
    stay_on_this_machine()
    asyncio.run(_main())
