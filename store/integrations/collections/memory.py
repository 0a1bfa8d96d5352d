"""Collections in memory."""
# ruff: noqa: A002 - the names of arguments are Agent-lightning's

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice
from math import inf
from numbers import Real
from operator import itemgetter
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

from store.errors import AlreadyExists, NotFound
from store.integrations.collections.interface import (
    AtomicLabels,
    AtomicMode,
    Collection,
    FilterField,
    FilterOptions,
    I,
    K,
    KeyValue,
    LightningCollections,
    Queue,
    SortOptions,
    T,
    V,
)
from store.models import Attempt, PaginatedResult, ResourcesUpdate, Rollout, Span, Worker

Key = tuple[Any, ...]
Entry = tuple[int, T]
"""The number of the insertion, and the item."""


class ListBasedCollection(Collection[T]):
    """Collection in memory. Items are copied when they are stored and when they are read.

    Items with equal first fields of their primary keys form a group, so that the attempts and the spans of a rollout
    are found without a search of all items.

    Args:
        items: the initial items.
        item_type: the type of the items.
        primary_keys: the names of the fields of the primary key.
    """

    def __init__(self, items: Sequence[T], item_type: type[T], primary_keys: Sequence[str]) -> None:
        self._item_type = item_type
        self._primary_keys = tuple(primary_keys)
        self._groups: dict[Any, dict[Key, Entry[T]]] = {}
        self._numbers = count()
        for item in items:
            self._insert(item)

    def primary_keys(self) -> Sequence[str]:
        return self._primary_keys

    def item_type(self) -> type[T]:
        return self._item_type

    async def size(self) -> int:
        return sum(map(len, self._groups.values()))

    async def query(
        self,
        filter: FilterOptions | None = None,
        sort: SortOptions | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[T]:
        matches = self._matches(filter, sort)
        page = matches[offset:] if limit == -1 else matches[offset : offset + limit]
        copies = [item.model_copy(deep=True) for item in page]
        return PaginatedResult(items=copies, limit=limit, offset=offset, total=len(matches))

    async def get(self, filter: FilterOptions | None = None, sort: SortOptions | None = None) -> T | None:
        matches = self._matches(filter, sort)
        return matches[0].model_copy(deep=True) if matches else None

    async def insert(self, items: Sequence[T]) -> None:
        keys = set[Key]()
        for item in items:
            key = self._key(item)
            if self._entry(key) is not None or key in keys:
                raise AlreadyExists(self._item_type.__name__, str(key))
            keys.add(key)
        for item in items:
            self._insert(item)

    async def update(self, items: Sequence[T], update_fields: Sequence[str] | None = None) -> Sequence[T]:
        for item in items:
            if self._entry(self._key(item)) is None:
                raise self._missing(item)
        return [self._replace(item, update_fields) for item in items]

    async def upsert(self, items: Sequence[T], update_fields: Sequence[str] | None = None) -> Sequence[T]:
        return [
            self._insert(item) if self._entry(self._key(item)) is None else self._replace(item, update_fields)
            for item in items
        ]

    async def delete(self, items: Sequence[T]) -> None:
        for item in items:
            if self._entry(self._key(item)) is None:
                raise self._missing(item)
        for item in items:
            key = self._key(item)
            group = self._groups[key[0]]
            del group[key]
            if not group:
                del self._groups[key[0]]

    def _key(self, item: T) -> Key:
        return tuple(getattr(item, name) for name in self._primary_keys)

    def _entry(self, key: Key) -> Entry[T] | None:
        return self._groups.get(key[0], {}).get(key)

    def _missing(self, item: T) -> NotFound:
        return NotFound.item(**dict(zip(self._primary_keys, map(str, self._key(item)), strict=True)))

    def _insert(self, item: T) -> T:
        key = self._key(item)
        self._groups.setdefault(key[0], {})[key] = next(self._numbers), item.model_copy(deep=True)
        return item

    def _replace(self, item: T, fields: Sequence[str] | None) -> T:
        key = self._key(item)
        number, before = self._groups[key[0]][key]
        if fields is not None:
            item = before.model_copy(update={name: getattr(item, name) for name in fields})
        self._groups[key[0]][key] = number, item.model_copy(deep=True)
        return item

    def _matches(self, filter: FilterOptions | None, sort: SortOptions | None) -> list[T]:
        matches = _matcher(filter)
        entries = sorted((entry for entry in self._candidates(filter) if matches(entry[1])), key=itemgetter(0))
        items = [item for _, item in entries]
        if sort is not None:
            # Equal items keep their order, also in descending order.
            items.sort(key=_order(sort["name"]), reverse=sort["order"] == "desc")
        return items

    def _candidates(self, filter: FilterOptions | None) -> Iterable[Entry[T]]:
        """Return the entries that may match.

        If a condition names groups, these are the entries of the groups. Otherwise, these are all entries.
        """
        first = self._primary_keys[0]
        required = [dict[str, Any]((filter or {}).get("_must") or {}).get(first, {})]
        if filter and filter.get("_aggregate", "and") == "and":
            required.append(filter.get(first, {}))
        for conditions in required:
            if "exact" in conditions:
                return self._groups.get(conditions["exact"], {}).values()
            if "within" in conditions:
                keys = dict.fromkeys(conditions["within"])
                return (entry for key in keys for entry in self._groups.get(key, {}).values())
        return (entry for group in self._groups.values() for entry in group.values())


def _matcher(filter: FilterOptions | None) -> Callable[[Any], bool]:
    conditions = dict(filter or {})
    combine = any if conditions.pop("_aggregate", "and") == "or" else all
    must = _conditions(conditions.pop("_must", None) or {})
    others = _conditions(conditions)

    def matches(item: Any) -> bool:
        return all(holds(item) for holds in must) and (not others or combine(holds(item) for holds in others))

    return matches


def _conditions(fields: Mapping[str, FilterField]) -> list[Callable[[Any], bool]]:
    return [
        _condition(name, operation, operand)
        for name, conditions in fields.items()
        for operation, operand in conditions.items()
    ]


def _condition(name: str, operation: str, operand: Any) -> Callable[[Any], bool]:
    if operation == "exact":
        return lambda item: getattr(item, name) == operand
    if operation == "within":
        values = frozenset(operand)
        return lambda item: getattr(item, name) in values
    if operation == "contains":
        return lambda item: (value := getattr(item, name)) is not None and operand in value
    raise ValueError(f"{name}: {operation!r} is not a condition; use exact, within or contains")


def _order(name: str) -> Callable[[Any], Any]:
    missing: Any = inf if name.endswith("_time") else ""
    return lambda item: missing if (value := getattr(item, name)) is None else value


class DequeBasedQueue(Queue[I]):
    """Queue in memory.

    Args:
        item_type: the type of the items.
        items: the initial items.
    """

    def __init__(self, item_type: type[I], items: Sequence[I] = ()) -> None:
        self._item_type = item_type
        self._items = deque(items)

    def item_type(self) -> type[I]:
        return self._item_type

    async def has(self, item: I) -> bool:
        return item in self._items

    async def enqueue(self, items: Sequence[I]) -> Sequence[I]:
        self._items.extend(items)
        return items

    async def dequeue(self, limit: int = 1) -> Sequence[I]:
        return [self._items.popleft() for _ in range(min(limit, len(self._items)))]

    async def peek(self, limit: int = 1) -> Sequence[I]:
        return list(islice(self._items, max(limit, 0)))

    async def size(self) -> int:
        return len(self._items)


class DictBasedKeyValue(KeyValue[K, V]):
    """Values by key in memory.

    Args:
        data: the initial values.
    """

    def __init__(self, data: Mapping[K, V] | None = None) -> None:
        self._values = dict(data or {})

    async def has(self, key: K) -> bool:
        return key in self._values

    async def get(self, key: K, default: V | None = None) -> V | None:
        return self._values.get(key, default)

    async def set(self, key: K, value: V) -> None:
        self._values[key] = value

    async def inc(self, key: K, amount: V) -> V:
        self._values[key] = _number(self._values.get(key, 0)) + _number(amount)
        return self._values[key]

    async def chmax(self, key: K, value: V) -> V:
        self._values[key] = max(_number(self._values.get(key, value)), _number(value))
        return self._values[key]

    async def pop(self, key: K, default: V | None = None) -> V | None:
        return self._values.pop(key, default)

    async def size(self) -> int:
        return len(self._values)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{value!r} is not a number; set the key to a number first")
    return value


class InMemoryLightningCollections(LightningCollections):
    """The collections of a store in memory. A lock makes blocks atomic; writes are not undone after an exception.

    Args:
        lock_type: has no effect, because a store calls its collections in one event loop.
    """

    def __init__(self, lock_type: Literal["thread", "asyncio"] = "asyncio") -> None:
        del lock_type
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._rollouts = ListBasedCollection([], Rollout, ["rollout_id"])
        self._attempts = ListBasedCollection([], Attempt, ["rollout_id", "attempt_id"])
        self._spans = ListBasedCollection([], Span, ["rollout_id", "attempt_id", "span_id"])
        self._resources = ListBasedCollection([], ResourcesUpdate, ["resources_id"])
        self._workers = ListBasedCollection([], Worker, ["worker_id"])
        self._queue = DequeBasedQueue(str)
        self._span_sequence_ids = DictBasedKeyValue[str, int]()
        self._plan_keys = DictBasedKeyValue[str, str]()

    @property
    def rollouts(self) -> Collection[Rollout]:
        return self._rollouts

    @property
    def attempts(self) -> Collection[Attempt]:
        return self._attempts

    @property
    def spans(self) -> Collection[Span]:
        return self._spans

    @property
    def resources(self) -> Collection[ResourcesUpdate]:
        return self._resources

    @property
    def workers(self) -> Collection[Worker]:
        return self._workers

    @property
    def rollout_queue(self) -> Queue[str]:
        return self._queue

    @property
    def span_sequence_ids(self) -> KeyValue[str, int]:
        return self._span_sequence_ids

    @property
    def plan_keys(self) -> KeyValue[str, str]:
        return self._plan_keys

    @asynccontextmanager
    async def atomic(
        self,
        *,
        mode: AtomicMode = "rw",
        snapshot: bool = False,
        commit: bool = False,
        labels: Sequence[AtomicLabels] | None = None,
    ) -> AsyncGenerator[Self]:
        del mode, snapshot, commit, labels
        # Several stores may use the collections one after another, each in its own event loop.
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            yield self
