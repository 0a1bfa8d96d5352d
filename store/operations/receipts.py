"""Receipts of finished copies.

A process may be killed after its copy got a name, but before the caller knows the result. So the copy has a receipt,
which contains the result, until the caller knows the result. If the same call is repeated, it finds the receipt of a
process that no longer runs, and returns the result in this receipt (decision 79).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from pydantic import ValidationError

from store.db.dialect import Unfinished
from store.errors import StoreError
from store.models.enums import Frozen
from store.operations.log_source import LogSource
from store.operations.reports import CopyReport
from store.runtime.process import is_gone, this_process

_printed: list[Unfinished] = []
"""The copies whose results were printed, but whose receipts were not removed."""
_unprinted: ContextVar[list[Unfinished] | None] = ContextVar("unprinted copies", default=None)


class Receipt(Frozen):
    """The result of a copy, and the call that made it."""

    source: str
    """The name of the source that was copied, for example the URL of a store."""
    is_single_file: bool
    """Whether the copy is a backup or an archive."""
    process: dict[str, Any]
    """The process that made the copy, as `this_process` returns it."""
    report: CopyReport


def receipt_of(source: LogSource, report: CopyReport, *, is_single_file: bool) -> str:
    """Return the text of the receipt of a copy that this process has made."""
    receipt = Receipt(source=source.name, is_single_file=is_single_file, process=this_process(), report=report)
    return receipt.model_dump_json()


async def earlier_result(source: LogSource, target: Unfinished, *, is_single_file: bool) -> CopyReport | None:
    """Return the result of an earlier equal call whose receipt still exists and whose process has ended; else None."""
    text = await target.receipt()
    if text is None:
        return None
    try:
        receipt = Receipt.model_validate_json(text)
    except ValidationError:
        return None
    is_running = receipt.process.get("host") == socket.gethostname() and not is_gone(receipt.process)
    if is_running or (receipt.source, receipt.is_single_file) != (source.name, is_single_file):
        return None
    if not await source.has_made(receipt.report):
        return None
    return receipt.report.model_copy(update={"events_before": receipt.report.events})


async def acknowledge(target: Unfinished) -> None:
    """Remove the receipt of a copy whose result the caller gets. A block of `printing` removes the receipt later."""
    unprinted = _unprinted.get()
    if unprinted is None:
        await target.acknowledge()
    else:
        unprinted.append(target)


@contextmanager
def printing() -> Generator[None]:
    """Keep the receipts of all copies made in the block until `leave` is called. The block prints the results."""
    unprinted: list[Unfinished] = []
    token = _unprinted.set(unprinted)
    try:
        yield
    finally:
        _unprinted.reset(token)
    sys.stdout.flush()
    if not _printed:
        atexit.register(lambda: asyncio.run(_remove_printed()))  # for programs that call a command without `leave`
    _printed.extend(unprinted)


def leave() -> None:
    """If results were printed, remove their receipts and end the process with exit code 0; otherwise do nothing.

    The process ends at once, because a normal end takes many milliseconds. If the process was killed in this time, the
    caller would see a failure, but the receipts would be missing.
    """
    if _printed:
        sys.stdout.flush()
        sys.stderr.flush()
        asyncio.run(_remove_printed(then_exit=True))


async def _remove_printed(*, then_exit: bool = False) -> None:
    while _printed:
        # A receipt that stays has no effect except that the same call returns the same result once more.
        with suppress(StoreError, OSError, RuntimeError):
            await _printed.pop().acknowledge()
    if then_exit:
        os._exit(0)
