"""One run of a scheduled or requested operation, in a separate process.

A server starts this module as a process, so that an operation takes neither processor time nor memory from the process
that answers requests. The process claims the operation in the database, runs it, and stores the result. The process
ends at once when the server has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from store.db.dialect import Dialect, dialect_for, existing_store
from store.db.queries import operation_runs
from store.db.queries.operation_runs import Operation, RunResult
from store.db.url import parse
from store.errors import Closed, Invalid, StoreError, Unavailable
from store.models.enums import Frozen
from store.operations.damage import store_damage_reported
from store.operations.policy import RetentionPolicy
from store.operations.requested import RequestedRemoval, run_requested
from store.runtime.clock import MICROSECONDS, system_clock
from store.verification import last

logger = logging.getLogger("store.operations")

LEASE_SECONDS: Final = 120.0
"""The time for which a process claims an operation. The process extends its claim three times in this time."""
_NICE: Final = 10


class RunOrder(Frozen):
    """The operation to run. The process reads it as JSON from the first line of standard input."""

    url: str
    operation: Operation
    seen: int | None
    """The start of the last run that the server knows; None if the server knows no run.

    If another run of the operation has begun since then, the order is skipped.
    """
    lease_seconds: Annotated[float, Field(gt=0)] = LEASE_SECONDS
    backup_directory: Path | None = None
    backup_keep: Annotated[int, Field(ge=1)] = 1
    retention: RetentionPolicy | None = None
    removal: RequestedRemoval | None = None
    """The removal, if the operation is one that an administrator requests."""
    actor: str | None = None
    """The name of the user who requested the removal."""


class RunOutcome(Frozen):
    """The outcome of an order. The process writes it as JSON to standard output."""

    state: Literal["done", "skipped", "failed"]
    """`skipped`: another process runs the operation, or began it after the server had read the last run."""
    detail: str = ""
    """A description of the result, or the error."""
    differences: int | None = None


def runner_name(pid: int) -> str:
    """Return the name under which a process of this machine claims operations."""
    return f"{socket.gethostname()}:{pid}"


async def run(order: RunOrder) -> RunOutcome:
    """Claim an operation, run it, and store its result.

    If the operation fails, its error is stored and returned as an outcome. The error is not raised. If `verify_sample`
    finds a difference or an unreadable row, this call then verifies the whole store, because the next sample could miss
    the difference.

    Raises:
        StoreError: the database does not answer, or is not a store of this version.
    """
    parsed = parse(order.url)
    dialect = dialect_for(parsed)(parsed, None)
    async with existing_store(dialect) as store_id:
        runs = _Runs(dialect, store_id, order)
        outcome = await runs.run(order.operation, order.seen)
        if runs.is_suspect:
            async with dialect.read() as session:
                verification = (await operation_runs.all_runs(session)).get("verify")
            verify_outcome = await runs.run("verify", None if verification is None else verification.attempted_at)
            if verify_outcome.state != "skipped":
                detail = f"{outcome.detail}; then the whole store: {verify_outcome.detail}"
                outcome = outcome.model_copy(update={"detail": detail, "differences": verify_outcome.differences})
        return outcome


class _LostClaim(RuntimeError):
    """Another process runs the operation, because this process did not extend its claim in time."""


class _Runs:
    """The runs of one process on one partition."""

    def __init__(self, dialect: Dialect, store_id: str, order: RunOrder) -> None:
        self._dialect = dialect
        self._store_id = store_id
        self._order = order
        self._runner = runner_name(os.getpid())
        self.is_suspect = False
        """Whether a sample differs from the log, or cannot be read."""
        self._is_ending = False
        """Whether the result of the run is being stored, which ends the claim."""

    async def run(self, operation: Operation, seen: int | None) -> RunOutcome:
        """Claim an operation, run it, and store its result."""
        lease = self._order.lease_seconds
        claimed = await operation_runs.claim(self._dialect, operation, self._runner, seen=seen, lease_seconds=lease)
        if claimed is None:
            return RunOutcome(state="skipped")
        self._is_ending = False
        try:
            async with self._claim_renewal(operation), store_damage_reported(self._order.url):
                return await self._work(operation)
        except Exception as error:
            is_expected = isinstance(error, StoreError | OSError | _LostClaim)
            self.is_suspect |= operation == "verify_sample" and not isinstance(error, Closed | Unavailable | OSError)
            if not is_expected:
                logger.exception("the operation %s failed", operation)
            text = str(error) or type(error).__name__
            await operation_runs.fail(self._dialect, operation, text, runner=self._runner)
            return RunOutcome(state="failed", detail=text)

    @asynccontextmanager
    async def _claim_renewal(self, operation: Operation) -> AsyncGenerator[None]:
        """Extend the claim until the result is stored. Cancel the block if another process has taken over."""
        lease = self._order.lease_seconds

        async def keep() -> None:
            while not self._is_ending:
                await asyncio.sleep(lease / 3)
                # An unavailable database is ignored here. The operation itself fails with its own error.
                with suppress(Unavailable):
                    has_claim = await operation_runs.renew(self._dialect, operation, self._runner, lease_seconds=lease)
                    if not (has_claim or self._is_ending):
                        raise _LostClaim(
                            "another process has taken over the operation, because this one did not extend its claim"
                        )

        try:
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(keep())
                yield
                keeping.cancel()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    # The server imports this module for `RunOrder` and `RunOutcome` only. So each method imports the code of its
    # operation.

    async def _work(self, operation: Operation) -> RunOutcome:
        if operation == "verify":
            from store.verification.verify import verify

            report = await verify(self._dialect, self._store_id)
            self._is_ending = True
            await last.record(self._dialect, report, runner=self._runner)
            detail = f"{report.events:,} events and {sum(report.rows.values()):,} rows"
            return RunOutcome(state="done", detail=detail, differences=report.difference_count)
        began = system_clock()
        match operation:
            case "verify_sample":
                result = await self._verify_sample(began)
            case "backup":
                result = await self._back_up(began)
            case "retention":
                result = await self._remove_payload(began)
            case "compress":
                result = await self._compress(began)
            case "remove" | "archive" | "redact" | "forget":
                removal = self._order.removal
                if removal is None:
                    raise Invalid("removal", "no removal is given")
                detail = await run_requested(self._order.url, removal, self._order.actor)
                result = RunResult(began, None, None, detail)
        self._is_ending = True
        await operation_runs.succeed(self._dialect, operation, result, runner=self._runner)
        return RunOutcome(state="done", detail=result.detail, differences=result.differences)

    async def _verify_sample(self, began: int) -> RunResult:
        from store.verification.sample import verify_sample

        report = await verify_sample(self._dialect, self._store_id)
        self.is_suspect = report.difference_count > 0
        detail = f"the last {report.commits:,} commits and {report.streams:,} streams"
        return RunResult(began, report.commit_id, report.difference_count, detail)

    async def _back_up(self, began: int) -> RunResult:
        from store.operations.backup import backup_store

        directory, partition = self._order.backup_directory, self._dialect.url.partition
        if directory is None:
            raise Invalid("backup_directory", "no directory is given; start the server with --backup-dir")
        # The next backup continues a backup that was stopped. So the unfinished file has a fixed name, and the complete
        # backup gets its final name at the end.
        name = f"{self._store_id}-{partition}"
        unfinished = directory / f"{name}.unfinished"
        if await asyncio.to_thread(unfinished.exists):
            # `backup_store` creates this file only when the backup is complete. So an earlier process was killed before
            # the rename.
            await asyncio.to_thread(_finish_naming, unfinished, name)
        report = await backup_store(self._order.url, unfinished)
        file = await asyncio.to_thread(_give_name, unfinished, name, began)
        deleted = await asyncio.to_thread(_delete_oldest, directory, name, self._order.backup_keep)
        detail = f"{file.name}, {report.size_bytes:,} bytes, verified; older backups deleted: {len(deleted)}"
        return RunResult(began, report.commit_id, None, detail)

    async def _remove_payload(self, began: int) -> RunResult:
        from store.operations.retention import remove_payload

        policy = self._order.retention
        if policy is None:
            raise Invalid("retention", "no policy is given; start the server with --retention")
        report = await remove_payload(self._order.url, policy, apply=True, actor="schedule")
        size = report.body_bytes + report.blob_bytes
        return RunResult(began, None, None, f"payload of {report.rollouts:,} rollouts, {size:,} bytes ({policy})")

    async def _compress(self, began: int) -> RunResult:
        from store.operations.compression import compression

        async with compression(self._dialect) as work:
            await work.compress()
        bodies, dictionaries, events = work.counts.bodies, work.counts.dictionaries, work.counts.events
        detail = (
            f"compressed: payload of {bodies:,} events, data of {events:,} events; new dictionaries: {dictionaries}"
        )
        return RunResult(began, None, None, detail)


def _give_name(unfinished: Path, name: str, at: int) -> Path:
    """Rename a complete backup so that its name contains the time of its start, and return the new path."""
    time = datetime.fromtimestamp(at / MICROSECONDS, UTC)
    file = unfinished.with_name(f"{name}-{time:%Y%m%dT%H%M%S}.{at // 1000 % 1000:03}Z.backup")
    # A rename would replace an existing file; a link fails instead.
    os.link(unfinished, file)
    unfinished.unlink()
    return file


def _finish_naming(unfinished: Path, name: str) -> None:
    status = unfinished.stat()
    if status.st_nlink > 1:
        unfinished.unlink()  # the file already has its new name too
    else:
        _give_name(unfinished, name, round(status.st_mtime * MICROSECONDS))


def _delete_oldest(directory: Path, name: str, keep: int) -> list[Path]:
    """Delete all backups of this name but the last `keep`, and return their paths."""
    oldest = sorted(directory.glob(f"{name}-????????T??????.???Z.backup"))[:-keep]
    for file in oldest:
        file.unlink(missing_ok=True)
    return oldest


def _end_with_server() -> None:
    """End this process when standard input ends, which means that the server has ended."""
    # `sys.stdin` has a lock, which a reading thread would hold when the interpreter exits. So the thread reads
    # descriptor 0.
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    """Read an order from standard input, run it, and write the outcome to standard output."""
    logging.basicConfig(level=logging.WARNING)
    with suppress(OSError):
        os.nice(_NICE)
    order = RunOrder.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_server, daemon=True).start()
    try:
        outcome = asyncio.run(run(order))
    except StoreError as error:
        outcome = RunOutcome(state="failed", detail=str(error))
    sys.stdout.write(outcome.model_dump_json() + "\n")
    sys.stdout.flush()
