"""Reads for the compression of bodies with dictionaries."""

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, literal_column, select, true

from store.db.dialect import NamedRow, ReadSession, Sql
from store.db.dictionaries import DictionaryCompressor, load
from store.db.tables import core as core_tables
from store.domain.body import FIRST_DICTIONARY_CODEC

_AT_ONCE = 500
_POSITIONS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class StoredDictionary:
    """A dictionary that was not emptied."""

    codec: int
    """The number of the dictionary."""
    type: str
    """The type of event whose bodies the dictionary compresses."""
    samples: Sequence[int]
    """The positions of the bodies from which the dictionary was trained."""


@dataclass(frozen=True, slots=True)
class BodyForm:
    """The bodies of one type of event that are stored with one codec."""

    type: str
    codec: int
    bodies: int
    """The number of bodies."""
    raw_bytes: int
    """The total size of the bodies before compression, in bytes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A body that may be compressed again."""

    position: int
    type: str
    codec: int
    raw_len: int
    """The size of the body before compression, in bytes."""
    stored_len: int
    """The size of the stored body in bytes."""
    sha256: bytes | None
    """The hash of the uncompressed body, as the event of the body contains it."""


def encode_positions(positions: Iterable[int]) -> bytes:
    """Return positions in the form of the column `samples`."""
    return b"".join(position.to_bytes(8, "little") for position in positions)


def decode_positions(samples: bytes) -> list[int]:
    """Return the positions in the column `samples`."""
    return [int.from_bytes(samples[at : at + 8], "little") for at in range(0, len(samples), 8)]


async def with_content(session: ReadSession) -> list[StoredDictionary]:
    """Return the dictionaries that were not emptied, in the order of their numbers."""
    table = core_tables.dictionaries.c
    statement = (
        select(table.codec, table.type, table.samples).where(func.length(table.content) > 0).order_by(table.codec)
    )
    rows = await session.fetch(session.dialect.sql(statement), {})
    return [StoredDictionary(row.codec, row.type, decode_positions(row.samples)) for row in rows]


async def compressor(session: ReadSession, codec: int) -> DictionaryCompressor | None:
    """Return a compressor with a dictionary; None if the dictionary is missing or damaged."""
    table = core_tables.dictionaries.c
    statement: Select[*tuple[Any, ...]] = select(table.hash, table.content).where(table.codec == _number(codec))
    rows = await _fetch(session, statement)
    dictionary = load(rows[0].hash, rows[0].content) if rows else None
    return None if dictionary is None else DictionaryCompressor(dictionary)


async def types_at(session: ReadSession, positions: Sequence[int]) -> dict[int, str]:
    """Return the types of the events at some positions. Positions without an event are left out."""
    event = core_tables.events.c
    sql = session.dialect.sql(
        select(event.position, event.type).where(session.dialect.any_of(event.position, "positions"))
    )
    types: dict[int, str] = {}
    for start in range(0, len(positions), _POSITIONS_AT_ONCE):
        part = positions[start : start + _POSITIONS_AT_ONCE]
        types.update(map(tuple, await session.fetch(sql, {"positions": session.dialect.list_param(part)})))
    return types


async def rows(session: ReadSession, after: int) -> Sequence[NamedRow]:
    """Return the rows of the dictionaries with greater numbers than `after`, in the order of their numbers."""
    table = core_tables.dictionaries
    statement: Select[*tuple[Any, ...]] = select(*table.c).where(table.c.codec > _number(after))
    return await _fetch(session, statement.order_by(table.c.codec))


async def last_codec(session: ReadSession) -> int | None:
    """Return the greatest number of a dictionary, including emptied dictionaries; None if there is no dictionary."""
    rows = await session.fetch(
        session.dialect.sql(select(func.max(core_tables.dictionaries.c.codec).label("codec"))), {}
    )
    return rows[0].codec


async def lacks_samples(session: ReadSession, dictionary: StoredDictionary) -> bool:
    """Return whether one of the bodies from which a dictionary was trained was removed."""
    # This runs while the write lock is held. SQLAlchemy would need much longer for a list of this length than the
    # database. The numbers are integers, so it is safe to make them a part of the statement.
    positions = ", ".join(map(str, dictionary.samples))
    text = f"SELECT count(*) FROM {session.dialect.qualified(core_tables.bodies)} WHERE position IN ({positions})"  # noqa: S608
    ((present,),) = await session.fetch(Sql(text, (), {}), {}) if positions else [(0,)]
    return present < len(dictionary.samples)


async def sizes(session: ReadSession) -> list[BodyForm]:
    """Return the forms in which bodies are stored, each with the number and the size of its bodies."""
    event, body = core_tables.events.c, core_tables.bodies.c
    statement: Select[*tuple[Any, ...]] = (
        select(event.type, body.codec, func.count().label("bodies"), func.sum(body.raw_len).label("raw_bytes"))
        .select_from(core_tables.bodies.join(core_tables.events, event.position == body.position))
        .group_by(event.type, body.codec)
    )
    rows = await _fetch(session, statement)
    return [BodyForm(row.type, row.codec, row.bodies, int(row.raw_bytes)) for row in rows]


async def is_needed(session: ReadSession, codec: int) -> bool:
    """Return whether a body is compressed with the dictionary."""
    body = core_tables.bodies.c
    # The first condition lets SQLite use the index.
    is_compressed = body.codec >= _number(FIRST_DICTIONARY_CODEC)
    statement: Select[*tuple[Any, ...]] = (
        select(body.position).where(is_compressed, body.codec == _number(codec)).limit(1)
    )
    return bool(await _fetch(session, statement))


async def positions(
    session: ReadSession, type_: str, *, except_codecs: Collection[int], longest: int, step: int
) -> list[int]:
    """Return every `step`-th position of the bodies of a type of event with at most `longest` bytes uncompressed.

    Bodies with one of the codecs `except_codecs` are left out.
    """
    event, body = core_tables.events.c, core_tables.bodies.c
    statement = (
        select(body.position)
        .select_from(core_tables.bodies.join(core_tables.events, event.position == body.position))
        .where(session.dialect.any_of(event.type, "types"), _is_other(except_codecs), body.raw_len <= _number(longest))
        .order_by(body.position)
    )
    sample = array("q")
    count = 0
    sql, params = session.dialect.sql(statement), {"types": session.dialect.list_param([type_])}
    async for rows in session.stream(sql, params, batch=10_000):
        sample.extend(row.position for row in rows[-count % step :: step])
        count += len(rows)
    return list(sample)


async def candidates(
    session: ReadSession,
    *,
    except_codecs: Collection[int],
    after: int,
    until: int,
    limit: int,
) -> list[Candidate]:
    """Return at most `limit` bodies at positions above `after` and up to `until`, in the order of the log.

    Bodies with one of the codecs `except_codecs` are left out.
    """
    event, body = core_tables.events.c, core_tables.bodies.c
    stored_len = func.length(body.body).label("stored_len")
    columns: list[ColumnElement[Any]] = [
        *(body.position, event.type, body.codec, body.raw_len, stored_len, event.body_hash)
    ]
    statement: Select[*tuple[Any, ...]] = (
        select(*columns)
        .select_from(core_tables.bodies.join(core_tables.events, event.position == body.position))
        .where(
            _is_other(except_codecs),
            body.position > _number(after),
            body.position <= _number(until),
        )
        .order_by(body.position)
        .limit(_number(limit))
    )
    return [
        Candidate(row.position, row.type, row.codec, row.raw_len, row.stored_len, row.body_hash)
        for row in await _fetch(session, statement)
    ]


async def last_body(session: ReadSession) -> int:
    """Return the position of the last body; 0 if there is no body."""
    statement: Select[*tuple[Any, ...]] = select(
        func.coalesce(func.max(core_tables.bodies.c.position), 0).label("position")
    )
    return int((await _fetch(session, statement))[0].position)


async def codecs_at(session: ReadSession, positions: Sequence[int]) -> dict[int, int]:
    """Return the codecs of bodies by position. Positions without a body are left out."""
    body = core_tables.bodies.c
    codecs: dict[int, int] = {}
    for part in _parts(positions):
        statement: Select[*tuple[Any, ...]] = select(body.position, body.codec).where(body.position.in_(_numbers(part)))
        codecs.update(map(tuple, await _fetch(session, statement)))
    return codecs


async def _fetch(session: ReadSession, statement: Select[*tuple[Any, ...]]) -> Sequence[NamedRow]:
    return await session.fetch(session.dialect.sql(statement), {})


def _parts(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[at : at + _AT_ONCE] for at in range(0, len(numbers), _AT_ONCE)]


def _number(value: int) -> ColumnElement[int]:
    # The numbers come from the database or from this program, so it is safe to make them a part of the statement.
    return literal_column(str(int(value)))


def _is_other(codecs: Collection[int]) -> ColumnElement[bool]:
    codec = core_tables.bodies.c.codec
    return codec.not_in(_numbers(codecs)) if codecs else true()


def _numbers(values: Iterable[int]) -> list[ColumnElement[int]]:
    return [_number(value) for value in values]
