"""The store's methods without await, for scripts, notebooks and threads.

Each call runs on an event loop in a daemon thread, which starts with the first call, and blocks its caller until it is
done; so it works where a loop is running already, though it holds that loop up.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from store.errors import WrongProcess
from store.interface.annotations import StoreAnnotations
from store.interface.log import StoreLog
from store.interface.runs import StoreRuns
from store.interface.store import Store
from store.interface.threads import StoreThreads
from store.models import LightningStoreCapabilities
from store.runtime import process
from store.runtime.loop_thread import LoopThread

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_AT_ONCE = 256
"""How many items of an iterator one hop between the threads brings at most."""


class _Sync(Generic[S]):
    """An object with async methods, and the loop that runs them."""

    target: S

    def home(self) -> LoopThread:
        """Return the loop that runs the calls."""
        raise NotImplementedError


def _waiting(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Sync[S], P], T]:
    """Return a method that waits for what the target's method of this name returns."""

    @wraps(method)
    def call(self: _Sync[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        own: Callable[P, Coroutine[Any, Any, T]] = getattr(self.target, method.__name__)
        return self.home().wait(own(*args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Sync[S], P], Iterator[T]]:
    """Return a generator method that waits for each item of what the target's method of this name yields."""

    @wraps(method)
    def iterate(self: _Sync[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        own: Callable[P, AsyncIterator[T]] = getattr(self.target, method.__name__)
        home = self.home()
        ahead = Ahead(own(*args, **kwargs))
        try:
            while items := home.wait(ahead.take()):
                yield from items
        finally:
            home.finish(ahead.close())

    return iterate


class _SyncPart(_Sync[S]):
    """A part of a store, whose methods run where the store's do."""

    def __init__(self, target: S, home: Callable[[], LoopThread]) -> None:
        self.target = target
        self._home = home

    def home(self) -> LoopThread:
        """Return the store's loop."""
        return self._home()


class SyncLog(_SyncPart[StoreLog]):
    """The log of a store; see `StoreLog`."""

    history = _waiting(StoreLog.history)
    tail = _iterating(StoreLog.tail)
    verify = _waiting(StoreLog.verify)
    rebuild = _waiting(StoreLog.rebuild)
    seal = _waiting(StoreLog.seal)


class SyncRuns(_SyncPart[StoreRuns]):
    """Runs; see `StoreRuns`."""

    append_events = _waiting(StoreRuns.append_events)
    query_events = _waiting(StoreRuns.query_events)
    get_graph = _waiting(StoreRuns.get_graph)
    follow = _iterating(StoreRuns.follow)
    save_checkpoint = _waiting(StoreRuns.save_checkpoint)
    get_checkpoint = _waiting(StoreRuns.get_checkpoint)
    get_checkpoint_by_id = _waiting(StoreRuns.get_checkpoint_by_id)
    list_checkpoints = _waiting(StoreRuns.list_checkpoints)
    save_artifact = _waiting(StoreRuns.save_artifact)
    retract_artifact = _waiting(StoreRuns.retract_artifact)
    query_artifacts = _waiting(StoreRuns.query_artifacts)
    scope_history = _waiting(StoreRuns.scope_history)
    plan_fork = _waiting(StoreRuns.plan_fork)
    fork = _waiting(StoreRuns.fork)
    resume = _waiting(StoreRuns.resume)
    move_head = _waiting(StoreRuns.move_head)
    list_lineage = _waiting(StoreRuns.list_lineage)
    compare_attempts = _waiting(StoreRuns.compare_attempts)


class SyncAnnotations(_SyncPart[StoreAnnotations]):
    """Labels and notes; see `StoreAnnotations`."""

    annotate = _waiting(StoreAnnotations.annotate)
    query = _waiting(StoreAnnotations.query)


class SyncThreads(_SyncPart[StoreThreads]):
    """Threads of checkpoints; see `StoreThreads`."""

    save_checkpoint = _waiting(StoreThreads.save_checkpoint)
    save_writes = _waiting(StoreThreads.save_writes)
    get_checkpoint = _waiting(StoreThreads.get_checkpoint)
    iterate_checkpoints = _iterating(StoreThreads.iterate_checkpoints)
    list_places = _waiting(StoreThreads.list_places)
    list_threads = _waiting(StoreThreads.list_threads)
    delete = _waiting(StoreThreads.delete)
    delete_runs = _waiting(StoreThreads.delete_runs)
    prune = _waiting(StoreThreads.prune)
    copy = _waiting(StoreThreads.copy)


class SyncStore(_Sync[Store]):
    """A store whose methods return results instead of awaitables; everything else is as `Store` says."""

    def __init__(self, store: Store) -> None:
        self.store = self.target = store
        self._home: LoopThread | None = None
        self._starting = threading.Lock()

    def close(self) -> None:
        """Close the store and end this object's thread; closing twice is fine."""
        try:
            self.home().wait(self.store.close())
        finally:
            with self._starting:
                home, self._home = self._home, None
            if home is not None:
                home.leave()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What callers may rely on; an absent key means False."""
        return self.store.capabilities

    @property
    def log(self) -> SyncLog:
        """The facts that the store recorded, and their proof."""
        return SyncLog(self.store.log, self.home)

    @property
    def runs(self) -> SyncRuns:
        """Runs with phases: their events, checkpoints and artefacts, and running a part of them again."""
        return SyncRuns(self.store.runs, self.home)

    @property
    def annotations(self) -> SyncAnnotations:
        """Labels and notes of rollouts."""
        return SyncAnnotations(self.store.annotations, self.home)

    @property
    def threads(self) -> SyncThreads:
        """Threads of checkpoints, for LangGraph."""
        return SyncThreads(self.store.threads, self.home)

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    start_rollout = _waiting(Store.start_rollout)
    enqueue_rollout = _waiting(Store.enqueue_rollout)
    enqueue_many_rollouts = _waiting(Store.enqueue_many_rollouts)
    dequeue_rollout = _waiting(Store.dequeue_rollout)
    dequeue_many_rollouts = _waiting(Store.dequeue_many_rollouts)
    start_attempt = _waiting(Store.start_attempt)
    add_span = _waiting(Store.add_span)
    add_many_spans = _waiting(Store.add_many_spans)
    add_otel_span = _waiting(Store.add_otel_span)
    get_next_span_sequence_id = _waiting(Store.get_next_span_sequence_id)
    get_many_span_sequence_ids = _waiting(Store.get_many_span_sequence_ids)
    wait_for_rollouts = _waiting(Store.wait_for_rollouts)
    query_rollouts = _waiting(Store.query_rollouts)
    find_rollouts = _waiting(Store.find_rollouts)
    get_rollout_by_id = _waiting(Store.get_rollout_by_id)
    update_rollout = _waiting(Store.update_rollout)
    query_attempts = _waiting(Store.query_attempts)
    find_attempts = _waiting(Store.find_attempts)
    get_latest_attempt = _waiting(Store.get_latest_attempt)
    update_attempt = _waiting(Store.update_attempt)
    query_spans = _waiting(Store.query_spans)
    find_spans = _waiting(Store.find_spans)
    add_resources = _waiting(Store.add_resources)
    update_resources = _waiting(Store.update_resources)
    query_resources = _waiting(Store.query_resources)
    find_resources = _waiting(Store.find_resources)
    get_resources_by_id = _waiting(Store.get_resources_by_id)
    get_latest_resources = _waiting(Store.get_latest_resources)
    query_workers = _waiting(Store.query_workers)
    find_workers = _waiting(Store.find_workers)
    get_worker_by_id = _waiting(Store.get_worker_by_id)
    update_worker = _waiting(Store.update_worker)
    statistics = _waiting(Store.statistics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncStore, (self.store,)

    def home(self) -> LoopThread:
        """Return the loop that runs the calls, started if need be.

        Raises:
            WrongProcess: this object was used in another process before the fork into this one.
        """
        home = self._home
        if home is not None and home.process != process.number:
            raise WrongProcess(opened_in=home.process, used_in=process.number)
        with self._starting:
            if self._home is None:
                self._home = LoopThread("rollbook-sync", asyncio.new_event_loop)
                weakref.finalize(self, self._home.leave)
            return self._home


class Ahead(Generic[T]):
    """An async iterator read a batch at a time: what is ready comes along with the item that was waited for."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._upcoming: asyncio.Task[T | _End] | None = None

    async def take(self) -> list[T]:
        """Return the next items, at least one; none at the end."""
        taken: list[T] = []
        while len(taken) < _AT_ONCE:
            upcoming = self._upcoming = self._upcoming or asyncio.create_task(_next(self._items))
            if taken and not await _is_there(upcoming):
                break
            item = await upcoming
            if isinstance(item, _End):
                break
            self._upcoming = None
            taken.append(item)
        return taken

    async def close(self) -> None:
        """Let go of the iterator, also while an item is on its way."""
        if self._upcoming is not None:
            self._upcoming.cancel()
            await asyncio.gather(self._upcoming, return_exceptions=True)
        items: object = self._items
        if isinstance(items, AsyncGenerator):
            await cast("AsyncGenerator[T, None]", items).aclose()


class _End:
    """What comes after the last item."""


async def _next(items: AsyncIterator[T]) -> T | _End:
    return await anext(items, _End())


async def _is_there(upcoming: asyncio.Task[Any]) -> bool:
    """Return whether an item came without waiting. An error is one still to come, for the next batch to raise."""
    await asyncio.sleep(0)
    return upcoming.done() and not upcoming.cancelled() and upcoming.exception() is None
