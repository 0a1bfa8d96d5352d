"""Settings of the server process, JSON logs, and the startup message."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from store.cli.import_string import named, pipeline_named
from store.cli.output.printing import line
from store.domain.statuses import UNRESPONSIVE_SECONDS
from store.models import PhaseGraph
from store.run_folders.trading_phases import TA
from store.server.auth.tls import Certificate
from store.server.request_ids import request_id
from store.server.run_defaults import RunDefaults
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

    def run_defaults(self) -> RunDefaults:
        """Return the default settings for runs that clients post.

        Raises:
            Invalid: the pipeline or the phase graph cannot be imported.
        """
        pipeline = None if self.pipeline is None else pipeline_named("--pipeline", self.pipeline)
        if self.phase_graph is not None:
            graph = None if self.phase_graph == "none" else named("--phase-graph", self.phase_graph, PhaseGraph)
        else:
            graph = TA if pipeline is None else pipeline.graph
        return RunDefaults(graph=graph, unresponsive_seconds=self.unresponsive_seconds)


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
