"""The log of the server as lines of JSON, and the startup message."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from store.cli.output.printing import line
from store.server.request_ids import request_id

_PLAIN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


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
        if (current_id := request_id.get()) is not None:
            entry["request_id"] = current_id
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
