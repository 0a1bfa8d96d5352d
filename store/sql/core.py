"""Core that the parts of a SQL store share: database, writer, and functions to read, call and wait. Decision 33."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from store.db.dialect import Dialect, ReadSession
from store.db.queries import counts as counting
from store.db.queries import log as log_queries
from store.db.queries import pages, scan
from store.db.schema.sealed import refuse_sealed
from store.domain.commands import Command, NumberSpans, RecordSpans
from store.domain.idempotency import is_keyed
from store.domain.log_time import LogTime
from store.domain.run_commands import AppendToRun
from store.errors import Closed, Invalid, ReadOnly, StoreError, Unavailable, WrongProcess
from store.interface.runs import AsAt
from store.journal import as_at as timeline
from store.journal import tail as tails
from store.journal.state_view import StateView
from store.journal.writer import Waiter, Writer, WriterStatistics
from store.models.enums import build_models
from store.runtime import context, process
from store.runtime.clock import Clock, system_clock
from store.runtime.loop_thread import LoopThread
from store.sql.waiters import FALLBACK_SECONDS, WaitingCalls
from store.sql.watchdog import Watchdog

T = TypeVar("T")

_RELEASE_SECONDS = 5.0
"""How long a store that is closed waits for the release of claims."""
_STEP_SECONDS = 0.5
_FIRST_SWEEP_SECONDS = 1.0
"""The time after which an open store begins to sweep without being called."""
# A process whose elapsed time advances by more than this at once was suspended, or too busy to receive signs of life.
_LONGEST_STEP_MICROS = 1_500_000
# These commands do not depend on overdue attempts, so no sweep runs before them.
_UNSWEPT: frozenset[type[Command]] = frozenset({RecordSpans, NumberSpans, AppendToRun})


class SQLCore:
    """An open partition of a SQL database. A partition is a separate store in the database.

    Args:
        name: the name of the partition. The name of the event-loop thread contains this name.
        dialect: the database.
        scan_debounce_seconds: the minimum time between two sweeps that calls start.
        read_only: whether to refuse all commands.
        thread: an event-loop thread to share with another store; None for a new thread.
    """

    def __init__(
        self,
        name: str,
        dialect: Dialect,
        *,
        scan_debounce_seconds: float,
        read_only: bool,
        thread: LoopThread | None = None,
    ) -> None:
        self.dialect = dialect
        self.read_only = read_only
        self.pid = process.number
        self.opened = time.monotonic()
        self.thread = thread or LoopThread(f"rollbook {name}")
        self.on_undelivered: Callable[[Command, Any], None] | None = None
        """Function that is called in any loop with a command and its reply, if the reply did not reach the caller."""
        # A clock that was passed to the store may advance by hours at once, so its steps do not show a suspension.
        self.log_time = LogTime(dialect.elapsed(), _LONGEST_STEP_MICROS if dialect.clock is None else None)
        self.writer = Writer(dialect, self.thread.loop, self._on_undelivered, self.log_time)
        self.watchdog = Watchdog(
            dialect,
            self.log_time,
            read=partial(self.read_here, snapshot=False),
            run=self.thread.run,
            call=self.call,
            probe=self.writer.probe,
            debounce_seconds=scan_debounce_seconds,
            is_off=read_only,
        )
        self.store_id = ""
        self.closed = False
        self._is_stopped = False
        """Whether claims can no longer be released."""
        self.releasing: set[asyncio.Task[Any]] = set()
        """Tasks that release claims. The writer is closed only after these tasks."""
        self._waiting: WaitingCalls | None = None
        self._advancing: asyncio.Task[None] | None = None

    async def start(self, *, create: bool) -> None:
        """Open the database. This must run in the store's event loop.

        Raises:
            Incompatible: the database is a backup or an archive, and `read_only` is False.
        """
        if not self.read_only:
            # This check comes before `open`, because `open` may upgrade the file.
            await refuse_sealed(self.dialect.url)
        self.store_id = await self.dialect.open(create=create and not self.read_only)
        if not self.read_only:
            # A file whose writer was killed may be readable only now.
            try:
                await refuse_sealed(self.dialect.url)
            except BaseException:
                await self.dialect.close()
                raise
        self._waiting = waiting = WaitingCalls(
            self.dialect.wakeups(),
            depth=self.queue_depth,
            ended=self._ended,
            next_check=self.watchdog.seconds_to_next_check,
            sweep=self.watchdog.sweep,
        )
        if not self.read_only:
            build_models()
            # The log is observed before this process receives signs of life. If this read fails, the first batch
            # observes it.
            with contextlib.suppress(StoreError):
                times = await self.read_here(pages.last_times, snapshot=False)
                self.log_time.open(self.dialect.elapsed(), *times)
            await self.writer.start(waiting.committed)
            self._advancing = asyncio.create_task(self._advance())
            if self.dialect.clock is None:
                # Short commands end before this.
                asyncio.get_running_loop().call_later(_FIRST_SWEEP_SECONDS, waiting.watch)

    async def _advance(self) -> None:
        """Advance the heard time in short steps, so that a longer step shows that the process was suspended."""
        while True:
            await asyncio.sleep(_STEP_SECONDS)
            self.log_time.advance(self.dialect.elapsed())

    async def close(self) -> None:
        """Finish the calls in flight and close the database; a second call has no effect."""
        if process.number != self.pid:
            raise WrongProcess(self.pid, process.number)
        if self.closed:
            return
        self.closed = True
        await self._settle()
        await self.thread.run(self._stop())
        self.thread.leave()

    async def _settle(self) -> None:
        """Wait for the claims that are in flight and whose callers have left, so that they can still be released.

        Their results arrive in the event loop of their callers: that of the caller of `close`, or that of the store.
        """
        if self.read_only:
            return
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self.writer.settle()

    def flush_at_exit(self) -> None:
        """Finish the calls in flight if the store is still open when the interpreter ends."""
        # A forked child has no copy of the thread, and the database belongs to its parent.
        if not self.closed and process.number == self.pid:
            self.thread.submit(self._stop()).result(timeout=30)

    async def _stop(self) -> None:
        if self._advancing is not None:
            self._advancing.cancel()
        await self.waiting.close()
        await self._settle()
        if self.releasing:
            await asyncio.wait(list(self.releasing), timeout=_RELEASE_SECONDS)
        self._is_stopped = True
        await self.writer.close()
        # The waiting calls leave only now, because the last commits of the writer still wake waiting calls.
        await self.waiting.leave()
        await self.dialect.close()

    def room_for(self, dialect: Dialect) -> LoopThread | None:
        """Return this store's event-loop thread if another partition can share this store's connections, else None."""
        return self.thread.shared() if dialect.share(self.dialect) else None

    @property
    def waiting(self) -> WaitingCalls:
        """The waiting calls."""
        assert self._waiting is not None  # started
        return self._waiting

    @property
    def writer_statistics(self) -> WriterStatistics:
        """Counters of the writer since the store was opened."""
        return self.writer.statistics

    @property
    def inbox(self) -> tuple[int, int]:
        """The number of calls that wait for the writer, and the size of their payload in bytes."""
        return self.writer.waiting, self.writer.waiting_bytes

    def _on_undelivered(self, command: Command, reply: Any) -> None:
        if self.on_undelivered is not None and not self._is_stopped:
            self.on_undelivered(command, reply)

    def check(self) -> None:
        """Raise `WrongProcess` in a forked process, and `Closed` once the store is closed."""
        if process.number != self.pid:
            raise WrongProcess(self.pid, process.number)
        if self.closed:
            raise Closed("a call")

    def read(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool = False) -> Awaitable[T]:
        """Return an awaitable read of the tables.

        Args:
            work: reads from a session that cannot write.
            snapshot: whether all statements of `work` see the same state.
        """
        self.check()
        reading = self.read_here(work, snapshot=snapshot)
        return self.thread.run(reading) if self.dialect.loop_bound else reading

    async def read_here(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool) -> T:
        """Read as `read` does, in the running loop."""
        try:
            async with self.dialect.read(snapshot=snapshot) as session:
                return await work(session)
        except Unavailable:
            self.thread.call_soon(self.log_time.lose, self.dialect.elapsed())
            raise

    def view(
        self,
        work: Callable[[StateView], Awaitable[T]],
        as_at: AsAt | None = None,
        own_number: tuple[str, int | None] = ("", None),
        *,
        sweeps: bool = True,
        snapshot: bool = False,
    ) -> Awaitable[T]:
        """Return an awaitable read of the present, or of a past state if `as_at` or the number of an event is given.

        Args:
            work: reads from a view of the state.
            as_at: a moment of the log: the position of an event, or a time; None for the present.
            own_number: a rollout id, and the number of an event of this rollout after which the state is read; the
                number None for the present.
            sweeps: whether a read of the present sweeps first, if a sweep is due.
            snapshot: whether all statements of a read of the present see the same state.

        Raises:
            Invalid: both `as_at` and the number of an event are given.
        """
        rollout_id, at = own_number
        if as_at is None and at is None:
            if sweeps and self.watchdog.is_due():
                return self._swept_read(lambda session: work(StateView(session)), snapshot=snapshot)
            return self.read(lambda session: work(StateView(session)), snapshot=snapshot)
        if as_at is not None and at is not None:
            raise Invalid("at", "give as_at, a moment of the log, or at, a number of the rollout's history; not both")

        async def read(session: ReadSession) -> T:
            if at is not None:
                return await work(StateView(session, await timeline.moment_of(session, rollout_id, at)))
            return await work(StateView(session, await timeline.moment(session, as_at)))

        return self.read(read, snapshot=True)

    async def _swept_read(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool) -> T:
        await self.watchdog.sweep_if_due()
        return await self.read(work, snapshot=snapshot)

    async def look(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool = False) -> T:
        """Sweep if a sweep is due, then return the result of a read, for callers that count and group rows of tables.

        Args:
            work: reads from a session that cannot write.
            snapshot: whether all statements of `work` see the same state.
        """
        return await self._swept_read(work, snapshot=snapshot)

    async def counts(self) -> counting.Counts:
        """Return counts for metrics: rollouts and attempts by status, the queue, rewards and workers."""
        clock: Clock = self.dialect.clock or system_clock
        now = clock()
        return await self.read(lambda session: counting.counts(session, now))

    async def size_bytes(self) -> int:
        """Return the size of the partition on disk in bytes."""
        self.check()
        if self.dialect.loop_bound:
            return await self.thread.run(self.dialect.size_bytes())
        return await self.dialect.size_bytes()

    async def watched_partitions(self) -> list[str]:
        """Return the names of all partitions of this database, open or not, that have active attempts with a limit."""
        self.check()
        if self.dialect.loop_bound:
            return await self.thread.run(self.dialect.watched_partitions())
        return await self.dialect.watched_partitions()

    async def queue_depth(self) -> int:
        """Return the number of rollouts that wait to be claimed."""
        return await self.read(pages.queue_depth)

    async def known_and_ended(self, rollout_ids: set[str]) -> tuple[set[str], set[str]]:
        """Return the given rollouts that exist, and those of them that have ended."""
        has_ended = await self.read(lambda session: pages.finished(session, sorted(rollout_ids)))
        return set(has_ended), {rollout_id for rollout_id, ended in has_ended.items() if ended}

    async def _ended(self, rollout_ids: set[str]) -> set[str]:
        return (await self.known_and_ended(rollout_ids))[1]

    async def end(self) -> str | None:
        """Return the cursor after the last event, from which `tail` continues; None while the log is empty."""
        return await self.read(lambda session: tails.end(session, self.store_id))

    async def position(self) -> int:
        """Return the position of the last event of the log; 0 while the log is empty."""
        seen = await self.read(log_queries.last_commit)
        return 0 if seen is None else int(seen[3])

    async def news_after(self, position: int) -> int:
        """Wait until the last position of the log differs from the given one, and return the new one.

        The new position may be lower, because the database may have been restored.
        """
        while (last := await self.position()) == position:
            await self.log_news(position)
        return last

    async def log_news(self, position: int) -> None:
        """Wait until events may have been committed after a position of the log.

        Raises:
            Closed: the store was closed.
        """
        self.check()
        await self.thread.run(self._log_news(position))

    async def _log_news(self, position: int) -> None:
        waiting = self.waiting
        if waiting.is_closed:
            raise Closed("tail")
        with waiting.parked():
            news = waiting.follow()
            try:
                # A commit may have been announced after the caller read the log and before `follow` was called, so the
                # position is read again.
                seen = await self.read_here(log_queries.last_commit, snapshot=False)
                if seen is None or seen[3] <= position:
                    # Python 3.11's `wait_for` may lose a cancellation that coincides with the event.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(FALLBACK_SECONDS):
                            await news.wait()
            finally:
                waiting.unfollow(news)
        if waiting.is_closed:
            raise Closed("tail")

    async def streams_between(self, after: int, until: int, limit: int) -> list[str]:
        """Return, in order, at most `limit` streams with events after the position `after` and up to `until`."""
        return await self.read(partial(scan.streams, after=after, until=until, limit=limit))

    async def call(self, command: Command) -> Any:
        """Return the result of a command after its commit."""
        self.check()
        if self.read_only:
            raise ReadOnly(type(command).__name__)
        if (idempotency := context.idempotency_key.get()) is not None and is_keyed(command):
            command.idempotency = idempotency
        if command.actor is None:
            command.actor = context.actor.get()
        return await self.writer.call(command)

    async def swept_call(self, command: Command) -> Any:
        """Sweep if a sweep is due, then execute a command as `call` does."""
        await self.watchdog.sweep_if_due()
        return await self.call(command)

    def submit(self, command: Command, waiter: Waiter) -> bool:
        """Pass a command to the writer, which passes the result to `waiter` in the running loop; return True.

        This is the fast path of `call`. The result is that of the command, or a `Repeat` if a call with the same
        idempotency key was executed before. If the store is read-only or a sweep is due, this method does nothing and
        returns False, and the caller must use `swept_call` instead.

        Raises:
            Busy: too many calls are waiting for the writer; nothing was done.
            Closed: the store is closed.
        """
        self.check()
        if self.read_only or (type(command) not in _UNSWEPT and self.watchdog.is_due()):
            return False
        self.writer.submit(command, waiter)
        return True
