"""The metrics of all workers of a server. Each worker can return the metrics of all workers.

Each worker offers its own metrics on a socket in a common directory. The metrics of each worker have a label with its
number. A sum over the workers would decrease when a worker is replaced, and Prometheus would interpret that as a
restart of all workers. Only the worker that answers a scrape measures the databases. Its requests to the other workers
contain the results that these workers need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from store.runtime.metrics_text import Family

_PATIENCE_SECONDS: Final = 2.0
_MOST_BYTES: Final = 16 * 1024 * 1024

Heads = Mapping[str, int]
"""The last known position of each partition's log."""


class Peers:
    """The connections of one worker to the other workers.

    Args:
        directory: the directory of the sockets.
        number: the number of this worker.
        count: the number of workers.
        measure: returns the metrics of this worker.
    """

    def __init__(self, directory: Path, number: int, count: int, measure: Callable[[Heads], list[Family]]) -> None:
        self._directory = directory
        self._number = number
        self._count = count
        self._measure = measure
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start to answer requests of other workers for metrics."""
        path = self._path(self._number)
        # A worker that was killed leaves its socket behind.
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path, limit=_MOST_BYTES)

    async def close(self) -> None:
        """Stop answering requests of other workers."""
        if self._server is not None:
            self._server.close()
        # The parent may have removed the directory already.
        with suppress(OSError):
            self._path(self._number).unlink()

    async def families(self, heads: Heads) -> list[Family]:
        """Return the metrics of all workers, and for each worker whether it answers."""
        answers = await asyncio.gather(*(self._ask(number, heads) for number in range(self._count)))
        up = Family("rollbook_worker_up", "Whether the worker answers.")
        for number, measures in enumerate(answers):
            up.set(int(measures is not None), worker=str(number))
        return [up, *merged(answers)]

    async def _ask(self, number: int, heads: Heads) -> list[Family] | None:
        if number == self._number:
            return self._measure(heads)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._path(number), limit=_MOST_BYTES)
                try:
                    writer.write(orjson.dumps(heads) + b"\n")
                    families: Any = orjson.loads(await reader.read())
                finally:
                    writer.close()
        except (OSError, TimeoutError, orjson.JSONDecodeError):
            return None
        return [Family(*family) for family in families]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):
            families = self._measure(orjson.loads(await reader.readline()))
            writer.write(orjson.dumps([(family.name, family.help, family.kind, family.samples) for family in families]))
            await writer.drain()
        writer.close()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.sock"


def merged(answers: Iterable[list[Family] | None]) -> list[Family]:
    """Return the metrics of several workers as one list, with the label `worker`."""
    families: dict[str, Family] = {}
    for number, measures in enumerate(answers):
        for family in measures or ():
            combined = families.setdefault(family.name, Family(family.name, family.help, family.kind))
            for suffix, labels, value in family.samples:
                combined.samples.append((suffix, {"worker": str(number), **labels}, value))
    return list(families.values())
