"""Sentences about the events of a list of the log, as `rollbook history` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from store.dashboard.views.formats import time_text
from store.db.data_blocks import json_of
from store.db.queries.log_list import SHOWN, AttemptStart, LogRow
from store.errors import Corrupt
from store.models import HistoryEvent
from store.narration.events import Narrator
from store.runtime.clock import MICROSECONDS


def data_of(row: LogRow) -> Any:
    """Return the data of an event; None if only its beginning was read.

    Raises:
        Corrupt: the data is not JSON, or is missing or damaged.
    """
    return json_of(row.data) if row.length <= SHOWN else None


def sentences(rows: Iterable[LogRow], starts: Iterable[AttemptStart]) -> dict[int, str]:
    """Return a sentence for each event of a list, by position.

    Events whose data was not read as a whole, or was changed beside the log so that it has another form, are left out.

    Args:
        rows: the events.
        starts: the attempts that the sentences name by their numbers.
    """
    narrator = Narrator(time_text)
    for start in starts:
        data = {"attempt_id": start.attempt_id, "sequence": start.sequence_id}
        narrator.observe(_event("attempt.started", start.start_at, data))
    described: dict[int, str] = {}
    for row in sorted(rows, key=lambda row: row.position):
        try:
            data = data_of(row)
            if isinstance(data, dict):
                described[row.position] = narrator.describe(_event(row.type, row.at, cast("dict[str, Any]", data)))
        except (Corrupt, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            # The page is where damage is looked for, so damaged data must not break it.
            continue
    return described


def _event(type_: str, at: int, data: Mapping[str, Any]) -> HistoryEvent:
    return HistoryEvent.model_construct(type=type_, at=at / MICROSECONDS, data=data, body=None)
