"""Index of usage: the model calls of each attempt, by model, and its tool calls. Decisions 109 and 126."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Table, and_, select

from store.db.dialect import NamedRow, ReadSession
from store.db.index_place import IndexSession
from store.db.tables.usage import USAGE, usage_calls, usage_rollouts, usage_sums, usage_tools, usage_totals
from store.domain.events import AttemptStarted, RolloutAmended, RolloutEnqueued, RolloutStarted, SpanRecorded
from store.domain.run_events import RunEvent
from store.domain.usage import UsageNumbers
from store.indexing.index import Index, IndexedEvent
from store.model_calls.json_values import as_object
from store.model_calls.recorded import requested_tools, tool_use_of
from store.model_calls.span_kinds import kind_of_attributes
from store.model_calls.tool_failures import failure_in

_LARGEST_COUNT: Final = 2**53


class SumKey(NamedTuple):
    """The key of a row of `usage_sums`."""

    rollout_id: str
    attempt_id: str
    model: str
    source: str
    origin: str


class CallKey(NamedTuple):
    """The key of a row of `usage_calls`."""

    rollout_id: str
    attempt_id: str
    response_id: str


class RolloutKeys(NamedTuple):
    """The values of a rollout by which sums are grouped."""

    step: int | None = None
    group_id: str | None = None
    mode: str | None = None
    resources_id: str | None = None
    resources_version: int | None = None


class AttemptKey(NamedTuple):
    """The key of a row of `usage_tools`."""

    rollout_id: str
    attempt_id: str


class CallUsage(NamedTuple):
    """The model and the numbers of one call."""

    model: str
    numbers: UsageNumbers
    tools: int = 0
    """The number of tool calls in the response."""


class ToolNumbers(NamedTuple):
    """The tool calls of one span, or of all spans of an attempt. The fields are columns of `usage_tools`."""

    requested: int = 0
    answered: int = 0
    executed: int = 0
    failed: int = 0
    unread: int = 0

    @classmethod
    def of(cls, event: IndexedEvent) -> ToolNumbers:
        """Return the numbers of the event of a span."""
        if event.has_unread_body:
            return cls(unread=1)
        attributes: dict[str, Any] = event.body.get("attributes") or {}
        tool = tool_use_of(attributes)
        if tool is None:
            # The span of an agent repeats the responses of its calls.
            requested = None if kind_of_attributes(attributes) == "agent" else requested_tools(attributes)
            return cls(requested=requested or 0, answered=int(requested is not None))
        recorded: list[Any] = event.body.get("events") or []
        is_failed = (
            event.data["status_code"] == "ERROR"
            or "exception.type" in attributes
            or any("exception.type" in as_object(as_object(record).get("attributes")) for record in recorded)
            or bool(failure_in(tool.result))
        )
        return cls(executed=1, failed=int(is_failed))

    def plus(self, other: ToolNumbers) -> ToolNumbers:
        return ToolNumbers(*(one + two for one, two in zip(self, other, strict=True)))


class SumUsage(NamedTuple):
    """The content of a row of `usage_sums`."""

    rollout: RolloutKeys
    calls: int
    numbers: UsageNumbers


class UsageIndex(Index):
    """The index of usage."""

    name = "usage"
    version = 2
    types = (
        RolloutEnqueued.type,
        RolloutStarted.type,
        RolloutAmended.type,
        AttemptStarted.type,
        SpanRecorded.type,
        RunEvent.type,
    )
    tables = USAGE

    async def fold(self, session: IndexSession, events: Sequence[IndexedEvent]) -> None:
        rows = await _UsageRows.read(session, events)
        for event in events:
            rows.add(event)
        await rows.write(session)

    async def remove(self, session: IndexSession, rollout_ids: Sequence[str]) -> bool:
        rows = await _rows(session, usage_sums, rollout_id=rollout_ids)
        sums = [
            (_fields(SumKey, row), _fields(RolloutKeys, row), row.calls, _fields(UsageNumbers, row)) for row in rows
        ]
        await _add_to_totals(
            session, [(key, SumUsage(rollout, -calls, numbers)) for key, rollout, calls, numbers in sums]
        )
        return await super().remove(session, rollout_ids)

    async def problem(self, session: ReadSession, rollout_id: str, events: Sequence[IndexedEvent]) -> str | None:
        expected = _UsageRows()
        for event in events:
            expected.add(event)
        stored = await _rows(session, usage_sums, rollout_id=[rollout_id])
        sums = {_fields(SumKey, row): (row.calls, row.tokens_in, row.tokens_out) for row in stored if row.calls}
        of_events = {
            key: (usage.calls, usage.numbers.tokens_in, usage.numbers.tokens_out)
            for key, usage in expected.sums.items()
            if usage.calls
        }
        if sums != of_events:
            return f"the sums are {sums}, and those of the events are {of_events}"
        rows = await _rows(session, usage_tools, rollout_id=[rollout_id])
        tools = {_fields(AttemptKey, row): _fields(ToolNumbers, row) for row in rows}
        if tools != expected.tools:
            return f"the tool calls are {tools}, and those of the events are {expected.tools}"
        return None


class _UsageRows:
    """The rows that a sequence of events changes."""

    def __init__(self) -> None:
        self.rollouts: dict[str, RolloutKeys] = {}
        self.sums: dict[SumKey, SumUsage] = {}
        self.calls: dict[CallKey, CallUsage] = {}
        self.tools: dict[AttemptKey, ToolNumbers] = {}
        self._stored: dict[SumKey, SumUsage] = {}
        """The sums as the table has them, which are subtracted from the totals if they change."""
        self._changes: set[str | SumKey | CallKey | AttemptKey] = set()
        """The keys of the rows to write. A text is a rollout id."""
        self._origins: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        """The origins of the sums of an attempt, by rollout id and attempt id."""

    @classmethod
    async def read(cls, session: IndexSession, events: Sequence[IndexedEvent]) -> _UsageRows:
        """Return the stored rows that the events may change."""
        rows = cls()
        ids = sorted({event.rollout_id for event in events})
        responses = sorted({event.data["response_id"] for event in events if event.data.get("response_id")})
        for row in await _rows(session, usage_rollouts, rollout_id=ids):
            rows.rollouts[row.rollout_id] = _fields(RolloutKeys, row)
        for row in await _rows(session, usage_sums, rollout_id=ids):
            usage = SumUsage(_fields(RolloutKeys, row), row.calls, _fields(UsageNumbers, row))
            rows._set_sum(_fields(SumKey, row), usage)
        rows._stored = dict(rows.sums)
        for row in await _rows(session, usage_calls, rollout_id=ids, response_id=responses) if responses else ():
            rows.calls[_fields(CallKey, row)] = CallUsage(row.model, _fields(UsageNumbers, row), row.tools)
        for row in await _rows(session, usage_tools, rollout_id=ids):
            rows.tools[_fields(AttemptKey, row)] = _fields(ToolNumbers, row)
        return rows

    def add(self, event: IndexedEvent) -> None:
        """Change the rows according to an event."""
        data, rollout_id = event.data, event.rollout_id
        match event.type:
            case RolloutEnqueued.type | RolloutStarted.type:
                rollout = RolloutKeys(data.get("step"), data.get("group"), data.get("mode"), data.get("resources_id"))
                self._set_rollout(rollout_id, rollout._replace(resources_version=data.get("resources_version")))
            case RolloutAmended.type:
                changes = {name: data.get(name) for name in data["fields"] if name in {"mode", "resources_id"}}
                if "resources_id" in changes:
                    changes["resources_version"] = data.get("resources_version")
                self._set_rollout(rollout_id, self.rollouts.get(rollout_id, RolloutKeys())._replace(**changes))
                for key, usage in self.sums.items():
                    if key.rollout_id == rollout_id:
                        self.sums[key] = usage._replace(rollout=usage.rollout._replace(**changes))
                        self._changes.add(key)
            case AttemptStarted.type:
                rollout = self.rollouts.get(rollout_id, RolloutKeys())
                version = data.get("resources_version")
                if version != rollout.resources_version:
                    self._set_rollout(rollout_id, rollout._replace(resources_version=version))
            case SpanRecorded.type:
                self._add_span(rollout_id, data, ToolNumbers.of(event))
            case _:
                self._add_run_event(rollout_id, data)

    def _set_rollout(self, rollout_id: str, rollout: RolloutKeys) -> None:
        self.rollouts[rollout_id] = rollout
        self._changes.add(rollout_id)

    def _add_span(self, rollout_id: str, data: Mapping[str, Any], tools: ToolNumbers) -> None:
        numbers = UsageNumbers(*(data.get(name) for name in UsageNumbers._fields))
        response_id: str | None = data.get("response_id")
        attempt_id: str = data["attempt_id"]
        if response_id is None and numbers == UsageNumbers():
            # The span of a model call has a response id or reports usage, so this span is another one.
            if tools != ToolNumbers():
                self._add_tools(AttemptKey(rollout_id, attempt_id), tools)
            return
        call = CallUsage(data.get("model") or "", numbers, tools.requested)
        if "event" in self._origins[rollout_id, attempt_id]:
            # The events of a run report the same calls as the spans of the attempt, so only the spans count.
            for key, usage in self.sums.items():
                if (key.rollout_id, key.attempt_id, key.origin) == (rollout_id, attempt_id, "event"):
                    self.sums[key] = usage._replace(calls=0, numbers=UsageNumbers())
                    self._changes.add(key)
        if response_id is not None:
            place = CallKey(rollout_id, attempt_id, response_id)
            earlier = self.calls.get(place)
            if earlier is not None:
                self._count(_key(place, earlier, "span"), -1, earlier.numbers)
                most = max(earlier.tools, call.tools)
                call = CallUsage(earlier.model or call.model, earlier.numbers.merged(numbers), most)
                tools = tools._replace(requested=most - earlier.tools)
            self.calls[place] = call
            self._changes.add(place)
        self._add_tools(AttemptKey(rollout_id, attempt_id), tools)
        self._count(_key(CallKey(rollout_id, attempt_id, ""), call, "span"), 1, call.numbers)

    def _add_tools(self, key: AttemptKey, tools: ToolNumbers) -> None:
        self.tools[key] = self.tools.get(key, ToolNumbers()).plus(tools)
        self._changes.add(key)

    def _add_run_event(self, rollout_id: str, data: Mapping[str, Any]) -> None:
        metrics: Mapping[str, Any] = data.get("metrics") or {}
        numbers = UsageNumbers(*(_number(name, metrics.get(name)) for name in UsageNumbers._fields))
        attempt_id: str = data["attempt_id"]
        if numbers == UsageNumbers() or "span" in self._origins[rollout_id, attempt_id]:
            return
        model = metrics.get("model")
        call = CallUsage(model if isinstance(model, str) else "", numbers)
        self._count(_key(CallKey(rollout_id, attempt_id, ""), call, "event"), 1, numbers)

    def _count(self, key: SumKey, calls: int, numbers: UsageNumbers) -> None:
        rollout = self.rollouts.get(key.rollout_id, RolloutKeys())
        usage = self.sums.get(key, SumUsage(rollout, 0, UsageNumbers()))
        total = usage.numbers.plus(numbers) if calls > 0 else usage.numbers.minus(numbers)
        remaining = usage.calls + calls
        self._set_sum(key, SumUsage(usage.rollout, remaining, total if remaining else UsageNumbers()))
        self._changes.add(key)

    def _set_sum(self, key: SumKey, usage: SumUsage) -> None:
        self.sums[key] = usage
        self._origins[key.rollout_id, key.attempt_id].add(key.origin)

    async def write(self, session: IndexSession) -> None:
        """Write the changed rows."""
        rollouts = [(key, *self.rollouts[key]) for key in self._changes if isinstance(key, str)]
        sums = [
            (*key, *usage.rollout, usage.calls, *usage.numbers)
            for key, usage in self.sums.items()
            if key in self._changes
        ]
        calls = [
            (*key, call.model, *call.numbers, call.tools) for key, call in self.calls.items() if key in self._changes
        ]
        tools = [(*key, *numbers) for key, numbers in self.tools.items() if key in self._changes]
        removed = [
            (key, usage._replace(calls=-usage.calls)) for key, usage in self._stored.items() if key in self._changes
        ]
        added = [(key, usage) for key, usage in self.sums.items() if key in self._changes]
        await _add_to_totals(session, [*added, *removed])
        await session.write(usage_rollouts, rollouts, "replace")
        await session.write(usage_sums, sums, "replace")
        await session.write(usage_calls, calls, "replace")
        await session.write(usage_tools, tools, "replace")


async def _add_to_totals(session: IndexSession, sums: Sequence[tuple[SumKey, SumUsage]]) -> None:
    """Add sums to the totals, or subtract those whose number of calls is negative."""
    keys = {orjson.dumps((*usage.rollout, key.model, key.source)).decode(): (key, usage.rollout) for key, usage in sums}
    totals = {key: SumUsage(rollout, 0, UsageNumbers()) for key, (_, rollout) in keys.items()}
    for row in await _rows(session, usage_totals, key=keys) if keys else ():
        totals[row.key] = SumUsage(_fields(RolloutKeys, row), row.calls, _fields(UsageNumbers, row))
    for key, usage in sums:
        name = orjson.dumps((*usage.rollout, key.model, key.source)).decode()
        total = totals[name]
        numbers = total.numbers.plus(usage.numbers) if usage.calls > 0 else total.numbers.minus(usage.numbers)
        totals[name] = SumUsage(total.rollout, total.calls + usage.calls, numbers)
    await session.write(
        usage_totals,
        [
            (name, *total.rollout, keys[name][0].model, keys[name][0].source, total.calls)
            + (total.numbers if total.calls else UsageNumbers())
            for name, total in totals.items()
        ],
        "replace",
    )


def _key(place: CallKey, call: CallUsage, origin: str) -> SumKey:
    return SumKey(place.rollout_id, place.attempt_id, call.model, call.numbers.source, origin)


def _number(name: str, value: Any) -> Any:
    """Return a metric of a run event as tokens or as a cost; None if it is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST_COUNT:
        return None
    if name == "cost":
        return float(value)
    return int(value) if value == int(value) else None


def _fields(kind: Any, row: NamedRow) -> Any:
    return kind(*(getattr(row, name) for name in kind._fields))


async def _rows(session: IndexSession | ReadSession, table: Table, **values: Iterable[str]) -> Sequence[NamedRow]:
    """Return the rows of a table that have, in each named column, one of the values of this column."""
    dialect = session.dialect
    conditions = [dialect.any_of(table.c[name], name) for name in values]
    statement = select(*table.c).where(and_(*conditions))
    params = {name: dialect.list_param(list(items)) for name, items in values.items()}
    return await session.fetch(dialect.sql(statement), params)
