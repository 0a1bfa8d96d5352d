"""Contract of calls that start and update attempts, and of calls that update rollouts directly."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import NotFound
from store.interface.store import Store
from store.models import UNSET, AttemptedRollout, AttemptError, RolloutConfig
from store.testing.contract.rollout_helpers import attempt_of, attempts_of, reread, started, statuses

__all__ = ["AttemptsContract", "RolloutUpdatesContract"]

ROLLOUT_STATUSES: list[Any] = ["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
ATTEMPT_STATUSES: list[Any] = ["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
TERMINAL: list[Any] = ["succeeded", "failed", "cancelled"]


class RolloutUpdatesContract:
    """Tests of `update_rollout` and `get_rollout_by_id`."""

    pytestmark = pytest.mark.asyncio

    async def test_unset_fields_of_a_rollout_are_not_changed(self, store: Store) -> None:
        rollout = await store.enqueue_rollout(1, mode="train", resources_id="rs", metadata={"m": 1})
        assert await store.update_rollout(rollout.rollout_id) == rollout
        unset = await store.update_rollout(
            rollout.rollout_id,
            input=UNSET,
            mode=UNSET,
            resources_id=UNSET,
            status=UNSET,
            config=UNSET,
            metadata=UNSET,
        )
        assert unset == rollout

    async def test_none_is_stored_where_a_field_may_be_null(self, store: Store) -> None:
        rollout = await store.enqueue_rollout(1, mode="train", resources_id="rs", metadata={"m": 1})
        await store.update_rollout(rollout.rollout_id, input=None, mode=None, resources_id=None, metadata=None)
        read = await reread(store, rollout)
        assert (read.input, read.mode, read.resources_id, read.metadata) == (None, None, None, None)

    async def test_metadata_and_config_are_replaced_and_never_merged(self, store: Store) -> None:
        rollout = await started(store, max_attempts=3, timeout_seconds=9, retry_condition=["failed"])
        await store.update_rollout(rollout.rollout_id, metadata={"a": 1})
        await store.update_rollout(rollout.rollout_id, metadata={"b": 2}, config=RolloutConfig(unresponsive_seconds=4))
        read = await reread(store, rollout)
        assert read.metadata == {"b": 2}
        assert read.config == RolloutConfig(unresponsive_seconds=4)

    async def test_an_update_returns_the_rollout_without_its_attempt(self, store: Store) -> None:
        rollout = await started(store)
        updated = await store.update_rollout(rollout.rollout_id, input={"new": 1})
        assert not isinstance(updated, AttemptedRollout)
        assert updated.input == {"new": 1}
        assert (updated.status, updated.start_time) == ("preparing", rollout.start_time)

    async def test_any_status_may_follow_any_other(self, store: Store) -> None:
        for status in ROLLOUT_STATUSES:
            for following in ROLLOUT_STATUSES:
                rollout = await store.enqueue_rollout(1)
                await store.update_rollout(rollout.rollout_id, status=status)
                updated = await store.update_rollout(rollout.rollout_id, status=following)
                assert updated.status == following

    async def test_each_update_to_a_terminal_status_sets_the_end_time_again(self, store: Store) -> None:
        for status in TERMINAL:
            rollout = await started(store)
            first = await store.update_rollout(rollout.rollout_id, status=status)
            second = await store.update_rollout(rollout.rollout_id, status=status)
            assert first.end_time is not None
            assert second.end_time is not None
            assert rollout.start_time < first.end_time < second.end_time

    async def test_a_status_that_is_not_terminal_never_clears_the_end_time(self, store: Store) -> None:
        rollout = await started(store)
        ended = await store.update_rollout(rollout.rollout_id, status="failed")
        for status in ("queuing", "preparing", "running", "requeuing"):
            assert (await store.update_rollout(rollout.rollout_id, status=status)).end_time == ended.end_time

    async def test_a_status_that_is_not_terminal_sets_no_end_time(self, store: Store) -> None:
        rollout = await started(store)
        for status in ("queuing", "preparing", "running", "requeuing"):
            assert (await store.update_rollout(rollout.rollout_id, status=status)).end_time is None

    async def test_cancelling_a_rollout_changes_neither_its_attempt_nor_its_worker(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        worker = await store.get_worker_by_id("w1")
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        assert await statuses(store, rollout) == ("cancelled", "preparing")
        assert await attempt_of(store, rollout) == rollout.attempt
        assert await store.get_worker_by_id("w1") == worker

    async def test_an_update_of_an_unknown_rollout_raises_item_does_not_exist(self, store: Store) -> None:
        text = r"^Item does not exist with primary key\(s\): rollout_id='ro-none'$"
        with pytest.raises(ValueError, match=text):
            await store.update_rollout("ro-none", status="running")
        with pytest.raises(NotFound, match=text):
            await store.update_rollout("ro-none")

    async def test_get_rollout_by_id_returns_none_for_an_unknown_rollout(self, store: Store) -> None:
        assert await store.get_rollout_by_id("ro-none") is None

    async def test_reads_return_a_rollout_with_its_latest_attempt(self, store: Store) -> None:
        rollout = await started(store)
        second = await store.start_attempt(rollout.rollout_id)
        read = await reread(store, rollout)
        assert isinstance(read, AttemptedRollout)
        assert read.attempt == second.attempt
        (listed,) = await store.query_rollouts()
        assert listed == read


class AttemptsContract:
    """Tests of `start_attempt` and `update_attempt`, and of the effect of an attempt's status on its rollout."""

    pytestmark = pytest.mark.asyncio

    async def test_a_new_attempt_takes_the_next_number_and_prepares_the_rollout(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", status="running")
        second = await store.start_attempt(rollout.rollout_id, worker_id="w2")
        assert (second.rollout_id, second.status) == (rollout.rollout_id, "preparing")
        assert (second.attempt.sequence_id, second.attempt.status) == (2, "preparing")
        assert (second.attempt.worker_id, second.attempt.metadata, second.attempt.end_time) == ("w2", None, None)
        assert second.attempt.start_time > rollout.attempt.start_time
        assert await statuses(store, rollout) == ("preparing", "running", "preparing")

    async def test_start_attempt_ignores_max_attempts_and_the_status(self, store: Store) -> None:
        rollout = await store.enqueue_rollout(1, config=RolloutConfig(max_attempts=1))
        assert (await store.start_attempt(rollout.rollout_id)).attempt.sequence_id == 1
        for number, status in enumerate(ROLLOUT_STATUSES, start=2):
            await store.update_rollout(rollout.rollout_id, status=status)
            again = await store.start_attempt(rollout.rollout_id)
            assert (again.status, again.attempt.sequence_id) == ("preparing", number)

    async def test_a_new_attempt_on_a_finished_rollout_keeps_its_end_time(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        ended = await reread(store, rollout)
        again = await store.start_attempt(rollout.rollout_id)
        assert again.end_time == ended.end_time is not None

    async def test_a_queued_rollout_with_a_new_attempt_is_not_claimed_again(self, store: Store) -> None:
        rollout = await store.enqueue_rollout(1)
        await store.start_attempt(rollout.rollout_id)
        assert await store.dequeue_rollout() is None
        assert await statuses(store, rollout) == ("preparing", "preparing")

    async def test_a_new_attempt_does_not_change_earlier_attempts(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        before = await attempts_of(store, rollout)
        await store.start_attempt(rollout.rollout_id, worker_id="w2")
        assert (await attempts_of(store, rollout))[:1] == before

    async def test_the_latest_attempt_has_the_greatest_number(self, store: Store) -> None:
        rollout = await started(store)
        assert await store.get_latest_attempt(rollout.rollout_id) == rollout.attempt
        second = await store.start_attempt(rollout.rollout_id)
        assert await store.get_latest_attempt(rollout.rollout_id) == second.attempt
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, metadata={"touched": True})
        assert await store.get_latest_attempt(rollout.rollout_id) == second.attempt
        updated = await store.update_attempt(rollout.rollout_id, "latest", status="running")
        assert updated.attempt_id == second.attempt.attempt_id

    async def test_queries_for_attempts_of_an_unknown_rollout_return_nothing(self, store: Store) -> None:
        assert await store.get_latest_attempt("ro-none") is None
        page = await store.query_attempts("ro-none")
        assert (list(page), page.total) == ([], 0)

    async def test_an_attempt_for_an_unknown_rollout_is_refused(self, store: Store) -> None:
        for call in (store.start_attempt("ro-none"), store.update_attempt("ro-none", "latest", status="running")):
            with pytest.raises(ValueError, match=r"^Rollout ro-none not found$") as refused:
                await call
            assert isinstance(refused.value, NotFound)
        assert (await store.query_rollouts()).total == 0

    async def test_update_attempt_reports_a_rollout_without_attempts_for_any_id(self, store: Store) -> None:
        for attempt_id in ["latest", "at-none"]:
            rollout = await store.enqueue_rollout(1)
            with pytest.raises(ValueError, match=f"^No attempts found for rollout {rollout.rollout_id}$"):
                await store.update_attempt(rollout.rollout_id, attempt_id, status="running")

    async def test_the_error_for_an_unknown_attempt_contains_its_id(self, store: Store) -> None:
        rollout = await started(store)
        with pytest.raises(ValueError, match=f"^Attempt at-none not found for rollout {rollout.rollout_id}$"):
            await store.update_attempt(rollout.rollout_id, "at-none", status="running")
        assert await statuses(store, rollout) == ("preparing", "preparing")

    async def test_an_attempt_of_another_rollout_is_unknown(self, store: Store) -> None:
        rollout = await started(store)
        other = await started(store)
        with pytest.raises(NotFound):
            await store.update_attempt(rollout.rollout_id, other.attempt.attempt_id, status="running")

    async def test_each_report_of_success_or_failure_sets_the_attempts_end_time_again(self, store: Store) -> None:
        cases: list[Any] = ["succeeded", "failed"]
        for status in cases:
            rollout = await started(store)
            first = await store.update_attempt(rollout.rollout_id, "latest", status=status)
            second = await store.update_attempt(rollout.rollout_id, "latest", status=status)
            assert first.end_time is not None
            assert second.end_time is not None
            assert rollout.attempt.start_time < first.end_time < second.end_time

    async def test_other_statuses_neither_set_nor_clear_the_attempts_end_time(self, store: Store) -> None:
        cases: list[Any] = ["preparing", "running", "timeout", "unresponsive"]
        for status in cases:
            rollout = await started(store)
            assert (await store.update_attempt(rollout.rollout_id, "latest", status=status)).end_time is None
            ended = await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            after = await store.update_attempt(rollout.rollout_id, "latest", status=status)
            assert after.end_time == ended.end_time is not None

    async def test_any_attempt_status_may_follow_any_other(self, store: Store) -> None:
        for status in ATTEMPT_STATUSES:
            for following in ATTEMPT_STATUSES:
                rollout = await started(store)
                await store.update_attempt(rollout.rollout_id, "latest", status=status)
                updated = await store.update_attempt(rollout.rollout_id, "latest", status=following)
                assert updated.status == following

    async def test_an_update_returns_the_stored_attempt(self, store: Store) -> None:
        rollout = await started(store)
        updated = await store.update_attempt(
            rollout.rollout_id,
            rollout.attempt.attempt_id,
            status="running",
            worker_id="w1",
            last_heartbeat_time=1234.5678,
            metadata={"m": [1.0]},
        )
        assert (updated.status, updated.worker_id) == ("running", "w1")
        assert (updated.last_heartbeat_time, updated.metadata) == (1234.5678, {"m": [1.0]})
        assert (updated.sequence_id, updated.start_time) == (1, rollout.attempt.start_time)
        assert await attempt_of(store, rollout) == updated

    async def test_an_attempts_metadata_is_replaced_and_never_merged(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", metadata={"a": 1})
        await store.update_attempt(rollout.rollout_id, "latest", metadata={"b": 2})
        assert (await attempt_of(store, rollout)).metadata == {"b": 2}

    async def test_unset_fields_of_an_attempt_are_not_changed(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        before = await store.update_attempt(rollout.rollout_id, "latest", metadata={"a": 1}, last_heartbeat_time=5.0)
        assert await store.update_attempt(rollout.rollout_id, "latest") == before
        unset = await store.update_attempt(
            rollout.rollout_id, "latest", status=UNSET, worker_id=UNSET, last_heartbeat_time=UNSET, metadata=UNSET
        )
        assert unset == before

    async def test_a_heartbeat_time_is_stored_exactly_and_may_be_earlier_than_the_last(self, store: Store) -> None:
        rollout = await started(store)
        for time in (1_750_000_123.123456, 1_750_000_000.1, 0.1 + 0.2):
            updated = await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=time)
            assert updated.last_heartbeat_time == time
            assert (await attempt_of(store, rollout)).last_heartbeat_time == time

    async def test_a_heartbeat_time_with_other_fields_may_be_earlier_than_the_last(self, store: Store) -> None:
        rollout = await started(store)
        for time in (200.5, 100.5):
            await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=time, metadata={"at": time})
            assert (await attempt_of(store, rollout)).last_heartbeat_time == time

    async def test_an_empty_worker_id_is_stored_and_creates_no_worker(self, store: Store) -> None:
        rollout = await started(store)
        updated = await store.update_attempt(rollout.rollout_id, "latest", worker_id="", status="running")
        assert updated.worker_id == ""
        assert (await store.query_workers()).total == 0

    async def test_a_rollout_gets_the_status_of_its_latest_attempt(self, store: Store) -> None:
        cases: list[Any] = ["preparing", "running", "succeeded"]
        for status in cases:
            rollout = await started(store)
            await store.update_attempt(rollout.rollout_id, "latest", status="running")
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)
            assert await statuses(store, rollout) == (status, status)

    async def test_a_failure_that_is_not_retried_fails_the_rollout(self, store: Store) -> None:
        cases: list[Any] = ["failed", "timeout", "unresponsive"]
        for status in cases:
            rollout = await started(store)
            await store.update_attempt(rollout.rollout_id, "latest", status=status)
            assert await statuses(store, rollout) == ("failed", status)
            assert (await reread(store, rollout)).end_time is not None
            assert await store.dequeue_rollout() is None

    async def test_report_of_a_lost_worker_does_not_change_an_attempt_that_has_ended(self, store: Store) -> None:
        error = AttemptError(type="WorkerGone", message="its process is gone")
        results: list[Any] = ["succeeded", "failed"]
        for result in results:
            rollout = await started(store, max_attempts=2, retry_condition=["unresponsive"])
            ended = await store.update_attempt(rollout.rollout_id, "latest", status=result)
            lost = await store.update_attempt(
                rollout.rollout_id, "latest", status="unresponsive", metadata={"m": 1}, error=error
            )
            assert lost == ended
            assert await statuses(store, rollout) == (result, result)

    async def test_an_earlier_attempt_does_not_change_the_status_of_the_rollout(self, store: Store) -> None:
        for status in ATTEMPT_STATUSES:
            rollout = await started(store, max_attempts=5, retry_condition=["failed", "timeout", "unresponsive"])
            await store.start_attempt(rollout.rollout_id)
            await store.update_attempt(rollout.rollout_id, "latest", status="running")
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)
            assert await statuses(store, rollout) == ("running", status, "running")
            assert await store.dequeue_rollout() is None

    async def test_a_rollout_ends_no_earlier_than_its_attempt(self, store: Store) -> None:
        rollout = await started(store)
        attempt = await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        ended = await reread(store, rollout)
        assert attempt.end_time is not None
        assert ended.end_time is not None
        assert attempt.start_time < attempt.end_time <= ended.end_time

    async def test_a_repeated_status_does_not_change_the_end_time_of_the_rollout(self, store: Store) -> None:
        rollout = await started(store)
        first = await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        ended = await reread(store, rollout)
        second = await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        assert second.end_time != first.end_time
        assert (await reread(store, rollout)).end_time == ended.end_time

    async def test_an_update_without_a_status_does_not_reopen_an_ended_rollout(self, store: Store) -> None:
        updates: list[dict[str, Any]] = [
            {},
            {"metadata": {"m": 1}},
            {"last_heartbeat_time": 5.0},
            {"worker_id": "w1"},
            {"worker_id": "w1", "last_heartbeat_time": 5.0, "metadata": {}},
        ]
        for status in TERMINAL:
            rollout = await started(store)
            ended = await store.update_rollout(rollout.rollout_id, status=status)
            for fields in updates:
                await store.update_attempt(rollout.rollout_id, "latest", **fields)
                read = await reread(store, rollout)
                assert (read.status, read.end_time) == (status, ended.end_time), fields

    async def test_an_update_with_a_status_reopens_an_ended_rollout(self, store: Store) -> None:
        for status in TERMINAL:
            rollout = await started(store)
            await store.update_rollout(rollout.rollout_id, status=status)
            await store.update_attempt(rollout.rollout_id, "latest", status="running")
            assert await statuses(store, rollout) == ("running", "running")
