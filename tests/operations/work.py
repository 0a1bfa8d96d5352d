"""Operations in their own processes, for tests that kill them or fill their disk."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from store.errors import AlreadyExists, Unavailable
from store.models.queries import RolloutQuery
from store.operations import (
    RetentionPolicy,
    Search,
    archive_payload,
    compact,
    compression,
    copy_rollouts,
    copy_store,
    drop_partition,
    export_log,
    forget,
    import_log,
    log_source,
    pace,
    packing,
    remove_payload,
)
from store.operations.log_files import exporting
from tests.operations.payloads import SECRET

EVENTS_AT_ONCE = 7


async def copy(source: str, target: str) -> None:
    """Copy in small chunks."""
    setattr(log_source, "EVENTS_AT_ONCE", EVENTS_AT_ONCE)  # noqa: B010
    await copy_store(source, target)


async def export_and_import(source: str, directory: Path, target: str) -> None:
    """Export a log in small files, and import it in small chunks. A step that is done is left out."""
    setattr(exporting, "_FILE_BYTES", 15_000)  # noqa: B010 (the name is private)
    setattr(log_source, "EVENTS_AT_ONCE", EVENTS_AT_ONCE)  # noqa: B010
    with contextlib.suppress(AlreadyExists):
        await export_log(source, directory)
    with contextlib.suppress(AlreadyExists):
        await import_log(directory, target)


async def copy_part(source: str, target: str) -> None:
    """Copy the finished rollouts in small chunks."""
    setattr(log_source, "EVENTS_AT_ONCE", EVENTS_AT_ONCE)  # noqa: B010
    await copy_rollouts(source, target, RolloutQuery.of(status_in=["succeeded", "failed"]))


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


async def pack_store(url: str, least_pause: float | None = None) -> None:
    """Store the data of events in blocks of four events.

    Args:
        url: the URL of the store.
        least_pause: the pause after each block in seconds; None for the usual one.
    """
    if least_pause is not None:
        setattr(pace, "_LEAST_PAUSE", least_pause)  # noqa: B010 (the name is private)
    packing.EVENTS_PER_BLOCK = 4  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]
    await compact(url)


LEAST_BODIES = 500
ENOUGH = {"LEAST_BODIES": LEAST_BODIES, "_LEAST_BYTES": 0}
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


_FINISHED = RetentionPolicy.of(statuses=("succeeded", "failed", "cancelled"))


async def remove_in_small_steps(url: str) -> None:
    """Remove the payload of all finished rollouts in small transactions."""
    setattr(pace, "_MOST_ROWS", 2)  # noqa: B010 (the name is private)
    setattr(pace, "_FEWEST_ROWS", 1)  # noqa: B010
    await remove_payload(url, _FINISHED, apply=True)


async def archive_in_small_steps(url: str, file: Path) -> None:
    """Archive the payload of all finished rollouts in small transactions."""
    setattr(pace, "_MOST_ROWS", 2)  # noqa: B010 (the name is private)
    setattr(pace, "_FEWEST_ROWS", 1)  # noqa: B010
    setattr(log_source, "EVENTS_AT_ONCE", EVENTS_AT_ONCE)  # noqa: B010
    await archive_payload(url, file, _FINISHED, apply=True)


async def archive_until_full(url: str, file: Path, room: int) -> None:
    """Archive payload while no file of this process may grow beyond a size."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    message = ""
    try:
        await archive_payload(url, file, _FINISHED, apply=True)
    except Unavailable as error:
        message = str(error)
    assert "the disk is full" in message, message
