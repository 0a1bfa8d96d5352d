"""Store that continues the executions of a pipeline in run folders while its database is unavailable."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

from store.errors import Closed, Invalid, StoreError, Unavailable
from store.interface.delegating import DelegatingRuns, DelegatingStore
from store.interface.liveness import WORKER_GONE
from store.interface.store import Store
from store.models import (
    UNSET,
    Artifact,
    ArtifactRef,
    Attempt,
    AttemptedRollout,
    AttemptError,
    AttemptNode,
    CheckpointRef,
    LightningStoreCapabilities,
    PhaseGraph,
    ResourcesUpdate,
    RunEvent,
    RunEventPage,
    RunGraph,
    Snapshot,
    Span,
)
from store.models.queries import ArtifactQuery, CheckpointQuery, RunEventQuery
from store.planning import saving
from store.planning.run_state import CUT_OFF
from store.run_folders.exporting import export_run_folder
from store.run_folders.recorded import Method, RecordedCall, RecordedRun, pending_id
from store.sql.commands import runs as run_commands
from store.training.agent import AgentRunner, LitAgent
from store.training.fallback_journal import Journal, JournalDirectory, JournalHead
from store.training.hooks import Hook
from store.training.recorder import Numbering, record
from store.training.scope import current_scope

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS: Final = 4.0
"""Seconds for which a call waits for the store, with the retries of its client, before it is recorded.

A recorder of spans waits for 5 s, so this limit must be lower.
"""
PAUSE_SECONDS: Final = 1.0
"""Seconds between two checks whether the store is available again."""
LEAVE_SECONDS: Final = 5.0
"""Seconds for which a runner that ends waits for the import of what it has recorded."""

_AT_WORK: Final = ("preparing", "running")
_ENDED: Final = frozenset({"succeeded", "failed", "timeout", "unresponsive"})


@dataclass(eq=False, slots=True)
class _Execution:
    """An attempt that this process executes, and what it has saved."""

    rollout: AttemptedRollout
    graph: PhaseGraph | None
    rerun_seq: int = 0
    checkpoints: dict[tuple[str, str], Snapshot] = field(default_factory=dict[tuple[str, str], Snapshot])
    artifacts: list[Artifact] = field(default_factory=list[Artifact])
    is_warned: bool = False

    @property
    def sequence_id(self) -> int:
        """The number of the attempt."""
        return self.rollout.attempt.sequence_id

    def knows(self, view: str, *, as_at: object = None, at: object = None) -> bool:
        """Return whether a view contains everything that this attempt has saved."""
        views = {"head", f"attempt:{self.sequence_id}", f"own:{self.sequence_id}"}
        return as_at is None and at is None and view in views

    def is_whole(self, view: str) -> bool:
        """Return whether a view contains nothing else, because the attempt builds on no other."""
        return self.sequence_id == 1 or view.startswith("own:")


class _Unknown:
    """Result of a read that only the store can answer."""


_UNKNOWN: Final = _Unknown()


class FallbackStore(DelegatingStore):
    """Store of a runner that continues its executions in run folders while the store behind it is unavailable.

    If a writing call of an execution gets no answer within `patience` seconds, it is recorded in a journal below the
    directory with its idempotency key, and so are the later calls of the attempt. The run's folder shows them. Once the
    store is available again, the calls are made in their order, and the folder is exported anew. A call that the store
    had already executed has no second effect.

    Ids and versions that a recorded call returns are provisional. Checkpoints and artifacts that the execution has
    saved can be read meanwhile; other reads of its run wait for the store.

    Args:
        target: the store.
        directory: the reports directory; it may be that of a mirror.
        patience: seconds for which a call waits for the store before it is recorded.

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
        self._runs = _FallbackRuns(self)
        self._executions: dict[str, _Execution] = {}
        self._journals: dict[str, Journal] = {}
        self._folders: dict[str, RecordedRun] = {}
        self._changed: set[str] = set()
        self._abandoned: set[str] = set()
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
    def runs(self) -> _FallbackRuns:
        return self._runs

    @property
    def has_recorded(self) -> bool:
        """Whether calls wait for the store."""
        return bool(self._journals)

    async def close(self) -> None:
        await self._target.close()

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[FallbackStore]:
        """Write folders and import recorded calls during the block, first those of dead processes."""
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

    # -- executions ----------------------------------------------------------------------------------------------------

    def begin(self, rollout: AttemptedRollout, graph: PhaseGraph | None = None) -> None:
        """Record the calls of an attempt from now on whenever the store is unavailable."""
        self._executions[rollout.attempt.attempt_id] = _Execution(rollout, graph)

    def end(self, attempt_id: str) -> None:
        """Forget what an attempt has saved. Its recorded calls are still imported."""
        self._executions.pop(attempt_id, None)

    def execution_of(self, rollout_id: str) -> _Execution | None:
        """Return the execution of a run; None if this process does not execute it."""
        found = [each for each in list(self._executions.values()) if each.rollout.rollout_id == rollout_id]
        return found[-1] if found else None

    def execution(self, attempt_id: str) -> _Execution | None:
        """Return the execution of an attempt; None if this process does not execute it."""
        return self._executions.get(attempt_id)

    async def perform(
        self,
        attempt_id: str,
        method: Method,
        arguments: Callable[[], dict[str, Any]],
        call: Callable[[], Awaitable[T]],
    ) -> tuple[bool, T | None]:
        """Make a call, or record it; return whether it was made, and its result.

        Args:
            attempt_id: the attempt of the call.
            method: the method of the call.
            arguments: returns the arguments of the recorded call.
            call: makes the call.

        Raises:
            StoreError: the store refuses the call.
            Unavailable: the store is unavailable, and the call cannot be recorded, or belongs to no execution.
        """
        execution = self._executions.get(attempt_id)
        if execution is None:
            return True, await call()
        cause: Exception | None = None
        while True:
            if attempt_id not in self._journals:
                try:
                    async with asyncio.timeout(self._patience):
                        return True, await call()
                except (Unavailable, TimeoutError) as error:
                    cause = error
            recorded = RecordedCall(method=method, at=time.time(), arguments=arguments())
            try:
                if await asyncio.to_thread(self._record, execution, recorded, cause):
                    return False, None
            except OSError as error:
                logger.exception("a call of attempt %s cannot be recorded in %s", attempt_id, self._root)
                raise Unavailable(f"the store is unavailable, and {self._root} cannot be written: {error}") from error

    def _record(self, execution: _Execution, call: RecordedCall, cause: Exception | None) -> bool:
        """Append a call to the journal of its attempt; return False if the journal was closed meanwhile."""
        attempt_id = execution.rollout.attempt.attempt_id
        with self._lock:
            journal = self._journals.get(attempt_id)
            if journal is None:
                if cause is None:
                    return False
                journal = self._open(execution, cause)
            if not journal.append(call):
                return False
            self._show(journal, call)
        self._wake()
        return True

    def _open(self, execution: _Execution, cause: Exception) -> Journal:
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

    def _show(self, journal: Journal, call: RecordedCall) -> None:
        """Add a recorded call to the folder of its run."""
        attempt_id = journal.head.rollout.attempt.attempt_id
        folder = self._folders.get(attempt_id)
        if folder is not None:
            with self._no_folder(journal.head):
                folder.add(call)
                self._changed.add(attempt_id)

    def _no_folder(self, head: JournalHead) -> _WithoutFolder:
        return _WithoutFolder(self._folders, head)

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so the next runner imports the journal
                self._loop.call_soon_threadsafe(self._woken.set)

    # -- folders -------------------------------------------------------------------------------------------------------

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

    # -- import --------------------------------------------------------------------------------------------------------

    async def _import_always(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            if self._journals:
                await self.settle()

    async def settle(self) -> bool:
        """Make the recorded calls, also those of dead processes; return False if the store is still unavailable."""
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
        """Find the files that a dead process has written from its journal."""
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
            found = await self._target.get_rollout_by_id(rollout.rollout_id)
        if found is None:
            left = await asyncio.to_thread(self._directory.leave, journal, for_others=True)
            logger.warning("calls of run %s wait in %s: the store has no such run", rollout.rollout_id, left)
            self._forget(attempt_id)
            return
        while True:
            while (call := journal.first()) is not None:
                try:
                    await _Replay(self._target, rollout).make(call)
                except StoreError as error:
                    if error.retryable or isinstance(error, Closed):
                        raise
                    logger.exception("the store refuses a recorded call, %s of run %s", call.method, rollout.rollout_id)
                    journal.refused.append(str(error))
                journal.drop_first()
            await self._reopen(rollout, found, is_abandoned=attempt_id in self._abandoned)
            with self._lock:
                if not journal.close():
                    continue
                self._forget_locked(attempt_id)
            break
        await self._export(journal)

    async def _reopen(self, rollout: AttemptedRollout, before: Any, *, is_abandoned: bool) -> None:
        """Bring the status of an attempt up to date after its calls were made.

        The first call revives an attempt that the watchdog has closed. If its process is dead, it is closed again, so
        that the run can be resumed. Else the run goes on.
        """
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        attempts = {each.attempt_id: each.status for each in await self._target.query_attempts(rollout_id)}
        if attempts.get(attempt_id) not in _AT_WORK:
            return
        if is_abandoned:
            error = AttemptError(type=WORKER_GONE, message=CUT_OFF)
            await self._target.update_attempt(rollout_id, attempt_id, status="unresponsive", error=error)
            return
        found = await self._target.get_rollout_by_id(rollout_id)
        was_silent = isinstance(before, AttemptedRollout) and before.attempt.status == "unresponsive"
        is_latest = isinstance(found, AttemptedRollout) and found.attempt.attempt_id == attempt_id
        if found is not None and is_latest and was_silent and found.status == "failed":
            await self._target.update_rollout(rollout_id, status="running")

    def _forget_locked(self, attempt_id: str) -> None:
        self._journals.pop(attempt_id, None)
        self._changed.discard(attempt_id)
        self._abandoned.discard(attempt_id)

    def _forget(self, attempt_id: str) -> None:
        with self._lock:
            self._forget_locked(attempt_id)
            self._folders.pop(attempt_id, None)

    async def _export(self, journal: Journal) -> None:
        """Write the folder of a run from the store, after all its calls were made."""
        rollout = journal.head.rollout
        logger.warning(
            "the store is available again; %d calls of run %s were imported", journal.count, rollout.rollout_id
        )
        async with self._writing:
            folder = self._folders.pop(rollout.attempt.attempt_id, None)
            try:
                if folder is not None:
                    await asyncio.to_thread(folder.remove_files)
                await export_run_folder(self._target, rollout.rollout_id, self._root)
            except (StoreError, OSError) as error:
                logger.warning("the folder of run %s is not up to date: %s", rollout.rollout_id, error)

    async def _leave(self) -> None:
        """Import what was recorded within a limit, or leave it to the next runner."""
        if not self._journals:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                while not await self.settle():  # noqa: ASYNC110 - the database tells no event
                    await asyncio.sleep(PAUSE_SECONDS)
        await self._write_folders()
        for attempt_id, journal in list(self._journals.items()):
            with suppress(OSError):
                left = await asyncio.to_thread(self._directory.leave, journal)
                logger.warning("%d calls wait in %s until a runner starts with this directory", journal.count, left)
            self._forget(attempt_id)

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def read(
        self, rollout_id: str, read: Callable[[], Awaitable[T]], known: Callable[[_Execution], T | _Unknown] | None
    ) -> T:
        """Return the result of a read; during a fallback, of what the execution has saved, or wait for the store.

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
            answer = _UNKNOWN if known is None else known(execution)
            if not isinstance(answer, _Unknown):
                return answer
            await self._pause(execution)

    async def _pause(self, execution: _Execution) -> None:
        if not execution.is_warned:
            execution.is_warned = True
            logger.warning("run %s waits until the store can be read again", execution.rollout.rollout_id)
        await asyncio.sleep(min(PAUSE_SECONDS, self._patience))

    async def get_resources_by_id(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        while True:
            try:
                return await self._target.get_resources_by_id(*args, **kwargs)
            except Unavailable:
                # Only an execution waits. A runner that claims rollouts tries again by itself.
                if current_scope() is None:
                    raise
            await asyncio.sleep(min(PAUSE_SECONDS, self._patience))

    # -- writes of executions ------------------------------------------------------------------------------------------

    async def update_attempt(self, rollout_id: str, attempt_id: str, *args: Any, **kwargs: Any) -> Attempt:
        given = dict(zip(("status", "worker_id", "last_heartbeat_time", "metadata"), args, strict=False)) | kwargs
        execution = self._executions.get(attempt_id)
        status = given.get("status", UNSET)
        if execution is not None and status is UNSET and attempt_id in self._journals:
            # A heartbeat would be late at the import, and recorded calls are signs of life themselves.
            return execution.rollout.attempt
        if execution is None or status is UNSET:
            return await self._target.update_attempt(rollout_id, attempt_id, **given)
        made, attempt = await self.perform(
            attempt_id,
            "update_attempt",
            lambda: {name: _json(value) for name, value in given.items() if value is not UNSET},
            lambda: self._target.update_attempt(rollout_id, attempt_id, **given),
        )
        if made and attempt is not None:
            return attempt
        ended = {"end_time": time.time()} if status in _ENDED else {}
        return execution.rollout.attempt.model_copy(update={"status": status, **ended})

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Record spans, and return the index in `spans` and the sequence id of each new span; 0 during a fallback.

        Raises:
            StoreError: as `add_many_spans`.
        """
        given = list(spans)

        async def call() -> list[tuple[int, int]]:
            if isinstance(self._target, Numbering):
                return await self._target.record_spans(given, number=number)
            return await record(self._target, given)

        made, recorded = await self.perform(
            given[0].attempt_id if given else "",
            "record_spans",
            lambda: {"spans": [span.model_dump(mode="json") for span in given], "number": number},
            call,
        )
        return recorded or [] if made else [(index, span.sequence_id) for index, span in enumerate(given)]


class _WithoutFolder:
    """Block whose failure leaves a run without a folder. Its calls are recorded in the journal all the same."""

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
    """Hook that ends the executions of a `FallbackStore`.

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


def _json(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, AttemptError) else value


@dataclass(frozen=True, slots=True)
class _Replay:
    """Repetition of the recorded calls of an attempt."""

    store: Store
    rollout: AttemptedRollout

    async def make(self, call: RecordedCall) -> Any:
        """Make a call, unless the store has executed it before."""
        runs, given = self.store.runs, dict(call.arguments)
        ids = self.rollout.rollout_id, self.rollout.attempt.attempt_id
        match call.method:
            case "append_events":
                events = [RunEvent.model_validate(each) for each in given["events"]]
                return await runs.append_events(*ids, events, key=given["key"])
            case "save_checkpoint":
                graph = given.pop("graph")
                given["graph"] = None if graph is None else PhaseGraph.model_validate(graph)
                return await runs.save_checkpoint(*ids, **given)
            case "save_artifact":
                return await runs.save_artifact(*ids, **given)
            case "retract_artifact":
                return await self._retract(given)
            case "record_spans":
                spans = [Span.model_validate(each) for each in given["spans"]]
                return await (record(self.store, spans) if given["number"] else self.store.add_many_spans(spans))
            case "update_attempt":
                return await self._report(given)

    async def _retract(self, given: dict[str, Any]) -> ArtifactRef:
        """Retract an artifact. If it was saved during the fallback, its call is repeated, which returns its id."""
        saved = given.pop("saved")
        if saved is not None:
            ids = self.rollout.rollout_id, self.rollout.attempt.attempt_id
            given["artifact_id"] = (await self.store.runs.save_artifact(*ids, **saved)).artifact_id
        return await self.store.runs.retract_artifact(self.rollout.rollout_id, **given)

    async def _report(self, given: dict[str, Any]) -> None:
        rollout_id, attempt_id = self.rollout.rollout_id, self.rollout.attempt.attempt_id
        # A status has no idempotency key. This heartbeat follows a report that is still on its way to the database, so
        # its answer shows whether that report arrived.
        attempt = await self.store.update_attempt(rollout_id, attempt_id, last_heartbeat_time=time.time())
        if attempt.status != given["status"]:
            error = given.pop("error", None)
            more: dict[str, Any] = {} if error is None else {"error": AttemptError.model_validate(error)}
            await self.store.update_attempt(rollout_id, attempt_id, **given, **more)


class _FallbackRuns(DelegatingRuns):
    """Runs of a `FallbackStore`."""

    def __init__(self, store: FallbackStore) -> None:
        super().__init__(store.target.runs)
        self._store = store

    # -- writes --------------------------------------------------------------------------------------------------------

    async def append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[RunEvent], *, key: str | None = None
    ) -> list[int]:
        given, used = list(events), key or _new_key()
        if not given or self._store.execution(attempt_id) is None:
            return await self.target.append_events(rollout_id, attempt_id, given, key=key)

        def arguments() -> dict[str, Any]:
            run_commands.append(rollout_id, attempt_id, given, used)  # refuses what the store would refuse
            return {"events": [each.model_dump(mode="json", exclude_none=True) for each in given], "key": used}

        made, versions = await self._store.perform(
            attempt_id,
            "append_events",
            arguments,
            lambda: self.target.append_events(rollout_id, attempt_id, given, key=used),
        )
        return versions or [] if made else [0] * len(given)

    async def save_checkpoint(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        scope: str,
        name: str,
        state: Mapping[str, Any] | None = None,
        after_phase: str | None = None,
        external: Mapping[str, Any] | None = None,
        key: str | None = None,
        graph: PhaseGraph | None = None,
    ) -> CheckpointRef | None:
        named: dict[str, Any] = {"scope": scope, "name": name, "after_phase": after_phase}
        execution = self._store.execution(attempt_id)
        if execution is None:
            return await self.target.save_checkpoint(
                rollout_id, attempt_id, **named, state=state, external=external, key=key, graph=graph
            )
        used = key or _new_key()
        used_graph = graph or execution.graph
        taken = saving.taken(used_graph, scope=scope, name=name, state=state, after_phase=after_phase)
        # The pipeline changes its state later.
        kept = deepcopy(taken.state)

        def arguments() -> dict[str, Any]:
            run_commands.checkpoint(
                rollout_id, attempt_id, name=name, taken=taken, parent_id=None, external=external, key=used
            )
            whole = None if state is None else dict(state)
            dumped = None if used_graph is None else used_graph.model_dump(mode="json")
            return named | {"state": whole, "external": external, "key": used, "graph": dumped}

        made, saved = await self._store.perform(
            attempt_id,
            "save_checkpoint",
            arguments,
            lambda: self.target.save_checkpoint(
                rollout_id, attempt_id, **named, state=state, external=external, key=used, graph=graph
            ),
        )
        if not made and taken.rejection is None:
            saved = CheckpointRef(
                checkpoint_id=pending_id(used),
                rollout_id=rollout_id,
                version=0,
                position=0,
                at=time.time(),
                attempt=execution.sequence_id,
                scope=taken.scope,
                name=name,
                after_phase=taken.after_phase,
                graph=taken.graph,
                external=None if external is None else dict(external),
            )
        if saved is not None:
            execution.checkpoints[saved.scope, name] = Snapshot(**saved.model_dump(), state=kept)
        return saved

    async def save_artifact(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        scope: str,
        name: str,
        content: Any,
        phase: str | None = None,
        media_type: str | None = None,
        key: str | None = None,
    ) -> ArtifactRef:
        given: dict[str, Any] = {
            "scope": scope,
            "name": name,
            "content": content,
            "phase": phase,
            "media_type": media_type,
        }
        execution = self._store.execution(attempt_id)
        if execution is None:
            return await self.target.save_artifact(rollout_id, attempt_id, **given, key=key)
        used = key or _new_key()

        def arguments() -> dict[str, Any]:
            run_commands.artifact(rollout_id, attempt_id, **given, key=used)
            return given | {"key": used}

        made, saved = await self._store.perform(
            attempt_id,
            "save_artifact",
            arguments,
            lambda: self.target.save_artifact(rollout_id, attempt_id, **given, key=used),
        )
        if not made or saved is None:
            saved = ArtifactRef(
                artifact_id=pending_id(used),
                rollout_id=rollout_id,
                group_id=None,
                version=0,
                position=0,
                at=time.time(),
                attempt=execution.sequence_id,
                scope=scope,
                name=name,
                phase=phase,
                media_type=media_type,
            )
        execution.artifacts.append(Artifact(**saved.model_dump(), content=deepcopy(content)))
        return saved

    async def retract_artifact(
        self, rollout_id: str, artifact_id: str, *, reason: str | None = None, key: str | None = None
    ) -> ArtifactRef:
        execution = self._store.execution_of(rollout_id)
        own = [each for each in ([] if execution is None else execution.artifacts) if each.artifact_id == artifact_id]
        if execution is None or not own:
            return await self.target.retract_artifact(rollout_id, artifact_id, reason=reason, key=key)
        used, (artifact,) = key or _new_key(), own
        saved: dict[str, Any] | None = None
        if artifact_id.startswith(pending_id("")):
            fields = {"scope", "name", "content", "phase", "media_type"}
            saved = artifact.model_dump(include=fields) | {"key": artifact_id.removeprefix(pending_id(""))}
        given = {"artifact_id": artifact_id, "reason": reason, "key": used}
        recorded = RecordedCall(method="retract_artifact", at=time.time(), arguments=given | {"saved": saved})

        async def call() -> ArtifactRef:
            return cast("ArtifactRef", await _Replay(self._store.target, execution.rollout).make(recorded))

        made, retracted = await self._store.perform(
            execution.rollout.attempt.attempt_id, "retract_artifact", lambda: recorded.arguments, call
        )
        execution.artifacts.remove(artifact)
        if made and retracted is not None:
            return retracted
        return ArtifactRef(**artifact.model_dump(exclude={"content", "retracted"}), retracted=True)

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def find_events(self, rollout_id: str, query: RunEventQuery) -> RunEventPage:
        return await self._store.read(rollout_id, lambda: self.target.find_events(rollout_id, query), None)

    async def get_graph(self, rollout_id: str, **given: Any) -> RunGraph:
        return await self._store.read(rollout_id, lambda: self.target.get_graph(rollout_id, **given), None)

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        found = await self._store.read(rollout_id, lambda: self.target.list_lineage(rollout_id), None)
        for node in found:
            if (execution := self._store.execution(node.attempt_id)) is not None:
                execution.rerun_seq = node.rerun_seq
        return found

    async def get_checkpoint(self, rollout_id: str, *, scope: str, name: str, **given: Any) -> Snapshot | None:
        def known(execution: _Execution) -> Snapshot | _Unknown | None:
            view: str = given.get("view", "head")
            if not execution.knows(view, as_at=given.get("as_at"), at=given.get("at")):
                return _UNKNOWN
            saved = execution.checkpoints.get((scope, name))
            is_all = execution.is_whole(view) and given.get("search", "rollout") == "rollout"
            return deepcopy(saved) if saved is not None or is_all else _UNKNOWN

        return await self._store.read(
            rollout_id, lambda: self.target.get_checkpoint(rollout_id, scope=scope, name=name, **given), known
        )

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        def known(execution: _Execution) -> Snapshot | _Unknown:
            saved = [each for each in execution.checkpoints.values() if each.checkpoint_id == checkpoint_id]
            return deepcopy(saved[0]) if saved else _UNKNOWN

        return await self._store.read(
            rollout_id, lambda: self.target.get_checkpoint_by_id(rollout_id, checkpoint_id), known
        )

    async def find_checkpoints(self, rollout_id: str, query: CheckpointQuery) -> list[CheckpointRef]:
        return await self._store.read(rollout_id, lambda: self.target.find_checkpoints(rollout_id, query), None)

    async def find_artifacts(self, rollout_id: str, query: ArtifactQuery) -> list[Artifact]:
        def known(execution: _Execution) -> list[Artifact] | _Unknown:
            if not (execution.knows(query.view, as_at=query.as_at, at=query.at) and execution.is_whole(query.view)):
                return _UNKNOWN
            found = [
                deepcopy(each)
                for each in execution.artifacts
                if query.scope in {None, each.scope} and query.name in {None, each.name}
            ]
            return found if query.limit < 0 else found[max(0, len(found) - query.limit) :]

        return await self._store.read(rollout_id, lambda: self.target.find_artifacts(rollout_id, query), known)


def _new_key() -> str:
    return f"fallback:{uuid4().hex}"
