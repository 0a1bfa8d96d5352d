"""Emitted values become spans of the attempt, in the forms of Agent-lightning 0.3."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import store.training
from store import Span
from store.interface.store import Store
from store.training import (
    SpanCoreFields,
    Tracer,
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_message_value,
    get_object_value,
    get_reward_value,
    is_reward_span,
    make_link_attributes,
    operation,
    run_in_scope,
)
from store.training.tracing.reward_spans import get_rewards_from_span
from tests.documented_names import public_names
from tests.training.training_helpers import spans_of, started

INPUT = "agentlightning.operation.input"
OUTPUT = "agentlightning.operation.output"


def test_a_number_is_one_dimension() -> None:
    for reward in (0.5, 1, True):
        span = emit_reward(reward, propagate=False)
        assert span.name == "agentlightning.annotation"
        assert span.status.status_code == "OK"
        assert span.attributes == {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
        assert type(span.attributes["agentlightning.reward.0.value"]) is float
        assert get_reward_value(span) == float(reward)


def test_of_several_dimensions_the_primary_one_comes_first() -> None:
    span = emit_reward({"style": 1, "truth": 0.25, "length": 3}, primary_key="truth", propagate=False)
    assert get_rewards_from_span(span) == [("truth", 0.25), ("style", 1.0), ("length", 3.0)]
    assert get_reward_value(span) == 0.25


def test_a_reward_may_say_more() -> None:
    links = make_link_attributes({"gen_ai.response.id": "r1"})
    span = emit_reward(1.0, attributes=links | {"judge": {"model": "m"}}, propagate=False)
    assert span.attributes["agentlightning.link.0.value_match"] == "r1"
    assert span.attributes["judge.model"] == "m"


@pytest.mark.parametrize("bad", ["1", None, [1.0], 1j], ids=repr)
def test_a_reward_that_is_no_number_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError, match="a reward is a number"):
        emit_reward(bad, propagate=False)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=repr)
def test_a_reward_that_no_database_gives_back_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        emit_reward(bad, propagate=False)
    with pytest.raises(ValueError, match="'b'"):
        emit_reward({"a": 1.0, "b": bad}, primary_key="a", propagate=False)


def test_several_dimensions_need_a_primary_one_that_exists_and_are_numbers() -> None:
    with pytest.raises(ValueError, match="primary_key=None"):
        emit_reward({"a": 1.0}, propagate=False)
    with pytest.raises(ValueError, match="not one of the dimensions 'a'"):
        emit_reward({"a": 1.0}, primary_key="b", propagate=False)
    with pytest.raises(ValueError, match="'b' is str"):
        emit_reward({"a": 1.0, "b": "x"}, primary_key="a", propagate=False)  # pyright: ignore[reportArgumentType]


def test_annotation_is_flattened_and_refuses_unsupported_values() -> None:
    span = emit_annotation({"a": {"b": [1, 2]}, "c": "x"}, propagate=False)
    assert (span.name, span.attributes) == ("agentlightning.annotation", {"a.b": [1, 2], "c": "x"})
    for bad in ({"a": None}, {"a": object()}):
        with pytest.raises(ValueError, match="attribute 'a'"):
            emit_annotation(bad, propagate=False)


def test_message_is_text_and_its_attributes_become_json() -> None:
    span = emit_message("hello", {"n": None, "d": {"a": 1}}, propagate=False)
    assert span.name == "agentlightning.message"
    assert span.attributes == {"agentlightning.message.body": "hello", "n": "null", "d": '{"a": 1}'}
    assert get_message_value(span) == "hello"
    with pytest.raises(TypeError, match="a message is text"):
        emit_message(1, propagate=False)  # pyright: ignore[reportArgumentType]
    assert get_message_value(Span.from_attributes(attributes={})) is None
    with pytest.raises(TypeError, match="not text"):
        get_message_value(Span.from_attributes(attributes={"agentlightning.message.body": 1}))


@pytest.mark.parametrize(
    "value", ["x", "", 1, -1.5, True, False, b"\x00\xff", {"a": [1, None]}, [1, "x"], None], ids=repr
)
def test_an_object_comes_back_as_it_was(value: Any) -> None:
    span = emit_object(value, propagate=False)
    back = get_object_value(span)
    assert span.name == "agentlightning.object"
    assert (back, type(back)) == (value, type(value))


def test_an_object_says_its_type() -> None:
    assert emit_object(1, propagate=False).attributes["agentlightning.object.type"] == "int"
    ordered = emit_object(OrderedDict(a=1), propagate=False)
    assert ordered.attributes["agentlightning.object.type"] == "collections.OrderedDict"
    assert ordered.attributes["agentlightning.object.json"] == '{"a": 1}'


def test_objects_outside_of_json_and_damaged_objects_raise_errors() -> None:
    with pytest.raises(RuntimeError, match="not a JSON value"):
        emit_object(object(), propagate=False)
    assert get_object_value(Span.from_attributes(attributes={})) is None
    for damaged in (
        {"agentlightning.object.json": "{"},
        {"agentlightning.object.type": "complex", "agentlightning.object.literal": "1j"},
        {"agentlightning.object.type": "int", "agentlightning.object.literal": "x"},
    ):
        with pytest.raises(RuntimeError, match="cannot be read"):
            get_object_value(Span.from_attributes(attributes=damaged))


def test_an_exception_is_a_span_that_went_well() -> None:
    with pytest.raises(LookupError) as caught:
        failing()
    span = emit_exception(caught.value, {"tool": "search"}, propagate=False)
    assert (span.name, span.status.status_code) == ("agentlightning.exception", "OK")
    assert span.attributes["exception.type"] == "LookupError"
    assert span.attributes["exception.message"] == "nothing found"
    assert span.attributes["exception.escaped"] is True
    assert "test_emit.py" in str(span.attributes["exception.stacktrace"])
    with pytest.raises(TypeError, match="needs an exception"):
        emit_exception("x", propagate=False)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "emit",
    [
        lambda: emit_reward(1.0),
        lambda: emit_annotation({"a": 1}),
        lambda: emit_message("m"),
        lambda: emit_object(1),
        lambda: emit_exception(ValueError()),
        lambda: operation(name="x").__enter__(),
    ],
    ids=["reward", "annotation", "message", "object", "exception", "operation"],
)
def test_emitting_outside_of_an_attempt_explains_the_alternatives(emit: Any) -> None:
    with pytest.raises(RuntimeError, match=r"outside of an attempt.*run_in_scope.*propagate=False"):
        emit()


def span_with(attributes: Any = None, name: str = "s") -> Span:
    return Span.from_attributes(attributes=attributes or {}, name=name)


def test_rewards_are_read_in_every_form_there_was() -> None:
    assert get_reward_value(span_with({"agentlightning.reward.0.value": 1})) == 1.0
    assert get_reward_value(span_with({"agentops.task.output": '{"type": "reward", "value": 2}'})) == 2.0
    assert get_reward_value(span_with({"agentops.entity.output": '{"type": "reward", "value": null}'})) is None
    assert get_reward_value(span_with({"reward": 3}, "agentlightning.annotation")) == 3.0
    assert get_reward_value(span_with({"reward": 3}, "other")) is None
    assert get_reward_value(span_with({"agentlightning.reward_model": "x"})) is None
    with pytest.raises(ValueError, match="is an attribute itself"):
        get_reward_value(span_with({"agentlightning.reward": 1}))


def test_the_final_reward_is_that_of_the_last_span_that_has_one() -> None:
    first, plain, last = emit_reward(0.1, propagate=False), span_with(), emit_reward(0.2, propagate=False)
    assert find_final_reward([first, plain, last, plain]) == 0.2
    assert find_final_reward([plain]) is None
    assert [is_reward_span(span) for span in (first, plain)] == [True, False]
    spans = [span_with({"agentlightning.reward.0.value": 1.0}), plain]
    assert find_reward_spans(spans) == spans[:1]


@operation
def decorated_at_import(question: str, *more: int, top: int = 3, **options: Any) -> dict[str, Any]:
    """A function of a module, decorated when no attempt was running."""
    return {"hits": [question, str(top)], "n": len(more) + len(options)}


@operation(name="ponder", round=1)
async def decorated_async(question: str) -> str:
    return question.upper()


@operation
def failing() -> None:
    raise LookupError("nothing found")


async def recorded(store: Store, work: Any) -> list[Span]:
    """Return the spans of an attempt that does some work."""
    rollout = await started(store)
    tracer = Tracer()
    with tracer.lifespan(store):
        async with tracer.trace_context(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id):
            result = work()
            if hasattr(result, "__await__"):
                await result
    return await spans_of(store, rollout)


async def test_a_function_decorated_at_import_is_recorded_with_arguments_and_result(memory: Store) -> None:
    span, root = await recorded(memory, lambda: decorated_at_import("q", 7, 8, deep=True))
    assert span.name == "agentlightning.operation"
    assert span.parent_id == root.span_id
    assert span.attributes == {
        "agentlightning.operation.name": "decorated_at_import",
        f"{INPUT}.question": "q",
        f"{INPUT}.more": [7, 8],
        f"{INPUT}.top": 3,
        f"{INPUT}.options.deep": True,
        f"{OUTPUT}.hits": ["q", "3"],
        f"{OUTPUT}.n": 3,
    }
    assert span.status.status_code == "OK"


def test_a_decorated_function_just_runs_outside_of_attempts() -> None:
    assert decorated_at_import("q")["n"] == 0
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        decorated_at_import()  # pyright: ignore[reportCallIssue]


async def test_an_async_function_is_recorded_until_it_returns(memory: Store) -> None:
    span, _ = await recorded(memory, lambda: decorated_async("why"))
    assert span.attributes == {
        "agentlightning.operation.name": "ponder",
        "round": 1,
        f"{INPUT}.question": "why",
        OUTPUT: "WHY",
    }


async def test_error_of_an_operation_is_recorded_and_raised(memory: Store) -> None:
    def work() -> None:
        with pytest.raises(LookupError, match="nothing found"):
            failing()

    span, _ = await recorded(memory, work)
    assert (span.status.status_code, span.status.description) == ("ERROR", "nothing found")
    (event,) = span.events
    assert (event.name, event.attributes["exception.type"]) == ("exception", "LookupError")


async def test_operation_block_records_inputs_and_outputs(memory: Store) -> None:
    def work() -> SpanCoreFields:
        with operation(name="vote", weights=[0.5, 0.5]) as op:
            op.set_input("a", "b", round=2)
            op.set_output({"best": "a"})
            with pytest.raises(RuntimeError, match="has not ended"):
                op.span()
        return op.span()

    span, _ = await recorded(memory, work)
    assert span.attributes == {
        "agentlightning.operation.name": "vote",
        "weights": [0.5, 0.5],
        f"{INPUT}.args": ["a", "b"],
        f"{INPUT}.round": 2,
        f"{OUTPUT}.best": "a",
    }


def test_a_block_that_is_not_propagated_is_only_built() -> None:
    with operation(propagate=False, name="vote") as op:
        op.set_output(1)
    assert op.span().attributes == {"agentlightning.operation.name": "vote", OUTPUT: 1}
    with pytest.raises(ZeroDivisionError), operation(propagate=False) as failed:
        _ = 1 // 0
    assert failed.span().status.status_code == "ERROR"
    assert failed.span().attributes["exception.type"] == "ZeroDivisionError"


def test_an_operation_is_named_once_and_decorates_functions_only() -> None:
    twice: dict[str, Any] = {"name": "a", "agentlightning.operation.name": "b"}
    with pytest.raises(ValueError, match="given twice"):
        operation(None, **twice)
    with pytest.raises(ValueError, match="needs a function"):
        operation("search")  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(RuntimeError, match="not begun"):
        operation(name="a").set_output(1)


async def test_a_thread_of_the_agents_own_carries_the_attempt_along(memory: Store) -> None:
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory), ThreadPoolExecutor(4) as pool:
        async with tracer.trace_context(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id):
            with operation(name="fan-out"):
                list(pool.map(run_in_scope(emit_message), map(str, range(8))))
            lonely = pool.submit(emit_message, "lost").exception()
    spans = await spans_of(memory, rollout)
    outer = next(span for span in spans if span.name == "agentlightning.operation")
    messages = [span for span in spans if span.name == "agentlightning.message"]
    assert sorted(get_message_value(span) or "" for span in messages) == [str(number) for number in range(8)]
    assert {span.parent_id for span in messages} == {outer.span_id}
    assert isinstance(lonely, RuntimeError)


async def test_emitted_spans_are_stored_as_they_were_returned(memory: Store) -> None:
    emitted: list[SpanCoreFields] = []
    rollout = await started(memory)
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id):
            emitted += [emit_reward(0.5), emit_message("m"), emit_object({"a": 1})]
    *stored, root = await spans_of(memory, rollout)
    assert root.name == "agentlightning.attempt"
    for one, other in zip(stored, emitted, strict=True):
        assert (one.name, one.attributes, one.status) == (other.name, other.attributes, other.status)
        assert one.start_time == pytest.approx(other.start_time, abs=1e-5)


def test_importing_the_loop_starts_nothing_and_brings_no_sdk() -> None:
    program = (
        "import sys, threading, store.training\n"
        "heavy = [n for n in ('opentelemetry', 'openai', 'aiohttp', 'sqlalchemy') if n in sys.modules]\n"
        "print(heavy, threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[] 1"


def test_every_public_name_is_there() -> None:
    names = public_names(store.training)
    assert [name for name in names if not hasattr(store.training, name)] == []
    assert names == sorted(names, key=lambda name: (not name[0].isupper(), name))
    mistyped = "emit_rewrad"
    with pytest.raises(AttributeError, match="no attribute 'emit_rewrad'"):
        getattr(store.training, mistyped)
