"""Reads of scanners and their results. Decision 117."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select
from sqlalchemy.types import BigInteger, Integer, Text

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.bodies import payload
from store.db.queries.expressions import one_of
from store.db.queries.paging import compiled
from store.db.queries.records import columns_of, records
from store.db.queries.rollout_blocks import block_of, in_block
from store.db.queries.scan_figures import validation
from store.db.tables import core as core_tables
from store.domain.events import ScannerAdded, upcast
from store.domain.rollout import TERMINAL
from store.models.scanners import Scan, ScanError, Scanner, UnscannedAttempt
from store.validation.scores import VersionKey

_END = 2**63 - 1
_ROLLOUT = "rollout/"
"""The prefix of the streams of rollouts."""


async def scanners(
    session: ReadSession, until: int | None, counts: Iterable[ResultCount] | None = None
) -> list[Scanner]:
    """Return the versions of scanners that were added up to a position, with the numbers of their results.

    Their agreement with labels is read for the present only (`until` is None). `counts` are the `result_counts` of all
    blocks up to the position; without them, they are read.
    """
    is_present, until = until is None, _END if until is None else until

    def build() -> Select[Any]:
        event, body = core_tables.events.c, core_tables.bodies.c
        columns: list[ColumnElement[Any]] = [event.position, event.shape, event.data, event.at]
        columns += [event.actor, body.codec, body.body]
        joined = core_tables.events.outerjoin(core_tables.bodies, body.position == event.position)
        return (
            select(*columns)
            .select_from(joined)
            # The range of the streams of scanners: `0` follows `/`.
            .where(event.stream >= "scanner/", event.stream < "scanner0", event.position <= _until())
        )

    results: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for part in await result_counts(session, until=until) if counts is None else counts:
        for index, number in enumerate((part.matches, part.results - part.matches, part.attempts - part.results)):
            results[part.scanner, part.version][index] += number
    added: list[Scanner] = []
    for row in await session.fetch(compiled(session, "scanners", build), {"until": until}):
        fact = upcast(ScannerAdded.type, row.shape, json_of(row.data))
        assert isinstance(fact, ScannerAdded)  # the streams have no other events
        numbers = dict(zip(("matches", "clear", "failures"), results[fact.name, fact.version], strict=True))
        content: dict[str, Any] = {"name": fact.name, "version": fact.version, "kind": fact.kind, **numbers}
        labels = {"match_label": fact.match_label, "clear_label": fact.clear_label}
        definition = (payload(row.codec, row.body) or {}).get("definition", {})
        scanner = Scanner(definition=definition, at=row.at / 1_000_000, actor=row.actor, **labels, **content)
        judged = await validation(session, scanner) if is_present else None
        added.append(scanner.model_copy(update={"validation": judged}))
    return sorted(added, key=lambda scanner: (scanner.name, scanner.version))


@dataclass(frozen=True, slots=True)
class ResultCount:
    """The numbers of attempts at rollouts of one block, by the last result of a version of a scanner."""

    block: int
    scanner: str
    version: str
    attempts: int
    results: int
    """The number of attempts with a match or its absence."""
    matches: int


async def result_counts(session: ReadSession, block: int | None = None, *, until: int = _END) -> list[ResultCount]:
    """Return the numbers of results for the rollouts of one block, or of all, up to a position."""
    scan, later, rollout = core_tables.scans.c, core_tables.scans.alias("later"), core_tables.rollouts.c
    totals: dict[str, ColumnElement[Any]] = {
        "block": block_of(),
        "attempts": func.count(),
        "results": func.count(scan.is_match),
        "matches": func.coalesce(func.sum(scan.is_match), 0),
    }
    follows = [
        later.c.rollout_id == scan.rollout_id,
        later.c.attempt_id == scan.attempt_id,
        later.c.scanner == scan.scanner,
        later.c.version == scan.version,
        later.c.position > scan.position,
        later.c.position <= _until(),
    ]
    # A match or its absence is final. Only errors, which are few, are compared with later results.
    is_last = or_(scan.is_match.is_not(None), ~select(later.c.position).where(*follows).exists())
    statement = (
        select(*columns_of(ResultCount, dict(scan), totals))
        .select_from(core_tables.scans.join(core_tables.rollouts, rollout.rollout_id == scan.rollout_id))
        .where(scan.position <= _until(), is_last, in_block(block))
        .group_by(block_of(), scan.scanner, scan.version)
    )
    return records(ResultCount, await session.fetch(session.dialect.sql(statement), {"until": until}))


async def scans(
    session: ReadSession, rollout_ids: Sequence[str], version: VersionKey | None, until: int | None
) -> list[Scan]:
    """Return the last result of each scanner and version for each attempt of some rollouts, up to a position."""

    def build() -> Select[Any]:
        scan, event, body = core_tables.scans.c, core_tables.events.c, core_tables.bodies.c
        joined = core_tables.scans.join(core_tables.events, event.position == scan.position).outerjoin(
            core_tables.bodies, body.position == scan.position
        )
        conditions = [session.dialect.any_of(scan.rollout_id, "rollouts"), scan.position <= _until()]
        if version is not None:
            conditions += _of_scanner()
        return (
            select(*scan, event.version.label("number"), event.at, event.actor, body.codec, body.body)
            .select_from(joined)
            .where(*conditions)
            .order_by(scan.rollout_id, scan.position)
        )

    params = {
        "rollouts": session.dialect.list_param(rollout_ids),
        "until": _END if until is None else until,
        **({} if version is None else {"scanner": version.name, "version": version.version}),
    }
    rows = await session.fetch(compiled(session, ("scans", version is None), build), params)
    last = {(row.rollout_id, row.attempt_id, row.scanner, row.version): row for row in rows}
    return [_scan(row) for row in rows if row is last[row.rollout_id, row.attempt_id, row.scanner, row.version]]


async def matches_of(session: ReadSession, rollout_ids: Sequence[str], until: int) -> dict[tuple[str, str], list[str]]:
    """Return the scanners, such as `hacks@v1`, that matched attempts of some rollouts up to a position.

    The keys are pairs of a rollout id and an attempt id. Attempts without a match are left out.
    """
    scan = core_tables.scans.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [scan.rollout_id, scan.attempt_id, scan.scanner, scan.version]
        is_one = session.dialect.any_of(scan.rollout_id, "rollouts")
        return select(*columns).where(is_one, scan.is_match == 1, scan.position <= _until())

    params = {"rollouts": session.dialect.list_param(rollout_ids), "until": until}
    matches: dict[tuple[str, str], list[str]] = {}
    for row in await session.fetch(compiled(session, "scan_matches", build), params):
        matches.setdefault((row.rollout_id, row.attempt_id), []).append(f"{row.scanner}@{row.version}")
    return matches


async def unscanned(
    session: ReadSession,
    *,
    key: VersionKey,
    limit: int,
    after: str | None,
    retry_errors: bool,
    changed_after: int | None,
) -> list[UnscannedAttempt] | None:
    """Return the latest attempts of ended rollouts without a result, in order of creation.

    With `changed_after`, the rollouts are looked up from the events after this position. Return None if the rollout
    `after` does not exist.
    """
    rollout, attempt, scan = core_tables.rollouts.c, core_tables.attempts.c, core_tables.scans.c
    start = 0
    if after is not None:
        place = select(rollout.first_position).where(rollout.rollout_id == bindparam("rollout", type_=Text))
        rows = await session.fetch(session.dialect.sql(place), {"rollout": after})
        if not rows:
            return None
        start = rows[0].first_position

    def build() -> Select[Any]:
        is_latest = and_(
            attempt.rollout_id == rollout.rollout_id,
            attempt.sequence_id == rollout.attempt_count,
            attempt.released_position.is_(None),
        )
        conditions = [
            scan.rollout_id == rollout.rollout_id,
            scan.attempt_id == attempt.attempt_id,
            *_of_scanner(),
            *([scan.is_match.is_not(None)] if retry_errors else []),
        ]
        columns: list[ColumnElement[Any]] = [rollout.rollout_id, attempt.attempt_id]
        stream = core_tables.events.c.stream
        changed = select(func.substr(stream, len(_ROLLOUT) + 1)).where(
            core_tables.events.c.position > bindparam("changed_after", type_=BigInteger),
            # With a range of streams, the planner could choose their index, and then read all events.
            func.substr(stream, 1, len(_ROLLOUT)) == _ROLLOUT,
        )
        return (
            select(*columns)
            .select_from(core_tables.rollouts.join(core_tables.attempts, is_latest))
            .where(*([] if changed_after is None else [rollout.rollout_id.in_(changed)]))
            .where(
                one_of(rollout.status, TERMINAL),
                rollout.first_position > bindparam("start", type_=BigInteger),
                ~select(scan.position)
                .where(*conditions)
                .correlate(core_tables.rollouts, core_tables.attempts)
                .exists(),
            )
            .order_by(rollout.first_position)
            .limit(bindparam("most", type_=Integer))
        )

    params = {"scanner": key.name, "version": key.version, "start": start, "most": limit}
    if changed_after is not None:
        params["changed_after"] = min(changed_after, _END)
    shape = ("unscanned", retry_errors, changed_after is None)
    rows = await session.fetch(compiled(session, shape, build), params)
    return [UnscannedAttempt(rollout_id=row.rollout_id, attempt_id=row.attempt_id) for row in rows]


def _of_scanner() -> list[ColumnElement[bool]]:
    scan = core_tables.scans.c
    return [scan.scanner == bindparam("scanner", type_=Text), scan.version == bindparam("version", type_=Text)]


def _until() -> ColumnElement[Any]:
    return bindparam("until", type_=BigInteger)


def _scan(row: NamedRow) -> Scan:
    body = payload(row.codec, row.body) or {}
    return Scan(
        rollout_id=row.rollout_id,
        attempt_id=row.attempt_id,
        scanner=row.scanner,
        version=row.version,
        is_match=None if row.is_match is None else bool(row.is_match),
        error=None if row.error is None else ScanError(type=row.error, message=body.get("message", "")),
        explanation=body.get("explanation"),
        number=row.number,
        at=row.at / 1_000_000,
        actor=row.actor,
    )
