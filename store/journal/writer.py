"""Writer that commits several calls together (group commit).

Calls that arrive while a batch is committed form the next batch, so no timer is needed.

A call gets its result or its error after COMMIT. There are four kinds of errors. A refused command is an error of one
call, and the other calls of the batch are committed. If the connection fails during COMMIT, the writer looks up the key
of the batch, which shows whether the batch was committed. If the database is unavailable, the writer tries again. If
the disk is full, the calls get the error at once. Any other error is a bug: the batch is divided into halves until the
command that causes the error is alone.
"""

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from sqlalchemy import BigInteger, Table, bindparam, select, union_all
from sqlalchemy.types import Text

from store.db.dialect import Changes, Dialect, Row, Tail, WriteSession
from store.db.queries.pages import TOTALS
from store.db.tables import core as core_tables
from store.domain.commands import Command, CommandGroup, NumberSpans
from store.domain.decide import decide
from store.domain.idempotency import decide_once, is_repeat
from store.domain.log_time import SHORT_WAIT, WRITE, LogTime
from store.domain.retry import heartbeat_of
from store.domain.working_set import NeedsHeads, NeedsSpans, WorkingSet
from store.errors import Busy, Closed, Corrupt, ReadOnly, StoreError, TimedOut, Unavailable
from store.journal.loader import DRAWING, Loader, redraw_taken
from store.journal.log_rows import log_rows
from store.projections.rollouts import projected, signalled
from store.runtime.histogram import Histogram
from store.runtime.limited_log import LimitedLog

logger = logging.getLogger("store.journal")

MAX_BATCH_CALLS = 512
MAX_WAITING_CALLS = 20_000
MAX_WAITING_BYTES = 256 * 1024 * 1024
_RETRY_SECONDS = 20.0
# The maximum time to wait for the event loops of the callers, for each call of the batch.
_CALLERS_SECONDS = 0.0002
_BATCH_KEY_MICROS = 3_600_000_000
_FAR_AHEAD_MICROS = 60_000_000
_PRUNE_MICROS = 60_000_000
_PRUNED_PER_CALL = 8
"""The number of expired rows that a batch may delete from a table for each of its calls. A call adds one at most."""
_PRUNED_AT_LEAST = 100
"""The smallest limit on the expired rows that a batch deletes from a table. It is small, because the callers wait."""
# The upper bounds of the histograms that are published as metrics.
_CALLS = (1, 2, 4, 8, 16, 32, 64, 128, 256, MAX_BATCH_CALLS)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 20.0)

_EVENTS = TOTALS.index("events")

# Finds the key of a batch after the reply to its COMMIT was lost. `commits.batch_key` has no index, so the statement
# reads only the commit with the id that the batch used. Decision 71.
_COMMIT_OF_KEY = union_all(
    select(core_tables.commits.c.batch_key).where(
        core_tables.commits.c.commit_id == bindparam("commit", type_=BigInteger),
        core_tables.commits.c.batch_key == bindparam("key", type_=Text),
    ),
    select(core_tables.batches.c.batch_key).where(core_tables.batches.c.batch_key == bindparam("key", type_=Text)),
)


_BEFORE, _AT_MOST = (bindparam(name, type_=BigInteger) for name in ("before", "at_most"))
# Without the order, Postgres could read the whole table, in which the deleted rows come first.
_OLD_BATCHES = (
    select(core_tables.batches.c.batch_key)
    .where(core_tables.batches.c.at < _BEFORE)
    .order_by(core_tables.batches.c.at)
    .limit(_AT_MOST)
)
_EXPIRED_KEYS = (
    select(core_tables.idempotency.c.key, core_tables.idempotency.c.scope)
    .where(core_tables.idempotency.c.expires_at < _BEFORE)
    .order_by(core_tables.idempotency.c.expires_at)
    .limit(_AT_MOST)
)


class Waiter(Protocol):
    """Receiver of the result or the error of a command: a future, or an object with these methods of a future.

    The methods are called in the event loop in which the command was submitted, except `cancelled`.
    """

    def cancelled(self) -> bool:
        """Return whether the caller has stopped waiting. The command is then skipped if its batch has not begun.

        This method is called in the event loop of the store.
        """
        ...

    def done(self) -> bool:
        """Return whether the receiver already has a result or an error, or was cancelled."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Receive the result."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """Receive the error."""
        ...


class Limiter(Protocol):
    """Limit on the size of the store. Its methods are called in the event loop of the store. Decision 67."""

    async def refresh(self) -> None:
        """Prepare for a batch. This is called before its transaction begins, and must not raise an error."""
        ...

    def admit(self, command: Command, events: int, added: int) -> None:
        """Raise a `StoreError` if the command must not be executed.

        Args:
            command: a command that is not a repeat with a stored reply.
            events: the number of events in the log, which includes the events of earlier commands of the batch.
            added: the size in bytes of the payload of earlier commands of the batch.
        """
        ...

    def committed(self, added: int) -> None:
        """Note the size in bytes of the payload of a batch that was committed."""
        ...


@dataclass(slots=True, eq=False)
class PendingCommand:
    """A command, and the receiver of its result in the event loop `loop`."""

    command: Command
    loop: asyncio.AbstractEventLoop
    waiter: Waiter
    size: int
    """The size of the command's bodies (user data) in bytes."""
    reply: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit of a batch, with the positions in the log of its first and its last event."""

    commit_id: int
    first_position: int
    last_position: int


@dataclass(slots=True)
class WriterStatistics:
    """Statistics of the writer since its start."""

    commits: int = 0
    calls: int = 0
    events: int = 0
    largest_batch: int = 0
    retries: int = 0
    span_conflicts: int = 0
    """The number of spans that were not stored because their key was stored with other content."""
    floor_ahead_micros: int = 0
    """The time by which the last timestamp of the log was ahead of the clock, when the last batch began."""
    commit_calls: Histogram = field(default_factory=lambda: Histogram(_CALLS))
    """The numbers of calls in a batch."""
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    """The times from the beginning of a batch until its results are sent to the callers."""


@dataclass(slots=True)
class _Decided:
    """A batch whose commands are decided."""

    calls: list[PendingCommand]
    working_set: WorkingSet
    added: int
    """The size in bytes of the payload of the commands."""
    committed: Committed | None = None


@dataclass(slots=True)
class _Inbox:
    calls: deque[PendingCommand] = field(default_factory=deque[PendingCommand])
    size: int = 0
    is_closed: bool = False


class Writer:
    """Writer of all changes of a store. It runs in the event loop of the store, but `call` works in any event loop.

    Args:
        dialect: the database.
        loop: the event loop of the store.
        on_undelivered: called with a command and its result if the command was committed, but its caller has stopped
            waiting for the result.
        log_time: the relation of timestamps to the elapsed time of this process. The writer updates it, and sweeps use
            it. None if sweeps compare only timestamps.
    """

    def __init__(
        self,
        dialect: Dialect,
        loop: asyncio.AbstractEventLoop,
        on_undelivered: Callable[[Command, Any], None],
        log_time: LogTime | None = None,
    ) -> None:
        self._dialect = dialect
        self._log_time = log_time
        self._waits = log_time or LogTime(dialect.elapsed())
        self._limited = LimitedLog(logger)
        self._loop = loop
        self._on_commit: Callable[[WorkingSet, Committed | None], None] | None = None
        self._on_undelivered = on_undelivered
        self._loader = Loader(dialect)
        self._inbox = _Inbox()
        self._lock = threading.Lock()
        self._awake = False
        self._wake = asyncio.Event()
        self._callers_ran = asyncio.Event()
        self._session: WriteSession | None = None
        self._key = os.urandom(12).hex()
        self._batches = count()
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._task: asyncio.Task[None] | None = None
        self._jobs: deque[tuple[Callable[[WriteSession], Any], asyncio.Future[Any]]] = deque()
        self._prunes_at = 0
        """The time of the next search for expired rows, in microseconds; 0 before the first commit."""
        self.statistics = WriterStatistics()
        self.limiter: Limiter | None = None
        """Limit on the size of the store; None for no limit."""

    async def start(self, on_commit: Callable[[WorkingSet, Committed | None], None]) -> None:
        """Connect to the database, and start to process calls. This must be called in the event loop of the store.

        Args:
            on_commit: called after each commit, before the callers get their results. The second argument is None if
                the commit contains no event.
        """
        self._on_commit = on_commit
        self._loader.prepare()
        self._session = await self._dialect.writer()
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def call(self, command: Command) -> Any:
        """Execute a command, and return its result after the commit.

        Raises:
            Busy: too many calls or bytes are waiting already. The command was not executed.
            Closed: the store is closed.
            StoreError: the command was refused.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(command, future)
        try:
            return await future
        except asyncio.CancelledError:
            # The result may have arrived in the same iteration of the event loop as the cancellation.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._on_undelivered(command, future.result())
            raise

    async def settle(self) -> None:
        """Wait until the calls that were made earlier are answered. Their callers may have stopped waiting.

        Raises:
            StoreError: the database is unavailable, or the writer is closed.
        """
        with self._lock:
            is_idle = not self._awake
        if not is_idle:
            await self.call(NumberSpans(rollout_ids=[]))

    def submit(self, command: Command, waiter: Waiter) -> None:
        """Execute a command. Unlike `call`, return at once: `waiter` receives the result or the error later.

        Args:
            command: the command.
            waiter: receives the result or the error in the running event loop. Its methods must not raise errors.

        Raises:
            Busy: too many calls or bytes are waiting already. The command was not executed.
            Closed: the store is closed.
        """
        call = PendingCommand(command, asyncio.get_running_loop(), waiter, command.size)
        with self._lock:
            inbox = self._inbox
            if inbox.is_closed:
                raise Closed("a write")
            if len(inbox.calls) >= MAX_WAITING_CALLS or inbox.size > MAX_WAITING_BYTES:
                raise Busy(len(inbox.calls), MAX_WAITING_CALLS)
            inbox.calls.append(call)
            inbox.size += call.size
            if self._awake:
                return
            self._awake = True
        self._loop.call_soon_threadsafe(self._wake.set)

    def _take(self) -> list[PendingCommand]:
        batch: list[PendingCommand] = []
        size, most = 0, self._dialect.max_batch_bytes
        with self._lock:
            inbox = self._inbox
            waiting = inbox.calls
            while waiting and len(batch) < MAX_BATCH_CALLS and size < most:
                call = waiting.popleft()
                inbox.size -= call.size
                # A cancelled call that has not begun is dropped.
                if not call.waiter.cancelled():
                    batch.append(call)
                    size += call.size
            if not batch:
                self._awake = False
                self._wake.clear()
        return batch

    async def _run(self) -> None:
        waits = self._waits.waits
        while True:
            await self._wake.wait()
            while self._jobs:
                await self._run_job(*self._jobs.popleft())
            batch = self._take()
            if batch:
                # No sign of life can be recorded until the batch is finished, except those in it.
                waits[WRITE] = self._dialect.elapsed()
                if self.limiter is not None:
                    await self.limiter.refresh()
                await self._finish(batch)
                if self._session is not None:
                    try:
                        await self._session.rest()
                    except StoreError as error:
                        # If the cause persists, the next batch fails too, and its callers get the error.
                        self._limited.warning("maintenance of the database between two batches failed", error)
                if self._dialect.elapsed() - waits[WRITE] > SHORT_WAIT:
                    self._waits.resume(WRITE, self._dialect.elapsed())
                waits.pop(WRITE, None)
                if len(batch) > 1:
                    await self._wait_for_callers(len(batch))
                # Let the other tasks and timers of this loop run.
                await asyncio.sleep(0)
            elif self._inbox.is_closed:
                return

    async def _wait_for_callers(self, answered: int) -> None:
        """Wait for one iteration of the event loops of the callers, so that their next calls join the next batch.

        Without this wait, the callers form two groups: while the calls of one group are committed, the other group
        makes its next calls. Each commit then has only half of the calls. The time of the wait is limited, because the
        event loop of a caller may be busy.
        """
        late = self._loop.call_later(_CALLERS_SECONDS * (1 + answered), self._callers_ran.set)
        await self._callers_ran.wait()
        late.cancel()

    @property
    def waiting(self) -> int:
        """The number of pending calls."""
        return len(self._inbox.calls)

    @property
    def waiting_bytes(self) -> int:
        """The total size of the pending calls' bodies (user data) in bytes."""
        return self._inbox.size

    async def _finish(self, calls: list[PendingCommand]) -> None:
        """Commit a batch, and give each call its result or its error."""
        began, ahead = time.monotonic(), self.statistics.floor_ahead_micros
        try:
            decided = await self._persist(calls)
        except (Unavailable, ReadOnly) as error:
            # The database is unavailable or read-only, so every call gets this error.
            self._note_loss()
            for call in calls:
                call.error = error
            self._answer(calls)
            return
        except Exception as error:  # noqa: BLE001 (a bug that one command triggers must not fail the other calls)
            await self._isolate(calls, error)
            return
        if ahead <= _FAR_AHEAD_MICROS < self.statistics.floor_ahead_micros:
            seconds = self.statistics.floor_ahead_micros / 1e6
            logger.warning("the log's last timestamp is %.0f s ahead of the clock; new events follow it", seconds)
        if self.limiter is not None:
            self.limiter.committed(decided.added)
        self.statistics.calls += len(calls)
        self.statistics.largest_batch = max(self.statistics.largest_batch, len(calls))
        assert self._on_commit is not None  # started
        try:
            self._on_commit(decided.working_set, decided.committed)
        except Exception:
            # The batch is committed, so its callers must get their results. Readers that wait for new events find this
            # commit later, because they also poll.
            logger.exception("waiting readers could not be notified of a commit")
        self._answer(decided.calls)
        self.statistics.commit_calls.add(len(calls))
        self.statistics.commit_seconds.add(time.monotonic() - began)

    async def _isolate(self, calls: list[PendingCommand], error: Exception) -> None:
        await self._roll_back()
        if len(calls) == 1:
            if isinstance(error, StoreError):
                self._limited.warning("the database refuses calls", error)
            else:
                logger.error("a command could not be handled: %s", type(calls[0].command).__name__, exc_info=error)
            calls[0].error = error
            self._answer(calls)
            return
        half = len(calls) // 2
        await self._finish(calls[:half])
        await self._finish(calls[half:])

    async def _persist(self, calls: list[PendingCommand]) -> _Decided:
        """Commit a batch under one key. If the database is unavailable, try again until the time limit is exceeded.

        If the disk is full, raise the error at once, because space is rarely freed within the time limit.
        """
        # The key is a counter after random bytes. New random bytes for each batch would need a system call, during
        # which another thread may take the interpreter lock.
        key = f"{self._key}{next(self._batches):08x}"
        deadline = time.monotonic() + _RETRY_SECONDS
        pause = 0.05
        in_doubt: _Decided | None = None
        while True:
            try:
                session = self._session
                if session is None:
                    session = self._session = await self._dialect.writer()
                tail = await session.begin()
                if in_doubt is not None and await self._is_committed(session, in_doubt, key):
                    await self._roll_back()
                    return in_doubt
                in_doubt = None
                began, now, last_stamp = self._dialect.elapsed(), tail.now, tail.recorded_at
                decided = await self._decide(session, tail, calls)
                await self._write(session, tail, decided, key)
                in_doubt = decided
                try:
                    await session.commit()
                except Unavailable as error:
                    if error.is_disk_full:
                        in_doubt = None
                    raise
            except Unavailable as error:
                self._note_loss()
                await self._roll_back()
                self._raise_if_final(
                    error, is_in_doubt=in_doubt is not None, is_late=time.monotonic() + pause > deadline
                )
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, 1.0)
            except StoreError:
                await self._roll_back()
                raise
            else:
                self._loader.cache.store(decided.working_set)
                if self._log_time is not None:
                    attempts = decided.working_set.beats.values()
                    beats = {attempt.attempt_id: heartbeat_of(attempt) for attempt in attempts} if attempts else {}
                    self._log_time.committed.append(
                        (began, self._dialect.elapsed(), now, last_stamp, decided.working_set.last_stamp, beats)
                    )
                self.statistics.commits += 1
                self.statistics.events += len(decided.working_set.events)
                return decided

    async def _is_committed(self, session: WriteSession, decided: _Decided, key: str) -> bool:
        """Return whether a batch was committed. A batch with events has a row in `commits`, another in `batches`."""
        commit_id = 0 if decided.committed is None else decided.committed.commit_id
        return bool(await session.fetch(self._dialect.prepared(_COMMIT_OF_KEY), {"commit": commit_id, "key": key}))

    def _raise_if_final(self, error: Unavailable, *, is_in_doubt: bool, is_late: bool) -> None:
        """Raise the error of a batch if the batch is not tried again."""
        if error.is_disk_full and not is_in_doubt:
            raise error
        self.statistics.retries += 1
        if is_late and is_in_doubt:
            raise TimedOut("COMMIT", _RETRY_SECONDS) from error
        if is_late:
            raise error

    async def _decide(self, session: WriteSession, tail: Tail, calls: list[PendingCommand]) -> _Decided:
        self.statistics.floor_ahead_micros = max(tail.recorded_at - tail.now, 0)
        commands = [
            part
            for call in calls
            for part in (call.command.parts if isinstance(call.command, CommandGroup) else (call.command,))
        ]
        working_set = await self._loader.load(session, tail, commands, self._log_time)
        # Generated ids that exist already are replaced. Only some types of commands contain generated ids.
        while not DRAWING.isdisjoint(map(type, commands)) and redraw_taken(commands, working_set):
            working_set = await self._loader.load(session, tail, commands, self._log_time)
        added = 0
        outcomes: deque[Any] = deque()
        for ordinal, command in enumerate(commands):
            working_set.begin(ordinal)
            while True:
                try:
                    # The totals were read in this transaction, so they include the events of other processes.
                    if self.limiter is not None and not is_repeat(command, working_set):
                        events = tail.totals[_EVENTS] + len(working_set.events)
                        self.limiter.admit(command, events, added)
                    outcomes.append(
                        decide(command, working_set)
                        if command.idempotency is None
                        else decide_once(command, working_set)
                    )
                    added += command.size
                except NeedsHeads:
                    await self._loader.more_heads(session, working_set, MAX_BATCH_CALLS)
                    continue
                except NeedsSpans as needed:
                    await self._loader.more_spans(session, working_set, needed.keys)
                    continue
                except Corrupt:
                    # A row contradicts the log. The error is not only an error of this call, so the batch must fail.
                    raise
                except StoreError as refused:
                    outcomes.append(refused)
                break
        for call in calls:
            group = call.command.parts if isinstance(call.command, CommandGroup) else None
            call.reply = outcomes.popleft() if group is None else [outcomes.popleft() for _ in group]
            call.error = call.reply if isinstance(call.reply, StoreError) else None
        return _Decided(calls, working_set, added)

    def _note_loss(self) -> None:
        if self._log_time is not None:
            self._log_time.lose(self._dialect.elapsed())

    async def _write(self, session: WriteSession, tail: Tail, decided: _Decided, key: str) -> None:
        working_set = decided.working_set
        changes = Changes({}, {}, {})
        signalled(working_set, tail, changes)
        if working_set.events:
            decided.committed = Committed(tail.next_commit_id, tail.next_position, working_set.events[-1].position)
            changes.inserts |= log_rows(working_set, tail, tail.next_commit_id, key, self._name)
            projected(working_set, changes)
        elif changes.upserts or changes.deletes:
            changes.inserts[core_tables.batches] = [(key, tail.now)]
        if changes.inserts:
            await session.write(changes)
            # The first commit does not prune, because the process may be short and make only a few commits.
            # If the clock was set back, the time would be far away.
            if not self._prunes_at or self._prunes_at > tail.now + _PRUNE_MICROS:
                self._prunes_at = tail.now + _PRUNE_MICROS
            elif tail.now >= self._prunes_at:
                limit = max(_PRUNED_AT_LEAST, _PRUNED_PER_CALL * len(decided.calls))
                if not await self._prune(session, tail.now, limit):
                    self._prunes_at = tail.now + _PRUNE_MICROS

    async def _prune(self, session: WriteSession, now: int, limit: int) -> bool:
        """Delete expired idempotency keys of calls, and keys of batches that are too old to be looked up.

        Return whether more such rows may exist. At most `limit` rows of each table are deleted.
        """
        gone: dict[Table, list[Row]] = {}
        for table, expired, before in (
            (core_tables.batches, _OLD_BATCHES, now - _BATCH_KEY_MICROS),
            (core_tables.idempotency, _EXPIRED_KEYS, now),
        ):
            rows = await session.fetch(self._dialect.prepared(expired), {"before": before, "at_most": limit})
            if rows:
                gone[table] = [tuple(row) for row in rows]
        if gone:
            await session.write(Changes({}, {}, gone))
        return any(len(rows) == limit for rows in gone.values())

    async def _roll_back(self) -> None:
        self._loader.forget()
        if self._session is not None:
            await self._session.rollback()

    def _answer(self, calls: list[PendingCommand]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[PendingCommand]] = {}
        for call in calls:
            by_loop.setdefault(call.loop, []).append(call)
        self._callers_ran.clear()
        for loop, answered in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._deliver, answered)
            except RuntimeError:  # the caller's loop is closed
                for call in answered:
                    if call.error is None:
                        self._on_undelivered(call.command, call.reply)

    def _deliver(self, calls: list[PendingCommand]) -> None:
        for call in calls:
            if call.waiter.done():
                if call.error is None:
                    self._on_undelivered(call.command, call.reply)
            elif call.error is not None:
                call.waiter.set_exception(call.error)
            else:
                call.waiter.set_result(call.reply)
        # The event loop runs callbacks in order. So `_note_callers_ran` runs after the tasks of the callers, which the
        # results have just scheduled.
        if len(calls) > 1:
            calls[0].loop.call_soon(self._note_callers_ran)

    def _note_callers_ran(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._callers_ran.set)

    async def run_job(self, work: Callable[[WriteSession], Any]) -> Any:
        """Call a coroutine function with the session of the writer, between two batches, and return its result.

        The function must begin and commit its own transactions.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._jobs.append((work, future))
        with self._lock:
            self._awake = True
        self._wake.set()
        return await future

    async def _run_job(self, work: Callable[[WriteSession], Any], future: asyncio.Future[Any]) -> None:
        try:
            if self._session is None:
                self._session = await self._dialect.writer()
            # The function may change rows whose states are cached, so the cache is cleared.
            self._loader.forget()
            self._waits.wait(WRITE, self._dialect.elapsed())
            result = await work(self._session)
        except Exception as error:  # noqa: BLE001 (the caller of the job gets any error)
            if isinstance(error, Unavailable):
                self._note_loss()
            await self._roll_back()
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
        finally:
            self._waits.resume(WRITE, self._dialect.elapsed())

    async def probe(self) -> None:
        """Wait until a transaction of this process begins and ends, as a commit would.

        Raises:
            Unavailable: the database does not accept writes.
        """

        async def commit_nothing(session: WriteSession) -> None:
            await session.begin()
            await session.commit()
            self._waits.accepted(self._dialect.elapsed())

        await self.run_job(commit_nothing)

    async def close(self) -> None:
        """Refuse new calls, finish the pending calls, and close the connection."""
        with self._lock:
            self._inbox.is_closed = True
            self._awake = True
        self._wake.set()
        if self._task is not None:
            await self._task
        if self._session is not None:
            await self._session.close()
