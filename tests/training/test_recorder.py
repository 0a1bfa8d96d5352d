"""Spans reach the store in batches and in order, wait during outages, and never disturb the agent."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from store.interface.store import Store
from store.training import Tracer, current_scope, emit_message, emit_reward
from store.training.tracer import ATTEMPT_SPAN
from store.training.tracing import recorder as recording
from store.training.tracing.span_thread import span_thread
from store.training.tracing.spool import SpanSpool
from tests.torture import rounds
from tests.training.training_helpers import names_of, spans_of, started, until
from tests.training.unreliable import Unreliable


@pytest.fixture
def unreliable(memory: Store) -> Unreliable:
    return Unreliable(memory)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a store that is gone waits for a tenth of the time."""
    monkeypatch.setattr(recording, "WRITE_SECONDS", 0.5)
    monkeypatch.setattr(recording, "_RETRY_SECONDS", 0.05)


def files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.jsonl"))


def ids(rollout: Any) -> dict[str, Any]:
    return {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}


async def test_spans_travel_together_and_at_most_a_hundred_at_once(unreliable: Unreliable, memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(rollout)) as spans:
            for number in range(250):
                spans.start_span(f"s{number}").end()
    assert [name for batch in unreliable.batches for name in batch] == [
        *(f"s{number}" for number in range(250)),
        ATTEMPT_SPAN,
    ]
    assert max(map(len, unreliable.batches)) <= recording.BATCH
    assert len(unreliable.batches) <= 12
    assert [span.sequence_id for span in await spans_of(memory, rollout)] == list(range(1, 252))


async def test_a_span_alone_is_stored_soon_while_the_agent_goes_on(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(rollout)) as spans:
            spans.start_span("alone").end()
            assert await until(lambda: names_of(memory, rollout)) == ["alone"]


async def test_a_reward_is_stored_when_emitting_it_returns(unreliable: Unreliable, memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    unreliable.seconds = 0.3
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(rollout)) as spans:
            spans.start_span("before").end()
            emit_reward(1.0)
            assert await names_of(memory, rollout) == ["before", "agentlightning.annotation"]


@pytest.mark.usefixtures("hasty")
async def test_spans_wait_for_a_store_that_is_gone_and_keep_their_order(
    unreliable: Unreliable, memory: Store, tmp_path: Path
) -> None:
    rollout = await started(memory)
    spool = SpanSpool(tmp_path)
    tracer = Tracer(spool=spool)
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(rollout)):
            emit_message("0")
            unreliable.is_down = True
            for number in range(1, 4):
                emit_message(str(number))
                emit_reward(float(number))
            assert [file.suffix for file in files(tmp_path)] == [".jsonl"]
            unreliable.is_down = False
            emit_message("4")
        traced = tracer.get_last_trace()
    stored = await spans_of(memory, rollout)
    said = [span.attributes.get("agentlightning.message.body") for span in stored]
    assert said == ["0", "1", None, "2", None, "3", None, "4", None]
    assert [span.sequence_id for span in stored] == sorted({span.sequence_id for span in stored})
    assert traced == stored
    assert files(tmp_path) == []
    assert spool.reserve(spool.max_bytes), "what was spooled is given back"


@pytest.mark.usefixtures("hasty")
async def test_a_store_that_does_not_answer_holds_the_agent_up_once(
    unreliable: Unreliable, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    unreliable.hangs = True
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(rollout)):
            scope = current_scope()
            assert scope is not None
            emit_reward(1.0)
            monkeypatch.setattr(recording, "WRITE_SECONDS", 60.0)
            tried = unreliable.tried
            await until(lambda: asyncio.sleep(0.01, unreliable.tried > tried))
            # Now the store is being tried again, and does not answer for a minute.
            for number in range(20):
                emit_message(str(number))
                assert scope.recorder.flush()
            unreliable.hangs = False
    assert len(await names_of(memory, rollout)) == 22


@pytest.mark.usefixtures("hasty")
async def test_a_lost_answer_doubles_nothing_and_leaves_no_number_unknown(
    unreliable: Unreliable, memory: Store
) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    unreliable.loses_answers = 1
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(rollout)):
            emit_reward(1.0)
        traced = tracer.get_last_trace()
    assert await names_of(memory, rollout) == ["agentlightning.annotation", ATTEMPT_SPAN]
    assert traced == await spans_of(memory, rollout)


@pytest.mark.usefixtures("hasty")
async def test_spans_not_stored_in_time_stay_in_the_spool(
    unreliable: Unreliable, memory: Store, tmp_path: Path
) -> None:
    rollout = await started(memory)
    tracer = Tracer(spool=SpanSpool(tmp_path), spool_seconds=0.2)
    unreliable.is_down = True
    with tracer.lifespan(unreliable):
        scope = tracer.open_scope(**ids(rollout))
        scope.tracer.start_span("no scope").end()
        scope.recorder.put(_finished(tracer, scope, "kept"))
        recorded = await tracer.close_scope(scope)
    assert (recorded.spans, recorded.lost, recorded.left) == ([], 0, 1)
    (file,) = files(tmp_path)
    assert file.name == f"{rollout.rollout_id}.{rollout.attempt.attempt_id}.jsonl"
    assert '"name":"kept"' in file.read_text()


@pytest.mark.usefixtures("hasty")
async def test_spool_is_bounded_and_counts_lost_spans(unreliable: Unreliable, memory: Store, tmp_path: Path) -> None:
    tracer = Tracer(spool=SpanSpool(tmp_path, max_bytes=20_000), spool_seconds=0.2)
    unreliable.is_down = True
    left = lost = 0
    with tracer.lifespan(unreliable):
        for _ in range(3):
            scope = tracer.open_scope(**ids(await started(memory)))
            for number in range(10):
                scope.recorder.put(_finished(tracer, scope, f"{number}", padding="x" * 900))
                scope.recorder.flush()
            recorded = await tracer.close_scope(scope)
            left, lost = left + recorded.left, lost + recorded.lost
    assert left + lost == 30
    assert lost > 0
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 20_000


@pytest.mark.usefixtures("hasty")
async def test_a_span_the_store_refuses_is_lost_alone(unreliable: Unreliable, memory: Store, caplog: Any) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    unreliable.refuses = "s7"
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(rollout)) as spans:
            for number in range(20):
                spans.start_span(f"s{number}").end()
    assert await names_of(memory, rollout) == [*(f"s{number}" for number in range(20) if number != 7), ATTEMPT_SPAN]
    assert "span 's7'" in caplog.text
    assert "has 1 spans that are not stored" in caplog.text


async def test_spans_of_an_attempt_that_does_not_exist_do_not_trouble_the_agent(memory: Store) -> None:
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(rollout_id="ro-none", attempt_id="at-none"):
            emit_reward(1.0)
        assert tracer.get_last_trace() == []


async def test_sending_spans_is_not_traced_as_part_of_the_attempt(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()

    class Tracing(Unreliable):
        async def add_many_spans(self, spans: Any) -> Any:
            # As an instrumentation of the HTTP client would, with this provider.
            tracer.provider.get_tracer("http").start_span("POST /spans").end()
            return await super().add_many_spans(spans)

    with tracer.lifespan(Tracing(memory)):
        async with tracer.trace_context(**ids(rollout)):
            emit_reward(1.0)
            emit_message("sent by the timer")
            assert await until(lambda: _has(memory, rollout, 2))
            for number in range(200):
                emit_message(f"sent by its number, {number}")
    names = ["agentlightning.annotation", *["agentlightning.message"] * 201, ATTEMPT_SPAN]
    assert await names_of(memory, rollout) == names


async def test_a_process_has_one_thread_for_all_its_attempts(memory: Store) -> None:
    tracer = Tracer()
    with tracer.lifespan(memory):
        for _ in range(3):
            async with tracer.trace_context(**ids(await started(memory))):
                emit_reward(1.0)
    assert [thread.name for thread in threading.enumerate()].count("rollbook-spans") == 1


async def test_flushing_in_the_sending_thread_does_not_wait(memory: Store) -> None:
    tracer = Tracer()
    with tracer.lifespan(memory):
        scope = tracer.open_scope(**ids(await started(memory)))
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        span_thread().call_soon(lambda: loop.call_soon_threadsafe(answered.set_result, scope.recorder.flush()))
        assert await answered is False
        await tracer.close_scope(scope)


def _finished(tracer: Tracer, scope: Any, name: str, **attributes: Any) -> Any:
    """Return a span of the SDK that has ended, outside of any scope."""
    span: Any = tracer.provider.get_tracer("test").start_span(name, attributes=attributes)
    span.end()
    return span


@pytest.mark.slow
@pytest.mark.torture
async def test_cost_of_a_span_in_the_thread_of_the_agent(memory: Store) -> None:
    """Print it, beside the SDK alone: in bursts with pauses, as agents make spans, and without any pause."""
    burst_count = rounds(80)
    tracer = Tracer()
    bare = TracerProvider(shutdown_on_exit=False).get_tracer("bare")

    def microseconds(of: Any, bursts: int, spans: int, pause: Any) -> float:
        spent = 0.0
        for _ in range(bursts):
            began = time.thread_time()
            for _ in range(spans):
                of.start_span("call", attributes={"gen_ai.request.model": "m", "n": 1}).end()
            spent += time.thread_time() - began
            pause()
        return spent / bursts / spans * 1e6

    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(await started(memory))) as ours:
            scope = current_scope()
            assert scope is not None
            for bursts, spans in ((burst_count, 50), (1, 50 * burst_count)):
                alone = microseconds(bare, bursts, spans, lambda: None)
                recorded = microseconds(ours, bursts, spans, scope.recorder.flush)
                print(f"\n{bursts} times {spans} spans: {alone:.1f} µs each in the SDK, {recorded:.1f} µs recorded")
    assert len(tracer.get_last_trace()) == 100 * burst_count + 1


async def _has(store: Store, rollout: Any, count: int) -> bool:
    return len(await names_of(store, rollout)) >= count
