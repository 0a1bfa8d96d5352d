"""Reads of the data of events that are stored in blocks. Decision 72.

The data of an event is its JSON text without payload. `compact` stores the data of 128 events together in one row of
`data_blocks`, compressed with zstd, because the data of one event is too small to be compressed well. The column `data`
of such an event contains `@` and the position of the first event of the block. A session that reads the event replaces
this reference by the data. Only copies, the search for unused blocks and the triggers read the reference.
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
from sqlalchemy import ColumnElement, CompoundSelect, Select, select
from sqlalchemy.sql import ClauseElement

from store.db.dictionaries import Rows, Session
from store.db.tables import core as core_tables
from store.errors import Corrupt

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd  # pyright: ignore[reportMissingTypeStubs] - another package may own `backports`

DataPlaces: TypeAlias = tuple[tuple[int, int], ...]
"""The indexes of the position and of the data of an event, in the columns of a statement; one pair for each event."""

EVENTS_PER_BLOCK: Final = 128
"""A read of one event decompresses its whole block. Larger blocks would save space, but make such reads slower."""
LONGEST_DATA: Final = 2048
"""The maximum number of characters of data in a block. Longer data stays in its row, so a block needs little memory."""
MARK: Final = "@"
"""The first character of a reference to a block. Data is a JSON object, so it begins with another character."""

_OPTIONS: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}
# A character has up to four bytes. Each event also has its distance and a line break.
_MOST_BYTES: Final = EVENTS_PER_BLOCK * (4 * LONGEST_DATA + 32)
# The logarithm of the largest window to base 2. It limits the memory that a decompression needs.
_WINDOW: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: 21}
_KEPT_CHARACTERS: Final = 4 * 1024 * 1024
_END: Final = 2**63
_READ_AT_ONCE: Final = 64


def data_places(statement: ClauseElement) -> DataPlaces:
    """Return the indexes of the position and the data of each event in a statement's columns.

    Raises:
        ValueError: the statement reads the data of an event without its position, or in a UNION.
    """
    if isinstance(statement, CompoundSelect) and any(data_places(part) for part in statement.selects):
        message = f"a UNION cannot read events.data: {statement}"
        raise ValueError(message)
    if not isinstance(statement, Select):
        return ()
    position, data = core_tables.events.c.position, core_tables.events.c.data
    columns: list[Any] = list(statement.selected_columns)
    bases = [next(iter(column.base_columns)) for column in columns]
    places: list[tuple[int, int]] = []
    for data_index, base in enumerate(bases):
        if base is not data:
            continue
        event_table = columns[data_index].table
        position_indexes = [
            index for index, base in enumerate(bases) if base is position and columns[index].table is event_table
        ]
        if not position_indexes:
            message = f"a statement that reads events.data must also read the position of the event: {statement}"
            raise ValueError(message)
        places.append((position_indexes[0], data_index))
    return tuple(places)


def reference(first: int) -> str:
    """Return the reference to the block that begins with the event at a position."""
    return f"{MARK}{first}"


def first_of(stored: Any) -> int | None:
    """Return the position in a reference to a block; None for a value that is not a reference."""
    # SQLite does not enforce the types of columns. Positions have at most 18 digits.
    if stored.__class__ is str and stored[:1] == MARK and stored[1:].isdecimal() and len(stored) < 20:
        first = int(stored[1:])
        return first if reference(first) == stored else None
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
        actual = error if first is None else f"a reference to block {first}, which is missing or damaged"
        raise Corrupt("the data of an event", actual, "JSON") from None


def pack(events: Sequence[tuple[int, str]]) -> bytes:
    """Return a block with the data of some events, which are given as position and data, in the order of the log.

    The first line of the uncompressed text contains the distance of each position from the previous position; the first
    distance is 0. Each further line is the data of one event. The store writes JSON without line breaks.
    """
    positions = [position for position, _ in events]
    distances = [0, *(after - before for before, after in pairwise(positions))]
    lines = [" ".join(map(str, distances)), *(data for _, data in events)]
    return zstd.compress("\n".join(lines).encode(), options=_OPTIONS)


def unpack(first: int, block: Any) -> dict[int, str] | None:
    """Return the data in the block that begins at position `first`, by position; None if the block is damaged."""
    try:
        frame = zstd.ZstdDecompressor(options=_WINDOW)
        raw = frame.decompress(block, _MOST_BYTES)
        if not frame.eof or frame.unused_data:
            return None
        numbers, *lines = raw.decode().split("\n")
        distances = list(map(int, numbers.split(" ")))
        if distances[0] or min(distances[1:], default=1) < 1:
            return None
        positions = list(accumulate([first, *distances[1:]]))
        return dict(zip(positions, lines, strict=True)) if positions[-1] < _END else None
    except (zstd.ZstdError, TypeError, ValueError):
        return None


class Database(Protocol):
    """An open database. See `Dialect` in `store.db.dialect`, which imports this module."""

    def sql(self, statement: ClauseElement) -> Any: ...

    def any_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]: ...

    def list_param(self, values: Sequence[Any]) -> Any: ...


class DataBlocks:
    """The blocks of a partition that this process has used most recently.

    Args:
        database: the database, which compiles statements.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, tuple[dict[int, str], int]] = {}
        """The blocks by first position, each with its number of characters. The most recently used blocks are last."""
        self._characters = 0
        self._forgotten = 0
        """The number of calls of `forget`. Blocks that were read before such a call are not kept after it."""
        # Sessions in several threads share the blocks.
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Remove the blocks from memory."""
        with self._lock:
            self._known.clear()
            self._characters = 0
            self._forgotten += 1

    async def restored(self, session: Session, rows: Rows, places: DataPlaces) -> Rows:
        """Return the rows of a statement with the data of events instead of references to blocks.

        A reference to a block that is missing or damaged stays as it is, and its reader raises the error.

        Args:
            session: the session that read the rows. It reads the blocks that are not in memory.
            rows: the rows.
            places: the indexes of positions and data in the rows.
        """
        for position_at, data_at in places:
            indexes = defaultdict[str, list[int]](list)
            for index, row in enumerate(rows):
                stored = row[data_at]
                if stored.__class__ is str and stored[:1] == MARK:
                    indexes[stored].append(index)
            by_first = {first: indexes[stored] for stored in indexes if (first := first_of(stored)) is not None}
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
                        changed[index] = tuple(row)
            rows = changed
        return rows

    @cached_property
    def _statement(self) -> Any:
        table = core_tables.data_blocks.c
        columns: list[ColumnElement[Any]] = [table.first_position, table.body]
        return self._database.sql(select(*columns).where(self._database.any_of(table.first_position, "firsts")))

    async def _blocks(self, session: Session, firsts: Sequence[int]) -> dict[int, dict[int, str]]:
        with self._lock:
            blocks = {first: self._known[first][0] for first in firsts if first in self._known}
            forgotten = self._forgotten
        if unknown := [first for first in firsts if first not in blocks]:
            params = {"firsts": self._database.list_param(unknown)}
            for first, stored in await session.fetch(self._statement, params):
                if (block := unpack(first, stored)) is not None:
                    blocks[first] = block
        self._keep(blocks, forgotten)
        return blocks

    def _keep(self, blocks: dict[int, dict[int, str]], forgotten: int) -> None:
        with self._lock:
            if self._forgotten != forgotten:
                return
            for first, block in blocks.items():
                _, size = self._known.pop(first, (None, 0))
                new_size = size or sum(map(len, block.values()))
                self._known[first] = block, new_size
                self._characters += new_size - size
            while self._characters > _KEPT_CHARACTERS and len(self._known) > 1:
                _, size = self._known.pop(next(iter(self._known)))
                self._characters -= size
