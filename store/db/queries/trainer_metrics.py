"""Reads of the metrics of trainers. Decision 116."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select, true
from sqlalchemy.types import BigInteger

from store.db.dialect import ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.models.trainer_metrics import Metric, MetricsQuery

_END = 2**63 - 1


async def metrics(session: ReadSession, query: MetricsQuery, until: int | None) -> list[Metric]:
    """Return the last value of each name and step up to a position, in the order of names and then of steps."""

    def build() -> Select[Any]:
        row = core_tables.metrics.c
        place = func.row_number().over(partition_by=(row.name, row.step), order_by=row.position.desc())
        ranked = (
            select(row.name, row.step, row.position, row.value, row.mark, place.label("place"))
            .where(
                true() if query.names is None else session.dialect.any_of(row.name, "names"),
                row.step >= bindparam("first", type_=BigInteger),
                row.step <= bindparam("last", type_=BigInteger),
                row.position <= bindparam("until", type_=BigInteger),
            )
            .subquery("ranked")
            .c
        )
        columns: list[ColumnElement[Any]] = [ranked.name, ranked.step, ranked.position, ranked.value, ranked.mark]
        return (
            select(*columns)
            .where(ranked.place == 1)
            .order_by(ranked.step.desc(), ranked.name)
            .limit(bindparam("limit", type_=BigInteger))
        )

    params: dict[str, Any] = {
        "names": session.dialect.list_param(query.names or []),
        "first": 0 if query.first_step is None else query.first_step,
        "last": _END if query.last_step is None else query.last_step,
        "until": _END if until is None else until,
        "limit": query.limit,
    }
    if query.names is None:
        del params["names"]
    rows = await session.fetch(compiled(session, ("metrics", query.names is None), build), params)
    values = [
        Metric(name=row.name, step=row.step, value=row.value, mark=row.mark, position=row.position) for row in rows
    ]
    return sorted(values, key=lambda value: (value.name, value.step))
