"""One hash over all projected rows. It is equal for the same commands at the same timestamps on every database.

Positions, commit ids and some versions depend on the place of an event and not on its content, so they are left out. Of
the queue and of a rollout's rewards, only the order counts. The row of an attempt whose claim was
released is left out, because this attempt does not exist for readers.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import Double, Table

from store.db.dialect import Dialect, ReadSession, Row
from store.db.queries import scan
from store.db.tables import core as core_tables
from store.models.enums import Frozen

PARTS = 16
"""The number of parts into which the rollouts are divided, large enough to keep all processes busy until the end."""

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
# In these tables, `version` is the number of an event of the rollout. In other tables it counts replacements.
_PLACES_OF_RUNS = _PLACES | {"version"}


class _Canon:
    """The canonical text of a table's rows: JSON arrays of values in the order of the sorted column names."""

    def __init__(self, table: Table) -> None:
        names = [str(column.name) for column in table.columns]
        places = _PLACES_OF_RUNS if table in (*core_tables.RUNS, *core_tables.ANNOTATIONS) else _PLACES
        self.names = tuple(sorted(name for name in names if name not in places))
        shown = [names.index(name) for name in self.names]
        # With a single index `itemgetter` returns the value instead of a tuple.
        self._pick: Callable[[Row], tuple[Any, ...]] = (
            itemgetter(*shown) if shown[1:] else itemgetter(slice(shown[0], shown[0] + 1))
        )
        self._floats = tuple(names.index(name) for name in self.names if isinstance(table.c[name].type, Double))
        self._released = names.index("released_position") if "released_position" in names else None

    def text(self, rows: Sequence[Row]) -> bytes:
        """Return the rows' texts, each followed by a comma."""
        if self._released is not None:
            rows = [row for row in rows if row[self._released] is None]
        if not rows:
            return b""
        canonical: list[tuple[Any, ...]] = list(map(self._pick, rows))
        if not all(map(_is_plain, (map(itemgetter(index), rows) for index in self._floats))):
            canonical = [tuple(map(_exact, row)) for row in canonical]
        return orjson.dumps(canonical)[1:-1] + b","


def _is_plain(values: Iterable[float | None]) -> bool:
    """Return whether Python and every JSON library write these floats in the same way."""
    present = [value for value in values if value]
    return not present or (min(present) >= 1e-4 and max(present) < 1e16)


def _exact(value: Any) -> Any:
    return orjson.Fragment(repr(value)) if isinstance(value, float) else value


_CANON = {table: _Canon(table) for table in core_tables.PROJECTIONS}


# Tables whose rows are hashed in parts, like the rollouts to which they belong.
_CUT = frozenset(
    {
        core_tables.rollouts,
        core_tables.attempts,
        core_tables.spans,
        core_tables.rewards,
        *core_tables.RUNS,
        *core_tables.ANNOTATIONS,
    }
)
_first = itemgetter(0)


class Hashed(Frozen):
    """The hashes of some rows, in the form that processes exchange."""

    digests: dict[str, str]
    """The hashes in hex, by table and part."""
    rows: dict[str, int]
    """The numbers of rows by table."""


class StateHash:
    """The state hash. The rows of each table are added in the order of its key, those of the queue in queue order.

    Rows that belong to rollouts are hashed in parts, so that several processes can share the work. The result is a hash
    over the hashes of all parts.
    """

    def __init__(self, cuts: Sequence[str]) -> None:
        """Begin before the first row; `cuts` are the ids at which the rollouts are divided."""
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
                # A part with only released claims is hashed like a part without rows.
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

    def take(self, others: Hashed) -> None:
        """Add complete parts that another process has hashed."""
        self._digests.update(others.digests)
        self._rows.update(others.rows)

    def found(self) -> Hashed:
        """Return the hashes of all rows so far."""
        digests = {name: hasher.hexdigest() for name, hasher in self._hashers.items()}
        return Hashed(digests={**self._digests, **digests}, rows=dict(self._rows))

    def hexdigest(self) -> str:
        """Return the hash over all tables."""
        digests, whole = self.found().digests, hashlib.sha256()
        for table in core_tables.PROJECTIONS:
            whole.update(f"{table.name}:{','.join(_CANON[table].names)}\0".encode())
            parts = len(self._cuts) + 1 if table in _CUT else 1
            for part in range(parts):
                whole.update(f"{part}:{digests.get(f'{table.name} {part}', '')}\0".encode())
        return whole.hexdigest()


def cuts_in(ids: Sequence[str]) -> list[str]:
    """Return those of the sorted rollout ids after which a new part begins."""
    return [ids[place] for place in _places(len(ids))]


async def cuts(dialect: Dialect, session: ReadSession) -> list[str]:
    """Return the rollout ids after which a new part begins.

    They depend only on the rows, like the state hash itself.
    """
    key = core_tables.rollouts.c.rollout_id
    places = _places(await scan.count(dialect, session, core_tables.rollouts))
    return [await scan.key_at(dialect, session, key, place) for place in places]


def _places(count: int) -> list[int]:
    return sorted({count * number // PARTS - 1 for number in range(1, PARTS)} - {-1})


async def state_hash(dialect: Dialect, session: ReadSession) -> str:
    """Return the state hash of all projected rows; the session must be a snapshot."""
    found = StateHash(await cuts(dialect, session))
    for table in core_tables.PROJECTIONS:
        async for rows in scan.all_rows(dialect, session, table):
            found.update(table, rows)
    return found.hexdigest()
