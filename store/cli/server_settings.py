"""Settings of the server process, JSON logs, and the startup message."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any, Final

import orjson

from store.cli.import_string import named, pipeline_named
from store.cli.output.printing import line
from store.domain.statuses import UNRESPONSIVE_SECONDS
from store.errors import Invalid
from store.examples.trading.front_end.settings import TradingSettings
from store.examples.trading.front_end.trading_front_end import TradingFrontEnd
from store.models import PhaseGraph
from store.operations.schedule import BackupPlan, Schedule, read_policy
from store.server.auth.tls import Certificate
from store.server.quotas import Quota
from store.server.request_ids import request_id
from store.server.streaming.slots import MAX_STREAMS, MAX_STREAMS_PER_KEY

_PLAIN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The options of `rollbook serve`."""

    db: str
    host: str
    port: int
    cors_origins: Sequence[str]
    log_level: str
    max_body_bytes: int
    scan_debounce_seconds: float
    insecure: bool
    workers: int = 1
    certificate: Certificate | None = None
    pipeline: str | None = None
    """The pipeline to execute in the server: `package.module:NAME`."""
    pipeline_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    phase_graph: str | None = None
    """The phase graph (the phases and their order) of runs that clients post, as `package.module:NAME`.

    The text `none` means that these runs have no phase graph. The value None selects the graph of the pipeline, or
    without a pipeline the graph of the trading front end.
    """
    unresponsive_seconds: float = UNRESPONSIVE_SECONDS
    """The maximum time for which a run that a client posted may show no sign of life."""
    read_only: bool = False
    """Whether the server refuses every change. Its database may then be a read-only replica."""
    fallback: Path | None = None
    """The directory of the run folders that are read while the database is unavailable; None if there is none."""
    max_streams: int = MAX_STREAMS
    """The maximum number of open streams of each server process."""
    max_streams_per_key: int = MAX_STREAMS_PER_KEY
    """The maximum number of open streams of one API key in each server process."""
    schedule: Schedule = field(default_factory=Schedule)
    """The operations that the server runs by itself."""

    quotas: tuple[Quota, dict[str, Quota]] = field(default_factory=lambda: (Quota(), dict[str, Quota]()))
    """The quota of partitions without a quota of their own, and the quotas of single partitions by name."""

    def front_end(self) -> TradingFrontEnd:
        """Return the trading front end, with the settings of the runs that it posts.

        Raises:
            Invalid: the pipeline or the phase graph cannot be imported.
        """
        settings = TradingSettings(unresponsive_seconds=self.unresponsive_seconds, fallback=self.fallback)
        if self.pipeline is not None:
            settings = replace(settings, graph=pipeline_named("--pipeline", self.pipeline).graph)
        if self.phase_graph == "none":
            settings = replace(settings, graph=None)
        elif self.phase_graph is not None:
            settings = replace(settings, graph=named("--phase-graph", self.phase_graph, PhaseGraph))
        return TradingFrontEnd(settings)


def schedule_of(
    *,
    sample_seconds: float | None,
    verify_at: time | None,
    backup_seconds: float | None,
    backup_dir: Path | None,
    backup_keep: int,
    retention_seconds: float | None,
    retention: Path | None,
    compress_seconds: float | None,
    archive_dir: Path | None,
    takes_options: bool,
) -> Schedule:
    """Return the schedule that options of `rollbook serve` describe.

    Raises:
        Invalid: an option needs another one, the file with the policy is invalid, or the server runs no operations
            because `takes_options` is false.
    """
    for name, given in (
        ("--backup-dir", backup_dir),
        ("--retention", retention),
        ("--compress-every", compress_seconds),
        ("--archive-dir", archive_dir),
    ):
        if given is not None and not takes_options:
            raise Invalid(name, "a server that is read-only or whose store is in memory runs no operations; omit it")
    if (backup_seconds is None) != (backup_dir is None):
        raise Invalid("--backup-every", "give --backup-every and --backup-dir, or neither")
    if (retention_seconds is None) != (retention is None):
        raise Invalid("--retention-every", "give --retention-every and --retention, or neither")
    return Schedule(
        sample_seconds=sample_seconds,
        verify_at=verify_at,
        backup_seconds=backup_seconds,
        backup=None if backup_dir is None else BackupPlan(backup_dir.absolute(), backup_keep),
        retention_seconds=retention_seconds,
        retention=None if retention is None else read_policy(retention),
        compress_seconds=compress_seconds,
        archive_directory=None if archive_dir is None else archive_dir.absolute(),
    )


def quotas_of(
    options: Iterable[tuple[str | None, Mapping[str, int | None]]],
) -> tuple[Quota, dict[str, Quota]]:
    """Return the default quota, and the quotas of single partitions by name. The default applies to their other limits.

    Args:
        options: the limits by kind, each with the name of a partition or None for all partitions.

    Raises:
        Invalid: two options give the same limit.
    """
    given: dict[str | None, dict[str, int | None]] = {}
    for name, limits in options:
        known = given.setdefault(name, {})
        if both := known.keys() & limits.keys():
            where = "all partitions" if name is None else f"the partition {name!r}"
            raise Invalid("--quota", f"{min(both)} is given twice for {where}; give it once")
        known |= limits
    default = given.pop(None, {})
    return Quota(**default), {str(name): Quota(**default | own) for name, own in given.items()}


def announce(text: str) -> None:
    """Print the startup message, and flush the output, so that a program that reads a pipe gets the message at once."""
    line(text)
    sys.stdout.flush()


class _JsonLines(logging.Formatter):
    """A formatter that writes each record as a JSON document with time, level, message and request id.

    The formatter never writes contents of requests.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (own := request_id.get()) is not None:
            entry["request_id"] = own
        entry |= {name: value for name, value in vars(record).items() if name not in _PLAIN_FIELDS}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def log_as_json(level: str) -> None:
    """Write the records of the logger `store` from this level on, and warnings of other loggers, to standard error.

    Each record is one line of JSON.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("store").setLevel(level.upper())
