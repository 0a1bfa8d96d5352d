"""The schedule of the operations of a server: verification, backup, retention, compression. Decision 64."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any, Final

from store.db.queries.operation_runs import OPERATIONS, Operation, OperationRun
from store.errors import Invalid
from store.operations.policy import RetentionPolicy
from store.runtime.clock import MICROSECONDS

START_SECONDS: Final = 60.0
"""The time from the start of a server to the first operation, so that a restart is not slowed down by operations."""
RETRY_SECONDS: Final = 600.0
"""The time from the start of a run whose process was killed to the next run, unless the interval is shorter."""
UNCONFIGURED: Final[tuple[Operation, ...]] = ("verify", "verify_sample", "compress")
"""The operations that can be started without a setting of the server."""
_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """The directory of the backups, and the number of backups to keep."""

    directory: Path
    keep: int
    """The number of backups of a partition that are kept; the oldest are deleted."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times at which a server runs operations on a partition. An operation whose time is None is never run."""

    sample_seconds: float | None = 3600.0
    """The interval between two verifications of a sample."""
    verify_at: time | None = time(3)
    """The local time of the daily verification of the whole store."""
    backup_seconds: float | None = None
    """The interval between two backups."""
    backup: BackupPlan | None = None
    retention_seconds: float | None = None
    """The interval between two removals of payload."""
    retention: RetentionPolicy | None = None
    compress_seconds: float | None = None
    """The interval between two compressions of new events."""
    archive_directory: Path | None = None
    """The directory for the archives that administrators request. None if the server writes no archives."""

    @property
    def operations(self) -> list[Operation]:
        """The operations that the server runs."""
        return [operation for operation in OPERATIONS if self.interval(operation) is not None]

    def interval(self, operation: Operation) -> float | None:
        """Return the interval between two runs of an operation in seconds; None if the operation is never run."""
        match operation:
            case "verify":
                return None if self.verify_at is None else _DAY_SECONDS
            case "verify_sample":
                return self.sample_seconds
            case "backup":
                return None if self.backup is None else self.backup_seconds
            case "retention":
                return None if self.retention is None else self.retention_seconds
            case "compress":
                return self.compress_seconds
            case "remove" | "archive" | "redact" | "forget":
                return None

    def next_at(
        self, operation: Operation, last: OperationRun | None, *, started_at: int, created_at: int
    ) -> int | None:
        """Return the time of the next run of an operation in µs since the epoch; None if the operation is never run.

        A run that was missed because no server was running is due soon after the next start of a server.

        Args:
            operation: the operation.
            last: the last run of the operation; None if it was never run.
            started_at: the start of the server, in µs since the epoch.
            created_at: the creation of the store, in µs since the epoch. The first daily verification is due at the
                first `verify_at` after the creation. A server that starts later runs the verification soon after its
                start.
        """
        seconds = self.interval(operation)
        if seconds is None:
            return None
        earliest = started_at + _micros(min(seconds, START_SECONDS))
        if operation == "verify" and self.verify_at is not None:
            due = _next_day_time(created_at if last is None else last.attempted_at, self.verify_at)
        else:
            due = earliest if last is None else last.attempted_at + _micros(seconds)
        if last is not None and last.runner is not None:
            # If the runner still works, it stores the result itself. Otherwise the run was interrupted and must be
            # repeated.
            again = last.attempted_at + _micros(min(seconds, RETRY_SECONDS))
            due = max(min(due, again), last.lease_until or 0)
        return max(due, earliest)


@dataclass(frozen=True, slots=True)
class ScheduledOperation:
    """An operation of a partition that is scheduled, was run, or can be started."""

    operation: Operation
    last: OperationRun | None
    """None if the operation was never run."""
    next_at: int | None
    """The time of the next run in µs since the epoch; None if the operation is not scheduled."""


def _next_day_time(after: int, at: time) -> int:
    """Return the first moment after `after` at which local clocks show the given time of day."""
    day = datetime.fromtimestamp(after / MICROSECONDS).astimezone().date()
    while True:
        # `astimezone` takes the offset from UTC of this day. The day before may have another offset.
        moment = round(datetime.combine(day, at).astimezone().timestamp() * MICROSECONDS)
        if moment > after:
            return moment
        day += timedelta(days=1)


def _micros(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def read_policy(path: Path) -> RetentionPolicy:
    """Return the retention policy in a TOML file. Its keys are the fields of `RetentionPolicy`.

    Raises:
        Invalid: the file cannot be read, is not TOML, or contains an invalid condition or no condition.
    """
    try:
        conditions: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(
            "retention", f"{path} cannot be read: {error.strerror}; correct the path or its permissions"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid("retention", f"{path} is not TOML: {error}; correct the file") from None
    try:
        return RetentionPolicy.of(**conditions)
    except Invalid as error:
        raise Invalid("retention", f"{path}: {error}") from None
