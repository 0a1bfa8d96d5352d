"""Parts that are processes of their own, started afresh and never forked; none outlives the one that started it."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Final, Literal

from store.errors import Incompatible
from store.interface.store import Store
from store.training.execution.parts import End, Part
from store.training.execution.sending import unpack

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130

_STOP: Final = "stop"
_INTERRUPT: Final = "interrupt"
# A process whose parent has died has most likely lost its store too.
_ORPHAN_GRACE_SECONDS: Final = 5.0
_ORPHAN_SECONDS: Final = 10.0

# Forking would copy the locks that threads of a store, a server or a library hold at that moment.
_CONTEXT = multiprocessing.get_context("spawn")


class ProcessFailed(RuntimeError):
    """A process ended with an error; the text is what it said, with its traceback."""


@dataclass(frozen=True, slots=True)
class ProcessAssignment:
    """What a process is told when it starts."""

    side: Literal["algorithm", "runner"]
    work: bytes
    """The side's function, packed."""
    worker_id: int
    store: bytes
    """Where the store is, packed: a URL, or a store that opens itself again."""
    store_id: str
    """Of the store that must be there; empty where that is not known."""


class ProcessPart(Part):
    """One side of a training in a process of its own.

    Args:
        name: what it is called.
        seat: what it is told.
    """

    def __init__(self, name: str, seat: ProcessAssignment) -> None:
        super().__init__(name)
        self._seat = seat
        self._ours: Connection | None = None
        self._process: BaseProcess | None = None
        self._was_killed = False

    @property
    def pid(self) -> int | None:
        """Its process id, once it was started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        self._ours, theirs = _CONTEXT.Pipe()
        # Not a daemon: those may not have children, and an agent may want some.
        self._process = _CONTEXT.Process(target=run_seat, args=(self._seat, theirs), name=self.name, daemon=False)
        with _deaf_to_ctrl_c():
            self._process.start()
        theirs.close()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._left)

    def _left(self) -> None:
        process, ours = self._process, self._ours
        assert process is not None  # started
        assert ours is not None  # started
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        code, said = process.exitcode, None
        with contextlib.suppress(EOFError, OSError):
            said = ours.recv() if ours.poll() else None
        ours.close()
        if code == OK:
            self._end(End())
        elif code == INTERRUPTED:
            self._end(End(was_interrupted=True))
        elif code is not None and code < 0:
            how = f"{self.name} (process {process.pid}) was killed by {signal.Signals(-code).name}"
            self._end(End(ProcessFailed(how), signal=-code))
        else:
            self._end(End(ProcessFailed(said or f"{self.name} (process {process.pid}) ended with code {code}")))

    def stop(self) -> None:
        self._say(_STOP)

    def interrupt(self) -> None:
        self._say(_INTERRUPT)

    def _say(self, what: str) -> None:
        if self._ours is not None and not self.ended.done():
            with contextlib.suppress(OSError):
                self._ours.send(what)

    def kill(self) -> None:
        if self._process is not None and not self.ended.done():
            self._process.kill()


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Generator[None]:
    """Start processes inside: Ctrl+C, which reaches them too, waits until they can tell what it is to them."""
    # When it is started, it lets signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in the process --------------------------------------------------------------------------------------------------


def run_seat(seat: ProcessAssignment, connection: Connection) -> None:
    """Be a process of a training, and exit with 0, 1 after an error, or 130 when interrupted."""
    # Ctrl+C reaches every process of the terminal; the one that started this decides. Not SIG_IGN, which programs that
    # the agent starts would inherit.
    signal.signal(signal.SIGINT, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        asyncio.run(_run(seat, connection))
    except asyncio.CancelledError:
        sys.exit(INTERRUPTED)
    except BaseException as error:  # noqa: BLE001 - told to the parent
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send("".join(traceback.format_exception(error)).strip())
        sys.exit(FAILED)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


async def _run(seat: ProcessAssignment, connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    task: asyncio.Task[Any] | None = asyncio.current_task()
    assert task is not None  # in a coroutine
    stopped = threading.Event()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)

    def interrupt() -> None:
        stopped.set()
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
            loop.call_soon_threadsafe(task.cancel)

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while (said := connection.recv()) != _INTERRUPT:
                if said == _STOP:
                    stopped.set()
            interrupt()
            while connection.recv():
                continue
        # Whoever started this has died.
        stopped.set()
        threading.Event().wait(_ORPHAN_GRACE_SECONDS)
        interrupt()
        threading.Event().wait(_ORPHAN_SECONDS)
        os._exit(FAILED)

    threading.Thread(target=listen, name="told by the parent", daemon=True).start()
    work, place = unpack(seat.work), unpack(seat.store)
    async with opened(place, seat.store_id) as store:
        await (work(store, stopped) if seat.side == "algorithm" else work(store, seat.worker_id, stopped))


@contextlib.asynccontextmanager
async def opened(place: str | Store, store_id: str = "") -> AsyncGenerator[Store]:
    """Open the store at a URL and close it afterwards; a store is given as it is.

    Raises:
        Incompatible: another store than that of this id is there.
    """
    if isinstance(place, Store):
        yield place
        return
    async with await _open(place) as store:
        there = str(getattr(store, "store_id", ""))
        if store_id and there and there != store_id:
            raise Incompatible(
                f"the store at {place} is {there}, and this training's is {store_id}",
                "another training has the port: give each its own",
            )
        yield store


async def _open(url: str) -> Store:
    # Each brings what takes a good part of a second to import, and never both are needed.
    if url.startswith("http"):
        from store.client import HTTPStore

        return await HTTPStore.open(url)
    from store.opening import open_store

    return await open_store(url, create=False)
