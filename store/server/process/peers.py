"""The metrics of all workers of a server, which each worker can return.

Each worker offers its metrics on a socket in a common directory. The metrics of each worker have a label with its
number. A sum over the workers would decrease when a worker is replaced, and Prometheus would interpret that as a
restart of all workers.
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
"""The metrics of one process: first those about this process, then those that are equal in all processes."""


class Peers:
    """The connections of one worker to the other workers.

    Args:
        directory: the directory of the sockets.
        number: the number of this worker.
        count: the number of workers.
        measure: returns the metrics of this worker.
    """

    def __init__(self, directory: Path, number: int, count: int, measure: Callable[[], Awaitable[Measures]]) -> None:
        self._directory = directory
        self._number = number
        self._count = count
        self._measure = measure
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start to answer requests of other workers for metrics."""
        own = self._path(self._number)
        # A worker that was killed leaves its socket behind.
        own.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, own)

    async def close(self) -> None:
        """Stop answering requests of other workers."""
        if self._server is not None:
            self._server.close()
        # The parent may have removed the directory already.
        with suppress(OSError):
            self._path(self._number).unlink()

    async def families(self) -> list[Family]:
        """Return the metrics of all workers, and for each worker whether it answers."""
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
                    parts: Any = orjson.loads(await reader.read())
                finally:
                    writer.close()
        except (OSError, TimeoutError, orjson.JSONDecodeError):
            return None
        own, shared = ([Family(*each) for each in part] for part in parts)
        return own, shared

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        with suppress(OSError):
            measures = await self._measure()
            parts = [[(each.name, each.help, each.kind, each.samples) for each in part] for part in measures]
            writer.write(orjson.dumps(parts))
            await writer.drain()
        writer.close()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.sock"


def merged(answers: Iterable[Measures | None]) -> list[Family]:
    """Return the metrics of several workers as one list.

    Metrics about one process get the label `worker`; shared metrics appear once.
    """
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
