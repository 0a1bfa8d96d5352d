"""Operations that run in processes of their own, which tests kill or whose disk they fill."""

from __future__ import annotations

import resource

from store.errors import Unavailable
from store.operations import Search, compact, compression, copy_store, drop_partition, forget, log_copy
from tests.operations.payloads import SECRET

EVENTS_AT_ONCE = 7


async def copy(source: str, target: str) -> None:
    """Copy in small chunks."""
    setattr(log_copy, "_EVENTS", EVENTS_AT_ONCE)  # noqa: B010 (the name is private)
    await copy_store(source, target)


async def drop(url: str, name: str) -> None:
    """Drop a partition."""
    await drop_partition(url, name, confirm=name)


async def copy_until_full(source: str, target: str, room: int) -> None:
    """Copy while no file of this process may grow beyond a size."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    told = ""
    try:
        await copy(source, target)
    except Unavailable as error:
        told = str(error)
    assert "the disk is full" in told, told
    assert "free some space" in told, told


async def forget_secret(url: str) -> None:
    """Remove the payload with the secret text."""
    await forget(url, Search.of(text=SECRET), reason="request 17")


async def compact_store(url: str) -> None:
    """Free the space of deleted rows."""
    await compact(url)


LEAST_BODIES = 500
ENOUGH = {"LEAST_BODIES": LEAST_BODIES, "_LEAST_BYTES": 0, "_ROWS": 50}
"""Settings of `store.operations.compression` with which a small store gets a dictionary, in several transactions."""


async def compress_store(url: str) -> None:
    """Compress the payload of a store, even if it is small."""
    for name, value in ENOUGH.items():
        setattr(compression, name, value)
    await compact(url)


async def compact_until_full(url: str, room: int) -> None:
    """Free the space of deleted rows while no file of this process may grow beyond a size."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    message = ""
    try:
        await compact(url)
    except Unavailable as error:
        message = str(error)
    assert "the disk is full" in message, message
