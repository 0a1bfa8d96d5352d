"""The order in which a supervisor ends the parts of a training."""

from __future__ import annotations

import asyncio

import pytest

from store.interface.store import Store
from store.training.execution.parts import End, Part
from store.training.execution.supervisor import Supervisor


class NotedPart(Part):
    """Part that notes its calls in a list, and ends when it is interrupted."""

    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__(name)
        self._calls = calls

    def start(self) -> None:
        self._calls.append(f"{self.name}: start")

    def stop(self) -> None:
        self._calls.append(f"{self.name}: stop")

    def interrupt(self) -> None:
        self._calls.append(f"{self.name}: interrupt")
        self._end(End(was_interrupted=True))

    def kill(self) -> None:
        self._calls.append(f"{self.name}: kill")


async def test_runners_stop_claiming_before_the_algorithm_is_interrupted(memory: Store) -> None:
    calls: list[str] = []
    algorithm, runner = NotedPart("algorithm", calls), NotedPart("runner", calls)
    supervisor = Supervisor(algorithm, [runner], memory, graceful_timeout=0, terminate_timeout=1)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert calls.index("runner: stop") < calls.index("algorithm: interrupt") < calls.index("runner: interrupt")


async def test_algorithm_with_runners_on_other_machines_waits_for_them(memory: Store) -> None:
    calls: list[str] = []
    algorithm = NotedPart("algorithm", calls)
    supervisor = Supervisor(algorithm, [], memory, graceful_timeout=0, terminate_timeout=1)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0)
    assert calls == ["algorithm: start"]
    algorithm.interrupt()
    await running
    assert "algorithm: stop" not in calls
