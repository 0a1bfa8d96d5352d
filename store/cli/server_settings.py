"""Settings of the server process, JSON logs, and the startup message."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from store.cli.output.printing import line
from store.server.auth.tls import Certificate
from store.server.request_ids import request_id

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


def announce(text: str) -> None:
    """Print the startup message, and flush it for a reader at the other end of a pipe."""
    line(text)
    sys.stdout.flush()


class _JsonLines(logging.Formatter):
    """A JSON document per record with time, level, message and request id; never with contents of requests."""

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
    """Log records of at least this level as JSON lines on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("store").setLevel(level.upper())
