"""Stores that are filled once per test process and copied for each test, which takes a tenth of the time."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from store import open_store
from store.db.url import parse
from store.interface.store import Store
from store.testing import ManualClock
from tests import postgres

T = TypeVar("T")
Fill = Callable[[Store, ManualClock], Awaitable[T]]
"""A function that fills an empty store. It may move the clock forward, but not back."""

_PARTITION = "original"
_originals: dict[tuple[str, Fill[Any]], tuple[str, ManualClock, Any]] = {}
"""The URL of the store, its clock, and the result of the function, by server (or `sqlite`) and function."""


@asynccontextmanager
async def copied(fill: Fill[T], url: str, clock: ManualClock) -> AsyncGenerator[tuple[str, T]]:
    """Copy the store that `fill` makes, and advance the clock by the time that `fill` advanced it.

    Yields:
        The URL of the copy, and the result of `fill`. On SQLite the URL is the given one. On Postgres it names a new
        database on the same server, which is dropped afterwards.
    """
    original, there, result = await _original(fill, url)
    clock.advance((there() - clock()) / 1_000_000)
    path = parse(url).path
    if path is not None:
        await asyncio.to_thread(shutil.copy, str(parse(original).path), path)
        yield url, result
        return
    copy = await asyncio.to_thread(postgres.copy_database, original)
    try:
        yield postgres.with_partition(copy, _PARTITION), result
    finally:
        await asyncio.to_thread(postgres.drop_database, copy)


@asynccontextmanager
async def opened_copy(fill: Fill[T], url: str, clock: ManualClock) -> AsyncGenerator[tuple[str, Store, T]]:
    """Copy a store as `copied` does, and open the copy."""
    async with (
        copied(fill, url, clock) as (copy, result),
        await open_store(copy, clock=clock, scan_debounce_seconds=0) as store,
    ):
        yield copy, store, result


async def _original(fill: Fill[T], url: str) -> tuple[str, ManualClock, T]:
    is_file = parse(url).path is not None
    server = "sqlite" if is_file else urlsplit(url).netloc
    if (server, fill) not in _originals:
        clock = ManualClock()
        if is_file:
            directory = Path(tempfile.mkdtemp(prefix="rollbook-tests-"))
            atexit.register(shutil.rmtree, directory)
            original = f"sqlite:///{directory / 'original.db'}"
        else:
            database = await asyncio.to_thread(postgres.create_database, url)
            if postgres.EXTERNAL_URL:
                atexit.register(postgres.drop_database, database)
            original = postgres.with_partition(database, _PARTITION)
        async with await open_store(original, clock=clock, scan_debounce_seconds=0) as store:
            _originals[server, fill] = original, clock, await fill(store, clock)
    return _originals[server, fill]
