"""The beginning of the input of rollouts as text.

The input is stored in a body. Only a limited part of each body is read, except that a body that `compact` compressed
with a dictionary is read to its end.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, cast

import orjson
from sqlalchemy import ColumnElement, func, select

from store.db.dialect import ReadSession
from store.db.queries.log import bodies_at
from store.db.tables import core as core_tables
from store.domain.body import FIRST_DICTIONARY_CODEC, ZLIB

MOST_BYTES: Final = 64 * 1024
"""The maximum number of uncompressed bytes of a body that are used.

At most this number of stored bytes is read of a body that was not compressed with a dictionary.
"""
_BEFORE_INPUT: Final = b'{"input":'


async def input_starts(session: ReadSession, rollout_ids: Sequence[str], characters: int) -> dict[str, str]:
    """Return the beginning of the input of rollouts, by rollout id. Rollouts whose input was removed are left out."""
    rollout, body = core_tables.rollouts.c, core_tables.bodies.c
    columns: list[ColumnElement[Any]] = [
        rollout.rollout_id,
        body.position,
        body.codec,
        func.substr(body.body, 1, MOST_BYTES).label("start"),
    ]
    statement = (
        select(*columns)
        .select_from(core_tables.rollouts.join(core_tables.bodies, body.position == rollout.input_position))
        .where(session.dialect.any_of(rollout.rollout_id, "ids"))
    )
    rows = await session.fetch(session.dialect.sql(statement), {"ids": session.dialect.list_param(list(rollout_ids))})
    # The beginning of a body that is compressed with a dictionary cannot be read.
    packed = [row.position for row in rows if isinstance(row.codec, int) and row.codec >= FIRST_DICTIONARY_CODEC]
    unpacked = await bodies_at(session, packed)
    return {
        row.rollout_id: _start(*unpacked.get(row.position, (row.codec, bytes(row.start))), characters) for row in rows
    }


def _start(codec: int, stored: bytes, characters: int) -> str:
    raw = _unpacked(codec, stored)[:MOST_BYTES]
    try:
        value: Any = orjson.loads(raw)["input"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        # The body was not read to its end, so the text is incomplete JSON.
        text = raw.removeprefix(_BEFORE_INPUT).decode("utf-8", "ignore")
    else:
        text = readable(value)
    text = " ".join(text.split())
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _unpacked(codec: int, stored: bytes) -> bytes:
    if codec != ZLIB:
        return stored
    try:
        return zlib.decompressobj().decompress(stored, MOST_BYTES)
    except zlib.error:
        return b""


def readable(value: Any) -> str:
    """Return a readable text for an input.

    A text is returned unchanged. For an object with one field, the text of this field is returned. For any other
    object, all fields are returned in one line. Other inputs are returned as JSON.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if len(fields) == 1:
            return readable(*fields.values())
        return ", ".join(f"{name}: {_brief(field)}" for name, field in fields.items())
    return _brief(value)


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
