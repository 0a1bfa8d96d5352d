"""Store that continues the executions of a pipeline in run folders while its database is unavailable.

A run folder shows the events of a run as files. A journal is a file with the calls of an attempt that could not be made
on the store.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from store.errors import Closed, Invalid, StoreError, Unavailable
from store.interface.calls import perform
from store.interface.delegating import DelegatingStore
from store.interface.finishing import finish_by_parts
from store.interface.liveness import WORKER_GONE
from store.interface.numbering import Numbering, record
from store.interface.store import Store
from store.models import (
    Attempt,
    AttemptedRollout,
    AttemptError,
    LightningStoreCapabilities,
    PhaseGraph,
    ResourcesUpdate,
    Span,
    Unset,
)
from store.models.calls import ChangingCall, FinishAttemptCall, UpdateAttemptCall
from store.pipelines.fallback.fallback_journal import Journal, JournalDirectory, JournalHead
from store.pipelines.fallback.fallback_replay import Replay
from store.pipelines.fallback.fallback_runs import UNKNOWN, Execution, FallbackRuns, Unknown
from store.planning.run_state import CUT_OFF
from store.run_folders.exporting import export_run_folder
from store.run_folders.recorded import RecordedCall, RecordedRun
from store.training.running.agent import AgentRunner, LitAgent
from store.training.running.hooks import Hook
from store.training.tracing.recorder import storable
from store.training.tracing.scope import current_scope

logger = logging.getLogger("store.training.fallback")

T = TypeVar("T")

PATIENCE_SECONDS: Final = 4.0
"""A call waits at most this many seconds for the store, including retries. Then the call is recorded in a journal.

The recorder of spans gives up a call after 5 s, so this limit must be lower.
"""
PAUSE_SECONDS: Final = 1.0
"""Seconds between two checks whether the store is available again."""
LEAVE_SECONDS: Final = 5.0
"""A runner that ends waits at most this many seconds for the import of its recorded calls."""

_AT_WORK: Final = ("preparing", "running")
_ENDED: Final = frozenset({"succeeded", "failed", "timeout", "unresponsive"})


class FallbackStore(DelegatingStore):
    """Store for a runner. While the store behind it is unavailable, the runner's executions continue in run folders.

    An execution is an attempt of a run that this process executes. If a writing call of an execution gets no answer
    within `patience` seconds, the call and its idempotency key are recorded in a journal in the directory. The later
    calls of the attempt are recorded, too. The run's folder shows the recorded calls. Once the store is available
    again, they are imported: they are made in their order, and the run is exported to its folder again. A call that the
    store had already executed has no second effect.

    Ids and versions that a recorded call returns are provisional. During the outage, checkpoints and artifacts that the
    execution has saved can be read; other reads of its run wait for the store.

    Args:
        target: the store.
        directory: the reports directory, which contains the run folders. A `Mirror`, which exports runs, may use
            the same directory.
        patience: the maximum number of seconds for which a call waits for the store before it is recorded.

    Raises:
        Invalid: the patience is not positive.
    """

    def __init__(self, target: Store, directory: str | Path, *, patience: float = PATIENCE_SECONDS) -> None:
        if patience <= 0:
            raise Invalid("patience", f"is {patience:g} s; use a positive number of seconds")
        self._target = target
        self._patience = patience
        self._root = Path(directory)
        self._directory = JournalDirectory(self._root)
        self._runs = FallbackRuns(self)
        self._executions: dict[str, Execution] = {}
        self._journals: dict[str, Journal] = {}
        self._folders: dict[str, RecordedRun] = {}
        self._changed: set[str] = set()
        self._abandoned: set[str] = set()
        # Attempts of this process whose run folder was written after an import. The folder is written again
        # when the attempt ends.
        self._exported: set[str] = set()
        self._lock = threading.Lock()
        self._importing = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def target(self) -> Store:
        return self._target

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._target.capabilities

    @property
    def runs(self) -> FallbackRuns:
        return self._runs

    @property
    def has_recorded(self) -> bool:
        """Whether recorded calls wait for the store."""
        return bool(self._journals)

    async def close(self) -> None:
        await self._target.close()

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[FallbackStore]:
        """Write run folders and import recorded calls during the `with` block. Calls of dead processes come first."""
        self._loop = asyncio.get_running_loop()
        self._root.mkdir(parents=True, exist_ok=True)
        await self.settle()
        tasks = [asyncio.create_task(self._import_always()), asyncio.create_task(self._write_always())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave()

    def begin(self, rollout: AttemptedRollout, graph: PhaseGraph | None = None) -> None:
        """From now on, record the calls of an attempt while the store is unavailable."""
        self._executions[rollout.attempt.attempt_id] = Execution(rollout, graph)

    def end(self, attempt_id: str) -> None:
        """Forget the checkpoints and artifacts that an attempt has saved. Its recorded calls are still imported."""
        self._executions.pop(attempt_id, None)

    def execution_of(self, rollout_id: str) -> Execution | None:
        """Return the execution of a run; None if this process does not execute it."""
        executions = [
            execution for execution in list(self._executions.values()) if execution.rollout.rollout_id == rollout_id
        ]
        return executions[-1] if executions else None

    def execution(self, attempt_id: str) -> Execution | None:
        """Return the execution of an attempt; None if this process does not execute it."""
        return self._executions.get(attempt_id)

    async def make_or_record(
        self,
        attempt_id: str,
        make: Callable[[], Awaitable[T]],
        entry: Callable[[], RecordedCall],
    ) -> tuple[bool, T | None]:
        """Make a call, or record it if the store is unavailable; return whether the call was made, and its result.

        Args:
            attempt_id: the attempt of the call.
            make: function that makes the call.
            entry: function that returns the call to record.

        Raises:
            StoreError: the store refuses the call.
            Unavailable: the store is unavailable, and the call cannot be recorded or does not belong to an execution.
        """
        execution = self._executions.get(attempt_id)
        if execution is None:
            return True, await make()
        cause: Exception | None = None
        while True:
            if attempt_id not in self._journals:
                try:
                    async with asyncio.timeout(self._patience):
                        return True, await make()
                except (Unavailable, TimeoutError) as error:
                    cause = error
            recorded = entry()
            try:
                if await asyncio.to_thread(self._record, execution, recorded, cause):
                    return False, None
            except OSError as error:
                logger.exception("a call of attempt %s cannot be recorded in %s", attempt_id, self._root)
                raise Unavailable(f"the store is unavailable, and {self._root} cannot be written: {error}") from error

    def _record(self, execution: Execution, call: RecordedCall, cause: Exception | None) -> bool:
        """Append a call to the journal of its attempt; return False if an import has closed the journal meanwhile."""
        attempt_id = execution.rollout.attempt.attempt_id
        with self._lock:
            journal = self._journals.get(attempt_id)
            if journal is None:
                if cause is None:
                    return False
                journal = self._open(execution, cause)
            if not journal.append(call):
                return False
            folder = self._folders.get(attempt_id)
            if folder is not None:
                with self._no_folder(journal.head):
                    folder.add(call)
                    self._changed.add(attempt_id)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so the next runner imports the journal
                self._loop.call_soon_threadsafe(self._woken.set)
        return True

    def _open(self, execution: Execution, cause: Exception) -> Journal:
        rollout = execution.rollout
        attempt_id = rollout.attempt.attempt_id
        head = JournalHead(rollout=rollout, rerun_seq=execution.rerun_seq)
        journal = Journal.create(self._directory.own, head)
        with self._no_folder(head):
            self._folders[attempt_id] = RecordedRun(self._root, rollout, execution.rerun_seq)
        folder = self._folders.get(attempt_id)
        logger.warning(
            "the store is unavailable; run %s continues in %s: %s",
            rollout.rollout_id,
            journal.path if folder is None else folder.folder,
            cause or f"no answer within {self._patience:g} s",
        )
        self._journals[attempt_id] = journal
        return journal

    def _no_folder(self, head: JournalHead) -> _WithoutFolder:
        return _WithoutFolder(self._folders, head)

    async def _write_always(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._write_folders()

    async def _write_folders(self) -> None:
        async with self._writing:
            await asyncio.to_thread(self._write_changed)

    def _write_changed(self) -> None:
        for attempt_id in list(self._changed):
            with self._lock:
                self._changed.discard(attempt_id)
                folder, journal = self._folders.get(attempt_id), self._journals.get(attempt_id)
                written = None if folder is None else folder.contents()
            if folder is not None and journal is not None and written is not None:
                with self._no_folder(journal.head):
                    folder.write(written)

    async def _import_always(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            if self._journals:
                await self.settle()

    async def settle(self) -> bool:
        """Make the recorded calls, including those of dead processes; return False if some could not be made."""
        async with self._importing:
            try:
                for journal in await asyncio.to_thread(self._directory.take_over):
                    attempt_id = journal.head.rollout.attempt.attempt_id
                    self._abandoned.add(attempt_id)
                    self._journals[attempt_id] = journal
                    self._find_folder(journal)
                for attempt_id, journal in list(self._journals.items()):
                    await self._import(attempt_id, journal)
            except (Unavailable, TimeoutError):
                return False
            except (StoreError, OSError) as error:
                logger.warning("recorded calls cannot be imported, and wait in %s: %s", self._directory.own, error)
                return False
            return True

    def _find_folder(self, journal: Journal) -> None:
        """Determine from a journal which files a dead process has written to the folder of the run."""
        head = journal.head
        with self._no_folder(head):
            folder = RecordedRun(self._root, head.rollout, head.rerun_seq, is_written=True)
            for call in journal.calls():
                folder.add(call)
            self._folders[head.rollout.attempt.attempt_id] = folder

    async def _import(self, attempt_id: str, journal: Journal) -> None:
        """Make the recorded calls of an attempt, and close its journal."""
        rollout = journal.head.rollout
        async with asyncio.timeout(self._patience):
            stored_rollout = await self._target.get_rollout_by_id(rollout.rollout_id)
        if stored_rollout is None:
            left = await asyncio.to_thread(self._directory.leave, journal, for_others=True)
            logger.warning("calls of run %s wait in %s: the store has no such run", rollout.rollout_id, left)
            self._forget(attempt_id)
            return
        while True:
            while (call := journal.first()) is not None:
                try:
                    await Replay(self._target, rollout).make(call)
                except StoreError as error:
                    if error.retryable or isinstance(error, Closed):
                        raise
                    logger.exception("the store refuses a recorded call, %s of run %s", call.method, rollout.rollout_id)
                    journal.refused.append(str(error))
                journal.drop_first()
            await self._reopen(rollout, stored_rollout, is_abandoned=attempt_id in self._abandoned)
            # The journal is closed last. If this process dies before that, the next process imports
            # the journal again and writes the folder.
            self._exported.add(attempt_id)
            await self._write_anew(rollout)
            with self._lock:
                if not journal.close():
                    continue
                self._forget_locked(attempt_id)
            break
        logger.warning(
            "the store is available again; %d calls of run %s were imported", journal.count, rollout.rollout_id
        )

    async def _reopen(self, rollout: AttemptedRollout, before: Any, *, is_abandoned: bool) -> None:
        """Bring the status of an attempt up to date after its calls were made.

        The store ends an attempt without heartbeats as unresponsive. The first imported call sets such an attempt to
        running again. If the process of the attempt is dead, the attempt is ended again, so that the run can be
        resumed. Otherwise the run continues.
        """
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        attempts = {attempt.attempt_id: attempt.status for attempt in await self._target.query_attempts(rollout_id)}
        if attempts.get(attempt_id) not in _AT_WORK:
            return
        if is_abandoned:
            error = AttemptError(type=WORKER_GONE, message=CUT_OFF)
            await self._target.update_attempt(rollout_id, attempt_id, status="unresponsive", error=error)
            return
        stored_rollout = await self._target.get_rollout_by_id(rollout_id)
        was_silent = isinstance(before, AttemptedRollout) and before.attempt.status == "unresponsive"
        is_latest = isinstance(stored_rollout, AttemptedRollout) and stored_rollout.attempt.attempt_id == attempt_id
        if stored_rollout is not None and is_latest and was_silent and stored_rollout.status == "failed":
            await self._target.update_rollout(rollout_id, status="running")

    def _forget_locked(self, attempt_id: str) -> None:
        self._journals.pop(attempt_id, None)
        self._changed.discard(attempt_id)
        self._abandoned.discard(attempt_id)

    def _forget(self, attempt_id: str) -> None:
        with self._lock:
            self._forget_locked(attempt_id)
            self._folders.pop(attempt_id, None)

    async def _write_anew(self, rollout: AttemptedRollout) -> None:
        """Replace the folder of a run by an export from the store."""
        async with self._writing:
            folder = self._folders.pop(rollout.attempt.attempt_id, None)
            try:
                if folder is not None:
                    await asyncio.to_thread(folder.remove_files)
                await export_run_folder(self._target, rollout.rollout_id, self._root)
            except (StoreError, OSError) as error:
                logger.warning("the folder of run %s is not up to date: %s", rollout.rollout_id, error)

    async def _leave(self) -> None:
        """Import recorded calls for at most `LEAVE_SECONDS`, and leave the remaining calls to the next runner."""
        if not self._journals:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                while not await self.settle():  # noqa: ASYNC110 - no event reports that the database is available
                    await asyncio.sleep(PAUSE_SECONDS)
        await self._write_folders()
        for attempt_id, journal in list(self._journals.items()):
            with suppress(OSError):
                left = await asyncio.to_thread(self._directory.leave, journal)
                logger.warning("%d calls wait in %s until a runner starts with this directory", journal.count, left)
            self._forget(attempt_id)

    async def read(
        self,
        rollout_id: str,
        read: Callable[[], Awaitable[T]],
        from_execution: Callable[[Execution], T | Unknown] | None,
    ) -> T:
        """Read data of a run, and return the result.

        During an outage, the result comes from the checkpoints and artifacts that the execution has saved. If they do
        not contain the result, the read waits for the store.

        Args:
            rollout_id: the run.
            read: function that reads from the store.
            from_execution: function that returns the result from what the execution has saved, or `UNKNOWN`; None if
                only the store can return the result.

        Raises:
            Unavailable: the store is unavailable, and this process does not execute the run.
        """
        while True:
            execution = self.execution_of(rollout_id)
            if execution is None:
                return await read()
            if execution.rollout.attempt.attempt_id not in self._journals:
                try:
                    return await read()
                except Unavailable:
                    pass
            answer = UNKNOWN if from_execution is None else from_execution(execution)
            if not isinstance(answer, Unknown):
                return answer
            if not execution.is_warned:
                execution.is_warned = True
                logger.warning("run %s waits until the store can be read again", execution.rollout.rollout_id)
            await asyncio.sleep(min(PAUSE_SECONDS, self._patience))

    async def get_resources_by_id(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        while True:
            try:
                return await self._target.get_resources_by_id(*args, **kwargs)
            except Unavailable:
                # Only code of an attempt waits. A runner that claims rollouts handles the error and tries again.
                if current_scope() is None:
                    raise
            await asyncio.sleep(min(PAUSE_SECONDS, self._patience))

    async def call(self, call: ChangingCall[T]) -> T:
        if isinstance(call, UpdateAttemptCall):
            return cast("T", await self._update_attempt(call))
        if isinstance(call, FinishAttemptCall):
            if call.requeue and call.attempt_id not in self._journals:
                with suppress(Unavailable):
                    return cast("T", await perform(self._target, call))
            # Each part is recorded by itself if the store is unavailable. A run that cannot return to the queue fails,
            # and is resumed like one that was interrupted.
            return cast("T", await finish_by_parts(self, replace(call, requeue=False)))
        return await perform(self._target, call)

    async def _update_attempt(self, call: UpdateAttemptCall) -> Attempt:
        attempt_id, status = call.attempt_id, call.status
        execution = self._executions.get(attempt_id)
        if execution is not None and isinstance(status, Unset) and attempt_id in self._journals:
            # Heartbeats are not recorded: at the import they would be late, and the imported calls also show
            # that the attempt is active.
            return execution.rollout.attempt
        make = partial(perform, self._target, call)
        if execution is None or isinstance(status, Unset):
            return await make()
        is_made, attempt = await self.make_or_record(attempt_id, make, lambda: RecordedCall.of(call, time.time()))
        if is_made and status in _ENDED and attempt_id in self._exported:
            # The folder was written at an import, so it lacks the later part of the run.
            self._exported.discard(attempt_id)
            await self._write_anew(execution.rollout)
        if is_made and attempt is not None:
            return attempt
        ended = {"end_time": time.time()} if status in _ENDED else {}
        return execution.rollout.attempt.model_copy(update={"status": status, **ended})

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Record spans, and return the index in `spans` and the sequence id of each new span.

        If the call is recorded in a journal, all spans count as new and keep their sequence ids.

        Raises:
            StoreError: as `add_many_spans`.
        """
        span_list = list(spans)

        async def make() -> list[tuple[int, int]]:
            if isinstance(self._target, Numbering):
                return await self._target.record_spans(span_list, number=number)
            return await record(self._target, span_list)

        is_made, recorded = await self.make_or_record(
            span_list[0].attempt_id if span_list else "", make, partial(_recorded_spans, span_list, number=number)
        )
        return recorded or [] if is_made else [(index, span.sequence_id) for index, span in enumerate(span_list)]


def _recorded_spans(spans: Sequence[Span], *, number: bool) -> RecordedCall:
    # A journal contains JSON, so values that are not JSON are changed first.
    values = [storable(span).model_dump(mode="json") for span in spans]
    return RecordedCall(method="record_spans", at=time.time(), arguments={"spans": values, "number": number})


class _WithoutFolder:
    """Context manager for work on a run's folder. After an error, the folder is no longer written.

    The journal still records the calls of the run.
    """

    def __init__(self, folders: dict[str, RecordedRun], head: JournalHead) -> None:
        self._folders = folders
        self._head = head

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, StoreError | OSError):
            return False
        rollout = self._head.rollout
        logger.warning("run %s has no folder during the outage: %s", rollout.rollout_id, error)
        self._folders.pop(rollout.attempt.attempt_id, None)
        return True


class EndedAttempts(Hook):
    """Hook that calls `FallbackStore.end` when an attempt has ended.

    Args:
        store: the store.
    """

    def __init__(self, store: FallbackStore) -> None:
        self._store = store

    async def on_rollout_end(
        self, *, agent: LitAgent[Any], runner: AgentRunner, rollout: AttemptedRollout, spans: Sequence[Span]
    ) -> None:
        del agent, runner, spans
        self._store.end(rollout.attempt.attempt_id)
