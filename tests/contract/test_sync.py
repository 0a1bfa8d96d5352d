"""The blocking API: equal names and arguments, in scripts, threads, and with a running event loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from store.errors import Closed, NotFound, WrongProcess
from store.interface.annotations import StoreAnnotations, SyncAnnotations
from store.interface.log import StoreLog, SyncLog
from store.interface.runs import StoreRuns, SyncRuns
from store.interface.scanners import StoreScanners, SyncScanners
from store.interface.store import Store, SyncStore
from store.interface.threads import StoreThreads, SyncThreads
from store.models import Span
from store.runtime.blocking import BatchReader
from store.runtime.loop_thread import LoopThread

PLAIN = {"capabilities", "otlp_traces_endpoint", "close"}
"""What needs no waiting in either form, and `close`, which also ends the thread."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("a test")
    yield thread
    thread.leave()


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    from store import open_store

    async with await open_store("memory://") as store:
        yield store


# The form


FORMS: dict[type, type] = {
    Store: SyncStore,
    StoreLog: SyncLog,
    StoreRuns: SyncRuns,
    StoreAnnotations: SyncAnnotations,
    StoreScanners: SyncScanners,
    StoreThreads: SyncThreads,
}
PARTS = {"log", "runs", "annotations", "scanners", "threads"}


@pytest.mark.parametrize("theirs", FORMS)
def test_every_method_of_the_store_is_there_under_its_name(theirs: type) -> None:
    assert public(FORMS[theirs]) == public(theirs) - {"sync"}


@pytest.mark.parametrize(
    "kind,name",
    [(kind, name) for kind in FORMS for name in sorted(public(kind) - PARTS - {"sync", "capabilities"})],
)
def test_a_method_takes_the_arguments_of_the_stores_and_is_no_coroutine(kind: type, name: str) -> None:
    theirs, ours = getattr(kind, name), getattr(FORMS[kind], name)
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
    assert not inspect.iscoroutinefunction(ours)
    assert name in PLAIN or ours.__wrapped__ is theirs


# The loop


async def test_it_works_beside_a_running_loop(thread: LoopThread) -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert thread.wait(answer()) == 42


def test_blocking_call_raises_the_error_of_the_store(thread: LoopThread) -> None:
    async def fail() -> None:
        raise NotFound.rollout("ro-1")

    with pytest.raises(NotFound, match="Rollout ro-1 not found"):
        thread.wait(fail())


def test_interrupting_a_wait_cancels_the_call(thread: LoopThread) -> None:
    cancelled = threading.Event()
    caller = threading.get_ident()

    async def wait() -> None:
        await asyncio.sleep(0.5)  # the caller is blocked in `wait` after this time
        signal.pthread_kill(caller, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt):
        thread.wait(wait())
    assert cancelled.wait(60)


def test_a_call_that_waits_when_the_loop_ends_raises_closed(thread: LoopThread) -> None:
    waiting = threading.Event()

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor() as pool:
        call = pool.submit(thread.wait, wait())
        assert waiting.wait(5)
        thread.leave()
        with pytest.raises(Closed):
            call.result(5)
    with pytest.raises(Closed):
        thread.wait(wait())


def test_a_store_that_is_let_go_of_leaves_no_thread(store: Store) -> None:
    before = set(threading.enumerate())
    sync = SyncStore(store)
    sync.statistics()
    # The store's readers have threads as well, which stay as long as the store.
    (worker,) = (thread for thread in set(threading.enumerate()) - before if thread.name == "rollbook-sync")
    del sync
    gc.collect()
    worker.join(5)
    assert not worker.is_alive()


# Iterators


def test_items_that_are_ready_come_in_one_hop_and_those_that_are_not_are_waited_for(thread: LoopThread) -> None:
    more = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            yield number
        await more.wait()
        yield 3

    reader = BatchReader(numbers())
    assert thread.wait(reader.take()) == [0, 1, 2]

    async def go_on() -> None:
        more.set()

    thread.wait(go_on())
    assert thread.wait(reader.take()) == [3]
    assert thread.wait(reader.take()) == []
    assert thread.wait(reader.take()) == []


def test_an_error_comes_after_the_items_before_it(thread: LoopThread) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        raise NotFound.rollout("ro-1")

    reader = BatchReader(numbers())
    assert thread.wait(reader.take()) == [1]
    with pytest.raises(NotFound):
        thread.wait(reader.take())


def test_letting_go_of_an_iterator_closes_it_also_while_it_waits(thread: LoopThread) -> None:
    closed = threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    reader = BatchReader(numbers())
    assert thread.wait(reader.take()) == [1]
    thread.finish(reader.close())
    assert closed.is_set()


# The store itself


def test_a_rollout_goes_from_the_queue_to_its_end(store: Store) -> None:
    sync = store.sync
    queued = sync.enqueue_rollout({"n": 1}, mode="train")
    claimed = sync.dequeue_rollout("w-1")
    assert claimed is not None
    assert claimed.rollout_id == queued.rollout_id
    span = Span.from_attributes(attributes={}, rollout_id=queued.rollout_id, attempt_id=claimed.attempt.attempt_id)
    assert sync.add_span(span) == span
    sync.update_attempt(queued.rollout_id, "latest", status="succeeded")
    (done,) = sync.wait_for_rollouts([queued.rollout_id], timeout=0)
    assert done.status == "succeeded"
    types = [event.type for event in sync.log.tail(rollout_id=queued.rollout_id)]
    assert types == [event.type for event in sync.log.history(queued.rollout_id)]
    assert types[0] == "rollout.enqueued"


def test_a_tail_that_follows_is_left_by_break(store: Store) -> None:
    store.sync.enqueue_rollout(1)
    for event in store.sync.log.tail(follow=True):
        assert event.type == "rollout.enqueued"
        break
    assert store.sync.statistics()["total_rollouts"] == 1  # pyright: ignore[reportTypedDictNotRequiredAccess]


def test_threads_share_it(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = {rollout.rollout_id for rollout in pool.map(store.sync.enqueue_rollout, range(50))}
    assert len(ids) == 50
    assert store.sync.query_rollouts().total == 50


def test_it_is_one_object_and_closing_it_closes_the_store(store: Store) -> None:
    assert store.sync is store.sync
    with store.sync as sync:
        sync.enqueue_rollout(1)
    with pytest.raises(Closed):
        store.sync.enqueue_rollout(1)
    store.sync.close()


def test_blocking_store_in_a_forked_child_raises_wrong_process(store: Store) -> None:
    sync = store.sync
    sync.statistics()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            sync.statistics()
        except WrongProcess as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert f"when process {child} was forked from it" in pipe.read()
    os.waitpid(child, 0)
