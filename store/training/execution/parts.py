"""Parts of the execution of a training: the algorithm, and each runner.

The parts of this module run in this process, as an asyncio task or in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from store.runtime.process import worker_name
from store.training.running.stop_event import StopEvent

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """Result of a part that has ended."""

    error: BaseException | None = None
    """The exception of the part, or a `ProcessFailed` for a part in another process."""
    was_interrupted: bool = False
    """Whether the part was interrupted."""
    was_killed: bool = False
    """Whether the process of the part was killed, or was lost with its machine."""
    is_fatal: bool = False
    """Whether the error ends the training, because the part, and probably every other part, cannot start."""


class Part(ABC):
    """Base class of parts.

    Args:
        name: the name in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        """Completed with an `End` when the part has ended; never with an exception."""

    @property
    def pid(self) -> int | None:
        """The id of the process of the part; None before the start of another process."""
        return os.getpid()

    def worker_name(self, number: int) -> str:
        """Return the name that the part's worker with this number has in the store."""
        return worker_name(number, self.pid)

    @abstractmethod
    def start(self) -> None:
        """Start the work."""

    @abstractmethod
    def stop(self) -> None:
        """Request that the part ends after its current work."""

    def drain(self) -> None:
        """Stop a runner after its current work. If it is interrupted later, its rollouts return to the queue.

        By default, this method calls `stop`, and interrupted attempts fail.
        """
        self.stop()

    @abstractmethod
    def interrupt(self) -> None:
        """Request that the part cancels its current work and ends."""

    @abstractmethod
    def kill(self) -> None:
        """End the part by force, if that is possible."""

    def _end(self, end: End) -> None:
        if not self.ended.done():
            self.ended.set_result(end)


class LocalPart(Part):
    """Part that runs a coroutine in this process.

    Args:
        name: the name in messages.
        work: function that returns the coroutine. It is called in the thread of the coroutine.
        event: event that is set to stop the part.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[None]], event: StopEvent) -> None:
        super().__init__(name)
        self._work = work
        self._event = event
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self._event.set()

    def drain(self) -> None:
        self._event.drain()

    def kill(self) -> None:
        """Call `interrupt`, because neither a task nor a thread can be killed. A thread is left running."""
        self.interrupt()


class TaskPart(LocalPart):
    """Part that runs a coroutine in the current event loop."""

    def start(self) -> None:
        async def run() -> None:
            await self._work()

        def end(task: asyncio.Task[None]) -> None:
            self._end(End(was_interrupted=True) if task.cancelled() else End(task.exception()))

        self._task = asyncio.create_task(run())
        self._task.add_done_callback(end)

    def interrupt(self) -> None:
        self._event.set()
        if self._task is not None:
            self._task.cancel()


class ThreadPart(LocalPart):
    """Part that runs a coroutine in its own daemon thread and event loop."""

    def __init__(self, name: str, work: Callable[[], Awaitable[None]], event: StopEvent) -> None:
        super().__init__(name, work, event)
        self._supervisor_loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._was_interrupted = False

    def start(self) -> None:
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
            end = End()
        except asyncio.CancelledError:
            end = End(was_interrupted=True)
        except BaseException as error:  # noqa: BLE001 - passed to the code that waits for the end
            end = End(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            self._supervisor_loop.call_soon_threadsafe(self._end, end)

    async def _main(self) -> None:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._was_interrupted:
                return
        try:
            await self._work()
        finally:
            with self._lock:
                self._loop = None

    def interrupt(self) -> None:
        self._event.set()
        with self._lock:
            self._was_interrupted = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
