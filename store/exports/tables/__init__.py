"""Tables that exports contain, one module for each subject."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.errors import Invalid
from store.exports.schema import Table
from store.exports.tables.calls import MESSAGES, MODEL_CALLS
from store.exports.tables.conversations import CONVERSATIONS
from store.exports.tables.events import EVENTS
from store.exports.tables.rewards import REWARDS
from store.exports.tables.rollouts import ATTEMPTS, ROLLOUTS
from store.exports.tables.spans import SPANS
from store.exports.tables.trajectories import TRAJECTORIES
from store.exports.tables.triplets import TRIPLETS

__all__ = ["CONVERSATIONS", "TABLES", "TRAJECTORIES", "tables_of"]

TABLES: Final[tuple[Table, ...]] = (ROLLOUTS, ATTEMPTS, SPANS, MESSAGES, MODEL_CALLS, TRIPLETS, REWARDS, EVENTS)
"""The tables of the formats parquet, jsonl and hf, in the order in which documentation lists them."""


def tables_of(names: Sequence[str] | None) -> tuple[Table, ...]:
    """Return tables by name, in the order of `TABLES`; all of them for None.

    Raises:
        Invalid: there is no such table, or no name was given.
    """
    if names is None:
        return TABLES
    all_names = [table.name for table in TABLES]
    for name in names:
        if name not in all_names:
            raise Invalid("tables", f"{name!r} is not a table; the tables are {', '.join(all_names)}")
    if not names:
        raise Invalid("tables", f"is empty; the tables are {', '.join(all_names)}")
    return tuple(table for table in TABLES if table.name in names)
