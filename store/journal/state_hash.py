"""One hash for all projected rows: equal for the same commands at the same stamps, on every database.

Positions, commit ids and versions say where facts lie, not what they are, so they are left out; the queue and the
rewards of a rollout count by their order. A released claim left nothing behind but its facts, so its row is left out.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import Double, Table

from store.db import scan, tables
from store.db.dialect import Dialect, ReadSession, Row

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
    }
)


class _Canon:
    """The canonical text of a table's rows: JSON arrays of values in the order of the sorted column names."""

    def __init__(self, table: Table) -> None:
        names = [str(column.name) for column in table.columns]
        self.names = tuple(sorted(name for name in names if name not in _PLACES))
        shown = [names.index(name) for name in self.names]
        # With one index `itemgetter` gives the bare value.
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
    """Say whether Python and every JSON library write these floats the same way."""
    present = [value for value in values if value]
    return not present or (min(present) >= 1e-4 and max(present) < 1e16)


def _exact(value: Any) -> Any:
    return orjson.Fragment(repr(value)) if isinstance(value, float) else value


_CANON = {table: _Canon(table) for table in tables.PROJECTIONS}


class StateHash:
    """The state hash, fed with the rows of each table in the order of its key; the queue's in its order."""

    def __init__(self) -> None:
        self._hashers = {table: hashlib.sha256(",".join(_CANON[table].names).encode()) for table in tables.PROJECTIONS}

    def update(self, table: Table, rows: Sequence[Row]) -> None:
        """Take the next rows of a table."""
        self._hashers[table].update(_CANON[table].text(rows))

    def hexdigest(self) -> str:
        """Return the hash over all tables."""
        whole = hashlib.sha256()
        for table, hasher in self._hashers.items():
            whole.update(table.name.encode() + b"\x00" + hasher.digest())
        return whole.hexdigest()


async def state_hash(dialect: Dialect, session: ReadSession) -> str:
    """Return the state hash of all projected rows; the session must be a snapshot."""
    found = StateHash()
    for table in tables.PROJECTIONS:
        async for rows in scan.all_rows(dialect, session, table):
            found.update(table, rows)
    return found.hexdigest()
