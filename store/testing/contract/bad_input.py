"""Contract of invalid input: the store raises an error that contains the field's name, and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from store.errors import Invalid, TooLarge
from store.interface.store import Store
from store.models import LLM, EnqueueRolloutRequest, Event, RolloutConfig
from store.testing.contract.rollout_helpers import attempt_of, reread, started
from store.testing.samples import make_llm, make_sdk_span, make_span

__all__ = ["BadInputContract"]

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

NUMBERS: list[Any] = [float("nan"), float("inf"), float("-inf"), 2**64, -(2**63) - 1, 10**400, -(10**5000)]
TEXTS: list[Any] = ["a\0b", "\ud800", "x\udfff"]
NOT_JSON: list[Any] = [b"bytes", {1, 2}, object(), {1: "a number as key"}, {"a\0b": 1}, {"\ud800": 1}, ENDLESS]
UNSTORABLE = [*NUMBERS, *TEXTS, *NOT_JSON]

MEBIBYTE = 1024 * 1024


async def refuses(field: str, call: Callable[[Any], Awaitable[Any]], values: list[Any]) -> None:
    """Expect that the call refuses each value with an error that contains the field's name."""
    for value in values:
        with pytest.raises(Invalid, match=field):
            await call(value)


def nested(values: list[Any]) -> list[Any]:
    return [{"outer": [1, {"inner": value}]} for value in values]


class BadInputContract:
    """Tests of values, names, sizes and types that every store must refuse."""

    pytestmark = pytest.mark.asyncio

    async def test_an_input_that_is_not_json_is_refused_by_name(self, store: Store) -> None:
        for create in (store.enqueue_rollout, store.start_rollout):
            await refuses("input", create, [*UNSTORABLE, *nested(UNSTORABLE)])
        await refuses(
            "input", lambda value: store.enqueue_many_rollouts([EnqueueRolloutRequest(input=value)]), UNSTORABLE
        )
        assert (await store.query_rollouts()).total == 0

    async def test_other_values_do_not_decide_whether_an_integer_is_accepted(self, store: Store) -> None:
        async def is_stored(value: Any) -> bool:
            with suppress(Invalid):
                rollout = await store.enqueue_rollout(value)
                return (await reread(store, rollout)).input == value
            return False

        for integer in (2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1):
            assert await is_stored([integer]) == await is_stored([integer, None, "\u2028", 1.5])

    async def test_one_invalid_rollout_refuses_the_whole_call(self, store: Store) -> None:
        requests = [EnqueueRolloutRequest(input=value) for value in (1, float("nan"), 2)]
        with pytest.raises(Invalid, match="input"):
            await store.enqueue_many_rollouts(requests)
        assert (await store.query_rollouts()).total == 0

    async def test_metadata_that_is_not_json_is_refused_by_name(self, store: Store) -> None:
        for create in (store.enqueue_rollout, store.start_rollout):
            await refuses("metadata", lambda value, create=create: create(1, metadata=value), nested(UNSTORABLE))
        assert (await store.query_rollouts()).total == 0

    async def test_an_update_of_a_rollout_that_is_not_json_is_refused_and_changes_nothing(self, store: Store) -> None:
        rollout = await store.enqueue_rollout(1, metadata={"m": 1})
        ro = rollout.rollout_id
        await refuses("input", lambda value: store.update_rollout(ro, input=value, status="running"), UNSTORABLE)
        await refuses(
            "metadata", lambda value: store.update_rollout(ro, metadata=value, status="running"), nested(UNSTORABLE)
        )
        assert await reread(store, rollout) == rollout

    async def test_an_update_of_an_attempt_that_is_not_json_is_refused_and_changes_nothing(self, store: Store) -> None:
        rollout = await started(store)
        await refuses(
            "metadata",
            lambda value: store.update_attempt(rollout.rollout_id, "latest", metadata=value, status="failed"),
            nested(UNSTORABLE),
        )
        assert await reread(store, rollout) == rollout

    async def test_an_invalid_heartbeat_time_is_refused(self, store: Store) -> None:
        rollout = await started(store)
        times: list[Any] = [float("nan"), float("inf"), float("-inf"), "soon", b"1", [1.0]]
        await refuses(
            "last_heartbeat_time",
            lambda value: store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=value),
            times,
        )
        assert await attempt_of(store, rollout) == rollout.attempt

    async def test_statistics_of_a_worker_that_are_not_json_are_refused(self, store: Store) -> None:
        await refuses("heartbeat_stats", lambda value: store.update_worker("w1", value), nested(UNSTORABLE))
        assert await store.get_worker_by_id("w1") is None

    async def test_resources_that_are_not_json_are_refused(self, store: Store) -> None:
        def resources(value: Any) -> Any:
            return {"llm": LLM(endpoint="e", model="m", sampling_parameters={"value": value})}

        await refuses("resources", lambda value: store.add_resources(resources(value)), UNSTORABLE)
        await refuses("resources", lambda value: store.update_resources("rs-1", resources(value)), UNSTORABLE)
        assert (await store.query_resources()).total == 0

    async def test_invalid_limits_of_a_rollout_are_refused(self, store: Store) -> None:
        rollout = await store.enqueue_rollout(1)
        values = (float("nan"), float("inf"), -5, -0.001, 10**400)
        pairs = [(name, value) for name in ("timeout_seconds", "unresponsive_seconds") for value in values]
        for name, value in [*pairs, ("max_attempts", 0), ("max_attempts", 2**63), ("max_attempts", 10**400)]:

            def config(name: str = name, value: Any = value) -> RolloutConfig:
                return RolloutConfig(**{name: value})

            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda config=config: store.enqueue_rollout(1, config=config()),
                lambda config=config: store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1, config=config())]),
                lambda config=config: store.start_rollout(1, config=config()),
                lambda config=config: store.update_rollout(rollout.rollout_id, config=config()),
            ]
            for call in calls:
                with pytest.raises(ValueError, match=name):
                    await call()
        assert list(await store.query_rollouts()) == [rollout]

    async def test_span_attributes_that_cannot_be_stored_are_refused(self, store: Store) -> None:
        rollout = await started(store)
        values = [*NUMBERS, *TEXTS, *[[value] for value in [*NUMBERS, *TEXTS]]]
        await refuses(
            "attributes", lambda value: store.add_span(make_span(rollout.attempt, attributes={"k": value})), values
        )
        await refuses(
            "attributes",
            lambda key: store.add_span(make_span(rollout.attempt, attributes={key: 1})),
            TEXTS,
        )
        assert (await store.query_spans(rollout.rollout_id)).total == 0

    async def test_attribute_values_of_an_unsupported_type_are_refused(self, store: Store) -> None:
        rollout = await started(store)
        for value in (None, {"a": 1}, [1, "a"], [[1]], b"bytes"):
            with pytest.raises(ValueError, match="attribute"):
                await store.add_span(make_span(rollout.attempt, attributes={"k": value}))

    async def test_other_parts_of_a_span_that_are_not_json_are_refused(self, store: Store) -> None:
        rollout = await started(store)
        await refuses("extra", lambda value: store.add_span(make_span(rollout.attempt, extra=value)), UNSTORABLE)
        await refuses(
            "events",
            lambda value: store.add_span(make_span(rollout.attempt, events=[Event(name="e", attributes={"k": value})])),
            [*NUMBERS, *TEXTS],
        )
        assert (await store.query_spans(rollout.rollout_id)).total == 0

    async def test_an_invalid_span_time_is_refused(self, store: Store) -> None:
        for field in ["start_time", "end_time"]:
            rollout = await started(store)
            for value in (float("nan"), float("inf"), float("-inf")):
                with pytest.raises(ValueError, match=field):
                    await store.add_span(make_span(rollout.attempt, **{field: value}))
            assert (await store.query_spans(rollout.rollout_id)).total == 0

    async def test_a_span_with_a_text_that_cannot_be_stored_is_refused_by_field(self, store: Store) -> None:
        for field in ["name", "span_id", "trace_id", "parent_id"]:
            rollout = await started(store)
            too_long = "x" * (1025 if field == "name" else 513)
            for value in (*TEXTS, too_long):
                with pytest.raises(ValueError, match=field):
                    await store.add_span(make_span(rollout.attempt, **{field: value}))
            longest = "é" * (512 if field == "name" else 256)
            assert await store.add_span(make_span(rollout.attempt, **{field: longest})) is not None

    async def test_one_invalid_span_refuses_the_whole_call(self, store: Store) -> None:
        rollout = await started(store)
        spans = [make_span(rollout.attempt, 1), make_span(rollout.attempt, 2, attributes={"k": float("nan")})]
        with pytest.raises(Invalid, match="attributes"):
            await store.add_many_spans(spans)
        assert (await store.query_spans(rollout.rollout_id)).total == 0

    async def test_a_span_number_above_two_to_the_fifty_third_is_refused(self, store: Store) -> None:
        rollout = await started(store)
        for number in (2**53 + 1, 2**63, 2**70):
            with pytest.raises(ValueError, match="sequence_id"):
                await store.add_span(make_span(rollout.attempt, number))
        assert await store.get_next_span_sequence_id(rollout.rollout_id, "any") == 1
        with pytest.raises(ValueError, match="sequence_id"):
            await store.add_otel_span(
                rollout.rollout_id, rollout.attempt.attempt_id, make_sdk_span(), sequence_id=2**53 + 1
            )
        span = await store.add_span(make_span(rollout.attempt, 2**53))
        assert span is not None
        assert span.sequence_id == 2**53

    async def test_ids_longer_than_512_bytes_are_refused_by_name(self, store: Store) -> None:
        rollout = await started(store)
        calls: list[tuple[str, Callable[[Any], Awaitable[Any]]]] = [
            ("worker_id", lambda value: store.update_worker(value, {})),
            ("worker_id", store.dequeue_rollout),
            ("worker_id", lambda value: store.dequeue_many_rollouts(1, value)),
            ("worker_id", lambda value: store.start_rollout(1, worker_id=value)),
            ("worker_id", lambda value: store.start_attempt(rollout.rollout_id, value)),
            ("worker_id", lambda value: store.update_attempt(rollout.rollout_id, "latest", worker_id=value)),
            ("resources_id", lambda value: store.update_resources(value, {})),
            ("resources_id", lambda value: store.enqueue_rollout(1, resources_id=value)),
            ("resources_id", lambda value: store.update_rollout(rollout.rollout_id, resources_id=value)),
            ("rollout_id", lambda value: store.get_next_span_sequence_id(value, "any")),
        ]
        for field, call in calls:
            await refuses(field, call, ["x" * 513, "é" * 257, *TEXTS, 7, ["x"], b"x"])
        assert (await store.query_rollouts()).total == 1
        assert (await store.query_workers()).total == 0
        assert (await store.query_resources()).total == 0

    async def test_ids_of_512_bytes_are_stored(self, store: Store) -> None:
        worker = await store.update_worker("é" * 256, {})
        resources = await store.update_resources("x" * 512, {})
        assert await store.get_worker_by_id("é" * 256) == worker
        assert await store.get_resources_by_id("x" * 512) == resources
        assert (await started(store, worker_id="x" * 512)).attempt.worker_id == "x" * 512

    async def test_names_that_cannot_be_stored_are_refused_or_match_nothing(self, store: Store) -> None:
        for text in TEXTS:
            with suppress(Invalid):
                assert await store.get_rollout_by_id(text) is None
            with suppress(Invalid):
                assert await store.get_worker_by_id(text) is None
            with suppress(Invalid):
                assert await store.get_resources_by_id(text) is None
            with suppress(Invalid):
                assert await store.get_latest_attempt(text) is None
            with suppress(Invalid):
                assert (await store.query_attempts(text)).total == 0
            with suppress(Invalid):
                assert (await store.query_spans("ro-none", name_contains=text)).total == 0
            with suppress(Invalid):
                assert (await store.query_rollouts(rollout_id_in=[text], rollout_id_contains=text)).total == 0
            with suppress(Invalid):
                assert list(await store.wait_for_rollouts(rollout_ids=[text], timeout=0)) == []

    async def test_limits_and_offsets_above_64_bits_are_refused_or_applied(self, store: Store) -> None:
        await store.enqueue_rollout(1)
        with suppress(Invalid):
            assert len(await store.query_rollouts(limit=2**70)) == 1
        with suppress(Invalid):
            assert len(await store.query_rollouts(offset=2**70)) == 0

    async def test_a_field_of_a_rollout_of_the_wrong_kind_is_refused_by_name(self, store: Store) -> None:
        rollout = await started(store)
        cases: list[tuple[str, Any]] = [
            ("status", "done"),
            ("status", "timeout"),
            ("status", None),
            ("status", 1),
            ("mode", "practice"),
            ("mode", 1),
            ("config", None),
            ("config", "none"),
            ("metadata", "text"),
            ("metadata", [1]),
            ("resources_id", 7),
        ]
        for field, value in cases:
            fields: dict[str, Any] = {field: value}
            with pytest.raises(Invalid, match=field):
                await store.update_rollout(rollout.rollout_id, **fields)
            if field != "status" and value is not None:
                for create in (store.enqueue_rollout, store.start_rollout):
                    with pytest.raises(Invalid, match=field):
                        await create(1, **fields)
        assert list(await store.query_rollouts()) == [rollout]

    async def test_a_field_of_an_attempt_of_the_wrong_kind_is_refused_by_name(self, store: Store) -> None:
        rollout = await started(store)
        cases: list[tuple[str, Any]] = [
            ("status", "cancelled"),
            ("status", "queuing"),
            ("status", None),
            ("worker_id", None),
            ("last_heartbeat_time", None),
            ("metadata", None),
            ("metadata", "text"),
        ]
        for field, value in cases:
            with pytest.raises(Invalid, match=field):
                await store.update_attempt(rollout.rollout_id, "latest", **{field: value})
        assert await reread(store, rollout) == rollout

    async def test_objects_of_a_wrong_type_are_refused_by_name(self, store: Store) -> None:
        rubbish: list[Any] = ["text", 7, None, [b"x"], {"llm": "small"}]
        await refuses("resources", store.add_resources, rubbish)
        await refuses("resources", lambda value: store.update_resources("rs-1", value), rubbish)
        await refuses("span", store.add_span, rubbish)
        await refuses("span", store.add_many_spans, [["text"], [None], [7]])
        await refuses("rollouts", store.enqueue_many_rollouts, [["text"], [None], [7]])
        assert (await store.query_rollouts()).total == 0
        assert (await store.query_resources()).total == 0

    async def test_more_than_ten_thousand_items_in_a_call_are_refused(self, store: Store) -> None:
        rollout = await started(store)
        too_many = 10_001
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1)] * too_many),
            lambda: store.add_many_spans([make_span(rollout.attempt)] * too_many),
            lambda: store.get_many_span_sequence_ids([(rollout.rollout_id, "any")] * too_many),
        ]
        for call in calls:
            with pytest.raises(TooLarge, match="10,000") as refused:
                await call()
            assert not refused.value.retryable
        drawn = await store.get_many_span_sequence_ids([(rollout.rollout_id, "any")] * 10_000)
        assert drawn == list(range(1, 10_001))
        assert (await store.query_rollouts()).total == 1

    async def test_more_than_sixteen_mebibytes_in_a_call_are_refused(self, store: Store) -> None:
        rollout = await started(store)
        text = "x" * MEBIBYTE
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.enqueue_rollout(text * 17),
            lambda: store.start_rollout(1, metadata={"text": text * 17}),
            lambda: store.enqueue_many_rollouts([EnqueueRolloutRequest(input=text)] * 17),
            lambda: store.update_rollout(rollout.rollout_id, input=text * 17),
            lambda: store.update_attempt(rollout.rollout_id, "latest", metadata={"text": text * 17}),
            lambda: store.add_span(make_span(rollout.attempt, attributes={"text": text * 17})),
            lambda: store.add_many_spans([make_span(rollout.attempt, attributes={"text": text})] * 17),
            lambda: store.add_resources(make_llm(text * 17)),
            lambda: store.update_worker("w1", {"text": text * 17}),
        ]
        for call in calls:
            with pytest.raises(TooLarge, match="16"):
                await call()
        assert await reread(store, rollout) == rollout
        assert (await store.query_spans(rollout.rollout_id)).total == 0

    async def test_fifteen_mebibytes_in_a_call_are_stored(self, store: Store) -> None:
        text = "é" * (15 * MEBIBYTE // 2)
        rollout = await store.enqueue_rollout(text)
        assert (await reread(store, rollout)).input == text
