"""Runner of an agent on the rollouts of a store, one at a time or several at once.

In the store, each runner is a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from random import SystemRandom
from typing import Any, Final, Generic, Protocol, Self

from typing_extensions import TypeVar

from store.errors import StoreError
from store.interface.phase_graphs import pipeline_of_run
from store.interface.store import Store
from store.models import (
    AttemptedRollout,
    AttemptError,
    PhaseGraph,
    ResourcesUpdate,
    ResourceUnion,
    Rollout,
    RolloutMode,
)
from store.models.rollouts import HEARTBEAT_SECONDS
from store.runtime.limited_log import LimitedLog
from store.runtime.process import worker_name
from store.training.running.agent import LitAgent
from store.training.running.attempt import AttemptRun, Exit, put_back, returning_exits
from store.training.running.claims import Claims
from store.training.running.heartbeat import Beating, Heartbeat, LaunchMode
from store.training.running.hooks import Hook, HookCalls
from store.training.running.outages import Pause
from store.training.running.outcome import Outcome
from store.training.running.rollout_watch import Watch
from store.training.running.runner_metrics import metrics
from store.training.running.single_flight import SingleFlight
from store.training.running.spool_replay import replay
from store.training.tracer import Tracer
from store.training.tracing.reward_spans import find_final_reward

T = TypeVar("T", default=Any)
R = TypeVar("R")

logger = logging.getLogger("store.training.runner")

# Agents may seed the module `random`, whose numbers must not depend on the recording.
_random: Final = SystemRandom()

_EVENT_SECONDS: Final = 0.05
_FIRST_PAUSE_SECONDS: Final = 0.05
_RESOURCES_PAUSE_SECONDS: Final = 1.0
_LONGEST_MISMATCH_PAUSE_SECONDS: Final = 60.0
"""The maximum pause of a runner that gets only rollouts of other runners."""
_REMEMBERED: Final = 1000
"""The maximum number of remembered ids of resources."""
_UNREPORTED_SECONDS: Final = 15.0
"""How long a runner waits for resources before it reports this. An algorithm often publishes them after its start."""
_RESOURCES_AT_ONCE: Final = 20
_LONGEST_REASON: Final = 300
"""The maximum number of characters of an error that is announced."""


class ExecutionEvent(Protocol):
    """Stop signal of a runner: an event of `threading`, `multiprocessing` or `asyncio`."""

    def is_set(self) -> bool:
        """Return whether to stop."""
        ...


class Runner(Generic[T]):
    """Runner of one agent, as one worker of one store.

    Before `step` and `iter`, set the agent (`init`), and the worker and store (`init_worker`); or enter `run_context`.
    Several runners may share an agent and a process.

    Args:
        tracer: the tracer that records the agent; None for a `Tracer()`.
        max_rollouts: the number of attempts, including failed attempts, after which `iter` returns; None for no limit.
        poll_interval: the maximum number of seconds for which one claim waits for a rollout. A rollout that arrives
            meanwhile is claimed at once.
        heartbeat_interval: seconds between two heartbeats of worker and attempts; 0 or less for none.
        interval_jitter: the maximum number of seconds by which poll and heartbeat intervals vary.
        heartbeat_launch_mode: "thread" sends heartbeats in a thread that agents cannot block, "asyncio" in the event
            loop.
        heartbeat_include_gpu: whether the worker's heartbeats contain values of `nvidia-smi` for each GPU.
        concurrency: the maximum number of attempts that `iter` runs at once.
        sync_in_thread: whether agents that are not async run in threads. Then they do not block the event loop, and can
            be abandoned at their deadline.
        hooks_before_status: whether the hook `on_rollout_end` is called before the attempt's status is reported, as in
            Agent-lightning 0.3.
        grace_seconds: the maximum number of seconds for which a cancelled async agent may clean up.
        name: the name of the worker in the store, before its number; None for the host and the process id. It must be
            unique among the runners that are active.
        announce: function that is called with a line of text when the runner starts, claims a rollout, and has ended
            an attempt; None to announce nothing. Runners in other processes need a function of a module.

    Raises:
        ValueError: the launch mode is unknown, or the concurrency is below 1.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        max_rollouts: int | None = None,
        poll_interval: float = 5.0,
        heartbeat_interval: float = HEARTBEAT_SECONDS,
        interval_jitter: float = 0.5,
        heartbeat_launch_mode: LaunchMode = "thread",
        heartbeat_include_gpu: bool = False,  # noqa: FBT001, FBT002 - signature of the contract
        *,
        concurrency: int = 1,
        sync_in_thread: bool = True,
        hooks_before_status: bool = False,
        grace_seconds: float = 5.0,
        name: str | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        if heartbeat_launch_mode not in {"thread", "asyncio"}:
            raise ValueError(f"heartbeat_launch_mode={heartbeat_launch_mode!r}; use 'thread' or 'asyncio'")
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}; use at least 1")
        self.tracer = tracer or Tracer()
        self.sync_in_thread = sync_in_thread
        self.hooks_before_status = hooks_before_status
        self.grace_seconds = grace_seconds
        self.hooks: Sequence[Hook] = ()
        self.hook_calls = HookCalls()
        self._max_rollouts = max_rollouts
        self._poll_interval = poll_interval
        self._heartbeat_interval = heartbeat_interval
        self._interval_jitter = interval_jitter
        self._launch_mode: LaunchMode = heartbeat_launch_mode
        self._include_gpu = heartbeat_include_gpu
        self._concurrency = concurrency
        self._name = name
        self._announce = announce
        self._mismatch_pause = _FIRST_PAUSE_SECONDS
        self.ends_in_one_call = True
        self._without_graph = set[str]()
        """Ids of resources that no run uses. They are read once to check this."""
        self._agent: LitAgent[T] | None = None
        self._store: Store | None = None
        self._worker_id: int | None = None
        self._event: ExecutionEvent | None = None

    def init(self, agent: LitAgent[T], *, hooks: Sequence[Hook] | None = None, **kwargs: Any) -> None:
        """Set the agent to run, and the hooks that are called for the attempts of the runner.

        Raises:
            Invalid: a method of a hook requires an argument that hooks do not receive.
        """
        del kwargs
        self.hooks = list(hooks or ())
        self.hook_calls = HookCalls(self.hooks)
        self._agent = agent
        agent.set_runner(self)
        self.tracer.init()

    def init_worker(self, worker_id: int, store: Store, **kwargs: Any) -> None:
        """Set the worker and the store."""
        del kwargs
        self._worker_id = worker_id
        self._store = store
        self.tracer.init_worker(worker_id, store)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Forget the store and the worker."""
        del args, kwargs
        self.tracer.teardown_worker(worker_id)
        self._worker_id = self._store = None

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Forget the agent and the hooks."""
        del args, kwargs
        self.tracer.teardown()
        self._agent, self.hooks, self.hook_calls = None, (), HookCalls()

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Raise an error, because a runner has `iter` and `step` instead.

        Raises:
            RuntimeError: always.
        """
        del args, kwargs
        raise RuntimeError(
            "a runner has no run(); use iter() for the rollouts of the queue, or step() for a task of your own"
        )

    @contextlib.contextmanager
    def run_context(
        self, *, agent: LitAgent[T], store: Store, hooks: Sequence[Hook] | None = None, worker_id: int | None = None
    ) -> Generator[Self]:
        """Set up the runner inside a block, for notebooks and debugging.

        Args:
            agent: the agent to run.
            store: the store.
            hooks: the hooks that are called for the attempts of the runner.
            worker_id: the id of the worker; None for 0.
        """
        worker = 0 if worker_id is None else worker_id
        with contextlib.ExitStack() as stack:
            stack.callback(_quietly, self.teardown)
            self.init(agent, hooks=hooks)
            stack.callback(_quietly, self.teardown_worker, worker)
            self.init_worker(worker, store)
            yield self

    @property
    def agent(self) -> LitAgent[T]:
        """The agent.

        Raises:
            ValueError: no agent is set.
        """
        if self._agent is None:
            raise ValueError("the runner has no agent; call init(agent) first, or enter run_context")
        return self._agent

    @property
    def store(self) -> Store:
        """The store.

        Raises:
            ValueError: no store is set.
        """
        if self._store is None:
            raise ValueError("the runner has no store; call init_worker(worker_id, store) first, or enter run_context")
        return self._store

    @property
    def label(self) -> str:
        """The name of the worker in the store: `<name>-<number>`, or `<host>-<pid>-<number>` without a name."""
        if self._worker_id is None:
            return "Worker-Unknown"
        return worker_name(self._worker_id) if self._name is None else f"{self._name}-{self._worker_id}"

    @property
    def is_draining(self) -> bool:
        """Whether the rollouts of cancelled attempts return to the queue, as they do after `StopEvent.drain`."""
        return bool(getattr(self._event, "is_draining", False))

    def announce(self, text: str) -> None:
        """Pass a line about the work of this worker to the function `announce` of the runner."""
        if self._announce is not None:
            self._announce(f"{self.label}: {text}")

    def get_agent(self) -> LitAgent[T]:
        """Return `agent`."""
        return self.agent

    def get_store(self) -> Store:
        """Return `store`."""
        return self.store

    def get_worker_id(self) -> str:
        """Return `label`."""
        return self.label

    async def step(
        self,
        input: T,  # noqa: A002 - signature of the contract
        *,
        resources: Mapping[str, ResourceUnion] | None = None,
        mode: RolloutMode | None = None,
        event: ExecutionEvent | None = None,
    ) -> Rollout:
        """Run one task without the queue, and return its rollout when it has ended.

        Args:
            input: the task.
            resources: resources to publish before the attempt starts; None to use the latest existing resources.
            mode: the mode of the rollout.
            event: ignored.

        Raises:
            Exception: the agent raised it; the attempt was reported as failed.
            RuntimeError: the store has no resources, or the rollout no longer exists in the store.
            TimeoutError: the attempt took longer than the `timeout_seconds` of its rollout.
        """
        del event
        store = self.store
        update = None if resources is None else await store.add_resources(resources)
        resources_id = None if update is None else update.resources_id
        async with self._at_work() as desk:
            rollout = await desk.started(
                store.start_rollout(input, mode=mode, resources_id=resources_id, worker_id=self.label)
            )
            outcome = (await desk.run(rollout)).outcome
        if outcome.kind == "error" and outcome.error is not None:
            raise outcome.error
        ended = await store.get_rollout_by_id(rollout.rollout_id)
        if ended is None:
            raise RuntimeError(f"rollout {rollout.rollout_id} no longer exists in the store")
        return ended

    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        """Run the rollouts of the queue until `event` is set, or `max_rollouts` were run.

        Nothing is claimed until the store has resources that the agent can use; while the runner waits for them, it
        logs one warning. An exception of an agent fails only its attempt. Attempts that run when the event is set are
        finished. If this coroutine is cancelled, they are interrupted: after `StopEvent.drain` their rollouts return
        to the queue, otherwise they fail. If the store cannot be reached, the claim is retried.

        Raises:
            StoreError: the store refuses the claim.
        """
        stopped, self._event = asyncio.Event(), event
        async with self._at_work() as desk, _watching(event, stopped):
            # Spans of dead processes are stored first, because `introduce` sets the attempts of these processes to
            # unresponsive, and `replay` skips unresponsive attempts.
            await replay(self.store, self.tracer.spool)
            await desk.introduce()
            self.announce("waits for rollouts")
            running: set[asyncio.Task[Outcome | Exit]] = set()
            try:
                await self._serve(desk, running, event, stopped)
                if self.is_draining:
                    self.announce(f"claims nothing more, attempts still running: {len(running)}")
                while running:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    _forget_done(running)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _serve(
        self,
        desk: Desk,
        running: set[asyncio.Task[Outcome | Exit]],
        event: ExecutionEvent | None,
        stopped: asyncio.Event,
    ) -> None:
        """Claim and start attempts until `max_rollouts` is reached or the runner is stopped."""

        def is_stopped() -> bool:
            return stopped.is_set() or (event is not None and event.is_set())

        claims = Claims(self._max_rollouts, is_stopped, lambda: desk.pause.is_due)
        pause = _FIRST_PAUSE_SECONDS
        limited = LimitedLog(logger)
        stopping = asyncio.ensure_future(stopped.wait())
        try:
            await self._await_resources(stopping)
            while True:
                _forget_done(running)
                if is_stopped() or (claims.is_over and not running):
                    break
                limit = claims.limit(self._concurrency - len(running))
                if not limit:
                    await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
                    continue
                await desk.pause.wait(stopping)
                if stopping.done():
                    break
                claimed: list[AttemptedRollout] = []
                claims.take(limit)
                try:
                    claimed = await self._claim(desk, limit, running, stopping)
                    pause = _FIRST_PAUSE_SECONDS
                except StoreError as error:
                    if not error.retryable:
                        raise
                    limited.warning(f"{self.label} cannot claim rollouts, retrying", error)
                    await asyncio.wait({stopping}, timeout=pause)
                    pause = min(2 * pause, max(self._poll_interval, _FIRST_PAUSE_SECONDS))
                    continue
                finally:
                    claims.take(len(claimed) - limit)
                if self.is_draining:
                    # These rollouts were claimed at the moment of the drain.
                    await desk.give_back(*claimed)
                    break
                running.update(asyncio.create_task(self._work(desk, rollout, claims, stopping)) for rollout in claimed)
        finally:
            stopping.cancel()

    async def _work(
        self, desk: Desk, rollout: AttemptedRollout, claims: Claims, stopping: asyncio.Future[Any]
    ) -> Outcome | Exit:
        """Run an attempt, and those that are claimed one after the other at the ends of attempts."""
        while True:
            # Each attempt has a task of its own, because agents and hooks may set context variables.
            attempt = desk.run(rollout, claims)
            running = asyncio.create_task(returning_exits(attempt))
            try:
                ended = await running
            except asyncio.CancelledError:
                if inspect.getcoroutinestate(attempt) == inspect.CORO_CREATED:
                    # The task was cancelled before its first step.
                    attempt.close()
                    await desk.give_back(rollout)
                # The attempt may have ended, with a claim, in the same iteration of the event loop.
                elif running.done() and not running.cancelled() and running.exception() is None:
                    late = running.result()
                    if isinstance(late, AttemptRun) and late.next_rollout is not None:
                        await desk.give_back(late.next_rollout)
                raise
            if isinstance(ended, Exit):
                return ended
            if ended.next_rollout is None:
                return ended.outcome
            if claims.is_stopped():
                await desk.give_back(ended.next_rollout)
                return ended.outcome
            if not await self._matching(desk, [ended.next_rollout], stopping):
                claims.give_back()
                return ended.outcome
            rollout = ended.next_rollout

    async def _await_resources(self, stopping: asyncio.Future[Any]) -> None:
        """Wait until the store has resources that the agent can use, or the runner is stopped."""
        if self.agent.missing_resource(None) is None:
            return
        pause = _FIRST_PAUSE_SECONDS
        limited = LimitedLog(logger)
        is_first, is_reported, started = True, False, time.monotonic()
        while not stopping.done():
            try:
                missing = await self._missing_resource(among_all=is_first)
            except StoreError as error:
                if not error.retryable:
                    raise
                limited.warning(f"{self.label} cannot read the resources, retrying", error)
            else:
                if missing is None:
                    return
                is_first = False
                if not is_reported and time.monotonic() - started >= _UNREPORTED_SECONDS:
                    logger.warning("%s waits, because its agent needs %s and the store has none", self.label, missing)
                    is_reported = True
            await asyncio.wait({stopping}, timeout=pause)
            pause = min(2 * pause, _RESOURCES_PAUSE_SECONDS)

    async def _missing_resource(self, *, among_all: bool) -> str | None:
        """Return what the agent needs and the latest resources lack; None if they or other resources lack nothing."""
        latest = await self.find_resources(None)
        missing = self.agent.missing_resource(None if latest is None else latest.resources)
        if missing is None or latest is None or not among_all:
            return missing
        # The rollouts may use resources other than the latest.
        offset = 0
        while True:
            page = await self.store.query_resources(
                sort_by="update_time", sort_order="desc", limit=_RESOURCES_AT_ONCE, offset=offset
            )
            if any(self.agent.missing_resource(update.resources) is None for update in page):
                return None
            offset += len(page)
            if not page or offset >= page.total:
                return missing

    async def _claim(
        self, desk: Desk, limit: int, running: set[asyncio.Task[Outcome | Exit]], stopping: asyncio.Future[Any]
    ) -> list[AttemptedRollout]:
        """Return claimed rollouts; an empty list if none came in time or the runner is stopped."""
        jittered = self._poll_interval + _random.uniform(-self._interval_jitter, self._interval_jitter)
        claiming = asyncio.create_task(self._dequeue(limit, max(jittered, 0.01)))
        try:
            while not claiming.done() and not stopping.done():
                await asyncio.wait({claiming, stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
                _forget_done(running)
        except BaseException:
            await desk.give_up(claiming)
            raise
        if not claiming.done():
            await desk.give_up(claiming)
            return []
        return await self._matching(desk, claiming.result(), stopping)

    def _dequeue(self, limit: int, wait_seconds: float) -> Coroutine[Any, Any, list[AttemptedRollout]]:
        """Claim rollouts for this runner. The runner of a pipeline overrides it."""
        return self.store.dequeue_many_rollouts(limit, self.label, wait_seconds=wait_seconds)

    async def _matching(
        self, desk: Desk, claimed: list[AttemptedRollout], stopping: asyncio.Future[Any]
    ) -> list[AttemptedRollout]:
        """Return the claimed rollouts that this runner executes, after putting the others back into the queue.

        If there are only others, wait for runners that execute them, longer each time.
        """
        matching: list[AttemptedRollout] = []
        unchecked = list(claimed)
        try:
            while unchecked:
                reason = await self._mismatch(unchecked[0])
                if reason is None:
                    matching.append(unchecked[0])
                else:
                    await self._put_back(desk, unchecked[0], reason)
                del unchecked[0]
        except BaseException:
            await desk.give_back(*matching, *unchecked)
            raise
        if matching:
            self._mismatch_pause = _FIRST_PAUSE_SECONDS
        elif claimed:
            await asyncio.wait({stopping}, timeout=self._mismatch_pause)
            self._mismatch_pause = min(2 * self._mismatch_pause, _LONGEST_MISMATCH_PAUSE_SECONDS)
        return matching

    async def _mismatch(self, rollout: AttemptedRollout) -> str | None:
        """Return why this runner must not execute a claimed rollout; None if it executes the rollout."""
        if rollout.mode is not None or rollout.resources_id is None or rollout.resources_id in self._without_graph:
            return None
        try:
            resources = await self.find_resources(rollout.resources_id)
        except StoreError:
            return None  # the attempt reads the resources again, and reports that it cannot
        if resources is None or not all(isinstance(resource, PhaseGraph) for resource in resources.resources.values()):
            if len(self._without_graph) < _REMEMBERED:
                self._without_graph.add(rollout.resources_id)
            return None
        pipeline = pipeline_of_run(rollout, resources)
        return None if pipeline is None else f"it is a run of the pipeline {pipeline!r}, and this runner has an agent"

    async def _put_back(self, desk: Desk, rollout: AttemptedRollout, reason: str) -> None:
        """Put a claimed rollout at the end of the queue, and report the reason with the attempt."""
        rollout_id, attempt = rollout.rollout_id, rollout.attempt
        logger.warning("%s puts rollout %s back into the queue: %s", self.label, rollout_id, reason)
        error = AttemptError(type="Mismatch", message=reason)
        metadata = {**(attempt.metadata or {}), "reason": "mismatch"}
        try:
            await put_back(self.store, rollout, status="failed", metadata=metadata, error=error)
        except StoreError as failure:
            logger.warning("rollout %s cannot be put back: %s", rollout_id, failure)
            await desk.refuse(rollout)

    def _heartbeat_fields(self) -> dict[str, Any]:
        """Return further fields of the worker's heartbeats."""
        return {}

    async def find_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        """Return the resources with an id, or the latest resources for None."""
        if resources_id is None:
            return await self.store.get_latest_resources()
        return await self.store.get_resources_by_id(resources_id)

    @contextlib.asynccontextmanager
    async def _at_work(self) -> AsyncGenerator[Desk]:
        interval = self._heartbeat_interval
        if self._worker_id is None and interval > 0:
            logger.warning("a worker without an id sends no heartbeats; call init_worker(worker_id, store)")
            interval = 0.0
        heartbeat = Heartbeat(
            self.store,
            self.label,
            interval,
            self._interval_jitter,
            self._launch_mode,
            include_gpu=self._include_gpu,
            about=self._heartbeat_fields(),
        )
        watch = Watch(self.store)
        async with heartbeat.sent():
            try:
                yield Desk(self, heartbeat, watch)
            finally:
                await watch.close()


class Desk:
    """Executor of attempts. It sends their heartbeats.

    It also stops an attempt if the rollout was cancelled, or if another attempt or a user determined its result.
    """

    def __init__(self, runner: Runner[Any], heartbeat: Heartbeat, watch: Watch) -> None:
        self._runner = runner
        self._heartbeat = heartbeat
        self._watch = watch
        self._resources_of = SingleFlight(runner.find_resources)
        self.pause = Pause(runner.find_resources)

    async def introduce(self) -> None:
        """Close the attempts of dead runners of this machine, and send the first heartbeat."""
        await self._heartbeat.introduce()

    async def started(self, starting: Coroutine[Any, Any, AttemptedRollout]) -> AttemptedRollout:
        """Await a store's call that starts an attempt.

        If the caller is cancelled meanwhile, report the attempt as interrupted.
        """
        task = asyncio.create_task(starting)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The store may have started the attempt. Only this runner knows about the attempt, so it must report it.
            with contextlib.suppress(StoreError):
                await self.refuse(await task)
            raise

    async def refuse(self, rollout: AttemptedRollout) -> None:
        """Report an attempt that was claimed too late to run."""
        await AttemptRun(self._runner, rollout, self._resources_of).refuse()

    async def give_back(self, *rollouts: AttemptedRollout) -> None:
        """Undo claims, even if cancelled. If a claim cannot be undone, report its attempt as interrupted."""
        _, cancellation = await _completed(self._give_back(rollouts))
        if cancellation is not None:
            raise cancellation

    async def _give_back(self, rollouts: Sequence[AttemptedRollout]) -> None:
        for rollout in rollouts:
            try:
                if await self._runner.store.runs.release_claim(rollout.rollout_id, rollout.attempt.attempt_id):
                    continue
            except StoreError as error:
                logger.info("the claim of rollout %s cannot be undone: %s", rollout.rollout_id, error)
            await self.refuse(rollout)

    async def give_up(self, claiming: asyncio.Task[list[AttemptedRollout]]) -> None:
        """Stop waiting for rollouts, and undo the claims of those that arrived at the same moment."""
        claiming.cancel()
        _, cancellation = await _completed(asyncio.wait({claiming}))
        claimed = [] if claiming.cancelled() or claiming.exception() is not None else claiming.result()
        await self.give_back(*claimed)
        if cancellation is not None:
            raise cancellation

    async def claimed(self, claiming: Coroutine[Any, Any, list[AttemptedRollout]]) -> list[AttemptedRollout]:
        """Await calls that claim rollouts. If the caller is cancelled meanwhile, undo the claims."""
        rollouts, cancellation = await _completed(claiming)
        if cancellation is not None:
            await self.give_back(*rollouts)
            raise cancellation
        return rollouts

    async def run(self, rollout: AttemptedRollout, claims: Claims | None = None) -> AttemptRun:
        """Run one attempt, and return it after its end.

        Args:
            rollout: the claimed rollout.
            claims: the rollouts that the runner may claim at the end of the attempt; None to claim none.
        """
        attempt = AttemptRun(self._runner, rollout, self._resources_of, claims)
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._runner.announce(f"claimed {rollout.rollout_id}, attempt {rollout.attempt.sequence_id}")
        self._heartbeat.begin(Beating(rollout, attempt.stop))
        self._watch.begin(rollout, attempt.stop)
        metrics.began()
        status = "interrupted"
        try:
            outcome = await attempt.run()
            status = outcome.status
            self.pause.note(rollout, outcome)
        except BaseException:
            if attempt.outcome.reason == "drained":
                self._runner.announce(f"put {rollout.rollout_id} back after {loop.time() - began:.1f} s")
            if attempt.next_rollout is not None:
                await self.give_back(attempt.next_rollout)
            raise
        finally:
            metrics.ended(status, loop.time() - began)
            self._watch.end(rollout)
            self._heartbeat.end(rollout)
        seconds, reward = loop.time() - began, find_final_reward(outcome.spans)
        logger.info(
            "rollout %s: %s in %.3f s, %d spans, reward %s",
            rollout.rollout_id,
            outcome.status,
            seconds,
            len(outcome.spans),
            reward,
        )
        self._runner.announce(_end_of(rollout, outcome, seconds, reward))
        return attempt


def _end_of(rollout: AttemptedRollout, outcome: Outcome, seconds: float, reward: float | None) -> str:
    """Return a line about the end of an attempt."""
    if outcome.status == "succeeded":
        return f"finished {rollout.rollout_id} in {seconds:.1f} s" + ("" if reward is None else f", reward {reward:g}")
    error = outcome.error
    why = outcome.reason if error is None else f"{type(error).__name__}: {error}"
    return f"failed {rollout.rollout_id} after {seconds:.1f} s: {' '.join(str(why).split())[:_LONGEST_REASON]}"


LitAgentRunner = Runner
"""The name of the class in Agent-lightning."""


@contextlib.asynccontextmanager
async def _watching(event: ExecutionEvent | None, stopped: asyncio.Event) -> AsyncGenerator[None]:
    """Set `stopped` soon after `event` is set. The event may belong to another thread or process."""

    async def look(at: ExecutionEvent) -> None:
        while not at.is_set():  # noqa: ASYNC110 - an event of another process cannot be awaited
            await asyncio.sleep(_EVENT_SECONDS)
        stopped.set()

    if event is not None and event.is_set():
        stopped.set()
    looking = None if event is None else asyncio.create_task(look(event))
    try:
        yield
    finally:
        if looking is not None:
            looking.cancel()


def _forget_done(running: set[asyncio.Task[Outcome | Exit]]) -> None:
    """Remove finished attempts; raise the exception if an agent raised KeyboardInterrupt or SystemExit."""
    for task in [task for task in running if task.done()]:
        running.discard(task)
        ended = task.result()
        if isinstance(ended, Exit):
            raise ended.error


async def _completed(work: Coroutine[Any, Any, R]) -> tuple[R, asyncio.CancelledError | None]:
    """Await work that a cancellation must not interrupt. Return its result, and the cancellation, if any."""
    task = asyncio.create_task(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancellation = error
        except Exception:  # noqa: BLE001 - raised by `result`
            break
    return task.result(), cancellation


def _quietly(teardown: Any, *args: Any) -> None:
    try:
        teardown(*args)
    except Exception:
        logger.exception("teardown of a part of the runner failed")
