"""Worker processes that serve one port: the parent starts, restarts and ends them. See decision 19.

The parent binds the port and never accepts connections. Each worker inherits the listening socket. A separate socket in
each worker (SO_REUSEPORT) would let the kernel distribute connections evenly. But connections in the queue of a worker
that dies would be lost, and only the workers would notice a port that is in use.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from store.errors import StoreError

logger = logging.getLogger("store.server.workers")

STOP_SECONDS: Final = 30.0
"""The time limit for workers to stop."""
# Forking would copy what the imported libraries hold, such as locks of their threads, so processes are spawned.
_CONTEXT = multiprocessing.get_context("spawn")
# A worker that was ready is restarted after the first pause. The pause doubles each time a worker ends before it was
# ready.
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 30.0
# After all workers have been ready once, this many consecutive failures of one worker end the server if no worker is
# ready. Before that, the first failure ends the server.
_TRIES: Final = 5

_READY, _STOP, _STOP_NOW = "ready", "stop", "stop now"


class WorkersFailed(RuntimeError, ChildProcessError):
    """Workers ended unexpectedly, and only their exit codes are known."""


@dataclass(slots=True)
class Seat:
    """The arguments that the parent passes to a worker, pickled."""

    number: int
    """The number of the worker, from 0. A worker that replaces another has the same number."""
    count: int
    listener: socket.socket
    control: Connection
    directory: Path
    """The directory of the workers' sockets. Only the user of the workers can read this directory."""

    def ready(self) -> None:
        """Report to the parent that this worker is ready for requests."""
        with suppress(OSError):
            self.control.send(_READY)

    def attend(self, stop: Callable[[], None], stop_now: Callable[[], None]) -> None:
        """Call one of these functions in the current event loop when the parent requests a stop.

        Call `stop` also when the parent has ended.
        """
        loop = asyncio.get_running_loop()

        def receive() -> None:
            try:
                word = self.control.recv()
            except (EOFError, OSError):
                loop.remove_reader(self.control.fileno())
                word = _STOP
            (stop_now if word == _STOP_NOW else stop)()

        loop.add_reader(self.control.fileno(), receive)
        # A signal to the whole process group reaches the parent as well, and the parent forwards a second signal as
        # `stop_now`.
        loop.add_signal_handler(signal.SIGTERM, stop)


Work = Callable[[Seat], None]


def _run(work: Work, seat: Seat) -> None:
    """Run a worker in its process."""
    try:
        work(seat)
    except Exception as error:
        with suppress(OSError):
            seat.control.send(_portable(error))
        # The parent reports errors that a user can fix. All other errors need a traceback.
        if not isinstance(error, StoreError):
            logger.exception("worker %d failed", seat.number)
        raise SystemExit(1) from None


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled on the same line
    except Exception:  # noqa: BLE001 - an error of any library, which may fail in any way
        return RuntimeError(str(error) or type(error).__name__)
    return error


@dataclass(slots=True)
class _Slot:
    """The slot of one worker, which several processes may fill one after another."""

    number: int
    process: BaseProcess | None = None
    control: Connection | None = None
    is_ready: bool = False
    failures: int = 0
    """The number of consecutive processes that ended before they were ready."""
    error: Exception | None = None
    """The last error of the worker."""
    not_before: float = 0.0

    def send(self, word: str) -> None:
        if self.control is not None:
            with suppress(OSError):
                self.control.send(word)

    def ended(self) -> None:
        """Record the end of the worker's process."""
        assert self.process is not None  # the caller has joined it
        self.receive()
        self.failures = 0 if self.is_ready else self.failures + 1
        pause = min(_FIRST_PAUSE * 2 ** max(self.failures - 1, 0), _LONGEST_PAUSE)
        self.not_before = time.monotonic() + pause
        if not self.is_ready and self.error is None:
            self.error = WorkersFailed(f"worker {self.number} ended with exit code {self.process.exitcode}")
        why = "" if self.error is None else f": {self.error}"
        logger.error(
            "worker %d (process %s) ended with %s%s", self.number, self.process.pid, self.process.exitcode, why
        )
        self.leave()

    def receive(self) -> None:
        """Receive the messages of the worker."""
        try:
            while self.control is not None and self.control.poll():
                message: Any = self.control.recv()
                if message == _READY:
                    self.is_ready, self.error = True, None
                else:
                    self.error = message
        except (EOFError, OSError):
            # There are no more messages. The end of the process is noticed separately.
            self._close_control()

    def leave(self) -> None:
        self._close_control()
        if self.process is not None:
            self.process.close()
        self.process, self.is_ready = None, False

    def _close_control(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None


@dataclass(slots=True)
class Workers:
    """Several processes that do the same work on one listening socket.

    Args:
        work: the function that each process runs until it is stopped. A new process imports it by its name.
        count: the number of processes.
        listener: the socket of the processes; it is closed when the processes are stopped.
        on_ready: called once, when all processes are ready.
    """

    work: Work
    count: int
    listener: socket.socket
    on_ready: Callable[[], None]
    _slots: list[_Slot] = field(default_factory=list[_Slot])
    _stop_requests: int = 0
    """The number of signals that requested a stop."""
    _stops_sent: int = 0
    _was_ready: bool = False
    _deadline: float = float("inf")
    _unclean: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        """Keep the processes running until Ctrl+C or SIGTERM, then stop them. A second signal stops them at once.

        Raises:
            Exception: the error that prevented a worker from starting. The other workers are ended.
            WorkersFailed: a worker ended without an error, or did not stop.
        """
        self._slots = [_Slot(number) for number in range(self.count)]
        # The resource tracker would otherwise start with the first worker, and unblock the signals that `_start`
        # blocks.
        resource_tracker.ensure_running()
        directory = Path(tempfile.mkdtemp(prefix="rollbook-workers-"))
        try:
            with self._signals() as wakeup:
                self._attend(wakeup, directory)
        finally:
            self.listener.close()
            for slot in self._slots:
                if slot.process is not None:
                    slot.process.kill()
                    slot.process.join()
                    slot.leave()
            shutil.rmtree(directory, ignore_errors=True)

    def _attend(self, wakeup: int, directory: Path) -> None:
        refusal: Exception | None = None
        while True:
            now = time.monotonic()
            if not self._stop_requests:
                self._start_missing(now, directory)
            elif self._stops_sent < self._stop_requests:
                self._send_stop(now)
            alive = [slot for slot in self._slots if slot.process is not None]
            if self._stop_requests and not alive:
                break
            if now > self._deadline:
                raise WorkersFailed(f"{len(alive)} workers did not end within {STOP_SECONDS:g} s")
            self._wait(wakeup, alive, now)
            if not self._stop_requests and (refusal := self._refusal()) is not None:
                self._stop_requests = 1
        if refusal is not None:
            raise refusal
        if self._unclean:
            raise WorkersFailed("; ".join(self._unclean))

    def _start_missing(self, now: float, directory: Path) -> None:
        for slot in self._slots:
            if slot.process is None and now >= slot.not_before:
                self._start(slot, directory)

    def _start(self, slot: _Slot, directory: Path) -> None:
        slot.control, worker_control = _CONTEXT.Pipe()
        seat = Seat(slot.number, self.count, self.listener, worker_control, directory)
        slot.process = _CONTEXT.Process(target=_run, args=(self.work, seat), name=f"rollbook worker {slot.number}")
        # A terminal sends Ctrl+C to all processes of its group, but only the parent must react. A new process inherits
        # the blocked signals.
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            slot.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
            worker_control.close()

    def _wait(self, wakeup: int, alive: list[_Slot], now: float) -> None:
        controls = [slot.control for slot in alive if slot.control is not None]
        sentinels = {slot.process.sentinel: slot for slot in alive if slot.process is not None}
        restarts = [slot.not_before for slot in self._slots if slot.process is None and not self._stop_requests]
        until = min([self._deadline, *restarts])
        timeout = None if until == float("inf") else max(until - now, 0.0)
        ready = connection.wait([wakeup, *controls, *sentinels], timeout)
        if wakeup in ready:
            os.read(wakeup, 64)
        for slot in alive:
            if slot.control in ready:
                slot.receive()
        for sentinel, slot in sentinels.items():
            if sentinel in ready:
                assert slot.process is not None  # the sentinel of the process is ready
                slot.process.join()
                if self._stop_requests:
                    # The server is stopping, so the worker is not restarted.
                    if slot.process.exitcode:
                        self._unclean.append(f"worker {slot.number} ended with exit code {slot.process.exitcode}")
                    slot.leave()
                else:
                    slot.ended()
        if not self._was_ready and all(slot.is_ready for slot in self._slots):
            self._was_ready = True
            self.on_ready()

    def _refusal(self) -> Exception | None:
        """Return the error that prevents the server from continuing, or None."""
        if any(slot.is_ready for slot in self._slots) and self._was_ready:
            return None
        tries = _TRIES if self._was_ready else 1
        failed = [slot for slot in self._slots if slot.failures >= tries]
        return failed[0].error if failed else None

    def _send_stop(self, now: float) -> None:
        self._stops_sent = self._stop_requests
        # The parent also closes its copy of the socket. Otherwise new connections would wait in the socket's queue
        # instead of being refused.
        self.listener.close()
        self._deadline = min(self._deadline, now + STOP_SECONDS)
        for slot in self._slots:
            slot.send(_STOP if self._stop_requests == 1 else _STOP_NOW)

    @contextmanager
    def _signals(self) -> Generator[int]:
        """Count the signals that request a stop, and yield a file descriptor that becomes readable with each signal."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)

        def request_stop(*_: object) -> None:
            self._stop_requests += 1
            with suppress(BlockingIOError):
                os.write(writing, b"!")

        before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield reading
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reading)
            os.close(writing)
