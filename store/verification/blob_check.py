"""The blobs against the hashes they are named by, and against the events that name them."""

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import orjson

from store.db.dialect import Dialect, ReadSession, Row
from store.db.queries import blobs
from store.db.queries import log as log_queries
from store.db.queries.bodies import raw_json
from store.domain.events import Json
from store.domain.run_commands import IN_BLOBS
from store.domain.run_events import RunEvent
from store.domain.thread_events import WITH_BLOBS
from store.errors import StoreError
from store.verification.differences import Differences

_BYTES_AT_ONCE = 32 * 1024 * 1024
_MOST_AT_ONCE = 2000
_POSITION, _TYPE = log_queries.EVENT_COLUMNS.index("position"), log_queries.EVENT_COLUMNS.index("type")
_DATA, _HASH = log_queries.EVENT_COLUMNS.index("data"), log_queries.EVENT_COLUMNS.index("body_hash")
_TEXTS = ("prompt_sha256", "response_sha256")
_NAMING = WITH_BLOBS | {RunEvent.type}


async def check_texts(dialect: Dialect, session: ReadSession, rows: Sequence[Row], differences: Differences) -> None:
    """Report texts and values that some events name, given as rows of `events`, and that are not there."""
    named = {name: row[_POSITION] for row in rows if row[_TYPE] in _NAMING for name in _names(row)}
    if named:
        there = await blobs.existing(dialect, session, sorted(named))
        for name in sorted(named.keys() - there):
            differences.add("blobs", name, None, f"the text that event {named[name]} names", None)


async def check_blobs(dialect: Dialect, session: ReadSession, differences: Differences) -> None:
    """Report blobs that were changed, and those that nothing names; the session must be a snapshot."""
    after, limit = "", 100
    while rows := await blobs.blobs_after(dialect, session, after, limit):
        await asyncio.to_thread(_check, rows, differences)
        after = rows[-1][0]
        size = sum(len(row[-1]) for row in rows)
        limit = max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE * len(rows) // (size + 1), 4 * len(rows)))
    for name in sorted(await _left_over(dialect, session)):
        differences.add("blobs", name, None, None, "a blob that no event names")


def _check(rows: Sequence[Row], differences: Differences) -> None:
    for name, codec, raw_len, stored in rows:
        try:
            raw = raw_json(codec, stored)
        except StoreError as refused:
            differences.add("blobs", name, "body", "bytes that can be read", str(refused))
            continue
        digest = hashlib.sha256(raw).hexdigest()
        if digest != name:
            differences.add("blobs", name, "body", name, digest)
        elif len(raw) != raw_len:
            differences.add("blobs", name, "raw_len", len(raw), raw_len)


async def _left_over(dialect: Dialect, session: ReadSession) -> set[str]:
    # The tables of runs know quickly; but they may be wrong, so whom they accuse is looked for in the log.
    accused = set(await blobs.unclaimed(dialect, session))
    after, types = 0, sorted(_NAMING | IN_BLOBS)
    while accused and (rows := await log_queries.events(dialect, session, after=after, types=types)):
        accused.difference_update(name for row in rows for name in _names(row))
        after = rows[-1][_POSITION]
    return accused


def _names(row: Row) -> Iterator[str]:
    """Yield the hashes of the blobs that an event names, whatever was done to it."""
    if row[_TYPE] in IN_BLOBS:
        if row[_HASH] is not None:
            yield bytes(row[_HASH]).hex()
        return
    text: Any = row[_DATA]
    if not isinstance(text, str) or "sha256" not in text:
        return
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return  # whoever folds it tells of it
    if isinstance(data, dict):
        named = (cast("Json", data).get(field) for field in _TEXTS)
        yield from (name for name in named if isinstance(name, str))
        several = cast("Json", data).get("sha256s")
        if isinstance(several, list):
            yield from (name for name in cast("list[Any]", several) if isinstance(name, str))
