"""Interface of the collections that a store can be built on, with Agent-lightning 0.3's names and arguments."""
# ruff: noqa: A002 - the names of arguments are Agent-lightning's

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar

from pydantic import BaseModel

from store.models import Attempt, PaginatedResult, ResourcesUpdate, Rollout, Span, Worker

T = TypeVar("T", bound=BaseModel)
I = TypeVar("I")  # noqa: E741 - an item of a queue
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

AtomicMode = Literal["r", "w", "rw"]
"""The operations inside an atomic block: reads, writes, or both."""

AtomicLabels = Literal[
    "rollouts",
    "attempts",
    "spans",
    "resources",
    "workers",
    "rollout_queue",
    "span_sequence_ids",
    "plan_keys",
    "generic",
]
"""The collections that an atomic block uses, for a backend that locks each collection separately."""


class FilterField(TypedDict, total=False):
    """Conditions on one field."""

    exact: Any
    within: Sequence[Any]
    contains: str


FilterOptions = Mapping[str, Any]
"""Conditions by field, each a `FilterField`, as in `{"status": {"within": ["failed"]}}`.

The key `_aggregate` states whether all conditions of all fields have to hold ("and", the default) or at least one
condition ("or"). The key `_must` maps fields to further conditions, which always have to hold. `contains` matches a
case-sensitive substring; it does not match None. An empty `within` matches nothing. Without conditions, every item
matches.
"""


class SortOptions(TypedDict):
    """The order of a query."""

    name: str
    """The field. If its name ends in `_time`, None counts as later than all times. Otherwise None counts as empty
    text."""
    order: Literal["asc", "desc"]


class Collection(abc.ABC, Generic[T]):
    """A set of models with a primary key, in the order in which they were inserted."""

    @abc.abstractmethod
    def primary_keys(self) -> Sequence[str]:
        """Return the names of the fields that form the primary key."""

    @abc.abstractmethod
    def item_type(self) -> type[T]:
        """Return the type of the items."""

    @abc.abstractmethod
    async def size(self) -> int:
        """Return the number of items."""

    @abc.abstractmethod
    async def query(
        self,
        filter: FilterOptions | None = None,
        sort: SortOptions | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[T]:
        """Return the matching items. Without `sort`, and among equal items, the order is that of insertion.

        Args:
            filter: the conditions.
            sort: the order.
            limit: the greatest number of items; -1 for all.
            offset: the number of matches to skip.
        """

    @abc.abstractmethod
    async def get(self, filter: FilterOptions | None = None, sort: SortOptions | None = None) -> T | None:
        """Return the first matching item, or None."""

    @abc.abstractmethod
    async def insert(self, items: Sequence[T]) -> None:
        """Add items.

        Raises:
            ValueError: an item with this primary key exists.
        """

    @abc.abstractmethod
    async def update(self, items: Sequence[T], update_fields: Sequence[str] | None = None) -> Sequence[T]:
        """Replace the given fields of the items with these primary keys, by default all fields, and return the items.

        Raises:
            ValueError: there is no item with this primary key.
        """

    @abc.abstractmethod
    async def upsert(self, items: Sequence[T], update_fields: Sequence[str] | None = None) -> Sequence[T]:
        """Insert the items that are new, update the other items as `update` does, and return all items."""

    @abc.abstractmethod
    async def delete(self, items: Sequence[T]) -> None:
        """Remove the items with these primary keys.

        Raises:
            ValueError: there is no item with this primary key.
        """


class Queue(abc.ABC, Generic[I]):
    """Items that are appended at the end and taken from the front."""

    @abc.abstractmethod
    def item_type(self) -> type[I]:
        """Return the type of the items."""

    @abc.abstractmethod
    async def has(self, item: I) -> bool:
        """Return whether the item is in the queue."""

    @abc.abstractmethod
    async def enqueue(self, items: Sequence[I]) -> Sequence[I]:
        """Append the items and return them."""

    @abc.abstractmethod
    async def dequeue(self, limit: int = 1) -> Sequence[I]:
        """Take up to `limit` items from the front and return them."""

    @abc.abstractmethod
    async def peek(self, limit: int = 1) -> Sequence[I]:
        """Return up to `limit` items at the front without removing the items."""

    @abc.abstractmethod
    async def size(self) -> int:
        """Return the number of items."""


class KeyValue(abc.ABC, Generic[K, V]):
    """Values by key."""

    @abc.abstractmethod
    async def has(self, key: K) -> bool:
        """Return whether the key has a value."""

    @abc.abstractmethod
    async def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value of the key, or the default."""

    @abc.abstractmethod
    async def set(self, key: K, value: V) -> None:
        """Set the value of the key."""

    @abc.abstractmethod
    async def inc(self, key: K, amount: V) -> V:
        """Add an amount to the number of the key, or to 0 if the key has no value, and return the sum.

        Raises:
            TypeError: the amount or the value of the key is not a number.
        """

    @abc.abstractmethod
    async def chmax(self, key: K, value: V) -> V:
        """Set the number of the key to `value` if the number is less or missing, and return the resulting number.

        Raises:
            TypeError: `value` or the value of the key is not a number.
        """

    @abc.abstractmethod
    async def pop(self, key: K, default: V | None = None) -> V | None:
        """Remove the key and return its value, or the default."""

    @abc.abstractmethod
    async def size(self) -> int:
        """Return the number of keys."""


class LightningCollections(abc.ABC):
    """The collections of one store.

    All methods are called in one event loop. Agent-lightning's class has all properties and methods except `plan_keys`
    and `close`, which have defaults.
    """

    @property
    @abc.abstractmethod
    def rollouts(self) -> Collection[Rollout]:
        """Rollouts, by `rollout_id`."""

    @property
    @abc.abstractmethod
    def attempts(self) -> Collection[Attempt]:
        """Attempts, by `rollout_id` and `attempt_id`."""

    @property
    @abc.abstractmethod
    def spans(self) -> Collection[Span]:
        """Spans, by `rollout_id`, `attempt_id` and `span_id`."""

    @property
    @abc.abstractmethod
    def resources(self) -> Collection[ResourcesUpdate]:
        """The current version of each set of resources, by `resources_id`."""

    @property
    @abc.abstractmethod
    def workers(self) -> Collection[Worker]:
        """Workers, by `worker_id`."""

    @property
    @abc.abstractmethod
    def rollout_queue(self) -> Queue[str]:
        """The ids of the rollouts that wait for a claim. Ids of other rollouts may remain until a claim drops them."""

    @property
    @abc.abstractmethod
    def span_sequence_ids(self) -> KeyValue[str, int]:
        """The last span number of each rollout."""

    @property
    def plan_keys(self) -> KeyValue[str, str] | None:
        """For each plan key (`rollbook.key` in the metadata), the rollout's id and the hash of its input.

        None: the store finds the keys in the metadata of the rollouts. It reads all rollouts once per process.
        """
        return None

    @abc.abstractmethod
    def atomic(
        self,
        *,
        mode: AtomicMode = "rw",
        snapshot: bool = False,
        commit: bool = False,
        labels: Sequence[AtomicLabels] | None = None,
    ) -> AbstractAsyncContextManager[Self]:
        """Return the context of an atomic block.

        The block does not see concurrent writes of other blocks. Other blocks see the writes of this block only after
        its end.

        Args:
            mode: the operations inside the block.
            snapshot: whether all reads see the same state.
            commit: whether to commit the writes at the end, and to undo them after an exception.
            labels: the collections that the block uses; None for any.
        """

    async def execute(
        self,
        callback: Callable[[Self], Awaitable[R]],
        *,
        mode: AtomicMode = "rw",
        snapshot: bool = False,
        commit: bool = False,
        labels: Sequence[AtomicLabels] | None = None,
    ) -> R:
        """Return the result of a callback within `atomic`.

        A backend whose transactions may fail can override this method and call the callback again, because the store
        passes only callbacks that can be repeated.
        """
        async with self.atomic(mode=mode, snapshot=snapshot, commit=commit, labels=labels) as collections:
            return await callback(collections)

    async def close(self) -> None:  # noqa: B027 - most backends have nothing to release
        """Release connections. Called once, when the store is closed."""
