"""Table definitions of the log, its projections and the tables beside them."""

from store.db.tables import annotations, core, runs, threads
from store.db.tables.core import metadata

__all__ = ["annotations", "core", "metadata", "runs", "threads"]
