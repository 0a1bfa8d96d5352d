"""Contract of queries for rollouts, attempts, resources and workers, and of queries that a store must refuse."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import Attempt, AttemptedRollout, Rollout
from store.testing.clock import ManualClock
from store.testing.contract.rollout_helpers import started
from store.testing.samples import make_llm

__all__ = ["QueriesContract"]


async def enqueued(store: Store, count: int) -> list[Rollout]:
    return [await store.enqueue_rollout(number) for number in range(count)]


def ids(page: Any) -> list[str]:
    return [rollout.rollout_id for rollout in page]


async def query(store: Store, noun: str, **arguments: Any) -> Any:
    """Call the query for a kind of objects. Attempts and spans are queried for a rollout that does not exist."""
    calls: dict[str, Any] = {
        "rollouts": store.query_rollouts,
        "workers": store.query_workers,
        "resources": store.query_resources,
        "attempts": partial(store.query_attempts, "ro-none"),
        "spans": partial(store.query_spans, "ro-none"),
    }
    return await calls[noun](**arguments)


NOUNS = ["rollouts", "workers", "resources", "attempts", "spans"]


class QueriesContract:
    """Tests of filters, order and pages of rollouts, attempts, resources and workers."""

    pytestmark = pytest.mark.asyncio

    async def test_rollouts_are_listed_in_the_order_of_creation(self, store: Store) -> None:
        rollouts = await enqueued(store, 3)
        await store.update_rollout(rollouts[0].rollout_id, status="running")
        page = await store.query_rollouts()
        assert ids(page) == ids(rollouts)
        assert page.total == 3

    async def test_rollouts_are_listed_with_their_latest_attempt(self, store: Store) -> None:
        plain = await store.enqueue_rollout(1)
        begun = await started(store)
        second = await store.start_attempt(begun.rollout_id)
        first, last = await store.query_rollouts()
        assert not isinstance(first, AttemptedRollout)
        assert first == plain
        assert isinstance(last, AttemptedRollout)
        assert last.attempt == second.attempt

    async def test_rollouts_are_filtered_by_status(self, store: Store) -> None:
        rollouts = await enqueued(store, 4)
        for number, status in enumerate(("running", "failed", "succeeded")):
            await store.update_rollout(rollouts[number].rollout_id, status=status)
        assert ids(await store.query_rollouts(status_in=["failed", "queuing"])) == ids([rollouts[1], rollouts[3]])
        assert ids(await store.query_rollouts(status_in=["cancelled"])) == []

    async def test_rollouts_are_filtered_by_id_in_the_order_of_creation(self, store: Store) -> None:
        first, _, third = await enqueued(store, 3)
        rollout_ids = [third.rollout_id, "ro-none", first.rollout_id, first.rollout_id]
        page = await store.query_rollouts(rollout_id_in=rollout_ids)
        assert ids(page) == ids([first, third])
        assert page.total == 2

    async def test_a_query_may_contain_thousands_of_ids(self, store: Store) -> None:
        first, _, third = await enqueued(store, 3)
        rollout_ids = [f"ro-{number:012x}" for number in range(5000)]
        page = await store.query_rollouts(rollout_id_in=[*rollout_ids, third.rollout_id, first.rollout_id])
        assert ids(page) == ids([first, third])

    async def test_rollouts_are_filtered_by_a_part_of_their_id(self, store: Store) -> None:
        first, second, _ = await enqueued(store, 3)
        part = second.rollout_id[-6:]
        assert ids(await store.query_rollouts(rollout_id_contains=part)) == ids([second])
        assert len(await store.query_rollouts(rollout_id_contains="ro-")) == 3
        assert len(await store.query_rollouts(rollout_id_contains="")) == 3
        assert ids(await store.query_rollouts(rollout_id_contains=first.rollout_id.upper())) == []

    async def test_wildcards_in_a_partial_condition_are_literal_characters(self, store: Store) -> None:
        for wildcard in ["%", "_", "*", "?", "\\", "'"]:
            await store.update_worker("plain", {})
            await store.update_worker(f"a{wildcard}b", {})
            page = await store.query_workers(worker_id_contains=wildcard)
            assert [worker.worker_id for worker in page] == [f"a{wildcard}b"]

    async def test_conditions_are_joined_by_and_unless_or_is_requested(self, store: Store) -> None:
        first, second, third = await enqueued(store, 3)
        await store.update_rollout(first.rollout_id, status="running")
        await store.update_rollout(second.rollout_id, status="running")
        both: dict[str, Any] = {"status_in": ["running"], "rollout_id_in": [second.rollout_id, third.rollout_id]}
        assert ids(await store.query_rollouts(**both)) == ids([second])
        assert ids(await store.query_rollouts(**both, filter_logic="and")) == ids([second])
        assert ids(await store.query_rollouts(**both, filter_logic="or")) == ids([first, second, third])

    async def test_an_exact_and_a_partial_condition_on_one_field_are_alternatives_under_or(self, store: Store) -> None:
        first, second, _ = await enqueued(store, 3)
        conditions: dict[str, Any] = {
            "rollout_id_in": [first.rollout_id],
            "rollout_id_contains": second.rollout_id[3:],
        }
        assert ids(await store.query_rollouts(**conditions, filter_logic="or")) == ids([first, second])
        assert ids(await store.query_rollouts(**conditions)) == []

    async def test_an_empty_list_of_values_matches_nothing(self, store: Store) -> None:
        (first,) = await enqueued(store, 1)
        assert ids(await store.query_rollouts(status_in=[])) == []
        assert ids(await store.query_rollouts(rollout_id_in=[])) == []
        assert ids(await store.query_rollouts(rollout_id_in=[], filter_logic="or")) == []
        either = await store.query_rollouts(rollout_id_in=[], status_in=["queuing"], filter_logic="or")
        assert ids(either) == ids([first])
        assert ids(await store.query_rollouts(rollout_id_in=[], status_in=["queuing"])) == []

    async def test_or_without_any_condition_lists_everything(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        assert (await store.query_rollouts(filter_logic="or")).total == 1
        assert (await store.query_workers(filter_logic="or")).total == 1
        assert (await store.query_attempts(rollout.rollout_id)).total == 1

    async def test_older_names_of_filters_work_and_newer_names_take_precedence(self, store: Store) -> None:
        first, second = await enqueued(store, 2)
        await store.update_rollout(first.rollout_id, status="running")
        assert ids(await store.query_rollouts(status=["running"])) == ids([first])
        assert ids(await store.query_rollouts(rollout_ids=[second.rollout_id])) == ids([second])
        assert ids(await store.query_rollouts(status=["running"], status_in=["queuing"])) == ids([second])
        newer = await store.query_rollouts(rollout_ids=[first.rollout_id], rollout_id_in=[second.rollout_id])
        assert ids(newer) == ids([second])

    async def test_limit_and_offset_apply_after_filtering_and_total_counts_all_matches(self, store: Store) -> None:
        await enqueued(store, 4)
        await store.start_rollout("not queued")
        cases: list[tuple[int, int, list[int]]] = [
            (-1, 0, [0, 1, 2, 3]),
            (2, 0, [0, 1]),
            (2, 3, [3]),
            (-1, 2, [2, 3]),
            (0, 0, []),
            (0, 2, []),
            (2, 4, []),
            (2, 99, []),
            (-1, 99, []),
        ]
        for limit, offset, expected in cases:
            page = await store.query_rollouts(status_in=["queuing"], limit=limit, offset=offset)
            assert [rollout.input for rollout in page] == expected
            assert (page.limit, page.offset, page.total) == (limit, offset, 4)

    async def test_limit_and_offset_apply_after_sorting(self, store: Store) -> None:
        await enqueued(store, 4)
        page = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=2, offset=1)
        assert [rollout.input for rollout in page] == [2, 1]

    async def test_missing_times_are_last_in_ascending_and_first_in_descending_order(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollouts = await enqueued(store, 4)
        for number in (2, 0):
            clock.advance(1)
            await store.update_rollout(rollouts[number].rollout_id, status="succeeded")
        rising = await store.query_rollouts(sort_by="end_time")
        falling = await store.query_rollouts(sort_by="end_time", sort_order="desc")
        assert [rollout.input for rollout in rising] == [2, 0, 1, 3]
        assert [rollout.input for rollout in falling] == [1, 3, 0, 2]

    async def test_missing_texts_are_first_in_ascending_and_last_in_descending_order(self, store: Store) -> None:
        modes: list[Any] = ["val", None, "test", None, "train"]
        for mode in modes:
            await store.enqueue_rollout(mode, mode=mode)
        rising = await store.query_rollouts(sort_by="mode")
        falling = await store.query_rollouts(sort_by="mode", sort_order="desc")
        assert [rollout.input for rollout in rising] == [None, None, "test", "train", "val"]
        assert [rollout.input for rollout in falling] == ["val", "train", "test", None, None]

    async def test_equal_rows_keep_the_order_of_creation_in_both_directions(self, store: Store) -> None:
        for number, mode in enumerate(("val", "train", "val", "train")):
            await store.enqueue_rollout(number, mode=mode)
        rising = await store.query_rollouts(sort_by="mode")
        falling = await store.query_rollouts(sort_by="mode", sort_order="desc")
        assert [rollout.input for rollout in rising] == [1, 3, 0, 2]
        assert [rollout.input for rollout in falling] == [0, 2, 1, 3]

    async def test_texts_sort_by_code_point(self, store: Store) -> None:
        names = ["b", "a", "B", "é", "_", "10", "9", "z", "🙂", "\uffee"]
        for name in names:
            await store.update_worker(name, {})
        page = await store.query_workers(sort_by="worker_id")
        assert [worker.worker_id for worker in page] == sorted(names)

    async def test_every_scalar_field_can_be_used_for_sorting(self, store: Store) -> None:
        for noun, fields in [
            ("rollouts", ["rollout_id", "start_time", "end_time", "mode", "resources_id", "status"]),
            (
                "attempts",
                [
                    "rollout_id",
                    "attempt_id",
                    "sequence_id",
                    "start_time",
                    "end_time",
                    "status",
                    "worker_id",
                    "last_heartbeat_time",
                ],
            ),
            (
                "workers",
                [
                    "worker_id",
                    "status",
                    "last_heartbeat_time",
                    "last_dequeue_time",
                    "last_busy_time",
                    "last_idle_time",
                    "current_rollout_id",
                    "current_attempt_id",
                ],
            ),
            ("resources", ["resources_id", "create_time", "update_time", "version"]),
            (
                "spans",
                [
                    "rollout_id",
                    "attempt_id",
                    "sequence_id",
                    "trace_id",
                    "span_id",
                    "parent_id",
                    "name",
                    "start_time",
                    "end_time",
                ],
            ),
        ]:
            for field in fields:
                for order in ("asc", "desc"):
                    assert list(await query(store, noun, sort_by=field, sort_order=order)) == []

    async def test_an_invalid_sort_field_is_refused_with_the_names_of_valid_fields(self, store: Store) -> None:
        for noun, field, sortable in [
            ("rollouts", "input", "start_time"),
            ("rollouts", "metadata", "mode"),
            ("rollouts", "config", "status"),
            ("attempts", "metadata", "sequence_id"),
            ("workers", "heartbeat_stats", "worker_id"),
            ("resources", "resources", "version"),
            ("spans", "attributes", "sequence_id"),
            ("spans", "status", "start_time"),
            ("spans", "resource", "span_id"),
            *[(noun, "no_such_field", "_time") for noun in NOUNS],
            *[(noun, "start_time; DROP TABLE rollouts", "_time") for noun in NOUNS],
        ]:
            with pytest.raises(Invalid, match="sort_by") as refused:
                await query(store, noun, sort_by=field)
            assert sortable in str(refused.value)

    async def test_an_invalid_limit_offset_or_order_is_refused_by_name(self, store: Store) -> None:
        cases: list[dict[str, Any]] = [{"limit": -2}, {"offset": -1}, {"sort_order": "upwards"}]
        for noun in NOUNS:
            for arguments in cases:
                with pytest.raises(Invalid, match="|".join(arguments)):
                    await query(store, noun, **arguments)

    async def test_an_unknown_filter_logic_is_refused(self, store: Store) -> None:
        for noun in ["rollouts", "workers", "spans"]:
            with pytest.raises(Invalid, match="filter_logic"):
                await query(store, noun, filter_logic="xor")

    async def test_attempts_are_listed_by_number_or_in_the_order_of_creation(self, store: Store) -> None:
        rollout = await started(store)
        for _ in range(2):
            await store.start_attempt(rollout.rollout_id)
        assert [attempt.sequence_id for attempt in await store.query_attempts(rollout.rollout_id)] == [1, 2, 3]
        falling = await store.query_attempts(rollout.rollout_id, sort_order="desc", limit=2)
        assert [attempt.sequence_id for attempt in falling] == [3, 2]
        assert falling.total == 3
        unsorted = await store.query_attempts(rollout.rollout_id, sort_by=None, offset=1)
        assert [attempt.sequence_id for attempt in unsorted] == [2, 3]
        assert all(type(item) is Attempt for item in unsorted)

    async def test_attempts_without_a_worker_sort_first_by_worker(self, store: Store) -> None:
        rollout = await started(store, worker_id="w2")
        await store.start_attempt(rollout.rollout_id)
        await store.start_attempt(rollout.rollout_id, worker_id="w1")
        page = await store.query_attempts(rollout.rollout_id, sort_by="worker_id")
        assert [attempt.worker_id for attempt in page] == [None, "w1", "w2"]

    async def test_attempts_of_other_rollouts_are_not_listed(self, store: Store) -> None:
        rollout = await started(store)
        await started(store)
        assert list(await store.query_attempts(rollout.rollout_id)) == [rollout.attempt]

    async def test_workers_are_filtered_by_status_and_by_a_part_of_their_id(self, store: Store) -> None:
        await started(store, worker_id="gpu-1")
        await store.dequeue_rollout(worker_id="gpu-2")
        await store.update_worker("cpu-1", {})
        both: dict[str, Any] = {"status_in": ["idle", "unknown"], "worker_id_contains": "gpu"}
        assert [worker.worker_id for worker in await store.query_workers(**both)] == ["gpu-2"]
        either = await store.query_workers(**both, filter_logic="or")
        assert [worker.worker_id for worker in either] == ["gpu-1", "gpu-2", "cpu-1"]
        assert (await store.query_workers(status_in=[])).total == 0

    async def test_workers_without_a_poll_are_last_in_the_order_of_polls(self, store: Store) -> None:
        await store.update_worker("never", {})
        await store.dequeue_rollout(worker_id="first")
        await store.dequeue_rollout(worker_id="second")
        page = await store.query_workers(sort_by="last_dequeue_time")
        assert [worker.worker_id for worker in page] == ["first", "second", "never"]

    async def test_resources_are_filtered_by_id_and_by_a_part_of_the_id(self, store: Store) -> None:
        for name in ("policy-a", "policy-b", "prompt-a"):
            await store.update_resources(name, make_llm())
        assert [update.resources_id for update in await store.query_resources(resources_id="policy-b")] == ["policy-b"]
        part = await store.query_resources(resources_id_contains="-a")
        assert [update.resources_id for update in part] == ["policy-a", "prompt-a"]
        neither = await store.query_resources(resources_id="policy-b", resources_id_contains="-a")
        assert (list(neither), neither.total) == ([], 0)

    async def test_resources_are_sorted_and_paged(self, store: Store) -> None:
        for name in ("b", "c", "a"):
            await store.update_resources(name, {})
        await store.update_resources("c", {})
        page = await store.query_resources(sort_by="version", sort_order="desc", limit=2)
        assert [update.resources_id for update in page] == ["c", "b"]
        assert page.total == 3
        page = await store.query_resources(sort_by="resources_id", offset=1)
        assert [update.resources_id for update in page] == ["b", "c"]
