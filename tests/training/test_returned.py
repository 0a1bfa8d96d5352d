"""The value that an agent returns becomes its reward or its spans, or fails the attempt."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from store.interface.store import Store
from store.models import Span, TraceStatus
from store.training import (
    SpanCoreFields,
    current_scope,
    emit_message,
    emit_reward,
    get_reward_value,
)
from store.training.tracer import ATTEMPT_SPAN
from tests.training.doing import (
    Doing,
    Recording,
    last,
    returning,
    step,
)
from tests.training.training_helpers import names_of, spans_of


class Numpyish:
    """A scalar as numpy has them: no number to Python, and `item` gives one."""

    ndim = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


REWARDS: dict[str, tuple[Any, float]] = {
    "float": (0.5, 0.5),
    "int": (1, 1.0),
    "bool": (True, 1.0),
    "numpy": (Numpyish(0.25), 0.25),
    "numpy int": (Numpyish(2), 2.0),
    "dimensions": ({"style": 0.1, "primary": 0.9}, 0.9),
    "one dimension": ({"truth": Numpyish(0.5)}, 0.5),
}


@pytest.mark.parametrize("case", REWARDS)
async def test_a_number_that_is_returned_is_the_reward_below_the_attempts_root(memory: Store, case: str) -> None:
    returned, value = REWARDS[case]
    hook = Recording()
    rollout = await step(memory, returning(returned), [hook])
    reward, root = await spans_of(memory, rollout)
    assert (get_reward_value(reward), reward.parent_id, root.parent_id) == (value, root.span_id, None)
    assert (reward.sequence_id, reward.trace_id) == (1, root.trace_id)
    assert hook.spans == [reward, root]


async def test_the_reward_of_the_last_worked_example_comes_after_all_else(memory: Store) -> None:
    def agent(*_: Any) -> float:
        scope = current_scope()
        assert scope is not None
        with scope.tracer.start_as_current_span("outer"), scope.tracer.start_as_current_span("inner"):
            emit_reward(0.1)
        emit_message("m")
        return 0.9

    rollout = await step(memory, Doing(agent))
    stored = await spans_of(memory, rollout)
    assert [(span.sequence_id, span.name) for span in stored] == [
        (1, "agentlightning.annotation"),
        (2, "inner"),
        (3, "outer"),
        (4, "agentlightning.message"),
        (5, "agentlightning.annotation"),
        (6, ATTEMPT_SPAN),
    ]
    assert [get_reward_value(span) for span in stored if get_reward_value(span) is not None] == [0.1, 0.9]
    assert len({span.trace_id for span in stored}) == 1


async def test_nothing_returned_stores_nothing(memory: Store) -> None:
    empty: list[Any] = []
    for nothing in (None, empty):
        rollout = await step(memory, returning(nothing))
        assert rollout.status == "succeeded"
        assert await names_of(memory, rollout) == [ATTEMPT_SPAN]


OTHER_KINDS: dict[str, Any] = {
    "text": "x",
    "tuple": (1.0,),
    "bytes": b"1",
    "dict of text": {"a": "x"},
    "empty dict": {},
    "dict by numbers": {1: 1.0},
    "object": object(),
    "decimal": Decimal(1),
    "complex": 1j,
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
async def test_a_return_value_of_another_kind_fails_the_attempt(memory: Store, kind: str) -> None:
    bad = OTHER_KINDS[kind]
    with pytest.raises(TypeError, match="the agent returned"):
        await step(memory, returning(bad))
    assert (await last(memory)).status == "failed"


NOT_FINITE: dict[str, Any] = {
    "nan": math.nan,
    "infinity": math.inf,
    "numpy": Numpyish(math.nan),
    "dimension": {"primary": math.nan},
}


@pytest.mark.parametrize("kind", NOT_FINITE)
async def test_a_reward_that_is_not_finite_fails_the_attempt_and_spoils_nothing(live: Store, kind: str) -> None:
    bad = NOT_FINITE[kind]
    with pytest.raises(ValueError, match="finite number"):
        await step(live, returning(bad))
    rollout = await last(live)
    assert rollout.status == "failed"
    # What was stored can be read back.
    assert await names_of(live, rollout) == [ATTEMPT_SPAN]


async def test_several_dimensions_need_one_named_primary(memory: Store) -> None:
    with pytest.raises(ValueError, match="name one of them 'primary'"):
        await step(memory, returning({"a": 1.0, "b": 2.0}))


async def test_spans_of_opentelemetry_that_are_returned_are_stored_once(memory: Store) -> None:
    elsewhere: Any = TracerProvider(shutdown_on_exit=False).get_tracer("other").start_span("elsewhere")
    elsewhere.end()

    def agent(*_: Any) -> Any:
        scope = current_scope()
        assert scope is not None
        traced: Any = scope.tracer.start_span("traced")
        traced.end()
        return [traced, elsewhere]

    rollout = await step(memory, Doing(agent))
    assert await names_of(memory, rollout) == ["traced", "elsewhere", ATTEMPT_SPAN]


async def test_spans_of_the_store_that_are_returned_keep_their_ids_and_numbers(memory: Store) -> None:
    def agent(_task: Any, _resources: Any, rollout: Any) -> Any:
        return [
            Span.from_attributes(
                attributes={"n": number},
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
                sequence_id=number,
                span_id=f"{number:016x}",
            )
            for number in (7, 9)
        ]

    hook = Recording()
    rollout = await step(memory, Doing(agent), [hook])
    stored = await spans_of(memory, rollout)
    assert [(span.sequence_id, span.span_id) for span in stored[:2]] == [(7, f"{7:016x}"), (9, f"{9:016x}")]
    assert [span.sequence_id for span in hook.spans] == [7, 9, 10]


async def test_core_fields_that_are_returned_become_spans_below_the_root(memory: Store) -> None:
    fields = [
        SpanCoreFields(
            name=name,
            status=TraceStatus(status_code="ERROR", description="no"),
            attributes={"a": 1},
            start_time=1_700_000_000.25,
            end_time=1_700_000_001.5,
        )
        for name in ("one", "two")
    ]
    rollout = await step(memory, returning(fields))
    one, _, root = await spans_of(memory, rollout)
    assert (one.name, one.status, one.attributes) == ("one", fields[0].status, {"a": 1})
    assert (one.start_time, one.end_time, one.parent_id) == (1_700_000_000.25, 1_700_000_001.5, root.span_id)


async def test_a_list_of_several_kinds_fails_the_attempt(memory: Store) -> None:
    for bad in ([1.0], [Span.from_attributes(attributes={}), 1]):
        with pytest.raises(ValueError, match="a list of"):
            await step(memory, returning(bad))
