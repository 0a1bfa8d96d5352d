"""The end of an attempt with the next claim is one commit, and a claim whose attempt has not begun can be undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.client import HTTPStore
from store.errors import Incompatible
from store.interface.store import Store
from store.models import Attempt, AttemptedRollout, RolloutConfig
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span
from store.wire.encoding import dumps
from store.wire.finished_attempts import decode
from tests.client.scripted_server import ScriptedServer, answer
from tests.client.served import Served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with Served() as served:
        yield served


async def claimed_by(store: Store, worker_id: str) -> AttemptedRollout:
    rollout = await store.dequeue_rollout(worker_id)
    assert rollout is not None
    return rollout


class ReleaseContract:
    """Tests of `runs.release_claim`."""

    async def test_a_released_claim_returns_to_its_old_place_and_does_not_count(self, store: Store) -> None:
        for number in range(3):
            await store.enqueue_rollout(number)
        first = await claimed_by(store, "w1")
        second = await claimed_by(store, "w1")
        assert await store.runs.release_claim(first.rollout_id, first.attempt.attempt_id)
        rollout = await store.get_rollout_by_id(first.rollout_id)
        assert rollout is not None
        assert (rollout.status, (await store.query_attempts(first.rollout_id)).total) == ("queuing", 0)
        again = [await claimed_by(store, "w2") for _ in range(2)]
        assert [rollout.input for rollout in (second, *again)] == [1, 0, 2]
        assert again[0].attempt.sequence_id == 1

    async def test_the_claim_of_a_retry_is_released_to_its_place(self, store: Store) -> None:
        config = RolloutConfig(max_attempts=3, retry_condition=["failed"])
        await store.enqueue_rollout(0, config=config)
        failing = await claimed_by(store, "w1")
        finished = await store.finish_attempt(failing.rollout_id, failing.attempt.attempt_id, "failed", claim_as="w1")
        assert isinstance(finished.claimed, AttemptedRollout)
        await store.enqueue_rollout(1)
        assert await store.runs.release_claim(failing.rollout_id, finished.claimed.attempt.attempt_id)
        again = await claimed_by(store, "w2")
        assert (again.rollout_id, again.attempt.sequence_id) == (failing.rollout_id, 2)

    async def test_a_release_can_be_repeated_and_an_attempt_that_began_is_not_released(self, store: Store) -> None:
        for number in range(2):
            await store.enqueue_rollout(number)
        first, second = [await claimed_by(store, "w1") for _ in range(2)]
        await store.add_span(make_span(second.attempt))
        assert not await store.runs.release_claim(second.rollout_id, second.attempt.attempt_id)
        assert not await store.runs.release_claim(second.rollout_id, "at-none")
        assert not await store.runs.release_claim("ro-none", second.attempt.attempt_id)
        started = await store.start_rollout(2)
        assert not await store.runs.release_claim(started.rollout_id, started.attempt.attempt_id)
        for _ in range(2):
            assert await store.runs.release_claim(first.rollout_id, first.attempt.attempt_id)


class UncountedContract:
    """Tests of attempts that were put back into the queue."""

    async def test_an_attempt_that_was_put_back_does_not_count_as_a_retry(self, store: Store) -> None:
        await store.enqueue_rollout(0, config=RolloutConfig(max_attempts=2, retry_condition=["failed"]))
        # Each True is an attempt that is put back.
        for puts_back, status in ((True, "requeuing"), (False, "requeuing"), (True, "requeuing"), (False, "failed")):
            rollout = await claimed_by(store, "w1")
            await store.finish_attempt(rollout.rollout_id, rollout.attempt.attempt_id, "failed", requeue=puts_back)
            ended = await store.get_rollout_by_id(rollout.rollout_id)
            assert ended is not None
            assert ended.status == status
        assert (await store.log.verify()).ok


class TestStore(ReleaseContract, UncountedContract):
    """The contract, on each database."""

    async def test_a_claim_in_flight_is_released_before_the_store_is_closed(
        self, store: SQLStore, store_url: str
    ) -> None:
        rollout = await store.enqueue_rollout(0)
        for wait_seconds in (0, 60):
            other = await open_store(store_url, scan_debounce_seconds=0)
            assert isinstance(other, SQLStore)
            release, begin = asyncio.Event(), asyncio.Event()

            async def hold(_: Any, begin: asyncio.Event = begin, release: asyncio.Event = release) -> None:
                begin.set()
                await release.wait()

            # While a job holds the writer, the claim waits for its commit, and its caller leaves.
            thread = other.core.thread
            holding = asyncio.create_task(thread.run(other.core.writer.run_job(hold)))
            await thread.run(begin.wait())
            claiming = asyncio.create_task(other.dequeue_many_rollouts(1, "w1", wait_seconds=wait_seconds))
            while not other.core.writer.waiting:  # noqa: ASYNC110 - of another thread
                await asyncio.sleep(0.001)
            thread.call_soon(release.set)
            while other.core.writer.waiting:  # noqa: ASYNC110 - of another thread
                await asyncio.sleep(0)
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
            await other.close()
            await holding
            current = await store.get_rollout_by_id(rollout.rollout_id)
            assert current is not None
            assert current.status == "queuing"

    async def test_an_end_with_spans_and_a_claim_is_one_commit(self, store: SQLStore) -> None:
        for number in range(2):
            await store.enqueue_rollout(number)
        rollout = await claimed_by(store, "w1")
        commits = store.core.writer_statistics.commits
        await store.finish_attempt(
            rollout.rollout_id,
            rollout.attempt.attempt_id,
            "succeeded",
            spans=[make_span(rollout.attempt), make_span(rollout.attempt, 2)],
            claim_as="w1",
        )
        assert store.core.writer_statistics.commits == commits + 1
        assert (await store.log.verify()).ok


@pytest.mark.http
class TestHTTPStore(ReleaseContract, UncountedContract):
    """The contract, over HTTP."""

    @pytest.fixture
    async def store(self, server: Served, tmp_path: Path, clock: ManualClock) -> AsyncIterator[HTTPStore]:
        url = f"sqlite:///{tmp_path / 'rollbook.db'}"
        async with await open_store(url, clock=clock, scan_debounce_seconds=0) as behind:
            with server.serving(behind) as served_url:
                async with HTTPStore(served_url) as store:
                    yield store


class MethodsOnly(Store):
    """A store that defines methods instead of `call`, as stores of other packages do."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattribute__(self, name: str) -> Any:
        own = {"finish_attempt", "_inner", "call", "runs", "__class__"}
        return object.__getattribute__(self, name) if name in own else getattr(self._inner, name)


MethodsOnly.__abstractmethods__ = frozenset()


async def test_a_store_without_the_call_ends_attempts_by_its_other_calls(store: Store) -> None:
    queued = await store.enqueue_rollout(1)
    rollout = await store.start_rollout(0)
    finished = await MethodsOnly(store).finish_attempt(  # pyright: ignore[reportAbstractUsage]
        rollout.rollout_id,
        rollout.attempt.attempt_id,
        "succeeded",
        spans=[make_span(rollout.attempt, 9)],
        number=True,
        metadata={},
        claim_as="w1",
    )
    (span,) = await store.query_spans(rollout.rollout_id)
    assert (finished.spans, span.sequence_id) == ([span], 1)
    assert finished.attempt == await store.get_latest_attempt(rollout.rollout_id)
    assert isinstance(finished.attempt, Attempt)
    assert finished.attempt.metadata == {}
    assert isinstance(finished.claimed, AttemptedRollout)
    assert finished.claimed.rollout_id == queued.rollout_id


async def test_a_server_without_the_call_gets_the_parts(clock: ManualClock) -> None:
    async with await open_store("memory://", clock=clock) as behind:
        rollout = await behind.start_rollout(0)
        attempt = await behind.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, "succeeded")
    ended, empty = answer("200 OK", dumps(attempt)), answer("200 OK", b"[]")
    unknown = answer("404 Not Found", b'{"detail": "Not Found"}')
    with ScriptedServer([unknown, ended, empty, ended, empty]) as server:
        async with HTTPStore(server.url) as store:
            for _ in range(2):
                finished = await store.finish_attempt(
                    rollout.rollout_id, rollout.attempt.attempt_id, "succeeded", claim_as="w1"
                )
                assert (finished.attempt, finished.claimed) == (attempt, None)
        paths = [head.split(" ")[1].rpartition("/")[2] for head, _ in server.requests]
        attempt_id = rollout.attempt.attempt_id
        assert paths == ["finish", attempt_id, "dequeue", attempt_id, "dequeue"]


async def test_an_error_of_an_unknown_type_in_the_answer_is_readable(clock: ManualClock) -> None:
    async with await open_store("memory://", clock=clock) as behind:
        rollout = await behind.start_rollout(0)
    overheated = {"error_type": "Overheated", "detail": "the server is too hot"}
    refused = [{"index": 0, "error": overheated}]
    body = {"spans": [], "refused_spans": refused, "attempt": None, "attempt_error": overheated}
    finished = decode(dumps({**body, "claimed": None, "claim_error": overheated}), [make_span(rollout.attempt)])
    for error in (finished.spans[0], finished.attempt, finished.claimed):
        assert isinstance(error, Incompatible)
        assert not error.retryable
        assert "Overheated" in str(error)
        assert "the server is too hot" in str(error)
        assert "use the version of the server" in str(error)
