"""Functions that open the store for one command and close the store afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from store.db.url import parse
from store.errors import Invalid
from store.runtime.urls import scheme_of

if TYPE_CHECKING:
    from store.db.dialect import Dialect
    from store.interface.store import Store

T = TypeVar("T")

_PATIENCE: Final = 2.0
"""Seconds after which a server that does not answer is reported."""


def run_reading(db: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store for reading, call `work` with the store, and return the result.

    Opening for reading creates and upgrades nothing, and ends no attempt that has exceeded its time limit.

    Raises:
        NotFound: there is no such store; the message names the command that creates a store.
        Incompatible: the schema of the store is older than this program; the message names the command that upgrades
            the store.
    """
    return asyncio.run(_run(db, work, read_only=True))


def run_writing(db: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store for writing, call `work` with the store, and return the result.

    A store that is missing or has an older schema is refused with the errors of `run_reading`.
    """

    async def both() -> T:
        # Opening an older file for writing would upgrade the file. Opening it for reading raises an error, so the store
        # is first opened for reading.
        async with await _open(db, read_only=True):
            pass
        return await _run(db, work, read_only=False)

    return asyncio.run(both())


def dialect_of(db: str) -> Dialect:
    """Return the dialect of a database, the object that executes SQL for this kind of database.

    Commands use the dialect for data that no method of a store returns. The dialect is read-only and not yet opened.
    """
    from store.db.dialect import dialect_for

    url = parse(_shared(db))
    return dialect_for(url)(url, None, read_only=True)


async def _run(db: str, work: Callable[[Store], Awaitable[T]], *, read_only: bool) -> T:
    async with await _open(db, read_only=read_only) as store:
        return await work(store)


async def check_server(db: str) -> None:
    """If the URL names a server, check that the server answers within two seconds.

    A user waits for the command, so the first request is retried for a shorter time than the client's default.

    Raises:
        Unavailable: the server does not answer.
    """
    if scheme_of(db) in {"http", "https"}:
        # The client imports aiohttp, which a command on a database does not need.
        from store.client import HTTPStore

        async with await HTTPStore.open(db, read_only=True, retry_seconds=_PATIENCE, connect_seconds=_PATIENCE):
            pass


async def _open(db: str, *, read_only: bool) -> Store:
    from store import open_store

    await check_server(db)
    return await open_store(_shared(db), create=False, read_only=read_only)


def _shared(db: str) -> str:
    if db.startswith("memory:"):
        raise Invalid("--db", "a memory:// store exists only inside its program; name a file or a database")
    return db
