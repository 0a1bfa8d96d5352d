"""Actor on a node of a Ray cluster that runs one side of a training: the algorithm, or one runner."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import socket
import sys
import threading
import traceback
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple

from store.errors import Incompatible, StoreError, Unavailable
from store.interface.store import Store
from store.runtime.process import name_workers, this_process
from store.runtime.urls import without_passwords
from store.training.execution.pickling import unpack
from store.training.execution.processes import Side, opened, run_side
from store.training.running.stop_event import StopEvent

VERSION: Final[str] = sys.modules[__name__.partition(".")[0]].__version__
"""The version of this package. The package is not imported, because it imports this module."""


class ActorEnd(NamedTuple):
    """Result of the work of an actor."""

    kind: Literal["ok", "interrupted", "failed"]
    error: StoreError | str = ""
    """The error of the store, or the traceback of another error."""
    has_started: bool = True
    """Whether the side was started: its code was loaded, and its store was opened."""


class SideActor:
    """Actor that runs one side of a training in a process of its own.

    Its methods run in threads, so that `stop` and `interrupt` return while `run` works. Ray would run all methods in
    one event loop if one of them was a coroutine function.

    Args:
        part: the name of the side in messages.
    """

    def __init__(self, part: str) -> None:
        context = import_module("ray").get_runtime_context()
        self._part = part
        self._node_id = context.get_node_id()
        host, node, actor = socket.gethostname(), self._node_id[:8], context.get_actor_id()[:8]
        self._place = f"{host}, node {node}, actor {actor}"
        self._worker_prefix = f"{host}-{node}-{actor}"
        name_workers(self._worker_prefix)
        self._work = SideWork(f"{part} on {self._place}")

    def __repr__(self) -> str:
        """Return the prefix of this actor's lines in the output of the driver."""
        return f"{self._part} on {self._place}"

    def introduce(self) -> dict[str, Any]:
        """Return the names and versions of this actor. Every version of Rollbook can read them."""
        return {
            "place": self._place,
            "node_id": self._node_id,
            "worker_prefix": self._worker_prefix,
            "process": this_process(),
            "rollbook": VERSION,
            "python": platform.python_version(),
        }

    def run(self, work: bytes, side: Side, worker_id: int, target: str | bytes, store_id: str) -> ActorEnd:
        """Run the side until it has ended.

        Args:
            work: the function of the side, pickled.
            side: the side.
            worker_id: the number of the worker, for runners.
            target: the URL of the store, or a pickled store that opens itself again.
            store_id: the id that the store must have; empty if it is unknown.
        """
        try:
            asyncio.run(self._work.run(work, side, worker_id, target, store_id))
        except asyncio.CancelledError:
            return ActorEnd("interrupted")
        except StoreError as error:
            return ActorEnd("failed", error, self._work.has_started)
        except BaseException as error:  # noqa: BLE001 - sent to the driver
            traceback.print_exc()
            text = "".join(traceback.format_exception(error)).strip()
            return ActorEnd("failed", text, self._work.has_started)
        return ActorEnd("ok")

    def stop(self) -> None:
        """Request that the side ends after its current work."""
        self._work.stopped.set()

    def drain(self) -> None:
        """Stop a runner after its current work. If it is interrupted later, its rollouts return to the queue."""
        self._work.stopped.drain()

    def interrupt(self) -> None:
        """Request that the side cancels its current work and ends."""
        self._work.interrupt()


class SideWork:
    """Work of one side in this process.

    Args:
        name: the name of the side and its place, in messages.
    """

    def __init__(self, name: str) -> None:
        self.stopped = StopEvent()
        """Event that stops the side after its current work."""
        self.has_started = False
        """Whether the code was loaded, and the store was opened."""
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._was_interrupted = False

    async def run(self, work: bytes, side: Side, worker_id: int, target: str | bytes, store_id: str) -> None:
        """Run the side; the arguments are those of `SideActor.run`.

        Raises:
            Incompatible: modules of the side are missing here, or the store has another id.
            Unavailable: the store cannot be reached.
            CancelledError: the side was interrupted.
            Exception: an exception of the side.
        """
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._was_interrupted:
                return
        try:
            function = self._loaded(work)
            place = target if isinstance(target, str) else unpack(target)
            async with contextlib.AsyncExitStack() as stack:
                try:
                    store = await stack.enter_async_context(opened(place, store_id))
                except StoreError as error:
                    raise self._unreachable(place, error) from error
                self.has_started = True
                await run_side(side, function, store, worker_id, self.stopped)
        finally:
            with self._lock:
                self._loop = None

    def interrupt(self) -> None:
        """Request that the side cancels its current work and ends."""
        self.stopped.set()
        with self._lock:
            self._was_interrupted = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _loaded(self, work: bytes) -> Any:
        try:
            return unpack(work)
        except (ImportError, AttributeError) as error:
            raise Incompatible(
                f"{self._name} cannot load its code: {error}",
                "install its modules on every node, or send them with runtime_env={'working_dir': '.'}",
            ) from error

    def _unreachable(self, place: str | Store, error: StoreError) -> StoreError:
        if not error.retryable:
            return error
        url = without_passwords(place if isinstance(place, str) else str(getattr(place, "url", "")))
        return Unavailable(f"{self._name} cannot reach the store at {url}: {error}")
