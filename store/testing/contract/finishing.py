"""Contract of the call that stores the last spans of an attempt, ends it and claims the next rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from store.errors import Invalid, NotFound, SpanConflict, StoreError
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, RolloutConfig, Span
from store.testing.contract.rollout_helpers import attempt_of, started, statuses, worker_of
from store.testing.samples import make_span

__all__ = ["FinishingContract"]


def _claimed(result: AttemptedRollout | StoreError | None) -> AttemptedRollout:
    assert isinstance(result, AttemptedRollout), result
    return result


def _kinds(results: list[Span | StoreError | None]) -> list[type[Any]]:
    return [type(result) for result in results]


class FinishingContract:
    """Tests of `finish_attempt`."""

    pytestmark = pytest.mark.asyncio

    async def test_an_attempt_ends_with_its_last_spans_and_the_next_claim(self, store: Store) -> None:
        first, second = [await store.enqueue_rollout(number) for number in range(2)]
        running = _claimed(await store.dequeue_rollout("w1"))
        await store.add_span(make_span(running.attempt, 1))
        spans = [make_span(running.attempt, name=name) for name in ("a", "b")]
        finished = await store.finish_attempt(
            first.rollout_id,
            running.attempt.attempt_id,
            "succeeded",
            spans=spans,
            number=True,
            metadata={"m": 1},
            claim_as="w1",
        )
        numbered = [span.model_copy(update={"sequence_id": number}) for number, span in enumerate(spans, 2)]
        assert finished.spans == numbered
        assert list(await store.query_spans(first.rollout_id))[1:] == numbered
        assert finished.attempt == await attempt_of(store, first)
        assert await statuses(store, first) == ("succeeded", "succeeded")
        assert (await attempt_of(store, first)).metadata == {"m": 1}
        claimed = _claimed(finished.claimed)
        assert (claimed.rollout_id, claimed.attempt.worker_id) == (second.rollout_id, "w1")
        assert claimed == await store.get_rollout_by_id(second.rollout_id)
        worker = await worker_of(store, "w1")
        assert (worker.status, worker.current_rollout_id) == ("busy", second.rollout_id)

    async def test_an_attempt_is_put_back_at_the_end_of_the_queue_with_its_spans_and_reason(self, store: Store) -> None:
        await store.enqueue_rollout("first")
        running = _claimed(await store.dequeue_rollout("w1"))
        await store.enqueue_rollout("second")
        error = AttemptError(type="drained", message="m")
        finished = await store.finish_attempt(
            running.rollout_id,
            running.attempt.attempt_id,
            "failed",
            spans=[make_span(running.attempt)],
            metadata={"reason": "drained"},
            error=error,
            requeue=True,
        )
        assert finished.attempt == await attempt_of(store, running)
        assert await statuses(store, running) == ("requeuing", "failed")
        assert (await store.query_spans(running.rollout_id)).total == 1
        claimed = [_claimed(await store.dequeue_rollout("w2")) for _ in range(2)]
        assert [rollout.input for rollout in claimed] == ["second", "first"]
        assert claimed[1].attempt.sequence_id == 2

    async def test_only_the_active_attempt_of_a_rollout_is_put_back(self, store: Store) -> None:
        cancelled, succeeded, superseded = [await started(store, worker_id="w1") for _ in range(3)]
        await store.update_rollout(cancelled.rollout_id, status="cancelled")
        await store.update_attempt(succeeded.rollout_id, succeeded.attempt.attempt_id, status="succeeded")
        await store.start_attempt(superseded.rollout_id, "w2")
        for rollout in (cancelled, succeeded, superseded):
            await store.finish_attempt(
                rollout.rollout_id,
                rollout.attempt.attempt_id,
                "failed",
                metadata={"reason": "drained"},
                error=AttemptError(type="drained", message="m"),
                requeue=True,
            )
        assert await statuses(store, cancelled) == ("cancelled", "failed")
        assert await statuses(store, succeeded) == ("succeeded", "succeeded")
        assert await statuses(store, superseded) == ("preparing", "failed", "preparing")
        ended = (await store.query_attempts(superseded.rollout_id))[0]
        assert (ended.status, ended.metadata) == ("failed", {"reason": "drained"})
        with pytest.raises(Invalid, match="requeue"):
            await store.finish_attempt(superseded.rollout_id, superseded.attempt.attempt_id, "succeeded", requeue=True)

    async def test_without_a_worker_nothing_is_claimed_at_the_end(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        queued = await store.enqueue_rollout(1)
        finished = await store.finish_attempt(rollout.rollout_id, rollout.attempt.attempt_id, "succeeded")
        assert (finished.spans, finished.claimed) == ([], None)
        assert await statuses(store, queued) == ("queuing",)
        assert (await worker_of(store, "w1")).status == "idle"

    async def test_an_empty_queue_is_reported_at_once_at_the_end(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        async with asyncio.timeout(5):
            finished = await store.finish_attempt(
                rollout.rollout_id, rollout.attempt.attempt_id, "succeeded", claim_as="w1"
            )
        assert finished.claimed is None
        assert (await worker_of(store, "w1")).status == "idle"

    async def test_a_failed_attempt_with_retries_is_claimed_again_at_its_end(self, store: Store) -> None:
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        queued = await store.enqueue_rollout(1, config=config)
        running = _claimed(await store.dequeue_rollout("w1"))
        finished = await store.finish_attempt(
            queued.rollout_id,
            running.attempt.attempt_id,
            "failed",
            spans=[make_span(running.attempt, 1)],
            error=AttemptError(type="ValueError", message="no"),
            claim_as="w1",
        )
        again = _claimed(finished.claimed)
        assert (again.rollout_id, again.attempt.sequence_id) == (queued.rollout_id, 2)
        assert await statuses(store, queued) == ("preparing", "failed", "preparing")

    async def test_refused_spans_are_reported_one_by_one_and_stop_nothing_else(self, store: Store) -> None:
        queued = await store.enqueue_rollout(1)
        rollout, other = await started(store, worker_id="w1"), await started(store)
        stored, conflicting = make_span(rollout.attempt, 1, name="stored"), make_span(rollout.attempt, 2, name="first")
        await store.add_many_spans([stored, conflicting])
        spans = [
            make_span(rollout.attempt, 3, name="new"),
            make_span(other.attempt, 4),
            stored,
            conflicting.model_copy(update={"name": "changed"}),
            make_span(rollout.attempt, 5, name="no\0name"),
            make_span(rollout.attempt, 6, name="last"),
        ]
        finished = await store.finish_attempt(
            rollout.rollout_id, rollout.attempt.attempt_id, "succeeded", spans=spans, claim_as="w1"
        )
        assert _kinds(finished.spans) == [Span, Invalid, type(None), SpanConflict, Invalid, Span]
        assert [finished.spans[0], finished.spans[5]] == [spans[0], spans[5]]
        names = [span.name for span in await store.query_spans(rollout.rollout_id)]
        assert names == ["stored", "first", "new", "last"]
        assert (await store.query_spans(other.rollout_id)).total == 0
        assert await statuses(store, rollout) == ("succeeded", "succeeded")
        assert _claimed(finished.claimed).rollout_id == queued.rollout_id

    async def test_an_unknown_attempt_is_reported_and_the_next_rollout_claimed(self, store: Store) -> None:
        rollout = await started(store)
        for rollout_id in (rollout.rollout_id, "ro-none"):
            queued = await store.enqueue_rollout(1)
            span = make_span(rollout.attempt.model_copy(update={"rollout_id": rollout_id, "attempt_id": "at-none"}))
            finished = await store.finish_attempt(rollout_id, "at-none", "succeeded", spans=[span], claim_as="w1")
            assert _kinds(finished.spans) == [NotFound]
            assert isinstance(finished.attempt, NotFound)
            assert _claimed(finished.claimed).rollout_id == queued.rollout_id
        assert (await store.query_spans(rollout.rollout_id)).total == 0

    async def test_an_attempt_that_ended_can_end_again_and_late_spans_do_not_reopen_it(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        await store.update_attempt(rollout.rollout_id, "latest", "failed")
        error = AttemptError(type="cancelled", message="")
        finished = await store.finish_attempt(
            rollout.rollout_id,
            rollout.attempt.attempt_id,
            "failed",
            spans=[make_span(rollout.attempt, 1)],
            error=error,
        )
        assert _kinds(finished.spans) == [Span]
        assert finished.attempt == await attempt_of(store, rollout)

    async def test_an_end_with_wrong_arguments_is_invalid(self, store: Store) -> None:
        rollout = await started(store)
        wrong: list[dict[str, Any]] = [
            {"status": "done"},
            {"status": "succeeded", "error": AttemptError(type="a", message="b")},
            {"status": "succeeded", "metadata": []},
            {"status": "succeeded", "claim_as": "w\0"},
        ]
        for arguments in wrong:
            try:
                finished = await store.finish_attempt(rollout.rollout_id, rollout.attempt.attempt_id, **arguments)
            except Invalid:
                continue
            assert isinstance(finished.claimed, Invalid)

    async def test_workers_that_end_attempts_at_once_claim_each_rollout_once(self, store: Store) -> None:
        for number in range(12):
            await store.enqueue_rollout(number)

        async def work(worker_id: str) -> list[int]:
            inputs: list[int] = []
            current = await store.dequeue_rollout(worker_id)
            while isinstance(current, AttemptedRollout):
                inputs.append(current.input)
                finished = await store.finish_attempt(
                    current.rollout_id, current.attempt.attempt_id, "succeeded", claim_as=worker_id
                )
                assert not isinstance(finished.claimed, StoreError)
                current = finished.claimed
            return inputs

        inputs = await asyncio.gather(*(work(f"w{number}") for number in range(4)))
        assert sorted(number for part in inputs for number in part) == list(range(12))
        assert {rollout.status for rollout in await store.query_rollouts()} == {"succeeded"}
