"""Figures of a scanner: results by step, version of the resources and worker, and against a validation set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Integer, Select, bindparam, case, func, select
from sqlalchemy.types import Text

from store.db.dialect import ReadSession
from store.db.queries.pages import joins_latest
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.models.scanners import Scanner, ScanValidation

ScanAxis = Literal["step", "version", "worker"]
MOST_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class ScanRate:
    """The results for the attempts of a step, a version of the resources or a worker."""

    step: int | None
    resources_id: str | None
    version: int | None
    worker_id: str | None
    scanned: int
    """The number of attempts with a match or its absence."""
    matches: int
    errors: int


async def rates(session: ReadSession, scanner: Scanner, by: ScanAxis) -> list[ScanRate]:
    """Return the results by one axis: steps from the last to the first, others by matches. At most `MOST_ROWS` rows."""
    rollout, attempt = core_tables.rollouts.c, core_tables.attempts.c
    keys: dict[ScanAxis, dict[str, ColumnElement[Any]]] = {
        "step": {"step": rollout.step},
        "version": {"resources_id": rollout.resources_id, "version": rollout.resources_version},
        "worker": {"worker_id": attempt.worker_id},
    }
    chosen = keys[by]

    def build() -> Select[Any]:
        last = _last_results()
        joined = last.join(core_tables.rollouts, rollout.rollout_id == last.c.rollout_id).join(
            core_tables.attempts,
            (attempt.rollout_id == last.c.rollout_id) & (attempt.attempt_id == last.c.attempt_id),
        )
        matches = func.coalesce(func.sum(last.c.is_match), 0)
        columns: list[ColumnElement[Any]] = [column.label(name) for name, column in chosen.items()]
        columns += [func.count().label("attempts"), func.count(last.c.is_match).label("scanned")]
        order = [rollout.step.desc()] if by == "step" else [matches.desc(), *chosen.values()]
        return (
            select(*columns, matches.label("matches"))
            .select_from(joined)
            .where(*(column.is_not(None) for column in chosen.values()))
            .group_by(*chosen.values())
            .order_by(*order)
            .limit(MOST_ROWS)
        )

    rows = await session.fetch(compiled(session, ("scan_rates", by), build), _params(scanner))
    empty: dict[str, Any] = {"step": None, "resources_id": None, "version": None, "worker_id": None}
    return [
        ScanRate(
            **empty | {name: getattr(row, name) for name in chosen},
            scanned=int(row.scanned),
            matches=int(row.matches),
            errors=int(row.attempts) - int(row.scanned),
        )
        for row in rows
    ]


async def validation(session: ReadSession, scanner: Scanner) -> ScanValidation | None:
    """Return the agreement of a scanner with the labels of rollouts; None if it has no `match_label`.

    The statement reads the rollouts with one of the labels, however many results the scanner has.
    """
    if scanner.match_label is None:
        return None
    label, scan = core_tables.labels.c, core_tables.scans.c
    rollout, attempt = core_tables.rollouts.c, core_tables.attempts.c

    def build() -> Select[Any]:
        match, clear = bindparam("match", type_=Text), bindparam("clear", type_=Text)
        is_positive = func.max(case((label.label == match, 1), else_=0))
        labelled = (
            select(label.rollout_id, is_positive.label("is_positive"))
            .where((label.label == match) | (label.label == clear))
            .group_by(label.rollout_id)
            .having(func.count() == 1)
            .subquery("labelled")
        )
        joined = (
            labelled.join(core_tables.rollouts, rollout.rollout_id == labelled.c.rollout_id)
            .join(core_tables.attempts, joins_latest(dict(rollout)))
            .join(core_tables.scans, (scan.rollout_id == rollout.rollout_id) & (scan.attempt_id == attempt.attempt_id))
        )
        columns: list[ColumnElement[Any]] = [labelled.c.is_positive, scan.is_match]
        # An attempt has at most one result of a version besides errors.
        return (
            select(*columns, func.count().label("rollouts"))
            .select_from(joined)
            .where(*_of_version(), scan.is_match.is_not(None))
            .group_by(*columns)
        )

    params = _params(scanner) | {"match": scanner.match_label, "clear": scanner.clear_label or ""}
    rows = await session.fetch(compiled(session, "scan_validation", build), params)
    counts = {(row.is_positive, row.is_match): int(row.rollouts) for row in rows}
    return ScanValidation(*(counts.get(key, 0) for key in ((1, 1), (1, 0), (0, 1), (0, 0))))


async def matching(session: ReadSession, scanner: Scanner, *, limit: int) -> list[str]:
    """Return the rollouts with the latest matches, newest match first."""
    scan = core_tables.scans.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [scan.rollout_id]
        return (
            select(*columns)
            .where(*_of_version(), scan.is_match == 1)
            .group_by(scan.rollout_id)
            .order_by(func.max(scan.position).desc())
            .limit(bindparam("most", type_=Integer))
        )

    rows = await session.fetch(compiled(session, "scan_matching", build), _params(scanner) | {"most": limit})
    return [row.rollout_id for row in rows]


def _last_results() -> Any:
    scan = core_tables.scans.c
    columns: list[ColumnElement[Any]] = [scan.rollout_id, scan.attempt_id]
    # A match or its absence is final, so that it is the maximum of the attempt's results.
    last = func.max(scan.is_match).label("is_match")
    return select(*columns, last).where(*_of_version()).group_by(*columns).subquery("last_results")


def _of_version() -> list[ColumnElement[bool]]:
    scan = core_tables.scans.c
    return [scan.scanner == bindparam("scanner", type_=Text), scan.version == bindparam("of", type_=Text)]


def _params(scanner: Scanner) -> dict[str, Any]:
    return {"scanner": scanner.name, "of": scanner.version}
