"""Reads of labels, and of the notes of one rollout, at present or at an earlier position of the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select
from sqlalchemy.types import BigInteger, Integer, Text

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.bodies import payload
from store.db.queries.expressions import big
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
        columns: list[ColumnElement[Any]] = [row.first_position, row.last_position]
        return select(*columns).where(row.rollout_id == _rollout())

    rows = await session.fetch(compiled(session, "annotation_life", build), _params(rollout_id))
    return (rows[0].first_position, rows[0].last_position) if rows else None


async def labels(session: ReadSession, rollout_id: str) -> list[str]:
    """Return the sorted labels of a rollout."""
    table = core_tables.labels.c

    def build() -> Select[Any]:
        return select(table.label).where(table.rollout_id == _rollout()).order_by(table.label)

    rows = await session.fetch(compiled(session, "labels", build), _params(rollout_id))
    return [row.label for row in rows]


async def labels_in_use(session: ReadSession, *, limit: int) -> list[str]:
    """Return the first `limit` labels, in sorted order, that at least one rollout has."""
    label = core_tables.labels.c.label
    # The statement steps from label to label in the index. A label that a hundred thousand rollouts have takes only one
    # step.
    steps = select(func.min(label).label("label")).cte("steps", recursive=True)
    following = select(func.min(label)).where(label > steps.c.label).scalar_subquery()
    steps = steps.union_all(select(following).where(steps.c.label.is_not(None)))
    statement = select(steps.c.label).where(steps.c.label.is_not(None)).limit(big(limit))
    return [row.label for row in await session.fetch(session.dialect.sql(statement), {})]


async def labels_of(
    session: ReadSession, *, rollout_ids: Sequence[str], until: int | None = None
) -> dict[str, list[str]]:
    """Return the sorted labels of rollouts, by rollout id. Rollouts without labels are left out.

    With `until`, the labels are those after the event at this position.
    """
    if not rollout_ids:
        return {}
    if until is not None:
        changed = await _changed_after(session, rollout_ids, until)
        past = await labels_then(session, changed, until) if changed else {}
        return past | await labels_of(session, rollout_ids=sorted({*rollout_ids}.difference(changed)))
    table = core_tables.labels.c
    statement = (
        select(table.rollout_id, table.label)
        .where(session.dialect.any_of(table.rollout_id, "rollout_ids"))
        .order_by(table.rollout_id, table.label)
    )
    by_rollout: defaultdict[str, list[str]] = defaultdict(list)
    params = {"rollout_ids": session.dialect.list_param(list(rollout_ids))}
    for row in await session.fetch(session.dialect.sql(statement), params):
        by_rollout[row.rollout_id].append(row.label)
    return dict(by_rollout)


async def _changed_after(session: ReadSession, rollout_ids: Sequence[str], until: int) -> list[str]:
    """Return the rollouts with an event after a position of the log."""
    row = core_tables.rollouts.c
    statement = select(row.rollout_id).where(
        session.dialect.any_of(row.rollout_id, "rollout_ids"),
        row.last_position > bindparam("until", type_=BigInteger),
    )
    params = {"rollout_ids": session.dialect.list_param(list(rollout_ids)), "until": until}
    return [row.rollout_id for row in await session.fetch(session.dialect.sql(statement), params)]


async def labels_then(session: ReadSession, rollout_ids: Sequence[str], until: int) -> dict[str, list[str]]:
    """Return the sorted labels that rollouts had after the event at the position `until`, by rollout id."""
    event = core_tables.events.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [event.position, event.stream, event.type, event.shape, event.data]
        return (
            select(*columns)
            .where(
                session.dialect.any_of(event.stream, "streams"),
                event.type == RolloutAnnotated.type,
                event.position <= bindparam("until", type_=BigInteger),
            )
            .order_by(event.stream, event.version)
        )

    streams = {f"rollout/{rollout_id}": rollout_id for rollout_id in rollout_ids}
    params = {"streams": session.dialect.list_param([*streams]), "until": until}
    current: defaultdict[str, set[str]] = defaultdict(set)
    for row in await session.fetch(compiled(session, "labels_then", build), params):
        fact = upcast(row.type, row.shape, json_of(row.data))
        assert isinstance(fact, RolloutAnnotated)  # the statement selects no other type
        rollout_id = streams[row.stream]
        current[rollout_id] = (current[rollout_id] - set(fact.removed)) | set(fact.added)
    return {rollout_id: sorted(labels) for rollout_id, labels in current.items() if labels}


async def attempts_of_span(session: ReadSession, rollout_id: str, span_id: str) -> list[str]:
    """Return the attempts of a rollout that have a span with this id, in the order in which the spans were recorded."""
    span = core_tables.spans.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [span.attempt_id, span.position]
        return (
            select(*columns)
            .where(span.rollout_id == _rollout(), span.span_id == bindparam("span", type_=Text))
            .order_by(span.position)
        )

    params = _params(rollout_id) | {"span": check_text(span_id, "span_id", LONGEST_ID)}
    return [row.attempt_id for row in await session.fetch(compiled(session, "attempts_of_span", build), params)]


async def notes(session: ReadSession, rollout_id: str, until: int, limit: int) -> list[Note]:
    """Return the last `limit` notes of a rollout up to a position, oldest first. A negative limit means all notes."""
    note, event, body = core_tables.notes.c, core_tables.events.c, core_tables.bodies.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [note.version, event.at, event.actor, body.codec, body.body]
        joined = core_tables.notes.join(core_tables.events, event.position == note.position).outerjoin(
            core_tables.bodies, body.position == note.position
        )
        return (
            select(*columns)
            .select_from(joined)
            .where(note.rollout_id == _rollout(), note.position <= bindparam("until", type_=BigInteger))
            .order_by(note.version.desc())
            .limit(bindparam("most", type_=Integer))
        )

    most = _MOST if limit < 0 else min(limit, _MOST)
    params = _params(rollout_id) | {"until": until, "most": most}
    rows = await session.fetch(compiled(session, "notes", build), params)
    return [_note(row) for row in reversed(rows)]


@dataclass(frozen=True, slots=True)
class NoteOfRollout:
    """A note, and the place of its rollout in the training."""

    rollout_id: str
    step: int | None
    end_at: int | None
    """The end of the rollout in microseconds since the epoch; None if it has not ended."""
    text: str | None
    """The text; None if it was removed."""


async def last_notes(session: ReadSession, limit: int) -> list[NoteOfRollout]:
    """Return the last notes of all rollouts, newest first."""
    note, rollout, body = core_tables.notes.c, core_tables.rollouts.c, core_tables.bodies.c
    columns: list[ColumnElement[Any]] = [note.rollout_id, rollout.step, rollout.end_at, body.codec, body.body]
    joined = core_tables.notes.join(core_tables.rollouts, rollout.rollout_id == note.rollout_id)
    statement = select(*columns).select_from(joined.outerjoin(core_tables.bodies, body.position == note.position))
    rows = await session.fetch(session.dialect.sql(statement.order_by(note.position.desc()).limit(big(limit))), {})
    return [
        NoteOfRollout(row.rollout_id, row.step, row.end_at, (payload(row.codec, row.body) or {}).get("note"))
        for row in rows
    ]


def _note(row: NamedRow) -> Note:
    content = payload(row.codec, row.body) or {}
    return Note(
        number=row.version,
        at=row.at / 1_000_000,
        actor=row.actor,
        text=content.get("note"),
        span_id=content.get("span_id"),
        attempt_id=content.get("attempt_id"),
    )


def _rollout() -> ColumnElement[Any]:
    return bindparam("rollout", type_=Text)


def _params(rollout_id: str) -> dict[str, Any]:
    return {"rollout": check_text(rollout_id, "rollout_id", LONGEST_ID)}
