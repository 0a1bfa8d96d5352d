"""Reads of the labels and notes of one rollout, at present or at an earlier position of the log.

A rollout is a task for an agent. A position is the place of an event in the log of the store.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, select
from sqlalchemy.types import BigInteger, Integer, Text

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.bodies import payload
from store.db.queries.pages import LONGEST_ID
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.domain.events import RolloutAnnotated, upcast
from store.models.annotations import Note
from store.validation.json_limits import check_text

_MOST = 2**31 - 1


async def life(session: ReadSession, rollout_id: str) -> tuple[int, int] | None:
    """Return the positions of a rollout's first and last event; None if the rollout does not exist."""
    row = core_tables.rollouts.c

    def build() -> Select[Any]:
        shown: list[ColumnElement[Any]] = [row.first_position, row.last_position]
        return select(*shown).where(row.rollout_id == _rollout())

    rows = await session.fetch(compiled(session, "annotation_life", build), _of(rollout_id))
    return (rows[0].first_position, rows[0].last_position) if rows else None


async def labels(session: ReadSession, rollout_id: str) -> list[str]:
    """Return the sorted labels of a rollout."""
    row = core_tables.labels.c

    def build() -> Select[Any]:
        return select(row.label).where(row.rollout_id == _rollout()).order_by(row.label)

    return [label.label for label in await session.fetch(compiled(session, "labels", build), _of(rollout_id))]


async def labels_then(session: ReadSession, rollout_id: str, until: int) -> list[str]:
    """Return the labels that a rollout had after the event at the position `until`, sorted."""
    event = core_tables.events.c

    def build() -> Select[Any]:
        shown: list[ColumnElement[Any]] = [event.position, event.type, event.shape, event.data]
        return (
            select(*shown)
            .where(
                event.stream == bindparam("stream", type_=Text),
                event.type == RolloutAnnotated.type,
                event.position <= bindparam("until", type_=BigInteger),
            )
            .order_by(event.version)
        )

    params = {"stream": f"rollout/{check_text(rollout_id, 'rollout_id', LONGEST_ID)}", "until": until}
    carried: set[str] = set()
    for row in await session.fetch(compiled(session, "labels_then", build), params):
        fact = upcast(row.type, row.shape, json_of(row.data))
        assert isinstance(fact, RolloutAnnotated)  # the statement selects no other type
        carried = (carried - set(fact.removed)) | set(fact.added)
    return sorted(carried)


async def notes(session: ReadSession, rollout_id: str, until: int, limit: int) -> list[Note]:
    """Return the last `limit` notes of a rollout up to a position, oldest first. A negative limit means all notes."""
    row, event, body = core_tables.notes.c, core_tables.events.c, core_tables.bodies.c

    def build() -> Select[Any]:
        shown: list[ColumnElement[Any]] = [row.version, event.at, event.actor, body.codec, body.body]
        joined = core_tables.notes.join(core_tables.events, event.position == row.position).outerjoin(
            core_tables.bodies, body.position == row.position
        )
        return (
            select(*shown)
            .select_from(joined)
            .where(row.rollout_id == _rollout(), row.position <= bindparam("until", type_=BigInteger))
            .order_by(row.version.desc())
            .limit(bindparam("most", type_=Integer))
        )

    most = _MOST if limit < 0 else min(limit, _MOST)
    params = _of(rollout_id) | {"until": until, "most": most}
    found = await session.fetch(compiled(session, "notes", build), params)
    return [_note(each) for each in reversed(found)]


def _note(row: NamedRow) -> Note:
    told = payload(row.codec, row.body) or {}
    return Note(number=row.version, at=row.at / 1_000_000, actor=row.actor, text=told.get("note"))


def _rollout() -> ColumnElement[Any]:
    return bindparam("rollout", type_=Text)


def _of(rollout_id: str) -> dict[str, Any]:
    return {"rollout": check_text(rollout_id, "rollout_id", LONGEST_ID)}
