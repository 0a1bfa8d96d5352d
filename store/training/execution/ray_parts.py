"""Parts of a training that run as actors of a Ray cluster. See decision 104."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from store.errors import Incompatible, Invalid, StoreError
from store.training.execution.parts import End, Part
from store.training.execution.pickling import pack, reduced
from store.training.execution.processes import ProcessFailed, Side
from store.training.execution.ray_actor import VERSION, ActorEnd
from store.training.execution.ray_cluster import Cluster, Demand

logger = logging.getLogger(__name__)

_WAIT_REPORT_SECONDS: Final = 15.0
"""Seconds after which a part reports that it waits for resources."""


@dataclass(frozen=True, slots=True)
class ActorAssignment:
    """Arguments of an actor: the side of the training that it runs, and the store that it uses."""

    side: Side
    work: Any
    """Ray's reference to the pickled function of the side."""
    worker_id: int
    target: str | bytes
    """The URL of the store, or a pickled store that opens itself again."""
    store_id: str
    """The id that the store must have; empty if it is unknown."""
    demand: Demand


class RayPart(Part):
    """The algorithm or one runner, as an actor.

    Args:
        name: the name in messages.
        assignment: the arguments of the actor.
        cluster: the cluster.
        report_loss: function that is called with the identity of the actor's process after the process was lost.
        predecessor: the lost part that this part replaces, or another part that has started; None if there is neither.
            If the predecessor has started, the training goes on even if this part cannot start.
        first: the part that must have its place before this part starts; None if there is none.
    """

    def __init__(
        self,
        name: str,
        assignment: ActorAssignment,
        cluster: Cluster,
        report_loss: Callable[[Mapping[str, Any]], Awaitable[None]],
        predecessor: RayPart | None = None,
        first: RayPart | None = None,
    ) -> None:
        super().__init__(name)
        self._assignment = assignment
        self._cluster = cluster
        self._report_loss = report_loss
        self.has_started = predecessor is not None and predecessor.has_started
        """Whether the actor of this part, or of a predecessor, has started."""
        self._is_fatal = not self.has_started
        self._first = first
        self.has_place = asyncio.Event()
        """Set when the actor runs on a node, or has ended."""
        self._actor: Any = None
        self._site: Mapping[str, Any] | None = None
        """The result of the actor's `introduce`; None until the actor has started."""
        self._watching: asyncio.Task[None] | None = None
        self._was_stopped = False
        self._was_drained = False
        self._was_killed = False

    @property
    def node_id(self) -> str | None:
        """The id of the actor's node; None before its start."""
        return None if self._site is None else self._site["node_id"]

    @property
    def pid(self) -> int | None:
        """The id of the actor's process; None before its start."""
        return None if self._site is None else self._site["process"]["pid"]

    def worker_name(self, number: int) -> str:
        """Return the name of the worker, which contains the node and the actor; empty before the start."""
        return "" if self._site is None else f"{self._site['worker_prefix']}-{number}"

    def start(self) -> None:
        def end(_watching: asyncio.Task[None]) -> None:
            self.has_place.set()
            # Only a part that was stopped before its actor was created has not ended here.
            self._end(End(was_interrupted=True))

        self._watching = asyncio.create_task(self._watch())
        self._watching.add_done_callback(end)

    async def _watch(self) -> None:
        ray = self._cluster.ray
        end = End(was_interrupted=True)
        try:
            try:
                if self._first is not None:
                    await self._first.has_place.wait()
                self._actor = self._cluster.start_actor(self.name, self._assignment.demand)
                end = await self._run()
            except Exception as error:  # noqa: BLE001 - the error is part of the end
                end = self._failed(error)
                if end.was_killed:
                    await self._report_lost()
            if end.error is None:
                # The actor ends after the functions of `atexit`. This call has no result, so it is not awaited.
                self._actor.__ray_terminate__.remote()
            elif self._actor is not None:
                ray.kill(self._actor)
        except Exception:
            logger.exception("the end of %s could not be reported or carried out", self.name)
        finally:
            self._end(end)

    async def _run(self) -> End:
        site = await self._introduced()
        self.has_place.set()
        if self._was_stopped:
            return End(was_interrupted=True)
        if (site["rollbook"], site["python"]) != (VERSION, platform.python_version()):
            return self._unstarted(
                Incompatible(
                    f"{self.name} ({site['place']}) has Rollbook {site['rollbook']} and Python {site['python']}, but "
                    f"this process has Rollbook {VERSION} and Python {platform.python_version()}",
                    _SAME_VERSIONS,
                )
            )
        self._site = site
        self.has_started = True
        assignment = self._assignment
        result: ActorEnd = await self._actor.run.remote(
            assignment.work, assignment.side, assignment.worker_id, assignment.target, assignment.store_id
        )
        if result.kind != "failed":
            return End(was_interrupted=result.kind == "interrupted")
        error = result.error if isinstance(result.error, StoreError) else ProcessFailed(result.error)
        return End(error) if result.has_started else self._unstarted(error)

    async def _introduced(self) -> Mapping[str, Any]:
        """Return the names and versions of the actor, when it has started."""
        waiting = asyncio.ensure_future(_result(self._actor.introduce.remote()))
        seconds = _WAIT_REPORT_SECONDS
        try:
            while not (await asyncio.wait({waiting}, timeout=seconds))[0]:
                logger.warning(
                    "%s has not started yet; it waits for a node with %s free", self.name, self._assignment.demand
                )
                seconds *= 2
            return waiting.result()
        finally:
            waiting.cancel()

    def _unstarted(self, error: Exception) -> End:
        return End(error, is_fatal=self._is_fatal)

    def _failed(self, error: Exception) -> End:
        """Return the end of a part whose actor was lost, or could not start."""
        is_dead = isinstance(error, self._cluster.ray.exceptions.RayActorError)
        if is_dead and self._was_stopped and self._site is None:
            return End(was_interrupted=True)
        if self._actor is None and isinstance(error, (ValueError, TypeError)):
            return self._unstarted(Invalid("strategy", f"Ray refuses {self.name}: {_last_line(error)}"))
        if self._site is None and (not is_dead or getattr(error, "actor_init_failed", False)):
            return self._unstarted(Incompatible(f"{self.name} cannot start: {_last_line(error)}", _SAME_VERSIONS))
        where = "" if self._site is None else f" ({self._site['place']})"
        return End(ProcessFailed(f"{self.name}{where} was lost: {_cause(error)}"), was_killed=True)

    async def _report_lost(self) -> None:
        # At the end of a training, the attempts of killed actors are closed, not reported.
        if self._site is not None and (self._was_drained or not self._was_killed):
            # An actor that cannot be reached may still run.
            self._cluster.ray.kill(self._actor)
            await self._report_loss(self._site["process"])

    def stop(self) -> None:
        self._request("stop")

    def drain(self) -> None:
        self._was_drained = True
        self._request("drain")

    def interrupt(self) -> None:
        self._request("interrupt")

    def _request(self, method: str) -> None:
        """Call a method of the actor, or end an actor that does not exist yet or has not started."""
        if self.ended.done():
            return
        self._was_stopped = True
        if self._site is not None:
            getattr(self._actor, method).remote()
        elif self._actor is not None:
            self._cluster.ray.kill(self._actor)
        elif self._watching is not None:
            self._watching.cancel()

    def kill(self) -> None:
        if not self.ended.done() and self._actor is not None:
            self._was_killed = True
            self._cluster.ray.kill(self._actor)


def pack_for_nodes(name: str, value: Any) -> bytes:
    """Return a pickled value for an actor. Classes and functions of the program's main module are pickled by value.

    Raises:
        Invalid: a part of the value exists only in this process; the message names this part.
    """
    pickler: Any = import_module("ray.cloudpickle").CloudPickler

    class NodePickler(pickler):
        def reducer_override(self, obj: Any, /) -> Any:
            reduction: Any = NotImplemented if getattr(obj, "__module__", "") == "__main__" else reduced(obj)
            return pickler.reducer_override(self, obj) if reduction is NotImplemented else reduction

    return pack(name, value, NodePickler)


_SAME_VERSIONS: Final = "install the same versions of Rollbook, Python and the agent's packages on every node"


async def _result(reference: Any) -> Any:
    return await reference


def _last_line(error: BaseException) -> str:
    return str(error).strip().rpartition("\n")[2]


def _cause(error: BaseException) -> str:
    """Return the reason in a message of Ray about a dead actor, without ids before it and general advice after it."""
    lines = [line.strip() for line in str(error).splitlines() if line and not line.startswith("\t")]
    return " ".join(lines[1:] or lines).partition(" Some common causes")[0]
