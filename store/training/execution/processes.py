"""Parts of a training that run in separate processes: the algorithm, or a runner.

The processes are spawned, never forked, and end when their parent dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Generator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, Literal

from store.errors import Incompatible, StoreError
from store.interface.store import Store
from store.runtime.urls import without_passwords
from store.training.execution.algorithm_store import AlgorithmStore
from store.training.execution.parts import End, Part
from store.training.execution.pickling import unpack
from store.training.running.stop_event import StopEvent

Side = Literal["algorithm", "runner"]

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130

_STOP: Final = "stop"
_DRAIN: Final = "drain"
_INTERRUPT: Final = "interrupt"
# If the parent of a process died, the process has probably lost its store too. So its work gets little time to finish.
_ORPHAN_GRACE_SECONDS: Final = 5.0
_ORPHAN_SECONDS: Final = 10.0

# Forking would copy locks that are held by threads of a store, a server or a library, so processes are spawned.
_CONTEXT = multiprocessing.get_context("spawn")


class ProcessFailed(RuntimeError):
    """A process ended with an error; the message contains its traceback."""


@dataclass(frozen=True, slots=True)
class ProcessAssignment:
    """Arguments of a process: the side of the training that the process runs, and the store that it uses."""

    side: Side
    work: bytes
    """The function of the side, pickled by `pack`."""
    worker_id: int
    store: bytes
    """The URL of the store, or a store that opens itself again when it is unpickled; pickled by `pack`."""
    store_id: str
    """The id that the store must have; empty if it is unknown."""
    grace: float | None = None
    """For a runner that drains at SIGTERM, the maximum number of seconds for which its attempts may continue.

    None: SIGTERM interrupts the work at once.
    """


class ProcessPart(Part):
    """The algorithm or one runner in a separate process.

    Args:
        name: the name in messages.
        assignment: the arguments of the process.
    """

    def __init__(self, name: str, assignment: ProcessAssignment) -> None:
        super().__init__(name)
        self._assignment = assignment
        self._connection: Connection | None = None
        self._process: BaseProcess | None = None
        self._was_killed = False

    @property
    def pid(self) -> int | None:
        """The process id; None before the start."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        self._connection, child_connection = _CONTEXT.Pipe()
        # The process is not a daemon, because a daemon process must not start children, and an agent may start some.
        self._process = _CONTEXT.Process(
            target=run_assignment, args=(self._assignment, child_connection), name=self.name, daemon=False
        )
        with _sigint_blocked():
            self._process.start()
        child_connection.close()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._exited)

    def _exited(self) -> None:
        process, connection = self._process, self._connection
        assert process is not None  # started
        assert connection is not None  # started
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        code, message = process.exitcode, None
        with contextlib.suppress(EOFError, OSError):
            message = connection.recv() if connection.poll() else None
        connection.close()
        if code == OK:
            self._end(End())
        elif code == INTERRUPTED:
            self._end(End(was_interrupted=True))
        elif isinstance(message, StoreError):
            self._end(End(message))
        elif code is not None and code < 0:
            text = f"{self.name} (process {process.pid}) was killed by {signal.Signals(-code).name}"
            self._end(End(ProcessFailed(text), was_killed=True))
        else:
            self._end(End(ProcessFailed(message or f"{self.name} (process {process.pid}) ended with code {code}")))

    def stop(self) -> None:
        self._send(_STOP)

    def drain(self) -> None:
        self._send(_DRAIN)

    def interrupt(self) -> None:
        self._send(_INTERRUPT)

    def _send(self, request: str) -> None:
        if self._connection is not None and not self.ended.done():
            with contextlib.suppress(OSError):
                self._connection.send(request)

    def kill(self) -> None:
        if self._process is not None and not self.ended.done():
            self._process.kill()


@contextlib.contextmanager
def _sigint_blocked() -> Generator[None]:
    """Hold back SIGINT while the `with` body runs.

    A process that is started in the body holds back SIGINT until it has installed its own handler.
    """
    # Starting the resource tracker unblocks signals, so it is started first.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_assignment(assignment: ProcessAssignment, connection: Connection) -> None:
    """Run the assigned side in this process. Exit with status 0, with 1 after an error, or with 130 if interrupted."""
    # Ctrl+C reaches every process of the terminal, but the parent decides how to end, so this process ignores it.
    # SIG_IGN is not used, because programs that the agent starts would inherit it.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        asyncio.run(_run(assignment, connection))
    except asyncio.CancelledError:
        sys.exit(INTERRUPTED)
    except StoreError as error:
        if error.retryable:
            traceback.print_exc()
        # The parent reports the error. The traceback of a refusal is not printed, because it contains no user code.
        with contextlib.suppress(OSError):
            connection.send(error)
        sys.exit(FAILED)
    except BaseException as error:  # noqa: BLE001 - sent to the parent
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send("".join(traceback.format_exception(error)).strip())
        sys.exit(FAILED)


async def _run(assignment: ProcessAssignment, connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    task: asyncio.Task[Any] | None = asyncio.current_task()
    assert task is not None  # coroutines run in a task
    stopped = StopEvent()
    termination = Termination(task, stopped, assignment.grace)
    loop.add_signal_handler(signal.SIGTERM, termination.request)

    def interrupt() -> None:
        stopped.set()
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the work has ended
            loop.call_soon_threadsafe(termination.cancel)

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while (message := connection.recv()) != _INTERRUPT:
                if message == _STOP:
                    stopped.set()
                elif message == _DRAIN:
                    stopped.drain()
            interrupt()
            while connection.recv():
                continue
        # The parent has died.
        stopped.set() if assignment.grace is None else stopped.drain()
        threading.Event().wait(_ORPHAN_GRACE_SECONDS)
        interrupt()
        threading.Event().wait(_ORPHAN_SECONDS)
        os._exit(FAILED)

    threading.Thread(target=listen, name="parent messages", daemon=True).start()
    work, target = unpack(assignment.work), unpack(assignment.store)
    async with opened(target, assignment.store_id) as store:
        await run_side(assignment.side, work, store, assignment.worker_id, stopped)


async def run_side(side: Side, work: Any, store: Store, worker_id: int, stopped: threading.Event) -> None:
    """Run a side of a training in this process.

    Args:
        side: the side.
        work: the function of the side.
        store: the store that the side uses.
        worker_id: the number of the worker, for runners.
        stopped: event that is set to stop the side.
    """
    if side == "algorithm":
        await work(AlgorithmStore(store, stopped), stopped)
    else:
        await work(store, worker_id, stopped)


class Termination:
    """Reaction of the process of one part to SIGTERM. It cancels the task of the part at most once.

    The process of a runner receives SIGTERM directly if its process group, or only this process, is ended.

    Args:
        task: the task that is cancelled. It is cancelled only once, because a second cancellation would interrupt the
            reports of the attempts.
        stopped: the stop signal of the part.
        grace: see `ProcessAssignment`.
    """

    def __init__(self, task: asyncio.Task[Any], stopped: StopEvent, grace: float | None) -> None:
        self._task = task
        self._stopped = stopped
        self._grace = grace
        self._is_requested = False
        self._is_cancelled = False

    def request(self) -> None:
        """Begin to drain. Cancel the task at the second request, or if the part does not drain."""
        if self._grace is None or self._is_requested:
            self.cancel()
            return
        self._is_requested = True
        self._stopped.drain()
        self._task.get_loop().call_later(self._grace, self.cancel)

    def cancel(self) -> None:
        """Cancel the task, unless it was cancelled before."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()


@contextlib.asynccontextmanager
async def opened(target: str | Store, store_id: str = "") -> AsyncGenerator[Store]:
    """Open the store at a URL, and close the store afterwards. If `target` is a store, yield `target` unchanged.

    Raises:
        Incompatible: the store at the URL has another id.
    """
    if isinstance(target, Store):
        yield target
        return
    # Only one of the two modules is needed, and each takes a fraction of a second to import, so the imports are here.
    if target.startswith("http"):
        from store.client import HTTPStore

        opening: Awaitable[Store] = HTTPStore.open(target)
    else:
        from store.opening import open_store

        opening = open_store(target, create=False)
    async with await opening as store:
        actual_id = str(getattr(store, "store_id", ""))
        if store_id and actual_id and actual_id != store_id:
            raise Incompatible(
                f"the store at {without_passwords(target)} has the id {actual_id}, but this training's store has "
                f"{store_id}",
                "another training uses the port; give each training its own port",
            )
        yield store
