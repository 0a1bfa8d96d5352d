"""Store on a SQL database. Most methods execute one command, which the writer commits, or one read of the database.

A method whose idempotency key was used before gets a `Repeat` instead of a result, and `store.sql.replies` reads the
first result. A command returns a *view*, which contains copies of rows and payload; `rollout_mapping` makes models.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from store.db.dialect import Dialect, dialect_for
from store.db.queries import pages
from store.db.url import StoreURL, parse
from store.domain.commands import RecordSpans
from store.domain.idempotency import Repeat
from store.interface.store import Store
from store.models import (
    LightningStoreCapabilities,
    Rollout,
    Span,
)
from store.models.calls import ChangingCall
from store.runtime.clock import Clock
from store.runtime.loop_thread import LoopThread
from store.sql import replies
from store.sql.calls import CALLS
from store.sql.commands import spans as span_commands
from store.sql.core import SQLCore
from store.sql.lost_workers import LostWorkers
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.queries import RewardReader, SQLReads
from store.sql.queue import SQLQueue
from store.validation import arguments

if TYPE_CHECKING:
    from store.sql.annotations import SQLAnnotations
    from store.sql.log import SQLLog
    from store.sql.runs import SQLRuns
    from store.sql.scanners import SQLScanners
    from store.sql.threads import SQLThreads

T = TypeVar("T")


class SQLStore(SQLReads, Store):
    """A partition of a SQL database, which is a separate store in it. Open it with `await open_store(url)`."""

    def __init__(
        self,
        url: StoreURL,
        dialect: Dialect,
        *,
        scan_debounce_seconds: float,
        read_only: bool,
        thread: LoopThread | None = None,
    ) -> None:
        self._url = url
        self.url = url.text
        """The URL of the store, with its password."""
        self._settings = {"scan_debounce_seconds": scan_debounce_seconds, "read_only": read_only}
        core = SQLCore(
            url.partition, dialect, scan_debounce_seconds=scan_debounce_seconds, read_only=read_only, thread=thread
        )
        super().__init__(core)
        self.store_id = ""
        """The id of the database, which was generated when the database was created."""
        self.queue = SQLQueue(self.core)
        self.spans = SQLSpans(self.core)
        self.accepts_commands = type(self) is SQLStore
        self.lost_workers = LostWorkers(self.core, scan_debounce_seconds)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock | None = None,
        scan_debounce_seconds: float = 10.0,
        create: bool = True,
        read_only: bool = False,
        beside: SQLStore | None = None,
    ) -> Self:
        """Open a store by its URL. `store.open_store` describes all arguments except `beside`.

        Args:
            url: see `open_store`.
            clock: see `open_store`.
            scan_debounce_seconds: see `open_store`.
            create: see `open_store`.
            read_only: see `open_store`.
            beside: an open store of another partition of the same database. The new store shares the connections of
                `beside` if the database allows it.
        """
        parsed = parse(url)
        dialect = dialect_for(parsed)(parsed, clock, read_only=read_only)
        thread = None if beside is None else beside.core.room_for(dialect)
        store = cls(parsed, dialect, scan_debounce_seconds=scan_debounce_seconds, read_only=read_only, thread=thread)
        try:
            await store.core.thread.run(store.core.start(create=create))
        except BaseException:
            store.core.thread.leave()
            raise
        store.store_id = store.core.store_id
        _flush_at_exit(store)
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        if self._url.path is None and self._url.dsn is None:
            raise TypeError("a memory:// store cannot be pickled: no other process can reach it; use sqlite:///run.db")
        return _reopen, (self._url.text, self._settings)

    @property
    def database(self) -> SQLStore:
        """This store, for `store.sql.database`."""
        return self

    # Each of these parts is imported when it is first used, because most commands use at most one of them. Pyright
    # rejects a cached property as the override of a property, because a cached property can be assigned.

    @cached_property
    def log(self) -> SQLLog:  # pyright: ignore[reportIncompatibleMethodOverride]
        from store.sql.log import SQLLog

        return SQLLog(self.core)

    @cached_property
    def runs(self) -> SQLRuns:  # pyright: ignore[reportIncompatibleMethodOverride]
        from store.sql.runs import SQLRuns

        return SQLRuns(self.core, self.queue)

    @cached_property
    def annotations(self) -> SQLAnnotations:  # pyright: ignore[reportIncompatibleMethodOverride]
        from store.sql.annotations import SQLAnnotations

        return SQLAnnotations(self.core)

    @cached_property
    def scanners(self) -> SQLScanners:  # pyright: ignore[reportIncompatibleMethodOverride]
        from store.sql.scanners import SQLScanners

        return SQLScanners(self.core)

    @cached_property
    def threads(self) -> SQLThreads:  # pyright: ignore[reportIncompatibleMethodOverride]
        from store.sql.threads import SQLThreads

        return SQLThreads(self.core)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        # A copy in another process opens the same database, unless the database is private to this process.
        is_shared = self._url.scheme != "memory"
        return {"thread_safe": True, "async_safe": True, "zero_copy": is_shared, "otlp_traces": False}

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return CALLS[type(call)](self, call)

    async def add_span(self, span: Span) -> Span | None:
        command = span_commands.record_spans([span])
        if not await self.spans.record(command):
            return None
        return span_commands.stored_span(span, command.items[0]) if command.derived else span

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        checked = arguments.several(spans, "spans")
        if not checked:
            return []
        command = span_commands.record_spans(checked)
        recorded = await self.spans.record(command)
        return [span_commands.stored_span(checked[index], command.items[index]) for index, _ in recorded]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        span = arguments.sdk_span(rollout_id, attempt_id, readable_span, sequence_id)
        command = span_commands.record_spans([span], number=sequence_id is None)
        recorded = await self.spans.record(command)
        if not recorded:
            return None
        return span_commands.stored_span(span, command.items[0]).model_copy(update={"sequence_id": recorded[0][1]})

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Store spans as `add_many_spans` does; return a pair (index in the call, sequence_id) for each new span.

        Args:
            spans: the spans. They may belong to several attempts.
            number: whether to replace the sequence_id of each span by the next free number of its rollout, in the
                transaction that stores the span.

        Raises:
            NotFound: a rollout or an attempt does not exist. The spans are stored in groups, one for each attempt, and
                the groups before the first group without a rollout or an attempt are stored.
            SpanConflict: stored spans have the keys of these spans and other content. All other spans are stored.
        """
        return await self.spans.record(span_commands.record_spans(spans, number=number))

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        arguments.timeout(timeout)
        rollout_ids = arguments.texts(rollout_ids, "rollout_ids")
        await self.core.watchdog.sweep_if_due()
        if timeout is None or timeout > 0:
            await self.queue.wait_for_end(set(rollout_ids), timeout)
        make = RewardReader(self.core, rollout_mapping.plain_rollout_of_page, rollout_mapping.rewarded_attempt)
        rollouts = await self.core.read(lambda session: pages.rollouts_by_id(session, rollout_ids, make))
        await make.read()
        ended = {"succeeded", "failed", "cancelled"}
        return [
            rollouts[rollout_id]
            for rollout_id in rollout_ids
            if rollout_id in rollouts and rollouts[rollout_id].status in ended
        ]

    async def close(self) -> None:
        await self.core.close()


class SQLSpans:
    """The spans of a SQL store, which commands record."""

    def __init__(self, core: SQLCore) -> None:
        self.core = core

    async def record(self, command: RecordSpans) -> list[tuple[int, int]]:
        """Record spans as `SQLStore.record_spans` does, with the same errors."""
        answer = await self.core.call(command)
        if isinstance(answer, Repeat):
            answer = replies.recorded(answer)
            command.derive(answer.derived)
        if len(answer.numbers) < len(command.items):
            self.core.writer_statistics.span_conflicts += len(answer.conflicts)
            span_commands.check_recorded(command, answer)
        return answer.numbers


def _reopen(url: str, how: dict[str, Any]) -> SQLStore:
    """Open the URL of a pickled store again, in the process that unpickles the store."""
    opened: list[SQLStore] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            opened.append(asyncio.run(SQLStore.open(url, create=False, **how)))
        except BaseException as error:  # noqa: BLE001 (raised in the calling thread)
            failed.append(error)

    # This thread may have a running loop, so another thread opens the store.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return opened[0]


def _flush_at_exit(store: SQLStore) -> None:
    reference = weakref.ref(store)

    def flush() -> None:
        alive = reference()
        if alive is not None:
            alive.core.flush_at_exit()

    atexit.register(flush)
