"""The beginning of the input of rollouts as text, the title of a task, and the beginning of bodies.

The input is stored in a body. Only a limited part of each body is read, except that a body that `compact` compressed
with a dictionary is read to its end.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any, Final, cast

import orjson
from sqlalchemy import ColumnElement, func, literal_column, select

from store.db.dialect import ReadSession
from store.db.queries.log import bodies_at
from store.db.tables import core as core_tables
from store.domain.body import FIRST_DICTIONARY_CODEC, ZLIB

MOST_BYTES: Final = 64 * 1024
"""The maximum number of uncompressed bytes of a body that are used.

At most this number of stored bytes is read of a body that was not compressed with a dictionary.
"""
_BEFORE_INPUT: Final = b'{"input":'
_BODIES_AT_ONCE: Final = 500
TITLE_FIELDS: Final = (
    *("title", "question", "task", "issue", "problem_statement", "problem", "instruction", "instructions"),
    *("goal", "query", "prompt", "description", "text", "content", "input"),
)
"""The fields of an input from which the title of its task is read; the first field with a text is used."""
_FIRST_TITLE: Final = re.compile(rb'"(?:%s)":"((?:[^"\\]|\\.){1,600})' % "|".join(TITLE_FIELDS).encode())
_ID_FIELDS: Final = ("instance_id", "task_id", "issue_id", "id", "name", "task_name")
_MESSAGE_FIELDS: Final = ("messages", "prompt", "conversation")
_LONGEST_ID: Final = 60
_SENTENCE: Final = re.compile(r".*?(?:[.?!。？！](?=\s|$)|$)")  # noqa: RUF001 - ends of sentences in Chinese and Japanese


async def input_starts(session: ReadSession, rollout_ids: Sequence[str], characters: int) -> dict[str, str]:
    """Return the beginning of the input of rollouts, by rollout id. Rollouts whose input was removed are left out."""
    inputs = await _inputs(session, rollout_ids)
    return {rollout_id: _start(*stored, characters) for rollout_id, stored in inputs.items()}


async def input_titles(session: ReadSession, rollout_ids: Sequence[str], characters: int) -> dict[str, str]:
    """Return the titles of the tasks of rollouts, by rollout id; see `title`.

    Rollouts whose input was removed, or contains no text, are left out.
    """
    titles: dict[str, str] = {}
    for rollout_id, stored in (await _inputs(session, rollout_ids)).items():
        raw = _unpacked(*stored)[:MOST_BYTES]
        try:
            value: Any = orjson.loads(raw)["input"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            # The body was not read to its end, so the title is read from its first field with a title.
            match = _FIRST_TITLE.search(raw)
            value = _start(*stored, characters) if match is None else _unescaped(match[1])
        if text := title(value, characters):
            titles[rollout_id] = text
    return titles


async def _inputs(session: ReadSession, rollout_ids: Sequence[str]) -> dict[str, tuple[int, bytes]]:
    """Return the codec and the beginning of the stored bodies with the inputs of rollouts, by rollout id."""
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
    return {row.rollout_id: unpacked.get(row.position, (row.codec, bytes(row.start))) for row in rows}


async def body_starts(session: ReadSession, positions: Sequence[int], stored_bytes: int) -> dict[int, bytes]:
    """Return the uncompressed beginning of bodies, by the position of their event. Missing bodies are left out.

    At most `stored_bytes` of each stored body are read, and at most `MOST_BYTES` are returned.
    """
    body = core_tables.bodies.c
    start = func.substr(body.body, 1, stored_bytes).label("start")
    starts: dict[int, bytes] = {}
    for at in range(0, len(positions), _BODIES_AT_ONCE):
        # List parameters can contain only texts. Positions come from the database, so they can be literals.
        literals: list[ColumnElement[int]] = [
            literal_column(str(int(position))) for position in positions[at : at + _BODIES_AT_ONCE]
        ]
        columns: list[ColumnElement[Any]] = [body.position, body.codec, start]
        rows = await session.fetch(session.dialect.sql(select(*columns).where(body.position.in_(literals))), {})
        starts |= {row.position: _unpacked(row.codec, bytes(row.start))[:MOST_BYTES] for row in rows}
        packed = [row.position for row in rows if row.codec >= FIRST_DICTIONARY_CODEC]
        unpacked = await bodies_at(session, packed) if packed else {}
        starts |= {position: _unpacked(*stored)[:MOST_BYTES] for position, stored in unpacked.items()}
    return starts


def _unescaped(text: bytes) -> str:
    """Return a text from the inside of a JSON string, which may be cut off within an escape or a character."""
    for end in range(len(text), max(len(text) - 6, 0), -1):
        try:
            return orjson.loads(b'"%s"' % text[:end])
        except orjson.JSONDecodeError:
            continue
    return text.decode("utf-8", "ignore")


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


def title(value: Any, most: int = 140) -> str:
    """Return the title of a task: the first sentence of its input; an empty text if the input contains no text.

    The sentence is read from the first field of `TITLE_FIELDS` that has a text, from the last message of a user in a
    list of messages, or from the input itself. A short id of the task, such as `instance_id`, precedes it.

    Args:
        value: the input of a rollout.
        most: the maximum number of characters.
    """
    lines = (" ".join(line.strip().lstrip("#*->").split()) for line in _task_text(value)[:MOST_BYTES].splitlines())
    match = _SENTENCE.match(next(filter(None, lines), ""))
    sentence = match[0].removesuffix(".").strip("*` ") if match else ""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        ids = (fields.get(name) for name in _ID_FIELDS)
        identity = next((text for text in ids if isinstance(text, str) and 0 < len(text) <= _LONGEST_ID), "")
        if identity and not sentence.casefold().startswith(identity.casefold()):
            sentence = f"{identity}: {sentence}" if sentence else identity
    if not sentence and value is not None:
        sentence = " ".join(readable(value)[: 4 * most].split())
    return sentence if len(sentence) <= most else f"{sentence[: most - 1].rstrip()}…"


def _task_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _user_text(cast("list[Any]", value))
    if not isinstance(value, dict):
        return ""
    fields = cast("dict[str, Any]", value)
    for name in TITLE_FIELDS:
        field = fields.get(name)
        if isinstance(field, str) and field.strip():
            return field
        if isinstance(field, dict) and (text := _task_text(field)):
            return text
    for name in _MESSAGE_FIELDS:
        if isinstance(fields.get(name), list) and (text := _user_text(fields[name])):
            return text
    (only,) = fields.values() if len(fields) == 1 else (None,)
    return only if isinstance(only, str) else ""


def _user_text(messages: list[Any]) -> str:
    """Return the text of the last message of a user."""
    for message in reversed(messages):
        if isinstance(message, dict) and cast("dict[str, Any]", message).get("role") == "user":
            content = cast("dict[str, Any]", message).get("content")
            parts = cast("list[Any]", content) if isinstance(content, list) else [content]
            texts = (cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part for part in parts)
            return next((text for text in texts if isinstance(text, str) and text.strip()), "")
    return ""
