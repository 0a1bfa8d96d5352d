"""The columns of the list of rollouts, and the choice of them in the parameter `col`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from store.dashboard.views.formats import compact
from store.errors import Invalid
from store.semconv import PRIMARY

DIMENSION: Final = "dim:"
"""The beginning of the name of a column with a dimension of rewards; the name of the dimension follows."""
METADATA: Final = "meta:"
"""The beginning of the name of a column with a value of the metadata; its key follows."""
_MOST_DIMENSIONS: Final = 4
"""The maximum number of dimensions that are shown by default."""
_MOST_COLUMNS: Final = 40
_LONGEST_VALUE: Final = 60


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A column of the list."""

    name: str
    label: str
    sort: str | None = None
    """The order that the heading gives; None if the list cannot be sorted by the column."""
    is_number: bool = True
    is_default: bool = True


FIELDS: Final = (
    ListColumn("reward", "Reward", "reward"),
    ListColumn("tokens", "Tokens out", "tokens"),
    ListColumn("tokens_in", "Tokens in", is_default=False),
    ListColumn("duration", "Duration", "duration"),
    ListColumn("step", "Step", "step"),
    ListColumn("mode", "Mode", is_number=False, is_default=False),
    ListColumn("group", "Group", is_number=False, is_default=False),
    ListColumn("resources", "Version", is_number=False),
    ListColumn("worker", "Worker", is_number=False),
    ListColumn("attempts", "Attempts", "attempts", is_default=False),
    ListColumn("spans", "Spans", "spans", is_default=False),
    ListColumn("started", "Started", "started"),
    ListColumn("ended", "Ended", is_default=False),
    ListColumn("rollout", "Rollout", is_number=False, is_default=False),
)
"""The columns for fields of a rollout, in their order."""
_BY_NAME: Final = {column.name: column for column in FIELDS}


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns of the list, and all that can be chosen."""

    columns: list[ListColumn]
    dimensions: list[str]
    """The dimensions that can be chosen."""
    metadata: list[str]
    """The keys of metadata that can be chosen."""

    @property
    def names(self) -> set[str]:
        """The names of the columns."""
        return {column.name for column in self.columns}

    @property
    def available(self) -> int:
        """The number of columns that can be chosen."""
        return len(FIELDS) + len(self.dimensions) + len(self.metadata)


def choose_columns(
    names: Sequence[str], rewards: Mapping[str, Mapping[str, float]], metadata: Mapping[str, Mapping[str, Any]]
) -> ColumnChoice:
    """Return the columns of the list: those that `names` gives, or the default columns if it is empty.

    Args:
        names: the values of the parameter `col`.
        rewards: the dimensions of the rewards of rollouts, by rollout id.
        metadata: the metadata of rollouts, by rollout id.

    Raises:
        Invalid: a name is unknown, or there are too many.
    """
    if len(names) > _MOST_COLUMNS:
        raise Invalid("col", f"names {len(names):,} columns; a list has at most {_MOST_COLUMNS}")
    dimensions = _names(names, DIMENSION, rewards, leaving={PRIMARY})
    keys = _names(names, METADATA, metadata)
    default = [column.name for column in FIELDS if column.is_default]
    default[1:1] = [f"{DIMENSION}{name}" for name in dimensions[:_MOST_DIMENSIONS]]
    return ColumnChoice([_column(name) for name in dict.fromkeys(names or default)], dimensions, keys)


def _names(
    names: Sequence[str],
    prefix: str,
    values: Mapping[str, Mapping[str, Any]],
    leaving: frozenset[str] | set[str] = frozenset(),
) -> list[str]:
    """Return the chosen names with a prefix, and the names that occur in values."""
    chosen = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return sorted({*chosen, *(name for of_rollout in values.values() for name in of_rollout)} - leaving)


def _column(name: str) -> ListColumn:
    if name in _BY_NAME:
        return _BY_NAME[name]
    for prefix in (DIMENSION, METADATA):
        if name.startswith(prefix) and name != prefix:
            return ListColumn(name, name.removeprefix(prefix), is_number=prefix == DIMENSION)
    raise Invalid("col", f"{name[:80]!r} is not a column; write one of {', '.join(_BY_NAME)}, dim:NAME or meta:KEY")


def metadata_text(value: Any) -> str:
    """Return a value of metadata as a short text."""
    return compact(value, _LONGEST_VALUE)
