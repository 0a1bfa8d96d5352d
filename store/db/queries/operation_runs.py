"""The last run of each operation on a partition, and the lease with which one process runs an operation. Decision 64.

An operation is a verification, a backup, or the removal of payload. All times are µs since the epoch. A run
is claimed and stored in transactions with the write lock, so only one of several processes claims it. If the process of
a lease is killed, the lease ends when its time is over. No lock is held between transactions, so leases also work on
SQLite and behind a pooler of Postgres.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from importlib import metadata
from typing import Any, Final, Literal, get_args

from sqlalchemy import Select, select

from store.db.dialect import Changes, Dialect, ReadSession
from store.db.queries.paging import compiled
from store.db.tables.core import operation_runs, store_info

RemovalOperation = Literal["remove", "archive", "redact", "forget"]
"""The operations that run only when an administrator requests them."""
Operation = Literal["verify", "verify_sample", "backup", "retention", "compress"] | RemovalOperation
OPERATIONS: Final[tuple[Operation, ...]] = (
    *("verify", "verify_sample", "backup", "retention", "compress"),
    *get_args(RemovalOperation),
)

_MOST_ERROR: Final = 2000
"""The maximum length of a stored error in characters."""


@dataclass(frozen=True, slots=True)
class OperationRun:
    """The last run of an operation. The fields are the columns of the table, in their order."""

    operation: str
    runner: str | None = None
    """The process that runs the operation, as `host:pid`. If its lease has ended, the process was killed."""
    lease_until: int | None = None
    """The time at which the lease ends; None if no process runs the operation."""
    attempted_at: int = 0
    """The start of the last run, regardless of its outcome."""
    runs: int = 0
    """The number of runs that ended, normally or with an error."""
    failures: int = 0
    """The number of runs that ended with an error."""
    failed_at: int | None = None
    """The end of the last run if it failed; otherwise None."""
    error: str | None = None
    """The error of the last run if it failed; otherwise None."""
    started_at: int | None = None
    """The start of the last run that ended normally. The following fields describe the same run."""
    ended_at: int | None = None
    """The end of this run."""
    commit_id: int | None = None
    """The last commit of the log in the state that the run read; None if it is unknown."""
    differences: int | None = None
    """The number of differences that a verification found; None for other operations."""
    version: str | None = None
    """The version of Rollbook that ran the operation."""
    detail: str | None = None
    """A description of the work of the run."""

    def state(self, now: int) -> Literal["running", "interrupted", "failed", "succeeded"]:
        """Return the state of the last run. A run is interrupted if its process was killed."""
        if self.runner is not None:
            return "running" if now < (self.lease_until or 0) else "interrupted"
        return "succeeded" if self.failed_at is None else "failed"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run that ended normally."""

    started_at: int
    commit_id: int | None
    differences: int | None
    detail: str


Change = Callable[[OperationRun, int], OperationRun | None]
"""Function that returns the new run, given the stored run and the present time; None if nothing is to be written."""


def _query() -> Select[Any]:
    statement: Any = select(*operation_runs.columns)
    return statement


async def all_runs(session: ReadSession) -> dict[str, OperationRun]:
    """Return the last run of each operation, by the name of the operation. Operations without a run are left out."""
    rows = await session.fetch(compiled(session, "operation runs", _query), {})
    return {row.operation: OperationRun(**row._asdict()) for row in rows}


async def created_at(session: ReadSession) -> int:
    """Return the time at which the store was created."""
    rows = await session.fetch(compiled(session, "creation of the store", lambda: select(store_info.c.created_at)), {})
    return int(rows[0].created_at)


async def claim(
    dialect: Dialect, operation: Operation, runner: str, *, seen: int | None, lease_seconds: float
) -> OperationRun | None:
    """Begin a run, and return it; return None if another process runs the operation or has run it in the meantime.

    Args:
        dialect: the database. The call must be made in the event loop of the database.
        operation: the operation.
        runner: the name of the calling process.
        seen: the start of the last run that the caller knows; None if the caller knows of no run.
        lease_seconds: the time after which other processes may begin a run unless `renew` is called.
    """

    def begun(last: OperationRun, now: int) -> OperationRun | None:
        if last.state(now) == "running" or last.attempted_at != (seen or 0):
            return None
        return replace(last, runner=runner, lease_until=now + _micros(lease_seconds), attempted_at=now)

    return await _change(dialect, operation, begun)


async def renew(dialect: Dialect, operation: Operation, runner: str, *, lease_seconds: float) -> bool:
    """Extend the lease of a run, and return True; return False if another process has taken over the operation."""

    def renewed(last: OperationRun, now: int) -> OperationRun | None:
        return replace(last, lease_until=now + _micros(lease_seconds)) if last.runner == runner else None

    return await _change(dialect, operation, renewed) is not None


async def succeed(dialect: Dialect, operation: Operation, result: RunResult, *, runner: str | None) -> None:
    """Store the result of a run that ended normally, and end its lease.

    Args:
        dialect: the database. The call must be made in the event loop of the database.
        operation: the operation.
        result: the result.
        runner: the name of the process that claimed the run. If another process has taken over the operation, nothing
            is stored. None if the operation was run without a claim; then a lease of another process stays.
    """

    def ended(last: OperationRun, now: int) -> OperationRun | None:
        if runner is not None and last.runner != runner:
            return None
        return replace(
            last,
            runner=None if runner is not None else last.runner,
            lease_until=None if runner is not None else last.lease_until,
            attempted_at=last.attempted_at if runner is not None else max(result.started_at, last.attempted_at),
            runs=last.runs + 1,
            failed_at=None,
            error=None,
            started_at=result.started_at,
            ended_at=now,
            commit_id=result.commit_id,
            differences=result.differences,
            version=metadata.version("rollbook"),
            detail=result.detail,
        )

    await _change(dialect, operation, ended)


async def fail(dialect: Dialect, operation: Operation, error: str, *, runner: str) -> None:
    """Store the failure of a run, and end its lease, unless another process has taken over the operation."""

    def ended(last: OperationRun, now: int) -> OperationRun | None:
        if last.runner != runner:
            return None
        failed = replace(last, runs=last.runs + 1, failures=last.failures + 1, failed_at=now)
        return replace(failed, runner=None, lease_until=None, error=error[:_MOST_ERROR])

    await _change(dialect, operation, ended)


async def _change(dialect: Dialect, operation: Operation, change: Change) -> OperationRun | None:
    session = await dialect.writer()
    try:
        tail = await session.begin()
        last = (await all_runs(session)).get(operation, OperationRun(operation))
        changed = change(last, tail.now)
        if changed is not None:
            await session.write(Changes(inserts={}, upserts={operation_runs: [astuple(changed)]}, deletes={}))
            await session.commit()
        return changed
    finally:
        # This rolls back an unfinished transaction.
        await session.close()


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
