"""Opening a store for the length of a command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from store import open_store
from store.db.dialect import Dialect, dialect_for
from store.db.url import parse
from store.errors import Invalid
from store.interface.store import Store

T = TypeVar("T")


def run_reading(db: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Return what `work` returns on the store, opened for reading: nothing is created, upgraded or swept.

    Raises:
        NotFound: there is no such store; the text says how to make one.
        Incompatible: it is behind this program; the text names the command.
    """
    return asyncio.run(_run(db, work, read_only=True))


def run_writing(db: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """As `run_reading`, on a store that is opened for writing; one that is missing or behind stays so."""

    async def both() -> T:
        # Opening for writing would upgrade a file; opening for reading refuses one that is behind.
        async with await _open(db, read_only=True):
            pass
        return await _run(db, work, read_only=False)

    return asyncio.run(both())


def dialect_of(db: str) -> Dialect:
    """Return the database itself, not yet opened, for what no method of a store tells; it only reads."""
    url = parse(_shared(db))
    return dialect_for(url)(url, None, read_only=True)


async def _run(db: str, work: Callable[[Store], Awaitable[T]], *, read_only: bool) -> T:
    async with await _open(db, read_only=read_only) as store:
        return await work(store)


async def _open(db: str, *, read_only: bool) -> Store:
    return await open_store(_shared(db), create=False, read_only=read_only)


def _shared(db: str) -> str:
    if db.startswith("memory:"):
        raise Invalid("--db", "a memory:// store lives and dies inside its program; name one that others can open")
    return db
