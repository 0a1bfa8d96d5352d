"""Let uvicorn end at once in the process of the tests.

uvicorn checks every 100 ms whether it should end, and waits equally long before it checks for open connections.
The tests start and end more than a thousand servers, each of which would idle for 150 ms.
"""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

from uvicorn import server

_PARTS = 20
"""Into how many parts its sleeps are divided."""


class _Asyncio(ModuleType):
    """The module as uvicorn uses it, with shorter sleeps."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / _PARTS)


def end_at_once() -> None:
    """Divide the sleeps of uvicorn in this process."""
    setattr(server, "asyncio", _Asyncio("asyncio"))  # noqa: B010 - uvicorn does not export it
