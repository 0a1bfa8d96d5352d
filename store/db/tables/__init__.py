"""Definitions of the tables: the log, the projections, which are computed from the log, and further tables."""

from store.db.tables import annotations, core, runs, scores, threads, trainer_metrics
from store.db.tables.core import metadata

__all__ = ["annotations", "core", "metadata", "runs", "scores", "threads", "trainer_metrics"]
