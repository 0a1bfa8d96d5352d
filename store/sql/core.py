"""What the parts of a SQL store share: its database and its writer, and how they read, call and wait."""

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
from store.domain.commands import Command, NumberSpans, RecordSpans
from store.domain.idempotency import is_keyed
from store.domain.run_commands import AppendToRun
from store.errors import Closed, Invalid, ReadOnly, WrongProcess
from store.interface.runs import AsAt
from store.journal import as_at as timeline
from store.journal import tail as tails
from store.journal.writer import Waiter, Writer, WriterStatistics
from store.runtime import context, process
from store.runtime.loop_thread import LoopThread
from store.sql.waiters import FALLBACK_SECONDS, WaitingCalls
from store.sql.watchdog import Watchdog

T = TypeVar("T")

# These commands run at any time, whether attempts are overdue or not.
_UNSWEPT: frozenset[type[Command]] = frozenset({RecordSpans, NumberSpans, AppendToRun})


class SQLCore:
    """An open partition of a SQL database.

    Args:
        name: of the partition, for its thread.
        dialect: the database.
        scan_debounce_seconds: the least time between two looks of the watchdog.
        read_only: refuse all commands.
        thread: the event-loop thread of another store to share; None for a new one.
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
        """Called in any loop with a command and a reply that did not reach its caller."""
        self.writer = Writer(dialect, self.thread.loop, self._on_undelivered)
        self.watchdog = Watchdog(
            dialect, read=self.read, call=self.call, debounce_seconds=scan_debounce_seconds, is_off=read_only
        )
        self.store_id = ""
        self.closed = False
        self.releasing: set[asyncio.Task[Any]] = set()
        """Tasks that give claims back; the writer closes after them."""
        self._waiting: WaitingCalls | None = None

    async def start(self, *, create: bool) -> None:
        """Open the database; in the store's own loop."""
        self.store_id = await self.dialect.open(create=create and not self.read_only)
        self._waiting = waiting = WaitingCalls(
            self.dialect.wakeups(),
            depth=self.queue_depth,
            ended=self._ended,
            next_check=self.watchdog.seconds_to_next_check,
            sweep=self.watchdog.sweep,
        )
        if not self.read_only:
            await self.writer.start(waiting.committed)

    async def close(self) -> None:
        """Finish the calls in flight and close the database; closing twice is fine."""
        if process.number != self.pid:
            raise WrongProcess(self.pid, process.number)
        if self.closed:
            return
        self.closed = True
        await self.thread.run(self._stop())
        self.thread.leave()

    def flush_at_exit(self) -> None:
        """Finish the calls in flight when the interpreter ends and the store is still open."""
        # In a forked child the thread is missing and the database is its parent's.
        if not self.closed and process.number == self.pid:
            self.thread.submit(self._stop()).result(timeout=30)

    async def _stop(self) -> None:
        await self.waiting.close()
        if self.releasing:
            await asyncio.wait(list(self.releasing), timeout=5)
        await self.writer.close()
        # Only now, since the last commits are news too.
        await self.waiting.leave()
        await self.dialect.close()

    def room_for(self, dialect: Dialect) -> LoopThread | None:
        """Return where this store lives, for another partition whose connections can be shared; None for others."""
        return self.thread.shared() if dialect.share(self.dialect) else None

    @property
    def waiting(self) -> WaitingCalls:
        """The calls that wait."""
        assert self._waiting is not None  # started
        return self._waiting

    @property
    def writer_statistics(self) -> WriterStatistics:
        """What the writer has done since the store was opened."""
        return self.writer.statistics

    @property
    def inbox(self) -> tuple[int, int]:
        """How many calls wait for the writer, and how many bytes they carry."""
        return self.writer.waiting, self.writer.waiting_bytes

    def _on_undelivered(self, command: Command, reply: Any) -> None:
        if self.on_undelivered is not None and not self.closed:
            self.on_undelivered(command, reply)

    # -- reading -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `WrongProcess` in a fork, and `Closed` once the store is closed."""
        if process.number != self.pid:
            raise WrongProcess(self.pid, process.number)
        if self.closed:
            raise Closed("a call")

    def read(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool = False) -> Awaitable[T]:
        """Return a read of the tables, to be awaited.

        Args:
            work: is given a session that can only read.
            snapshot: whether all its statements see one state.
        """
        self.check()
        reading = self.read_here(work, snapshot=snapshot)
        return self.thread.run(reading) if self.dialect.loop_bound else reading

    async def read_here(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool) -> T:
        """As `read`, in the running loop."""
        async with self.dialect.read(snapshot=snapshot) as session:
            return await work(session)

    def answer(
        self,
        live: Callable[[ReadSession], Awaitable[T]],
        past: Callable[[ReadSession, int], Awaitable[T]],
        as_at: AsAt | None,
        own_number: tuple[str, int | None] = ("", None),
        *,
        sweeps: bool = True,
        snapshot: bool = False,
    ) -> Awaitable[T]:
        """Return a read of the present, or of the past: at a moment of the log, or at a rollout's own event number."""
        rollout_id, at = own_number
        if as_at is None and at is None:
            if sweeps and self.watchdog.is_due():
                return self._swept_read(live, snapshot=snapshot)
            return self.read(live, snapshot=snapshot)
        if as_at is not None and at is not None:
            raise Invalid("at", "give as_at, a moment of the log, or at, a number of the rollout's history; not both")

        async def read(session: ReadSession) -> T:
            if at is not None:
                return await past(session, await timeline.moment_of(self.dialect, session, rollout_id, at))
            return await past(session, await timeline.moment(self.dialect, session, as_at))

        return self.read(read, snapshot=True)

    async def _swept_read(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool) -> T:
        await self.watchdog.sweep_if_due()
        return await self.read(work, snapshot=snapshot)

    async def look(self, work: Callable[[Dialect, ReadSession], Awaitable[T]], *, snapshot: bool = False) -> T:
        """Return what a read of the tables themselves gives, for callers that count and group rows.

        Args:
            work: is given the dialect, which compiles its statements, and a session that can only read.
            snapshot: whether all its statements see one state.
        """
        return await self._swept_read(lambda session: work(self.dialect, session), snapshot=snapshot)

    async def counts(self) -> counting.Counts:
        """Return what the partition holds, for metrics: rollouts and attempts by status, and its queue."""
        return await self.read(lambda session: counting.counts(self.dialect, session))

    async def size_bytes(self) -> int:
        """Return the bytes that the partition takes on disk."""
        self.check()
        if self.dialect.loop_bound:
            return await self.thread.run(self.dialect.size_bytes())
        return await self.dialect.size_bytes()

    async def queue_depth(self) -> int:
        """Return how many rollouts wait to be claimed."""
        return await self.read(lambda session: pages.queue_depth(self.dialect, session))

    async def known_and_ended(self, rollout_ids: set[str]) -> tuple[set[str], set[str]]:
        """Return those of some rollouts that exist, and those of them that have ended."""
        found = await self.read(lambda session: pages.finished(self.dialect, session, sorted(rollout_ids)))
        return set(found), {rollout_id for rollout_id, ended in found.items() if ended}

    async def _ended(self, rollout_ids: set[str]) -> set[str]:
        return (await self.known_and_ended(rollout_ids))[1]

    # -- the log -----------------------------------------------------------------------------------------------------

    async def end(self) -> str | None:
        """Return the cursor of the log's end; None while there is nothing in it."""
        return await self.read(lambda session: tails.end(self.dialect, session, self.store_id))

    async def position(self) -> int:
        """Return the position of the last event of the log; 0 while there is none."""
        seen = await self.read(partial(log_queries.last_commit, self.dialect))
        return 0 if seen is None else int(seen[3])

    async def news_after(self, position: int) -> int:
        """Return the last position of the log once it is not this one; at once if it is another already.

        A restored database may end before it: that is news too.
        """
        while (last := await self.position()) == position:
            await self.log_news(position)
        return last

    async def log_news(self, position: int) -> None:
        """Return when something may have been committed after a position of the log.

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
                # A commit between the last page and this line has been announced already.
                seen = await self.read_here(partial(log_queries.last_commit, self.dialect), snapshot=False)
                if seen is None or seen[3] <= position:
                    # Not wait_for: Python 3.11's may swallow a cancellation that meets the event.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(FALLBACK_SECONDS):
                            await news.wait()
            finally:
                waiting.unfollow(news)
        if waiting.is_closed:
            raise Closed("tail")

    async def streams_between(self, after: int, until: int, limit: int) -> list[str]:
        """Return the streams that have events after a position and up to another, at most so many, in order."""
        return await self.read(partial(scan.streams, self.dialect, after=after, until=until, limit=limit))

    # -- calls -------------------------------------------------------------------------------------------------------

    async def call(self, command: Command) -> Any:
        """Return the answer to a command, after its commit."""
        self.check()
        if self.read_only:
            raise ReadOnly(type(command).__name__)
        if (asked := context.idempotency_key.get()) is not None and is_keyed(command):
            command.idempotency = asked
        if command.actor is None:
            command.actor = context.actor.get()
        return await self.writer.call(command)

    async def swept_call(self, command: Command) -> Any:
        """As `call`, once the watchdog had its turn."""
        await self.watchdog.sweep_if_due()
        return await self.call(command)

    def submit(self, command: Command, waiter: Waiter) -> bool:
        """Hand over a command whose answer is given to `waiter` in the running loop: a call in fewer steps.

        The answer is what was decided, or `Repeat`. False if nothing was done, since the method would do more.

        Raises:
            Busy: too much waits already; nothing was done.
            Closed: the store is closed.
        """
        self.check()
        if self.read_only or (type(command) not in _UNSWEPT and self.watchdog.is_due()):
            return False
        self.writer.submit(command, waiter)
        return True
