"""A span with a value that no store accepts is stored with a mark, whatever its source is."""

from __future__ import annotations

import math
import multiprocessing
import random
from collections.abc import Callable
from typing import Any

import openai
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

import store.training.tracing.recorder as recording
from store.errors import Invalid, WrongProcess
from store.interface.store import Store
from store.models import Span
from store.otel.repair import fitting, reduced, repaired
from store.runtime.lenient_json import safe_text
from store.semconv import ATTEMPT_ID, CHANGED, FULL_TEXT, ROLLOUT_ID
from store.training import (
    Runner,
    SpanCoreFields,
    Tracer,
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    operation,
    rollout,
)
from store.training.tracer import ATTEMPT_SPAN
from store.training.tracing.reward_spans import get_reward_value, get_rewards_from_span
from store.training.tracing.span_attributes import sanitize_attributes
from store.training.tracing.spool import SpanSpool
from tests.training.any_values import Textless, TextlessError, deep, endless
from tests.training.training_helpers import names_of, spans_of, spans_of_attempt, started
from tests.training.unreliable import Unreliable

REPLACED = "U+0000 or a lone surrogate became U+FFFD"


@operation
def tool(value: Any) -> Any:
    """Return the argument."""
    return value


def ids(started_rollout: Any) -> dict[str, Any]:
    return {"rollout_id": started_rollout.rollout_id, "attempt_id": started_rollout.attempt.attempt_id}


async def recorded(memory: Store, work: Callable[[], Any], tracer: Tracer | None = None) -> list[Span]:
    """Return the spans of an attempt, without its root."""

    async def working() -> None:
        work()

    return (await spans_of_attempt(memory, working, tracer))[:-1]


async def test_values_that_no_store_accepts_are_changed_and_marked(live: Store) -> None:
    def work() -> None:
        emit_reward(0.7, attributes={"raw": math.nan, "judge": "\ud83d", "big": 2**80, "ids": [2**80, 1]})
        emit_message("a\0b", {"path": "caf\udce9"})
        emit_annotation({"score": math.inf, "k\0": {"\ud83d": 1}})
        emit_object({"a": "\ud83d"})
        emit_exception(ValueError("bad \0"))
        tool(-math.inf)

    reward, message, annotation, thing, exception, call = await recorded(live, work)
    assert get_reward_value(reward) == 0.7
    assert reward.attributes["raw"] == "NaN"
    assert reward.attributes["judge"] == "\ufffd"
    assert reward.attributes["big"] == str(2**80)
    assert reward.attributes["ids"] == f'["{2**80}", 1]'
    assert reward.attributes[CHANGED] == [
        "raw: the number NaN became text",
        f"judge: {REPLACED}",
        "big: an integer of more than 64 bits became text",
        "ids: an integer of more than 64 bits became text",
    ]
    assert message.attributes["agentlightning.message.body"] == "a\ufffdb"
    assert message.attributes["path"] == "caf\ufffd"
    assert annotation.attributes["score"] == "Infinity"
    assert annotation.attributes["k\ufffd.\ufffd"] == 1
    assert thing.attributes["agentlightning.object.json"] == '{"a": "\ufffd"}'
    assert exception.attributes["exception.message"] == "bad \ufffd"
    assert call.attributes["agentlightning.operation.output"] == "-Infinity"
    assert all(CHANGED in span.attributes for span in (message, annotation, thing, exception, call))


async def test_every_part_of_a_librarys_span_is_repaired(memory: Store) -> None:
    tracer = Tracer()

    def work() -> None:
        library = tracer.provider.get_tracer("lib\0", "\ud83d")
        link = trace.Link(trace.SpanContext(1, 2, is_remote=False), {"l": "\0"})
        with library.start_as_current_span("name \ud83d", links=[link]) as span:
            span.add_event("event \ud83d", {"e": math.nan, "f\0": [1.0, math.inf]})
            span.set_status(trace.Status(trace.StatusCode.ERROR, "status \ud83d"))

    (span,) = await recorded(memory, work, tracer)
    assert span.name == "name \ufffd"
    assert span.status.description == "status \ufffd"
    assert span.events[0].name == "event \ufffd"
    assert span.events[0].attributes == {"e": "NaN", "f\ufffd": '[1.0, "Infinity"]'}
    assert span.links[0].attributes == {"l": "\ufffd"}
    assert span.model_extra is not None
    assert span.model_extra["instrumentation_scope"] == {"name": "lib\ufffd", "version": "\ufffd"}
    changes = span.attributes[CHANGED]
    assert isinstance(changes, list)
    assert [str(change).partition(":")[0] for change in changes] == [
        "name",
        "status.description",
        "events[0].name",
        "events[0].attributes.e",
        "events[0].attributes",
        "events[0].attributes.f\ufffd",
        "links[0].attributes.l",
        "instrumentation_scope.name",
        "instrumentation_scope.version",
    ]


async def test_a_trace_without_an_attempt_keeps_a_span_with_a_lone_surrogate() -> None:
    tracer = Tracer()
    async with tracer.trace_context("local"):
        tracer.provider.get_tracer("library").start_span("name \ud83d").end()
        assert tracer.create_span("also \ud83d").name == "also \ufffd"
    assert [span.name for span in tracer.get_last_trace()] == ["name \ufffd", "also \ufffd", ATTEMPT_SPAN]


async def test_an_error_with_a_nul_is_on_the_span_of_the_attempt(memory: Store) -> None:
    @rollout
    def agent(task: Any) -> None:
        del task
        raise ValueError("bad \0 byte")

    runner = Runner(Tracer())
    with runner.run_context(agent=agent, store=memory), pytest.raises(ValueError, match="byte"):
        await runner.step(1)
    (failed,) = await memory.query_rollouts()
    (root,) = await spans_of(memory, failed)
    assert root.events[0].attributes["exception.message"] == "bad \ufffd byte"
    assert (await memory.query_attempts(failed.rollout_id))[-1].status == "failed"


async def test_object_without_text_is_described_and_other_values_are_recorded(memory: Store) -> None:
    def work() -> None:
        with pytest.raises(TextlessError):
            raising()
        tool({"good": 1, "bad": Textless()})
        emit_message("m", {"list": [1, Textless()], "good": True})

    @operation
    def raising() -> None:
        raise TextlessError

    failed, call, message = await recorded(memory, work)
    assert failed.status.description == "<TextlessError: str() raised LookupError>"
    assert failed.events[0].attributes["exception.message"] == failed.status.description
    assert call.attributes["agentlightning.operation.input.value.good"] == 1
    assert call.attributes["agentlightning.operation.input.value.bad"] == '"<Textless: str() raised LookupError>"'
    assert call.attributes[CHANGED] == [
        "agentlightning.operation.input.value.bad: a value of type Textless has no text",
        "agentlightning.operation.output.bad: a value of type Textless has no text",
    ]
    assert message.attributes["list"] == '[1, "<Textless: str() raised LookupError>"]'
    assert message.attributes["good"] is True


@pytest.mark.parametrize("value", [endless(), deep(5000), {(1, 2): 1}, 10**5000], ids=["cycle", "deep", "keys", "int"])
async def test_a_function_returns_its_result_if_that_cannot_be_recorded(memory: Store, value: Any) -> None:
    def work() -> None:
        assert tool(value) is value

    (span,) = await recorded(memory, work)
    assert span.name == "agentlightning.operation"


def test_attributes_without_a_text_are_marked_by_name() -> None:
    assert safe_text(Textless()) == "<Textless: str() raised LookupError>"
    attributes = sanitize_attributes({1: Textless(), "ok": [1]})  # pyright: ignore[reportArgumentType]
    assert attributes == {
        "1": '"<Textless: str() raised LookupError>"',
        "ok": [1],
        CHANGED: ["1: a value of type Textless has no text"],
    }
    with pytest.raises(ValueError, match="JSON cannot encode"):
        sanitize_attributes({"deep": deep(5000)}, force=False)


@pytest.mark.parametrize(
    "attributes",
    [
        {"agentlightning.reward.0.value": math.nan, "agentlightning.reward": {"0": {"value": 5}, "1": {"value": 6}}},
        {"a": None, "b": object(), 1: 2, (1,): Textless()},
        {f"a{index}": index for index in range(200)},
        Textless(),
        [1, Textless()],
        endless(),
        "text",
        {"a\0": 1, "a\ufffd": 2},
    ],
    ids=["rewards", "types", "many", "object", "list", "cycle", "text", "keys"],
)
async def test_a_reward_is_stored_exactly_with_any_attributes(memory: Store, attributes: Any) -> None:
    limited = Tracer(provider=TracerProvider(shutdown_on_exit=False, span_limits=SpanLimits(max_attributes=128)))
    (span,) = await recorded(memory, lambda: emit_reward(0.7, attributes=attributes), limited)
    assert get_rewards_from_span(span) == [("primary", 0.7)]


def test_a_reward_that_is_not_finite_is_refused_where_it_is_emitted() -> None:
    for bad in (math.nan, -math.inf, 10**400):
        with pytest.raises(Invalid, match="not a finite number; emit a finite number, or no reward"):
            emit_reward(bad, propagate=False)
        with pytest.raises(Invalid, match="finite number"):
            emit_annotation({"reward": bad}, propagate=False)
        with pytest.raises(Invalid, match=r"reward\.0\.value"):
            emit_annotation({"agentlightning": {"reward": [{"name": "x", "value": bad}]}}, propagate=False)
    assert emit_annotation({"score": math.nan}, propagate=False).name == "agentlightning.annotation"


@pytest.mark.parametrize("kind", ["number", "integer", "fields", "span"])
async def test_a_returned_reward_that_is_not_finite_is_refused(memory: Store, kind: str) -> None:
    attributes: dict[str, Any] = {"agentlightning.reward.0.value": math.nan}
    status = emit_reward(1.0, propagate=False).status
    value: Any = {
        "number": math.nan,
        "integer": 10**400,
        "fields": [SpanCoreFields(name="n", status=status, attributes=attributes)],
        "span": [Span.from_attributes(attributes=attributes)],
    }[kind]

    @rollout
    def agent(task: Any) -> Any:
        del task
        return value

    runner = Runner(Tracer())
    with runner.run_context(agent=agent, store=memory), pytest.raises(Invalid, match="finite number"):
        await runner.step(1)
    (failed,) = await memory.query_rollouts()
    assert await names_of(memory, failed) == [ATTEMPT_SPAN]


async def test_a_part_that_is_too_large_is_cut_and_the_rest_is_kept(memory: Store) -> None:
    def work() -> None:
        emit_reward(0.7, attributes={"prompt": "é" * 9_000_000, "note": "x"})
        emit_message("after")

    reward, message = await recorded(memory, work)
    assert get_reward_value(reward) == 0.7
    assert reward.attributes["note"] == "x"
    prompt = str(reward.attributes["prompt"])
    assert set(prompt) == {"é"}
    assert len(prompt) > 1_000_000
    assert reward.attributes[CHANGED] == [f"prompt: cut after {2 * len(prompt):,} of 18,000,000 bytes"]
    assert message.name == "agentlightning.message"


def test_a_list_that_is_too_large_is_left_out_and_named() -> None:
    span = fitting(Span.from_attributes(attributes={"ids": list(range(100_000)), "few": [1, 2]}), 100_000)
    assert span.attributes == {"few": [1, 2], CHANGED: ["ids: a list of 100,000 items was left out"]}


async def test_a_name_that_is_too_long_is_shortened_with_its_full_text(memory: Store) -> None:
    tracer = Tracer()

    def work() -> None:
        with tracer.operation_context("n" * 2000, {"gen_ai.response.model": "m" * 600}):
            pass

    (span,) = await recorded(memory, work, tracer)
    assert span.name == "n" * 1024
    assert span.attributes[f"{FULL_TEXT}name"] == "n" * 2000
    assert span.attributes["gen_ai.response.model"] == "m" * 512
    assert span.attributes[f"{FULL_TEXT}gen_ai.response.model"] == "m" * 600


def test_a_span_of_many_small_parts_keeps_its_reward() -> None:
    many = {f"a{index}": "x" * 20 for index in range(5_000)} | {"agentlightning.reward.0.value": 0.7}
    span = fitting(Span.from_attributes(attributes=many), 50_000)
    assert get_reward_value(span) == 0.7
    assert 500 < len(span.attributes) < 5_000
    assert "left out" in str(span.attributes[CHANGED])
    small = Span.from_attributes(attributes={"a": 1})
    assert fitting(small, 50_000) is small
    assert repaired(small) is small


async def test_refused_span_is_reduced_and_other_spans_are_unchanged(memory: Store) -> None:
    class Picky(Unreliable):
        async def add_many_spans(self, spans: Any) -> Any:
            if any("poison" in span.attributes for span in spans):
                raise Invalid("spans", "are poisoned")
            return await super().add_many_spans(spans)

    attempt = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(Picky(memory)):
        async with tracer.trace_context(**ids(attempt)):
            emit_message("before", {"a": 1})
            emit_reward({"b": 0.5, "a": 1.0}, primary_key="a", attributes={"poison": 1, "c": 2})
            emit_message("after", {"a": 1})
    before, reward, after, _ = await spans_of(memory, attempt)
    assert get_rewards_from_span(reward) == [("a", 1.0), ("b", 0.5)]
    assert (reward.name, reward.status.status_code) == ("agentlightning.annotation", "OK")
    assert reward.start_time is not None
    assert str(reward.attributes[CHANGED]).startswith("['only the rewards are left, because of an error: spans: are")
    assert "c" not in reward.attributes
    assert before.attributes["a"] == after.attributes["a"] == 1


def test_a_reduced_span_has_as_many_rewards_as_a_store_accepts() -> None:
    attributes: dict[str, Any] = {}
    for index in range(100):
        attributes |= {
            f"agentlightning.reward.{index}.name": "d\0" * 300,
            f"agentlightning.reward.{index}.value": index,
        }
    span = reduced(Span.from_attributes(attributes=attributes, name="n" * 2000, start_time=math.nan), "too large")
    values = [value for _, value in get_rewards_from_span(span)]
    assert values == [float(index) for index in range(len(values))]
    assert 4 < len(values) < 10
    assert span.start_time is None
    assert len(span.name) == 1024


async def test_a_span_with_the_id_of_another_stored_span_is_stored_under_a_derived_id(
    memory: Store, caplog: Any
) -> None:
    attempt = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(attempt)) as spans:
            span: Any = spans.start_span("second", attributes={"a": 1})
            context = span.get_span_context()
            taken, trace_id = f"{context.span_id:016x}", f"{context.trace_id:032x}"
            first = Span.from_attributes(name="first", attributes={}, trace_id=trace_id, span_id=taken, **ids(attempt))
            await memory.add_span(first)
            span.end()
            spans.start_span("other").end()
    stored = {span.name: span for span in await spans_of(memory, attempt)}
    assert stored.keys() == {"first", "second", "other", ATTEMPT_SPAN}
    second = stored["second"]
    assert second.attributes == {"a": 1, CHANGED: [f"span_id: {taken} is the id of another span"]}
    assert second.span_id != taken
    assert second.context is not None
    assert second.context.span_id == second.span_id
    assert "'second'" in caplog.text


@pytest.mark.parametrize("value", ["\ud83d", math.nan, 2**80], ids=["surrogate", "nan", "integer"])
async def test_spooled_spans_are_repaired_too(
    memory: Store, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setattr(recording, "WRITE_SECONDS", 0.5)
    monkeypatch.setattr(recording, "_RETRY_SECONDS", 0.05)
    unreliable = Unreliable(memory)
    attempt = await started(memory)
    tracer = Tracer(spool=SpanSpool(tmp_path))
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(attempt)):
            unreliable.is_down = True
            emit_reward(0.7, attributes={"value": value})
            unreliable.is_down = False
    reward, _ = await spans_of(memory, attempt)
    assert get_reward_value(reward) == 0.7
    assert CHANGED in reward.attributes


class Repeating(IdGenerator):
    """Generator of a provider that gives every span the same id."""

    def generate_span_id(self) -> int:
        return 5

    def generate_trace_id(self) -> int:
        return 7


@pytest.mark.parametrize("kind", ["ours", "theirs", "existing tracer"])
async def test_a_seeded_agent_gets_no_equal_ids(memory: Store, kind: str) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    earlier = provider.get_tracer("earlier")
    earlier.start_span("before").end()
    tracer = Tracer() if kind == "ours" else Tracer(provider=provider)
    stored: list[Span] = []
    for _ in range(2):

        def work() -> None:
            for number in range(3):
                random.seed(0)
                library = earlier if kind == "existing tracer" else tracer.provider.get_tracer("library")
                library.start_span(f"turn {number}").end()
                random.seed(0)
                emit_reward(number)

        random.seed(0)
        expected = random.random()
        random.seed(0)
        stored += await recorded(memory, work, tracer)
        random.seed(0)
        assert random.random() == expected
    assert len({span.span_id for span in stored}) == len(stored) == 12
    assert len({span.trace_id for span in stored}) == 2


async def test_recording_does_not_change_the_random_numbers_of_an_agent(memory: Store) -> None:
    drawn: list[float] = []

    def work() -> None:
        random.seed(1)
        emit_reward(1.0)
        tool(1)
        drawn.append(random.random())

    await recorded(memory, work)
    random.seed(1)
    assert drawn == [random.random()]


async def test_spans_of_a_provider_that_repeats_ids_get_new_ids(memory: Store, caplog: Any) -> None:
    provider = TracerProvider(shutdown_on_exit=False, id_generator=Repeating())
    tracer = Tracer(provider=provider)

    def work() -> None:
        with provider.get_tracer("library").start_as_current_span("outer"):
            provider.get_tracer("library").start_span("inner").end()
        emit_reward(0.5)

    attempt = await started(memory)
    with tracer.lifespan(memory):
        async with tracer.trace_context(**ids(attempt)):
            work()
    inner, outer, reward, root = await spans_of(memory, attempt)
    assert [span.name for span in (inner, outer, root)] == ["inner", "outer", ATTEMPT_SPAN]
    assert len({span.span_id for span in (inner, outer, reward, root)}) == 4
    assert inner.parent_id == outer.span_id
    assert outer.parent_id == reward.parent_id == root.span_id == f"{5:016x}"
    assert outer.attributes[CHANGED] == ["span_id: 0000000000000005 is the id of another span"]
    assert outer.attributes[ROLLOUT_ID], outer.attributes[ATTEMPT_ID]
    assert "has the id 0000000000000005 of another span" in caplog.text


async def test_returned_spans_with_equal_ids_are_all_stored(memory: Store) -> None:
    library = TracerProvider(shutdown_on_exit=False, id_generator=Repeating()).get_tracer("library")
    spans: list[ReadableSpan] = []
    for name in ("a", "b"):
        span: Any = library.start_span(name)
        span.end()
        spans.append(span)

    @rollout
    def agent(task: Any) -> Any:
        del task
        return [*spans, *spans]

    runner = Runner(Tracer())
    with runner.run_context(agent=agent, store=memory):
        done = await runner.step(1)
    a, b, _ = await spans_of(memory, done)
    assert (a.name, a.span_id, b.name) == ("a", f"{5:016x}", "b")
    assert b.attributes == {CHANGED: ["span_id: 0000000000000005 is the id of another span"]}


IN_CHILDREN: dict[str, Callable[[Tracer], Any]] = {
    "reward": lambda _: emit_reward(0.3),
    "annotation": lambda _: emit_annotation({"a": 1}),
    "message": lambda _: emit_message("m"),
    "function": lambda _: tool(1),
    "block": lambda _: operation(name="x").__enter__(),
    "span": lambda tracer: tracer.create_span("x"),
    "model call": lambda _: openai.OpenAI(
        base_url="http://127.0.0.1:9", api_key="k", max_retries=0
    ).chat.completions.create(model="m", messages=[]),
}


async def test_a_forked_child_gets_an_error_and_does_not_wait(memory: Store) -> None:
    tracer = Tracer()

    def in_child(results: Any) -> None:
        for name, action in IN_CHILDREN.items():
            try:
                action(tracer)
            except WrongProcess as error:
                results.put((name, str(error)))
        # Libraries may record spans without an error, and their spans are not stored.
        tracer.provider.get_tracer("library").start_span("library").end()
        results.put(("unrecorded", emit_reward(1.0, propagate=False).name))

    def work() -> None:
        emit_reward(0.1)
        forks = multiprocessing.get_context("fork")
        results = forks.SimpleQueue()
        child = forks.Process(target=in_child, args=(results,))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        errors.update(results.get() for _ in range(len(IN_CHILDREN) + 1))
        emit_reward(0.2)

    errors: dict[str, str] = {}
    spans = await recorded(memory, work, tracer)
    assert set(errors) == {*IN_CHILDREN, "unrecorded"}
    assert "return the result to the parent and record it there" in errors["reward"]
    assert [get_reward_value(span) for span in spans] == [0.1, 0.2]
