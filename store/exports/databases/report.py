"""Report of an export to a database."""

from __future__ import annotations

from store.models.enums import Frozen


class DatabaseReport(Frozen):
    """The result of an export to a database."""

    database: str
    """The path of the file, or the URL of the database without passwords."""
    store_id: str
    position: int
    """The position of the log at which everything was read."""
    rollouts: int
    rows: dict[str, int]
    """The number of rows of each table."""
    seconds: float
