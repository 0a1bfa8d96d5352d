"""Reads of the data of events that are stored in blocks.

The data of an event is its JSON text without payload. `compact` stores the data of 128 events together in one row of
`data_blocks`, compressed with zstd, because the data of one event is too small to be compressed well. The column `data`
of such an event contains `@` and the position of the first event of the block. A session replaces this reference by the
data when it reads it. Only copies and the triggers read the reference.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol, TypeAlias

from orjson import JSONDecodeError, loads
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.sql import ClauseElement

from store.db.dictionaries import Rows, Session
from store.db.tables import core as core_tables
from store.errors import Corrupt

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DataPlaces: TypeAlias = tuple[tuple[int, int], ...]
"""The indexes of the position and of the data of an event, in the columns of a statement; one pair for each event."""

EVENTS_PER_BLOCK: Final = 128
"""A read of one event decompresses its whole block, so larger blocks would save space and make such reads slower."""
LONGEST_DATA: Final = 2048
"""Longer data stays in its row, so that a block always needs little memory. In characters."""
MARK: Final = "@"
"""The first character of a reference to a block. Data is a JSON object, so it begins with another character."""

_OPTIONS: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}
# A character has up to four bytes. Each event also has its distance and a line break.
_MOST_BYTES: Final = EVENTS_PER_BLOCK * (4 * LONGEST_DATA + 32)
_KEPT_BLOCKS: Final = 128
_READ_AT_ONCE: Final = 64


def data_places(statement: ClauseElement) -> DataPlaces:
    """Return the indexes of the position and the data of each event in a statement's columns.

    Raises:
        ValueError: the statement reads the data of an event without its position.
    """
    if not isinstance(statement, Select):
        return ()
    position, data = core_tables.events.c.position, core_tables.events.c.data
    columns: list[Any] = list(statement.selected_columns)
    bases = [next(iter(column.base_columns)) for column in columns]
    places: list[tuple[int, int]] = []
    for at, base in enumerate(bases):
        if base is not data:
            continue
        of_event = columns[at].table
        beside = [place for place, each in enumerate(bases) if each is position and columns[place].table is of_event]
        if not beside:
            message = f"a statement that reads events.data must also read the position of the event: {statement}"
            raise ValueError(message)
        places.append((beside[0], at))
    return tuple(places)


def reference(first: int) -> str:
    """Return the reference to the block that begins with the event at a position."""
    return f"{MARK}{first}"


def first_of(stored: Any) -> int | None:
    """Return the position in a reference to a block; None for a value that is not a reference."""
    # SQLite does not enforce the types of columns. Positions have at most 18 digits.
    if stored.__class__ is str and stored[:1] == MARK and stored[1:].isdecimal() and len(stored) < 20:
        return int(stored[1:])
    return None


def json_of(stored: str) -> Any:
    """Return the data of an event, given the value of the column `data` as a session returns it.

    Raises:
        Corrupt: the value is not JSON, or the block of the data is missing or damaged.
    """
    try:
        return loads(stored)
    except JSONDecodeError as error:
        first = first_of(stored)
        found = error if first is None else f"a reference to block {first}, which is missing or damaged"
        raise Corrupt("the data of an event", found, "JSON") from None


def pack(events: Sequence[tuple[int, str]]) -> bytes:
    """Return a block with the data of some events, which are given as position and data, in the order of the log.

    The first line of the uncompressed text contains the distance of each position from the position before. Each of the
    other lines is the data of one event. JSON has no line breaks outside of values, and within values they are escaped.
    """
    positions = [position for position, _ in events]
    distances = [0, *(after - before for before, after in pairwise(positions))]
    lines = [" ".join(map(str, distances)), *(data for _, data in events)]
    return zstd.compress("\n".join(lines).encode(), options=_OPTIONS)


def unpack(first: int, block: Any) -> dict[int, str] | None:
    """Return the data in a block by position; None if the block is damaged."""
    try:
        frame = zstd.ZstdDecompressor()
        raw = frame.decompress(block, _MOST_BYTES)
        if not frame.eof or frame.unused_data:
            return None
        distances, *lines = raw.decode().split("\n")
        positions = accumulate(map(int, distances.split(" ")), initial=first)
        next(positions)
        return dict(zip(positions, lines, strict=True))
    except (zstd.ZstdError, TypeError, ValueError):
        return None


class Database(Protocol):
    """An open database. See `Dialect` in `store.db.dialect`, which imports this module."""

    def sql(self, statement: ClauseElement) -> Any: ...

    def any_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]: ...

    def list_param(self, values: Sequence[Any]) -> Any: ...


class DataBlocks:
    """The blocks of a partition that this process has read last.

    Args:
        database: the database, which compiles statements.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, dict[int, str]] = {}
        # Sessions in several threads share the blocks.
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Read each block again when it is used next."""
        with self._lock:
            self._known.clear()

    async def restored(self, session: Session, rows: Rows, places: DataPlaces) -> Rows:
        """Return the rows of a statement with the data of events instead of references to blocks.

        A reference to a block that is missing or damaged stays as it is, and its reader raises the error.

        Args:
            session: the session that read the rows. It reads the blocks that are not known yet.
            rows: the rows.
            places: the places of positions and data in the rows.
        """
        for position_at, data_at in places:
            found = defaultdict[str, list[int]](list)
            for index, row in enumerate(rows):
                stored = row[data_at]
                if stored.__class__ is str and stored[:1] == MARK:
                    found[stored].append(index)
            by_first = {first: found[stored] for stored in found if (first := first_of(stored)) is not None}
            if not by_first:
                continue
            changed = list(rows)
            firsts = list(by_first)
            # Each event may be in another block. So only some of the blocks are in memory at a time.
            for start in range(0, len(firsts), _READ_AT_ONCE):
                blocks = await self._blocks(session, firsts[start : start + _READ_AT_ONCE])
                for first, block in blocks.items():
                    for index in by_first[first]:
                        row = list(rows[index])
                        row[data_at] = block.get(row[position_at], row[data_at])
                        changed[index] = row
            rows = changed
        return rows

    @cached_property
    def _statement(self) -> Any:
        table = core_tables.data_blocks.c
        columns: list[ColumnElement[Any]] = [table.first_position, table.body]
        return self._database.sql(select(*columns).where(self._database.any_of(table.first_position, "firsts")))

    async def _blocks(self, session: Session, firsts: Sequence[int]) -> dict[int, dict[int, str]]:
        with self._lock:
            blocks = {first: block for first in firsts if (block := self._known.get(first)) is not None}
        if unknown := [first for first in firsts if first not in blocks]:
            params = {"firsts": self._database.list_param(unknown)}
            for first, stored in await session.fetch(self._statement, params):
                if (block := unpack(first, stored)) is not None:
                    blocks[first] = block
        with self._lock:
            # The blocks that were used last are the last in the dictionary.
            for first, block in blocks.items():
                self._known.pop(first, None)
                self._known[first] = block
            while len(self._known) > _KEPT_BLOCKS:
                del self._known[next(iter(self._known))]
        return blocks
