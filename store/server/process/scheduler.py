"""The scheduler of a server: it starts the operations of a `Schedule` on each partition, each in a process of its own.

The time of the last run of an operation is stored in the database. So several servers of one database share the
schedule, and a restart changes nothing. Only the server whose process claims an operation runs it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from functools import partial
from typing import Final

from store.db.dialect import dialect_for
from store.db.queries import operation_runs
from store.db.queries.operation_runs import OPERATIONS, Operation, OperationRun
from store.db.url import parse, with_partition
from store.errors import Conflict, StoreError, Unavailable
from store.operations.requested import RequestedRemoval
from store.operations.run import LEASE_SECONDS, RunOrder, RunOutcome, runner_name
from store.operations.schedule import START_SECONDS, UNCONFIGURED, Schedule, ScheduledOperation
from store.runtime.clock import MICROSECONDS, system_clock
from store.server.partitions import Partitions
from store.sql.database import StoreDatabase, database_of

logger = logging.getLogger("store.server.scheduler")

_LOOK_SECONDS: Final = 30.0
"""The maximum time until a new partition is noticed, and until an unavailable database is tried again."""
_LEAST_SECONDS: Final = 0.05
_CLAIM_SECONDS: Final = 0.1
"""The interval between two checks whether the process of a requested run has claimed its operation."""
_MOST_CLAIM_SECONDS: Final = 5.0
_RECORD_SECONDS: Final = 2.0
"""The maximum time for which a server that stops waits for the write lock to store that a removal was stopped."""
_PROGRAM: Final = "import gc; gc.disable(); from store.operations.run import main; gc.enable(); main()"
"""The program of the process of an operation. Its imports create many objects and no garbage."""
_SKIPPED_SECONDS: Final = 3600.0
"""The time until a partition whose operations are skipped is checked again."""


class Scheduler:
    """Runs the operations of a schedule.

    Args:
        partitions: the stores of the server.
        url: the URL of the root store.
        schedule: when to run which operation.
        lease_seconds: the time after which another server may repeat an operation whose process was killed.
    """

    def __init__(
        self, partitions: Partitions, url: str, schedule: Schedule, *, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self.schedule = schedule
        self._partitions = partitions
        self._url = url
        self._lease_seconds = lease_seconds
        self._started_at = system_clock()
        self._due: dict[tuple[str, Operation], int] = {}
        """For each partition and operation, the time in µs at which its last run is read again."""
        self._processes: set[Process] = set()
        self._requested: dict[tuple[str, Operation], asyncio.Task[RunOutcome | None]] = {}
        """The runs that visitors of the admin page started, by partition and operation."""
        self._runs_before: dict[tuple[str, Operation], OperationRun | None] = {}
        """For each run in `_requested`, the last run of the same operation when the requested run was started."""
        self._is_closed = False

    async def run(self) -> None:
        """Until cancelled, start the operations that are due, one after the other."""
        intervals = [seconds for kind in OPERATIONS if (seconds := self.schedule.interval(kind)) is not None]
        if not intervals:
            return
        # No operation is due earlier, so no partition has to be opened earlier.
        await asyncio.sleep(min(*intervals, START_SECONDS))
        while True:
            try:
                names = await self._partitions.names()
            except StoreError as error:
                logger.warning("the partitions with scheduled operations could not be listed: %s", error)
                names = [self._partitions.root_name]
            for name in names:
                for operation in self.schedule.operations:
                    if self._due.get((name, operation), 0) <= system_clock():
                        await self._attend(name, operation)
            self._due = {key: due for key, due in self._due.items() if key[0] in names}
            left = (min(self._due.values(), default=0) - system_clock()) / MICROSECONDS
            await asyncio.sleep(min(max(left, _LEAST_SECONDS), _LOOK_SECONDS))

    async def operations(self, store: StoreDatabase) -> list[ScheduledOperation]:
        """Return all operations of a partition that are scheduled, were run, or can be started.

        Raises:
            StoreError: the database does not answer.
        """
        runs = await store.core.look(operation_runs.all_runs)
        scheduled = self.schedule.operations
        return [
            ScheduledOperation(
                operation, runs.get(operation), await self._next_at(store, operation, runs.get(operation))
            )
            for operation in OPERATIONS
            if operation in scheduled or operation in runs or operation in UNCONFIGURED
        ]

    async def start(self, store: StoreDatabase, partition: str, operation: Operation) -> None:
        """Start an operation now. Return when a process has claimed the operation, after five seconds at most.

        Raises:
            Conflict: the operation is running, here or in another server, or needs a setting that this server lacks.
            StoreError: the database does not answer.
        """
        if operation not in self.schedule.operations and operation not in UNCONFIGURED:
            raise Conflict(
                f"the operation {operation} is not part of this server's schedule",
                "restart the server with its option; `rollbook serve --help` lists the options",
            )
        await self._start(store, partition, operation)

    async def remove(
        self, store: StoreDatabase, partition: str, removal: RequestedRemoval, actor: str, *, wait_seconds: float
    ) -> RunOutcome | None:
        """Start a removal of payload, and return its outcome; return None if it is still running after `wait_seconds`.

        Raises:
            Conflict: a removal of this kind is running, here or in another server.
            StoreError: the database does not answer.
        """
        deadline = time.monotonic() + wait_seconds
        task = await self._start(store, partition, removal.operation, removal, actor, wait_seconds=wait_seconds)
        await asyncio.wait({task}, timeout=max(deadline - time.monotonic(), 0))
        return task.result() if task.done() else None

    async def _start(
        self,
        store: StoreDatabase,
        partition: str,
        operation: Operation,
        removal: RequestedRemoval | None = None,
        actor: str | None = None,
        *,
        wait_seconds: float = _MOST_CLAIM_SECONDS,
    ) -> asyncio.Task[RunOutcome | None]:
        """Start a process, wait until it has claimed the operation, and return the task that waits for its end.

        The wait takes at most `wait_seconds`. The process itself waits longer if another process holds the write lock.
        """
        if store.core.read_only:
            raise Conflict(
                f"the partition {partition} is only read, but an operation stores its result in the partition",
                "restore the backup or the archive, and use the new store",
            )
        deadline = time.monotonic() + wait_seconds
        last = (await store.core.look(operation_runs.all_runs)).get(operation)
        is_running = last is not None and last.state(system_clock()) == "running"
        key = partition, operation
        if not is_running and key in self._requested and self._runs_before[key] != last:
            # The last run has stored its result, and its process is about to end.
            await asyncio.wait({self._requested[key]})
        if is_running or key in self._requested:
            where = f", in {last.runner}" if is_running and last is not None else ""
            raise Conflict(f"the operation {operation} is running already{where}", "wait until it has ended")
        task = asyncio.create_task(self._execute(partition, operation, last, removal, actor))
        self._requested[key], self._runs_before[key] = task, last
        task.add_done_callback(partial(self._end_requested, partition, operation))
        while time.monotonic() < deadline and not task.done():
            await asyncio.wait({task}, timeout=_CLAIM_SECONDS)
            with suppress(Unavailable):
                if (await store.core.look(operation_runs.all_runs)).get(operation) != last:
                    break
        return task

    def _end_requested(self, partition: str, operation: Operation, task: asyncio.Task[RunOutcome | None]) -> None:
        del self._requested[partition, operation], self._runs_before[partition, operation]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the operation %s of the partition %s failed", operation, partition, exc_info=error)

    async def close(self) -> None:
        """End all processes. The next server repeats the incomplete operations, except requested removals."""
        self._is_closed = True
        for process in self._processes:
            _kill(process)
        if self._requested:
            await asyncio.wait(self._requested.values())

    async def _attend(self, name: str, operation: Operation) -> None:
        """Run an operation if it is due, and set the time at which its last run is read again."""
        self._due[name, operation] = system_clock() + round(_LOOK_SECONDS * MICROSECONDS)
        try:
            async with self._partitions.use(name) as store:
                # An operation would store its result in the file. So backups and archives, which are opened read-only,
                # are skipped.
                database = database_of(store)
                if database is None or database.core.read_only:
                    self._due[name, operation] = system_clock() + round(_SKIPPED_SECONDS * MICROSECONDS)
                    return
                last = (await database.core.look(operation_runs.all_runs)).get(operation)
                due = await self._next_at(database, operation, last)
            if due is not None and due <= system_clock():
                await self._execute(name, operation, last)
                async with self._partitions.use(name) as store:
                    database = database_of(store)
                    assert database is not None  # the partition is the same as above
                    last = (await database.core.look(operation_runs.all_runs)).get(operation)
                    due = await self._next_at(database, operation, last)
        except StoreError as error:
            logger.warning("the operation %s of the partition %s could not be started: %s", operation, name, error)
        except Exception:
            # An unexpected error must not stop the other operations.
            logger.exception("the operation %s of the partition %s could not be started", operation, name)
        else:
            seconds = self.schedule.interval(operation)
            if due is not None and seconds is not None:
                # If the operation is still due, the run could not be claimed. The next try comes after a pause.
                pause = min(seconds, _LOOK_SECONDS)
                self._due[name, operation] = max(due, system_clock() + round(pause * MICROSECONDS))

    async def _next_at(self, store: StoreDatabase, operation: Operation, last: OperationRun | None) -> int | None:
        """Return the time of the next run of an operation; None if it is never run."""
        # The time of creation matters only before the first run.
        created_at = await store.core.look(operation_runs.created_at) if last is None else 0
        return self.schedule.next_at(operation, last, started_at=self._started_at, created_at=created_at)

    async def _execute(
        self,
        name: str,
        operation: Operation,
        last: OperationRun | None,
        removal: RequestedRemoval | None = None,
        actor: str | None = None,
    ) -> RunOutcome | None:
        """Run an operation in a process of its own, log its outcome, and return it; None if this server is closing."""
        plan = self.schedule.backup
        order = RunOrder(
            url=with_partition(self._url, name),
            operation=operation,
            seen=None if last is None else last.attempted_at,
            lease_seconds=self._lease_seconds,
            backup_directory=None if plan is None else plan.directory,
            backup_keep=1 if plan is None else plan.keep,
            retention=self.schedule.retention,
            removal=removal,
            actor=actor,
        )
        process = await asyncio.create_subprocess_exec(
            # Without `-P`, a directory `store` in the working directory would be imported instead of this package.
            *(sys.executable, "-P", "-c", _PROGRAM),
            stdin=PIPE,
            stdout=PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            # Ctrl+C in a terminal goes to all processes of a session. The server ends this process itself.
            start_new_session=True,
        )
        self._processes.add(process)
        try:
            if self._is_closed:
                return None
            outcome = await _outcome(process, order)
            if outcome is None and not self._is_closed:
                outcome = await self._record_end(
                    process, order, f"its process ended with exit code {process.returncode}"
                )
            elif outcome is None and removal is not None:
                # No server repeats a removal. Without this record, the removal would be shown as running until its
                # lease ends.
                outcome = await self._record_end(process, order, "the server was stopped; request the removal again")
        finally:
            _kill(process)
            await process.wait()
            self._processes.discard(process)
        if outcome is not None:
            _log(name, operation, outcome)
        return outcome

    async def _record_end(self, process: Process, order: RunOrder, error: str) -> RunOutcome:
        """Store that a process ended without an outcome, for example because the system had no memory left."""

        async def record() -> None:
            parsed = parse(order.url)
            dialect = dialect_for(parsed)(parsed, None)
            await dialect.open(create=False)
            try:
                runner = runner_name(process.pid)
                async with dialect.read() as session:
                    last = (await operation_runs.all_runs(session)).get(order.operation)
                if last is not None and last.runner == runner:
                    async with asyncio.timeout(_RECORD_SECONDS):
                        await operation_runs.fail(dialect, order.operation, error, runner=runner)
            except TimeoutError:
                logger.warning("the end of the operation %s was not stored: the database is busy", order.operation)
            finally:
                await dialect.close()

        # Writing to SQLite blocks the event loop, so `record` runs in a thread with an event loop of its own.
        await asyncio.to_thread(lambda: asyncio.run(record()))
        return RunOutcome(state="failed", detail=error)


def _kill(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):  # the process has just ended
            process.kill()


async def _outcome(process: Process, order: RunOrder) -> RunOutcome | None:
    """Send an order to a process, and return the outcome; None if the process ends without an outcome."""
    assert process.stdin is not None  # standard input and output are pipes
    assert process.stdout is not None
    try:
        # Standard input stays open, because its end tells the process that the server has ended.
        process.stdin.write(order.model_dump_json().encode() + b"\n")
        await process.stdin.drain()
        answer = await process.stdout.read()
    except (ConnectionResetError, BrokenPipeError):
        answer = b""
    await process.wait()
    return RunOutcome.model_validate_json(answer) if answer else None


def _log(name: str, operation: Operation, outcome: RunOutcome) -> None:
    if outcome.state == "failed":
        logger.error("the operation %s of the partition %s failed: %s", operation, name, outcome.detail)
    elif outcome.differences:
        logger.error(
            "the operation %s of the partition %s found %d differences: run `rollbook verify`",
            *(operation, name, outcome.differences),
        )
    elif outcome.state == "skipped":
        logger.info("the operation %s of the partition %s was skipped: another process runs or ran it", operation, name)
    elif outcome.state == "done":
        logger.info("the operation %s of the partition %s is done: %s", operation, name, outcome.detail)
