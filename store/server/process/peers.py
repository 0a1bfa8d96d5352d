"""The workers of one server among themselves: whichever of them is asked for metrics answers for all.

Each offers its own numbers on a socket in a directory of theirs. They are kept apart by a label: a sum of counters
would fall when a worker is replaced, and be read as a restart of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from store.server.metrics.requests import Family

_PATIENCE_SECONDS: Final = 2.0
_MOST_BYTES: Final = 16 * 1024 * 1024

Measures = tuple[list[Family], list[Family]]
"""What one process says: of itself, and of what all see alike."""


class Peers:
    """One worker's line to the others.

    Args:
        directory: where they meet.
        number: of this worker.
        count: of all.
        measure: this worker's own numbers.
    """

    def __init__(self, directory: Path, number: int, count: int, measure: Callable[[], Awaitable[Measures]]) -> None:
        self._directory = directory
        self._number = number
        self._count = count
        self._measure = measure
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to answer the others."""
        own = self._path(self._number)
        # A worker that was killed leaves its socket behind.
        own.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._tell, own)

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
        # The directory may be gone already, with whoever made it.
        with suppress(OSError):
            self._path(self._number).unlink()

    async def families(self) -> list[Family]:
        """Return the numbers of all workers; of one that does not answer, that it does not."""
        answers = await asyncio.gather(*(self._ask(number) for number in range(self._count)))
        up = Family("rollbook_worker_up", "Whether the worker answers.")
        for number, measures in enumerate(answers):
            up.set(int(measures is not None), worker=str(number))
        return [up, *merged(answers)]

    async def _ask(self, number: int) -> Measures | None:
        if number == self._number:
            return await self._measure()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._path(number), limit=_MOST_BYTES)
                try:
                    told: Any = orjson.loads(await reader.read())
                finally:
                    writer.close()
        except (OSError, TimeoutError, orjson.JSONDecodeError):
            return None
        own, shared = ([Family(*each) for each in part] for part in told)
        return own, shared

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        with suppress(OSError):
            parts = await self._measure()
            told = [[(each.name, each.help, each.kind, each.samples) for each in part] for part in parts]
            writer.write(orjson.dumps(told))
            await writer.drain()
        writer.close()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.sock"


def merged(answers: Iterable[Measures | None]) -> list[Family]:
    """Return measures of several workers as one list: own ones labelled by worker, shared ones once."""
    families: dict[str, Family] = {}
    seen: set[str] = set()
    for number, measures in enumerate(answers):
        own, shared = measures or ([], [])
        for each in own:
            into = families.setdefault(each.name, Family(each.name, each.help, each.kind))
            for suffix, labels, value in each.samples:
                into.samples.append((suffix, {"worker": str(number), **labels}, value))
        for each in shared:
            into = families.setdefault(each.name, Family(each.name, each.help, each.kind))
            for suffix, labels, value in each.samples:
                key = f"{each.name}{suffix}{sorted(labels.items())}"
                if key not in seen:
                    seen.add(key)
                    into.samples.append((suffix, labels, value))
    return list(families.values())
