"""What reads ask of the database: pages of each noun, single rows, and a few numbers. Each is one statement or two.

Statements are compiled once for each shape a query takes. The wide rows they return go to a `make` of the caller's
one by one, so that no list of rows is held beside the list of what is made of them.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, FromClause, Select, and_, bindparam, case, func, select
from sqlalchemy.types import BigInteger, Text

from store.db import filters, tables
from store.db.dialect import Dialect, ReadSession, Row, Sql
from store.db.encoding import check_text
from store.db.filters import Columns, Query
from store.domain.rollout import TERMINAL

TOTALS: tuple[str, ...] = ("events", "rollouts", "attempts", "spans", "resources", "workers", "body_bytes")
"""The running totals of a commit, in the order of its columns."""

Item = TypeVar("Item")
Make = Callable[[Row], Item]

rollouts_table, attempts_table = tables.rollouts, tables.attempts
_SHAPES_KEPT = 512
_BATCH = 1000
# An id that could not be stored is not refused when it is asked for, but for what no driver can send.
LONGEST_ID = 2**31
_IDS_AT_ONCE = 5000


@dataclass(slots=True)
class Page(Generic[Item]):
    """What matches a query, as far as it was asked for."""

    items: list[Item]
    total: int
    """How many match before paging."""


# -- compiled statements ---------------------------------------------------------------------------------------------

_kept: WeakKeyDictionary[Dialect, dict[Hashable, Sql]] = WeakKeyDictionary()


def compiled(dialect: Dialect, shape: Hashable | None, build: Callable[[], Select[Any]]) -> Sql:
    """Return a statement compiled, from memory if one of its shape was compiled before.

    A shape of None is compiled each time: the statement holds a value.
    """
    if shape is None:
        return dialect.sql(build())
    kept = _kept.setdefault(dialect, {})
    found = kept.get(shape)
    if found is None:
        if len(kept) >= _SHAPES_KEPT:
            kept.clear()
        found = kept[shape] = dialect.sql(build())
    return found


# -- what rows are made of -------------------------------------------------------------------------------------------


def _signal_of(attempt: Columns) -> ColumnElement[bool]:
    signal = tables.attempt_signals.c
    return and_(signal.rollout_id == attempt["rollout_id"], signal.attempt_id == attempt["attempt_id"])


def _is_latest(rollout: Columns) -> ColumnElement[bool]:
    attempt = attempts_table.c
    return and_(
        attempt.rollout_id == rollout["rollout_id"],
        attempt.sequence_id == rollout["attempt_count"],
        attempt.released_position.is_(None),
    )


def _with_latest(rollout: Columns, source: FromClause) -> Select[Any]:
    joined = source.outerjoin(attempts_table, _is_latest(rollout))
    joined = joined.outerjoin(tables.attempt_signals, _signal_of(dict(attempts_table.c)))
    signal = tables.attempt_signals.c
    return select(*rollout.values(), *attempts_table.c, signal.beat_time, signal.stamped_at).select_from(joined)


def _with_bodies(statement: Select[Any], *positions: ColumnElement[Any]) -> Select[Any]:
    """Add codec and bytes of the bodies at some positions, nulls for those that are not there."""
    for position in positions:
        body = tables.bodies.alias()
        statement = statement.outerjoin(body, body.c.position == position).add_columns(body.c.codec, body.c.body)
    return statement


def _whole_rollouts(rollout: Columns, source: FromClause) -> Select[Any]:
    return _with_bodies(
        _with_latest(rollout, source),
        rollout["input_position"],
        rollout["metadata_position"],
        attempts_table.c.metadata_position,
    )


def _whole_resources(columns: Columns, source: FromClause) -> Select[Any]:
    return _with_bodies(select(*columns.values()).select_from(source), columns["body_position"])


def _whole_spans(columns: Columns, source: FromClause) -> Select[Any]:
    return _with_bodies(select(*columns.values()).select_from(source), columns["position"])


def _sign_of_life() -> ColumnElement[Any]:
    """Return the last heartbeat of an attempt: what was stamped last, the signal or the row."""
    attempt, signal = attempts_table.c, tables.attempt_signals.c
    is_newer = signal.stamped_at > func.coalesce(attempt.heartbeat_stamped_at, 0)
    return case((is_newer, signal.beat_time), else_=attempt.last_heartbeat_time)


def _later(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((other > one, other), else_=func.coalesce(one, other))


_ATTEMPT_COLUMNS: Columns = {**dict(attempts_table.c), "last_heartbeat_time": _sign_of_life()}
_WORKER_COLUMNS: Columns = {
    **dict(tables.workers.c),
    "last_heartbeat_at": tables.worker_signals.c.last_heartbeat_at,
    "last_dequeue_at": tables.worker_signals.c.last_dequeue_at,
    "last_busy_at": _later(tables.workers.c.last_busy_at, tables.worker_signals.c.last_busy_at),
    "last_idle_at": _later(tables.workers.c.last_idle_at, tables.worker_signals.c.last_idle_at),
}


def _limited(statement: Select[Any], asked: Query) -> Select[Any]:
    if not asked.is_paged:
        return statement
    return statement.limit(bindparam("page_limit", type_=BigInteger)).offset(bindparam("page_offset", type_=BigInteger))


# -- pages -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Listing:
    """How one noun is listed."""

    asked: Query
    columns: Columns
    """What its fields and its order are made of."""
    source: FromClause
    """The tables that hold those columns."""
    whole: Callable[[Columns, FromClause], Select[Any]]
    """The wide rows, from such columns."""
    within: ColumnElement[bool] | None = None
    """What every row must be, whatever the query's logic."""
    within_params: tuple[tuple[str, Any], ...] = ()
    within_shape: Hashable = None
    is_narrow_first: bool = False
    """Cut the page before the payload is joined: sorting would carry it along otherwise."""

    def matching(self, dialect: Dialect) -> ColumnElement[bool]:
        condition = filters.where(dialect, self.asked, self.columns)
        return condition if self.within is None else and_(self.within, condition)

    def statement(self, dialect: Dialect) -> Select[Any]:
        asked, columns, matching = self.asked, self.columns, self.matching(dialect)
        if not (asked.is_paged and self.is_narrow_first):
            statement = self.whole(columns, self.source).where(matching).order_by(*filters.order(asked, columns))
            return _limited(statement, asked)
        page = select(*columns.values()).select_from(self.source).where(matching)
        cut = _limited(page.order_by(*filters.order(asked, columns)), asked).subquery("page")
        again: Columns = dict(cut.c)
        return self.whole(again, cut).order_by(*filters.order(asked, again))

    def count(self, dialect: Dialect) -> Select[Any]:
        return select(func.count()).select_from(self.source).where(self.matching(dialect))


async def _list(
    dialect: Dialect, session: ReadSession, listing: _Listing, make: Make[Item], *, batch: int | None = None
) -> Page[Item]:
    asked = listing.asked
    params = filters.params(dialect, asked) | dict(listing.within_params)
    items: list[Item] = []
    shape = filters.shape(asked)
    kind = None if shape is None else (shape, listing.within_shape)
    if asked.limit != 0:
        sql = compiled(dialect, kind and ("page", kind), lambda: listing.statement(dialect))
        if asked.is_paged:
            params |= {"page_limit": asked.limit_param, "page_offset": asked.offset_param}
        if batch is not None and not 0 < asked.limit <= batch:
            async for rows in session.stream(sql, params, batch=batch):
                items.extend(map(make, rows))
        else:
            items.extend(map(make, await session.fetch(sql, params)))
    is_last = len(items) < asked.limit or asked.limit == -1
    if is_last and (items or not asked.offset):
        return Page(items, asked.offset + len(items))
    counted = compiled(dialect, kind and ("count", kind), lambda: listing.count(dialect))
    ((total,),) = await session.fetch(counted, params)
    # Rows may have gone between the two statements, but what was read is there.
    return Page(items, max(total, asked.offset + len(items) if items else 0))


async def rollouts(
    dialect: Dialect, session: ReadSession, asked: Query, make: Make[Item], *, batch: int = _BATCH
) -> Page[Item]:
    """Return a page of rollouts, each with its latest attempt.

    A row is that of the rollout, that of the attempt (nulls without one), beat_time and stamped_at of its signal, and
    codec and bytes of three bodies: the rollout's input and metadata, the attempt's metadata. At most `batch` rows are
    there at a time.
    """
    listing = _Listing(asked, dict(rollouts_table.c), rollouts_table, _whole_rollouts, is_narrow_first=True)
    return await _list(dialect, session, listing, make, batch=batch)


async def attempts(
    dialect: Dialect, session: ReadSession, rollout_id: str, asked: Query, make: Make[Item]
) -> Page[Item]:
    """Return a page of a rollout's attempts, without those whose claim was released.

    A row is that of the attempt, beat_time and stamped_at of its signal, and codec and bytes of its metadata's body.
    """
    attempt = attempts_table.c
    source = attempts_table.outerjoin(tables.attempt_signals, _signal_of(dict(attempt)))
    listing = _Listing(
        asked,
        _ATTEMPT_COLUMNS,
        source,
        _whole_attempts,
        within=and_(attempt.rollout_id == bindparam("rollout"), attempt.released_position.is_(None)),
        within_params=(("rollout", check_text(rollout_id, "rollout_id", LONGEST_ID)),),
        within_shape="attempts",
    )
    return await _list(dialect, session, listing, make)


def _whole_attempts(_: Columns, source: FromClause) -> Select[Any]:
    signal = tables.attempt_signals.c
    statement = select(*attempts_table.c, signal.beat_time, signal.stamped_at).select_from(source)
    return _with_bodies(statement, attempts_table.c.metadata_position)


async def spans(
    dialect: Dialect,
    session: ReadSession,
    rollout_id: str,
    attempt_id: str | None,
    asked: Query,
    make: Make[Item],
    *,
    until: int | None = None,
    batch: int | None = None,
) -> Page[Item]:
    """Return a page of a rollout's spans.

    A row is that of the table, and codec and bytes of its body.

    Args:
        dialect: the database.
        session: a connection to it.
        rollout_id: whose spans.
        attempt_id: only those of this attempt, or of the `latest` as it is now; None for all attempts.
        asked: the query. With the logic `or` and no condition it matches nothing, as in Agent-lightning 0.3.
        make: what becomes of a row.
        until: only spans at this position of the log and before; with it `latest` is no attempt id.
        batch: how many rows are there at a time; None for all at once.
    """
    if asked.logic == "or" and not asked.conditions:
        return Page([], 0)
    span = tables.spans.c
    given: list[tuple[str, Any]] = [("rollout", check_text(rollout_id, "rollout_id", LONGEST_ID))]
    terms = [span.rollout_id == bindparam("rollout")]
    if attempt_id == "latest" and until is None:
        terms.append(span.attempt_id == _latest_id(bindparam("rollout", type_=Text)))
    elif attempt_id is not None:
        terms.append(span.attempt_id == bindparam("attempt"))
        given.append(("attempt", check_text(attempt_id, "attempt_id", LONGEST_ID)))
    if until is not None:
        terms.append(span.position <= bindparam("until", type_=BigInteger))
        given.append(("until", until))
    listing = _Listing(
        asked,
        dict(span),
        tables.spans,
        _whole_spans,
        within=and_(*terms),
        within_params=tuple(given),
        within_shape=("spans", attempt_id == "latest", len(given), until is None),
        is_narrow_first=True,
    )
    return await _list(dialect, session, listing, make, batch=batch)


def _latest_id(rollout_id: ColumnElement[Any]) -> ColumnElement[Any]:
    statement = (
        select(attempts_table.c.attempt_id)
        .select_from(rollouts_table.join(attempts_table, _is_latest(dict(rollouts_table.c))))
        .where(rollouts_table.c.rollout_id == rollout_id)
    )
    return statement.scalar_subquery()


async def resources(dialect: Dialect, session: ReadSession, asked: Query, make: Make[Item]) -> Page[Item]:
    """Return a page of resources. A row is that of the table, and codec and bytes of its body."""
    table = tables.resources
    listing = _Listing(asked, dict(table.c), table, _whole_resources, is_narrow_first=True)
    return await _list(dialect, session, listing, make, batch=_BATCH)


async def workers(dialect: Dialect, session: ReadSession, asked: Query, make: Make[Item]) -> Page[Item]:
    """Return a page of workers. A row is that of the table, and that of its signals, nulls if it never sent any."""
    listing = _Listing(asked, _WORKER_COLUMNS, _workers_with_signals(), _whole_workers)
    return await _list(dialect, session, listing, make)


def _workers_with_signals() -> FromClause:
    signals = tables.worker_signals
    return tables.workers.outerjoin(signals, signals.c.worker_id == tables.workers.c.worker_id)


def _whole_workers(_: Columns, source: FromClause) -> Select[Any]:
    return select(*tables.workers.c, *tables.worker_signals.c).select_from(source)


# -- single rows -----------------------------------------------------------------------------------------------------


async def _one(
    dialect: Dialect, session: ReadSession, shape: str, build: Callable[[], Select[Any]], field: str, key: str
) -> Row | None:
    sql = compiled(dialect, shape, build)
    rows = await session.fetch(sql, {"key": check_text(key, field, LONGEST_ID)})
    return rows[0] if rows else None


async def rollout(dialect: Dialect, session: ReadSession, rollout_id: str) -> Row | None:
    """Return the row of one rollout, as `rollouts` returns it."""

    def build() -> Select[Any]:
        whole = _whole_rollouts(dict(rollouts_table.c), rollouts_table)
        return whole.where(rollouts_table.c.rollout_id == bindparam("key"))

    return await _one(dialect, session, "rollout", build, "rollout_id", rollout_id)


async def _by_ids(
    dialect: Dialect,
    session: ReadSession,
    shape: str,
    build: Callable[[], tuple[Select[Any], ColumnElement[Any]]],
    ids: Iterable[str],
    make: Make[Item],
) -> dict[str, Item]:
    def wanted() -> Select[Any]:
        statement, key = build()
        return statement.where(dialect.any_of(key, "wanted"))

    sql = compiled(dialect, shape, wanted)
    found: dict[str, Item] = {}
    distinct = _distinct(ids)
    for start in range(0, len(distinct), _IDS_AT_ONCE):
        params = {"wanted": dialect.list_param(distinct[start : start + _IDS_AT_ONCE])}
        found.update((row[0], make(row)) for row in await session.fetch(sql, params))
    return found


async def rollouts_by_id(
    dialect: Dialect, session: ReadSession, rollout_ids: Iterable[str], make: Make[Item]
) -> dict[str, Item]:
    """Return what is made of the rows of some rollouts, as `rollouts` returns them, by rollout id."""

    def build() -> tuple[Select[Any], ColumnElement[Any]]:
        return _whole_rollouts(dict(rollouts_table.c), rollouts_table), rollouts_table.c.rollout_id

    return await _by_ids(dialect, session, "rollouts_by_id", build, rollout_ids, make)


async def finished(dialect: Dialect, session: ReadSession, rollout_ids: Iterable[str]) -> dict[str, bool]:
    """Return for each of some rollouts that exists whether it has ended: succeeded, failed or cancelled."""

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [rollouts_table.c.rollout_id, rollouts_table.c.status]
        return select(*columns).where(dialect.any_of(rollouts_table.c.rollout_id, "wanted"))

    sql = compiled(dialect, "finished", build)
    rows = await session.fetch(sql, {"wanted": dialect.list_param(_distinct(rollout_ids))})
    return {rollout_id: status in TERMINAL for rollout_id, status in rows}


def _distinct(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(check_text(each, "ids", LONGEST_ID) for each in ids))


async def latest_attempt(dialect: Dialect, session: ReadSession, rollout_id: str) -> Row | None:
    """Return the row of a rollout's latest attempt, as `attempts` returns it."""

    def build() -> Select[Any]:
        joined = attempts_table.join(rollouts_table, _is_latest(dict(rollouts_table.c))).outerjoin(
            tables.attempt_signals, _signal_of(dict(attempts_table.c))
        )
        return _whole_attempts({}, joined).where(attempts_table.c.rollout_id == bindparam("key"))

    return await _one(dialect, session, "latest_attempt", build, "rollout_id", rollout_id)


async def resources_by_id(dialect: Dialect, session: ReadSession, resources_id: str) -> Row | None:
    """Return the row of one set of resources, as `resources` returns it."""

    def build() -> Select[Any]:
        table = tables.resources
        return _whole_resources(dict(table.c), table).where(table.c.resources_id == bindparam("key"))

    return await _one(dialect, session, "resources_by_id", build, "resources_id", resources_id)


async def resources_by_ids(
    dialect: Dialect, session: ReadSession, resources_ids: Iterable[str], make: Make[Item]
) -> dict[str, Item]:
    """Return what is made of the rows of some resources, as `resources` returns them, by resources id."""

    def build() -> tuple[Select[Any], ColumnElement[Any]]:
        table = tables.resources
        return _whole_resources(dict(table.c), table), table.c.resources_id

    return await _by_ids(dialect, session, "resources_by_ids", build, resources_ids, make)


async def latest_resources(dialect: Dialect, session: ReadSession) -> Row | None:
    """Return the row of the resources that were published last, as `resources` returns it."""

    def build() -> Select[Any]:
        table = tables.resources
        return _whole_resources(dict(table.c), table).order_by(table.c.last_position.desc()).limit(1)

    rows = await session.fetch(compiled(dialect, "latest_resources", build), {})
    return rows[0] if rows else None


async def worker(dialect: Dialect, session: ReadSession, worker_id: str) -> Row | None:
    """Return the row of one worker, as `workers` returns it."""

    def build() -> Select[Any]:
        whole = _whole_workers({}, _workers_with_signals())
        return whole.where(tables.workers.c.worker_id == bindparam("key"))

    return await _one(dialect, session, "worker", build, "worker_id", worker_id)


async def workers_by_id(
    dialect: Dialect, session: ReadSession, worker_ids: Iterable[str], make: Make[Item]
) -> dict[str, Item]:
    """Return what is made of the rows of some workers, as `workers` returns them, by worker id."""

    def build() -> tuple[Select[Any], ColumnElement[Any]]:
        return _whole_workers({}, _workers_with_signals()), tables.workers.c.worker_id

    return await _by_ids(dialect, session, "workers_by_id", build, worker_ids, make)


# -- numbers ---------------------------------------------------------------------------------------------------------


async def _number(dialect: Dialect, session: ReadSession, shape: str, build: Callable[[], Select[Any]]) -> int | None:
    rows = await session.fetch(compiled(dialect, shape, build), {})
    return rows[0][0]


async def next_check(dialect: Dialect, session: ReadSession) -> int | None:
    """Return when (µs) the watchdog has to look at a rollout next, or None while it never has to."""
    return await _number(dialect, session, "next_check", lambda: select(func.min(tables.watch.c.check_at)))


async def queue_depth(dialect: Dialect, session: ReadSession) -> int:
    """Return how many rollouts wait for a claim."""

    def build() -> Select[Any]:
        return select(func.count()).select_from(tables.queue)

    return await _number(dialect, session, "queue_depth", build) or 0


async def totals(dialect: Dialect, session: ReadSession) -> tuple[int, ...]:
    """Return how much the log holds: events, rollouts, attempts, spans, resources, workers, bytes of bodies."""
    commit = tables.commits.c

    def build() -> Select[Any]:
        counted = [commit[name] for name in TOTALS]
        return select(*counted).order_by(commit.commit_id.desc()).limit(1)

    rows = await session.fetch(compiled(dialect, "totals", build), {})
    return tuple(rows[0]) if rows else (0,) * len(TOTALS)
