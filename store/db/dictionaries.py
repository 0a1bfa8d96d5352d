"""Reads of bodies that are compressed with a dictionary.

A body is the stored payload of an event. `compact` compresses bodies with zstd and a dictionary, which contains what
the bodies of one type of event have in common. The column `codec` of such a body contains the number of the dictionary.
A session decompresses these bodies when it reads them, so that other code never sees such a codec.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol, TypeAlias

from sqlalchemy import ColumnElement, Select, literal_column, select
from sqlalchemy.sql import ClauseElement

from store.db.tables import core as core_tables
from store.domain.body import FIRST_CODEC, PLAIN

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Row: TypeAlias = Sequence[Any]

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
    columns: list[Any] = list(statement.selected_columns)
    bases = [next(iter(column.base_columns)) for column in columns]
    places: list[tuple[int, int]] = []
    for at, base in enumerate(bases):
        if base is codec:
            of_row = columns[at].table
            places += [
                (at, place)
                for place in range(at + 1, len(columns))
                if bases[place] is body and columns[place].table is of_row
            ][:1]
    return tuple(places)


class _Session(Protocol):
    """A session that reads. See `ReadSession` in `store.db.dialect`, which imports this module."""

    async def fetch(self, sql: Any, params: Any) -> Sequence[Row]: ...


class Dictionaries:
    """The dictionaries of a partition that this process has read.

    Args:
        compiled: compiles a statement for the database.
    """

    def __init__(self, compiled: Callable[[ClauseElement], Any]) -> None:
        self._compiled = compiled
        self._known: dict[int, zstd.ZstdDict] = {}

    async def decompressed(self, session: _Session, places: BodyPlaces, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows with their bodies decompressed.

        A body that cannot be decompressed stays as it is, and its reader raises the error.

        Args:
            session: a session that sees the rows. It reads the dictionaries that are not known yet.
            places: the places of codecs and bodies in a row.
            rows: the rows.
        """
        used: set[int] = set()
        for codec_at, _ in places:
            for row in rows:
                codec = row[codec_at]
                # SQLite stores values of any type.
                if codec.__class__ is int and codec >= FIRST_CODEC:
                    used.add(codec)
        if not used:
            return rows
        if unknown := used - self._known.keys():
            await self._read(session, unknown)
        return [self._decompressed(row, places) for row in rows]

    def _decompressed(self, row: Row, places: BodyPlaces) -> Row:
        changed: list[Any] | None = None
        for codec_at, body_at in places:
            known = self._known.get(row[codec_at])
            if known is None:
                continue
            try:
                raw = zstd.decompress(row[body_at], zstd_dict=known)
            except (zstd.ZstdError, TypeError):
                continue
            changed = changed or list(row)
            changed[codec_at], changed[body_at] = PLAIN, raw
        return row if changed is None else tuple(changed)

    async def _read(self, session: _Session, codecs: Collection[int]) -> None:
        table = core_tables.dictionaries.c
        # List parameters can contain only texts. The numbers come from the database.
        wanted: list[ColumnElement[int]] = [literal_column(str(int(codec))) for codec in codecs]
        sql = self._compiled(select(table.codec, table.hash, table.content).where(table.codec.in_(wanted)))
        for codec, digest, content in await session.fetch(sql, {}):
            # With a changed dictionary, a body could be decompressed to other bytes.
            if is_intact(digest, content):
                self._known[codec] = zstd.ZstdDict(content)


def is_intact(digest: bytes, content: bytes) -> bool:
    """Return whether the content of a dictionary has the stored hash. SQLite stores values of any type."""
    return isinstance(content, bytes) and hashlib.sha256(content).digest() == digest  # pyright: ignore[reportUnnecessaryIsInstance]


class Packer:
    """Compresses bodies with a dictionary."""

    def __init__(self, content: bytes) -> None:
        self._dictionary = zstd.ZstdDict(content)
        # The codec names the dictionary, so the frames need not.
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: _LEVEL,
            zstd.CompressionParameter.dict_id_flag: 0,
        }
        self._compressor = zstd.ZstdCompressor(options=options, zstd_dict=self._dictionary)

    def packed(self, raw: bytes) -> bytes:
        """Return the compressed form of a body."""
        return self._compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)

    def raw(self, packed: bytes) -> bytes:
        """Return the body of a compressed form."""
        return zstd.decompress(packed, zstd_dict=self._dictionary)


def trained(samples: Sequence[bytes]) -> bytes | None:
    """Return the content of a dictionary for bodies like the samples; None if they are too few or too different."""
    if not any(samples):
        return None
    try:
        return zstd.train_dict(samples, _MOST_BYTES).dict_content
    except zstd.ZstdError:
        return None
