"""The proof that the log is whole, and that every table is what the log says."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import Table, func, select

from store.db import log, scan, tables, triggers
from store.db.dialect import Dialect, ReadSession, Row
from store.db.pages import compiled
from store.domain.events import decode
from store.journal.comparison import Comparison
from store.journal.fold import Finding
from store.journal.log_check import LogCheck
from store.models import Difference, Seal, VerifyReport

SHOWN = 20
"""How many differences a report names."""

_EVENTS_AT_ONCE = 5000
_BYTES_AT_ONCE = 32 * 1024 * 1024
_CHECKS = {"span_counters": "counters"}


class Differences:
    """The first differences and the number of all."""

    def __init__(self) -> None:
        self.first: list[Difference] = []
        self.count = 0

    def add(self, check: str, key: str, field: str | None, expected: Any, found: Any) -> None:
        """Take one."""
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(
                Difference(check=check, key=key, field=field, expected=_shown(expected), found=_shown(found))
            )

    def add_row(self, finding: Finding) -> None:
        """Take a row that is missing or too many, or each of its columns that differs."""
        table, expected, found = finding.table, finding.expected, finding.found
        check, key = _CHECKS.get(table.name, table.name), "/".join(str(part) for part in finding.key)
        if expected is None or found is None:
            self.add(check, key, None, _named(table, expected), _named(table, found))
            return
        for column, wanted, there in zip(table.columns, expected, found, strict=True):
            if wanted != there:
                self.add(check, key, column.name, wanted, there)


def _named(table: Table, row: Row | None) -> dict[str, Any] | None:
    return None if row is None else {column.name: _shown(row[index]) for index, column in enumerate(table.columns)}


def _shown(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes | bytearray | memoryview) else value


async def verify(dialect: Dialect, session: ReadSession, store_id: str, seal: Seal | None = None) -> VerifyReport:
    """Return what a whole check of the partition finds; the session must be a snapshot."""
    started = time.monotonic()
    differences = Differences()
    check = LogCheck(differences.add, dense=dialect.name == "sqlite")
    await _guards(dialect, session, differences)
    await _walk(dialect, session, check)
    await _unclaimed(dialect, session, check, differences)
    if seal is not None:
        await _seal(dialect, session, store_id, seal, differences)
    comparison = await _tables(dialect, session, differences)
    return VerifyReport(
        store_id=store_id,
        commits=check.commits,
        events=comparison.events,
        streams=comparison.streams,
        rows=dict(comparison.rows),
        last_position=check.last_position,
        chain_head=check.head,
        state_hash=comparison.state_hash,
        seal_checked=seal is not None,
        differences=differences.first,
        difference_count=differences.count,
        seconds=time.monotonic() - started,
    )


async def _guards(dialect: Dialect, session: ReadSession, differences: Differences) -> None:
    rows = await session.fetch(triggers.in_place(dialect.name, dialect.schema), {})
    for sentence in triggers.missing(dialect.name, rows):
        differences.add("guards", sentence, None, "in place", None)


async def _walk(dialect: Dialect, session: ReadSession, check: LogCheck) -> None:
    """Read the whole log once, in its order."""
    after, last_commit, limit = 0, 0, 500
    rest: Sequence[Row] = ()
    more_commits = True
    while True:
        if check.wants_commits and more_commits:
            commits = await log.commits(dialect, session, after=last_commit)
            more_commits = bool(commits)
            last_commit = commits[-1][0] if commits else last_commit
            check.add_commits(commits)
        if not rest:
            rest = await scan.events_and_bodies(dialect, session, after=after, limit=limit)
            if not rest:
                break
            after = rest[-1][0]
            limit = _next_limit(rest)
        if check.wants_commits and not more_commits:
            check.end(rest)
            rest = ()
            continue
        dropped = await _dropped(dialect, session, rest)
        rest = rest[await asyncio.to_thread(check.add_events, rest, dropped) :]
    check.end(())
    while more_commits and (commits := await log.commits(dialect, session, after=last_commit)):
        last_commit = commits[-1][0]
        check.add_commits(commits)
        check.end(())


def _next_limit(rows: Sequence[Row]) -> int:
    """Return how many events to read next, so that their bodies take about as much memory as is meant."""
    size = sum(len(row[-1]) for row in rows if row[-1] is not None)
    return max(1, min(_EVENTS_AT_ONCE, _BYTES_AT_ONCE * len(rows) // (size + 1), 4 * len(rows)))


async def _dropped(dialect: Dialect, session: ReadSession, rows: Sequence[Row]) -> dict[int, bool]:
    """Return, for the events whose body is not there, whether an event ordered that."""
    missing = {row[0] for row in rows if row[-1] is None and row[11] is not None}
    if not missing:
        return {}
    return {
        position: type_ == "body.dropped" and _orders(data, position)
        for position, type_, data in await scan.drops_between(dialect, session, min(missing), max(missing))
        if position in missing
    }


def _orders(data: str, position: int) -> bool:
    try:
        return getattr(decode("body.dropped", orjson.loads(data)), "position", None) == position
    except (TypeError, ValueError):
        return False


async def _unclaimed(dialect: Dialect, session: ReadSession, check: LogCheck, differences: Differences) -> None:
    """Report the bodies that belong to no event."""
    count = compiled(dialect, "bodies_count", lambda: select(func.count()).select_from(tables.bodies))
    extra = (await session.fetch(count, {}))[0][0] - check.bodies
    if extra <= 0:
        return
    named = await scan.bodies_without_event(dialect, session, SHOWN)
    for position in named:
        differences.add("bodies", f"event {position}", None, None, "a body that no event claims")
    differences.count += max(extra - len(named), 0)


async def _seal(
    dialect: Dialect, session: ReadSession, store_id: str, seal: Seal, differences: Differences
) -> None:
    if seal.store_id != store_id:
        differences.add("seal", "store", "store_id", seal.store_id, store_id)
        return
    if not seal.commit_id:
        return
    commit = await log.last_commit(dialect, session, seal.commit_id)
    key = f"commit {seal.commit_id}"
    if commit is None or commit[0] != seal.commit_id:
        end = await log.last_commit(dialect, session)
        what = f"the log ends at commit {end[0]}: its tail was cut off" if end and end[0] < seal.commit_id else None
        differences.add("seal", key, None, seal.chain_head, what or ("an empty log" if end is None else None))
        return
    if bytes(commit[6]).hex() != seal.chain_head:
        differences.add("seal", key, "chain_hash", seal.chain_head, bytes(commit[6]))
    if commit[3] != seal.position:
        differences.add("seal", key, "last_position", seal.position, commit[3])


async def _tables(dialect: Dialect, session: ReadSession, differences: Differences) -> Comparison:
    comparison = Comparison(dialect, session)
    async for compared in comparison.run():
        for stream in compared.streams:
            if stream.fault is not None:
                differences.add("events", f"{stream.name}, event {stream.fault_at}", None, "a fact that follows", stream.fault)
        for findings in compared.findings.values():
            for finding in findings:
                differences.add_row(finding)
    return comparison
