"""Several processes that serve one port: who starts them, starts them again, and ends them together.

The parent binds the port and never accepts; each worker inherits the listening socket. With a socket of its own in each
worker (SO_REUSEPORT) the kernel would hand out connections evenly, but those that wait in the queue of a worker that
dies would be lost with it, and a port that is taken would show only in the workers.
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
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from store.errors import StoreError

logger = logging.getLogger("store.server.workers")

STOP_SECONDS: Final = 30.0
"""How long workers may take to end in peace."""
# A worker that was ready comes back at once, one that never was after longer and longer pauses.
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 30.0
# With no worker left that serves, so many failures in a row are an answer.
_TRIES: Final = 5

_READY, _STOP, _STOP_NOW = "ready", "stop", "stop now"


class WorkersFailed(RuntimeError, ChildProcessError):
    """Workers ended that should not have, and said no more of it than an exit code."""


@dataclass(slots=True)
class Seat:
    """What a worker is given by its parent; it travels by pickle."""

    number: int
    """From 0; a worker that takes the place of another has the same."""
    count: int
    listener: socket.socket
    control: Connection
    directory: Path
    """Where the workers of one parent meet, readable by their user alone."""

    def ready(self) -> None:
        """Tell the parent that requests are answered."""
        with suppress(OSError):
            self.control.send(_READY)

    def attend(self, stop: Callable[[], None], stop_now: Callable[[], None]) -> None:
        """Hear of the end: one of these is called in this loop when the parent says so, `stop` also when it is gone."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            try:
                told = self.control.recv()
            except (EOFError, OSError):
                loop.remove_reader(self.control.fileno())
                told = _STOP
            (stop_now if told == _STOP_NOW else stop)()

        loop.add_reader(self.control.fileno(), hear)
        # Whoever signals the whole group reaches the parent too, which asks a second time if that is wanted.
        loop.add_signal_handler(signal.SIGTERM, stop)


Work = Callable[[Seat], None]


def _run(work: Work, seat: Seat) -> None:
    """What a worker's process does."""
    try:
        work(seat)
    except Exception as error:
        with suppress(OSError):
            seat.control.send(_portable(error))
        # The parent tells what a user can mend; of all else the place is wanted.
        if not isinstance(error, StoreError):
            logger.exception("worker %d failed", seat.number)
        raise SystemExit(1) from None


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what was just made here
    except Exception:  # noqa: BLE001 - an error of any library, which may fail in any way
        return RuntimeError(str(error) or type(error).__name__)
    return error


@dataclass(slots=True)
class _Place:
    """One of the workers, whichever process it is at the moment."""

    number: int
    process: SpawnProcess | None = None
    control: Connection | None = None
    is_ready: bool = False
    failures: int = 0
    """How often in a row it ended before it was ready."""
    error: Exception | None = None
    """What it said of the last time."""
    not_before: float = 0.0

    def tell(self, word: str) -> None:
        if self.control is not None:
            with suppress(OSError):
                self.control.send(word)

    def ended(self) -> None:
        """Take note of the end of its process."""
        assert self.process is not None  # it was waited for
        self.hear()
        self.failures = 0 if self.is_ready else self.failures + 1
        pause = min(_FIRST_PAUSE * 2 ** max(self.failures - 1, 0), _LONGEST_PAUSE)
        self.not_before = time.monotonic() + pause
        if not self.is_ready and self.error is None:
            self.error = WorkersFailed(f"worker {self.number} ended with exit code {self.process.exitcode}")
        why = "" if self.error is None else f": {self.error}"
        logger.error("worker %d (process %s) ended with %s%s", *self._named, self.process.exitcode, why)
        self.leave()

    @property
    def _named(self) -> tuple[int, int | None]:
        return self.number, None if self.process is None else self.process.pid

    def hear(self) -> None:
        """Take what the worker said."""
        try:
            while self.control is not None and self.control.poll():
                told: Any = self.control.recv()
                if told == _READY:
                    self.is_ready, self.error = True, None
                else:
                    self.error = told
        except (EOFError, OSError):
            # Its end is told by its process; until then there is nothing more to hear.
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
    """A number of processes that do the same work on one listening socket.

    Args:
        work: what each of them does, from its seat until it is told to stop; found by its name in a new process.
        count: how many.
        listener: their socket; closed when they are told to stop.
        on_ready: called once, when all of them are ready.
    """

    work: Work
    count: int
    listener: socket.socket
    on_ready: Callable[[], None]
    _places: list[_Place] = field(default_factory=list[_Place])
    _asked: int = 0
    """How often a signal asked for the end."""
    _told: int = 0
    _was_ready: bool = False
    _deadline: float = float("inf")
    _unclean: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        """Keep them alive until Ctrl+C or SIGTERM, and end them in peace; a second signal ends them at once.

        Raises:
            Exception: what a worker could not begin for; the others are ended then.
            WorkersFailed: it did not say why, or did not end as it was told to.
        """
        self._places = [_Place(number) for number in range(self.count)]
        # Else it would start with the first worker, and let through the signals that are held back there.
        resource_tracker.ensure_running()
        directory = Path(tempfile.mkdtemp(prefix="rollbook-workers-"))
        try:
            with self._signals() as heard:
                self._attend(heard, directory)
        finally:
            self._end_those_left()
            shutil.rmtree(directory, ignore_errors=True)

    def _attend(self, heard: int, directory: Path) -> None:
        refusal: Exception | None = None
        while True:
            now = time.monotonic()
            if not self._asked:
                self._start_missing(now, directory)
            elif self._told < self._asked:
                self._tell_to_stop(now)
            alive = [place for place in self._places if place.process is not None]
            if self._asked and not alive:
                break
            if now > self._deadline:
                raise WorkersFailed(f"{len(alive)} workers did not end within {STOP_SECONDS:g} s")
            self._hear(heard, alive, now)
            if not self._asked and (refusal := self._refusal()) is not None:
                self._asked = 1
        if refusal is not None:
            raise refusal
        if self._unclean:
            raise WorkersFailed("; ".join(self._unclean))

    def _start_missing(self, now: float, directory: Path) -> None:
        for place in self._places:
            if place.process is None and now >= place.not_before:
                self._start(place, directory)

    def _start(self, place: _Place, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        place.control, theirs = context.Pipe()
        seat = Seat(place.number, self.count, self.listener, theirs, directory)
        place.process = context.Process(target=_run, args=(self.work, seat), name=f"rollbook worker {place.number}")
        # A terminal sends Ctrl+C to all processes of its group; the parent alone decides. What is blocked here stays
        # blocked there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            place.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def _hear(self, heard: int, alive: list[_Place], now: float) -> None:
        controls = [place.control for place in alive if place.control is not None]
        sentinels = {place.process.sentinel: place for place in alive if place.process is not None}
        restarts = [place.not_before for place in self._places if place.process is None and not self._asked]
        until = min([self._deadline, *restarts])
        timeout = None if until == float("inf") else max(until - now, 0.0)
        news = connection.wait([heard, *controls, *sentinels], timeout)
        if heard in news:
            os.read(heard, 64)
        for place in alive:
            if place.control in news:
                place.hear()
        for sentinel, place in sentinels.items():
            if sentinel in news:
                self._ended(place)
        if not self._was_ready and all(place.is_ready for place in self._places):
            self._was_ready = True
            self.on_ready()

    def _ended(self, place: _Place) -> None:
        assert place.process is not None  # its sentinel was heard
        place.process.join()
        if self._asked:
            # Each of them is over, and none comes back.
            if place.process.exitcode:
                self._unclean.append(f"worker {place.number} ended with exit code {place.process.exitcode}")
            place.leave()
        else:
            place.ended()

    def _refusal(self) -> Exception | None:
        """Return why there is no sense in going on; None while there is."""
        if any(place.is_ready for place in self._places) and self._was_ready:
            return None
        tries = _TRIES if self._was_ready else 1
        failed = [place for place in self._places if place.failures >= tries]
        return failed[0].error if failed else None

    def _tell_to_stop(self, now: float) -> None:
        self._told = self._asked
        # The last of the sockets: who connects from now on is refused instead of waiting for nobody.
        self.listener.close()
        self._deadline = min(self._deadline, now + STOP_SECONDS)
        for place in self._places:
            place.tell(_STOP if self._asked == 1 else _STOP_NOW)

    def _end_those_left(self) -> None:
        self.listener.close()
        for place in self._places:
            if place.process is not None:
                place.process.kill()
                place.process.join()
                place.leave()

    @contextmanager
    def _signals(self) -> Generator[int]:
        """Count the signals that ask for the end, and give what becomes readable when one comes."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)

        def ask(*_: object) -> None:
            self._asked += 1
            with suppress(BlockingIOError):
                os.write(writing, b"!")

        before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield reading
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
            os.close(reading)
            os.close(writing)
