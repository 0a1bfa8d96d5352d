"""Figures of a scanner: results by step, version of the resources and worker; precision and recall."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Integer, Select, and_, bindparam, case, func, or_, select
from sqlalchemy.types import Text

from store.db.dialect import NamedRow, ReadSession
from store.db.queries.expressions import ONE, big
from store.db.queries.pages import joins_latest
from store.db.queries.paging import compiled
from store.db.queries.rollout_blocks import block_of, in_block
from store.db.tables import core as core_tables
from store.models.scanners import Scanner, ScanValidation

MOST_ROWS: Final = 200
_RECENT_ROLLOUTS: Final = 5_000
"""The maximum number of rollouts that `recent_rates` examines, the ones that were created last."""


@dataclass(frozen=True, slots=True)
class ScanRate:
    """The results for the attempts of a step, a version of the resources or a worker."""

    step: int | None
    resources_id: str | None
    version: int | None
    worker_id: str | None
    scanned: int
    """The number of attempts with a match or no match."""
    matches: int
    errors: int


@dataclass(frozen=True, slots=True)
class ScanCell:
    """The results for the attempts of rollouts of one block with the same step, mode and version of the resources."""

    block: int
    step: int | None
    mode: str | None
    resources_id: str | None
    version: int | None
    scanned: int
    matches: int
    errors: int


@dataclass(frozen=True, slots=True)
class WorkerScans:
    """The results for the attempts of a worker at rollouts of one block."""

    block: int
    worker_id: str
    scanned: int
    matches: int
    errors: int


@dataclass(frozen=True, slots=True)
class RecentRate:
    """The results of a version of a scanner for recent rollouts."""

    scanner: str
    """The name and the version, such as `hacks@v1`."""
    scanned: int
    """The number of attempts of the last step or period with a match or its absence."""
    matches: int
    scanned_before: int
    """The number of such attempts of the steps or the period before."""
    matches_before: int


async def cells(session: ReadSession, block: int | None = None, *, scanner: Scanner) -> list[ScanCell]:
    """Return the results for the rollouts of one block, or of all, by step, mode and version of the resources."""
    rollout, last = core_tables.rollouts.c, _last_results(block)
    keys = (block_of(), rollout.step, rollout.mode, rollout.resources_id, rollout.resources_version)
    statement = (
        select(*keys, *_sums(last))
        .select_from(last.join(core_tables.rollouts, rollout.rollout_id == last.c.rollout_id))
        .group_by(*keys)
    )
    rows = await session.fetch(session.dialect.sql(statement), _params(scanner))
    return [
        ScanCell(row.block, row.step, row.mode, row.resources_id, row.resources_version, *_counts(row)) for row in rows
    ]


async def worker_scans(session: ReadSession, block: int | None = None, *, scanner: Scanner) -> list[WorkerScans]:
    """Return the results for the rollouts of one block, or of all, by worker."""
    rollout, attempt, last = core_tables.rollouts.c, core_tables.attempts.c, _last_results(block)
    of_attempt = (attempt.rollout_id == last.c.rollout_id) & (attempt.attempt_id == last.c.attempt_id)
    source = last.join(core_tables.attempts, of_attempt)
    statement = (
        select(block_of(), attempt.worker_id, *_sums(last))
        .select_from(source.join(core_tables.rollouts, rollout.rollout_id == last.c.rollout_id))
        .where(attempt.worker_id.is_not(None))
        .group_by(block_of(), attempt.worker_id)
    )
    rows = await session.fetch(session.dialect.sql(statement), _params(scanner))
    return [WorkerScans(row.block, row.worker_id, *_counts(row)) for row in rows]


def by_worker(blocks: Iterable[WorkerScans]) -> list[ScanRate]:
    """Return the results by worker, most matches first, at most `MOST_ROWS` rows, from those of all blocks."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for part in blocks:
        for index, number in enumerate((part.scanned, part.matches, part.errors)):
            sums[part.worker_id][index] += number
    rates = [ScanRate(None, None, None, worker_id, *numbers) for worker_id, numbers in sums.items()]
    return sorted(rates, key=lambda rate: (-rate.matches, rate.worker_id or ""))[:MOST_ROWS]


async def recent_rates(
    session: ReadSession, recent: tuple[int, int], before: tuple[int, int], by: Literal["step", "time"]
) -> list[RecentRate]:
    """Return the results of all scanners for the rollouts of a recent range, and of a range before it, by scanner.

    Only the rollouts that were created last are examined, so that the cost does not grow with the store.

    Args:
        session: a connection to the database.
        recent: the first and the last value of the range.
        before: the first and the last value of the range before it.
        by: whether the values are steps, or end times in µs since the epoch.
    """
    rollout, scan = core_tables.rollouts.c, core_tables.scans.c
    latest = (
        select(rollout.rollout_id, (rollout.step if by == "step" else rollout.end_at).label("place"))
        .order_by(rollout.first_position.desc())
        .limit(big(_RECENT_ROLLOUTS))
        .subquery("latest")
    )
    place = latest.c.place
    is_recent, is_before = (place.between(big(low), big(high)) for low, high in (recent, before))
    columns: list[ColumnElement[Any]] = [
        scan.scanner,
        scan.version,
        func.count(case((is_recent, ONE))).label("scanned"),
        func.count(case((and_(is_recent, scan.is_match == 1), ONE))).label("matches"),
        func.count(case((is_before, ONE))).label("scanned_before"),
        func.count(case((and_(is_before, scan.is_match == 1), ONE))).label("matches_before"),
    ]
    # The outer join makes SQLite begin with the few rollouts. A row without a scanner counts rollouts without results.
    of_rollout = (scan.rollout_id == latest.c.rollout_id) & scan.is_match.is_not(None)
    statement = (
        select(*columns)
        .select_from(latest.outerjoin(core_tables.scans, of_rollout))
        .where(or_(is_recent, is_before))
        .group_by(scan.scanner, scan.version)
        .order_by(scan.scanner, scan.version)
    )
    return [
        RecentRate(f"{row.scanner}@{row.version}", row.scanned, row.matches, row.scanned_before, row.matches_before)
        for row in await session.fetch(session.dialect.sql(statement), {})
        if row.scanner is not None
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


def _last_results(block: int | None) -> Any:
    """Return the last result of each attempt at the rollouts of one block, or of all.

    It is a match or its absence, which are final, or the last error.
    """
    scan, later = core_tables.scans.c, core_tables.scans.alias("later")
    columns: list[ColumnElement[Any]] = [scan.rollout_id, scan.attempt_id, scan.is_match]
    follows = [
        later.c.rollout_id == scan.rollout_id,
        later.c.attempt_id == scan.attempt_id,
        later.c.scanner == scan.scanner,
        later.c.version == scan.version,
        later.c.position > scan.position,
    ]
    # Only errors, which are few, are compared with other results.
    is_last = or_(scan.is_match.is_not(None), ~select(later.c.position).where(*follows).exists())
    statement = select(*columns).where(*_of_version(), is_last)
    if block is not None:
        # With a join and a condition on the block, SQLite would read the results for all rollouts.
        rollout_id = core_tables.rollouts.c.rollout_id
        statement = statement.where(scan.rollout_id.in_(select(rollout_id).where(in_block(block))))
    return statement.subquery("last_results")


def _sums(last: Any) -> list[ColumnElement[Any]]:
    matches = func.coalesce(func.sum(last.c.is_match), 0).label("matches")
    return [func.count().label("attempts"), func.count(last.c.is_match).label("scanned"), matches]


def _counts(row: NamedRow) -> tuple[int, int, int]:
    """Return the numbers of results, of matches and of errors."""
    return int(row.scanned), int(row.matches), int(row.attempts) - int(row.scanned)


def _of_version() -> list[ColumnElement[bool]]:
    scan = core_tables.scans.c
    return [scan.scanner == bindparam("scanner", type_=Text), scan.version == bindparam("of", type_=Text)]


def _params(scanner: Scanner) -> dict[str, Any]:
    return {"scanner": scanner.name, "of": scanner.version}
