"""Comparisons of selections that may be in different partitions of one database. Decision 124."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from store.comparing.comparison import SideRows, compared
from store.comparing.reading import compared_selections, side_rows, titled_comparison
from store.comparing.selections import params_in, params_of, selection_of
from store.db.queries.rollout_list import RolloutListQuery
from store.db.url import with_partition
from store.errors import Invalid, Unsupported
from store.models.comparisons import SelectionComparison
from store.models.missing_rewards import MissingReward
from store.runtime.urls import PARTITION
from store.sql.core import SQLCore
from store.sql.store import SQLStore

PARAMETER: Final = "partition"
_IN_PATH: Final = re.compile(rf"/p/({PARTITION.pattern})/ui/")


class PlacedSelection(NamedTuple):
    """A selection of rollouts in a partition."""

    partition: str | None
    """None for the partition of the store that reads the selection."""
    query: RolloutListQuery

    @classmethod
    def parse(cls, text: str, field: str) -> PlacedSelection:
        """Return the selection that a query string or a URL gives; its parameter `partition` names the partition.

        A URL may also have the partition in its path, as in `/p/second/ui/rollouts?step=1`.

        Raises:
            Invalid: the text gives no selection, or the name of the partition is not valid.
        """
        params = params_in(text, field)
        in_path = _IN_PATH.search(urlsplit(text).path if "?" in text else "")
        names = [name for name in params.pop(PARAMETER, []) if name] or ([in_path[1]] if in_path else [])
        return cls.of(names[-1] if names else None, selection_of(params, field), field)

    @classmethod
    def of(cls, partition: str | None, query: RolloutListQuery, field: str) -> PlacedSelection:
        """Return a selection in a partition.

        Raises:
            Invalid: the name of the partition is not valid.
        """
        if partition is not None and not PARTITION.fullmatch(partition):
            raise Invalid(field, f"partition={partition[:80]!r} must match {PARTITION.pattern}")
        return cls(partition, query)

    @property
    def text(self) -> str:
        """The query string that gives the selection."""
        placed = {} if self.partition is None else {PARAMETER: [self.partition]}
        return urlencode(placed | params_of(self.query), doseq=True)


@asynccontextmanager
async def cores_of(store: SQLStore, *selections: PlacedSelection) -> AsyncGenerator[list[SQLCore]]:
    """Provide the partition of each selection, open for reading until the block ends.

    Raises:
        NotFound: a partition does not exist.
        Unsupported: the database has one partition only.
    """
    url = store.core.dialect.url
    async with AsyncExitStack() as opened:
        cores: list[SQLCore] = []
        for selection in selections:
            if selection.partition is None or selection.partition == url.partition:
                cores.append(store.core)
                continue
            if url.scheme == "memory":
                raise Unsupported("second partition to compare", "a store in memory")
            placed = with_partition(url.text, selection.partition)
            other = await SQLStore.open(placed, create=False, read_only=True, beside=store)
            cores.append((await opened.enter_async_context(other)).core)
        yield cores


async def compared_partitions(
    cores: list[SQLCore], a: PlacedSelection, b: PlacedSelection, missing: MissingReward, *, pairs: bool
) -> SelectionComparison:
    """Compare two selections, each read from its partition.

    Selections of one partition are read from one state of it. The states of two partitions may differ in time.

    Raises:
        TooLarge: a selection has too many rollouts.
    """
    if cores[0] is cores[1]:
        work = partial(compared_selections, a=a.query, b=b.query, missing=missing, pairs=pairs)
        comparison = await cores[0].look(work, snapshot=True)
    else:
        sides: list[SideRows] = []
        for core, name, selection in zip(cores, ("a", "b"), (a, b), strict=True):
            sides.append(await core.look(partial(side_rows, query=selection.query, name=name), snapshot=True))
        comparison = compared(sides[0], sides[1], missing, pairs=pairs)
        for core, side in zip(cores, sides, strict=True):
            # The rollouts that moved are those of the second side, whose titles and labels are read last.
            work = partial(titled_comparison, comparison=comparison, sides=[side])
            comparison = await core.look(work, snapshot=True)
    return placed_comparison(comparison, a, b)


def placed_comparison(comparison: SelectionComparison, a: PlacedSelection, b: PlacedSelection) -> SelectionComparison:
    """Return a comparison whose sides name their partitions."""
    sides = {
        name: side.model_copy(update={"partition": selection.partition})
        for name, side, selection in (("a", comparison.a, a), ("b", comparison.b, b))
    }
    return comparison.model_copy(update=sides)
