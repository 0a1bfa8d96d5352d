"""Reads of the store: pages of rows, single rows, and some counts. Each read takes one or two statements.

A claim can be released: the attempt then no longer counts. A signal contains heartbeats of an attempt or a worker that
are not events of the log.

Statements are compiled once for each shape of a query, which is all that determines the SQL text. The function `make`
of a caller converts the rows one by one, so that no list of rows is in memory beside the list of results.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.types import BigInteger, Integer, Text

from store.db.dialect import Dialect, NamedRow, ReadSession, row_maker
from store.db.queries import filters
from store.db.queries.filters import Columns, FilterQuery
from store.db.queries.paging import Item, Listing, Make, Page, Take, compiled, make_page, take_page
from store.db.queries.rewards import final_reward
from store.db.queries.scores import scored_reward
from store.db.tables import core as core_tables
from store.domain.rollout import TERMINAL
from store.validation.json_limits import check_text

TOTALS: tuple[str, ...] = ("events", "rollouts", "attempts", "spans", "resources", "workers", "body_bytes")
"""The columns of `commits` with the totals of the log up to a commit, in the order of the table."""

RowMaker = Callable[[Iterable[Any]], NamedRow]

rollouts_table, attempts_table = core_tables.rollouts, core_tables.attempts
_BATCH = 1000
# The maximum length of an id in a read, which is a limit of the drivers. Ids that are too long to be stored are allowed
# in reads, which find no row for them.
LONGEST_ID = 2**31
_IDS_AT_ONCE = 5000


def signal_of(attempt: Columns) -> ColumnElement[bool]:
    """Return the condition that a row of `attempt_signals` belongs to an attempt."""
    signal = core_tables.attempt_signals.c
    return and_(signal.rollout_id == attempt["rollout_id"], signal.attempt_id == attempt["attempt_id"])


def joins_latest(rollout: Columns) -> ColumnElement[bool]:
    """Return the condition that a row of `attempts` is the latest attempt of a rollout."""
    attempt = attempts_table.c
    return and_(
        attempt.rollout_id == rollout["rollout_id"],
        attempt.sequence_id == rollout["attempt_count"],
        attempt.released_position.is_(None),
    )


def _with_latest(rollout: Columns, source: FromClause) -> Select[Any]:
    joined = source.outerjoin(attempts_table, joins_latest(rollout))
    joined = joined.outerjoin(core_tables.attempt_signals, signal_of(dict(attempts_table.c)))
    signal = core_tables.attempt_signals.c
    columns = (rollout[name] for name in _ROLLOUT_COLUMNS)
    attempt = (column.label(f"attempt_{column.name}") for column in attempts_table.c)
    return select(*columns, *attempt, signal.beat_time, signal.stamped_at).select_from(joined)


def _with_body(statement: Select[Any], position: ColumnElement[Any], prefix: str = "") -> Select[Any]:
    """Add codec and bytes of the body at a position, as columns `codec` and `body`. They are null without a body."""
    body = core_tables.bodies.alias()
    joined = statement.outerjoin(body, body.c.position == position)
    return joined.add_columns(body.c.codec.label(f"{prefix}codec"), body.c.body.label(f"{prefix}body"))


def _whole_rollouts(rollout: Columns, source: FromClause) -> Select[Any]:
    return _with_rollout_bodies(_with_latest(rollout, source), rollout["input_position"], rollout["metadata_position"])


def _with_rollout_bodies(
    statement: Select[Any], input_position: ColumnElement[Any], metadata_position: ColumnElement[Any]
) -> Select[Any]:
    statement = _with_body(statement, input_position, "input_")
    statement = _with_body(statement, metadata_position, "metadata_")
    return _with_body(statement, attempts_table.c.metadata_position, "attempt_metadata_")


BRIEF_ROLLOUT = ("rollout_id", "start_at", "end_at", "mode", "resources_id", "status", "config", "last_reward")
BRIEF_ATTEMPT = ("attempt_id", "sequence_id", "start_at", "end_at", "status", "worker_id")


def _brief_rollouts(rollout: Columns, source: FromClause) -> Select[Any]:
    attempt = attempts_table.c
    joined = source.outerjoin(attempts_table, joins_latest(rollout))
    joined = joined.outerjoin(core_tables.attempt_signals, signal_of(dict(attempt)))
    input_position, metadata_position = rollout["input_position"], rollout["metadata_position"]
    statement = select(
        *(rollout[name] for name in BRIEF_ROLLOUT),
        (input_position == metadata_position).label("is_one_body"),
        *(attempt[name].label(f"attempt_{name}") for name in BRIEF_ATTEMPT),
        sign_of_life().label("attempt_last_heartbeat_time"),
    ).select_from(joined)
    separate = case((metadata_position != input_position, metadata_position))
    return _with_rollout_bodies(statement, input_position, separate)


def _whole_resources(columns: Columns, source: FromClause) -> Select[Any]:
    return _with_body(select(*columns.values()).select_from(source), columns["body_position"])


def _whole_spans(columns: Columns, source: FromClause) -> Select[Any]:
    return _with_body(select(*columns.values()).select_from(source), columns["position"])


def sign_of_life() -> ColumnElement[Any]:
    """Return the last heartbeat of an attempt: the heartbeat of its signal or of its row, whichever is later."""
    attempt, signal = attempts_table.c, core_tables.attempt_signals.c
    is_newer = signal.stamped_at > func.coalesce(attempt.heartbeat_stamped_at, 0)
    return case((is_newer, signal.beat_time), else_=attempt.last_heartbeat_time)


def _later(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((other > one, other), else_=func.coalesce(one, other))


# To list the columns of a table and to join tables takes SQLAlchemy longer than to read a short page, so this is done
# once.
_ROLLOUT_COLUMNS: Columns = dict(rollouts_table.c)
_SPAN_COLUMNS: Columns = dict(core_tables.spans.c)
_RESOURCE_COLUMNS: Columns = dict(core_tables.resources.c)
_ATTEMPT_COLUMNS: Columns = {**dict(attempts_table.c), "last_heartbeat_time": sign_of_life()}
_ATTEMPTS = attempts_table.outerjoin(core_tables.attempt_signals, signal_of(_ATTEMPT_COLUMNS))
WORKER_COLUMNS: Columns = {
    **dict(core_tables.workers.c),
    "last_heartbeat_at": core_tables.worker_signals.c.last_heartbeat_at,
    "last_dequeue_at": core_tables.worker_signals.c.last_dequeue_at,
    "last_busy_at": _later(core_tables.workers.c.last_busy_at, core_tables.worker_signals.c.last_busy_at),
    "last_idle_at": _later(core_tables.workers.c.last_idle_at, core_tables.worker_signals.c.last_idle_at),
}
WORKERS = core_tables.workers.outerjoin(
    core_tables.worker_signals, core_tables.worker_signals.c.worker_id == core_tables.workers.c.worker_id
)


def rollout_columns(dialect: Dialect, filter_query: FilterQuery) -> Columns:
    """Return the columns by which a query of rollouts filters and sorts.

    The final reward and the first label are not columns of the table, but expressions. A query contains them only if it
    uses them.
    """
    columns = dict(_ROLLOUT_COLUMNS)
    if filter_query.uses(filters.REWARD):
        reward = final_reward(dialect) if filter_query.reward_version is None else scored_reward()
        columns[filters.REWARD] = reward.label(filters.REWARD)
    if filter_query.sort_by == filters.LABEL:
        label = core_tables.labels.c
        first = select(func.min(label.label)).where(label.rollout_id == rollouts_table.c.rollout_id)
        columns[filters.LABEL] = first.correlate(rollouts_table).scalar_subquery().label(filters.LABEL)
    return columns


def rollouts(session: ReadSession, filter_query: FilterQuery, make: Make[Item]) -> Awaitable[Page[Item]]:
    """Return an awaitable page of rollouts, each with its latest attempt.

    A row has the columns of the rollout, the columns of the attempt with the prefix `attempt_` (nulls if there is
    none), and beat_time and stamped_at of the attempt's signal. It also has codec and bytes of three bodies: the
    rollout's input and metadata and the attempt's metadata (`input_codec`, `input_body`, `metadata_…`,
    `attempt_metadata_…`).
    """
    listing = Listing(
        filter_query,
        rollout_columns(session.dialect, filter_query),
        rollouts_table,
        _whole_rollouts,
        carried=tuple(_ROLLOUT_COLUMNS),
        is_narrow_first=True,
        all_of_them=rollouts_recorded,
    )
    return make_page(session, listing, make, batch=_BATCH)


async def take_rollouts(session: ReadSession, filter_query: FilterQuery, take: Take, *, batch: int) -> int:
    """Pass a page of rollouts to `take`, `batch` rows at a time. Return the number of all matching rollouts.

    A row has the columns `BRIEF_ROLLOUT`, and `is_one_body`, which is true if input and metadata share a body. With the
    prefix `attempt_`, it has the columns `BRIEF_ATTEMPT` and the last heartbeat of the latest attempt (nulls if there
    is none). It has codec and bytes of the same bodies as a row of `rollouts`; those of the rollout's metadata are null
    if the body is shared.
    """
    listing = Listing(
        filter_query,
        rollout_columns(session.dialect, filter_query),
        rollouts_table,
        _brief_rollouts,
        shape="brief",
        carried=(*BRIEF_ROLLOUT, "input_position", "metadata_position", "attempt_count"),
        is_narrow_first=True,
        all_of_them=rollouts_recorded,
    )
    return (await take_page(session, listing, take, [], batch=batch)).total


async def take_rollout_ids(session: ReadSession, filter_query: FilterQuery, take: Take) -> None:
    """Pass the rollouts of a query to `take`, some at a time. A row has the columns rollout_id and status."""

    def read(columns: Columns, source: FromClause) -> Select[Any]:
        selected: list[ColumnElement[Any]] = [columns["rollout_id"], columns["status"]]
        return select(*selected).select_from(source)

    listing = Listing(filter_query, rollout_columns(session.dialect, filter_query), rollouts_table, read, shape="ids")
    await take_page(session, listing, take, [], batch=_BATCH)


def rollouts_recorded() -> Select[Any]:
    """Return the statement for the number of rollouts, from the totals of the last commit.

    Rollouts are never deleted.
    """
    commit = core_tables.commits.c
    return select(commit.rollouts.label("total")).order_by(commit.commit_id.desc()).limit(1)


async def attempts(session: ReadSession, rollout_id: str, filter_query: FilterQuery, make: Make[Item]) -> Page[Item]:
    """Return a page of the attempts of a rollout. Attempts whose claim was released are left out.

    A row has the columns of the attempt, beat_time and stamped_at of the attempt's signal, and codec and bytes of the
    attempt's metadata.
    """
    attempt = attempts_table.c
    listing = Listing(
        filter_query,
        _ATTEMPT_COLUMNS,
        _ATTEMPTS,
        _whole_attempts,
        within=lambda: and_(attempt.rollout_id == bindparam("rollout"), attempt.released_position.is_(None)),
        within_params=(("rollout", check_text(rollout_id, "rollout_id", LONGEST_ID)),),
        shape="attempts",
    )
    return await make_page(session, listing, make)


def _whole_attempts(_: Columns, source: FromClause) -> Select[Any]:
    signal = core_tables.attempt_signals.c
    statement = select(*attempts_table.c, signal.beat_time, signal.stamped_at).select_from(source)
    return _with_body(statement, attempts_table.c.metadata_position)


async def spans(
    session: ReadSession,
    rollout_id: str | Sequence[str],
    attempt_id: str | Sequence[str] | None,
    filter_query: FilterQuery,
    make: Make[Item],
    *,
    until: int | None = None,
    batch: int | None = None,
) -> Page[Item]:
    """Return a page of spans, converted by `make`; the other arguments are those of `take_spans`."""
    items: list[Item] = []
    total = await take_spans(
        session,
        rollout_id,
        attempt_id,
        filter_query,
        lambda rows: items.extend(map(make, rows)),
        until=until,
        batch=batch,
    )
    return Page(items, total)


async def take_spans(
    session: ReadSession,
    rollout_id: str | Sequence[str],
    attempt_id: str | Sequence[str] | None,
    filter_query: FilterQuery,
    take: Take,
    *,
    until: int | None = None,
    batch: int | None = None,
) -> int:
    """Pass a page of the spans of one or more rollouts to `take`. Return the number of all matching spans.

    A row has the columns of the table, and codec and bytes of the body.

    Args:
        session: a connection to the database.
        rollout_id: the id of the rollout, or a list of ids.
        attempt_id: only spans of this attempt; `latest` means the current latest attempt; None for all attempts. With a
            list of rollouts, it may also be a list that has one attempt id for each rollout.
        filter_query: the query. A query with the logic `or` and no condition matches nothing, as in
            Agent-lightning 0.3.
        take: a function that is called with lists of rows.
        until: only spans up to this position of the log. If `until` is given, `latest` is treated as an ordinary
            attempt id.
        batch: the number of rows in memory at a time; None for all.
    """
    if filter_query.logic == "or" and not filter_query.conditions:
        return 0
    params: list[tuple[str, Any]] = []
    is_latest = attempt_id == "latest" and until is None
    if isinstance(rollout_id, str):
        params.append(("rollout", check_text(rollout_id, "rollout_id", LONGEST_ID)))
    else:
        ids = [check_text(value, "rollout_id", LONGEST_ID) for value in rollout_id]
        params.append(("rollouts", session.dialect.list_param(ids)))
        if attempt_id is not None and not isinstance(attempt_id, str):
            params.append(("attempts", session.dialect.list_param([*map(_of_attempt, ids, attempt_id)])))
    if isinstance(attempt_id, str) and not is_latest:
        params.append(("attempt", check_text(attempt_id, "attempt_id", LONGEST_ID)))
    if until is not None:
        params.append(("until", until))
    names = tuple(name for name, _ in params)
    listing = Listing(
        filter_query,
        _SPAN_COLUMNS,
        core_tables.spans,
        _whole_spans,
        within=lambda: spans_within(session.dialect, names, is_latest=is_latest),
        within_params=tuple(params),
        shape=("spans", is_latest, names),
        is_narrow_first=True,
        # The spans of each rollout are numbered separately.
        first="rollout_id" if "rollouts" in names and filter_query.sort_by == "sequence_id" else None,
    )
    return (await take_page(session, listing, take, [], batch=batch)).total


def _of_attempt(rollout_id: str, attempt_id: str) -> str:
    """Return a text that identifies an attempt among those of all rollouts."""
    return f"{rollout_id}\n{attempt_id}"


def spans_within(dialect: Dialect, names: Iterable[str], *, is_latest: bool) -> ColumnElement[bool]:
    """Return the condition that spans must meet, given the names of the parameters that the statement has."""
    span = core_tables.spans.c
    attempt = span.rollout_id + literal_column("'\n'", Text) + span.attempt_id
    demands: dict[str, Callable[[], ColumnElement[bool]]] = {
        "rollout": lambda: span.rollout_id == bindparam("rollout"),
        "rollouts": lambda: dialect.any_of(span.rollout_id, "rollouts"),
        "attempt": lambda: span.attempt_id == bindparam("attempt"),
        "attempts": lambda: dialect.any_of(attempt, "attempts"),
        "after": lambda: span.position > bindparam("after", type_=BigInteger),
        "until": lambda: span.position <= bindparam("until", type_=BigInteger),
    }
    terms = [demands[name]() for name in names]
    if is_latest and "rollout" in names:
        terms.append(span.attempt_id == _latest_id(bindparam("rollout", type_=Text)))
    elif is_latest:
        columns: list[ColumnElement[Any]] = [attempts_table.c.rollout_id, attempts_table.c.attempt_id]
        latest = (
            select(*columns)
            .select_from(rollouts_table.join(attempts_table, joins_latest(_ROLLOUT_COLUMNS)))
            .where(dialect.any_of(rollouts_table.c.rollout_id, "rollouts"))
        )
        terms.append(tuple_(span.rollout_id, span.attempt_id).in_(latest))
    return and_(*terms)


def _latest_id(rollout_id: ColumnElement[Any]) -> ColumnElement[Any]:
    statement = (
        select(attempts_table.c.attempt_id)
        .select_from(rollouts_table.join(attempts_table, joins_latest(_ROLLOUT_COLUMNS)))
        .where(rollouts_table.c.rollout_id == rollout_id)
    )
    return statement.scalar_subquery()


async def resources(session: ReadSession, filter_query: FilterQuery, make: Make[Item]) -> Page[Item]:
    """Return a page of resources. A row has the columns of the table, and codec and bytes of the body."""
    table = core_tables.resources
    listing = Listing(filter_query, _RESOURCE_COLUMNS, table, _whole_resources, is_narrow_first=True)
    return await make_page(session, listing, make, batch=_BATCH)


async def workers(session: ReadSession, filter_query: FilterQuery, make: Make[Item]) -> Page[Item]:
    """Return a page of workers.

    A row has the columns of the table, and those of the worker's signal with the prefix `signal_`, or nulls.
    """
    listing = Listing(filter_query, WORKER_COLUMNS, WORKERS, _whole_workers)
    return await make_page(session, listing, make)


def _whole_workers(_: Columns, source: FromClause) -> Select[Any]:
    signals = (column.label(f"signal_{column.name}") for column in core_tables.worker_signals.c)
    return select(*core_tables.workers.c, *signals).select_from(source)


async def _one(
    session: ReadSession, shape: str, build: Callable[[], Select[Any]], field: str, key: str
) -> NamedRow | None:
    sql = compiled(session, shape, build)
    rows = await session.fetch(sql, {"key": check_text(key, field, LONGEST_ID)})
    return rows[0] if rows else None


def rollout(session: ReadSession, rollout_id: str) -> Awaitable[NamedRow | None]:
    """Return the awaitable row of one rollout, with the columns that the function `rollouts` reads."""

    def build() -> Select[Any]:
        statement = _whole_rollouts(_ROLLOUT_COLUMNS, rollouts_table)
        return statement.where(rollouts_table.c.rollout_id == bindparam("key"))

    return _one(session, "rollout", build, "rollout_id", rollout_id)


async def _by_ids(
    session: ReadSession,
    shape: str,
    build: Callable[[], Select[Any]],
    key: Column[Any],
    ids: Iterable[str],
    make: Make[Item],
) -> dict[str, Item]:
    sql = compiled(session, shape, lambda: build().where(session.dialect.any_of(key, "wanted")))
    items: dict[str, Item] = {}
    distinct = _distinct(ids)
    for start in range(0, len(distinct), _IDS_AT_ONCE):
        params = {"wanted": session.dialect.list_param(distinct[start : start + _IDS_AT_ONCE])}
        items.update((getattr(row, key.name), make(row)) for row in await session.fetch(sql, params))
    return items


async def rollouts_by_id(session: ReadSession, rollout_ids: Iterable[str], make: Make[Item]) -> dict[str, Item]:
    """Return rollouts by id. `make` creates them from rows with the columns that the function `rollouts` reads."""

    def build() -> Select[Any]:
        return _whole_rollouts(_ROLLOUT_COLUMNS, rollouts_table)

    return await _by_ids(session, "rollouts_by_id", build, rollouts_table.c.rollout_id, rollout_ids, make)


async def finished(session: ReadSession, rollout_ids: Iterable[str]) -> dict[str, bool]:
    """Return by id whether rollouts have ended (succeeded, failed or cancelled). Unknown ids are left out."""

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [rollouts_table.c.rollout_id, rollouts_table.c.status]
        return select(*columns).where(session.dialect.any_of(rollouts_table.c.rollout_id, "wanted"))

    sql = compiled(session, "finished", build)
    rows = await session.fetch(sql, {"wanted": session.dialect.list_param(_distinct(rollout_ids))})
    return {rollout_id: status in TERMINAL for rollout_id, status in rows}


def _distinct(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(check_text(value, "ids", LONGEST_ID) for value in ids))


def latest_attempt(session: ReadSession, rollout_id: str) -> Awaitable[NamedRow | None]:
    """Return the awaitable row of a rollout's latest attempt, with the columns that the function `attempts` reads."""

    def build() -> Select[Any]:
        joined = attempts_table.join(rollouts_table, joins_latest(_ROLLOUT_COLUMNS)).outerjoin(
            core_tables.attempt_signals, signal_of(_ATTEMPT_COLUMNS)
        )
        return _whole_attempts({}, joined).where(attempts_table.c.rollout_id == bindparam("key"))

    return _one(session, "latest_attempt", build, "rollout_id", rollout_id)


def resources_by_id(session: ReadSession, resources_id: str) -> Awaitable[NamedRow | None]:
    """Return the awaitable row of one set of resources, with the columns that the function `resources` reads."""

    def build() -> Select[Any]:
        table = core_tables.resources
        return _whole_resources(_RESOURCE_COLUMNS, table).where(table.c.resources_id == bindparam("key"))

    return _one(session, "resources_by_id", build, "resources_id", resources_id)


async def resources_by_ids(session: ReadSession, resources_ids: Iterable[str], make: Make[Item]) -> dict[str, Item]:
    """Return resources by id. `make` creates them from rows with the columns that the function `resources` reads."""
    table = core_tables.resources

    def build() -> Select[Any]:
        return _whole_resources(_RESOURCE_COLUMNS, table)

    return await _by_ids(session, "resources_by_ids", build, table.c.resources_id, resources_ids, make)


async def latest_resources(session: ReadSession) -> NamedRow | None:
    """Return the row of the latest resources, with the columns that the function `resources` reads."""

    def build() -> Select[Any]:
        table = core_tables.resources
        return _whole_resources(_RESOURCE_COLUMNS, table).order_by(table.c.last_position.desc()).limit(1)

    rows = await session.fetch(compiled(session, "latest_resources", build), {})
    return rows[0] if rows else None


def worker(session: ReadSession, worker_id: str) -> Awaitable[NamedRow | None]:
    """Return the awaitable row of one worker, with the columns that the function `workers` reads."""

    def build() -> Select[Any]:
        statement = _whole_workers({}, WORKERS)
        return statement.where(core_tables.workers.c.worker_id == bindparam("key"))

    return _one(session, "worker", build, "worker_id", worker_id)


async def workers_by_id(session: ReadSession, worker_ids: Iterable[str], make: Make[Item]) -> dict[str, Item]:
    """Return workers by id. `make` creates them from rows with the columns that the function `workers` reads."""

    def build() -> Select[Any]:
        return _whole_workers({}, WORKERS)

    return await _by_ids(session, "workers_by_id", build, core_tables.workers.c.worker_id, worker_ids, make)


@cache
def rollout_row() -> RowMaker:
    """Return a function that makes rows with the columns that the function `rollouts` reads."""
    return _row_maker(_whole_rollouts(_ROLLOUT_COLUMNS, rollouts_table))


@cache
def attempt_row() -> RowMaker:
    """Return a function that makes rows with the columns that the function `attempts` reads."""
    return _row_maker(_whole_attempts({}, _ATTEMPTS))


@cache
def resources_row() -> RowMaker:
    """Return a function that makes rows with the columns that the function `resources` reads."""
    return _row_maker(_whole_resources(_RESOURCE_COLUMNS, core_tables.resources))


@cache
def worker_row() -> RowMaker:
    """Return a function that makes rows with the columns that the function `workers` reads."""
    return _row_maker(_whole_workers({}, WORKERS))


def _row_maker(statement: Select[Any]) -> RowMaker:
    return row_maker(tuple(statement.selected_columns.keys()))


async def next_checks(session: ReadSession, since: int) -> tuple[int | None, int | None]:
    """Return the time of the watchdog's earliest check, and the time of its earliest check at or after `since`, in µs.

    The watchdog ends attempts that have exceeded a time limit. A time is None if there is no such check.
    """

    def build() -> Select[Any]:
        at = core_tables.watch.c.check_at
        later = select(func.min(at)).where(at >= bindparam("since", type_=BigInteger))
        columns: list[ColumnElement[Any]] = [
            select(func.min(at)).scalar_subquery().label("earliest"),
            later.scalar_subquery().label("following"),
        ]
        return select(*columns)

    rows = await session.fetch(compiled(session, "next_checks", build), {"since": since})
    return rows[0].earliest, rows[0].following


async def last_times(session: ReadSession) -> tuple[int, int]:
    """Return the last timestamp of the log in µs, and the time of the last commit without an event that is known."""

    def build() -> Select[Any]:
        commit = core_tables.commits.c
        last = select(commit.recorded_at).order_by(commit.commit_id.desc()).limit(1)
        columns: list[ColumnElement[Any]] = [
            last.scalar_subquery().label("committed_at"),
            select(func.max(core_tables.batches.c.at)).scalar_subquery().label("batch_at"),
        ]
        return select(*columns)

    rows = await session.fetch(compiled(session, "last_times", build), {})
    return rows[0].committed_at or 0, rows[0].batch_at or 0


async def queue_depth(session: ReadSession) -> int:
    """Return the number of rollouts that wait for a claim."""

    def build() -> Select[Any]:
        return select(func.count().label("depth")).select_from(core_tables.queue)

    return (await session.fetch(compiled(session, "queue_depth", build), {}))[0].depth


async def waiting_runs(session: ReadSession, resources_ids: Iterable[str], limit: int) -> list[str]:
    """Return the ids of the first rollouts in the queue that have no mode and use one of the resources."""

    def build() -> Select[Any]:
        queue, rollouts = core_tables.queue, rollouts_table
        return (
            select(queue.c.rollout_id)
            .select_from(queue.join(rollouts, rollouts.c.rollout_id == queue.c.rollout_id))
            .where(rollouts.c.mode.is_(None), session.dialect.any_of(rollouts.c.resources_id, "wanted"))
            .order_by(queue.c.position)
            .limit(bindparam("most", type_=Integer))
        )

    sql = compiled(session, "waiting_runs", build)
    rows = await session.fetch(sql, {"wanted": session.dialect.list_param(_distinct(resources_ids)), "most": limit})
    return [rollout_id for (rollout_id,) in rows]


async def totals(session: ReadSession) -> tuple[int, ...]:
    """Return the totals of the log in the order of `TOTALS`; zeros for an empty log."""
    commit = core_tables.commits.c

    def build() -> Select[Any]:
        counted = [commit[name] for name in TOTALS]
        return select(*counted).order_by(commit.commit_id.desc()).limit(1)

    rows = await session.fetch(compiled(session, "totals", build), {})
    return tuple(rows[0]) if rows else (0,) * len(TOTALS)
