"""Reads for the removal of payload: rollouts that a policy selects, and the payload of their events.

The table `dropped` contains the positions of the events whose payload was removed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, literal_column, select
from sqlalchemy.types import BigInteger

from store.db.data_blocks import json_of
from store.db.dialect import Dialect, NamedRow, ReadSession
from store.db.queries.blobs import blob_rows
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.domain.rollout import TERMINAL

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions on rollouts. All of them must be fulfilled; an empty condition is always fulfilled."""

    statuses: Collection[str]
    ended_before: int | None = None
    """The rollout ended at or before this time, in µs since the epoch."""
    modes: Collection[str] = ()
    groups: Collection[str] = ()
    labels: Collection[str] = ()
    """The rollout has all of these labels."""
    without_labels: Collection[str] = ()
    """The rollout has none of these labels."""
    newest_kept: int = 0
    """In each group, this many rollouts, those created last, are never selected.

    All rollouts without a group are one group.
    """


@dataclass(frozen=True, slots=True)
class Payload:
    """The payload of an event."""

    position: int
    stream: str
    type: str
    version: int
    data: str
    body_bytes: int | None
    """The number of bytes of the body as it is stored; None if the payload is stored only in blobs."""
    rollout_id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rollout_id", self.stream.removeprefix("rollout/"))


async def finished_rollouts(session: ReadSession, selection: Selection) -> list[str]:
    """Return the ids of the finished rollouts that fulfil the conditions, in ascending order of their end."""
    rollout, label = core_tables.rollouts.c, core_tables.labels.c
    statement = select(rollout.rollout_id).where(session.dialect.any_of(rollout.status, "statuses"))
    params: dict[str, Any] = {"statuses": session.dialect.list_param(sorted(set(selection.statuses) & TERMINAL))}
    if selection.ended_before is not None:
        statement = statement.where(rollout.end_at <= bindparam("ended_before", type_=BigInteger))
        params["ended_before"] = selection.ended_before
    for column, name, values in (
        (rollout.mode, "modes", selection.modes),
        (rollout.group_id, "groups", selection.groups),
    ):
        if values:
            statement = statement.where(session.dialect.any_of(column, name))
            params[name] = session.dialect.list_param(sorted(values))
    for number, label_name in enumerate(sorted(selection.labels)):
        has_label = (label.rollout_id == rollout.rollout_id) & session.dialect.any_of(label.label, f"label_{number}")
        statement = statement.where(select(label.label).where(has_label).exists())
        params[f"label_{number}"] = session.dialect.list_param([label_name])
    if selection.without_labels:
        has_one = (label.rollout_id == rollout.rollout_id) & session.dialect.any_of(label.label, "without")
        statement = statement.where(~select(label.label).where(has_one).exists())
        params["without"] = session.dialect.list_param(sorted(selection.without_labels))
    if selection.newest_kept:
        rank = func.row_number().over(partition_by=rollout.group_id, order_by=rollout.first_position.desc())
        ranked = select(rollout.rollout_id.label("ranked_id"), rank.label("place")).subquery("ranked")
        older = select(ranked.c.ranked_id).where(ranked.c.place > bindparam("newest_kept", type_=BigInteger))
        statement = statement.where(rollout.rollout_id.in_(older))
        params["newest_kept"] = selection.newest_kept
    statement = statement.order_by(rollout.end_at, rollout.first_position)
    return [row.rollout_id for row in await session.fetch(session.dialect.sql(statement), params)]


async def payload_of(session: ReadSession, rollout_ids: Sequence[str], *, with_removed: bool = False) -> list[Payload]:
    """Return the payload of all events of some rollouts in the order of the log.

    Payload that was removed is left out, unless `with_removed` is true.
    """

    def build() -> Select[Any]:
        statement = _payload(session.dialect).where(session.dialect.any_of(core_tables.events.c.stream, "streams"))
        return statement if with_removed else statement.where(core_tables.dropped.c.position.is_(None))

    params = {"streams": session.dialect.list_param([f"rollout/{rollout_id}" for rollout_id in rollout_ids])}
    rows = await session.fetch(compiled(session, ("payload_of", with_removed), build), params)
    return list(map(_payload_of_row, rows))


async def payload_between(session: ReadSession, after: int, until: int) -> list[Payload]:
    """Return the payload of events of rollouts. The events have positions above `after` and up to `until`.

    Payload that was removed is left out.
    """

    def build() -> Select[Any]:
        event = core_tables.events.c
        return _payload(session.dialect).where(
            event.position > bindparam("after", type_=BigInteger),
            event.position <= bindparam("until", type_=BigInteger),
            event.stream.like("rollout/%"),
            core_tables.dropped.c.position.is_(None),
        )

    statement = compiled(session, "payload_between", build)
    return list(map(_payload_of_row, await session.fetch(statement, {"after": after, "until": until})))


def _payload_of_row(row: NamedRow) -> Payload:
    return Payload(row.position, row.stream, row.type, row.version, row.data, row.body_bytes)


def _payload(dialect: Dialect) -> Select[Any]:
    """Return the statement that reads the payload of all events, in the order of the log."""
    event, body, dropped = core_tables.events.c, core_tables.bodies.c, core_tables.dropped.c
    columns: list[ColumnElement[Any]] = [event.position, event.stream, event.type, event.version, event.data]
    names_blobs = (event.type == "run.event") & dialect.contains(event.data, "_sha256")
    return (
        select(*columns, func.length(body.body).label("body_bytes"))
        .outerjoin(core_tables.bodies, body.position == event.position)
        .outerjoin(core_tables.dropped, dropped.position == event.position)
        .where(event.body_hash.is_not(None) | names_blobs)
        .order_by(event.position)
    )


async def still_finished(session: ReadSession, rollout_ids: Collection[str]) -> set[str]:
    """Return the ids in `rollout_ids` of the rollouts that have a terminal status."""

    def build() -> Select[Any]:
        rollout = core_tables.rollouts.c
        return select(rollout.rollout_id).where(
            session.dialect.any_of(rollout.rollout_id, "ids"), session.dialect.any_of(rollout.status, "statuses")
        )

    params = {
        "ids": session.dialect.list_param(sorted(rollout_ids)),
        "statuses": session.dialect.list_param(sorted(TERMINAL)),
    }
    return {row.rollout_id for row in await session.fetch(compiled(session, "still_finished", build), params)}


async def removed_among(session: ReadSession, positions: Sequence[int]) -> set[int]:
    """Return the positions in `positions` at which the payload of the event was removed."""
    position_column, removed = core_tables.dropped.c.position, set[int]()
    for start in range(0, len(positions), _AT_ONCE):
        # Positions come from the database, so it is safe to make them a part of the statement.
        literals: list[ColumnElement[int]] = [
            literal_column(str(int(position))) for position in positions[start : start + _AT_ONCE]
        ]
        removed |= {
            row.position
            for row in await session.fetch(
                session.dialect.sql(select(position_column).where(position_column.in_(literals))), {}
            )
        }
    return removed


async def removed_between(session: ReadSession, first: int, last: int) -> set[int]:
    """Return the positions from `first` to `last` at which the payload of the event was removed."""

    def build() -> Select[Any]:
        position = core_tables.dropped.c.position
        low, high = bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
        return select(position).where(position >= low, position <= high)

    rows = await session.fetch(compiled(session, "removed_between", build), {"first": first, "last": last})
    return {row.position for row in rows}


async def policies_of(session: ReadSession, rollout_id: str) -> list[str]:
    """Return a text for each policy that removed payload of a rollout: the policy, and its reason if there is one."""

    def build() -> Select[Any]:
        event, dropped, ordering = core_tables.events.c, core_tables.dropped.c, core_tables.events.alias("ordering")
        columns: list[ColumnElement[Any]] = [ordering.c.position, ordering.c.data]
        return (
            select(*columns)
            .distinct()
            .select_from(core_tables.events)
            .join(core_tables.dropped, dropped.position == event.position)
            .join(ordering, ordering.c.position == dropped.event_position)
            .where(session.dialect.any_of(event.stream, "streams"))
        )

    params = {"streams": session.dialect.list_param([f"rollout/{rollout_id}"])}
    removals = [json_of(row.data) for row in await session.fetch(compiled(session, "policies_of", build), params)]
    return sorted(
        {
            f"{ordering['policy']} ({ordering['reason']})" if "reason" in ordering else ordering["policy"]
            for ordering in removals
        }
    )


async def blob_sizes(session: ReadSession, hashes: Sequence[str]) -> dict[str, int]:
    """Return the stored sizes of blobs in bytes, by hash. Hashes without a blob are left out."""
    size = func.length(core_tables.blobs.c.body).label("size")
    return {row.hash: row.size for row in await blob_rows(session, hashes, size)}


async def has_blobs(session: ReadSession) -> bool:
    """Return whether there is any blob."""
    return bool(await session.fetch(session.dialect.sql(select(core_tables.blobs.c.hash).limit(1)), {}))


async def size_of_bodies(session: ReadSession) -> int:
    """Return the sum of the stored sizes of all bodies, in bytes."""
    total = select(func.coalesce(func.sum(func.length(core_tables.bodies.c.body)), 0).label("size"))
    return int((await session.fetch(session.dialect.sql(total), {}))[0].size)


async def last_version(session: ReadSession, stream: str) -> int:
    """Return the version of the last event of a stream; 0 if the stream has no event."""
    event = core_tables.events.c
    statement = select(func.coalesce(func.max(event.version), 0).label("version")).where(
        session.dialect.any_of(event.stream, "streams")
    )
    rows = await session.fetch(session.dialect.sql(statement), {"streams": session.dialect.list_param([stream])})
    return int(rows[0].version)
