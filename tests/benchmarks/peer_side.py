"""Agent-lightning's store in memory, in its own environment."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Its packages are not installed beside the tests.

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.types import Span

from tests.benchmarks.protocol import serve
from tests.benchmarks.workload import Workload


class Peer:
    """Commands on the store that was opened last."""

    def __init__(self) -> None:
        self._work = Workload(None, Span)

    async def hello(self) -> str:
        return version("agentlightning")

    async def open(self) -> None:
        self._work = Workload(InMemoryLightningStore(), Span)

    async def lifecycles(self, **arguments: Any) -> Any:
        return await self._work.lifecycles(**arguments)

    async def open_loop(self, **arguments: Any) -> Any:
        return await self._work.open_loop(**arguments)

    async def prepare_traces(self, **arguments: Any) -> Any:
        return await self._work.prepare_traces(**arguments)

    async def record_traces(self, **arguments: Any) -> Any:
        return await self._work.record_traces(**arguments)

    async def wake(self, **arguments: Any) -> Any:
        return await self._work.wake(**arguments)


if __name__ == "__main__":
    serve(Peer())
