"""The store on collections passes the contract, with collections in memory and with transactions that fail."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from store import (
    Attempt,
    AttemptedRollout,
    Conflict,
    EnqueueRolloutRequest,
    ResourcesUpdate,
    Rollout,
    Span,
    Store,
    Unsupported,
    Worker,
)
from store.integrations.collections import (
    Collection,
    CollectionBasedLightningStore,
    DequeBasedQueue,
    DictBasedKeyValue,
    InMemoryLightningCollections,
    KeyValue,
    LightningCollections,
    ListBasedCollection,
    Queue,
    SortOptions,
)
from store.testing import ManualClock
from store.testing.contract import StoreContract
from store.testing.samples import make_span
from store.training import LitAgentRunner, rollout

R = TypeVar("R")


class FailingCommits(InMemoryLightningCollections):
    """Collections whose every transaction fails once at its commit, is undone, and is executed again."""

    async def execute(self, callback: Callable[[Self], Awaitable[R]], **how: Any) -> R:
        if "w" in how.get("mode", "rw"):
            before = copy.deepcopy({name: value for name, value in vars(self).items() if name != "_locks"})
            await super().execute(callback, **how)
            vars(self).update(before)
        return await super().execute(callback, **how)


class SlowCommits(InMemoryLightningCollections):
    """Collections that answer some time after the commit."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.has_committed = threading.Event()

    async def execute(self, callback: Callable[[Self], Awaitable[R]], **how: Any) -> R:
        result = await super().execute(callback, **how)
        self.has_committed.set()
        await asyncio.to_thread(self.may_answer.wait, 60)
        return result


@pytest.mark.repeat
class TestInMemory(StoreContract):
    """The contract, on the collections that the package has."""

    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[Store]:
        collections = InMemoryLightningCollections()
        async with CollectionBasedLightningStore(collections, scan_debounce_seconds=0, clock=clock) as store:
            yield store


class DocumentedMembers(LightningCollections):
    """Collections with exactly the members of Agent-lightning's class."""

    def __init__(self) -> None:
        self._inner = InMemoryLightningCollections()

    @property
    def rollouts(self) -> Collection[Rollout]:
        return self._inner.rollouts

    @property
    def attempts(self) -> Collection[Attempt]:
        return self._inner.attempts

    @property
    def spans(self) -> Collection[Span]:
        return self._inner.spans

    @property
    def resources(self) -> Collection[ResourcesUpdate]:
        return self._inner.resources

    @property
    def workers(self) -> Collection[Worker]:
        return self._inner.workers

    @property
    def rollout_queue(self) -> Queue[str]:
        return self._inner.rollout_queue

    @property
    def span_sequence_ids(self) -> KeyValue[str, int]:
        return self._inner.span_sequence_ids

    @contextlib.asynccontextmanager
    async def atomic(self, **how: Any) -> AsyncGenerator[Self]:
        async with self._inner.atomic(**how):
            yield self


async def test_a_store_without_runs_does_not_release_claims() -> None:
    async with CollectionBasedLightningStore(InMemoryLightningCollections()) as store:
        await store.enqueue_rollout(1)
        claimed = await store.dequeue_rollout("w1")
        assert claimed is not None
        with pytest.raises(Unsupported):
            await store.runs.release_claim(claimed.rollout_id, claimed.attempt.attempt_id)


async def test_documented_members_of_collections_suffice() -> None:
    collections = DocumentedMembers()
    async with CollectionBasedLightningStore(collections) as store:
        first = await store.enqueue_rollout(1, metadata={"rollbook.key": "k"})
        assert (await store.enqueue_rollout(1, metadata={"rollbook.key": "k"})).rollout_id == first.rollout_id
        with pytest.raises(Conflict):
            await store.enqueue_rollout(2, metadata={"rollbook.key": "k"})
    async with CollectionBasedLightningStore(collections) as reopened:
        other = await reopened.enqueue_many_rollouts(
            [
                EnqueueRolloutRequest(input=input_, metadata={"rollbook.key": key})
                for input_, key in ((1, "k"), (3, "l"))
            ]
        )
        assert other[0].rollout_id == first.rollout_id
        assert (await reopened.query_rollouts()).total == 2


@pytest.fixture
async def plain() -> AsyncIterator[CollectionBasedLightningStore[InMemoryLightningCollections]]:
    async with CollectionBasedLightningStore(InMemoryLightningCollections(), poll_seconds=0.05) as store:
        yield store


async def test_a_decision_that_is_executed_twice_counts_once() -> None:
    async with CollectionBasedLightningStore(FailingCommits()) as store:
        first = await store.enqueue_rollout(1, metadata={"rollbook.key": "k"})
        assert (await store.enqueue_rollout(1, metadata={"rollbook.key": "k"})).rollout_id == first.rollout_id
        await store.enqueue_rollout(2)
        claimed = await store.dequeue_many_rollouts(5, "w1")
        assert [row.input for row in claimed] == [1, 2]
        assert [await store.get_next_span_sequence_id(first.rollout_id, "any") for _ in range(3)] == [1, 2, 3]
        span = make_span(claimed[0].attempt, 9)
        assert await store.add_span(span) == span
        assert await store.add_span(span) is None
        await store.update_attempt(first.rollout_id, "latest", status="succeeded")
        statistics = await store.statistics()
        assert (statistics.get("total_rollouts"), statistics.get("total_attempts")) == (2, 2)
        assert await store.get_next_span_sequence_id(first.rollout_id, "any") == 10


async def test_a_claim_whose_caller_leaves_before_a_slow_backend_answers_is_released_at_its_old_place() -> None:
    collections = SlowCommits()
    async with CollectionBasedLightningStore(collections) as store:
        entered = [(await store.enqueue_rollout(number)).rollout_id for number in range(3)]
        collections.may_answer.clear()
        collections.has_committed.clear()
        claiming = asyncio.ensure_future(store.dequeue_many_rollouts(2, "w1"))
        assert await asyncio.to_thread(collections.has_committed.wait, 60)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        collections.may_answer.set()
        for _ in range(1000):
            if (await store.query_rollouts(status_in=["queuing"])).total == 3:
                break
            await asyncio.sleep(0.01)
        worker = await store.get_worker_by_id("w1")
        assert worker is not None
        assert (worker.status, worker.current_attempt_id) == ("idle", None)
        again = await store.dequeue_many_rollouts(5, "w2")
        assert [(row.rollout_id, row.attempt.sequence_id) for row in again] == [
            (rollout_id, 1) for rollout_id in entered
        ]


async def test_a_second_store_goes_on_where_the_first_was_closed() -> None:
    collections = InMemoryLightningCollections()
    async with CollectionBasedLightningStore(collections) as store:
        keyed = await store.enqueue_rollout("a", metadata={"rollbook.key": "k"})
        await store.enqueue_rollout("b")
        claimed = await store.dequeue_rollout("w1")
        assert claimed is not None
        await store.get_next_span_sequence_id(keyed.rollout_id, "any")
    async with CollectionBasedLightningStore(collections) as store:
        assert (await store.enqueue_rollout("a", metadata={"rollbook.key": "k"})).rollout_id == keyed.rollout_id
        await store.update_attempt(keyed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        (ended,) = await store.wait_for_rollouts([keyed.rollout_id], timeout=0)
        assert ended.status == "succeeded"
        worker = await store.get_worker_by_id("w1")
        assert worker is not None
        assert worker.status == "idle"
        assert await store.get_next_span_sequence_id(keyed.rollout_id, "any") == 2
        following = await store.dequeue_rollout("w1")
        assert following is not None
        assert following.input == "b"


async def test_waiting_claim_sees_a_rollout_of_another_process(
    plain: CollectionBasedLightningStore[InMemoryLightningCollections],
) -> None:
    claiming = asyncio.ensure_future(plain.dequeue_rollout(wait_seconds=60))
    await asyncio.sleep(0.1)
    foreign = Rollout(rollout_id="ro-elsewhere", input=1, start_time=1.0)

    async def write() -> None:
        # As another process would: this store is not informed.
        await plain.collections.rollouts.insert([foreign])
        await plain.collections.rollout_queue.enqueue([foreign.rollout_id])

    await vars(plain)["_thread"].run(write())
    claimed = await claiming
    assert isinstance(claimed, AttemptedRollout)
    assert claimed.rollout_id == foreign.rollout_id


async def test_calls_that_need_a_log_are_unsupported(plain: Store) -> None:
    rollout_id = (await plain.enqueue_rollout(1)).rollout_id
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: plain.log.history(rollout_id),
        plain.log.verify,
        lambda: plain.runs.get_graph(rollout_id),
        lambda: plain.annotations.query(rollout_id),
        lambda: plain.get_rollout_by_id(rollout_id, as_at=1),
        lambda: plain.get_rollout_by_id(rollout_id, at=1),
        lambda: plain.query_rollouts(as_at=1),
        lambda: plain.query_spans(rollout_id, at=1),
        lambda: plain.statistics(as_at=1),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match="CollectionBasedLightningStore"):
            await call()


FORK = """
import asyncio, os
from store.errors import WrongProcess
from store.integrations.collections import CollectionBasedLightningStore, InMemoryLightningCollections

async def use(store):
    for call in (store.enqueue_rollout(1), store.query_rollouts(), store.wait_for_rollouts(["ro-1"]), store.close()):
        try:
            await call
        except WrongProcess:
            continue
        raise AssertionError("a fork used the store of its parent")

async def go_on(store):
    await store.enqueue_rollout(1)
    print((await store.query_rollouts()).total)
    await store.close()

store = CollectionBasedLightningStore(InMemoryLightningCollections())
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(go_on(store))
else:
    asyncio.run(use(store))
"""


@pytest.mark.slow
def test_a_fork_is_refused_and_the_parent_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


async def test_an_agent_runs_on_it(plain: Store) -> None:
    @rollout
    def agent(task: int) -> float:
        return task / 10

    for number in range(3):
        await plain.enqueue_rollout(number)
    await plain.add_resources({})
    runner = LitAgentRunner[int](max_rollouts=3, heartbeat_interval=0)
    with runner.run_context(agent=agent, store=plain):
        await runner.iter()
    assert [row.status for row in await plain.query_rollouts()] == ["succeeded"] * 3
    assert (await plain.statistics()).get("total_spans", 0) >= 6


@pytest.mark.slow
async def test_the_documented_backend_runs_and_keeps_its_numbers(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
    section = page.partition("## A store on collections")[2].partition("\n## ")[0]
    example, printed = re.findall(r"^```(?:python|text)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    command = [sys.executable, "-W", "error", "example.py"]
    for number in (1, 2):
        process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        assert output.decode() == printed
        with contextlib.closing(sqlite3.connect(tmp_path / "numbers.db")) as connection:
            assert connection.execute("SELECT count(*), sum(value) FROM numbers").fetchone() == (number, 2 * number)


def workers(*names: str) -> ListBasedCollection[Worker]:
    records = [Worker(worker_id=name, status="busy" if name > "b" else "idle") for name in names]
    return ListBasedCollection(records, Worker, ["worker_id"])


@pytest.mark.parametrize(
    "conditions, worker_ids",
    [
        (None, ["c", "a", "b", "ab"]),
        ({}, ["c", "a", "b", "ab"]),
        ({"worker_id": {"exact": "a"}}, ["a"]),
        ({"worker_id": {"within": ["b", "c", "none"]}}, ["c", "b"]),
        ({"worker_id": {"within": []}}, []),
        ({"worker_id": {"contains": "b"}}, ["b", "ab"]),
        ({"worker_id": {"contains": "b"}, "status": {"exact": "idle"}}, ["b", "ab"]),
        ({"_aggregate": "or", "worker_id": {"contains": "b", "exact": "a"}}, ["a", "b", "ab"]),
        ({"_aggregate": "or", "worker_id": {"exact": "a"}, "status": {"exact": "busy"}}, ["c", "a"]),
        ({"_aggregate": "or", "_must": {"worker_id": {"exact": "c"}}, "status": {"exact": "idle"}}, []),
        ({"_aggregate": "or", "_must": {"worker_id": {"exact": "c"}}}, ["c"]),
        ({"current_rollout_id": {"contains": ""}}, []),
    ],
)
async def test_query_returns_the_items_that_match_its_conditions(conditions: Any, worker_ids: list[str]) -> None:
    page = await workers("c", "a", "b", "ab").query(conditions)
    assert [worker.worker_id for worker in page] == worker_ids
    assert (page.total, page.limit, page.offset) == (len(worker_ids), -1, 0)


async def test_a_query_of_another_condition_is_refused() -> None:
    with pytest.raises(ValueError, match="use exact, within or contains"):
        await workers("a").query({"worker_id": {"equals": "a"}})


async def test_a_page_is_cut_after_sorting_and_none_has_its_place() -> None:
    collection = ListBasedCollection[Rollout]([], Rollout, ["rollout_id"])
    for name, end, mode in (("x", None, None), ("y", 2.0, "val"), ("z", 1.0, "train"), ("w", 1.0, None)):
        await collection.insert([Rollout(rollout_id=name, input=1, start_time=0.0, end_time=end, mode=mode)])  # pyright: ignore[reportArgumentType]
    orders: list[tuple[SortOptions, str]] = [
        ({"name": "end_time", "order": "asc"}, "zwyx"),
        ({"name": "end_time", "order": "desc"}, "xyzw"),
        ({"name": "mode", "order": "asc"}, "xwzy"),
        ({"name": "mode", "order": "desc"}, "yzxw"),
    ]
    for order, ids in orders:
        assert "".join(row.rollout_id for row in await collection.query(sort=order)) == ids
        page = await collection.query(sort=order, limit=2, offset=1)
        assert ("".join(row.rollout_id for row in page), page.total) == (ids[1:3], 4)
        first = await collection.get(sort=order)
        assert first is not None
        assert first.rollout_id == ids[0]


async def test_writes_replace_existing_items_and_refuse_invalid_ones() -> None:
    collection = workers("a")
    busy = Worker(worker_id="a", status="busy", last_idle_time=5.0)
    new = Worker(worker_id="n")
    with pytest.raises(ValueError, match="already exists"):
        await collection.insert([new, busy])
    for write in (collection.update, collection.delete):
        with pytest.raises(ValueError, match="does not exist"):
            await write([busy, new])
    assert [worker.status for worker in await collection.query()] == ["idle"]
    await collection.upsert([busy, new], update_fields=[])
    assert [worker.status for worker in await collection.query()] == ["idle", "unknown"]
    (updated,) = await collection.update([busy], update_fields=["status"])
    assert (updated.status, updated.last_idle_time) == ("busy", None)
    await collection.upsert([busy])
    assert await collection.get({"worker_id": {"exact": "a"}}) == busy
    await collection.delete([busy])
    assert await collection.size() == 1


async def test_items_are_copies() -> None:
    collection = ListBasedCollection[Worker]([], Worker, ["worker_id"])
    stats: dict[str, Any] = {"list": [1]}
    await collection.insert([Worker(worker_id="a", heartbeat_stats=stats)])
    stats["list"].append(2)
    for _ in range(2):
        item = await collection.get()
        assert item is not None
        assert item.heartbeat_stats == {"list": [1]}
        held: Any = item.heartbeat_stats
        held["list"].append(3)


async def test_a_queue_is_first_in_first_out() -> None:
    queue = DequeBasedQueue(str, ["a"])
    assert await queue.enqueue(["b", "c"]) == ["b", "c"]
    assert (await queue.peek(2), await queue.size(), await queue.has("c")) == (["a", "b"], 3, True)
    assert (await queue.dequeue(2), await queue.dequeue(2), await queue.dequeue()) == (["a", "b"], ["c"], [])
    assert not await queue.has("c")


async def test_numbers_are_added_and_raised() -> None:
    numbers = DictBasedKeyValue[str, Any]({"text": "x"})
    assert [await numbers.inc("a", 2), await numbers.inc("a", 3), await numbers.chmax("a", 4)] == [2, 5, 5]
    assert [await numbers.chmax("a", 9), await numbers.chmax("b", -1)] == [9, -1]
    for write in (numbers.inc, numbers.chmax):
        with pytest.raises(TypeError, match="is not a number"):
            await write("text", 1)
        with pytest.raises(TypeError, match="is not a number"):
            await write("a", True)
    assert (await numbers.pop("a"), await numbers.pop("a", 0), await numbers.get("a")) == (9, 0, None)
    assert (await numbers.has("b"), await numbers.size()) == (True, 2)
