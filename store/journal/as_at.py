"""Reads of the store's state at a past moment of the log.

A moment is given by the position of the last event before it (`until`).

A row that has not changed since the moment is returned as it is. A row that was added later is not returned. A row that
has changed is folded, which means that it is computed from the events of its stream up to the moment. Heartbeats are
not in the log, so they are null in the result.

The functions execute several statements, so the session must be a snapshot.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, and_, bindparam, null, or_, select, true
from sqlalchemy.types import BigInteger

from store.db.dialect import Dialect, NamedRow, ReadSession
from store.db.queries import filters, pages
from store.db.queries import log as log_queries
from store.db.queries.filters import FilterQuery, Noun, Values
from store.db.queries.paging import Make, Page, compiled
from store.db.queries.scanners import matches_of
from store.db.queries.scores import rewards_of_version
from store.db.tables import core as core_tables
from store.domain import resources as resources_stream
from store.domain import rollout as rollout_stream
from store.domain import worker as worker_stream
from store.domain.events import Event
from store.domain.resources import ResourcesState
from store.domain.rollout import RolloutState
from store.domain.views import ATTEMPT_COLUMNS, RESOURCES_COLUMNS, ROLLOUT_COLUMNS, SIGNALS_COLUMNS, WORKER_COLUMNS
from store.domain.worker import WorkerState
from store.errors import Invalid, PastUnavailable
from store.journal.log_rows import totals_after
from store.projections import rollouts as rollout_projection
from store.validation import arguments
from store.validation.json_limits import check_text

FOLD_LIMIT = 5000
"""The maximum number of changed rows that one read folds."""

State = TypeVar("State")
Item = TypeVar("Item")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STREAMS_AT_ONCE = 200
_NO_ATTEMPT = (None,) * len(ATTEMPT_COLUMNS)
_NO_SIGNAL = (None, None)
_NO_BODY = (None, None)


async def moment(session: ReadSession, as_at: Any) -> int:
    """Return the position of the last event that a read at a moment includes; 0 if the read includes no event.

    A read includes either all events of a call or none of them. If `as_at` is the position of an event of a call, and
    the call has later events, the moment is before the call. Decision 8.

    Args:
        session: a session that reads a snapshot of the database.
        as_at: the position of an event, or a datetime with a time zone. A datetime includes all commits that were
            recorded up to this time. A moment after the end of the log means the end of the log.

    Raises:
        Invalid: `as_at` is a naive datetime, a float, a negative position, or of another type.
    """
    if isinstance(as_at, datetime):
        if as_at.tzinfo is None:
            raise Invalid("as_at", f"{as_at!r} has no time zone; add one, as in datetime.now(UTC)")
        commit = await log_queries.commit_by_time(session, (as_at - _EPOCH) // timedelta(microseconds=1))
        return 0 if commit is None else commit.last_position
    if not isinstance(as_at, int) or isinstance(as_at, bool):
        raise Invalid("as_at", f"{as_at!r} is neither a position (int) nor a datetime with a time zone")
    if as_at < 0:
        raise Invalid("as_at", f"{as_at} is not a position; the first event has position 1, and 0 means before it")
    return await _whole_commands(session, as_at)


async def _whole_commands(session: ReadSession, position: int) -> int:
    last = await log_queries.last_event(session, position)
    if last is None:
        return 0
    following = await log_queries.events(session, after=last.position, limit=1)
    if not following or _command(following[0]) != _command(last):
        return last.position
    return await log_queries.last_before_command(session, last.position, *_command(last))


def _command(row: NamedRow) -> tuple[int, int]:
    """Return the command that recorded a row of `events`: the id of the commit, and the index of the command in it."""
    return row.commit_id, row.command


async def moment_of(session: ReadSession, rollout_id: str, number: int) -> int:
    """Return the log position of the event that has the given number in a rollout's stream.

    Raises:
        Invalid: the rollout has no event with this number.
    """
    arguments.event_number(number)
    if 0 < number < 2**62:
        stream = f"rollout/{check_text(rollout_id, 'rollout_id', pages.LONGEST_ID)}"
        position = await log_queries.position_of(session, stream, number)
        if position is not None:
            return position
    raise Invalid(
        "at", f"rollout {rollout_id} has no event {number!r}; its history (`rollbook history`) numbers them 1, 2, 3 …"
    )


@dataclass(frozen=True, slots=True)
class _Kind(Generic[State]):
    """A table whose rows can be folded from their streams."""

    noun: Noun
    """The fields of the table that queries can use."""
    key: str
    """The name of the column with the id."""
    prefix: str
    """The beginning of the name of a stream, before the id."""
    columns: tuple[str, ...]
    evolve: Callable[[State | None, Event], State]
    row: Callable[[State], tuple[Any, ...]]
    columns_of: Callable[[Dialect, FilterQuery], Mapping[str, ColumnElement[Any]]]
    """Function that returns the columns by which a query filters and sorts, except the columns of signals."""

    def values(self, state: State) -> Values:
        """Return the values of a row by column name. The values of signals are None."""
        signals = dict.fromkeys(field.column for field in self.noun.fields.values())
        return signals | dict(zip(self.columns, self.row(state), strict=False))


def _own_columns(_: Dialect, query: FilterQuery) -> Mapping[str, ColumnElement[Any]]:
    return dict(query.noun.table.c)


_ROLLOUTS: _Kind[RolloutState] = _Kind(
    filters.ROLLOUTS,
    "rollout_id",
    "rollout/",
    ROLLOUT_COLUMNS,
    rollout_stream.evolve,
    rollout_projection.rollout,
    pages.rollout_columns,
)
_RESOURCES: _Kind[ResourcesState] = _Kind(
    filters.RESOURCES,
    "resources_id",
    "resources/",
    RESOURCES_COLUMNS,
    resources_stream.evolve,
    rollout_projection.resources,
    _own_columns,
)
_WORKERS: _Kind[WorkerState] = _Kind(
    filters.WORKERS,
    "worker_id",
    "worker/",
    WORKER_COLUMNS,
    worker_stream.evolve,
    rollout_projection.worker,
    _own_columns,
)


async def _folded(session: ReadSession, kind: _Kind[State], keys: Sequence[str], until: int) -> dict[str, State]:
    """Return the states of some streams at the moment `until`, by id."""
    states: dict[str, State] = {}
    for start in range(0, len(keys), _STREAMS_AT_ONCE):
        streams = [kind.prefix + key for key in keys[start : start + _STREAMS_AT_ONCE]]
        async for batch in log_queries.events_of_streams(session, streams, until=until):
            for row in batch:
                event = log_queries.event_of(row)
                key = event.stream[len(kind.prefix) :]
                states[key] = kind.evolve(states.get(key), event)
    return states


async def _state(session: ReadSession, kind: _Kind[State], row: NamedRow | None, until: int) -> State | NamedRow | None:
    """Return the row if it has not changed since the moment `until`, or else the folded state.

    Return None if the row did not exist at that moment.
    """
    if row is None or row.first_position > until:
        return None
    if row.last_position <= until:
        return row
    key = getattr(row, kind.key)
    return (await _folded(session, kind, [key], until))[key]


@dataclass(slots=True)
class _Result(Generic[State]):
    """The result of a query at a past moment."""

    keys: list[str]
    """The ids of the rows on the requested page, in order."""
    total: int
    """The number of rows that match, on all pages."""
    states: dict[str, State]
    """The states at the moment, by id, of all rows that have changed since the moment."""


async def _find(session: ReadSession, kind: _Kind[State], query: FilterQuery, until: int) -> _Result[State]:
    candidates: list[Values] = []
    changed: list[str] = []
    count = 0
    shape = filters.shape(query)
    sql = compiled(session, shape and ("past", shape), lambda: _candidates(session.dialect, kind, query))
    async for rows in session.stream(sql, filters.params(session.dialect, query) | {"until": until}):
        for row in rows:
            if row.last_position <= until:
                candidates.append(_sortable(kind, query, row))
                continue
            count += 1
            if count <= FOLD_LIMIT:
                changed.append(row.key)
    if count > FOLD_LIMIT:
        raise PastUnavailable(count, FOLD_LIMIT)
    states = await _folded(session, kind, changed, until)
    computed = await _computed(session, query, states, until)
    then = ({**kind.values(state), **computed.get(key, {})} for key, state in states.items())
    candidates.extend(values for values in then if filters.matches(query, values))
    page = filters.page(query, filters.arranged(query, candidates))
    return _Result([values[kind.key] for values in page], len(candidates), states)


async def _computed(
    session: ReadSession, query: FilterQuery, states: Mapping[str, Any], until: int
) -> dict[str, Values]:
    """Return the values at the moment `until` that a query of rollouts uses and no column contains, by rollout id."""
    computed: dict[str, Values] = {}
    if query.noun is filters.ROLLOUTS and any(map(query.uses, (filters.REWARD, filters.LABEL, filters.SCAN_MATCH))):
        uses_reward = query.uses(filters.REWARD)
        version = query.reward_version
        rewards = await rewards_of_version(session, states, version, until=until) if uses_reward else {}
        matches = await matches_of(session, list(states), until) if query.uses(filters.SCAN_MATCH) else {}
        for rollout_id, state in states.items():
            latest = state.latest
            attempt_rewards = None if latest is None else rewards.get((rollout_id, latest.attempt_id))
            computed[rollout_id] = {
                filters.REWARD: None if attempt_rewards is None else attempt_rewards.final,
                filters.LABEL: sorted(state.labels or ()),
                filters.SCAN_MATCH: [] if latest is None else matches.get((rollout_id, latest.attempt_id), []),
            }
    return computed


def _candidates(dialect: Dialect, kind: _Kind[Any], query: FilterQuery) -> Select[Any]:
    """Select the rows that match and have not changed since the moment, and all changed rows that may have matched."""
    table = kind.noun.table.c
    columns = kind.columns_of(dialect, query)
    until = bindparam("until", type_=BigInteger)
    sorted_by = None if query.sort_by is None else columns.get(kind.noun.fields[query.sort_by].column)
    selected: list[ColumnElement[Any]] = [
        table[kind.key].label("key"),
        table.first_position,
        table.last_position,
        (null() if sorted_by is None else sorted_by).label("sort_value"),
    ]
    return select(*selected).where(
        table.first_position <= until,
        or_(table.last_position > until, filters.where(dialect, query, columns)),
        _id_conditions(dialect, kind, query, columns),
    )


def _id_conditions(
    dialect: Dialect, kind: _Kind[Any], query: FilterQuery, columns: Mapping[str, ColumnElement[Any]]
) -> ColumnElement[bool]:
    """Return the conditions of a query on the id, because an id never changes. Changed rows must meet them too."""
    terms = [
        filters.term(dialect, query, index, columns)
        for index, condition in enumerate(query.conditions)
        if condition.field == kind.key
    ]
    if query.logic == "and":
        return and_(true(), *terms)
    return or_(*terms) if terms and len(terms) == len(query.conditions) else true()


def _sortable(kind: _Kind[Any], query: FilterQuery, row: NamedRow) -> Values:
    values = {kind.key: row.key, "first_position": row.first_position}
    if query.sort_by is not None:
        values[kind.noun.fields[query.sort_by].column] = row.sort_value
    return values


def _page_of(result: _Result[Any], items: Mapping[str, Item]) -> Page[Item]:
    return Page([items[key] for key in result.keys], result.total)


def _unchanged(result: _Result[Any]) -> list[str]:
    return [key for key in result.keys if key not in result.states]


async def rollouts(session: ReadSession, query: FilterQuery, until: int, make: Make[Item]) -> Page[Item]:
    """Return a page of the rollouts at the moment `until`, with rows like those of `pages.rollouts`.

    Raises:
        PastUnavailable: more than `FOLD_LIMIT` rows have changed since that moment.
    """
    result = await _find(session, _ROLLOUTS, query, until)
    items = await pages.rollouts_by_id(session, _unchanged(result), lambda row: make(_without_signal(row)))
    then = [result.states[key] for key in result.keys if key in result.states]
    for row in await _folded_rollouts(session, then):
        items[row.rollout_id] = make(row)
    return _page_of(result, items)


async def rollout(session: ReadSession, rollout_id: str, until: int) -> NamedRow | None:
    """Return a rollout at the moment `until`, as a row like that of `pages.rollout`; None if it did not exist."""
    row = await pages.rollout(session, rollout_id)
    then = await _state(session, _ROLLOUTS, row, until)
    if isinstance(then, RolloutState):
        return (await _folded_rollouts(session, [then]))[0]
    return None if then is None else _without_signal(then)


async def _folded_rollouts(session: ReadSession, states: Sequence[RolloutState]) -> list[NamedRow]:
    bodies = await _bodies(session, [position for state in states for position in _body_positions(state)])
    return [
        pages.rollout_row()(
            (
                *rollout_projection.rollout(state),
                *(_NO_ATTEMPT if state.latest is None else rollout_projection.attempt(state.latest)),
                *_NO_SIGNAL,
                *(part for position in _body_positions(state) for part in bodies.get(position, _NO_BODY)),
            )
        )
        for state in states
    ]


def _body_positions(state: RolloutState) -> tuple[int | None, ...]:
    """Return the positions of the input, of the metadata, and of the metadata of the latest attempt."""
    latest = state.latest
    return state.input_position, state.metadata_position, None if latest is None else latest.metadata_position


async def _bodies(session: ReadSession, positions: Sequence[int | None]) -> Mapping[int | None, tuple[Any, Any]]:
    bodies = await log_queries.bodies_at(session, [position for position in positions if position is not None])
    return {**bodies}


async def attempts(
    session: ReadSession, rollout_id: str, query: FilterQuery, until: int, make: Make[Item]
) -> Page[Item]:
    """Return a page of a rollout's attempts at the moment `until`, with rows like those of `pages.attempts`."""
    rows = await _attempts(session, rollout_id, until)
    values: list[Values] = [row._asdict() | {"": row} for row in rows]
    arranged = filters.arranged(query, values)
    return Page([make(entry[""]) for entry in filters.page(query, arranged)], len(rows))


async def latest_attempt(session: ReadSession, rollout_id: str, until: int) -> NamedRow | None:
    """Return the latest attempt of a rollout at the moment `until`, as a row like that of `pages.latest_attempt`.

    Return None if the rollout did not exist or had no attempt.
    """
    rows = await _attempts(session, rollout_id, until)
    return max(rows, key=attrgetter("sequence_id"), default=None)


async def _attempts(session: ReadSession, rollout_id: str, until: int) -> list[NamedRow]:
    then = await _state(session, _ROLLOUTS, await pages.rollout(session, rollout_id), until)
    if then is None:
        return []
    if not isinstance(then, RolloutState):
        every = filters.query(filters.ATTEMPTS)
        return (await pages.attempts(session, rollout_id, every, _without_signal)).items
    states = [state for state in then.attempts.values() if state.released_position is None]
    bodies = await _bodies(session, [state.metadata_position for state in states])
    return [
        pages.attempt_row()(
            (*rollout_projection.attempt(state), *_NO_SIGNAL, *bodies.get(state.metadata_position, _NO_BODY))
        )
        for state in states
    ]


def _without_signal(row: NamedRow) -> NamedRow:
    return row._replace(beat_time=None, stamped_at=None)


async def spans(
    session: ReadSession,
    rollout_id: str | Sequence[str],
    attempt_id: str | None,
    query: FilterQuery,
    until: int,
    make: Make[Item],
    *,
    batch: int | None = None,
) -> Page[Item]:
    """Return a page of the spans of one or more rollouts at the moment `until`.

    The rows and the other arguments are those of `pages.spans`.
    """
    if attempt_id == "latest" and not isinstance(rollout_id, str):
        latest_rows = [await latest_attempt(session, rollout, until) for rollout in rollout_id]
        rollout_ids = [row.rollout_id for row in latest_rows if row is not None]
        attempt_ids = [row.attempt_id for row in latest_rows if row is not None]
        return await pages.spans(session, rollout_ids, attempt_ids, query, make, until=until, batch=batch)
    if attempt_id == "latest" and isinstance(rollout_id, str):
        latest = await latest_attempt(session, rollout_id, until)
        if latest is None:
            return Page([], 0)
        attempt_id = latest.attempt_id
    return await pages.spans(session, rollout_id, attempt_id, query, make, until=until, batch=batch)


async def resources(session: ReadSession, query: FilterQuery, until: int, make: Make[Item]) -> Page[Item]:
    """Return a page of the resources at the moment `until`, with rows like those of `pages.resources`.

    Raises:
        PastUnavailable: more than `FOLD_LIMIT` rows have changed since that moment.
    """
    result = await _find(session, _RESOURCES, query, until)
    items = await pages.resources_by_ids(session, _unchanged(result), make)
    then = [result.states[key] for key in result.keys if key in result.states]
    for row in await _folded_resources(session, then):
        items[row.resources_id] = make(row)
    return _page_of(result, items)


async def resources_by_id(session: ReadSession, resources_id: str, until: int) -> NamedRow | None:
    """Return the resources with an id at the moment `until`, as a row like that of `pages.resources_by_id`.

    Return None if they did not exist.
    """
    row = await pages.resources_by_id(session, resources_id)
    then = await _state(session, _RESOURCES, row, until)
    if isinstance(then, ResourcesState):
        return (await _folded_resources(session, [then]))[0]
    return then


async def latest_resources(session: ReadSession, until: int) -> NamedRow | None:
    """Return the latest resources at the moment `until`, as a row like that of `pages.latest_resources`.

    Return None if there were no resources.

    Raises:
        PastUnavailable: more than `FOLD_LIMIT` resources have changed since that moment.
    """
    table = core_tables.resources.c
    moment_param = bindparam("until", type_=BigInteger)
    columns: list[ColumnElement[Any]] = [table.resources_id, table.last_position]

    def same() -> Select[Any]:
        statement = select(*columns).where(table.last_position <= moment_param)
        return statement.order_by(table.last_position.desc()).limit(1)

    def changed() -> Select[Any]:
        statement = select(table.resources_id).where(table.last_position > moment_param)
        return statement.where(table.first_position <= moment_param)

    newest = await session.fetch(compiled(session, "latest_unchanged_resources", same), {"until": until})
    others = await session.fetch(compiled(session, "changed_resources", changed), {"until": until})
    if len(others) > FOLD_LIMIT:
        raise PastUnavailable(len(others), FOLD_LIMIT)
    states = await _folded(session, _RESOURCES, [row.resources_id for row in others], until)
    last = max(states.values(), key=lambda state: state.last_position, default=None)
    if last is not None and (not newest or last.last_position > newest[0].last_position):
        return (await _folded_resources(session, [last]))[0]
    return await pages.resources_by_id(session, newest[0].resources_id) if newest else None


async def _folded_resources(session: ReadSession, states: Sequence[ResourcesState]) -> list[NamedRow]:
    bodies = await _bodies(session, [state.body_position for state in states])
    return [
        pages.resources_row()((*rollout_projection.resources(state), *bodies.get(state.body_position, _NO_BODY)))
        for state in states
    ]


async def workers(session: ReadSession, query: FilterQuery, until: int, make: Make[Item]) -> Page[Item]:
    """Return a page of the workers at the moment `until`, with rows like those of `pages.workers`.

    Raises:
        PastUnavailable: more than `FOLD_LIMIT` rows have changed since that moment.
    """
    result = await _find(session, _WORKERS, query, until)
    items = await pages.workers_by_id(session, _unchanged(result), lambda row: make(_worker_without_signals(row)))
    items |= {key: make(_folded_worker(result.states[key])) for key in result.keys if key in result.states}
    return _page_of(result, items)


async def worker(session: ReadSession, worker_id: str, until: int) -> NamedRow | None:
    """Return a worker at the moment `until`, as a row like that of `pages.worker`; None if it did not exist."""
    row = await pages.worker(session, worker_id)
    then = await _state(session, _WORKERS, row, until)
    if isinstance(then, WorkerState):
        return _folded_worker(then)
    return None if then is None else _worker_without_signals(then)


def _folded_worker(state: WorkerState) -> NamedRow:
    return pages.worker_row()((*rollout_projection.worker(state), *(None for _ in SIGNALS_COLUMNS)))


def _worker_without_signals(row: NamedRow) -> NamedRow:
    return row._replace(**{f"signal_{name}": None for name in SIGNALS_COLUMNS})


async def totals(session: ReadSession, until: int) -> tuple[int, ...]:
    """Return the totals at the moment `until`, such as the number of all events, in the order of `pages.TOTALS`."""
    commit = await log_queries.commit_at(session, until)
    if commit is not None and commit.last_position > until:
        # Each commit stores the totals at its end. If the last commit ends after the moment, the totals of the commit
        # before are read, and the events between this commit and the moment are counted.
        commit = await log_queries.last_commit(session, commit.commit_id - 1)
    counted = log_queries.totals_of(commit)
    after = 0 if commit is None else commit.last_position
    while remaining := await log_queries.event_sizes(session, after=after, until=until):
        sizes = [(row.type, row.raw_len or 0) for row in remaining]
        counted = totals_after(counted, sizes)
        after = remaining[-1].position
    return counted
