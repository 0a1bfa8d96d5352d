"""Reads of the table `blobs`, and comparisons of blobs with the events that refer to them. Keys are hashes in hex."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, select, union_all
from sqlalchemy.types import Integer, Text

from store.db.dialect import NamedRow, ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.domain.run_commands import IN_BLOBS

_AT_ONCE = 500


async def blob_rows(session: ReadSession, hashes: Sequence[str], *columns: ColumnElement[Any]) -> list[NamedRow]:
    """Return rows with the hash and some columns of blobs. Hashes without a blob are left out."""

    def build() -> Select[Any]:
        name = core_tables.blobs.c.hash
        return select(name, *columns).where(session.dialect.any_of(name, "hashes"))

    sql = compiled(session, ("blobs", *map(str, columns)), build)
    rows: list[NamedRow] = []
    for start in range(0, len(hashes), _AT_ONCE):
        part = session.dialect.list_param(list(hashes[start : start + _AT_ONCE]))
        rows += await session.fetch(sql, {"hashes": part})
    return rows


async def blobs_named(session: ReadSession, hashes: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return codec, raw_len and bytes of blobs, by hash. Hashes without a blob are left out."""
    blob = core_tables.blobs.c
    rows = await blob_rows(session, hashes, blob.codec, blob.raw_len, blob.body)
    return {row.hash: (row.codec, row.raw_len, row.body) for row in rows}


async def sizes(session: ReadSession, hashes: Sequence[str]) -> dict[str, int]:
    """Return the numbers of uncompressed bytes of blobs, by hash. Hashes without a blob are left out."""
    return {row.hash: row.raw_len for row in await blob_rows(session, hashes, core_tables.blobs.c.raw_len)}


async def filled(session: ReadSession, rows: Sequence[NamedRow], *, lengths: bool) -> Sequence[NamedRow]:
    """Return rows of events, and add the bodies that are stored in `blobs`.

    Args:
        session: a connection to the database.
        rows: rows with the columns of `events`, and with `codec`, `body` and, if `lengths` is True, `raw_len`.
        lengths: whether the rows contain `raw_len`, the length of the uncompressed body.
    """
    hash_by_index = {
        index: memoryview(row.body_hash).hex()
        for index, row in enumerate(rows)
        # A checkpoint whose state is stored elsewhere has no body.
        if row.type in IN_BLOBS and row.body_hash is not None
    }
    if not hash_by_index:
        return rows
    blobs = await blobs_named(session, sorted(set(hash_by_index.values())))
    complete = list(rows)
    for index, name in hash_by_index.items():
        if name not in blobs:
            continue
        codec, raw_len, body = blobs[name]
        length = {"raw_len": raw_len} if lengths else {}
        complete[index] = rows[index]._replace(codec=codec, body=body, **length)
    return complete


async def blobs_after(session: ReadSession, after: str, limit: int) -> Sequence[NamedRow]:
    """Return at most `limit` rows of `blobs` whose hashes are greater than `after`, in the order of their hashes."""

    def build() -> Select[Any]:
        name = core_tables.blobs.c.hash
        beyond = name > bindparam("after", type_=Text)
        return select(*core_tables.blobs.c).where(beyond).order_by(name).limit(bindparam("at_most", type_=Integer))

    return await session.fetch(compiled(session, "blobs_after", build), {"after": after, "at_most": limit})


async def existing(session: ReadSession, hashes: Sequence[str]) -> set[str]:
    """Return the given hashes for which there is a blob."""
    return {row.hash for row in await blob_rows(session, hashes)}


async def unclaimed(session: ReadSession) -> list[str]:
    """Return the hashes of blobs to which no event refers. The references are read from the tables of runs."""

    def build() -> Any:
        event = core_tables.events.c
        body_hashes = [
            select(session.dialect.hex(event.body_hash))
            .join(table, table.c.position == event.position)
            .where(event.body_hash.is_not(None))
            for table in (core_tables.checkpoints, core_tables.artifacts)
        ]
        row = core_tables.run_events.c
        texts = [select(text).where(text.is_not(None)) for text in (row.prompt_sha256, row.response_sha256)]
        referenced = union_all(*body_hashes, *texts).subquery("named")
        return select(core_tables.blobs.c.hash).except_(select(referenced))

    return [row.hash for row in await session.fetch(compiled(session, "unclaimed_blobs", build), {})]
