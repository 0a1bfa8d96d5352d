"""A process of its own for the walk through a long log, so that a proof uses two cores and spares the caller's.

It opens the same database read-only and walks to the bounds it is given: what lies before them never changes, so both
processes see the same log. Where a second process cannot be had, the walk is done in this one.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import ValidationError

from store.db.dialect import Dialect
from store.db.url import parse
from store.errors import NotFound
from store.journal.walk import Bounds, Walked, walk
from store.models.kinds import Frozen

WORTHWHILE = 100_000
"""Events from which on starting a process costs less than it saves."""


class Order(Frozen):
    """What the process is told."""

    dialect: str
    url: str
    store_id: str
    bounds: Bounds


@dataclass(slots=True)
class Walking:
    """A walk under way in another process."""

    process: subprocess.Popen[bytes]

    async def result(self) -> Walked | None:
        """Return what was found, or None if the process failed."""
        answer, _ = await asyncio.to_thread(self.process.communicate)
        try:
            return Walked.model_validate_json(answer)
        except ValidationError:
            return None

    def close(self) -> None:
        """End the process if it still runs."""
        with self.process as process:
            if process.poll() is None:
                process.kill()


@asynccontextmanager
async def walking(dialect: Dialect, store_id: str, bounds: Bounds) -> AsyncGenerator[Walking | None, None]:
    """Start the walk in another process, if that is possible and worthwhile."""
    is_private = dialect.url.path is None and dialect.url.dsn is None
    if bounds.position < WORTHWHILE or is_private or (os.cpu_count() or 1) < 2:
        yield None
        return
    kind = type(dialect)
    order = Order(
        dialect=f"{kind.__module__}:{kind.__qualname__}", url=dialect.url.text, store_id=store_id, bounds=bounds
    )
    try:
        started = Walking(await asyncio.to_thread(_start, order))
    except OSError:
        yield None
        return
    try:
        yield started
    finally:
        started.close()


def _start(order: Order) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "store.journal.apart"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdin is not None  # a pipe
    # One that died at once will have no result to give.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(order.model_dump_json().encode())
        process.stdin.close()
    process.stdin = None
    return process


async def _obey(order: Order) -> Walked:
    module, _, name = order.dialect.partition(":")
    kind: type[Dialect] = getattr(importlib.import_module(module), name)
    dialect = kind(parse(order.url), None, read_only=True)
    found = await dialect.open(create=False)
    try:
        if found != order.store_id:
            # A relative path, and a working directory that was changed since.
            raise NotFound("store", order.store_id)
        async with dialect.read(snapshot=True) as session:
            return await walk(dialect, session, order.bounds)
    finally:
        await dialect.close()


def main() -> None:
    """Read an order, obey it, and print what was found."""
    # Rows refer to nothing that refers back: the collector would only look at them, for a tenth of the time.
    gc.disable()
    order = Order.model_validate_json(sys.stdin.buffer.read())
    sys.stdout.write(asyncio.run(_obey(order)).model_dump_json())


if __name__ == "__main__":
    main()
