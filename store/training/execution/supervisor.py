"""Supervisor, which starts an algorithm and its runners, watches them, and ends first the algorithm, then the runners.

A part is the algorithm or one runner.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, cast

from store.errors import StoreError
from store.models import AttemptedRollout, AttemptError
from store.training.execution.algorithm_store import AT_WORK
from store.training.execution.parts import Part
from store.training.execution.strategy import ExecutionReport, RunnersGone

if TYPE_CHECKING:
    from store.interface.store import Store

logger = logging.getLogger(__name__)

LOSSES_SECONDS: Final = 600.0
"""The time within which the losses of elastic runners are counted."""

_LAST_SECONDS: Final = 5.0
_CLOSING_SECONDS: Final = 10.0


class Supervisor:
    """Supervisor of runners and, optionally, of the algorithm that uses them.

    Args:
        algorithm: the algorithm. The runners are ended after the algorithm. With None, the execution ends with the last
            runner.
        runners: the runners, by worker id.
        store: the store that they share.
        graceful_timeout: the maximum number of seconds for which active attempts may continue at the end.
        terminate_timeout: seconds after which an interrupted part that has not ended is killed.
        create: function that returns a new runner, as a replacement or as an addition; its argument is the worker id.
        replacements: the maximum number of replacements.
        drain: event after which runners without an algorithm end: they claim nothing more, active attempts may continue
            for `graceful_timeout` seconds, and the rollouts of the remaining attempts return to the queue. None for no
            such event.
        is_elastic: whether callers add and retire runners. Then the execution continues even without runners, and
            `replacements` limits the losses within `LOSSES_SECONDS`.
    """

    def __init__(
        self,
        algorithm: Part | None,
        runners: Sequence[Part],
        store: Store,
        *,
        graceful_timeout: float,
        terminate_timeout: float,
        create: Callable[[int], Part] | None = None,
        replacements: int = 0,
        drain: asyncio.Event | None = None,
        is_elastic: bool = False,
    ) -> None:
        self.report = ExecutionReport()
        self.runners: dict[int, Part] = dict(enumerate(runners))
        """The active runners that claim rollouts, by worker id."""
        self._retiring: dict[int, Part] = {}
        """The runners that claim nothing more, by worker id."""
        self._limits = set[asyncio.Task[None]]()
        """Tasks that interrupt retiring runners."""
        self._started: list[tuple[int, Part]] = []
        """The runners with their worker ids; empty if elastic, because a fleet may start any number of runners."""
        self._additions = asyncio.Event()
        self._algorithm = algorithm
        self._store = store
        self._graceful = graceful_timeout
        self._terminate = terminate_timeout
        self._create = create
        self._replacements = replacements
        self._losses = deque[float]()
        """The times of lost runners that count towards `replacements`."""
        self._last_error: BaseException | None = None
        self._one_ended_normally = False
        self._is_elastic = is_elastic
        self._drain = drain or asyncio.Event()
        self._hurry = asyncio.Event()
        """Set when the execution is cancelled, so that active attempts get no more time."""
        self._is_ending = False
        """Whether all parts are about to end, so that no runner is started or moved any more."""

    @property
    def workers(self) -> set[str]:
        """The names of the workers that were started, including those that were replaced; empty if elastic."""
        return {part.worker_name(number) for number, part in self._started}

    @property
    def can_start_more(self) -> bool:
        """Whether the execution goes on, and so few runners were lost that more may be started."""
        if self._is_ending:
            return False
        if self._is_elastic:
            while self._losses and self._losses[0] < asyncio.get_running_loop().time() - LOSSES_SECONDS:
                self._losses.popleft()
        return len(self._losses) <= self._replacements

    def add_runner(self) -> Part:
        """Start a runner with the lowest free worker id, and return it."""
        assert self._create is not None  # only executions that can create runners add runners
        number = next(number for number in itertools.count() if number not in {*self.runners, *self._retiring})
        self.runners[number] = runner = self._create(number)
        self._start(number, runner)
        self._last_error = None
        self._additions.set()
        return runner

    def retire(self, number: int, seconds: float | None = None) -> None:
        """Let a runner claim nothing more and finish its attempts.

        Args:
            number: the worker id.
            seconds: the time after which rollouts whose attempts have not ended return to the queue; None for no limit.
        """
        runner = self._retiring[number] = self.runners.pop(number)
        runner.drain()
        if seconds is not None:
            task = asyncio.create_task(self._end_within(runner, seconds))
            self._limits.add(task)
            task.add_done_callback(self._limits.discard)

    def move(self, number: int, seconds: float | None, reason: str) -> None:
        """Retire a runner, and start another one, unless the execution ends. The arguments are those of `retire`."""
        if self._is_ending:
            return
        runner = self.runners[number]
        self.retire(number, seconds)
        self.report.moved += 1
        logger.warning("%s ends, because %s; %s takes its place", runner.name, reason, self.add_runner().name)

    async def run(self) -> ExecutionReport:
        """Start all parts, and return when the algorithm and the runners have ended.

        Raises:
            RunnersGone: no runner is left, but the algorithm needs one, or too many runners were lost.
            StoreError: a runner cannot start, or there is no algorithm, and the store refused the last runner.
            CancelledError: the call was cancelled; all parts have ended.
            Exception: an exception that the algorithm raised.
        """
        try:
            for number, part in self.runners.items():
                self._start(number, part)
            if self._algorithm is not None:
                self._algorithm.start()
            await self._watch()
        except asyncio.CancelledError:
            self._hurry.set()
            raise
        finally:
            await self._end_uninterrupted()
        return self.report

    async def _end_uninterrupted(self) -> None:
        """End all parts. After a cancellation, parts end sooner, but still report their work."""
        self._is_ending = True
        ending = asyncio.ensure_future(self._end_all())
        cancellation: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancellation = error
                self._hurry.set()
        ending.result()
        if cancellation is not None:
            raise cancellation

    def _start(self, number: int, runner: Part) -> None:
        runner.start()
        if not self._is_elastic:
            self._started.append((number, runner))

    async def _watch(self) -> None:
        draining = asyncio.ensure_future(self._drain.wait())
        try:
            await self._watch_until(draining if self._algorithm is None else self._algorithm.ended)
        finally:
            draining.cancel()
        if self._algorithm is not None and (error := self._algorithm.ended.result().error) is not None:
            raise ungrouped(error)

    async def _watch_until(self, end: asyncio.Future[Any]) -> None:
        while not end.done():
            ends = {part.ended for part in (*self.runners.values(), *self._retiring.values())}
            if not ends and not self._is_elastic:
                if self._algorithm is not None:
                    # All runners have ended. If the algorithm still waits for one, `AlgorithmStore` raises an error.
                    # If no runner was started here, the runners are on other machines, and may come and go.
                    if self._started:
                        self._algorithm.stop()
                    await asyncio.wait({self._algorithm.ended})
                return
            self._additions.clear()
            addition = asyncio.ensure_future(self._additions.wait())
            await asyncio.wait({end, addition, *ends}, return_when=asyncio.FIRST_COMPLETED)
            addition.cancel()
            if end.done():
                return
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Replace killed runners, and raise the error of the last runner if none is left."""
        for number, part in [(number, part) for number, part in self._retiring.items() if part.ended.done()]:
            del self._retiring[number]
            if (error := part.ended.result().error) is not None:
                self.report.crashed.append(_described(part, error))
                logger.warning("%s was lost while it finished its work: %s", part.name, error)
        for number, part in [(number, part) for number, part in self.runners.items() if part.ended.done()]:
            del self.runners[number]
            self._runner_ended(number, part)
        last = self._last_error
        if self.runners or self._retiring or last is None or (self._one_ended_normally and not self._is_elastic):
            return
        if self._algorithm is None and _is_refusal(last):
            raise last
        if not self._is_elastic or not self.can_start_more:
            raise RunnersGone(f"no runner is left; the last one ended with {last!r}") from last

    def _runner_ended(self, number: int, part: Part) -> None:
        end = part.ended.result()
        if end.is_fatal and end.error is not None:
            raise end.error
        if end.error is None:
            logger.info("%s has ended", part.name)
            self._one_ended_normally = True
            return
        self._last_error = end.error
        self.report.crashed.append(_described(part, end.error))
        if end.was_killed or self._is_elastic:
            self._losses.append(asyncio.get_running_loop().time())
        if self._algorithm is None and _is_refusal(end.error):
            logger.info("%s was refused: %s", part.name, end.error)
            return
        if not end.was_killed or self._create is None or not self.can_start_more:
            logger.error("%s is lost: %s", part.name, end.error, exc_info=end.error)
            return
        self.report.replaced += 1
        logger.warning("%s is lost and replaced: %s", part.name, end.error)
        self.runners[number] = replacement = self._create(number)
        self._start(number, replacement)
        self._last_error = None

    async def _end_within(self, runner: Part, seconds: float) -> None:
        """Interrupt a runner that has not ended after some seconds, and kill it if it still does not end."""
        await _wait([runner], seconds)
        if not runner.ended.done():
            runner.interrupt()
        await _wait([runner], self._terminate)
        if not runner.ended.done():
            logger.error("%s does not end and is killed", runner.name)
            self.report.killed.append(runner.name)
            runner.kill()

    async def _end_all(self) -> None:
        if self._algorithm is not None and not self._algorithm.ended.done():
            # The algorithm may stop a model when it ends. The runners would then fail all further rollouts, so they
            # stop first.
            for part in self.runners.values():
                part.stop()
            self._algorithm.interrupt()
            await _wait([self._algorithm], self._terminate)
            if not self._algorithm.ended.done():
                logger.error(
                    "the algorithm has not ended %g s after its interruption; its process, if any, is killed",
                    self._terminate,
                )
                self._algorithm.kill()
                await _wait([self._algorithm], _LAST_SECONDS)
        await self._end_runners()

    async def _end_runners(self) -> None:
        started = _active((*self.runners.values(), *self._retiring.values()))
        for part in started:
            # Without an algorithm, the training continues elsewhere, so other runners can execute these rollouts.
            part.drain() if self._algorithm is None else part.stop()
        # An execution that was cancelled does not wait until agents finish.
        graceful = asyncio.ensure_future(_wait(started, self._graceful))
        hurrying = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({graceful, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        graceful.cancel()
        hurrying.cancel()
        for part in (active := _active(started)):
            if not self._hurry.is_set():
                # Without an algorithm, interrupted rollouts return to the queue, which needs no warning.
                level = logging.INFO if self._algorithm is None else logging.WARNING
                logger.log(level, "%s is still active and is interrupted", part.name)
            part.interrupt()
        await _wait(active, self._terminate)
        for part in (active := _active(started)):
            logger.error("%s does not end and is killed", part.name)
            self.report.killed.append(part.name)
            part.kill()
        await _wait(active, _LAST_SECONDS)
        # Until here, the node of a retiring runner could be shut down before the time of the others was over.
        for task in self._limits:
            task.cancel()
        for part in started:
            if (
                part.ended.done()
                and (end := part.ended.result()).error is not None
                and part.name not in self.report.killed
            ):
                self.report.crashed.append(_described(part, end.error))


def _described(part: Part, error: BaseException) -> str:
    return f"{part.name}: {type(error).__name__}: {error}"


def _is_refusal(error: BaseException | None) -> bool:
    return isinstance(error, StoreError) and not error.retryable


def ungrouped(error: BaseException) -> BaseException:
    """Return the first error of a group that contains only `RunnersGone` and errors of the store.

    Any other error is returned unchanged.
    """
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        if group.split((RunnersGone, StoreError))[1] is not None:
            return group
        error = group.exceptions[0]
    return error


def _active(parts: Iterable[Part]) -> list[Part]:
    return [part for part in parts if not part.ended.done()]


async def _wait(parts: Iterable[Part], seconds: float) -> None:
    if waiting := {part.ended for part in parts if not part.ended.done()}:
        await asyncio.wait(waiting, timeout=seconds)


async def settle(store: Store, seconds: float) -> None:
    """Wait until no attempt is active, for at most `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        while (remaining := deadline - asyncio.get_running_loop().time()) > 0 and (
            at_work := await _at_work(store, None)
        ):
            await store.wait_for_rollouts([rollout.rollout_id for rollout in at_work], timeout=remaining)
    except StoreError as error:
        logger.warning("active attempts cannot be read: %s", error)


async def close_open(store: Store, workers: AbstractSet[str] | None = None) -> list[str]:
    """Close active attempts as failed, and return the ids of their rollouts.

    Args:
        store: the store of the attempts.
        workers: the names of the workers whose attempts are closed; None for all workers.
    """
    closed: list[str] = []
    try:
        async with asyncio.timeout(_CLOSING_SECONDS):
            for rollout in await _at_work(store, workers):
                await store.update_attempt(
                    rollout.rollout_id,
                    rollout.attempt.attempt_id,
                    status="failed",
                    metadata={**(rollout.attempt.metadata or {}), "reason": "interrupted"},
                    error=AttemptError(type="interrupted", message="the training ended while the attempt was at work"),
                )
                closed.append(rollout.rollout_id)
    except (StoreError, TimeoutError) as error:
        logger.error("attempts may be left open: %s", error)
    return closed


async def _at_work(store: Store, workers: AbstractSet[str] | None) -> list[AttemptedRollout]:
    return [
        rollout
        for rollout in await store.query_rollouts(status_in=AT_WORK)
        if isinstance(rollout, AttemptedRollout)
        and rollout.attempt.status in AT_WORK
        and (workers is None or rollout.attempt.worker_id in workers)
    ]
