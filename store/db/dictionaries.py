"""Reads of bodies that are compressed with a dictionary. Decision 65.

`compact` compresses bodies with zstd and a dictionary. The dictionary contains the parts that the bodies of one type of
event have in common. The column `codec` of such a body contains the number of the dictionary. A session decompresses
these bodies when it reads them. Only copies and the compression itself read such a codec.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from sqlalchemy import ColumnElement, Label, Select, literal_column, select
from sqlalchemy.sql import ClauseElement

from store.db.tables import core as core_tables
from store.domain.body import FIRST_DICTIONARY_CODEC, PLAIN
from store.domain.rows import NamedRow

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd  # pyright: ignore[reportMissingTypeStubs] - another package may own `backports`

Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]

_LEVEL: Final = 3
# With 112 KiB, which is the default of the zstd command, bodies are a few percent smaller, and reads take longer.
_MOST_BYTES: Final = 64 * 1024

BodyPlaces: TypeAlias = tuple[tuple[int, int], ...]
"""The indexes of a codec and of the body that belongs to it, in the columns of a statement; one pair for each body."""


def body_places(statement: ClauseElement) -> BodyPlaces:
    """Return the indexes of each `codec` of a body, and of the `body` that belongs to it, in a statement's columns."""
    if not isinstance(statement, Select):
        return ()
    codec, body = core_tables.bodies.c.codec, core_tables.bodies.c.body
    columns: list[Any] = [
        column.element if isinstance(column, Label) else column for column in statement.selected_columns
    ]
    bases = [next(iter(column.base_columns)) for column in columns]
    places: list[tuple[int, int]] = []
    for codec_index, base in enumerate(bases):
        if base is codec:
            table = columns[codec_index].table
            places += [
                (codec_index, body_index)
                for body_index in range(codec_index + 1, len(columns))
                if bases[body_index] is body and columns[body_index].table is table
            ][:1]
    return tuple(places)


class Statement(Protocol):
    """A compiled statement. See `Sql` in `store.db.dialect`, which imports this module."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Session(Protocol):
    """A session that reads. See `ReadSession` in `store.db.dialect`, which imports this module."""

    async def fetch(self, sql: Any, params: Any) -> Sequence[NamedRow]: ...


class Dictionaries:
    """The dictionaries of a partition that this process has read.

    Args:
        compiled: compiles a statement for the database.
    """

    def __init__(self, compiled: Callable[[ClauseElement], Any]) -> None:
        self._compiled = compiled
        self._known: dict[int, zstd.ZstdDict] = {}

    async def decompressed(
        self,
        session: Session,
        sql: Statement,
        places: BodyPlaces,
        params: Any,
        rows: Rows,
        *,
        can_repeat: bool = False,
    ) -> Rows:
        """Return the rows of a statement with their bodies decompressed.

        A body that cannot be decompressed stays as it is, and its reader raises the error.

        Args:
            session: the session that read the rows. It reads the dictionaries that are not in memory.
            sql: the statement.
            places: the indexes of codecs and bodies in the columns of the statement.
            params: the parameters of the statement.
            rows: the rows of the statement.
            can_repeat: whether to execute the statement again if a dictionary is missing. Outside of a snapshot, a
                dictionary may be emptied after the rows were read; the bodies are then stored in another form.
        """
        used = _dictionaries_in(rows, places)
        if not used:
            return rows
        if unknown := used - self._known.keys():
            await self._read(session, unknown)
            if can_repeat and not used <= self._known.keys():
                rows = await session.fetch(replace(sql, places=None), params)
        return [self._decompressed(row, places) for row in rows]

    def _decompressed(self, row: Row, places: BodyPlaces) -> Row:
        changed: list[Any] | None = None
        for codec_at, body_at in places:
            dictionary = self._known.get(row[codec_at])
            if dictionary is None:
                continue
            frame = zstd.ZstdDecompressor(zstd_dict=dictionary)
            try:
                raw = frame.decompress(row[body_at])
            except (zstd.ZstdError, TypeError):
                continue
            if frame.eof and not frame.unused_data:
                changed = changed or list(row)
                changed[codec_at], changed[body_at] = PLAIN, raw
        return row if changed is None else tuple(changed)

    async def _read(self, session: Session, codecs: Collection[int]) -> None:
        table = core_tables.dictionaries.c
        # The numbers come from the database, so it is safe to make them a part of the statement.
        literals: list[ColumnElement[int]] = [literal_column(str(int(codec))) for codec in codecs]
        sql = self._compiled(select(table.codec, table.hash, table.content).where(table.codec.in_(literals)))
        for row in await session.fetch(sql, {}):
            if (dictionary := load(row.hash, row.content)) is not None:
                self._known[row.codec] = dictionary


def _dictionaries_in(rows: Rows, places: BodyPlaces) -> set[int]:
    used: set[int] = set()
    for codec_at, _ in places:
        for row in rows:
            codec = row[codec_at]
            # SQLite does not enforce the types of columns.
            if codec.__class__ is int and codec >= FIRST_DICTIONARY_CODEC:
                used.add(codec)
    return used


def load(digest: Any, content: Any) -> zstd.ZstdDict | None:
    """Return a dictionary; None if the content does not match the stored hash, or is not a dictionary.

    With a changed dictionary, a body could be decompressed to other bytes.
    """
    if not isinstance(content, bytes) or hashlib.sha256(content).digest() != digest:
        return None
    try:
        dictionary = zstd.ZstdDict(content)
        zstd.compress(b"{}", zstd_dict=dictionary)
    except (ValueError, zstd.ZstdError):
        return None
    return dictionary


class DictionaryCompressor:
    """Compresses bodies with a dictionary."""

    def __init__(self, dictionary: zstd.ZstdDict) -> None:
        self._dictionary = dictionary
        # The codec identifies the dictionary, so the frames do not repeat its id.
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: _LEVEL,
            zstd.CompressionParameter.dict_id_flag: 0,
            # With a wrong dictionary, the decompression fails instead of returning other bytes.
            zstd.CompressionParameter.checksum_flag: 1,
        }
        self._compressor = zstd.ZstdCompressor(options=options, zstd_dict=self._dictionary)

    def compress(self, raw: bytes) -> bytes:
        """Return the compressed form of a body."""
        return self._compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)

    def decompress(self, compressed: bytes) -> bytes:
        """Return the body of a compressed form."""
        return zstd.decompress(compressed, zstd_dict=self._dictionary)


def train(samples: Sequence[bytes]) -> zstd.ZstdDict | None:
    """Return a dictionary for bodies like the samples; None if the samples are too few or too different."""
    if not any(samples):
        return None
    try:
        return zstd.train_dict(samples, _MOST_BYTES)
    except zstd.ZstdError:
        return None
