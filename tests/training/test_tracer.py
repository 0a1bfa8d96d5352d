"""Every span that ends inside an attempt is stored under it, in the order of the ends, and no other span."""

from __future__ import annotations

import asyncio
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import attach, detach, get_current
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from store import HTTPStore
from store.interface.store import Store
from store.server.app import build_app
from store.server.partitions import Partitions
from store.server.process.serve import Server
from store.training import Tracer, current_scope, emit_message, emit_reward, get_message_value, get_reward_value
from store.training.tracer import ATTEMPT_SPAN
from store.training.tracing.span_thread import span_thread
from store.wire.listener import bind
from tests.training.training_helpers import names_of, spans_of, started, until


def ids(rollout: Any) -> dict[str, Any]:
    return {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}


async def test_spans_are_numbered_in_the_order_they_ended_below_one_root(live: Store) -> None:
    rollout = await started(live)
    tracer = Tracer()
    with tracer.lifespan(live):
        async with tracer.trace_context(**ids(rollout)) as spans:
            with spans.start_as_current_span("outer"), spans.start_as_current_span("inner"):
                emit_reward(0.5)
            emit_message("after")
        traced = tracer.get_last_trace()
    stored = await spans_of(live, rollout)
    reward, inner, message, outer, root = (
        next(span for span in stored if span.name == name)
        for name in ("agentlightning.annotation", "inner", "agentlightning.message", "outer", ATTEMPT_SPAN)
    )
    assert [span.name for span in stored] == [
        "agentlightning.annotation",
        "inner",
        "outer",
        "agentlightning.message",
        ATTEMPT_SPAN,
    ]
    assert [span.sequence_id for span in stored] == [1, 2, 3, 4, 5]
    assert [span.parent_id for span in (reward, inner, outer, message, root)] == [
        inner.span_id,
        outer.span_id,
        root.span_id,
        root.span_id,
        None,
    ]
    assert len({span.trace_id for span in stored}) == 1
    # What the tracer hands out is what is stored, numbers included.
    assert traced == stored


async def test_a_rewards_number_lies_between_the_calls_before_and_those_after(live: Store) -> None:
    rollout = await started(live)
    tracer = Tracer()
    with tracer.lifespan(live):
        async with tracer.trace_context(**ids(rollout)) as spans:
            spans.start_span("call before").end()
            emit_reward(1.0)
            # A proxy draws the number of its call at the call's start, straight from the store.
            drawn = await live.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id)
            spans.start_span("call after").end()
    numbers = {span.name: span.sequence_id for span in await spans_of(live, rollout)}
    assert numbers["call before"] < numbers["agentlightning.annotation"] < drawn < numbers["call after"]


async def test_an_attempt_runs_as_soon_as_its_first_span_is_stored(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)):
            emit_reward(1.0)
            running = await memory.get_rollout_by_id(rollout.rollout_id)
    assert running is not None
    assert running.status == "running"


async def test_many_attempts_at_once_do_not_mix(live: Store) -> None:
    count, steps = 8, 25
    rollouts = [await started(live, number) for number in range(count)]
    tracer = Tracer()
    barrier = asyncio.Barrier(count)

    async def attempt(number: int) -> None:
        async with tracer.trace_context(**ids(rollouts[number])) as spans:
            await barrier.wait()
            for step in range(steps):
                with spans.start_as_current_span(f"call {number}.{step}"):
                    await asyncio.sleep(0)
                    if step % 10 == 0:
                        await asyncio.to_thread(emit_message, str(number))
            emit_reward(float(number))

    with tracer.lifespan(live):
        await asyncio.gather(*map(attempt, range(count)))
    for number, rollout in enumerate(rollouts):
        stored = await spans_of(live, rollout)
        assert len(stored) == steps + 3 + 1 + 1
        assert [span.sequence_id for span in stored] == list(range(1, len(stored) + 1))
        assert {get_message_value(span) for span in stored} - {None} == {str(number)}
        assert {get_reward_value(span) for span in stored} - {None} == {float(number)}
        assert all(span.name.startswith(f"call {number}.") for span in stored if span.name.startswith("call"))
        assert len({span.trace_id for span in stored}) == 1


async def test_attempts_in_threads_with_loops_of_their_own_do_not_mix(memory: Store) -> None:
    rollouts = [await started(memory, number) for number in range(4)]
    tracer = Tracer()
    tracer.init_worker(0, memory)

    async def attempt(rollout: Any) -> None:
        async with tracer.trace_context(**ids(rollout)):
            emit_message(rollout.rollout_id)

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, attempt(rollout)) for rollout in rollouts))
    for rollout in rollouts:
        message, _ = await spans_of(memory, rollout)
        assert get_message_value(message) == rollout.rollout_id


async def test_span_that_ends_after_the_attempt_is_not_stored(memory: Store) -> None:
    first, second = await started(memory), await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(first)) as spans:
            late = spans.start_span("late")
            scope = current_scope()
        assert scope is not None
        assert current_scope() is None
        async with tracer.trace_context(**ids(second)):
            late.end()
            with pytest.raises(ValueError, match="already open here"):
                tracer.open_scope()
        spans.start_span("later").end()
    assert await names_of(memory, first) == [ATTEMPT_SPAN]
    assert await names_of(memory, second) == [ATTEMPT_SPAN]


async def test_a_task_that_outlives_its_attempt_emits_nothing(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    over = asyncio.Event()

    async def straggler() -> None:
        await over.wait()
        emit_message("too late")

    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)):
            task = asyncio.create_task(straggler())
            await asyncio.sleep(0)
        over.set()
        with pytest.raises(RuntimeError, match="outside of an attempt"):
            await task
    assert await names_of(memory, rollout) == [ATTEMPT_SPAN]


async def test_a_span_open_around_the_attempt_is_not_its_parent(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    around = TracerProvider(shutdown_on_exit=False).get_tracer("application")
    with tracer.lifespan(memory), around.start_as_current_span("request"):
        async with tracer.trace_context(**ids(rollout)):
            pass
    (root,) = await spans_of(memory, rollout)
    assert root.parent_id is None


async def test_the_private_provider_leaves_that_of_the_process_alone(memory: Store) -> None:
    before = trace.get_tracer_provider()
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)):
            trace.get_tracer("application").start_span("global").end()
    assert trace.get_tracer_provider() is before
    assert await names_of(memory, rollout) == [ATTEMPT_SPAN]


async def test_a_thread_that_carries_opentelemetrys_context_alone_stays_in_its_attempt(memory: Store) -> None:
    # As OpenTelemetry's instrumentation of threads does.
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)) as spans:
            carried = get_current()

            def work() -> None:
                token = attach(carried)
                spans.start_span("in a thread").end()
                detach(token)

            thread = threading.Thread(target=work)
            thread.start()
            await asyncio.to_thread(thread.join)
    below, root = await spans_of(memory, rollout)
    assert (below.name, below.parent_id) == ("in a thread", root.span_id)


async def test_spans_keep_more_attributes_and_events_than_the_sdk_would(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)) as spans:
            span = spans.start_span("long prompt", attributes={f"gen_ai.prompt.{n}.content": "x" for n in range(500)})
            for number in range(300):
                span.add_event("token", {"n": number})
            span.end()
    stored = (await spans_of(memory, rollout))[0]
    assert (len(stored.attributes), len(stored.events)) == (500, 300)


async def test_a_trace_without_ids_stays_in_the_process(memory: Store) -> None:
    tracer = Tracer()
    with tracer.lifespan(memory):
        for name in ("first", "second"):
            async with tracer.trace_context(name):
                emit_message(name)
            assert [(span.name, span.sequence_id) for span in tracer.get_last_trace()] == [
                ("agentlightning.message", 1),
                (ATTEMPT_SPAN, 2),
            ]
    assert (await memory.statistics()).get("total_spans") == 0


async def test_a_trace_needs_both_ids_and_a_store(memory: Store) -> None:
    tracer = Tracer()
    with pytest.raises(ValueError, match="together"):
        tracer.open_scope(rollout_id="r")
    with pytest.raises(ValueError, match="together"):
        tracer.open_scope(attempt_id="a")
    with pytest.raises(ValueError, match="init_worker"):
        tracer.open_scope(rollout_id="r", attempt_id="a")


async def test_spans_that_are_not_sampled_are_ignored(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer(provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)):
            emit_reward(1.0)
    assert await names_of(memory, rollout) == []


async def test_with_a_provider_of_your_own_the_ids_are_on_the_spans(memory: Store) -> None:
    rollout = await started(memory)
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = Tracer(provider=provider)
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)):
            provider.get_tracer("some library").start_span("instrumented").end()
        provider.get_tracer("some library").start_span("outside").end()
    span, _ = await spans_of(memory, rollout)
    assert span.name == "instrumented"
    assert span.attributes == {
        "agentlightning.rollout_id": rollout.rollout_id,
        "agentlightning.attempt_id": rollout.attempt.attempt_id,
    }


@pytest.mark.slow
async def test_a_span_that_a_finaliser_ends_in_the_sending_thread_holds_nothing_up(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()

    class Resource:
        def __init__(self, span: trace.Span, recorder: Any) -> None:
            self.span = span
            self.recorder = recorder
            self.myself = self  # freed by the garbage collector alone

        def __del__(self) -> None:
            self.span.end()
            self.recorder.flush()

    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)) as spans:
            scope = current_scope()
            assert scope is not None
            Resource(spans.start_span("finalised"), scope.recorder)
            collected = asyncio.Event()
            loop = asyncio.get_running_loop()
            span_thread().call_soon(lambda: (gc.collect(), loop.call_soon_threadsafe(collected.set)))
            await collected.wait()
    assert await names_of(memory, rollout) == ["finalised", ATTEMPT_SPAN]


async def test_single_spans_and_operations_are_recorded_as_they_are_returned(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)):
            fields = tracer.create_span("moment", {"a": None}, timestamp=1_700_000_000.5)
            with tracer.operation_context("work", {"b": 1}, start_time=1_700_000_001.0, end_time=1_700_000_002.0) as op:
                op.record_attributes({"c": {"d": 1}})
        with pytest.raises(RuntimeError, match="outside of an attempt"):
            tracer.create_span("nowhere")
    moment, work, _ = await spans_of(memory, rollout)
    assert (moment.name, moment.attributes, moment.start_time) == (fields.name, {"a": "null"}, 1_700_000_000.5)
    assert (work.attributes, work.start_time, work.end_time) == (
        {"b": 1, "c": '{"d": 1}'},
        1_700_000_001.0,
        1_700_000_002.0,
    )
    assert op.get_recorded_span().attributes == work.attributes


GLOBAL = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from store import open_store
from store.training import Tracer

async def main():
    if sys.argv[1] == "theirs":
        trace.set_tracer_provider(TracerProvider())
    async with await open_store("memory://") as store:
        tracer, other = Tracer(install_global=True), Tracer(install_global=True)
        assert tracer.provider is other.provider is trace.get_tracer_provider()
        rollout = await store.start_rollout(1)
        application = trace.get_tracer("application")
        with tracer.lifespan(store):
            application.start_span("before").end()
            ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
            async with tracer.trace_context(**ids):
                application.start_span("inside").end()
            application.start_span("after").end()
        print([span.name for span in await store.query_spans(rollout.rollout_id)])

asyncio.run(main())
"""


@pytest.mark.parametrize("whose", ["ours", "theirs"])
@pytest.mark.slow
def test_as_the_processs_provider_only_spans_of_attempts_are_recorded(whose: str) -> None:
    done = subprocess.run([sys.executable, "-c", GLOBAL, whose], check=False, capture_output=True, text=True)
    assert done.stdout.strip() == f"['inside', '{ATTEMPT_SPAN}']", done.stderr


def test_a_tracer_can_be_sent_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(Tracer(spool_seconds=1.0)))
    assert again.provider is not None
    with pytest.raises(TypeError, match="create it there"):
        pickle.dumps(Tracer(provider=TracerProvider(shutdown_on_exit=False)))


@pytest.mark.slow
async def test_nothing_is_kept_of_an_attempt_that_is_over(memory: Store) -> None:
    tracer = Tracer()
    over: list[weakref.ref[Any]] = []
    with tracer.lifespan(memory):
        for _ in range(3):
            rollout = await started(memory)
            async with tracer.trace_context(**ids(rollout)) as spans:
                scope = current_scope()
                assert scope is not None
                over.append(weakref.ref(scope.recorder))
                spans.start_span("never ended")
                emit_reward(1.0)
                del scope

        def alive() -> list[Any]:
            gc.collect()
            return [reference for reference in over if reference() is not None]

        await until(lambda: asyncio.sleep(0, not alive()))
    assert tracer._processor._begun == {}  # pyright: ignore[reportPrivateUsage]


@pytest.mark.slow
async def test_a_store_served_by_the_agents_own_event_loop_holds_it_up_for_a_moment_at_most(memory: Store) -> None:
    started_up = asyncio.Event()
    server = Server(build_app(Partitions(memory)), started_up.set)
    socket = bind("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve([socket]))
    await started_up.wait()
    tracer = Tracer()
    async with HTTPStore(f"http://127.0.0.1:{socket.getsockname()[1]}") as over_http:
        with tracer.lifespan(over_http):
            rollout = await started(over_http)
            async with tracer.trace_context(**ids(rollout)):
                assert emit_reward(1.0).name == "agentlightning.annotation"
        assert await names_of(over_http, rollout) == ["agentlightning.annotation", ATTEMPT_SPAN]
    server.should_exit = True
    await serving
