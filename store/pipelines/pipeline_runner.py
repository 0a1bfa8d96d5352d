"""Runner of a pipeline. It claims queued runs and requested re-runs, and resumes runs whose process died."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from store.errors import (
    AttemptActive,
    Closed,
    Conflict,
    Incompatible,
    Invalid,
    NotFound,
    SideEffectsUnconfirmed,
    StoreError,
    Unavailable,
    Unsupported,
)
from store.interface import rerun_requests
from store.interface.liveness import close_orphans, pipeline_of
from store.interface.phase_graphs import graph_of, is_default, phase_graph_in, pipeline_of_run
from store.interface.store import Store
from store.models import Attempt, AttemptedRollout, NamedResources, ResourcesUpdate, Rollout
from store.models.rollouts import HEARTBEAT_SECONDS, longest_silence
from store.pipelines.fallback.fallback_store import PATIENCE_SECONDS, EndedAttempts, FallbackStore
from store.pipelines.phases import Pipeline
from store.runtime.process import worker_name
from store.training.running.agent import LitAgent
from store.training.running.attempt import Exit
from store.training.running.outcome import Outcome
from store.training.running.runner import Desk, ExecutionEvent, Runner

logger = logging.getLogger("store.training.pipeline_runner")

OrphanPolicy = Literal["resume", "fail"]

_ANNOTATED: Final = "rollout.annotated"
_FOLLOWED: Final = (_ANNOTATED, "resources.published", "resources.replaced")
_RESOURCES_AT_ONCE: Final = 100
_PAUSE_SECONDS: Final = 0.5
_RECENT: Final = 100
"""The number of recently failed runs that are checked for orphans."""


class PipelineRunner(Runner[Any]):
    """Runner that executes the runs of one pipeline: runs of the queue, requested re-runs, and orphaned runs.

    A run is orphaned if the runner that executed it died. Its attempt is then unresponsive, or failed with the reason
    `interrupted`. The run of a runner that was drained waits in the queue. Runs of both kinds are continued where they
    stopped. Any number of these runners may work on one store; each run is executed by only one of them at a time.

    Args:
        pipeline: the phases and their functions.
        orphans: "resume" continues orphaned runs in a new attempt, "fail" leaves them failed.
        confirm_side_effects: whether to resume runs that stopped in a phase with unsafe side effects. These effects may
            then happen twice.
        resumes: the maximum number of times that an orphaned run is resumed; after that it stays failed.
        concurrency: the number of runs that are executed at once.
        heartbeat_interval: seconds between two heartbeats of the runner and its attempts. If the config of a run sets
            no limit, an attempt of the run is unresponsive after six intervals without a heartbeat.
        fallback_dir: a directory with run folders. If the store becomes unavailable during a run, the run continues in
            its own folder there. The folder is imported once the store is available again. None: the run fails.
        fallback_patience: the maximum number of seconds for which a call waits for the store, before the run continues
            in its folder.
        others: the other arguments of `Runner`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        orphans: OrphanPolicy = "resume",
        confirm_side_effects: bool = False,
        resumes: int = 3,
        concurrency: int = 4,
        heartbeat_interval: float = HEARTBEAT_SECONDS,
        fallback_dir: str | Path | None = None,
        fallback_patience: float = PATIENCE_SECONDS,
        **others: Any,
    ) -> None:
        if orphans not in {"resume", "fail"}:
            raise Invalid("orphans", f"{orphans!r} is neither 'resume' nor 'fail'")
        super().__init__(heartbeat_interval=heartbeat_interval, concurrency=concurrency, **others)
        self.pipeline = pipeline
        self._policy = orphans
        self._confirms = confirm_side_effects
        self._resumes = resumes
        self._silence = longest_silence(heartbeat_interval)
        self._requests: _OpenRequests | None = None
        self._graphs: _GraphResources | None = None
        self._claims_by_kind = True
        # A re-run that was requested comes before the next run of the queue, and a fallback records each call.
        self.ends_in_one_call = False
        self._orphans_checked_at = float("-inf")
        self._left_failed: set[str] = set()
        self._fallback_dir = fallback_dir
        self._fallback_patience = fallback_patience
        self._fallback: FallbackStore | None = None

    @property
    def label(self) -> str:
        """The name of the worker in the store: the pipeline's name, before that of `Runner`."""
        number = 0 if self._worker_id is None else self._worker_id
        return f"{self.pipeline.graph.name}-{worker_name(number) if self._name is None else f'{self._name}-{number}'}"

    async def serve(self, store: Store, worker_id: int = 0, event: ExecutionEvent | None = None) -> None:
        """Execute the runs of a store until the event is set, or `max_rollouts` attempts were executed.

        `Runner.iter` describes the details.
        """
        async with self._with_fallback(store, worker_id):
            await self.iter(event=event)

    async def execute(
        self, store: Store, start: Callable[[str], Awaitable[AttemptedRollout]], worker_id: int = 0
    ) -> Outcome:
        """Start one attempt as a worker of a store, execute it, report its status, and return the outcome.

        Args:
            store: the store.
            start: function that starts the attempt, for example with `runs.fork`; its argument is the worker's name.
            worker_id: the number of the worker in this process.

        Raises:
            Exception: `start` raised it.
        """
        async with self._with_fallback(store, worker_id), self._at_work() as desk:
            await desk.introduce()
            rollout = await start(self.label)
            await rerun_requests.limit_silence(store, rollout, self._silence)
            self._begin([rollout])
            return (await desk.run(rollout)).outcome

    @contextlib.asynccontextmanager
    async def _with_fallback(self, store: Store, worker_id: int) -> AsyncGenerator[None]:
        """Set up the runner on a store. If there is a fallback directory, runs continue there during outages."""
        agent = PipelineAgent(self.pipeline)
        if self._fallback_dir is None:
            with self.run_context(agent=agent, store=store, worker_id=worker_id):
                yield
            return
        fallback = FallbackStore(store, self._fallback_dir, patience=self._fallback_patience)
        async with fallback.working():
            self._fallback = fallback
            hooks = [EndedAttempts(fallback)]
            try:
                with self.run_context(agent=agent, store=fallback, hooks=hooks, worker_id=worker_id):
                    yield
            finally:
                self._fallback = None

    def _begin(self, rollouts: Sequence[AttemptedRollout]) -> None:
        """Register attempts with the fallback, so that they continue in run folders while the store is unavailable."""
        if self._fallback is not None:
            for rollout in rollouts:
                self._fallback.begin(rollout, self.pipeline.graph)

    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        self._requests = requests = _OpenRequests(self.store)
        self._graphs = _GraphResources(self.store, self.pipeline.graph.name)
        try:
            await super().iter(event=event)
        finally:
            self._requests = None
            await requests.close()

    def _heartbeat_fields(self) -> dict[str, Any]:
        graph = self.pipeline.graph
        return {
            "pipeline": graph.name,
            "graph": graph.digest,
            "takes_requests": self._requests is not None,
        }

    async def find_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        # A pipeline needs no resources, so an empty set is enough.
        resources = await self._read_resources(resources_id)
        return resources or ResourcesUpdate(resources_id="", create_time=0.0, update_time=0.0, version=0, resources={})

    async def _read_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        while True:
            try:
                return await super().find_resources(resources_id)
            except Unavailable as error:
                if self._fallback is None:
                    raise
                logger.warning("the resources of a run cannot be read, retrying: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _claim(
        self, desk: Desk, limit: int, running: set[asyncio.Task[Outcome | Exit]], stopping: asyncio.Future[Any]
    ) -> list[AttemptedRollout]:
        requests = self._requests
        assert requests is not None  # `iter` has created it
        if self._fallback is not None and not await self._fallback.settle():
            raise Unavailable("the store is unavailable, or the recorded calls of runs are not imported yet")
        if rollouts := (
            await desk.claimed(self._start_reruns(requests, limit)) or await desk.claimed(self._resume_orphans(limit))
        ):
            self._begin(rollouts)
            return rollouts
        waking = asyncio.ensure_future(requests.arrived.wait())
        either = asyncio.ensure_future(asyncio.wait({waking, stopping}, return_when=asyncio.FIRST_COMPLETED))
        try:
            claimed = await super()._claim(desk, limit, running, either)
        finally:
            waking.cancel()
            either.cancel()
        claimed = await desk.claimed(self._continued(desk, claimed))
        self._begin(claimed)
        return claimed

    async def _continued(self, desk: Desk, claimed: list[AttemptedRollout]) -> list[AttemptedRollout]:
        """Replace the claims of runs that were drained by attempts that continue where these runs stopped.

        Set the limit of silence of all attempts.
        """
        rollouts: list[AttemptedRollout] = []
        unchecked = list(claimed)
        try:
            while unchecked:
                base = await self._drained_attempt(unchecked[0])
                started = unchecked[0] if base is None else await self._continue(desk, unchecked[0], base)
                rollouts += [] if started is None else [started]
                del unchecked[0]
            for rollout in rollouts:
                try:
                    await rerun_requests.limit_silence(self.store, rollout, self._silence)
                except StoreError as error:
                    logger.warning("run %s has no limit of silence: %s", rollout.rollout_id, error)
        except BaseException:
            await desk.give_back(*rollouts, *unchecked)
            raise
        return rollouts

    async def _drained_attempt(self, rollout: AttemptedRollout) -> Attempt | None:
        """Return the attempt at which a claimed run continues; None if its last runner was not drained."""
        if rollout.attempt.sequence_id == 1:
            return None
        earlier = [
            attempt
            for attempt in await self.store.query_attempts(rollout.rollout_id)
            if attempt.sequence_id < rollout.attempt.sequence_id and _reason(attempt) != "mismatch"
        ]
        return earlier[-1] if earlier and _reason(earlier[-1]) == "drained" else None

    async def _continue(self, desk: Desk, rollout: AttemptedRollout, base: Attempt) -> AttemptedRollout | None:
        """Undo the claim of a run, and start an attempt that continues `base`.

        Return None if another runner continues the run, if the run was cancelled, or if the run fails because it cannot
        be continued.
        """
        store, rollout_id = self.store, rollout.rollout_id
        if not await store.runs.release_claim(rollout_id, rollout.attempt.attempt_id):
            await self._put_back(desk, rollout, "it was cancelled or changed at the moment of its claim")
            return None
        try:
            resumed = await store.runs.resume(
                rollout_id,
                from_attempt=f"attempt:{base.sequence_id}",
                confirm_side_effects=self._confirms,
                request_id=f"resume-{base.attempt_id}",
                reason=f"the runner of attempt {base.sequence_id} was drained",
                worker_id=self.label,
                graph=None if await graph_of(store, rollout) is not None else self.pipeline.graph,
            )
        except (AttemptActive, NotFound) as error:
            logger.info("run %s is not continued here: %s", rollout_id, error)
            return None
        except (Conflict, Invalid) as error:
            current = await store.get_rollout_by_id(rollout_id)
            if current is None or current.status not in {"queuing", "requeuing"}:
                # Another runner has claimed the run since the claim was undone, or a user has ended the run.
                logger.info("run %s is not continued here: %s", rollout_id, error)
                return None
            logger.warning("run %s fails, because it cannot be continued: %s", rollout_id, error)
            await store.update_rollout(rollout_id, status="failed")
            self._left_failed.add(base.attempt_id)
            return None
        return resumed.rollout if resumed.attempt.worker_id == self.label else None

    async def _dequeue(self, limit: int, wait_seconds: float) -> list[AttemptedRollout]:
        assert self._graphs is not None  # `iter` has created it
        if self._claims_by_kind:
            try:
                if ids := await self._graphs.resources_ids():
                    return await self.store.runs.claim(
                        ids, limit=limit, worker_id=self.label, wait_seconds=wait_seconds
                    )
            except (Unsupported, Incompatible, NotFound):  # a store or a server of an earlier version
                logger.warning("the store cannot claim runs by kind, so %s puts other rollouts back", self.label)
                self._claims_by_kind = False
            else:
                await asyncio.sleep(wait_seconds)
                return []
        return await super()._dequeue(limit, wait_seconds)

    async def _mismatch(self, rollout: AttemptedRollout) -> str | None:
        resources_id = rollout.resources_id
        resources = None if resources_id is None else await self._read_resources(resources_id)
        name, graph_name = pipeline_of_run(rollout, resources), self.pipeline.graph.name
        if name == graph_name or (name is not None and is_default(resources_id)):
            return None
        kind = "not a run: it has a mode, or no phase graph" if name is None else f"a run of the pipeline {name!r}"
        return f"it is {kind}, and this runner executes runs of {graph_name!r}"

    async def _start_reruns(self, requests: _OpenRequests, limit: int) -> list[AttemptedRollout]:
        """Start the attempts of requested re-runs."""
        rollouts: list[AttemptedRollout] = []
        for rollout_id in requests.take(limit):
            try:
                started = await self._fork(rollout_id)
            except StoreError:
                requests.put_back(rollout_id)
                if not rollouts:
                    raise
                break
            if started is not None:
                rollouts.append(started)
        return rollouts

    async def _fork(self, rollout_id: str) -> AttemptedRollout | None:
        """Process the open re-run requests of a run; return the attempt that was started, if there is one."""
        fork: AttemptedRollout | None = None
        graph = self.pipeline.graph
        try:
            while (request := await rerun_requests.open_request(self.store, rollout_id)) is not None:
                if request.pipeline != graph.name:
                    break
                # If there are several requests, only the first is granted, because an attempt is then active.
                started = await rerun_requests.take(self.store, rollout_id, request, graph, self.label, self._silence)
                fork = fork or (None if started is None else started.rollout)
        except NotFound:
            return None
        except StoreError:
            if fork is None:
                raise
        return fork

    async def _resume_orphans(self, limit: int) -> list[AttemptedRollout]:
        """Close the attempts of dead processes.

        If the policy is "resume", also resume their runs, and return the new attempts.
        """
        now = asyncio.get_running_loop().time()
        if now - self._orphans_checked_at < min(self._silence, max(self._heartbeat_interval, _PAUSE_SECONDS)):
            return []
        self._orphans_checked_at = now
        await close_orphans(self.store)
        if self._policy == "fail":
            return []
        resumed: list[AttemptedRollout] = []
        failed = await self.store.query_rollouts(
            status_in=["failed"], sort_by="end_time", sort_order="desc", limit=_RECENT
        )
        for rollout in failed:
            if len(resumed) < limit and isinstance(rollout, AttemptedRollout) and await self._is_ours(rollout):
                started = await self._resume(rollout)
                resumed += [] if started is None else [started]
        if len(resumed) == limit:
            # There may be more orphaned runs, so the next call searches again without a pause.
            self._orphans_checked_at = float("-inf")
        return resumed

    async def _is_ours(self, rollout: AttemptedRollout) -> bool:
        attempt = rollout.attempt
        is_orphan = attempt.status == "unresponsive" or (
            attempt.status == "failed" and _reason(attempt) in {"interrupted", "drained"}
        )
        if not is_orphan or attempt.worker_id is None or attempt.attempt_id in self._left_failed:
            return False
        worker = await self.store.get_worker_by_id(attempt.worker_id)
        if worker is None or pipeline_of(worker) != self.pipeline.graph.name:
            return False
        # If a re-run of the run is requested, the re-run takes precedence.
        return await rerun_requests.open_request(self.store, rollout.rollout_id) is None

    async def _resume(self, rollout: AttemptedRollout) -> AttemptedRollout | None:
        """Start an attempt that resumes a run; return None if the run is not resumable or another runner resumed it."""
        store, attempt = self.store, rollout.attempt
        try:
            lineage = {node.sequence_id: node for node in await store.runs.list_lineage(rollout.rollout_id)}
            head = lineage[attempt.sequence_id]
            attempts = await store.query_attempts(rollout.rollout_id)
            drained = {attempt.sequence_id for attempt in attempts if _reason(attempt) == "drained"}
            resumes, node = 0, head
            while node.kind == "resume" and node.base is not None:
                resumes, node = resumes + (node.base not in drained), lineage[node.base]
            if not head.is_head or resumes >= self._resumes:
                why = "the failed attempt is not the head" if not head.is_head else f"it was resumed {resumes} times"
                logger.warning("run %s stays failed: %s", rollout.rollout_id, why)
                self._left_failed.add(attempt.attempt_id)
                return None
            await rerun_requests.limit_silence(store, rollout, self._silence)
            resumed = await store.runs.resume(
                rollout.rollout_id,
                confirm_side_effects=self._confirms,
                request_id=f"resume-{attempt.attempt_id}",
                reason=f"attempt {attempt.sequence_id} was orphaned",
                worker_id=self.label,
                graph=None if await graph_of(store, rollout) is not None else self.pipeline.graph,
            )
        except SideEffectsUnconfirmed as error:
            logger.warning("run %s stays failed, because it cannot be resumed safely: %s", rollout.rollout_id, error)
            self._left_failed.add(attempt.attempt_id)
            return None
        except (Conflict, Invalid, NotFound) as error:
            logger.info("run %s was not resumed: %s", rollout.rollout_id, error)
            self._left_failed.add(attempt.attempt_id)
            return None
        return resumed.rollout if resumed.attempt.worker_id == self.label else None


def _reason(attempt: Attempt) -> Any:
    return (attempt.metadata or {}).get("reason")


class PipelineAgent(LitAgent[Any]):
    """Agent that executes the run to which its attempt belongs.

    Args:
        pipeline: the pipeline.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self._pipeline = pipeline

    def missing_resource(self, resources: NamedResources | None) -> None:
        """Return None, because a pipeline needs no resources."""

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Run the phases of a run that are not completed.

        Raises:
            Exception: a phase raised it.
        """
        del task, resources
        try:
            await self._pipeline.execute(self.runner.store, cast("AttemptedRollout", rollout))
        except ExceptionGroup as group:
            # The report of an attempt contains one error, so the first error of the group is raised.
            raise _first(group) from group


@dataclass
class PipelineBundle:
    """Function object that an execution strategy calls once per worker. Each call creates a runner of the pipeline.

    Attributes:
        pipeline: the pipeline. If runners are in other processes, the functions of its phases must be defined at the
            top level of modules.
        options: the other arguments of `PipelineRunner`.
    """

    pipeline: Pipeline
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    async def __call__(self, store: Store, worker_id: int, event: ExecutionEvent) -> None:
        """Execute the runs of a store as one worker until the event is set."""
        await PipelineRunner(self.pipeline, **self.options).serve(store, worker_id, event)


class _GraphResources:
    """The ids of the resources whose runs a pipeline executes: those with its phase graph, and those of default graphs.

    Args:
        store: the store.
        name: the name of the pipeline's phase graph.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._ids: dict[str, None] = {}
        self._until = float("-inf")

    async def resources_ids(self) -> list[str]:
        """Return the ids, after reading the resources that were published or replaced since the last call."""
        until, offset = self._until, 0
        while True:
            page = await self._store.query_resources(
                sort_by="update_time", sort_order="desc", limit=_RESOURCES_AT_ONCE, offset=offset
            )
            for update in page:
                if update.update_time < self._until:
                    break
                graph = phase_graph_in(update)
                if graph is not None and (graph.name == self._name or is_default(update.resources_id)):
                    self._ids[update.resources_id] = None
                else:
                    self._ids.pop(update.resources_id, None)
                until = max(until, update.update_time)
            else:
                offset += len(page)
                if len(page) == _RESOURCES_AT_ONCE:
                    continue
            self._until = until
            return list(self._ids)


class _OpenRequests:
    """Runs with a requested re-run, read from the log. The first call of `take` starts to follow the log.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self.arrived = asyncio.Event()
        """Set while there are runs to take, and after a publication of resources, which may have new runs."""
        self._store = store
        self._open: dict[str, None] = {}
        self._following: asyncio.Task[None] | None = None

    def take(self, limit: int) -> list[str]:
        """Remove at most `limit` runs, and return their ids."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        taken = list(self._open)[:limit]
        for rollout_id in taken:
            del self._open[rollout_id]
        if not self._open:
            self.arrived.clear()
        return taken

    def put_back(self, rollout_id: str) -> None:
        """Add a run again, because its requests could not be read."""
        self._open[rollout_id] = None

    async def close(self) -> None:
        """Stop following the log."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        cursor: str | None = None
        while True:
            try:
                events = cast("AsyncGenerator[Any]", self._store.log.tail(cursor, follow=True, types=_FOLLOWED))
                async with contextlib.aclosing(events):
                    async for event in events:
                        cursor = event.cursor
                        if event.type != _ANNOTATED:
                            self.arrived.set()
                            continue
                        rollout_id = event.stream.removeprefix("rollout/")
                        if rerun_requests.LABEL in event.data["removed"]:
                            self._open.pop(rollout_id, None)
                        if rerun_requests.LABEL in event.data["added"]:
                            self._open[rollout_id] = None
                            self.arrived.set()
            except (Unsupported, Closed):
                return
            except StoreError as error:
                logger.warning("the log cannot be followed, retrying: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(cast("ExceptionGroup[Exception]", error)) if isinstance(error, ExceptionGroup) else error
