"""Filters and sort orders of queries, as SQL and as functions in Python.

The functions are for rows of an earlier state of the store. No table contains these rows, so they are computed and then
filtered in Python. In SQL, names come from a whitelist and values are parameters, so no text of a caller becomes a part
of a statement.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Literal, cast

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, false, func, or_, select, true
from sqlalchemy import cast as cast_sql
from sqlalchemy.types import Text

from store.db.dialect import Dialect
from store.db.tables.core import attempts, labels, resources, rollouts, scans, spans, workers
from store.errors import Invalid
from store.models.queries import (
    AttemptQuery,
    PageQuery,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    UsageQuery,
    WorkerQuery,
)
from store.validation import arguments
from store.validation.conditions import condition as check_condition
from store.validation.scores import VersionKey, version_key

Columns = Mapping[str, ColumnElement[Any]]
"""SQL expressions by column name. The expression of a column may be the column itself or a computed value."""
Values = Mapping[str, Any]
Operation = Literal["is", "in", "contains", "min", "max"]

_PAGE = frozenset({"filter_logic", "sort_by", "sort_order", "limit", "offset", "reward_version"})
_UNLIMITED = 2**62
_NO_LENGTH = 2**31
# The value that replaces null in a sort.
_EMPTY = {"text": "", "labels": "", "number": 0}


@dataclass(frozen=True, slots=True)
class FilterField:
    """A field by which rows can be sorted and filtered."""

    column: str
    """The name of the column that contains the field."""
    kind: Literal["text", "number", "time", "value", "labels", "matches"]
    """The kind of the values. A `value` is a number that may be missing. A rollout may have several labels, and several
    `matches`: the versions of scanners that matched its latest attempt. Rows cannot be sorted by these.

    A missing text is sorted like an empty text, a missing number like zero, and a missing time after all other times.
    Rows without a `value` come last in both sort orders. Rollouts are sorted by the first of their sorted labels.
    """


@dataclass(frozen=True, slots=True)
class Noun:
    """A kind of row, and the fields by which its rows can be sorted and filtered. Fields have the names of the API."""

    name: str
    table: Table
    fields: Mapping[str, FilterField]
    created: str = "first_position"
    """The column whose ascending order is the order of creation. Rows with equal sort values are in this order."""
    ties: Mapping[str, tuple[str, ...]] | None = None
    """By sort field: further fields that sort rows with equal values, before the order of creation does.

    The further fields are always ascending, with null last.
    """


@dataclass(frozen=True, slots=True)
class FilterCondition:
    """A condition on a field."""

    field: str
    operation: Operation
    value: Any
    """A text. For the operation `in`, a sequence of texts or integers; for `min` and `max`, a number."""


@dataclass(frozen=True, slots=True)
class FilterQuery:
    """A query whose arguments were checked."""

    noun: Noun
    conditions: tuple[FilterCondition, ...] = ()
    logic: Literal["and", "or"] = "and"
    sort_by: str | None = None
    is_descending: bool = False
    limit: int = -1
    """The maximum number of rows; -1 for all rows."""
    offset: int = 0
    is_newest_first: bool = False
    """Whether rows with equal sort values, or all rows if `sort_by` is None, are in reverse order of creation."""
    reward_version: VersionKey | None = None
    """The version of the rewards of rollouts; None for recorded rewards."""

    def uses(self, field: str) -> bool:
        """Return whether the query filters or sorts by a field."""
        return self.sort_by == field or any(condition.field == field for condition in self.conditions)

    @property
    def is_paged(self) -> bool:
        """Whether the query has a limit or an offset."""
        return self.limit != -1 or self.offset > 0

    @property
    def limit_param(self) -> int:
        """The limit as a parameter of a statement, which must be a 64-bit integer."""
        return _UNLIMITED if self.limit == -1 else min(self.limit, _UNLIMITED)

    @property
    def offset_param(self) -> int:
        """The offset as a parameter of a statement, which must be a 64-bit integer."""
        return min(self.offset, _UNLIMITED)


def _text(*names: str) -> dict[str, FilterField]:
    return {name: FilterField(name, "text") for name in names}


def _stamps(*names: str) -> dict[str, FilterField]:
    """Return fields of times whose columns contain microseconds.

    For `start_time`, for example, the column is `start_at`.
    """
    return {name: FilterField(name.removesuffix("_time") + "_at", "time") for name in names}


def _times(*names: str) -> dict[str, FilterField]:
    return {name: FilterField(name, "time") for name in names}


def _numbers(*names: str) -> dict[str, FilterField]:
    return {name: FilterField(name, "number") for name in names}


def _values(*names: str) -> dict[str, FilterField]:
    return {name: FilterField(name, "value") for name in names}


REWARD: Final = "reward"
LABEL: Final = "label"
SCAN_MATCH: Final = "scan_match"
# The table `rollouts` has no columns for these fields. `pages.rollout_columns` returns the SQL expressions of two.

ROLLOUTS = Noun(
    "rollouts",
    rollouts,
    {
        **_text("rollout_id"),
        **_stamps("start_time", "end_time"),
        **_text("mode", "resources_id", "status"),
        "group": FilterField("group_id", "text"),
        **_text("plan_key"),
        **_values("step", "resources_version", REWARD),
        LABEL: FilterField(LABEL, "labels"),
        SCAN_MATCH: FilterField(SCAN_MATCH, "matches"),
    },
)
ATTEMPTS = Noun(
    "attempts",
    attempts,
    {
        **_text("rollout_id", "attempt_id"),
        **_numbers("sequence_id"),
        **_stamps("start_time", "end_time"),
        **_text("status", "worker_id"),
        **_times("last_heartbeat_time"),
    },
)
SPANS = Noun(
    "spans",
    spans,
    {
        **_text("rollout_id", "attempt_id"),
        **_numbers("sequence_id"),
        **_text("trace_id", "span_id", "parent_id", "name"),
        **_times("start_time", "end_time"),
    },
    created="position",
    # Several spans of one request to an LLM proxy have the same sequence number, so they are sorted by time.
    ties={"sequence_id": ("start_time", "end_time")},
)
RESOURCES = Noun(
    "resources",
    resources,
    {**_text("resources_id"), **_stamps("create_time", "update_time"), **_numbers("version")},
)
WORKERS = Noun(
    "workers",
    workers,
    {
        **_text("worker_id", "status"),
        **_stamps("last_heartbeat_time", "last_dequeue_time", "last_busy_time", "last_idle_time"),
        **_text("current_rollout_id", "current_attempt_id"),
    },
)


_NOUNS: Final[Mapping[type[PageQuery], Noun]] = {
    RolloutQuery: ROLLOUTS,
    UsageQuery: ROLLOUTS,
    AttemptQuery: ATTEMPTS,
    SpanQuery: SPANS,
    ResourcesQuery: RESOURCES,
    WorkerQuery: WORKERS,
}


def query(
    noun: Noun,
    conditions: Sequence[FilterCondition] = (),
    *,
    filter_logic: str = "and",
    sort_by: str | None = None,
    sort_order: str = "asc",
    limit: int = -1,
    offset: int = 0,
    reward_version: str | None = None,
) -> FilterQuery:
    """Check the arguments of a query, and return the query. Conditions whose value is None are left out.

    Raises:
        Invalid: the logic is not `and` or `or`, the order is not `asc` or `desc`, the limit is below -1, the offset is
            negative, or the field does not exist or has no order; the message lists the valid fields.
    """
    arguments.choice(filter_logic, "filter_logic", "and", "or")
    arguments.choice(sort_order, "sort_order", "asc", "desc")
    orders = [name for name, field in noun.fields.items() if field.kind != "matches"]
    if sort_by is not None and arguments.text(sort_by, "sort_by") not in orders:
        raise Invalid("sort_by", f"{noun.name} sort by {', '.join(orders)}, not by {sort_by!r}")
    arguments.page(limit, offset)
    checked = tuple(_checked(noun, condition) for condition in conditions if condition.value is not None)
    logic = cast("Literal['and', 'or']", filter_logic)
    version = None if reward_version is None else version_key(reward_version)
    descending = sort_order == "desc"
    return FilterQuery(noun, checked, logic, sort_by, descending, limit, offset, reward_version=version)


def of(value: PageQuery) -> FilterQuery:
    """Return the checked query for the query object of an API call. The errors are those of `query`."""
    return query(
        _NOUNS[type(value)],
        [_condition(name, operand) for name in value.conditions() if (operand := getattr(value, name)) is not None],
        **{name: argument for name, argument in vars(value).items() if name in _PAGE},
    )


def _condition(name: str, value: Any) -> FilterCondition:
    """Return the condition for an argument of the API. Its name is `<field>` or `<field>_<operation>`."""
    field, _, operation = name.rpartition("_")
    if operation in {"in", "contains", "min", "max"}:
        return FilterCondition(field, cast("Operation", operation), value)
    return FilterCondition(name, "is", value)


def _checked(noun: Noun, condition: FilterCondition) -> FilterCondition:
    """Check a condition and return it."""
    field, operation = condition.field, condition.operation
    is_number = noun.fields[field].kind in {"number", "value"}
    match operation:
        case "is" | "contains":
            kind = "text"
        case "in":
            kind = "integers" if is_number else "texts"
        case "min" | "max":
            kind = "number"
    name = field if operation == "is" else f"{field}_{operation}"
    value = check_condition(condition.value, name, kind)
    if noun.fields[field].kind == "matches":
        version_key(value, name)
    return FilterCondition(field, operation, tuple(value) if operation == "in" else value)


def where(dialect: Dialect, filter_query: FilterQuery, columns: Columns) -> ColumnElement[bool]:
    """Return the SQL condition that rows of a query must meet. A query without conditions matches every row.

    `params` returns the values of the parameters in this condition. A `contains` condition has no parameter, because
    its text is a fixed value of the statement.
    """
    terms = [term(dialect, filter_query, index, columns) for index in range(len(filter_query.conditions))]
    if not terms:
        return true()
    return and_(*terms) if filter_query.logic == "and" else or_(*terms)


def term(dialect: Dialect, filter_query: FilterQuery, index: int, columns: Columns) -> ColumnElement[bool]:
    """Return one condition of a query as SQL. `index` is the index of the condition in the query."""
    condition, name = filter_query.conditions[index], f"condition_{index}"
    field = filter_query.noun.fields[condition.field]
    if condition.operation == "in":
        return _one_of(dialect, field, columns, name) if condition.value else false()
    if field.kind == "matches":
        return columns["rollout_id"].in_(_matched(name))
    column = columns[field.column]
    match condition.operation:
        case "is":
            return column == bindparam(name, type_=column.type)
        case "contains":
            return dialect.contains(column, condition.value)
        case "min":
            return column >= bindparam(name, type_=column.type)
        case "max":
            return column <= bindparam(name, type_=column.type)


def _one_of(dialect: Dialect, field: FilterField, columns: Columns, name: str) -> ColumnElement[bool]:
    if field.kind == "labels":
        with_label = select(labels.c.rollout_id).where(dialect.any_of(labels.c.label, name))
        return columns["rollout_id"].in_(with_label)
    column = columns[field.column]
    return dialect.any_of(cast_sql(column, Text) if field.kind in {"number", "value"} else column, name)


def _matched(name: str) -> Select[Any]:
    """Return the statement for the rollouts whose latest attempts a version of a scanner matched."""
    scanned, of_scan, latest = (
        scans.alias("scanned"),
        rollouts.alias("scanned_rollouts"),
        attempts.alias("scanned_attempts"),
    )
    scan, rollout, attempt = scanned.c, of_scan.c, latest.c
    joined = scanned.join(of_scan, rollout.rollout_id == scan.rollout_id).join(
        latest, and_(attempt.rollout_id == scan.rollout_id, attempt.attempt_id == scan.attempt_id)
    )
    columns: list[ColumnElement[Any]] = [scan.rollout_id]
    return (
        select(*columns)
        .select_from(joined)
        .where(
            scan.scanner == bindparam(f"{name}_scanner", type_=Text),
            scan.version == bindparam(f"{name}_version", type_=Text),
            scan.is_match == 1,
            attempt.sequence_id == rollout.attempt_count,
            attempt.released_position.is_(None),
        )
    )


def params(dialect: Dialect, filter_query: FilterQuery) -> dict[str, Any]:
    """Return the values of the parameters in the condition that `where` returns."""
    values: dict[str, Any] = {}
    version = filter_query.reward_version
    if version is not None and filter_query.uses(REWARD):
        values = {"reward_name": version.name, "reward_version": version.version}
    for index, condition in enumerate(filter_query.conditions):
        name = f"condition_{index}"
        if filter_query.noun.fields[condition.field].kind == "matches":
            key = version_key(condition.value)
            values |= {f"{name}_scanner": key.name, f"{name}_version": key.version}
        elif condition.operation in {"is", "min", "max"}:
            values[name] = condition.value
        elif condition.operation == "in" and condition.value:
            is_number = filter_query.noun.fields[condition.field].kind in {"number", "value"}
            values[name] = dialect.list_param([str(item) for item in condition.value] if is_number else condition.value)
    return values


def shape(filter_query: FilterQuery) -> tuple[Any, ...] | None:
    """Return a key that all queries with the same SQL text share; None if the statement contains a value."""
    if any(condition.operation == "contains" for condition in filter_query.conditions):
        return None
    conditions = tuple((term.field, term.operation, not term.value) for term in filter_query.conditions)
    return (
        filter_query.noun.name,
        conditions,
        filter_query.logic,
        filter_query.sort_by,
        filter_query.is_descending,
        filter_query.is_paged,
        filter_query.is_newest_first,
        filter_query.reward_version is not None,
    )


def order(filter_query: FilterQuery, columns: Columns) -> list[ColumnElement[Any]]:
    """Return the terms of ORDER BY for a query.

    Rows with equal values are in the order of creation, even in a descending sort, unless the newest come first. As in
    Agent-lightning 0.3, null is sorted like a time after all others, and in other fields like an empty text or zero.
    """
    noun = filter_query.noun
    terms: list[ColumnElement[Any]] = []
    if filter_query.sort_by is not None:
        terms += _sorted_by(noun, filter_query.sort_by, columns, is_descending=filter_query.is_descending)
        for field in (noun.ties or {}).get(filter_query.sort_by, ()):
            terms += _sorted_by(noun, field, columns, is_descending=False)
    created = columns[noun.created]
    return [*terms, created.desc() if filter_query.is_newest_first else created]


def _sorted_by(noun: Noun, name: str, columns: Columns, *, is_descending: bool) -> list[ColumnElement[Any]]:
    field = noun.fields[name]
    column = columns[field.column]
    stored = noun.table.c.get(field.column)
    if field.kind == "value":
        return [column.is_(None), column.desc() if is_descending else column]
    if stored is not None and not stored.nullable:
        terms = [column]
    elif field.kind == "time":
        terms = [column.is_(None), column]
    else:
        terms = [func.coalesce(column, _EMPTY[field.kind])]
    return [term.desc() if is_descending else term for term in terms]


def matches(filter_query: FilterQuery, row: Values) -> bool:
    """Return whether a row matches a query, as the condition of `where` does. The row is a mapping by column name."""
    if not filter_query.conditions:
        return True
    results = (
        _holds(condition, row[filter_query.noun.fields[condition.field].column])
        for condition in filter_query.conditions
    )
    return all(results) if filter_query.logic == "and" else any(results)


def _holds(condition: FilterCondition, value: Any) -> bool:
    match condition.operation:
        case "is":
            return condition.value in value if isinstance(value, list) else value == condition.value
        case "in":
            if isinstance(value, list):
                return not set(cast("list[str]", value)).isdisjoint(condition.value)
            return value in condition.value
        case "contains":
            return value is not None and condition.value in value
        case "min":
            return value is not None and value >= condition.value
        case "max":
            return value is not None and value <= condition.value


def arranged(filter_query: FilterQuery, rows: Sequence[Values]) -> list[Values]:
    """Return rows in the order of a query, as the terms of `order` sort them."""
    noun = filter_query.noun
    ordered = sorted(rows, key=lambda row: row[noun.created], reverse=filter_query.is_newest_first)
    if filter_query.sort_by is None:
        return ordered
    # Python's sort keeps the order of equal rows, also in reverse.
    for field in reversed((noun.ties or {}).get(filter_query.sort_by, ())):
        ordered.sort(key=_key(noun, field))
    is_descending = filter_query.is_descending
    ordered.sort(key=_key(noun, filter_query.sort_by, is_descending=is_descending), reverse=is_descending)
    return ordered


def _key(noun: Noun, name: str, *, is_descending: bool = False) -> Callable[[Values], Any]:
    field = noun.fields[name]
    empty: Any = _EMPTY.get(field.kind, -inf if field.kind == "value" and is_descending else inf)

    def key(row: Values) -> Any:
        value = row[field.column]
        if isinstance(value, list):
            value = min(cast("list[str]", value), default=None)
        return empty if value is None else value

    return key


def page(filter_query: FilterQuery, rows: Sequence[Values]) -> Sequence[Values]:
    """Return the rows on the page of a query. The given rows must be sorted already."""
    if filter_query.limit == -1:
        return rows[filter_query.offset :]
    return rows[filter_query.offset : filter_query.offset + filter_query.limit]
