"""One hash for all projected rows: equal for the same commands at the same stamps, on every database.

Positions, commit ids and versions say where facts lie, not what they are, so they are left out; the queue and the
rewards of a rollout count by their order. A released claim left nothing behind but its facts, so its row is left out.
"""

import hashlib
from collections.abc import Sequence
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
    """The canonical text of a table's rows: JSON objects with sorted keys, one per line."""

    def __init__(self, table: Table) -> None:
        names = [column.name for column in table.columns]
        self.names = tuple(sorted(name for name in names if name not in _PLACES))
        shown = [names.index(name) for name in self.names]
        only = shown[0]
        self._pick = itemgetter(*shown) if len(shown) > 1 else lambda row: (row[only],)
        self._floats = tuple(index for index, name in enumerate(self.names) if isinstance(table.c[name].type, Double))
        self._released = names.index("released_position") if "released_position" in names else None

    def lines(self, rows: Sequence[Row]) -> bytes:
        if self._released is not None:
            rows = [row for row in rows if row[self._released] is None]
        names, pick, floats, line = self.names, self._pick, self._floats, orjson.dumps
        texts: list[bytes] = []
        for row in rows:
            values: Any = pick(row)
            for index in floats:
                value = values[index]
                # In this range Python and every JSON library write a float the same way.
                if value and not 1e-4 <= abs(value) < 1e16:
                    values = tuple(_exact(each) if isinstance(each, float) else each for each in values)
                    break
            texts.append(line(dict(zip(names, values, strict=True)), option=orjson.OPT_APPEND_NEWLINE))
        return b"".join(texts)


def _exact(value: float) -> orjson.Fragment:
    return orjson.Fragment(repr(value))


_CANON = {table: _Canon(table) for table in tables.PROJECTIONS}


class StateHash:
    """The state hash, fed with the rows of each table in the order of its key; the queue's in its order."""

    def __init__(self) -> None:
        self._hashers = {table: hashlib.sha256() for table in tables.PROJECTIONS}

    def update(self, table: Table, rows: Sequence[Row]) -> None:
        """Take the next rows of a table."""
        self._hashers[table].update(_CANON[table].lines(rows))

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
