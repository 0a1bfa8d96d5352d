"""The state hash: one hash over the rows of all projections.

The same commands at the same timestamps give the same state hash on every database. For this purpose, some values are
left out. Positions, commit ids and numbers of events are left out, because they depend on the place of an event in the
log. Of the queue and of the rewards of a rollout, only the order counts. The row of the attempt of a released claim is
left out, because reads do not return this attempt.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import Double, Table

from store.db.dialect import ReadSession, Row
from store.db.queries import scan
from store.db.tables import core as core_tables
from store.models.enums import Frozen

PARTS = 16
"""The number of parts into which the rollouts are divided. With many parts, no process is idle for long at the end."""

# Columns that are left out.
_PLACES = frozenset(
    {
        "position",
        "first_position",
        "last_position",
        "input_position",
        "metadata_position",
        "queued_position",
        "body_position",
        "released_position",
        "stream_version",
        "run_version",
        "fork_version",
        "base_version",
        "last_version",
        "retracted",
    }
)
# In the tables of runs and annotations, `version` is the number of an event and is left out too. In other tables,
# `version` counts replacements.
_PLACES_OF_RUNS = _PLACES | {"version"}


def values_at(indexes: Sequence[int]) -> Callable[[Row], tuple[Any, ...]]:
    """Return a function that returns the values of a row at some indexes."""
    # With a single index, `itemgetter` returns the value instead of a tuple.
    return itemgetter(*indexes) if indexes[1:] else itemgetter(slice(indexes[0], indexes[0] + 1))


class _Canon:
    """Encoder of the rows of one table. Each row is a JSON array of values in the order of the sorted column names."""

    def __init__(self, table: Table) -> None:
        names = [str(column.name) for column in table.columns]
        places = _PLACES_OF_RUNS if table in (*core_tables.RUNS, *core_tables.ANNOTATIONS) else _PLACES
        self.names = tuple(sorted(name for name in names if name not in places))
        self._pick = values_at([names.index(name) for name in self.names])
        self._floats = tuple(names.index(name) for name in self.names if isinstance(table.c[name].type, Double))
        self._released = names.index("released_position") if "released_position" in names else None

    def text(self, rows: Sequence[Row]) -> bytes:
        """Return the texts of the rows. A comma follows each text."""
        if self._released is not None:
            rows = [row for row in rows if row[self._released] is None]
        if not rows:
            return b""
        canonical: list[tuple[Any, ...]] = list(map(self._pick, rows))
        if not all(map(_is_plain, (map(itemgetter(index), rows) for index in self._floats))):
            canonical = [tuple(map(_exact, row)) for row in canonical]
        return orjson.dumps(canonical)[1:-1] + b","


def _is_plain(values: Iterable[float | None]) -> bool:
    """Return whether `orjson` certainly writes these floats in the same way as `repr`."""
    present = [value for value in values if value]
    return not present or (min(present) >= 1e-4 and max(present) < 1e16)


def _exact(value: Any) -> Any:
    return orjson.Fragment(repr(value)) if isinstance(value, float) else value


_CANON = {table: _Canon(table) for table in core_tables.PROJECTIONS}


# Tables whose rows belong to rollouts. Their rows are divided into the same parts as the rollouts.
_CUT = frozenset(
    {
        core_tables.rollouts,
        core_tables.attempts,
        core_tables.spans,
        core_tables.rewards,
        *core_tables.RUNS,
        *core_tables.ANNOTATIONS,
        *core_tables.SCORES,
    }
)
# Tables that versions from before them do not have. While such a table is empty, the hash is that of these versions.
_LATER = frozenset((*core_tables.SCORES, *core_tables.METRICS))
_first = itemgetter(0)


class PartHashes(Frozen):
    """The hashes of some rows, as one process sends them to another process."""

    digests: dict[str, str]
    """The hashes in hex, by the name of the table and the number of the part."""
    rows: dict[str, int]
    """The numbers of rows, by the name of the table."""


class StateHash:
    """The state hash. The caller must add the rows of each table in the order of the primary key.

    Rows that belong to rollouts are hashed in parts, so that several processes can share the work. The result is a hash
    over the hashes of all parts.
    """

    def __init__(self, cuts: Sequence[str]) -> None:
        """Begin before the first row.

        Args:
            cuts: the sorted ids of the rollouts that are the last rollouts of their parts.
        """
        self._cuts = cuts
        self._hashers: dict[str, Any] = {}
        self._digests: dict[str, str] = {}
        self._rows: Counter[str] = Counter({table.name: 0 for table in core_tables.PROJECTIONS})

    def update(self, table: Table, rows: Sequence[Row]) -> None:
        """Add the next rows of a table."""
        self._rows[table.name] += len(rows)
        for part, of_part in self._parts(table, rows):
            text = _CANON[table].text(of_part)
            if text:
                # If all rows of a part are left out, the part has no hash, like a part without rows.
                self._hashers.setdefault(f"{table.name} {part}", hashlib.sha256()).update(text)

    def _parts(self, table: Table, rows: Sequence[Row]) -> Iterator[tuple[int, Sequence[Row]]]:
        cuts = self._cuts if table in _CUT else ()
        start = 0
        while start < len(rows):
            part, end = bisect_left(cuts, rows[start][0]) if cuts else 0, len(rows)
            if part < len(cuts):
                end = bisect_right(rows, cuts[part], start, key=_first)
            yield part, rows[start:end]
            start = end

    def _parts_of(self, table: Table) -> int:
        return len(self._cuts) + 1 if table in _CUT else 1

    def take(self, others: PartHashes) -> None:
        """Add the hashes of parts that another process has hashed completely."""
        self._digests.update(others.digests)
        self._rows.update(others.rows)

    def part_hashes(self) -> PartHashes:
        """Return the hashes of all rows that were added up to now."""
        digests = {name: hasher.hexdigest() for name, hasher in self._hashers.items()}
        return PartHashes(digests={**self._digests, **digests}, rows=dict(self._rows))

    def hexdigest(self) -> str:
        """Return the state hash, in hex."""
        digests, combined = self.part_hashes().digests, hashlib.sha256()
        for table in core_tables.PROJECTIONS:
            of_parts = [digests.get(f"{table.name} {part}", "") for part in range(self._parts_of(table))]
            if table in _LATER and not any(of_parts):
                continue
            combined.update(f"{table.name}:{','.join(_CANON[table].names)}\0".encode())
            for part, digest in enumerate(of_parts):
                combined.update(f"{part}:{digest}\0".encode())
        return combined.hexdigest()


def cuts_in(ids: Sequence[str]) -> list[str]:
    """Return the ids, among the sorted rollout ids, after which a new part begins."""
    return [ids[place] for place in _places(len(ids))]


async def cuts(session: ReadSession) -> list[str]:
    """Return the rollout ids after which a new part begins.

    The ids depend only on the rows of the table, because the state hash must depend on nothing else.
    """
    key = core_tables.rollouts.c.rollout_id
    places = _places(await scan.count(session, core_tables.rollouts))
    return [await scan.key_at(session, key, place) for place in places]


def _places(count: int) -> list[int]:
    return sorted({count * number // PARTS - 1 for number in range(1, PARTS)} - {-1})


async def state_hash(session: ReadSession) -> str:
    """Return the state hash of all rows of the projections. The session must be a snapshot."""
    total = StateHash(await cuts(session))
    for table in core_tables.PROJECTIONS:
        async for rows in scan.all_rows(session, table):
            total.update(table, rows)
    return total.hexdigest()
