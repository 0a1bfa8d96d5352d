"""Views of a run, read with SQL: the events, checkpoints and artifacts that belong to the view of an attempt.

The view of an attempt contains the attempt's own rows. From the view of its base, it also contains the rows up to the
version at which the fork was made, except rows that a mask hides. The lineage of a view consists of the attempt, its
base, the base of this base, and so on. One recursive statement determines the view for all three tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Table,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    union,
)
from sqlalchemy.types import BigInteger, Text

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.pages import LONGEST_ID, compiled
from store.db.tables import core as core_tables
from store.domain.run_events import HeadMoved
from store.errors import Invalid
from store.validation.json_limits import check_text

END: Final = 2**62
"""A number greater than every position and version."""

Form = Literal["seen", "own", "raw"]
"""`seen` is the view of an attempt, `own` only the own rows of an attempt, and `raw` the rows of all attempts."""

_EVENTS_SHOWN: Final = (
    "version",
    "position",
    "kind",
    "node_id",
    "scope",
    "parent_node_id",
    "phase",
    "agent",
    "node_exec",
    "status",
    "service",
    "metrics",
    "prompt_sha256",
    "response_sha256",
)
_CHECKPOINTS_SHOWN: Final = (
    "version",
    "position",
    "checkpoint_id",
    "scope",
    "name",
    "after_phase",
    "parent_id",
    "graph",
    "external",
)
_ARTIFACTS_SHOWN: Final = (
    "version",
    "position",
    "artifact_id",
    "scope",
    "name",
    "phase",
    "media_type",
    "retracted",
)


@dataclass(frozen=True, slots=True)
class View:
    """A selection of the attempts whose rows are read."""

    form: Form
    attempt: int
    """The attempt whose view or own rows are read. Not used for the form `raw`."""
    until: int = END
    """The last position of the log that is read."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A table whose rows belong to views."""

    table: Table
    columns: tuple[str, ...]
    """The names of the columns that reads return."""
    phase: str
    """The name of the column with the phase. Masks of phases apply to rows without a node."""
    has_nodes: bool = False
    """Whether the table has the columns `node_id` and `parent_node_id`."""


_EVENTS = _Kind(core_tables.run_events, _EVENTS_SHOWN, "phase", has_nodes=True)
_CHECKPOINTS = _Kind(core_tables.checkpoints, _CHECKPOINTS_SHOWN, "after_phase")
_ARTIFACTS = _Kind(core_tables.artifacts, _ARTIFACTS_SHOWN, "phase")


def parse(view: str) -> tuple[Form, int | None]:
    """Return the form and the attempt of a view, given its name in the API. The attempt of `head` and `raw` is None.

    Raises:
        Invalid: the text is not `head`, `raw`, `attempt:<n>` or `own:<n>`.
    """
    if view == "raw":
        return "raw", None
    if view == "head":
        return "seen", None
    form, _, number = view.partition(":")
    if form not in {"attempt", "own"} or not number.isdecimal() or not 0 < int(number) < 2**31:
        raise Invalid("view", f"{view!r} is none of head, raw, attempt:<n>, own:<n>; n is a sequence_id: 1, 2, 3 …")
    return "own" if form == "own" else "seen", int(number)


def _zero() -> ColumnElement[int]:
    return literal_column("0", Integer)


def _alive(attempt: FromClause) -> ColumnElement[bool]:
    """Return the condition that an attempt existed at the position `until`.

    The attempt must have started, and the claim of the worker that started it must not have been released (taken back).
    """
    until = bindparam("until", type_=BigInteger)
    released = attempt.c.released_position
    return and_(
        attempt.c.rollout_id == bindparam("rollout", type_=Text),
        attempt.c.first_position <= until,
        or_(released.is_(None), released > until),
    )


def _lineage(form: Form) -> CTE:
    """Return the lineage of a view: its attempts, each with the last version that belongs to the view, and a depth.

    The attempt of the view has the depth 0, its base has the depth 1, the base of this base has the depth 2, and so on.
    """
    first = core_tables.attempts.alias("first")
    columns = [first.c.sequence_id, first.c.attempt_id, first.c.rerun_seq]
    no_bound = cast(null(), BigInteger).label("upto")
    depth = _zero().label("depth")
    if form == "raw":
        return (
            select(*columns, no_bound, depth, cast(null(), BigInteger).label("fork"))
            .where(_alive(first))
            .cte("lineage")
        )
    is_it = first.c.sequence_id == bindparam("attempt", type_=Integer)
    rest = [first.c.fork_version.label("fork"), first.c.base, first.c.base_version]
    start = select(*columns, no_bound, depth, *rest).where(_alive(first), is_it)
    if form == "own":
        return start.cte("lineage")
    lineage = start.cte("lineage", recursive=True)
    base = core_tables.attempts.alias("base")
    below = (
        select(
            base.c.sequence_id,
            base.c.attempt_id,
            base.c.rerun_seq,
            lineage.c.base_version,
            lineage.c.depth + literal_column("1", Integer),
            base.c.fork_version,
            base.c.base,
            base.c.base_version,
        )
        .select_from(lineage.join(base, base.c.sequence_id == lineage.c.base))
        .where(_alive(base))
    )
    return lineage.union_all(below)


def _masks(lineage: CTE) -> CTE:
    """Return the distinct masks of the forks of a lineage, each with the least depth of a fork that has the mask."""
    mask = core_tables.fork_masks.c
    columns: list[ColumnElement[Any]] = [mask.scope, mask.node_id, mask.phase, mask.children]
    by_fork = and_(mask.version == lineage.c.fork, mask.rollout_id == bindparam("rollout", type_=Text))
    depth = func.min(lineage.c.depth).label("depth")
    statement = select(*columns, depth).select_from(lineage.join(core_tables.fork_masks, by_fork)).group_by(*columns)
    # Without MATERIALIZED, both databases would compute the masks again for each row.
    return statement.cte("masks").prefix_with("MATERIALIZED")


def _hidden(kind: _Kind, lineage: CTE, grouped: FromClause | None = None) -> ColumnElement[bool]:
    """Return the condition that a fork hides a row. The fork must have a smaller depth than the attempt of the row.

    Args:
        kind: the table of the row.
        lineage: the attempts of the view.
        grouped: a subquery with rows of the table and the depth of their attempts, to use in place of the table.
    """
    row = kind.table.c if grouped is None else grouped.c
    depth = lineage.c.depth if grouped is None else grouped.c.depth
    mask = _masks(lineage).c
    phase = row[kind.phase]
    by_phase = and_(mask.phase.is_not(None), mask.phase == phase)
    by_scope = and_(mask.node_id.is_(None), mask.phase.is_(None))
    if kind.has_nodes:
        under = and_(mask.children != _zero(), mask.node_id == row.parent_node_id)
        is_masked = or_(by_scope, mask.node_id == row.node_id, under, and_(row.node_id.is_(None), by_phase))
    else:
        is_masked = or_(by_scope, by_phase)
    is_above = mask.depth < depth
    return exists(select(_zero()).where(is_above, or_(mask.scope.is_(None), mask.scope == row.scope), is_masked))


def _rows(kind: _Kind, form: Form, *conditions: ColumnElement[bool]) -> Select[Any]:
    row, lineage, event = kind.table.c, _lineage(form), core_tables.events.c
    source = kind.table.join(lineage, lineage.c.sequence_id == row.attempt)
    statement = select(
        *(row[name] for name in kind.columns),
        row.attempt,
        lineage.c.attempt_id,
        lineage.c.rerun_seq,
        event.type,
        event.at,
    ).select_from(source.join(core_tables.events, event.position == row.position))
    statement = statement.where(
        row.rollout_id == bindparam("rollout", type_=Text),
        row.position <= bindparam("until", type_=BigInteger),
        or_(lineage.c.upto.is_(None), row.version <= lineage.c.upto),
        *conditions,
    )
    if form == "seen":
        statement = statement.where(~_hidden(kind, lineage))
    return statement


async def _fetch(
    session: ReadSession,
    rollout_id: str,
    view: View,
    shape: tuple[object, ...],
    build: Callable[[], Select[Any]],
    params: dict[str, Any],
) -> Sequence[NamedRow]:
    sql = compiled(session, ("run_view", view.form, *shape), build)
    values = {
        "rollout": check_text(rollout_id, "rollout_id", LONGEST_ID),
        "until": view.until,
        "attempt": view.attempt,
        **params,
    }
    return await session.fetch(sql, values)


def _equal(table: Table, **values: str | None) -> tuple[list[ColumnElement[bool]], dict[str, Any], tuple[str, ...]]:
    """Return the conditions that columns have the given values, the parameters of the conditions, and the columns.

    A column whose value is None gets no condition.
    """
    texts = {name: check_text(value, name, LONGEST_ID) for name, value in values.items() if value is not None}
    terms = [table.c[name] == bindparam(f"only_{name}", type_=Text) for name in texts]
    return terms, {f"only_{name}": value for name, value in texts.items()}, tuple(texts)


async def events(
    session: ReadSession,
    rollout_id: str,
    view: View,
    *,
    after: int = 0,
    limit: int = -1,
    scope: str | None = None,
    node_id: str | None = None,
    kind: str | None = None,
) -> Sequence[NamedRow]:
    """Return the events of a view with versions greater than `after`, in order.

    The columns are `_EVENTS_SHOWN`, then attempt, attempt_id, rerun_seq, type and time (µs) of the event in the log.
    """
    table = core_tables.run_events
    terms, params, names = _equal(table, scope=scope, node_id=node_id, kind=kind)

    def build() -> Select[Any]:
        statement = _rows(_EVENTS, view.form, table.c.version > bindparam("after", type_=BigInteger), *terms)
        statement = statement.order_by(table.c.version)
        return statement if limit < 0 else statement.limit(bindparam("most", type_=BigInteger))

    params |= {"after": min(after, END), "most": min(limit, END)}
    return await _fetch(session, rollout_id, view, ("events", limit < 0, names), build, params)


async def outline(session: ReadSession, rollout_id: str, view: View) -> Sequence[NamedRow]:
    """Return the events of a view in groups, ordered by the first event of each group.

    The columns are kind, scope, node_id, parent_node_id and phase, which are equal for the events of a group, and the
    number of events.
    """
    row = core_tables.run_events.c

    def build() -> Select[Any]:
        lineage = _lineage(view.form)
        counts = and_(
            row.rollout_id == bindparam("rollout", type_=Text),
            row.position <= bindparam("until", type_=BigInteger),
            or_(lineage.c.upto.is_(None), row.version <= lineage.c.upto),
        )
        keys = (row.kind, row.scope, row.node_id, row.parent_node_id, row.phase)
        # The events are grouped before hidden events are removed, so that only a few hundred groups have to be checked
        # instead of all events.
        groups = (
            select(*keys, lineage.c.depth, func.count().label("events"), func.min(row.version).label("first"))
            .select_from(core_tables.run_events.join(lineage, lineage.c.sequence_id == row.attempt))
            .where(counts)
            .group_by(*keys, lineage.c.depth)
            .subquery("told")
        )
        columns = [groups.c[column.name] for column in keys]
        statement = select(*columns, cast(func.sum(groups.c.events), BigInteger).label("total")).group_by(*columns)
        if view.form == "seen":
            statement = statement.where(~_hidden(_EVENTS, lineage, groups))
        return statement.order_by(func.min(groups.c.first))

    return await _fetch(session, rollout_id, view, ("outline",), build, {})


async def checkpoints(
    session: ReadSession,
    rollout_id: str,
    view: View,
    *,
    scope: str | None = None,
    name: str | None = None,
    checkpoint_id: str | None = None,
    newest: bool = False,
) -> Sequence[NamedRow]:
    """Return the checkpoints of a view in order, or with `newest` only the newest checkpoint.

    The columns are `_CHECKPOINTS_SHOWN`, then attempt, attempt_id, rerun_seq, type and time (µs) of the event in the
    log.
    """
    table = core_tables.checkpoints
    terms, params, names = _equal(table, scope=scope, name=name, checkpoint_id=checkpoint_id)

    def build() -> Select[Any]:
        statement = _rows(_CHECKPOINTS, view.form, *terms)
        return _newest(statement, table) if newest else statement.order_by(table.c.version)

    return await _fetch(session, rollout_id, view, ("checkpoints", newest, names), build, params)


def _newest(statement: Select[Any], table: Table) -> Select[Any]:
    return statement.order_by(table.c.version.desc()).limit(literal_column("1", Integer))


async def artifacts(
    session: ReadSession,
    rollout_id: str,
    view: View,
    *,
    scope: str | None = None,
    name: str | None = None,
    limit: int = -1,
    cut_version: int = END,
) -> Sequence[NamedRow]:
    """Return the artifacts of a view in order, without those that were retracted at `cut_version` or before.

    The columns are `_ARTIFACTS_SHOWN`, then attempt, attempt_id, rerun_seq, type and time (µs) of the event in the log.
    With a limit, only the last artifacts are returned.
    """
    table = core_tables.artifacts
    terms, params, names = _equal(table, scope=scope, name=name)
    not_retracted = or_(table.c.retracted.is_(None), table.c.retracted > bindparam("cut_version", type_=BigInteger))

    def build() -> Select[Any]:
        statement = _rows(_ARTIFACTS, view.form, not_retracted, *terms).order_by(table.c.version.desc())
        return statement if limit < 0 else statement.limit(bindparam("most", type_=BigInteger))

    params |= {"cut_version": cut_version, "most": min(limit, END)}
    rows = await _fetch(session, rollout_id, view, ("artifacts", limit < 0, names), build, params)
    return list(reversed(rows))


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a run as a whole at a position of the log."""

    head: int | None
    """The sequence_id of the head; None before the first attempt."""
    run_version: int | None
    """The version of the last event on which a plan for a fork depends.

    Even for an earlier position, this is the current version.
    """
    resources_id: str | None
    group_id: str | None


async def standing(session: ReadSession, rollout_id: str, until: int = END) -> Standing | None:
    """Return the state of a run at the position `until`; None if the run did not exist at this position."""
    rollout = core_tables.rollouts.c

    def build() -> Select[Any]:
        names = ("head", "run_version", "resources_id", "group_id", "first_position", "last_position")
        columns: list[ColumnElement[Any]] = [rollout[name] for name in names]
        return select(*columns).where(rollout.rollout_id == bindparam("rollout", type_=Text))

    sql = compiled(session, "run_standing", build)
    rows = await session.fetch(sql, {"rollout": check_text(rollout_id, "rollout_id", LONGEST_ID)})
    if not rows or rows[0].first_position > until:
        return None
    run, head = rows[0], rows[0].head
    if run.last_position > until:
        head = await _head_then(session, rollout_id, until)
    return Standing(head, run.run_version, run.resources_id, run.group_id)


async def _head_then(session: ReadSession, rollout_id: str, until: int) -> int | None:
    """Return the head at a position: the attempt that started last, unless the head was moved after this start."""
    attempt, event = core_tables.attempts, core_tables.events.c

    def started() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [attempt.c.sequence_id, attempt.c.first_position]
        return (
            select(*columns)
            .where(_alive(attempt))
            .order_by(attempt.c.first_position.desc())
            .limit(literal_column("1", Integer))
        )

    def moved() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [event.data, event.position]
        statement = select(*columns).where(
            event.stream == bindparam("stream", type_=Text),
            event.type == bindparam("type", type_=Text),
            event.position <= bindparam("until", type_=BigInteger),
        )
        return statement.order_by(event.version.desc()).limit(literal_column("1", Integer))

    params = {"rollout": rollout_id, "until": until, "stream": f"rollout/{rollout_id}", "type": HeadMoved.type}
    starts = await session.fetch(compiled(session, "run_started", started), params)
    moves = await session.fetch(compiled(session, "run_moved", moved), params)
    if moves and (not starts or moves[0].position > starts[0].first_position):
        return json_of(moves[0].data)["to"]
    return starts[0].sequence_id if starts else None


async def has_attempt(session: ReadSession, rollout_id: str, attempt: int, until: int = END) -> bool:
    """Return whether a run had an attempt with this sequence_id at the position `until`."""

    def build() -> Select[Any]:
        has_number = core_tables.attempts.c.sequence_id == bindparam("attempt", type_=Integer)
        return select(core_tables.attempts.c.attempt_id).where(_alive(core_tables.attempts), has_number)

    sql = compiled(session, "run_has_attempt", build)
    return bool(await session.fetch(sql, {"rollout": rollout_id, "attempt": attempt, "until": until}))


async def version_at(session: ReadSession, rollout_id: str, until: int) -> int:
    """Return the version of the last event of a run up to the position `until`; 0 before the first event."""
    event = core_tables.events.c

    def build() -> Select[Any]:
        is_in_stream = event.stream == bindparam("stream", type_=Text)
        statement = select(event.version).where(is_in_stream, event.position <= bindparam("until", type_=BigInteger))
        return statement.order_by(event.version.desc()).limit(literal_column("1", Integer))

    sql = compiled(session, "run_version_at", build)
    rows = await session.fetch(sql, {"stream": f"rollout/{rollout_id}", "until": until})
    return rows[0].version if rows else 0


async def scopes(session: ReadSession, rollout_id: str) -> set[str]:
    """Return all scopes that occur in a run, in any attempt."""
    tables = (core_tables.run_events, core_tables.checkpoints, core_tables.artifacts)

    def build() -> Select[Any]:
        rollout = bindparam("rollout", type_=Text)
        all_scopes = union(*(select(table.c.scope).where(table.c.rollout_id == rollout) for table in tables)).subquery()
        return select(all_scopes.c.scope).where(all_scopes.c.scope.is_not(None))

    return {row.scope for row in await session.fetch(compiled(session, "run_scopes", build), {"rollout": rollout_id})}
