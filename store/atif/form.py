"""Names in documents and metadata, and small conversions between Python and JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from store.model_calls.json_values import Json, as_object

SCHEMA_VERSION: Final = "ATIF-v1.7"
"""The version of the documents that exports write. Version 1.8 adds audio only, and documents contain no audio."""
KEY: Final = "rollbook"
"""The key in the `extra` objects of a document for data without a field in ATIF."""
VERSION: Final = 1
"""The version of the content under `KEY`."""
ORIGIN: Final = "rollbook.atif"
"""The key in the metadata of imported rollouts and attempts for fields of the document that an import cannot set in the
store, such as ids and times. An export of these rollouts writes the fields of the document again."""

SYSTEM: Final = "system"
USER: Final = "user"
AGENT: Final = "agent"


def extra_of(item: Mapping[str, Any]) -> Json:
    """Return the content under `KEY` in the `extra` object of a part of a document; empty without such content."""
    return as_object(as_object(item.get("extra")).get(KEY))


def note(item: Json, **values: Any) -> None:
    """Add values under `KEY` in the `extra` object of a part of a document."""
    if values:
        item.setdefault("extra", {}).setdefault(KEY, {}).update(values)


def present(**fields: Any) -> Json:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def iso_time(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 in UTC with microseconds; None without a time, or if the year is not 1 to 9999."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (OverflowError, ValueError, OSError):
        return None


def seconds_of(text: str | None) -> float | None:
    """Return an ISO 8601 time in seconds since the epoch. A time without a zone is UTC."""
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
