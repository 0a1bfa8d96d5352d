"""Views over exported tables, with the same SQL on SQLite, Postgres and DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.exports.schema import Table, TableColumn


@dataclass(frozen=True, slots=True)
class ExportedView:
    """A view over one table."""

    name: str
    description: str
    table: str
    """The table from which the view selects."""
    columns: tuple[TableColumn, ...]
    select: str
    """The `SELECT` statement of the view. It is the same for every database."""

    @property
    def statement(self) -> str:
        """The statement that creates the view."""
        return f"CREATE VIEW {self.name} AS\n{self.select}"


CURVES: Final = ExportedView(
    "curves",
    "One row for each step and mode: the rollouts with a step, and their rewards.",
    "rollouts",
    (
        TableColumn("step", "int64", "The step.", is_nullable=False),
        TableColumn("mode", "text", "`train`, `val` or `test`."),
        TableColumn("rollouts", "int64", "The number of rollouts.", is_nullable=False),
        TableColumn("succeeded", "int64", "The number that succeeded.", is_nullable=False),
        TableColumn("failed", "int64", "The number that failed.", is_nullable=False),
        TableColumn("rewarded", "int64", "The number with a reward.", is_nullable=False),
        TableColumn("reward", "float64", "The mean of the rewards."),
        TableColumn("reward_min", "float64", "The least reward."),
        TableColumn("reward_max", "float64", "The greatest reward."),
    ),
    """\
SELECT
  step,
  mode,
  count(*) AS rollouts,
  count(CASE WHEN status = 'succeeded' THEN 1 END) AS succeeded,
  count(CASE WHEN status = 'failed' THEN 1 END) AS failed,
  count(reward) AS rewarded,
  avg(reward) AS reward,
  min(reward) AS reward_min,
  max(reward) AS reward_max
FROM rollouts
WHERE step IS NOT NULL
GROUP BY step, mode""",
)

VIEWS: Final = (CURVES,)


def views_of(tables: Sequence[Table]) -> list[ExportedView]:
    """Return the views whose table is among some tables."""
    names = {table.name for table in tables}
    return [view for view in VIEWS if view.table in names]
