"""Scan of the whole log, in order, with checks of events, bodies, blobs, dictionaries and blocks of data. Decision 70.

Several events may refer to one blob.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

import orjson
from sqlalchemy import bindparam, func, select
from sqlalchemy.types import BigInteger

from store.db.data_blocks import unpack
from store.db.dialect import NamedRow, ReadSession
from store.db.queries import blobs, data_blocks, scan
from store.db.queries import log as log_queries
from store.db.queries.bodies import raw_and_rest
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.domain.events import BodyDropped, Json, StoreBodiesDropped, decode
from store.domain.run_commands import IN_BLOBS
from store.domain.run_events import RunEvent
from store.domain.thread_events import WITH_BLOBS
from store.errors import StoreError
from store.journal.log_rows import STORE_STREAM, PositionsHash
from store.models import Difference
from store.models.enums import Frozen
from store.runtime.progress import OnProgress, OperationProgress, ignore
from store.verification.dictionary_check import check_dictionaries
from store.verification.differences import SHOWN, Differences
from store.verification.log_check import TRAILING, LogCheck

_EVENTS_AT_ONCE = 5000
_BYTES_AT_ONCE = 32 * 1024 * 1024
# The most events and bytes of bodies that the commits checked by `walk_end` have together.
_END_EVENTS = 100_000
_END_BYTES = 256 * 1024 * 1024


class Bounds(Frozen):
    """The end of a scan: the end of the log in one snapshot of the database."""

    commit_id: int
    """The id of the last commit; 0 if there is no commit."""
    position: int
    """The greatest position of an event or a body, even if the event or the body does not belong to a commit."""


class LogRange(Frozen):
    """A range of commits with their events."""

    after: int
    """The id of the commit before the range; 0 if the range starts at the beginning of the log."""
    until: Bounds


class SoundRange(Frozen):
    """The result for a range of commits without a difference."""

    commits: int
    events: int
    bodies: int
    """The number of bodies that belong to an event."""
    last_position: int
    """The position of the last event of the last commit."""
    head: str
    """The hash of the last commit in hex."""


class LogResult(Frozen):
    """The result of a scan of the log."""

    commits: int
    events: int
    last_position: int
    """The position of the last event of the last commit."""
    head: str
    """The hash of the last commit in hex."""
    differences: list[Difference]
    """The first differences between the stored values and the values that were computed from the log."""
    difference_count: int
    """The number of all differences."""


async def bounds(session: ReadSession) -> Bounds:
    """Return the end of the log in the snapshot of the session."""
    commit = await log_queries.last_commit(session)
    last_event, last_body = (
        select(func.max(table.c.position).label("position")) for table in (core_tables.events, core_tables.bodies)
    )
    lasts = await session.fetch(session.dialect.sql(last_event.union_all(last_body)), {})
    position = max(row.position or 0 for row in lasts)
    return Bounds(commit_id=0 if commit is None else commit.commit_id, position=position)


async def event_count(session: ReadSession) -> int:
    """Return the number of events of all commits, according to the totals of the last commit."""
    commit = await log_queries.last_commit(session)
    return 0 if commit is None else commit.events


async def walk(session: ReadSession, until: Bounds, on_progress: OnProgress = ignore) -> LogResult:
    """Check the hash chain over all commits, the running totals, the bodies and the blobs, up to the given end.

    The session must be a snapshot. `on_progress` receives the number of checked events.
    """
    differences = Differences()
    check = LogCheck(differences.add)
    total = await event_count(session)

    def report() -> None:
        on_progress(OperationProgress("checking the log", min(check.events, total), total))

    await _read(session, check, differences, until, report=report)
    await check_unclaimed(session, check.bodies, differences, until)
    await check_beside_commits(session, differences)
    return _result(check, differences)


async def ranges(session: ReadSession, until: Bounds, count: int) -> list[LogRange]:
    """Divide the log up to the given end into at most `count` ranges that take about the same time to check.

    The session must be a snapshot. Together, the ranges contain each commit and each event exactly once, even if the
    log is damaged.
    """
    end = await log_queries.last_commit(session, until.commit_id)
    cuts: list[NamedRow] = []
    for number in range(1, count):
        least_weight = 0 if end is None else _weight(end) * number // count
        last = cuts[-1] if cuts else None
        row = await _first_commit(session, 0 if last is None else last.commit_id, until.commit_id, least_weight)
        # In a damaged log, positions can be out of order. Then events between two cuts could be in no range.
        if row is not None and (
            last is None or (row.commit_id > last.commit_id and row.last_position > last.last_position)
        ):
            cuts.append(row)
    cuts = [row for row in cuts if row.commit_id < until.commit_id and 0 < row.last_position < until.position]
    starts = [0, *(row.commit_id for row in cuts)]
    ends = [*(Bounds(commit_id=row.commit_id, position=row.last_position) for row in cuts), until]
    return [LogRange(after=after, until=end) for after, end in zip(starts, ends, strict=True)]


def _weight(commit: NamedRow) -> int:
    """Return an estimate of the time to check the log up to a commit. An event counts as 1,000 bytes of payload."""
    return commit.events * 1000 + commit.body_bytes


async def _first_commit(session: ReadSession, after: int, until: int, least_weight: int) -> NamedRow | None:
    """Return the first commit between `after` and `until` with at least this weight; None if there is none."""
    first: NamedRow | None = None
    low, high = after, until
    while high - low > 1:
        middle = (low + high) // 2
        row = await log_queries.last_commit(session, middle)
        if row is None or row.commit_id <= low or _weight(row) < least_weight:
            low = middle
        else:
            first, high = row, row.commit_id
    return first


async def walk_range(session: ReadSession, part: LogRange) -> SoundRange | None:
    """Check the commits of a range, and their events and bodies, as `walk` does. Return None if there is a difference.

    The commit before the range is assumed to be correct; the previous range checks it.
    """
    differences = Differences()
    base = await log_queries.last_commit(session, part.after) if part.after else None
    check = LogCheck(differences.add, after=base)
    await _read(session, check, differences, part.until, after=base)
    if differences.count:
        return None
    return SoundRange(
        commits=check.commits,
        events=check.events,
        bodies=check.bodies,
        last_position=check.last_position,
        head=check.head,
    )


async def walk_end(session: ReadSession, until: Bounds, commits: int) -> LogResult:
    """Check the last commits of the log as `walk` does. The state before them is taken as correct.

    Blobs and removed bodies are not checked, because these checks read whole tables.

    Args:
        session: a session that reads a snapshot.
        until: the end of the log in this snapshot.
        commits: the number of commits to check. Fewer commits are checked if they have very many events or large
            bodies.
    """
    differences = Differences()
    base = await _commit_before(session, commits)
    check = LogCheck(differences.add, after=base)
    await _read(session, check, differences, until, after=base)
    return _result(check, differences)


def _result(check: LogCheck, differences: Differences) -> LogResult:
    return LogResult(
        commits=check.commits,
        events=check.events,
        last_position=check.last_position,
        head=check.head,
        differences=differences.first,
        difference_count=differences.count,
    )


async def _commit_before(session: ReadSession, commits: int) -> NamedRow | None:
    """Return the commit before the last commits of the log; None if the log has no commit before them."""
    ids = await log_queries.last_commit_ids(session, commits + 1)
    rows = await log_queries.commits(session, after=min(ids, default=1) - 1, limit=commits + 1)
    if not rows:
        return None
    last = rows[-1]
    # The last commit is always checked. Earlier commits are checked while their sizes, according to the totals, are
    # small.
    for row in rows[:-1]:
        if last.events - row.events <= _END_EVENTS and last.body_bytes - row.body_bytes <= _END_BYTES:
            return row if len(rows) > commits or row is not rows[0] else None
    return rows[-2] if len(rows) > 1 else None


async def _read(
    session: ReadSession,
    check: LogCheck,
    differences: Differences,
    until: Bounds,
    *,
    after: NamedRow | None = None,
    report: Callable[[], None] = lambda: None,
) -> None:
    """Pass the log up to `until` to `check`, from its beginning or from the end of the commit `after` on.

    `report` is called after each group of events that was checked.
    """
    last_commit, after_position = (0, -(2**63)) if after is None else (after.commit_id, after.last_position)
    limit = 50  # the bodies may be large, so the first read is short
    rest: Sequence[NamedRow] = ()
    more_commits = True
    while True:
        if check.wants_commits and more_commits:
            commits = await log_queries.commits(session, after=last_commit, until=until.commit_id)
            more_commits = bool(commits)
            last_commit = commits[-1].commit_id if commits else last_commit
            check.add_commits(commits)
        if not rest:
            rows = await scan.events_and_bodies(session, after=after_position, until=until.position, limit=limit)
            rest = await blobs.filled(session, rows, lengths=True)
            if not rest:
                break
            await check_texts(session, rest, differences)
            after_position = rest[-1].position
            limit = _next_limit(rest, _EVENTS_AT_ONCE)
        if check.wants_commits and not more_commits:
            check.end(rest)
            rest = ()
            continue
        lacking = {row.position for row in rest if row.body is None and row.body_hash is not None}
        removals = await _removals(session, lacking)
        rest = rest[await asyncio.to_thread(check.add_events, rest, removals) :]
        report()
    check.end(())
    while commits := await log_queries.commits(session, after=last_commit, until=until.commit_id):
        last_commit = commits[-1].commit_id
        check.add_commits(commits)
        check.end(())


def _next_limit(rows: Sequence[NamedRow], limit: int) -> int:
    """Return the number of rows to read next, at most `limit`, so that they have about `_BYTES_AT_ONCE` bytes.

    The estimate uses the sizes of the bodies in `rows`, which were read last.
    """
    size = sum(len(row.body) for row in rows if row.body is not None)
    return max(1, min(limit, _BYTES_AT_ONCE * len(rows) // (size + 1), 4 * len(rows)))


async def _removals(session: ReadSession, positions: set[int]) -> dict[int, bool]:
    """Return, by position, whether the event to which a row of `dropped` refers orders the removal."""
    if not positions:
        return {}
    return {
        row.position: _orders(row)
        for row in await scan.drops_between(session, min(positions), max(positions))
        if row.position in positions
    }


def _orders(drop: NamedRow) -> bool:
    """Return whether the event to which a row of `dropped` refers may have ordered the removal of the body."""
    if drop.type is None or drop.data is None:
        return False
    match _order(drop.type, drop.data):
        case BodyDropped(position=ordered):
            return ordered == drop.position
        case StoreBodiesDropped(first=first, last=last):
            return first <= drop.position <= last
        case _:
            return False


@lru_cache(maxsize=64)
def _order(type_: str, data: str) -> BodyDropped | StoreBodiesDropped | None:
    """Return the fact of an event that orders the removal of bodies; None if the event orders no removal."""
    try:
        fact = decode(type_, orjson.loads(data))
    except Exception:  # noqa: BLE001 (the data of a changed event may have any form)
        return None
    return fact if isinstance(fact, BodyDropped | StoreBodiesDropped) else None


async def _check_drops(session: ReadSession, differences: Differences) -> None:
    """Report differences between the rows of `dropped` and the events that order the removal of bodies."""
    hashes: dict[int, PositionsHash] = {}
    async for rows in scan.drops(session):
        for row in rows:
            if _orders(row):
                hashes.setdefault(row.event_position, PositionsHash()).add(row.position)
            else:
                expected = f"an event at {row.event_position} that orders the removal"
                differences.add("dropped", str(row.position), "event_position", expected, row.type)
    after = 0
    while events := await log_queries.events(
        session, after=after, stream=STORE_STREAM, types=[StoreBodiesDropped.type]
    ):
        after = events[-1].position
        for row in events:
            fact, dropped_rows = _order(row.type, row.data), hashes.get(row.position, PositionsHash())
            if not isinstance(fact, StoreBodiesDropped):
                continue  # the comparison with the tables reports that the data of this event cannot be decoded
            for name, expected, actual in (
                ("count", fact.count, dropped_rows.count),
                ("sha256", fact.sha256, dropped_rows.hexdigest()),
            ):
                if expected != actual:
                    differences.add("dropped", f"rows of the event at {row.position}", name, expected, actual)


async def check_unclaimed(session: ReadSession, claimed: int, differences: Differences, until: Bounds) -> None:
    """Report the bodies that do not belong to an event. `claimed` is the number of bodies that belong to an event."""
    body = core_tables.bodies.c.position
    within = body <= bindparam("until", type_=BigInteger)
    count = compiled(session, "bodies_count", lambda: select(func.count(body).label("total")).where(within))
    extra = (await session.fetch(count, {"until": until.position}))[0].total - claimed
    if extra <= 0:
        return
    named = await scan.bodies_without_event(session, SHOWN)
    for position in named:
        differences.add("bodies", f"event {position}", None, None, "a body that does not belong to an event")
    differences.count += max(extra - len(named), 0)


_MOST_AT_ONCE = 2000
_TEXTS = ("prompt_sha256", "response_sha256")
_NAMING = WITH_BLOBS | {RunEvent.type}
REFERRING = _NAMING | IN_BLOBS
"""The types of events that may refer to blobs."""


async def check_texts(session: ReadSession, rows: Sequence[NamedRow], differences: Differences) -> None:
    """Report missing blobs to which the given rows of `events` refer."""
    named: dict[str, list[int]] = {}
    for row in rows:
        for name in names_of_blobs(row) if row.type in _NAMING else ():
            named.setdefault(name, []).append(row.position)
    if named:
        # Postgres refuses a parameter with a null character, which the data of a changed event may contain.
        existing_names = await blobs.existing(session, sorted(name for name in named if "\0" not in name))
        missing = {name: positions for name, positions in named.items() if name not in existing_names}
        ordered = await _removals(session, {position for positions in missing.values() for position in positions})
        for name, positions in sorted(missing.items()):
            unexplained = [position for position in positions if not ordered.get(position, False)]
            if unexplained:
                differences.add("blobs", name, None, f"the blob to which event {unexplained[-1]} refers", None)


async def check_beside_commits(session: ReadSession, differences: Differences) -> None:
    """Check removals of payload, blobs, dictionaries and blocks of data. The session must be a snapshot."""
    await _check_drops(session, differences)
    await check_blobs(session, differences)
    await check_dictionaries(session, differences)
    await _check_data_blocks(session, differences)


async def check_blobs(session: ReadSession, differences: Differences) -> None:
    """Report blobs whose content was changed, and blobs to which no event refers. The session must be a snapshot."""
    after, limit = "", 100
    while rows := await blobs.blobs_after(session, after, limit):
        await asyncio.to_thread(_check_contents, rows, differences)
        after, limit = rows[-1].hash, _next_limit(rows, _MOST_AT_ONCE)
    for name in sorted(await _unused_blobs(session)):
        differences.add("blobs", name, None, None, "a blob to which no event refers")


async def _check_data_blocks(session: ReadSession, differences: Differences) -> None:
    """Report blocks of data that cannot be read, that overlap, or to which no event refers.

    The hash chain proves the data of the events that refer to a block.
    """
    end = 0
    async for block in data_blocks.all_blocks(session):
        first, last = block.first_position, block.last_position
        data = await asyncio.to_thread(unpack, first, block.body)
        if data is None:
            differences.add("data_blocks", f"block {first}", "body", "bytes that can be read", "other bytes")
        elif last != max(data):
            differences.add("data_blocks", f"block {first}", "last_position", max(data), last)
        if first <= end:
            differences.add("data_blocks", f"block {first}", "first_position", f"more than {end}", first)
        end = last
    for first in await data_blocks.unused(session):
        differences.add("data_blocks", f"block {first}", None, None, "a block to which no event refers")


def _check_contents(rows: Sequence[NamedRow], differences: Differences) -> None:
    for row in rows:
        try:
            raw, rest = raw_and_rest(row.codec, row.body)
        except StoreError as refused:
            differences.add("blobs", row.hash, "body", "bytes that can be read", str(refused))
            continue
        if rest:
            differences.add("blobs", row.hash, "body", TRAILING[0], TRAILING[1].format(rest))
        digest = hashlib.sha256(raw).hexdigest()
        if digest != row.hash:
            differences.add("blobs", row.hash, "body", row.hash, digest)
        elif len(raw) != row.raw_len:
            differences.add("blobs", row.hash, "raw_len", len(raw), row.raw_len)


async def _unused_blobs(session: ReadSession) -> set[str]:
    # The tables of runs show quickly which blobs may be without a reference. These tables may be wrong, so the log is
    # searched for events that refer to these blobs.
    candidates = set(await blobs.unclaimed(session))
    after, types = 0, sorted(REFERRING)
    while candidates and (rows := await log_queries.events(session, after=after, types=types)):
        candidates.difference_update(name for row in rows for name in names_of_blobs(row))
        after = rows[-1].position
    return candidates


def names_of_blobs(row: NamedRow) -> Iterator[str]:
    """Yield the hashes of the blobs to which an event refers. The data of a changed event may have any form."""
    if row.type in IN_BLOBS:
        if row.body_hash is not None:
            yield memoryview(row.body_hash).hex()
        return
    text: Any = row.data
    if not isinstance(text, str) or "sha256" not in text:
        return
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return  # the comparison with the tables reports that the data of this event cannot be decoded
    if isinstance(data, dict):
        named = (cast("Json", data).get(field) for field in _TEXTS)
        yield from (name for name in named if isinstance(name, str))
        names = cast("Json", data).get("sha256s")
        if isinstance(names, list):
            yield from (name for name in cast("list[Any]", names) if isinstance(name, str))
